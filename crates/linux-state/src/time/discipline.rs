//! The values that an NTP daemon sets about the clock (`adjtimex`).
//!
//! The clock itself keeps its rate. So a daemon may set the errors, the state of synchronisation, the unit and the time
//! constant, and step the clock. Each value that would slew it is refused.

use crate::errno::Errno;
use quire_sync::{Rank, Sequenced};

/// Bits of `modes`.
pub mod mode {
    pub const OFFSET: u32 = 1;
    pub const FREQUENCY: u32 = 2;
    pub const MAX_ERROR: u32 = 4;
    pub const ERROR: u32 = 8;
    pub const STATUS: u32 = 0x10;
    pub const TIME_CONSTANT: u32 = 0x20;
    pub const TAI: u32 = 0x80;
    pub const SET_OFFSET: u32 = 0x100;
    pub const MICRO: u32 = 0x1000;
    pub const NANO: u32 = 0x2000;
    pub const TICK: u32 = 0x4000;
    /// The call is `adjtime`: then `OFFSET` must be there too, and `NANO` says that it only reads.
    pub const ADJTIME: u32 = 0x8000;
}

/// Bits of the status: the clock is not synchronised; times are in nanoseconds.
pub(super) const UNSYNCHRONISED: u32 = 0x40;
const NANOSECONDS: u32 = 0x2000;
/// The bits that programs only read.
const READ_ONLY: u32 = 0xff00;
/// Linux's `NTP_PHASE_LIMIT`, in microseconds: a clock with that error is not synchronised.
const MOST_ERROR: u64 = 16_000_000;
/// The maximum error grows by so many microseconds in each second.
const DRIFT: u64 = 500;
const MOST_CONSTANT: i64 = 10;
/// Microseconds of a tick.
const TICK: i64 = 10_000;
/// The largest frequency offset that Linux would take, in its unit: 500 parts per million.
const TOLERANCE: i64 = 500 << 16;

/// `struct timex`, as words. Some words hold an `int` and padding.
pub type Timex = [u64; 26];

/// Places in a [`Timex`].
pub mod at {
    pub const MODES: usize = 0;
    pub const OFFSET: usize = 1;
    pub const FREQUENCY: usize = 2;
    pub const MAX_ERROR: usize = 3;
    pub const ERROR: usize = 4;
    pub const STATUS: usize = 5;
    pub const CONSTANT: usize = 6;
    pub const PRECISION: usize = 7;
    pub const TOLERANCE: usize = 8;
    pub const SECONDS: usize = 9;
    pub const FRACTION: usize = 10;
    pub const TICK: usize = 11;
    /// The first and the last word about a pulse each second, and the place of its `int`.
    pub const PULSE: core::ops::RangeInclusive<usize> = 12..=19;
    pub const PULSE_SHIFT: usize = 14;
    pub const TAI: usize = 20;
}

/// The values; see the module.
pub struct Discipline(Sequenced<4>);

/// The values at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Values {
    status: u32,
    constant: i64,
    /// In microseconds, when it was set.
    max_error: u64,
    error: u64,
    /// The second since boot when `max_error` was set.
    since: u64,
}

impl Values {
    const FIRST: Values =
        Values { status: UNSYNCHRONISED, constant: 2, max_error: MOST_ERROR, error: MOST_ERROR, since: 0 };

    fn words(self) -> [u64; 4] {
        [u64::from(self.status) | (self.constant as u64) << 32, self.max_error, self.error, self.since]
    }

    fn of_words([first, max_error, error, since]: [u64; 4]) -> Values {
        Values { status: first as u32, constant: (first >> 32) as i64, max_error, error, since }
    }

    /// The values in second `now` since boot. The error has grown. A clock that has reached the most is not
    /// synchronised any more.
    fn aged(self, now: u64) -> Values {
        let max_error = self.max_error.saturating_add(now.saturating_sub(self.since).saturating_mul(DRIFT));
        let lost = if max_error > MOST_ERROR { UNSYNCHRONISED } else { 0 };
        Values { status: self.status | lost, max_error: max_error.min(MOST_ERROR), since: now, ..self }
    }

    /// As after the clock was set.
    fn cleared(self) -> Values {
        Values { status: self.status | UNSYNCHRONISED, max_error: MOST_ERROR, error: MOST_ERROR, ..self }
    }

    /// The values that a [checked](check) request sets, in Linux's order.
    fn changed(mut self, modes: u32, request: &Timex) -> Values {
        if modes & mode::ADJTIME != 0 {
            return self;
        }
        let clamped = |at: usize| (request[at] as i64).clamp(0, MOST_ERROR as i64) as u64;
        if modes & mode::STATUS != 0 {
            self.status = self.status & READ_ONLY | request[at::STATUS] as u32 & !READ_ONLY;
        }
        if modes & mode::NANO != 0 {
            self.status |= NANOSECONDS;
        }
        if modes & mode::MICRO != 0 {
            self.status &= !NANOSECONDS;
        }
        if modes & mode::MAX_ERROR != 0 {
            self.max_error = clamped(at::MAX_ERROR);
        }
        if modes & mode::ERROR != 0 {
            self.error = clamped(at::ERROR);
        }
        if modes & mode::TIME_CONSTANT != 0 {
            let given = (request[at::CONSTANT] as i64).clamp(0, MOST_CONSTANT);
            let added = if self.status & NANOSECONDS != 0 { 0 } else { 4 };
            self.constant = (given + added).min(MOST_CONSTANT);
        }
        self
    }

    /// Fills the answer in, for a clock that shows `nanos`. Returns the state of the clock: `TIME_OK` or `TIME_ERROR`.
    pub fn tell(&self, answer: &mut Timex, nanos: u64) -> usize {
        let second = crate::time::SECOND;
        let fraction = if self.status & NANOSECONDS != 0 { nanos % second } else { nanos % second / 1000 };
        answer[at::OFFSET] = 0;
        answer[at::FREQUENCY] = 0;
        answer[at::MAX_ERROR] = self.max_error;
        answer[at::ERROR] = self.error;
        set_int(&mut answer[at::STATUS], self.status);
        answer[at::CONSTANT] = self.constant as u64;
        answer[at::PRECISION] = 1;
        answer[at::TOLERANCE] = TOLERANCE as u64;
        answer[at::SECONDS] = nanos / second;
        answer[at::FRACTION] = fraction;
        answer[at::TICK] = TICK as u64;
        for at in at::PULSE {
            if at == at::PULSE_SHIFT { set_int(&mut answer[at], 0) } else { answer[at] = 0 }
        }
        set_int(&mut answer[at::TAI], 0);
        if self.status & UNSYNCHRONISED != 0 { 5 } else { 0 }
    }
}

/// Sets the `int` in a word, and leaves the padding.
fn set_int(word: &mut u64, int: u32) {
    *word = *word & !u64::from(u32::MAX) | u64::from(int);
}

/// Checks a request as Linux does, for a caller that has the capability or not. EINVAL too where the clock would have
/// to run at another rate.
pub fn check(request: &Timex, capable: bool) -> Result<(), Errno> {
    let modes = request[at::MODES] as u32;
    let has = |bits: u32| modes & bits != 0;
    let signed = |at: usize| request[at] as i64;
    if has(mode::ADJTIME) {
        if !has(mode::OFFSET) {
            return Err(Errno::EINVAL);
        }
        if !has(mode::NANO) && !capable {
            return Err(Errno::EPERM);
        }
    } else {
        if modes != 0 && !capable {
            return Err(Errno::EPERM);
        }
        if has(mode::TICK) && signed(at::TICK) != TICK {
            return Err(Errno::EINVAL);
        }
    }
    if has(mode::SET_OFFSET) {
        if !capable {
            return Err(Errno::EPERM);
        }
        let most = if has(mode::NANO) { crate::time::SECOND } else { 1_000_000 };
        if !(0..most as i64).contains(&signed(at::FRACTION)) {
            return Err(Errno::EINVAL);
        }
    }
    // Without STA_PLL an offset has no effect, as on Linux, and that bit is refused.
    let slews = match has(mode::ADJTIME) {
        true => !has(mode::NANO) && signed(at::OFFSET) != 0,
        false => {
            has(mode::FREQUENCY) && signed(at::FREQUENCY) != 0
                || has(mode::STATUS) && request[at::STATUS] as u32 & !(READ_ONLY | UNSYNCHRONISED) != 0
                || has(mode::TAI) && signed(at::CONSTANT) != 0
        }
    };
    if slews { Err(Errno::EINVAL) } else { Ok(()) }
}

/// The time of day that a [checked](check) request for a step means, at `now`. EINVAL if it is none.
pub fn stepped(request: &Timex, now: u64) -> Result<u64, Errno> {
    let unit = if request[at::MODES] as u32 & mode::NANO != 0 { 1 } else { 1000 };
    let by = i128::from(request[at::SECONDS] as i64) * i128::from(crate::time::SECOND)
        + i128::from(request[at::FRACTION] as i64) * unit;
    u64::try_from(i128::from(now) + by).map_err(|_| Errno::EINVAL)
}

impl Discipline {
    /// As at boot.
    pub(crate) fn new() -> Self {
        Discipline(Sequenced::new(Rank::OWNED, Values::FIRST.words()))
    }

    /// The clock was set.
    pub fn clear(&self) {
        self.0.update(|words| *words = Values::of_words(*words).cleared().words());
    }

    /// Changes the values as a [checked](check) request says in second `now` since boot, and returns them.
    pub fn change(&self, request: &Timex, now: u64) -> Values {
        let modes = request[at::MODES] as u32;
        if modes == 0 {
            return Values::of_words(self.0.read()).aged(now);
        }
        self.0.update(|words| {
            let values = Values::of_words(*words).aged(now).changed(modes, request);
            *words = values.words();
            values
        })
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn request(modes: u32, set: &[(usize, i64)]) -> Timex {
        let mut request = [0; 26];
        request[at::MODES] = modes.into();
        set.iter().for_each(|(at, value)| request[*at] = *value as u64);
        request
    }

    #[test]
    fn a_clock_that_no_daemon_set_is_not_synchronised() {
        let discipline = Discipline::new();
        let mut answer = request(0, &[(at::STATUS, -1), (at::OFFSET, 7)]);
        assert_eq!(discipline.change(&answer, 100).tell(&mut answer, 5_000_007_000), 5);
        assert_eq!(
            answer[1..12],
            [0, 0, MOST_ERROR, MOST_ERROR, 0xffff_ffff_0000_0040, 2, 1, 32_768_000, 5, 7, 10_000]
        );
    }

    #[test]
    fn errors_are_in_linuxs_order() {
        let of = |modes, set: &[(usize, i64)], capable| check(&request(modes, set), capable);
        assert_eq!(of(0, &[], false), Ok(()));
        assert_eq!(of(mode::ADJTIME, &[], false), Err(Errno::EINVAL));
        assert_eq!(of(mode::ADJTIME | mode::OFFSET, &[], false), Err(Errno::EPERM));
        assert_eq!(of(mode::ADJTIME | mode::OFFSET | mode::NANO, &[(at::OFFSET, 5)], false), Ok(()));
        assert_eq!(of(mode::TICK, &[(at::TICK, 1)], false), Err(Errno::EPERM));
        assert_eq!(of(mode::TICK, &[(at::TICK, 1)], true), Err(Errno::EINVAL));
        assert_eq!(of(mode::TICK, &[(at::TICK, TICK)], true), Ok(()));
        assert_eq!(of(mode::SET_OFFSET, &[(at::FRACTION, 1_000_000)], true), Err(Errno::EINVAL));
        assert_eq!(of(mode::SET_OFFSET | mode::NANO, &[(at::FRACTION, 1_000_000)], true), Ok(()));
        assert_eq!(of(mode::SET_OFFSET, &[(at::FRACTION, -1)], true), Err(Errno::EINVAL));
    }

    #[test]
    fn a_rate_is_refused_and_the_present_one_taken() {
        let of = |modes, at, value| check(&request(modes, &[(at, value)]), true);
        for (modes, place, refused) in [
            (mode::FREQUENCY, at::FREQUENCY, 1),
            (mode::STATUS, at::STATUS, 1),
            (mode::TAI, at::CONSTANT, 37),
            (mode::ADJTIME | mode::OFFSET, at::OFFSET, -1),
        ] {
            assert_eq!((of(modes, place, 0), of(modes, place, refused)), (Ok(()), Err(Errno::EINVAL)));
        }
        assert_eq!(of(mode::STATUS, at::STATUS, (UNSYNCHRONISED | NANOSECONDS).into()), Ok(()));
        assert_eq!(of(mode::OFFSET, at::OFFSET, 5), Ok(()));
    }

    #[test]
    fn a_set_clock_ages_and_loses_its_state() {
        let discipline = Discipline::new();
        let sets = mode::STATUS | mode::MAX_ERROR | mode::ERROR | mode::TIME_CONSTANT | mode::NANO;
        let set = request(sets, &[(at::MAX_ERROR, 1000), (at::ERROR, -3), (at::CONSTANT, 12)]);
        let values = discipline.change(&set, 50);
        assert_eq!((values.status, values.max_error, values.error, values.constant), (NANOSECONDS, 1000, 0, 10));
        let (look, mut answer) = (request(0, &[]), request(0, &[]));
        assert_eq!(discipline.change(&look, 52).tell(&mut answer, 7), 0);
        assert_eq!((answer[at::MAX_ERROR], answer[at::FRACTION]), (2000, 7));
        assert_eq!(discipline.change(&look, 50 + 32_000).tell(&mut answer, 0), 5);
        discipline.clear();
        let values = discipline.change(&look, 52);
        assert_eq!((values.status, values.error), (NANOSECONDS | UNSYNCHRONISED, MOST_ERROR));
        // At the most, a cleared state comes back with the next second.
        assert_eq!(discipline.change(&request(mode::STATUS, &[]), 60).tell(&mut answer, 0), 0);
        assert_eq!(discipline.change(&look, 60).tell(&mut answer, 0), 0);
        assert_eq!(discipline.change(&look, 61).tell(&mut answer, 0), 5);
    }

    #[test]
    fn a_step_is_a_number_of_seconds_and_a_fraction_on_top() {
        let step = |modes, seconds, fraction, now| {
            stepped(&request(modes, &[(at::SECONDS, seconds), (at::FRACTION, fraction)]), now)
        };
        assert_eq!(step(mode::SET_OFFSET, -1, 999_999, 2_000_000_000), Ok(1_999_999_000));
        assert_eq!(step(mode::NANO, 1, 1, 0), Ok(1_000_000_001));
        assert_eq!(step(mode::NANO, -1, 0, 5), Err(Errno::EINVAL));
        assert_eq!(step(mode::NANO, i64::MAX, 0, u64::MAX), Err(Errno::EINVAL));
    }
}
