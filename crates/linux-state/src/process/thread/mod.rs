//! A Linux thread: the payload of a `quire_task` thread.

pub mod list;

use crate::base::owned::{Owned, Private};
use crate::file::files::Files;
use crate::file::state::{FsState, Seen};
use crate::ipc::host::Undos;
use crate::machine::Machine;
use crate::memory::OwnSpace;
use crate::process::Process;
use crate::process::credentials::Credentials;
use crate::process::sleep::Sleep;
use crate::process::timer_slack::Slack;
use crate::process::users::UserCharge;
use crate::signal::SigSet;
use crate::signal::pending::PendingQueue;
use crate::{Linux, Pid};
use core::num::NonZero;
use quire_fs::stream::park::Park;
use quire_heap::Arc;
use quire_sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use quire_sync::{SpinLock, WaitQueue};
use quire_task::{futex, powers};

/// Values of [`Thread::again`], the state of a call that is repeated because it found no memory.
pub struct Again;

impl Again {
    /// The call is made for the first time.
    pub const NO: u64 = 0;
    /// The call found no memory and is repeated.
    pub const TRIES: u64 = 1;
    /// The repeated call found no memory either.
    pub const FAILED: u64 = 2;
}

/// The work that a thread must do before it goes to user mode; bits of [`Thread::work`].
pub mod work {
    /// A signal may be deliverable.
    pub const SIGNAL: u32 = 1;
    /// The thread must end, because its process ends or another thread of the process execs.
    pub const KILL: u32 = 2;
    /// The thread must stop (job control).
    pub const STOP: u32 = 4;
    /// The original signal mask must be restored after a temporary mask (`sigsuspend`, `ppoll`).
    pub const RESTORE_MASK: u32 = 8;
    /// A timer of the process has expired. The timer's interrupt sets this bit, because it cannot send a signal itself.
    pub const TIMER: u32 = 16;
    /// The thread has a registered `rseq` area, and its CPU has switched to another thread since it was last in user
    /// mode.
    pub const RSEQ: u32 = 32;
    /// The thread's call waits for a time of day, which it has converted to a time since boot.
    pub const BY_DAY: u32 = 64;
    /// The time of day was set while `BY_DAY` was set. The call ends and is restarted with its original arguments.
    pub const DAY_SET: u32 = 128;
    /// The bits that end an interruptible wait. `TIMER` is left out, because an expired timer does not end a wait. Only
    /// the timer's signal ends it.
    pub const INTERRUPTS: u32 = SIGNAL | KILL | STOP | DAY_SET;
}

/// The alternate signal stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AltStack {
    /// Lowest address.
    pub base: u64,
    /// The size in bytes; 0: there is no alternate stack.
    pub size: u64,
    /// The `SS_*` flags that the program set.
    pub flags: u32,
}

impl AltStack {
    /// Whether the stack pointer `sp` lies on the alternate stack.
    pub fn holds(&self, sp: u64) -> bool {
        self.size != 0 && sp > self.base && sp - self.base <= self.size
    }
}

/// The area for restartable sequences that a thread has registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rseq {
    /// User address of the area; 0: none.
    pub at: u64,
    /// The size in bytes.
    pub len: u32,
    /// The word that must precede each abort address.
    pub signature: u32,
}

impl Rseq {
    /// No area.
    pub const NONE: Rseq = Rseq { at: 0, len: 0, signature: 0 };
}

/// A thread's [`Rseq`]. Only two callers access it: the thread itself, and the context switch away from it.
pub struct OwnRseq {
    at: AtomicU64,
    len: AtomicU32,
    signature: AtomicU32,
}

impl OwnRseq {
    /// Holds `area`, which may be [`Rseq::NONE`].
    pub fn new(area: Rseq) -> Self {
        let Rseq { at, len, signature } = area;
        OwnRseq { at: AtomicU64::new(at), len: AtomicU32::new(len), signature: AtomicU32::new(signature) }
    }

    /// The registered area.
    pub fn get(&self) -> Rseq {
        let of = Ordering::Relaxed;
        Rseq { at: self.at.load(of), len: self.len.load(of), signature: self.signature.load(of) }
    }

    /// Replaces the area by `area`.
    pub fn set(&self, area: Rseq) {
        self.len.store(area.len, Ordering::Relaxed);
        self.signature.store(area.signature, Ordering::Relaxed);
        self.at.store(area.at, Ordering::Relaxed);
    }
}

/// The state that `restart_syscall` resumes.
#[derive(Clone, Copy, Debug)]
pub enum Restart {
    /// Sleep until `deadline`. If interrupted again, store the remaining time at `remaining`.
    Sleep {
        /// The deadline's clock.
        clock: i32,
        /// On that clock, in nanoseconds.
        deadline: u64,
        /// User address for a `timespec`, or 0.
        remaining: u64,
    },
    /// A futex wait.
    Futex {
        /// User address of the word.
        at: u64,
        /// The value that the word must have for the thread to sleep.
        value: u32,
        /// The wait is woken only by wakers whose bitset has a bit in common with this one.
        bitset: u32,
        /// Whether the futex is private to the process.
        private: bool,
        /// The deadline on the monotonic clock, in nanoseconds.
        deadline: u64,
    },
    /// `poll` with `count` entries at `fds`.
    Poll {
        /// User address of the entries.
        fds: u64,
        /// Number of entries.
        count: u64,
        /// The deadline on the monotonic clock, in nanoseconds.
        deadline: u64,
    },
}

/// A Linux thread. Each field's comment names the threads that may use it. The *owner* is the thread itself.
pub struct Thread<M: Machine> {
    /// The Linux layer that the thread belongs to.
    pub linux: &'static Linux<M>,
    /// The thread's process.
    pub process: Arc<Process<M>>,
    /// The thread's id. The id changes at most once: a thread other than the first gets the process's id when it execs.
    pub tid: AtomicU32,
    /// The address space; `None` once the thread has left it. Only the owner changes it (exec, exit).
    pub space: OwnSpace<M>,
    /// The open files. Only the owner changes this field.
    pub files: Owned<Option<Arc<Files<M>>>>,
    /// Working directory, root, umask. Only the owner changes this field.
    pub fs: Owned<Option<Arc<FsState<M>>>>,
    /// Owner only: the thread's part of its process's semaphore undos; `None` before the first undo.
    pub undos: Private<Option<Undos<M>>>,
    /// Owner only: a copy of the contents of `fs`; `None` after `fs` was replaced.
    pub seen: Private<Option<Seen<M>>>,
    /// The thread's credentials. Only the owner changes them.
    pub credentials: Owned<Credentials>,
    /// The charge of the thread to its real user. Only the owner changes it.
    pub user_charge: Owned<UserCharge<M>>,
    /// Owner only: the user was over its limit of threads when the thread changed to that user. Exec then checks the
    /// limit again.
    pub over_limit: AtomicBool,
    /// The I/O priority that `ioprio_set` set. Quire only stores it, because its files are in memory. Any thread sets
    /// it.
    pub io_priority: AtomicU16,
    /// The timer slack: how much later than its deadline a sleep of the thread may end.
    pub slack: Slack,
    /// The work that is due before the thread returns to user mode: bits of [`work`]. Any thread sets bits. The owner
    /// clears bits.
    pub work: AtomicU32,
    /// The thread is ending. The owner sets the flag with the lock of its process's threads held.
    pub leaving: AtomicBool,
    /// The thread has removed a stop signal from a queue, and no SIGCONT has arrived since. The thread sets the flag
    /// under that queue's lock. The sender of a SIGCONT clears it under the lock of the process's threads.
    pub stop_taken: AtomicBool,
    /// The registered area for restartable sequences.
    pub rseq: OwnRseq,
    /// A timer of the process may have this thread as its target. The thread that makes this thread the target sets the
    /// flag.
    pub timed: AtomicBool,
    /// The blocked signals. Only the owner changes the set. Senders of signals read it.
    pub blocked: AtomicU64,
    /// The signals that `sigtimedwait` waits for. The thread may receive them although they are blocked.
    pub awaited: AtomicU64,
    /// Owner only: the blocked signals to restore after a temporary mask.
    pub saved_mask: Owned<Option<SavedMask>>,
    /// Pending signals for this thread alone.
    pub pending: PendingQueue,
    /// Owner only (through [`Owned`]): the alternate signal stack.
    pub alt_stack: Owned<AltStack>,
    /// Owner only: the state of a call that sleeps without a stack.
    pub sleep: Private<Option<Sleep<M>>>,
    /// The thread's waiter in the futex table. The owner lists it there.
    pub waiter: futex::Waiter<M>,
    /// Owner only: the thread's links on a wait queue, and the state that a stream keeps for its call.
    pub park: Park,
    /// Owner only: the state that `restart_syscall` resumes.
    pub restart: Private<Option<Restart>>,
    /// User address of a word that is cleared, and whose waiters are woken, when the thread ends (`set_tid_address`).
    pub clear_tid: AtomicU64,
    /// User address that gets the thread's id before its first instruction in user mode; 0 for none.
    pub set_tid: AtomicU64,
    /// User address of the head of the robust futex list.
    pub robust_list: AtomicU64,
    /// The thread's name (`comm`). Other threads of the process may write it.
    pub name: SpinLock<Name>,
    /// Owner only: not 0 while the thread runs a call that ends a process, a file or a mapping
    /// ([`ends`](crate::shortage::ends) lists these calls). Such a call may use the last part of the memory reserve.
    /// The field is a word and not a `bool`. The compiler would place a `bool` on a cache line with fields that other
    /// CPUs read. A word lies among words that only the owner writes.
    pub ending: AtomicU64,
    /// Owner only: the [`Again`] value of the thread's present call.
    pub again: AtomicU64,
    /// Owner only: the allocations to refuse on purpose, for tests.
    #[cfg(debug_assertions)]
    pub refusals: crate::base::refusal::Refusals,
    /// The number of faults that read nothing from a device.
    pub minor_faults: AtomicU64,
    /// The number of faults that read from a device.
    pub major_faults: AtomicU64,
    /// Owner only: the thread's last fault or exception, for signal frames.
    pub trap: Owned<Trap>,
    /// This thread was created by vfork, and has left its parent's memory by exec or exit. The thread sets the flag
    /// itself.
    pub released: AtomicBool,
    /// The thread that created this thread by vfork sleeps on this queue until `released` is set.
    pub releases: WaitQueue,
}

/// A mask of blocked signals. The stored word is the complement of the mask. No mask blocks SIGKILL, so the complement
/// is never 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SavedMask(NonZero<u64>);

impl SavedMask {
    /// Stores `mask` without the signals that cannot be blocked.
    pub fn new(mask: SigSet) -> SavedMask {
        SavedMask(NonZero::new(!mask.0).unwrap_or(NonZero::<u64>::MAX) | SigSet::UNBLOCKABLE.0)
    }

    /// The stored mask.
    pub fn get(self) -> SigSet {
        SigSet(!self.0.get())
    }
}

/// The last fault or exception of a thread, for signal frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trap {
    /// The vector of the exception.
    pub vector: u32,
    /// The error code of the exception.
    pub error: u32,
    /// The faulting address (CR2).
    pub address: u64,
}

/// A thread's name: up to 15 bytes and a terminating zero.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Name(pub [u8; 16]);

impl Name {
    /// The first 15 bytes of `from`, up to a zero byte.
    pub fn new(from: &[u8]) -> Name {
        let mut out = [0u8; 16];
        let len = from.iter().position(|b| *b == 0).unwrap_or(from.len()).min(15);
        out[..len].copy_from_slice(&from[..len]);
        Name(out)
    }
    /// The name without its zeroes.
    pub fn bytes(&self) -> &[u8] {
        let len = self.0.iter().position(|b| *b == 0).unwrap_or(16);
        &self.0[..len]
    }
}

impl<M: Machine> Thread<M> {
    /// The thread's id.
    pub fn tid(&self) -> Pid {
        self.tid.load(Ordering::Relaxed)
    }

    /// The page tables that a context switch loads; `None` after the thread has left its address space.
    ///
    /// # Safety
    /// The caller is this thread, or the context switch to it on the CPU where it will run. So no thread replaces the
    /// space during the use of the reference.
    pub unsafe fn pmap(&self) -> Option<&<M as quire_vm::Machine>::Pmap> {
        // SAFETY: by this function's contract the caller acts as the owner, and it loads the page tables.
        unsafe { self.space.get().map(|space| space.page_tables()) }
    }

    /// Called when the machine switches away from this thread, on the thread's CPU and before another thread runs. If
    /// the thread has an `rseq` area, sets the work bit [`work::RSEQ`].
    #[inline(always)]
    pub fn switched_away(&self) {
        if self.rseq.at.load(Ordering::Relaxed) != 0 && self.work.load(Ordering::Relaxed) & work::RSEQ == 0 {
            self.work.fetch_or(work::RSEQ, Ordering::Relaxed);
        }
    }

    /// The thread's last fault or exception.
    pub fn last_trap(&self) -> Trap {
        self.trap.look(|trap| *trap)
    }

    /// Whether the thread must end.
    #[inline]
    pub fn killed(&self) -> bool {
        self.work.load(Ordering::Acquire) & work::KILL != 0
    }
}

impl<M: Machine> Thread<M> {
    /// Makes `new` the thread's credentials. If the thread is the first thread of its process, `new` becomes the
    /// process's credentials too. Called by the thread itself, which holds no view of the old credentials.
    ///
    /// If the thread's powers change, this method closes its memory to readers before it publishes the new ids. So a
    /// reader that sees the new ids finds the memory closed.
    pub fn become_user(&self, new: Credentials) {
        // SAFETY: the thread itself runs this; the view ends before the change.
        let (differ, space) = unsafe { (self.credentials.get().powers_differ(&new), self.space.get()) };
        let show = || {
            // SAFETY: the thread itself runs this, and the view from which `differ` was computed has ended.
            drop(unsafe { self.credentials.replace(new) });
            if self.tid() == self.process.pid {
                self.show_credentials();
            }
        };
        if differ {
            self.process.parent_death_signal.store(0, Ordering::Relaxed);
            powers::change(space.map(|space| space.dumpable()), show);
        } else {
            show();
        }
    }

    /// Publishes the thread's credentials as the credentials of its process. Called by the thread itself.
    pub fn show_credentials(&self) {
        // SAFETY: the thread itself runs this, and does not replace its credentials during the clone.
        let own = unsafe { self.credentials.get() }.clone();
        let old = core::mem::replace(&mut *self.process.credentials.lock(), own);
        drop(old);
    }
}
