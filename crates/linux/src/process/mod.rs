//! Processes: families, groups, sessions, what their threads share.
//!
//! # Who guards what
//! | state | guard |
//! |---|---|
//! | a process's children and zombies, their places on those lists, their wait reports | the *parent's* `family` |
//! | who the parent is | `parent` of the child; it changes only with the old parent's `family` held too |
//! | the members of a group | the group's `members` |
//! | the list of threads, whether the process is ending | `threads` |
//! | pending signals | the queue's own lock, taken last |
//!
//! No lock is global: fork, exit and wait of processes with different parents share no written line but those of the id
//! table.

pub mod arc_list;
pub mod credentials;
pub mod exit;
pub mod fork;
pub mod group;
pub mod identity;
pub mod ids;
pub mod limits;
pub mod prctl;
pub mod scheduling;
pub mod threads;
pub mod usage;
pub mod wait;

use crate::machine::Machine;
use crate::rank;
use crate::signal::send::PendingQueue;
use crate::signal::{Actions, SigInfo, SigSet};
use crate::thread::Name;
use crate::time::interval::Timers;
use crate::{Linux, Pid};
use alloc::sync::Arc;
use arc_list::{ArcList, Kind, Place};
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, AtomicU32, Ordering};
use credentials::Credentials;
use group::Group;
use limits::Limits;
use quire_sync::{SpinLock, WaitQueue};
use threads::Threads;
use usage::Accounts;

/// A process: a group of threads, in Linux's words.
pub struct Process<M: Machine> {
    /// The kernel that it lives in.
    pub linux: &'static Linux<M>,
    /// Its id: that of its first thread.
    pub pid: Pid,
    /// When it was made, in nanoseconds since boot.
    pub started: u64,
    /// Its children.
    pub family: SpinLock<Family<M>>,
    /// Who made it, or adopted it. `None` for process 1.
    parent: SpinLock<Option<Arc<Process<M>>>>,
    /// Its parent's id, 0 for none. Written under that lock.
    parent_pid: AtomicU32,
    /// Its place among its parent's children or zombies.
    sibling: Place<Process<M>>,
    /// Its place in its group.
    pub(crate) member: Place<Process<M>>,
    /// `wait4` sleeps here for the children's sake.
    pub child_events: WaitQueue,
    /// Held by whoever moves the process from group to group.
    pub(crate) moving: SpinLock<()>,
    /// Its process group. Changed by the holder of `moving`.
    pub group: SpinLock<Arc<Group<M>>>,
    /// Its threads.
    pub threads: SpinLock<Threads<M>>,
    /// A thread of it ended, or stopped.
    pub thread_events: WaitQueue,
    /// What it wants done about signals; shared with whom it was cloned from by CLONE_SIGHAND.
    pub actions: SpinLock<Arc<SpinLock<Actions>>>,
    /// Signals for any of its threads.
    pub pending: PendingQueue,
    /// Job control.
    pub job: SpinLock<Job>,
    /// Threads that are stopped sleep here.
    pub continued: WaitQueue,
    /// The signal that its parent gets when it ends; 0: none.
    pub exit_signal: AtomicU8,
    /// It ends (or has ended) as a whole: `exit_group` or a deadly signal.
    pub exiting: AtomicBool,
    /// A wait status, once it is known.
    pub status: AtomicI32,
    /// It called exec since it was forked (`setpgid` of a parent then comes too late).
    pub execed: AtomicBool,
    /// The signal that it asked for when its parent dies; 0: none.
    pub parent_death_signal: AtomicU8,
    /// It adopts orphans among its descendants.
    pub subreaper: AtomicBool,
    /// It may not gain privileges by exec.
    pub no_new_privileges: AtomicBool,
    /// Whose process it is. Replaced as a whole.
    pub credentials: SpinLock<Arc<Credentials>>,
    /// Resource limits. Replaced as a whole; shared after fork.
    pub limits: SpinLock<Arc<Limits>>,
    /// What it and its children used.
    pub accounts: SpinLock<Accounts>,
    /// `nice`, 1 to 40 as `getpriority` shows it.
    pub priority: AtomicU32,
    /// `personality`.
    pub personality: AtomicU32,
    /// OOM score adjustment, only remembered.
    pub oom_adjust: AtomicI32,
    /// The name of its last thread, once that has ended.
    pub(crate) last_name: SpinLock<Name>,
    /// Interval timers.
    pub timers: Timers<M>,
}

/// Job control state.
#[derive(Default)]
pub struct Job {
    /// The signal that stops it, while it is stopped or stopping.
    pub stopping: Option<u8>,
    /// Threads of it that sleep stopped.
    pub stopped_threads: usize,
}

/// What a parent may still be told of a living child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Report {
    /// It stopped, by this signal.
    Stopped(u8),
    /// It went on.
    Continued,
}

/// A process's children. Guarded by [`Process::family`].
pub struct Family<M: Machine> {
    /// Living children.
    pub children: ArcList<Siblings<M>>,
    /// Children that have ended and were not waited for.
    pub zombies: ArcList<Siblings<M>>,
    /// Reports of living children, few at any time: job control.
    pub reports: alloc::vec::Vec<(Pid, Report)>,
    /// The process ends and takes no more children in.
    pub closed: bool,
}

/// The kind of list that [`Family`] has.
pub struct Siblings<M>(core::marker::PhantomData<fn(M)>);
// SAFETY: `sibling` is used by no other kind, and guarded by the parent's `family`; a child that changes its parent is
// moved with both families held.
unsafe impl<M: Machine> Kind for Siblings<M> {
    type Node = Process<M>;
    fn place(node: &Process<M>) -> &Place<Process<M>> {
        &node.sibling
    }
}

/// What a new process gets from whom it is made by.
pub struct NewProcess<M: Machine> {
    /// Its id.
    pub pid: Pid,
    /// Its parent.
    pub parent: Option<Arc<Process<M>>>,
    /// Its group.
    pub group: Arc<Group<M>>,
    /// Its actions.
    pub actions: Arc<SpinLock<Actions>>,
    /// What it sends when it ends.
    pub exit_signal: u8,
    /// Whose it is.
    pub credentials: Arc<Credentials>,
    /// Its limits.
    pub limits: Arc<Limits>,
    /// Its priority.
    pub priority: u32,
    /// Its personality.
    pub personality: u32,
}

impl<M: Machine> Process<M> {
    /// A process without threads, in nobody's family yet.
    pub fn new(linux: &'static Linux<M>, new: NewProcess<M>) -> Process<M> {
        // The two lists of a family need ids that no other family's have: twice the process id, and one more.
        let list = (new.pid as usize) * 2;
        Process {
            linux,
            pid: new.pid,
            started: quire_sync::hooks::now(),
            family: SpinLock::new(
                rank::FAMILY,
                Family {
                    children: ArcList::new(list),
                    zombies: ArcList::new(list + 1),
                    reports: alloc::vec::Vec::new(),
                    closed: false,
                },
            ),
            parent_pid: AtomicU32::new(new.parent.as_ref().map_or(0, |p| p.pid)),
            parent: SpinLock::new(rank::PARENT, new.parent),
            sibling: Place::new(),
            member: Place::new(),
            child_events: WaitQueue::new(),
            moving: SpinLock::new(rank::MOVING, ()),
            group: SpinLock::new(rank::OWNED, new.group),
            threads: SpinLock::new(rank::THREADS, Threads::new()),
            thread_events: WaitQueue::new(),
            actions: SpinLock::new(rank::OWNED, new.actions),
            pending: PendingQueue::new(),
            job: SpinLock::new(rank::OWNED, Job::default()),
            continued: WaitQueue::new(),
            exit_signal: AtomicU8::new(new.exit_signal),
            exiting: AtomicBool::new(false),
            status: AtomicI32::new(0),
            execed: AtomicBool::new(false),
            parent_death_signal: AtomicU8::new(0),
            subreaper: AtomicBool::new(false),
            no_new_privileges: AtomicBool::new(false),
            credentials: SpinLock::new(rank::OWNED, new.credentials),
            limits: SpinLock::new(rank::OWNED, new.limits),
            accounts: SpinLock::new(rank::OWNED, Accounts::default()),
            priority: AtomicU32::new(new.priority),
            personality: AtomicU32::new(new.personality),
            oom_adjust: AtomicI32::new(0),
            last_name: SpinLock::new(rank::OWNED, Name::default()),
            timers: Timers::new(),
        }
    }

    /// Its parent.
    pub fn parent(&self) -> Option<Arc<Process<M>>> {
        self.parent.lock().clone()
    }

    /// Its parent's id; 0 where it has none.
    pub fn parent_pid(&self) -> Pid {
        self.parent_pid.load(Ordering::Relaxed)
    }

    /// Gives it another parent; returns the one before, to be let go of with no lock held.
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

    /// Whose it is.
    pub fn credentials(&self) -> Arc<Credentials> {
        self.credentials.lock().clone()
    }

    /// Its limits.
    pub fn limits(&self) -> Arc<Limits> {
        self.limits.lock().clone()
    }

    /// Its actions.
    pub fn actions(&self) -> Arc<SpinLock<Actions>> {
        self.actions.lock().clone()
    }

    /// Whether it ends or has ended.
    pub fn is_exiting(&self) -> bool {
        self.exiting.load(Ordering::Acquire)
    }

    /// Which signals it ignores, and which it handles.
    pub fn dispositions(&self) -> (SigSet, SigSet) {
        let actions = self.actions();
        let actions = actions.lock();
        actions.sets()
    }

    /// The name of its last thread, once that has ended.
    pub fn last_name(&self) -> Name {
        *self.last_name.lock()
    }

    /// A signal info that names this process as the sender.
    pub fn as_sender(&self, signal: crate::signal::Signal) -> SigInfo {
        SigInfo {
            signal,
            code: crate::signal::info::code::USER,
            errno: 0,
            detail: crate::signal::Detail::Sender { pid: self.pid, uid: self.credentials().real_user },
        }
    }
}
