//! The slack of a thread's timers: how much later than its deadline a sleep may end (`PR_SET_TIMERSLACK`,
//! `/proc/<pid>/timerslack_ns`).
//!
//! The value is only stored and shown. Quire's timers end at their deadlines, which every slack value allows.

use crate::machine::Machine;
use crate::process::credentials::capabilities::cap;
use crate::process::first_use::FirstUse;
use crate::{Errno, Process};
use quire_fs::FsError;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_task::{Class, Thread as Task, ThreadRef};

/// The slack of the first process, in nanoseconds.
const FIRST: u64 = 50_000;

/// A thread's slack, in nanoseconds. A real-time thread has no slack. Other threads with CAP_SYS_NICE may read and
/// write the slack. Memory is allocated only for a thread whose slack differs, or once differed, from the slack of the
/// first process.
pub struct Slack(FirstUse<Values>);

struct Values {
    /// The slack that was set; 0 for the default slack.
    set: AtomicU64,
    /// The default slack, which is the slack of the thread's creator at the creation. It does not change.
    usual: u64,
}

impl Values {
    fn new(usual: u64) -> Values {
        Values { set: AtomicU64::new(0), usual }
    }
}

impl Slack {
    /// The slack of the first process's threads.
    pub fn first() -> Slack {
        Slack(FirstUse::new())
    }

    /// The slack of a new thread whose creator has the slack `maker`.
    pub fn inherited(maker: u64) -> Result<Slack, Errno> {
        let slack = Slack::first();
        if maker != FIRST {
            slack.0.get_or_make(|| Values::new(maker))?;
        }
        Ok(slack)
    }

    /// The slack in force, in nanoseconds. `realtime`: the thread is a real-time thread.
    fn get(&self, realtime: bool) -> u64 {
        if realtime {
            return 0;
        }
        let Some(values) = self.0.get() else { return FIRST };
        match values.set.load(Ordering::Relaxed) {
            0 => values.usual,
            set => set,
        }
    }

    /// Sets the slack; 0 restores the default. For a real-time thread every value restores the default, as on Linux.
    fn set(&self, nanos: u64, realtime: bool) -> Result<(), Errno> {
        let nanos = if realtime { 0 } else { nanos };
        let values = match self.0.get() {
            None if nanos == 0 => return Ok(()),
            Some(values) => values,
            None => self.0.get_or_make(|| Values::new(FIRST))?,
        };
        values.set.store(nanos, Ordering::Relaxed);
        Ok(())
    }

    /// Restores the default slack.
    fn reset(&self) {
        if let Some(values) = self.0.get() {
            values.set.store(0, Ordering::Relaxed);
        }
    }
}

fn is_realtime<M: Machine>(task: &Task<M>) -> bool {
    matches!(task.class().0, Class::Fifo(_) | Class::RoundRobin(_))
}

/// The slack of the thread `task`, in nanoseconds.
pub fn of<M: Machine>(task: &Task<M>) -> u64 {
    task.payload().as_ref().map_or(0, |thread| thread.slack.get(is_realtime(task)))
}

/// Sets the slack of the thread `task`; 0 restores the default.
pub fn set<M: Machine>(task: &Task<M>, nanos: u64) -> Result<(), Errno> {
    task.payload().as_ref().map_or(Ok(()), |thread| thread.slack.set(nanos, is_realtime(task)))
}

/// Called after a change of the scheduling class of `task`. A thread that became real-time loses the slack that was
/// set.
pub fn class_changed<M: Machine>(task: &Task<M>) {
    if let Some(thread) = task.payload().as_ref().filter(|_| is_realtime(task)) {
        thread.slack.reset();
    }
}

/// The first thread of `process`, whose slack the running thread wants to read or write. EPERM if the running thread is
/// another thread and lacks `CAP_SYS_NICE`.
pub fn reached<M: Machine>(process: &Process<M>) -> Result<ThreadRef<M>, FsError> {
    let task = process.threads.lock().get(process.pid).cloned().ok_or(FsError::NoProcess)?;
    let me = process.linux.current();
    let own = task.payload().as_ref().is_some_and(|thread| core::ptr::eq(thread, me));
    // SAFETY: the thread `me` itself runs this, and does not replace its credentials during the check.
    if own || unsafe { me.credentials.get() }.may(cap::SYS_NICE) { Ok(task) } else { Err(FsError::NotPermitted) }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn zero_sets_back_to_the_slack_of_the_maker() {
        let slack = Slack::first();
        assert_eq!(slack.get(false), 50_000);
        slack.set(u64::MAX, false).expect("memory");
        assert_eq!(slack.get(false), u64::MAX);
        let child = Slack::inherited(slack.get(false)).expect("memory");
        child.set(7, false).expect("memory");
        assert_eq!(child.get(false), 7);
        child.set(0, false).expect("memory");
        assert_eq!(child.get(false), u64::MAX);
    }

    #[test]
    fn a_real_time_thread_has_no_slack_and_forgets_its_own() {
        let slack = Slack::inherited(9).expect("memory");
        slack.set(7, false).expect("memory");
        assert_eq!(slack.get(true), 0);
        slack.set(7, true).expect("memory");
        assert_eq!((slack.get(true), slack.get(false)), (0, 9));
        slack.set(7, false).expect("memory");
        slack.reset();
        assert_eq!(slack.get(false), 9);
    }

    #[test]
    fn the_first_slack_takes_no_memory_and_another_may_find_none() {
        let plain = || {
            let slack = Slack::inherited(FIRST).expect("no memory is needed");
            slack.set(0, false).expect("no memory is needed");
        };
        assert_eq!(quire_heap::refusal::allocations(plain), 0);
        let (error, _) = quire_heap::refusal::at(1, || Slack::first().set(7, false));
        assert_eq!(error, Err(Errno::ENOMEM));
    }
}
