//! `adjtimex` and `clock_adjtime`, by which programs read the parameters of the clock, and step it.
//!
//! The rate of the clock is fixed, and the clock counts as not synchronised. A request that would change a parameter
//! other than the time is refused. A request with the present values is accepted.

use crate::time::clock::{REALTIME, check_day, is_other_clock};
use quire_linux_state::Ctx;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::time::SECOND;

/// Bits of `modes`.
mod mode {
    pub const OFFSET: u32 = 1;
    pub const FREQUENCY: u32 = 2;
    pub const MAX_ERROR: u32 = 4;
    pub const ERROR: u32 = 8;
    pub const STATUS: u32 = 0x10;
    pub const TIME_CONSTANT: u32 = 0x20;
    pub const TAI: u32 = 0x80;
    pub const SET_OFFSET: u32 = 0x100;
    pub const NANO: u32 = 0x2000;
    pub const TICK: u32 = 0x4000;
    /// The call is `adjtime`. Then `OFFSET` must be set too, and `NANO` means that the call only reads.
    pub const ADJTIME: u32 = 0x8000;
}

/// Bits of the status: the clock is not synchronised, and times are in nanoseconds.
const UNSYNCHRONISED: u32 = 0x40;
const NANOSECONDS: u32 = 0x2000;
/// The bits that programs only read.
const READ_ONLY: u32 = 0xff00;
/// Linux's `NTP_PHASE_LIMIT` in microseconds. A clock with that error is not synchronised.
const MOST_ERROR: i64 = 16_000_000;
/// The time constant at boot.
const CONSTANT: i64 = 2;
/// The length of a tick in microseconds.
const TICK: i64 = 10_000;
/// The largest frequency offset that Linux accepts: 500 parts per million, with 16 bits after the binary point.
const TOLERANCE: i64 = 500 << 16;

/// A `struct timex`, as 64-bit words. Some words are an `int` with padding.
type Timex = [u64; 26];

/// Indices in a [`Timex`].
mod at {
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
    /// The words for the pulse-per-second signal (`PULSE`), and the index of the only `int` among them (`PULSE_SHIFT`).
    pub const PULSE: core::ops::RangeInclusive<usize> = 12..=19;
    pub const PULSE_SHIFT: usize = 14;
    pub const TAI: usize = 20;
}

/// Fields that a request may set only to their present value. Each row has the bit of `modes`, the index of the field,
/// and the value.
const KEPT: [(u32, usize, i64); 5] = [
    (mode::FREQUENCY, at::FREQUENCY, 0),
    (mode::MAX_ERROR, at::MAX_ERROR, MOST_ERROR),
    (mode::ERROR, at::ERROR, MOST_ERROR),
    (mode::TIME_CONSTANT, at::CONSTANT, CONSTANT),
    (mode::TICK, at::TICK, TICK),
];

/// Checks a request as Linux does. `capable` says whether the caller has the capability. EINVAL also if the request
/// would change a parameter that is fixed here.
fn check(request: &Timex, capable: bool) -> Result<(), Errno> {
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
        let most = if has(mode::NANO) { SECOND } else { 1_000_000 };
        if !(0..most as i64).contains(&signed(at::FRACTION)) {
            return Err(Errno::EINVAL);
        }
    }
    let changes = match has(mode::ADJTIME) {
        true => !has(mode::NANO) && signed(at::OFFSET) != 0,
        // As on Linux, an offset without STA_PLL has no effect. A request that sets STA_PLL is refused.
        false => {
            KEPT.iter().any(|(bits, at, value)| has(*bits) && signed(*at) != *value)
                || has(mode::STATUS) && request[at::STATUS] as u32 & !READ_ONLY != UNSYNCHRONISED
                || has(mode::TAI) && signed(at::CONSTANT) != 0
        }
    };
    if changes { Err(Errno::EINVAL) } else { Ok(()) }
}

/// The new time of day in nanoseconds after a [checked](check) request for a step, if the time is `now`. EINVAL if the
/// result is out of range.
fn stepped(request: &Timex, now: u64) -> Result<u64, Errno> {
    let unit = if request[at::MODES] as u32 & mode::NANO != 0 { 1 } else { 1000 };
    let by =
        i128::from(request[at::SECONDS] as i64) * i128::from(SECOND) + i128::from(request[at::FRACTION] as i64) * unit;
    u64::try_from(i128::from(now) + by).map_err(|_| Errno::EINVAL)
}

/// Fills in the answer for a clock that shows `nanos`. Times are in the unit of the request.
fn answer(request: &mut Timex, nanos: u64) {
    let in_nanos = request[at::MODES] as u32 & (mode::ADJTIME | mode::NANO) == mode::NANO;
    request[at::OFFSET] = 0;
    for (_, at, value) in KEPT {
        request[at] = value as u64;
    }
    set_int(&mut request[at::STATUS], UNSYNCHRONISED | if in_nanos { NANOSECONDS } else { 0 });
    request[at::PRECISION] = 1;
    request[at::TOLERANCE] = TOLERANCE as u64;
    request[at::SECONDS] = nanos / SECOND;
    request[at::FRACTION] = if in_nanos { nanos % SECOND } else { nanos % SECOND / 1000 };
    for at in at::PULSE {
        if at == at::PULSE_SHIFT { set_int(&mut request[at], 0) } else { request[at] = 0 }
    }
    set_int(&mut request[at::TAI], 0);
}

/// Sets the `int` in a word, and keeps the padding.
fn set_int(word: &mut u64, int: u32) {
    *word = *word & !u64::from(u32::MAX) | u64::from(int);
}

/// Applies a request, and writes the answer to user address `to`. Returns TIME_ERROR, because the clock is not
/// synchronised.
fn change<M: Machine>(ctx: &Ctx<'_, M>, request: &mut Timex, to: u64) -> Result<usize, Errno> {
    const TIME_ERROR: usize = 5;
    let linux = ctx.linux;
    check(request, ctx.credentials().may(cap::SYS_TIME))?;
    if request[at::MODES] as u32 & mode::SET_OFFSET != 0 {
        linux.vdso.change_realtime(linux.machine, |now| {
            let new = stepped(request, now)?;
            check_day(new, true, || ctx.now())?;
            Ok(new)
        })?;
        linux.day_changed();
    }
    answer(request, linux.machine.realtime());
    ctx.write(to, request)?;
    Ok(TIME_ERROR)
}

/// `adjtimex`
pub fn sys_adjtimex<M: Machine>(ctx: &mut Ctx<'_, M>, from: u64) -> Result<usize, Errno> {
    let mut request: Timex = ctx.read(from)?;
    change(ctx, &mut request, from)
}

/// `clock_adjtime`
pub fn sys_clock_adjtime<M: Machine>(ctx: &mut Ctx<'_, M>, clock: i32, from: u64) -> Result<usize, Errno> {
    let mut request: Timex = ctx.read(from)?;
    match clock {
        REALTIME => change(ctx, &mut request, from),
        other if is_other_clock(other) => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
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
    fn the_clock_is_not_synchronised() {
        let mut one = request(0, &[(at::STATUS, -1), (at::OFFSET, 7)]);
        answer(&mut one, 5_000_007_000);
        let (most, status) = (MOST_ERROR as u64, 0xffff_ffff_0000_0040);
        assert_eq!(one[1..12], [0, 0, most, most, status, 2, 1, 32_768_000, 5, 7, 10_000]);
        let mut nanos = request(mode::NANO, &[]);
        answer(&mut nanos, 5_000_007_001);
        assert_eq!((nanos[at::STATUS], nanos[at::FRACTION]), (u64::from(UNSYNCHRONISED | NANOSECONDS), 7001));
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
    fn a_change_is_refused_and_the_present_value_taken() {
        let of = |modes, at, value| check(&request(modes, &[(at, value)]), true);
        let status = i64::from(UNSYNCHRONISED);
        let kept = KEPT.iter().map(|(bits, at, value)| (*bits, *at, *value));
        let others = [
            (mode::STATUS, at::STATUS, status),
            (mode::TAI, at::CONSTANT, 0),
            (mode::ADJTIME | mode::OFFSET, at::OFFSET, 0),
        ];
        for (modes, place, value) in kept.chain(others) {
            assert_eq!((of(modes, place, value), of(modes, place, value + 1)), (Ok(()), Err(Errno::EINVAL)));
        }
        assert_eq!(of(mode::STATUS, at::STATUS, status | i64::from(NANOSECONDS)), Ok(()));
        assert_eq!(of(mode::OFFSET, at::OFFSET, 5), Ok(()));
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
