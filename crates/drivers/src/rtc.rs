//! The battery-backed clock, which is read once at boot for the time of day.

use crate::port::{in8, out8};

/// An uninterpreted reading of the clock's registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// Seconds, minutes, hours, day of the month, month, year of the century.
    pub fields: [u8; 6],
    /// Register B: 24-hour and binary flags.
    pub mode: u8,
}

/// Reads the clock in pairs until two readings agree. Returns `None` if there is no clock.
///
/// # Safety
/// No other code uses ports 0x70 and 0x71 during the call.
pub unsafe fn read() -> Option<Reading> {
    // SAFETY: the caller excludes other users. Bit 7 of each index is 0, so NMIs stay enabled.
    let register = |index: u8| unsafe {
        out8(0x70, index);
        in8(0x71)
    };
    let once = || Reading { fields: [0, 2, 4, 7, 8, 9].map(register), mode: register(11) };
    for _ in 0..1000 {
        if register(10) & 0x80 != 0 {
            continue;
        }
        let (a, b) = (once(), once());
        if a == b {
            return a.seconds_since_1970().map(|_| a);
        }
    }
    None
}

impl Reading {
    /// The seconds since 1970 in UTC. The clock is taken as UTC, and its year as 2000 to 2099. `None` if a field is
    /// impossible.
    pub fn seconds_since_1970(&self) -> Option<u64> {
        let binary = self.mode & 4 != 0;
        let value = |raw: u8| if binary { raw } else { (raw >> 4) * 10 + (raw & 15) } as u64;
        let [second, minute, hour, day, month, year] = self.fields;
        let mut h = value(hour & 0x7f);
        if self.mode & 2 == 0 {
            h = h % 12 + if hour & 0x80 != 0 { 12 } else { 0 };
        }
        let (s, m, d, mo, y) = (value(second), value(minute), value(day), value(month), value(year) + 2000);
        if s > 60 || m > 59 || h > 23 || !(1..=31).contains(&d) || !(1..=12).contains(&mo) || y > 2099 {
            return None;
        }
        Some(days_from_civil(y, mo, d) * 86_400 + h * 3600 + m * 60 + s)
    }
}

/// The number of days from 1970-01-01 to a Gregorian date (Howard Hinnant's algorithm, years from 1970).
fn days_from_civil(year: u64, month: u64, day: u64) -> u64 {
    let y = if month <= 2 { year - 1 } else { year };
    let (era, yoe) = (y / 400, y % 400);
    let doy = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    era * 146_097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bcd_and_a_binary_clock_show_the_same_time() {
        let bcd = Reading { fields: [0x59, 0x59, 0x23, 0x29, 0x02, 0x24], mode: 2 };
        let binary = Reading { fields: [59, 59, 23, 29, 2, 24], mode: 6 };
        assert_eq!(bcd.seconds_since_1970(), Some(1_709_251_199));
        assert_eq!(binary.seconds_since_1970(), Some(1_709_251_199));
    }

    #[test]
    fn a_twelve_hour_clock_knows_noon_and_midnight() {
        let at = |hour| Reading { fields: [0, 0, hour, 1, 1, 0x26], mode: 0 }.seconds_since_1970().unwrap();
        assert_eq!(at(0x92) - at(0x12), 12 * 3600);
        assert_eq!(at(0x81) - at(0x12), 13 * 3600);
    }

    #[test]
    fn impossible_fields_are_refused() {
        assert_eq!(Reading { fields: [0xff; 6], mode: 0xff }.seconds_since_1970(), None);
        assert_eq!(Reading { fields: [0; 6], mode: 6 }.seconds_since_1970(), None);
    }
}
