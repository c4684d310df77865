//! Timers on CPU time. Each process has a tree of its `timer_create` timers on CPU time, and two interval timers.

use crate::Pid;
use crate::machine::Machine;
use crate::process::timers::posix::PosixTimers;
use crate::process::timers::posix::course::Status;
use crate::process::timers::posix::timer::PosixTimer;
use crate::signal::SigInfo;
use crate::time::TimerSetting;
use quire_heap::Arc;
use quire_sync::atomic::Ordering;

/// An interval timer on CPU time.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct CpuInterval {
    /// The CPU time of the next expiry, in nanoseconds; 0: off.
    pub(super) expires: u64,
    every: u64,
}

impl CpuInterval {
    /// Whether the timer has expired at `used`. If so, begins the next period, or switches the timer off.
    fn passes(&mut self, used: u64) -> bool {
        if self.expires == 0 || used < self.expires {
            return false;
        }
        self.expires = match self.every {
            0 => 0,
            every => self.expires.saturating_add(((used - self.expires) / every + 1).saturating_mul(every)),
        };
        true
    }
}

impl<M: Machine> PosixTimers<M> {
    /// Switches off all timers on the CPU time of thread `tid`, because that thread ends.
    pub(super) fn leave_clock(&self, tid: Pid) {
        while let Some(timer) = self.first_on(tid, u64::MAX) {
            let mut state = timer.state.lock();
            if timer.disarm(&mut state) {
                state.course.status = Status::Off;
            }
        }
    }

    /// The first timer on the CPU time of `thread` (0: the process) if it is due at `used`.
    fn first_on(&self, thread: Pid, used: u64) -> Option<Arc<PosixTimer<M>>> {
        let tree = self.on_cpu_time.lock();
        let (key, timer) = tree.iter_from(&(thread, 0, 0)).next()?;
        (key.0 == thread && key.1 <= used).then(|| timer.clone())
    }

    /// Disarms a timer on the CPU time of `thread` (0: the process) that is due at `used`. Returns the timer with the
    /// signal to send.
    pub(crate) fn next_on(&self, thread: Pid, used: u64) -> Option<(Arc<PosixTimer<M>>, SigInfo)> {
        loop {
            let timer = self.first_on(thread, used)?;
            let mut state = timer.state.lock();
            let due = state.course.expires <= used && timer.disarm(&mut state);
            let signal = if due { PosixTimer::expired(&timer, &mut state, used) } else { None };
            drop(state);
            if let Some(signal) = signal {
                return Some((timer, signal));
            }
        }
    }

    /// The lowest clock at or above `thread` that has a timer (0: the process, else a thread id), and its first expiry.
    pub(crate) fn first_expiry(&self, thread: Pid) -> Option<(Pid, u64)> {
        let tree = self.on_cpu_time.lock();
        let ((thread, expires, _), _) = tree.iter_from(&(thread, 0, 0)).next()?;
        Some((*thread, *expires))
    }

    /// Whether a timer on CPU time is armed.
    pub(crate) fn counts_cpu_time(&self) -> bool {
        !self.on_cpu_time.lock().is_empty() || self.intervals.lock().iter().any(|i| i.expires != 0)
    }

    /// Sets interval timer `which`, whose clock shows `used`: its first expiry is after `new.value` nanoseconds.
    /// Returns the remaining time of the old setting.
    pub fn set_interval(&self, which: usize, used: u64, new: TimerSetting) -> TimerSetting {
        let expires = if new.value == 0 { 0 } else { used.saturating_add(new.value) };
        let mut intervals = self.intervals.lock();
        let old = core::mem::replace(&mut intervals[which], CpuInterval { expires, every: new.every });
        drop(intervals);
        self.cpu_changes.fetch_add(1, Ordering::AcqRel);
        rest_of(old, used)
    }

    /// The remaining time of interval timer `which` at `used`.
    pub fn interval(&self, which: usize, used: u64) -> TimerSetting {
        rest_of(self.intervals.lock()[which], used)
    }

    /// Whether interval timer `which` has expired at `used`, and the nanoseconds until it expires again.
    pub(crate) fn interval_passes(&self, which: usize, used: u64) -> (bool, Option<u64>) {
        let mut intervals = self.intervals.lock();
        let passes = intervals[which].passes(used);
        let expires = intervals[which].expires;
        (passes, (expires != 0).then(|| expires.saturating_sub(used)))
    }
}

/// The remaining time of an interval timer at `used`. An armed timer has at least a microsecond left.
fn rest_of(interval: CpuInterval, used: u64) -> TimerSetting {
    match interval.expires {
        0 => TimerSetting { value: 0, every: interval.every },
        expires => TimerSetting { value: expires.saturating_sub(used).max(1000), every: interval.every },
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn an_interval_keeps_its_phase() {
        let mut interval = CpuInterval { expires: 100, every: 30 };
        assert!(!interval.passes(99));
        assert!(interval.passes(165));
        assert_eq!(interval.expires, 190);
        let mut once = CpuInterval { expires: 100, every: 0 };
        assert!(once.passes(100) && !once.passes(1000));
        assert_eq!(rest_of(CpuInterval { expires: 100, every: 7 }, 300), TimerSetting { value: 1000, every: 7 });
        assert_eq!(rest_of(CpuInterval { expires: 0, every: 7 }, 300), TimerSetting { value: 0, every: 7 });
    }
}
