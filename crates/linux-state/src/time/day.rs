//! Waits until a time of day. The deadlines of such waits follow the clock when it is set.
//!
//! The scheduler's timers know only times since boot. So a call that waits until a time of day first marks its thread,
//! and then converts the time. Setting the clock ends the calls of marked threads, as a signal without a handler would.
//! The kernel restarts each such call with its original arguments, and the call converts the time again. The exception
//! is a `FUTEX_WAIT_REQUEUE_PI` that was moved to its lock: it ends with EAGAIN, as after a signal.

use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::process::thread::{Thread, work};
use crate::time::on_monotonic;
use crate::{Ctx, Linux};
use quire_sync::atomic::{AtomicU32, Ordering, fence_after_rmw, fence_full};

impl<M: Machine> Ctx<'_, M> {
    /// Converts a time of day in nanoseconds to nanoseconds since boot, for the call's wait. If the clock is set before
    /// the call ends, the wait counts as [interrupted](Ctx::interrupted).
    pub fn until_day(&self, nanos: u64) -> u64 {
        translate(&self.thread.work, || on_monotonic(self.linux.machine, nanos))
    }
}

impl<M: Machine> Thread<M> {
    /// Whether the thread's call waits until a time of day.
    pub fn waits_by_day(&self) -> bool {
        self.work.load(Ordering::Relaxed) & work::BY_DAY != 0
    }

    /// Whether the clock was set since the thread's call began to wait.
    pub fn day_was_set(&self) -> bool {
        self.work.load(Ordering::Acquire) & work::DAY_SET != 0
    }

    /// Called when the thread's call has ended: clears the mark. Returns the work flags from before, without the mark.
    #[cold]
    pub fn ends_wait_by_day(&self) -> u32 {
        end(&self.work)
    }
}

impl<M: Machine> Linux<M> {
    /// Called when the time of day was set: updates all timers and waits that depend on it.
    #[cold]
    pub fn day_changed(&self) {
        self.timer_files.day_changed();
        published();
        for process in self.ids.processes() {
            for task in process.threads.lock().iter() {
                if task.payload().as_ref().is_some_and(|thread| notify(&thread.work)) {
                    self.poke(task);
                }
            }
            if let Some(timers) = process.posix_timers.get() {
                timers.day_changed();
            }
        }
    }
}

/// Marks a thread by its work flags `flags`, and then calls `read`, which reads the time of day.
#[inline]
pub fn translate<R>(flags: &AtomicU32, read: impl FnOnce() -> R) -> R {
    flags.fetch_or(work::BY_DAY, Ordering::Relaxed);
    // The mark is stored before the fence, and `read` loads the clock after it. The setter stores the clock, executes a
    // fence, and loads the marks. So `read` finds the new time, or the setter finds the mark.
    if !mutant(Mutant::DayMarkNoFence) {
        fence_after_rmw();
    }
    read()
}

/// Orders the store of a new time of day before the setter's loads of the marks.
#[inline]
pub(crate) fn published() {
    if !mutant(Mutant::DaySetNoFence) {
        fence_full();
    }
}

/// Ends the wait of the thread with the work flags `flags`, if that thread is marked. Returns whether it is marked.
pub fn notify(flags: &AtomicU32) -> bool {
    if mutant(Mutant::DayNotifyNotAtomic) {
        let marked = flags.load(Ordering::Acquire) & work::BY_DAY != 0;
        if marked {
            flags.fetch_or(work::DAY_SET, Ordering::AcqRel);
        }
        return marked;
    }
    let set = |now| (now & work::BY_DAY != 0).then_some(now | work::DAY_SET);
    flags.fetch_update(Ordering::AcqRel, Ordering::Relaxed, set).is_ok()
}

/// Clears the mark of a thread whose call has ended, and the flag that the setting of the clock may have set. Returns
/// the flags from before, without the mark.
pub fn end(flags: &AtomicU32) -> u32 {
    flags.fetch_and(!(work::BY_DAY | work::DAY_SET), Ordering::AcqRel) & !work::BY_DAY
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn mark(flags: &AtomicU32) {
        translate(flags, || ());
    }

    #[test]
    fn only_a_marked_thread_is_notified_and_only_for_its_call() {
        let flags = AtomicU32::new(work::RSEQ);
        assert!(!notify(&flags));
        mark(&flags);
        assert!(notify(&flags) && notify(&flags));
        assert_eq!(end(&flags), work::RSEQ | work::DAY_SET);
        assert!(!notify(&flags));
        mark(&flags);
        assert_eq!((end(&flags), flags.into_inner()), (work::RSEQ, work::RSEQ));
    }
}
