//! Processes: families, groups, sessions, and the state that their threads share.
//!
//! # Locks
//! | state | guard |
//! |---|---|
//! | a process's children and zombies, their places on those lists, their wait reports | the *parent's* `family` |
//! | the parent of a process | `parent` of the child; it changes only with the old parent's `family` held too |
//! | the members of a group | the group's `members` |
//! | the list of threads, whether the process is ending | `threads` |
//! | pending signals | the queue's own lock, taken last |
//!
//! No lock is global: fork, exit and wait of processes with different parents share no written cache line but those of
//! the id table.

pub mod access;
pub mod arc_list;
pub mod credentials;
pub mod first_use;
pub mod group;
pub mod ids;
pub mod limits;
pub mod sleep;
pub mod stage;
pub mod thread;
pub mod timer_slack;
pub mod timers;
pub mod usage;
pub mod users;

use crate::base::line::Line;
use crate::base::owned::Owned;
use crate::ipc::host::Undos;
use crate::machine::Machine;
use crate::process::thread::Name;
use crate::process::timers::interval::Timers;
use crate::process::timers::posix::PosixTimers;
use crate::signal::pending::PendingQueue;
use crate::signal::{Actions, SigInfo, SigSet};
use crate::{Errno, Linux, Pid};
use arc_list::{ArcList, ListKind, ListPlace};
use credentials::Credentials;
use first_use::FirstUse;
use group::Group;
use limits::Limits;
use quire_fs::Readiness;
use quire_heap::{Arc, OutOfMemory, allocation};
use quire_sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, Ordering};
use quire_sync::{Rank, SpinLock, WaitQueue};
use quire_task::Openness;
use stage::OwnStage;
use thread::list::Threads;
use timers::cpu_limit::CpuLimit;
use usage::Accounts;

/// A process: a group of threads, in Linux's terms. Fields that its threads read in many system calls have cache lines
/// that are rarely written.
#[repr(C)]
pub struct Process<M: Machine> {
    /// The kernel that it lives in.
    pub linux: &'static Linux<M>,
    /// When it was made, in nanoseconds since boot.
    pub started: u64,
    /// Its id: that of its first thread.
    pub pid: Pid,
    /// Its parent's id, 0 for none. Written under the lock of `parent`.
    parent_pid: AtomicU32,
    /// `nice`, 1 to 40 as `getpriority` shows it.
    pub priority: AtomicU32,
    /// `personality`.
    pub personality: AtomicU32,
    /// The wait status, once it is known.
    pub status: AtomicI32,
    /// `oom_score_adj`, -1000 to 1000: see [`victim`](crate::memory::victim).
    pub oom_adjust: AtomicI32,
    /// The lowest that it may be set to without privilege.
    pub oom_adjust_least: AtomicI32,
    /// The process ends (or has ended) as a whole: `exit_group` or a deadly signal.
    pub exiting: AtomicBool,
    /// The process was killed while it ended: the writing of its core file stops.
    pub killed: AtomicBool,
    /// The signal that its parent gets when it ends; 0: none.
    pub exit_signal: AtomicU8,
    /// The signal that it gets when its parent dies; 0: none.
    pub parent_death_signal: AtomicU8,
    /// The process called exec since it was forked (`setpgid` of a parent then comes too late).
    pub execed: AtomicBool,
    /// How far it has come.
    pub stage: OwnStage,
    /// Whether the memory that its ended threads left was open to readers.
    pub left: Openness,
    /// The process adopts orphans among its descendants.
    pub subreaper: AtomicBool,
    /// The process may not gain privileges by exec.
    pub no_new_privileges: AtomicBool,
    /// The process was a victim for lack of memory, and its memory is free or it was given up: no thread waits for it
    /// any more.
    pub given_up: AtomicBool,

    /// The fields up to the next line: locked for a moment by senders of signals, read by its own threads.
    _actions: Line,
    /// Its signal actions, shared with the process that cloned it with CLONE_SIGHAND, or [frozen](Actions). Its threads
    /// own them together; exec and [`own_actions`](Self::own_actions) replace them when only one thread is left.
    pub actions: Owned<Arc<Actions>>,
    /// Resource limits.
    pub limits: limits::Held,

    /// The fields up to the next line: written by threads that start and end.
    _threads: Line,
    /// Its threads.
    pub threads: SpinLock<Threads<M>>,
    /// A thread of it ended, or stopped.
    pub thread_events: WaitQueue,
    /// The resource usage of it and its children.
    pub accounts: SpinLock<Accounts>,
    /// Job control.
    pub job: SpinLock<Job>,
    /// Stopped threads sleep here.
    pub continued: WaitQueue,
    /// The name of its last thread, once that has ended.
    pub last_name: SpinLock<Name>,

    /// The fields up to the next line: written by threads that fork and wait, or by other processes.
    _family: Line,
    /// Its children.
    pub family: SpinLock<Family<M>>,
    /// Its process group. Changed by the holder of `moving`.
    pub group: SpinLock<Arc<Group<M>>>,
    /// Held while the process moves from group to group.
    pub moving: SpinLock<()>,
    /// The credentials of its first thread, for other processes.
    pub credentials: SpinLock<Credentials>,

    /// The fields up to the next line: signals, read by each thread that takes one, and the addresses of timers.
    _signals: Line,
    /// Signals for any of its threads.
    pub pending: PendingQueue,
    /// Its interval timer.
    pub timers: FirstUse<Timers<M>>,
    /// The limit on CPU time. A process with the limit or with POSIX timers has it.
    pub cpu_limit: FirstUse<CpuLimit<M>>,
    /// Its timers of `timer_create`, and its interval timers on CPU time.
    pub posix_timers: FirstUse<PosixTimers<M>>,
    /// Its share in the list of semaphore undos of its threads, once a thread has changed a semaphore with an undo.
    pub undos: FirstUse<SpinLock<Option<Undos<M>>>>,
    /// The announcer of its new signals to its files of `signalfd`, once it has one. Processes that inherited a file
    /// have the same announcer.
    pub signal_files: FirstUse<Arc<Readiness>>,
    /// The announcer of its end, once it has a file that stands for it.
    pub own_files: FirstUse<Readiness>,

    /// From here on: written by relatives.
    _relatives: Line,
    /// `wait4` sleeps here until a child changes.
    pub child_events: WaitQueue,
    /// The process that made or adopted it. `None` for process 1.
    parent: SpinLock<Option<Arc<Process<M>>>>,
    /// Its place among its parent's children or zombies.
    sibling: ListPlace<Process<M>>,
    /// The charge of its first thread to its user, from that thread's end until the process is reaped.
    pub user_charge: SpinLock<users::UserCharge<M>>,
    /// Its place in its group.
    pub member: ListPlace<Process<M>>,
}

/// The bit of a wait status that reports a core file.
pub const DUMPED: i32 = 0x80;

/// Job control state.
#[derive(Default)]
pub struct Job {
    /// The signal that stops it, while it is stopped or stopping.
    pub stopping: Option<u8>,
    /// Threads of it that sleep stopped.
    pub stopped_threads: usize,
}

/// A report about a living child, for its parent's wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    /// The child stopped, by this signal.
    Stopped(u8),
    /// The child continued.
    Continued,
}

/// A process's children. Guarded by [`Process::family`].
pub struct Family<M: Machine> {
    /// Living children.
    pub children: ArcList<Siblings<M>>,
    /// Children that have ended and are not reaped yet.
    pub zombies: ArcList<Siblings<M>>,
    /// Reports of living children, few at any time: job control.
    pub reports: quire_heap::Vec<(Pid, Report)>,
    /// The process ends and takes no more children.
    pub closed: bool,
}

impl<M: Machine> Family<M> {
    /// The child with id `pid`, if it is the first on its list.
    pub fn first(&self, pid: Pid) -> Option<&Process<M>> {
        let first = self.children.first().filter(|child| child.pid == pid);
        first.or_else(|| self.zombies.first().filter(|child| child.pid == pid))
    }
}

/// The kind of the lists of [`Family`].
pub struct Siblings<M>(core::marker::PhantomData<fn(M)>);
// SAFETY: `sibling` is used by no other kind, and guarded by the parent's `family`. A child that changes its parent is
// moved with both families locked.
unsafe impl<M: Machine> ListKind for Siblings<M> {
    type Node = Process<M>;
    fn place(node: &Process<M>) -> &ListPlace<Process<M>> {
        &node.sibling
    }
}

/// The parameters of a new process.
pub struct NewProcess<M: Machine> {
    /// Its id.
    pub pid: Pid,
    /// Its parent.
    pub parent: Option<Arc<Process<M>>>,
    /// Its group.
    pub group: Arc<Group<M>>,
    /// Its actions.
    pub actions: Arc<Actions>,
    /// The signal that it sends when it ends.
    pub exit_signal: u8,
    /// Its credentials.
    pub credentials: Credentials,
    /// Its limits.
    pub limits: Arc<Limits>,
    /// Its priority.
    pub priority: u32,
    /// Its personality.
    pub personality: u32,
    /// Whether it may gain no privileges by exec.
    pub no_new_privileges: bool,
    /// Its `oom_score_adj`, and the lowest that it may be set to without privilege.
    pub oom_adjust: (i32, i32),
}

impl<M: Machine> Process<M> {
    /// A process without threads, in no family yet.
    pub fn new(linux: &'static Linux<M>, new: NewProcess<M>) -> Result<Process<M>, OutOfMemory> {
        const {
            assert!(allocation::<Process<M>>().size() <= 1024, "a process takes the next larger class of the heap");
        }
        let cpu_limit = FirstUse::new();
        let limits = limits::Held::new(new.limits);
        if limits.is_of_cpu_time() {
            cpu_limit.get_or_make(CpuLimit::new)?;
            // Where the limit is reached, it is raised, and there may be no memory then.
            limits.reserve()?;
        }
        // The two lists of a family need ids that no other family's have: twice the process id, and one more.
        let list = (new.pid as usize) * 2;
        Ok(Process {
            linux,
            pid: new.pid,
            started: quire_sync::hooks::now(),
            family: SpinLock::new(
                Rank::FAMILY,
                Family {
                    children: ArcList::new(list),
                    zombies: ArcList::new(list + 1),
                    reports: quire_heap::Vec::new(),
                    closed: false,
                },
            ),
            parent_pid: AtomicU32::new(new.parent.as_ref().map_or(0, |p| p.pid)),
            parent: SpinLock::new(Rank::PARENT, new.parent),
            sibling: ListPlace::new(),
            user_charge: SpinLock::new(Rank::OWNED, users::UserCharge::root()),
            member: ListPlace::new(),
            child_events: WaitQueue::new(),
            moving: SpinLock::new(Rank::MOVING, ()),
            group: SpinLock::new(Rank::OWNED, new.group),
            threads: SpinLock::new(Rank::THREADS, Threads::new()),
            thread_events: WaitQueue::new(),
            actions: Owned::new(new.actions),
            pending: PendingQueue::new(),
            job: SpinLock::new(Rank::OWNED, Job::default()),
            continued: WaitQueue::new(),
            exit_signal: AtomicU8::new(new.exit_signal),
            exiting: AtomicBool::new(false),
            killed: AtomicBool::new(false),
            status: AtomicI32::new(0),
            execed: AtomicBool::new(false),
            parent_death_signal: AtomicU8::new(0),
            subreaper: AtomicBool::new(false),
            stage: OwnStage::new(),
            left: Openness::new(true),
            no_new_privileges: AtomicBool::new(new.no_new_privileges),
            credentials: SpinLock::new(Rank::OWNED, new.credentials),
            limits,
            accounts: SpinLock::new(Rank::OWNED, Accounts::default()),
            priority: AtomicU32::new(new.priority),
            personality: AtomicU32::new(new.personality),
            oom_adjust: AtomicI32::new(new.oom_adjust.0),
            oom_adjust_least: AtomicI32::new(new.oom_adjust.1),
            given_up: AtomicBool::new(false),
            last_name: SpinLock::new(Rank::OWNED, Name::default()),
            timers: FirstUse::new(),
            cpu_limit,
            posix_timers: FirstUse::new(),
            signal_files: FirstUse::new(),
            undos: FirstUse::new(),
            own_files: FirstUse::new(),
            _actions: Line,
            _threads: Line,
            _family: Line,
            _signals: Line,
            _relatives: Line,
        })
    }

    /// Its parent.
    pub fn parent(&self) -> Option<Arc<Process<M>>> {
        self.parent.lock().clone()
    }

    /// Whether `parent` is its parent; stays so while the caller holds the lock of `parent`'s family.
    pub fn is_child_of(&self, parent: &Process<M>) -> bool {
        self.parent.lock().as_ref().is_some_and(|p| core::ptr::eq(&**p, parent))
    }

    /// Its parent's id; 0 if it has none.
    pub fn parent_pid(&self) -> Pid {
        self.parent_pid.load(Ordering::Relaxed)
    }

    /// Gives it another parent. Returns the old one, to be dropped with no lock held.
    #[must_use = "it may be the last handle, and locks may be held"]
    pub fn replace_parent(&self, new: Option<Arc<Process<M>>>) -> Option<Arc<Process<M>>> {
        let mut parent = self.parent.lock();
        self.parent_pid.store(new.as_ref().map_or(0, |p| p.pid), Ordering::Relaxed);
        core::mem::replace(&mut *parent, new)
    }

    /// Its group.
    pub fn group(&self) -> Arc<Group<M>> {
        self.group.lock().clone()
    }

    /// The credentials of its first thread, at its end if it has ended. Its own threads use [`Ctx`](crate::Ctx).
    pub fn credentials(&self) -> Credentials {
        self.credentials.lock().clone()
    }

    /// Calls `f` with its actions.
    pub fn with_actions<R>(&self, f: impl FnOnce(&Actions) -> R) -> R {
        if self.is_callers() {
            // SAFETY: exec and `own_actions` replace them, in the process's only thread. The caller is one of its
            // threads, and in neither.
            f(unsafe { self.actions.get() })
        } else {
            let actions = self.actions.look(Arc::clone);
            f(&actions)
        }
    }

    /// Makes its actions its own, so that they may be changed: [frozen](Actions) ones are copied.
    ///
    /// # Safety
    /// The caller is one of its threads, and holds no view of its actions.
    pub unsafe fn own_actions(&self) -> Result<(), Errno> {
        // SAFETY: only an only thread replaces the actions. If the caller is one, it does so below.
        let actions = unsafe { self.actions.get() };
        if !actions.is_frozen() {
            return Ok(());
        }
        // A reader from outside raises the count for a moment: then a copy is made in vain.
        if Arc::strong_count(actions) == 1 {
            actions.freeze(None);
            return Ok(());
        }
        let copy = Arc::try_new(actions.try_clone()?)?;
        // SAFETY: the actions are frozen, so the process has no thread but the caller, which holds no view of them.
        drop(unsafe { self.actions.replace(copy) });
        Ok(())
    }

    /// Its actions for a forked child: shared if the process has one thread, else a copy.
    ///
    /// # Safety
    /// The caller is one of its threads.
    pub unsafe fn forked_actions(&self) -> Result<Arc<Actions>, Errno> {
        // SAFETY: only an only thread replaces the actions. If the caller is one, it does so here.
        let froze = unsafe { self.actions.get() }.frozen_by() == Some(self.pid);
        if !froze {
            // Its parent's relatives do not count the references of its children.
            // SAFETY: the caller is one of its threads, and the view above has ended.
            unsafe { self.own_actions() }?;
        }
        // SAFETY: as an only thread the caller replaces nothing from here on; as one of several, no thread does.
        let actions = unsafe { self.actions.get() };
        // A reader from outside raises the count for a moment: then a copy is made in vain.
        let alone = froze || (Arc::strong_count(actions) == 1 && self.threads.lock().len() == 1);
        if !alone || actions.change_by_delivery() {
            return Ok(Arc::try_new(actions.try_clone()?)?);
        }
        if !froze {
            actions.freeze(Some(self.pid));
        }
        Ok(actions.clone())
    }

    /// Whether the running thread is one of its threads.
    pub(crate) fn is_callers(&self) -> bool {
        let caller = quire_task::Machine::current(self.linux.machine);
        // SAFETY: the pointer is null or the running thread, which lives while it runs.
        let caller = unsafe { caller.as_ref() }.and_then(|task| task.payload().as_ref());
        caller.is_some_and(|thread| core::ptr::eq(&*thread.process, self))
    }

    /// Whether it ends or has ended.
    pub fn is_exiting(&self) -> bool {
        self.exiting.load(Ordering::Acquire)
    }

    /// The signals that it ignores, and those that it handles.
    pub fn dispositions(&self) -> (SigSet, SigSet) {
        self.with_actions(Actions::sets)
    }

    /// The name of its last thread, once that has ended.
    pub fn last_name(&self) -> Name {
        *self.last_name.lock()
    }

    /// A signal info that names this process, of user `uid`, as the sender.
    pub fn as_sender(&self, signal: crate::signal::Signal, uid: u32) -> SigInfo {
        SigInfo {
            signal,
            code: crate::signal::info::code::USER,
            errno: 0,
            detail: crate::signal::Detail::Sender { pid: self.pid, uid },
        }
    }
}
