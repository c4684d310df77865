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
//! No lock is global. Fork, exit and wait in processes with different parents write no common cache lines, except lines
//! of the id table.

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

/// A process: a group of threads, in Linux's terms. The fields that threads read in many system calls lie on cache
/// lines that are rarely written.
#[repr(C)]
pub struct Process<M: Machine> {
    /// The Linux layer that the process belongs to.
    pub linux: &'static Linux<M>,
    /// The time of the process's creation, in nanoseconds since boot.
    pub started: u64,
    /// The process's id, equal to the id of its first thread.
    pub pid: Pid,
    /// The parent's id; 0 for none. A writer holds the lock of `parent`.
    parent_pid: AtomicU32,
    /// The `nice` value as `getpriority` returns it: 1 to 40.
    pub priority: AtomicU32,
    /// The execution domain that `personality` sets.
    pub personality: AtomicU32,
    /// The wait status for the parent, once the process has ended.
    pub status: AtomicI32,
    /// `oom_score_adj`, -1000 to 1000: see [`victim`](crate::memory::victim).
    pub oom_adjust: AtomicI32,
    /// The lowest value that `oom_adjust` may be set to without privilege.
    pub oom_adjust_least: AtomicI32,
    /// All threads of the process end, or have ended: because of `exit_group` or a fatal signal.
    pub exiting: AtomicBool,
    /// The process was killed while it was ending. If it writes a core file, it stops the write.
    pub killed: AtomicBool,
    /// The signal that the parent gets when this process ends; 0: none.
    pub exit_signal: AtomicU8,
    /// The signal that this process gets when its parent ends; 0: none.
    pub parent_death_signal: AtomicU8,
    /// The process has called exec since it was forked. After exec, the parent can no longer change this process's
    /// group (`setpgid`).
    pub execed: AtomicBool,
    /// Whether the process is alive, ended or reaped.
    pub stage: OwnStage,
    /// Whether the memory that the process's threads have left was open to readers: see [`access`].
    pub left: Openness,
    /// The process adopts the orphans among its descendants (`PR_SET_CHILD_SUBREAPER`).
    pub subreaper: AtomicBool,
    /// The process may not gain privileges by exec.
    pub no_new_privileges: AtomicBool,
    /// The process was an out-of-memory victim. No thread waits for it any more, because its memory is free or the
    /// kernel has given the process up.
    pub given_up: AtomicBool,

    /// Begins a new cache line. Senders of signals briefly lock the fields up to the next `Line`, and the process's own
    /// threads read these fields.
    _actions: Line,
    /// The signal actions. They are shared with the process that cloned this one with CLONE_SIGHAND, or
    /// [frozen](Actions). The process's threads own this field together. Exec and [`own_actions`](Self::own_actions)
    /// replace it when only one thread is left.
    pub actions: Owned<Arc<Actions>>,
    /// Resource limits.
    pub limits: limits::Held,

    /// Begins a new cache line. Threads that start and end write the fields up to the next `Line`.
    _threads: Line,
    /// The process's threads.
    pub threads: SpinLock<Threads<M>>,
    /// Threads on this queue are woken when a thread of the process ends or stops.
    pub thread_events: WaitQueue,
    /// The resource usage of the process and of its reaped children.
    pub accounts: SpinLock<Accounts>,
    /// The state of job control.
    pub job: SpinLock<Job>,
    /// Stopped threads sleep on this queue.
    pub continued: WaitQueue,
    /// The name of the process's last thread, once that thread has ended.
    pub last_name: SpinLock<Name>,

    /// Begins a new cache line. Threads of this process that fork and wait write the fields up to the next `Line`, and
    /// other processes write them too.
    _family: Line,
    /// The process's children.
    pub family: SpinLock<Family<M>>,
    /// The process group. Only the holder of `moving` writes it.
    pub group: SpinLock<Arc<Group<M>>>,
    /// A thread holds this lock while it moves the process from group to group.
    pub moving: SpinLock<()>,
    /// A copy of the first thread's credentials, for other processes.
    pub credentials: SpinLock<Credentials>,

    /// Begins a new cache line. The fields up to the next `Line` are the pending signals, which a thread reads when it
    /// receives a signal, and pointers to timers.
    _signals: Line,
    /// Pending signals that any thread of the process may receive.
    pub pending: PendingQueue,
    /// The interval timer on real time (`ITIMER_REAL`).
    pub timers: FirstUse<Timers<M>>,
    /// The limit on CPU time. Allocated if the process has this limit or POSIX timers.
    pub cpu_limit: FirstUse<CpuLimit<M>>,
    /// The timers of `timer_create`, and the interval timers on CPU time.
    pub posix_timers: FirstUse<PosixTimers<M>>,
    /// The semaphore undos of the process's threads. Allocated when a thread first changes a semaphore with an undo.
    pub undos: FirstUse<SpinLock<Option<Undos<M>>>>,
    /// Notifies the process's `signalfd` files of new signals. Allocated when the process first has such a file.
    /// Processes that inherit the file share this notifier.
    pub signal_files: FirstUse<Arc<Readiness>>,
    /// Notifies the `pidfd` files of the process's end. Allocated when the first such file is opened.
    pub own_files: FirstUse<Readiness>,

    /// Begins a new cache line. Relatives of the process (parent, siblings, children) write the fields up to the end.
    _relatives: Line,
    /// Threads that call `wait4` sleep on this queue until a child changes.
    pub child_events: WaitQueue,
    /// The process that created or adopted this one. `None` for process 1.
    parent: SpinLock<Option<Arc<Process<M>>>>,
    /// The links of the parent's list of children or of zombies.
    sibling: ListPlace<Process<M>>,
    /// The charge of the first thread to its user, from that thread's end until the process is reaped.
    pub user_charge: SpinLock<users::UserCharge<M>>,
    /// The links of the list of group members.
    pub member: ListPlace<Process<M>>,
}

/// The bit of a wait status that reports a core file.
pub const DUMPED: i32 = 0x80;

/// Job control state.
#[derive(Default)]
pub struct Job {
    /// The signal that stops the process, while it is stopped or stopping; otherwise `None`.
    pub stopping: Option<u8>,
    /// The number of the process's threads that sleep in the stopped state.
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

/// A process's children. The lock [`Process::family`] guards them.
pub struct Family<M: Machine> {
    /// Living children.
    pub children: ArcList<Siblings<M>>,
    /// Children that have ended and are not reaped yet.
    pub zombies: ArcList<Siblings<M>>,
    /// Reports about living children that stopped or continued. There are few at any time.
    pub reports: quire_heap::Vec<(Pid, Report)>,
    /// The process ends and accepts no more children.
    pub closed: bool,
}

impl<M: Machine> Family<M> {
    /// The child with id `pid`, if it is the first on one of the two lists.
    pub fn first(&self, pid: Pid) -> Option<&Process<M>> {
        let first = self.children.first().filter(|child| child.pid == pid);
        first.or_else(|| self.zombies.first().filter(|child| child.pid == pid))
    }
}

/// The list kind of [`Family`]'s lists.
pub struct Siblings<M>(core::marker::PhantomData<fn(M)>);
// SAFETY: no other kind uses `sibling`, which the parent's `family` guards. A child moves to another parent with the
// locks of both families held.
unsafe impl<M: Machine> ListKind for Siblings<M> {
    type Node = Process<M>;
    fn place(node: &Process<M>) -> &ListPlace<Process<M>> {
        &node.sibling
    }
}

/// The parameters of a new process.
pub struct NewProcess<M: Machine> {
    /// The process's id.
    pub pid: Pid,
    /// The parent; `None` for process 1.
    pub parent: Option<Arc<Process<M>>>,
    /// The process group.
    pub group: Arc<Group<M>>,
    /// The signal actions.
    pub actions: Arc<Actions>,
    /// The signal that the parent gets when the process ends.
    pub exit_signal: u8,
    /// The credentials of the first thread.
    pub credentials: Credentials,
    /// The resource limits.
    pub limits: Arc<Limits>,
    /// The `nice` value, 1 to 40.
    pub priority: u32,
    /// The execution domain.
    pub personality: u32,
    /// Whether the process may gain no privileges by exec.
    pub no_new_privileges: bool,
    /// `oom_score_adj`, and the lowest value that it may be set to without privilege.
    pub oom_adjust: (i32, i32),
}

impl<M: Machine> Process<M> {
    /// A process without threads that is in no family yet.
    pub fn new(linux: &'static Linux<M>, new: NewProcess<M>) -> Result<Process<M>, OutOfMemory> {
        const {
            assert!(allocation::<Process<M>>().size() <= 1024, "a process takes the next larger class of the heap");
        }
        let cpu_limit = FirstUse::new();
        let limits = limits::Held::new(new.limits);
        if limits.is_of_cpu_time() {
            cpu_limit.get_or_make(CpuLimit::new)?;
            // The soft limit is raised each time it is reached. The memory for this change is reserved now, because it
            // may not be available later.
            limits.reserve()?;
        }
        // The two lists of a family need ids that no list of another family has. The children's list has twice the
        // process id, and the zombies' list one more.
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

    /// The process's parent; `None` for process 1.
    pub fn parent(&self) -> Option<Arc<Process<M>>> {
        self.parent.lock().clone()
    }

    /// Whether `parent` is this process's parent. The answer stays true while the caller holds the lock of `parent`'s
    /// family.
    pub fn is_child_of(&self, parent: &Process<M>) -> bool {
        self.parent.lock().as_ref().is_some_and(|p| core::ptr::eq(&**p, parent))
    }

    /// The parent's id; 0 if there is no parent.
    pub fn parent_pid(&self) -> Pid {
        self.parent_pid.load(Ordering::Relaxed)
    }

    /// Gives the process another parent. Returns the old parent, which the caller drops with no lock held.
    #[must_use = "it may be the last handle, and locks may be held"]
    pub fn replace_parent(&self, new: Option<Arc<Process<M>>>) -> Option<Arc<Process<M>>> {
        let mut parent = self.parent.lock();
        self.parent_pid.store(new.as_ref().map_or(0, |p| p.pid), Ordering::Relaxed);
        core::mem::replace(&mut *parent, new)
    }

    /// The process group.
    pub fn group(&self) -> Arc<Group<M>> {
        self.group.lock().clone()
    }

    /// The credentials of the first thread; if that thread has ended, its last credentials. The process's own threads
    /// use [`Ctx`](crate::Ctx).
    pub fn credentials(&self) -> Credentials {
        self.credentials.lock().clone()
    }

    /// Calls `f` with the process's signal actions, and returns its result.
    pub fn with_actions<R>(&self, f: impl FnOnce(&Actions) -> R) -> R {
        if self.is_callers() {
            // SAFETY: only exec and `own_actions` replace the actions, and only in a process with one thread. The
            // caller is a thread of this process, and runs neither `exec` nor `own_actions` now.
            f(unsafe { self.actions.get() })
        } else {
            let actions = self.actions.look(Arc::clone);
            f(&actions)
        }
    }

    /// Makes the signal actions changeable: if they are [frozen](Actions), the process gets a copy of its own.
    ///
    /// # Safety
    /// The caller is a thread of this process, and holds no view of its actions.
    pub unsafe fn own_actions(&self) -> Result<(), Errno> {
        // SAFETY: only the single thread of a process replaces its actions. If the caller is that thread, it replaces
        // them only below.
        let actions = unsafe { self.actions.get() };
        if !actions.is_frozen() {
            return Ok(());
        }
        // A reader in another process may hold a further reference for a moment. The process then makes a copy that it
        // does not need, which is harmless.
        if Arc::strong_count(actions) == 1 {
            actions.freeze(None);
            return Ok(());
        }
        let copy = Arc::try_new(actions.try_clone()?)?;
        // SAFETY: the actions are frozen, so the caller is the process's only thread. It holds no view of them.
        drop(unsafe { self.actions.replace(copy) });
        Ok(())
    }

    /// The signal actions for a forked child. A process with one thread shares its actions with the child and freezes
    /// them. The child gets a copy if there are several threads, or if the delivery of a signal changes an action
    /// (`SA_RESETHAND`).
    ///
    /// # Safety
    /// The caller is a thread of this process.
    pub unsafe fn forked_actions(&self) -> Result<Arc<Actions>, Errno> {
        // SAFETY: only the single thread of a process replaces its actions. If the caller is that thread, it does so
        // only here.
        let froze = unsafe { self.actions.get() }.frozen_by() == Some(self.pid);
        if !froze {
            // The parent may share these actions with this process. Then this process makes its own copy first.
            // Otherwise the parent's children and this process's children would write one reference count.
            // SAFETY: the caller is a thread of this process, and the view above has ended.
            unsafe { self.own_actions() }?;
        }
        // SAFETY: if the caller is the only thread, it does not replace the actions from here on. If there are several
        // threads, no thread replaces them.
        let actions = unsafe { self.actions.get() };
        // A reader in another process may hold a further reference for a moment. The child then gets a copy that it
        // does not need, which is harmless.
        let alone = froze || (Arc::strong_count(actions) == 1 && self.threads.lock().len() == 1);
        if !alone || actions.change_by_delivery() {
            return Ok(Arc::try_new(actions.try_clone()?)?);
        }
        if !froze {
            actions.freeze(Some(self.pid));
        }
        Ok(actions.clone())
    }

    /// Whether the running thread belongs to this process.
    pub(crate) fn is_callers(&self) -> bool {
        let caller = quire_task::Machine::current(self.linux.machine);
        // SAFETY: the pointer is null or points to the running thread, which stays alive while it runs.
        let caller = unsafe { caller.as_ref() }.and_then(|task| task.payload().as_ref());
        caller.is_some_and(|thread| core::ptr::eq(&*thread.process, self))
    }

    /// Whether the process ends or has ended.
    pub fn is_exiting(&self) -> bool {
        self.exiting.load(Ordering::Acquire)
    }

    /// The set of signals that the process ignores, and the set of signals that it handles.
    pub fn dispositions(&self) -> (SigSet, SigSet) {
        self.with_actions(Actions::sets)
    }

    /// The name of the process's last thread, once that thread has ended.
    pub fn last_name(&self) -> Name {
        *self.last_name.lock()
    }

    /// The signal information for `signal` with this process and user `uid` as the sender.
    pub fn as_sender(&self, signal: crate::signal::Signal, uid: u32) -> SigInfo {
        SigInfo {
            signal,
            code: crate::signal::info::code::USER,
            errno: 0,
            detail: crate::signal::Detail::Sender { pid: self.pid, uid },
        }
    }
}
