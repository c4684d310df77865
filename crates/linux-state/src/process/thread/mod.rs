//! A thread: the payload of a `quire_task` thread.

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

/// Values of [`Thread::again`].
pub struct Again;

impl Again {
    /// The call is made for the first time.
    pub const NO: u64 = 0;
    /// Memory was out, and the call is repeated.
    pub const TRIES: u64 = 1;
    /// The repeated call also failed for want of memory.
    pub const FAILED: u64 = 2;
}

/// The work that a thread must do before it goes to user mode; bits of [`Thread::work`].
pub mod work {
    /// A signal may be deliverable.
    pub const SIGNAL: u32 = 1;
    /// The thread must end: its process ends, or another thread of it execs.
    pub const KILL: u32 = 2;
    /// The thread must stop (job control).
    pub const STOP: u32 = 4;
    /// A temporary signal mask (`sigsuspend`, `ppoll`) has to be undone.
    pub const RESTORE_MASK: u32 = 8;
    /// A timer of its process ran out (set in interrupt context, where signals cannot be sent).
    pub const TIMER: u32 = 16;
    /// The thread was switched away from since it was last in user mode, and has a registered area (`rseq`).
    pub const RSEQ: u32 = 32;
    /// The thread's call waits until a time of day, which it has translated to a time since boot.
    pub const BY_DAY: u32 = 64;
    /// The time of day was set since. The call ends, and is made again with its own arguments.
    pub const DAY_SET: u32 = 128;
    /// The bits that end an interruptible wait. A timer ends it by its signal only.
    pub const INTERRUPTS: u32 = SIGNAL | KILL | STOP | DAY_SET;
}

/// The alternate signal stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AltStack {
    /// Lowest address.
    pub base: u64,
    /// Bytes; 0: none.
    pub size: u64,
    /// `SS_*` flags that the program chose.
    pub flags: u32,
}

impl AltStack {
    /// Whether a stack pointer lies on it.
    pub fn holds(&self, sp: u64) -> bool {
        self.size != 0 && sp > self.base && sp - self.base <= self.size
    }
}

/// The area of restartable sequences that a thread registered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rseq {
    /// User address; 0: none.
    pub at: u64,
    /// Bytes.
    pub len: u32,
    /// The word before each abort address.
    pub signature: u32,
}

impl Rseq {
    /// No area.
    pub const NONE: Rseq = Rseq { at: 0, len: 0, signature: 0 };
}

/// A thread's [`Rseq`]. Only the thread itself writes and reads it, and the switch away from it.
pub struct OwnRseq {
    at: AtomicU64,
    len: AtomicU32,
    signature: AtomicU32,
}

impl OwnRseq {
    /// An area, or none.
    pub fn new(area: Rseq) -> Self {
        let Rseq { at, len, signature } = area;
        OwnRseq { at: AtomicU64::new(at), len: AtomicU32::new(len), signature: AtomicU32::new(signature) }
    }

    /// The area.
    pub fn get(&self) -> Rseq {
        let of = Ordering::Relaxed;
        Rseq { at: self.at.load(of), len: self.len.load(of), signature: self.signature.load(of) }
    }

    /// Makes `area` the area.
    pub fn set(&self, area: Rseq) {
        self.len.store(area.len, Ordering::Relaxed);
        self.signature.store(area.signature, Ordering::Relaxed);
        self.at.store(area.at, Ordering::Relaxed);
    }
}

/// The state that `restart_syscall` resumes.
#[derive(Clone, Copy, Debug)]
pub enum Restart {
    /// Sleep until `deadline`; report the rest at `remaining` when interrupted again.
    Sleep {
        /// The deadline's clock.
        clock: i32,
        /// In nanoseconds.
        deadline: u64,
        /// User address of a `timespec`, or 0.
        remaining: u64,
    },
    /// A futex wait.
    Futex {
        /// User address of the word.
        at: u64,
        /// The value that it must hold.
        value: u32,
        /// The wakers that may wake it.
        bitset: u32,
        /// Whether the key is private to the process.
        private: bool,
        /// Monotonic, in nanoseconds.
        deadline: u64,
    },
    /// `poll` with `count` entries at `fds`.
    Poll {
        /// User address.
        fds: u64,
        /// Number of entries.
        count: u64,
        /// Monotonic, in nanoseconds.
        deadline: u64,
    },
}

/// A Linux thread. Each field names the threads that may use it; *owner* means the thread itself.
pub struct Thread<M: Machine> {
    /// The kernel that it lives in.
    pub linux: &'static Linux<M>,
    /// Its process.
    pub process: Arc<Process<M>>,
    /// Its id. Changes once, when a thread that is not the first one execs.
    pub tid: AtomicU32,
    /// Its address space; `None` once it has left it. Changed by the owner (exec, exit).
    pub space: OwnSpace<M>,
    /// Its open files. Changed by the owner.
    pub files: Owned<Option<Arc<Files<M>>>>,
    /// Working directory, root, umask. Changed by the owner.
    pub fs: Owned<Option<Arc<FsState<M>>>>,
    /// Owner only: its share in the semaphore undos of its process; `None` before the first.
    pub undos: Private<Option<Undos<M>>>,
    /// Owner only: its copy of `fs`; `None` after `fs` was replaced.
    pub seen: Private<Option<Seen<M>>>,
    /// Its credentials. Changed by the owner.
    pub credentials: Owned<Credentials>,
    /// The charge of the thread to its real user. Changed by the owner.
    pub user_charge: Owned<UserCharge<M>>,
    /// Its user was over its limit of threads when the thread changed to that user. Exec checks whether it still is.
    /// Owner only.
    pub over_limit: AtomicBool,
    /// Its priority for devices, as `ioprio_set` takes it. Quire's files are in memory, so nothing obeys it. Any thread
    /// sets it.
    pub io_priority: AtomicU16,
    /// How much later than its deadline a sleep of it may end.
    pub slack: Slack,
    /// The work due before it goes to user mode. Any thread sets bits, the owner clears them.
    pub work: AtomicU32,
    /// The thread is ending. Set under the lock of its process's threads.
    pub leaving: AtomicBool,
    /// The thread took a stop signal off a queue, and no SIGCONT came since. Set under that queue's lock, cleared under
    /// the lock of its process's threads.
    pub stop_taken: AtomicBool,
    /// The area of its restartable sequences.
    pub rseq: OwnRseq,
    /// A timer of its process may have it as target. Set by the thread that makes it the target.
    pub timed: AtomicBool,
    /// Blocked signals. Changed by the owner, read by senders.
    pub blocked: AtomicU64,
    /// Signals that `sigtimedwait` waits for. The thread may receive them although they are blocked.
    pub awaited: AtomicU64,
    /// Owner only: the blocked signals before a temporary mask.
    pub saved_mask: Owned<Option<SavedMask>>,
    /// Signals for this thread.
    pub pending: PendingQueue,
    /// Owner only (through [`Owned`]): the alternate stack.
    pub alt_stack: Owned<AltStack>,
    /// Owner only: the state of a call that sleeps without a stack.
    pub sleep: Private<Option<Sleep<M>>>,
    /// Its place in the futex table. Listed by the owner.
    pub waiter: futex::Waiter<M>,
    /// The thread's place on a queue, and the state that a stream keeps for its call. Owner only.
    pub park: Park,
    /// Owner only: the state that `restart_syscall` resumes.
    pub restart: Private<Option<Restart>>,
    /// User address that is cleared and woken at exit (`set_tid_address`).
    pub clear_tid: AtomicU64,
    /// User address that gets the thread's id before its first instruction; 0 for none.
    pub set_tid: AtomicU64,
    /// Head of the robust futex list.
    pub robust_list: AtomicU64,
    /// `comm`. Other threads of the process may write it.
    pub name: SpinLock<Name>,
    /// Owner only: not 0 while it runs a call that [ends](crate::shortage::ends) something. It is a word, so that it
    /// lies beside fields that only the owner writes. The flags share a line with fields that other CPUs read.
    pub ending: AtomicU64,
    /// Owner only: the [`Again`] value of its present call.
    pub again: AtomicU64,
    /// Owner only: allocations to refuse on purpose.
    #[cfg(debug_assertions)]
    pub refusals: crate::base::refusal::Refusals,
    /// Faults served without reading from a device.
    pub minor_faults: AtomicU64,
    /// Faults that read from a device.
    pub major_faults: AtomicU64,
    /// Owner only: its last fault or exception, for signal frames.
    pub trap: Owned<Trap>,
    /// Set when a vfork's child has left its parent's memory.
    pub released: AtomicBool,
    /// The parent sleeps here until then.
    pub releases: WaitQueue,
}

/// A mask of blocked signals, in a word of which one value is free: no mask blocks SIGKILL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SavedMask(NonZero<u64>);

impl SavedMask {
    /// Keeps `mask` without the signals that cannot be blocked.
    pub fn new(mask: SigSet) -> SavedMask {
        SavedMask(NonZero::new(!mask.0).unwrap_or(NonZero::<u64>::MAX) | SigSet::UNBLOCKABLE.0)
    }

    /// The mask.
    pub fn get(self) -> SigSet {
        SigSet(!self.0.get())
    }
}

/// The last fault or exception of a thread, for signal frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Trap {
    /// The vector.
    pub vector: u32,
    /// The error code.
    pub error: u32,
    /// The address (CR2).
    pub address: u64,
}

/// A thread's name: up to 15 bytes and a zero.
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
    /// Its id.
    pub fn tid(&self) -> Pid {
        self.tid.load(Ordering::Relaxed)
    }

    /// The page tables to run on, for the context switch: `None` after the thread has left its address space.
    ///
    /// # Safety
    /// The caller is this thread, or the switch to it on the CPU where it will run. So no thread changes the space
    /// meanwhile.
    pub unsafe fn pmap(&self) -> Option<&<M as quire_vm::Machine>::Pmap> {
        // SAFETY: by this function's contract the caller acts as the owner, and loads the page tables.
        unsafe { self.space.get().map(|space| space.page_tables()) }
    }

    /// The machine switches away from it. Called on its CPU, before another thread runs.
    #[inline(always)]
    pub fn switched_away(&self) {
        if self.rseq.at.load(Ordering::Relaxed) != 0 && self.work.load(Ordering::Relaxed) & work::RSEQ == 0 {
            self.work.fetch_or(work::RSEQ, Ordering::Relaxed);
        }
    }

    /// Its last fault or exception.
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
    /// Makes `new` the thread's credentials, and its process's if it is the first thread. The thread itself calls it,
    /// and holds no view of the old ones.
    ///
    /// If its powers change, its memory is closed to readers first, so that a reader of the new ids finds it closed.
    pub fn become_user(&self, new: Credentials) {
        // SAFETY: the thread itself runs this; the view ends before the change.
        let (differ, space) = unsafe { (self.credentials.get().powers_differ(&new), self.space.get()) };
        let show = || {
            // SAFETY: the thread itself runs this, and the view that `differ` was made from has ended.
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

    /// Publishes the thread's credentials as its process's. The thread itself calls it.
    pub fn show_credentials(&self) {
        // SAFETY: the thread itself runs this, and replaces nothing meanwhile.
        let own = unsafe { self.credentials.get() }.clone();
        let old = core::mem::replace(&mut *self.process.credentials.lock(), own);
        drop(old);
    }
}
