//! Clocks, sleeps and timer files.

pub mod day;
pub mod timer_file;

use crate::base::plain::Plain;
use crate::errno::Errno;
use crate::machine::Machine;

/// Nanoseconds in a second.
pub const SECOND: u64 = 1_000_000_000;
/// `sysconf(_SC_CLK_TCK)`.
pub const TICKS_PER_SECOND: u64 = 100;

/// Converts nanoseconds to clock ticks.
pub fn ticks(nanos: u64) -> u64 {
    nanos / (SECOND / TICKS_PER_SECOND)
}

/// Converts a time of day to nanoseconds since boot. The result may be late by the time between two clock readings, but
/// is never early.
pub(crate) fn on_monotonic<M: Machine>(machine: &M, realtime: u64) -> u64 {
    moved(realtime, || machine.realtime(), quire_sync::hooks::now)
}

/// Converts the time `at` on the clock `from` to a time on the clock `to`. `from` is read first. In the reverse order,
/// the result would be early by the time between the two readings.
pub fn moved(at: u64, from: impl FnOnce() -> u64, to: impl FnOnce() -> u64) -> u64 {
    let rest = at.saturating_sub(from());
    to().saturating_add(rest)
}

/// `struct timespec`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Timespec {
    /// Whole seconds.
    pub seconds: i64,
    /// Nanoseconds, 0 to 999,999,999.
    pub nanos: i64,
}

/// `struct timeval`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Timeval {
    /// Whole seconds.
    pub seconds: i64,
    /// Microseconds, 0 to 999,999.
    pub micros: i64,
}

/// `struct itimerspec`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct TimerSpec {
    /// The time between expiries; 0: the timer expires once.
    pub every: Timespec,
    /// The time until the first expiry, or the time of day of the first expiry; 0: off.
    pub value: Timespec,
}

// SAFETY: four words of eight bytes leave no padding, and every bit pattern is a value.
unsafe impl Plain for TimerSpec {}
// SAFETY: two words of eight bytes leave no padding, and every bit pattern is a value.
unsafe impl Plain for Timespec {}
// SAFETY: two words of eight bytes leave no padding, and every bit pattern is a value.
unsafe impl Plain for Timeval {}

impl Timespec {
    /// Converts nanoseconds.
    pub fn from_nanos(nanos: u64) -> Timespec {
        Timespec { seconds: (nanos / SECOND) as i64, nanos: (nanos % SECOND) as i64 }
    }

    /// Converts the time to nanoseconds. Times above the largest value (584 years) become that value. EINVAL if a field
    /// is negative or out of range.
    pub fn nanos(&self) -> Result<u64, Errno> {
        if self.seconds < 0 || !(0..SECOND as i64).contains(&self.nanos) {
            return Err(Errno::EINVAL);
        }
        Ok((self.seconds as u64).saturating_mul(SECOND).saturating_add(self.nanos as u64))
    }
}

impl Timeval {
    /// Converts nanoseconds.
    pub fn from_nanos(nanos: u64) -> Timeval {
        Timeval { seconds: (nanos / SECOND) as i64, micros: (nanos % SECOND / 1000) as i64 }
    }

    /// Converts the time to nanoseconds. EINVAL if a field is negative or out of range.
    pub fn nanos(&self) -> Result<u64, Errno> {
        if self.seconds < 0 || !(0..1_000_000).contains(&self.micros) {
            return Err(Errno::EINVAL);
        }
        Ok((self.seconds as u64).saturating_mul(SECOND).saturating_add(self.micros as u64 * 1000))
    }
}

/// A timer's setting, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TimerSetting {
    /// The time until the first expiry; 0: off.
    pub value: u64,
    /// The time between expiries; 0: the timer expires once.
    pub every: u64,
}

impl TimerSpec {
    /// Converts the setting to nanoseconds. EINVAL if a field is negative or out of range.
    pub fn setting(&self) -> Result<TimerSetting, Errno> {
        let every = self.every.nanos()?;
        Ok(TimerSetting { value: self.value.nanos()?, every })
    }
}

impl From<TimerSetting> for TimerSpec {
    fn from(setting: TimerSetting) -> Self {
        TimerSpec { every: Timespec::from_nanos(setting.every), value: Timespec::from_nanos(setting.value) }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn times_survive_the_way_there_and_back(nanos in 0..i64::MAX as u64) {
            prop_assert_eq!(Timespec::from_nanos(nanos).nanos(), Ok(nanos));
            prop_assert_eq!(Timeval::from_nanos(nanos).nanos(), Ok(nanos / 1000 * 1000));
        }

        #[test]
        fn no_time_overflows(seconds in any::<i64>(), nanos in any::<i64>()) {
            let t = Timespec { seconds, nanos };
            prop_assert_eq!(t.nanos().is_ok(), seconds >= 0 && (0..1_000_000_000).contains(&nanos));
        }
    }

    #[test]
    fn a_setting_survives_the_way_there_and_back() {
        let setting = TimerSetting { value: 1_500_000_000, every: 7 };
        assert_eq!(TimerSpec::from(setting).setting(), Ok(setting));
        let bad = Timespec { seconds: 0, nanos: 1_000_000_000 };
        for spec in [TimerSpec { every: bad, ..TimerSpec::default() }, TimerSpec { value: bad, ..TimerSpec::default() }]
        {
            assert_eq!(spec.setting(), Err(Errno::EINVAL));
        }
    }
}
