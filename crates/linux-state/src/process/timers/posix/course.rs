//! The setting of a timer and the count of its expiries: plain values without locks.

use crate::time::TimerSetting;

/// The state of a timer between its setting and the delivery of its signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Status {
    /// The timer is off, has expired for the last time, or has no notification.
    Off,
    /// The timer is on a timer wheel, on the list of expired timers, or in the tree of timers on CPU time.
    Armed,
    /// The timer's signal is in a queue.
    Queued,
}

/// The setting of a timer and its counts of expiries, without locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Course {
    pub status: Status,
    /// The time of the next expiry on the timer's clock, in nanoseconds.
    pub(super) expires: u64,
    pub every: u64,
    /// The number of expiries since the last signal was received. The first expiry sends the next signal and is no
    /// overrun, so the count begins at -1.
    pub overrun: i64,
    /// The overrun that was reported with the last signal.
    pub reported: i32,
    /// A number that changes with each setting, so that a signal from an older setting is recognised.
    pub setting: u32,
}

impl Course {
    pub const fn new() -> Self {
        Course { status: Status::Off, expires: 0, every: 0, overrun: -1, reported: 0, setting: 0 }
    }

    /// The number of the setting, if its signal is in a queue or a thread is just adding it to a queue.
    pub fn queued(&self) -> Option<u32> {
        (self.status == Status::Queued).then_some(self.setting)
    }

    /// Moves the next expiry by whole periods to a time after `now`, and counts the periods as expiries.
    pub(super) fn forward(&mut self, now: u64) {
        if self.every != 0 && now >= self.expires {
            let periods = (now - self.expires) / self.every + 1;
            self.expires = self.expires.saturating_add(periods.saturating_mul(self.every));
            self.overrun = self.overrun.saturating_add(i64::try_from(periods).unwrap_or(i64::MAX));
        }
    }

    /// The remaining time at `now`. `silent`: the timer has no notification.
    pub fn rest(&mut self, now: u64, silent: bool) -> TimerSetting {
        if self.every == 0 && self.status != Status::Armed && !silent {
            return TimerSetting::default();
        }
        if self.status != Status::Armed {
            self.forward(now);
        }
        // An armed timer has at least 1 ns left.
        let value = self.expires.saturating_sub(now).max(u64::from(!silent));
        TimerSetting { value, every: self.every }
    }

    /// Called when the timer's signal is received at `now`. Begins the next period if there is one, and returns the
    /// overrun to report. `now` is `None` if the timer measures the CPU time of a thread that has ended. The timer then
    /// ends too.
    pub fn taken(&mut self, now: Option<u64>) -> i32 {
        self.status = Status::Off;
        if self.every == 0 {
            return 0;
        }
        if let Some(now) = now {
            self.forward(now);
            self.status = Status::Armed;
        }
        self.reported = i32::try_from(self.overrun.max(0)).unwrap_or(i32::MAX);
        self.overrun = -1;
        self.reported
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn armed(expires: u64, every: u64) -> Course {
        Course { status: Status::Armed, expires, every, ..Course::new() }
    }

    #[test]
    fn the_overrun_counts_the_expiries_behind_the_reported_one() {
        for (now, overrun, next) in [(100, 0, 110), (109, 0, 110), (110, 1, 120), (195, 9, 200)] {
            let mut course = armed(100, 10);
            course.status = Status::Queued;
            assert_eq!((course.taken(Some(now)), course.expires), (overrun, next), "at {now}");
            assert_eq!((course.status, course.reported, course.overrun), (Status::Armed, overrun, -1));
        }
        let mut once = armed(100, 0);
        assert_eq!((once.taken(Some(500)), once.status, once.reported), (0, Status::Off, 0));
    }

    #[test]
    fn a_timer_ends_with_the_thread_whose_cpu_time_it_measures() {
        let mut course = Course { status: Status::Queued, ..armed(100, 10) };
        course.forward(125);
        assert_eq!((course.taken(None), course.status, course.reported), (2, Status::Off, 2));
        assert_eq!((course.expires, course.overrun), (130, -1));
    }

    #[test]
    fn a_look_at_the_rest_does_not_lose_expiries() {
        let mut course = armed(100, 10);
        course.status = Status::Queued;
        assert_eq!(course.rest(134, false), TimerSetting { value: 6, every: 10 });
        assert_eq!(course.rest(151, false), TimerSetting { value: 9, every: 10 });
        // The signal reports the expiry at 100. The expiries at 110, 120, 130, 140, 150 and 160 are the overrun.
        assert_eq!((course.taken(Some(160)), course.expires), (6, 170));
    }

    #[test]
    fn the_rest_of_timers_of_each_kind() {
        assert_eq!(Course::new().rest(50, false), TimerSetting::default());
        assert_eq!(armed(100, 0).rest(40, false), TimerSetting { value: 60, every: 0 });
        // The timer is armed, and has not been handled as expired yet.
        assert_eq!(armed(100, 0).rest(100, false), TimerSetting { value: 1, every: 0 });
        let silent = |expires, every| Course { expires, every, ..Course::new() };
        assert_eq!(silent(100, 0).rest(100, true), TimerSetting::default());
        assert_eq!(silent(100, 30).rest(131, true), TimerSetting { value: 29, every: 30 });
        let mut queued = Course { status: Status::Queued, ..armed(100, 0) };
        assert_eq!(queued.rest(90, false), TimerSetting::default());
    }

    #[test]
    fn counts_end_at_the_largest_number() {
        let mut course = Course { status: Status::Queued, ..armed(0, 1) };
        assert_eq!(course.taken(Some(u64::MAX - 1)), i32::MAX);
        assert_eq!((course.expires, course.overrun), (u64::MAX, -1));
        let mut course = armed(u64::MAX - 1, u64::MAX);
        course.forward(u64::MAX);
        assert_eq!(course.expires, u64::MAX);
    }
}
