//! Calls that read and set clocks.

use linux_raw_sys::general as raw;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::time::{SECOND, Timespec, Timeval};
use quire_linux_state::{Ctx, Pid};

pub(super) const REALTIME: i32 = raw::CLOCK_REALTIME as i32;
const MONOTONIC: i32 = raw::CLOCK_MONOTONIC as i32;
const PROCESS_CPU: i32 = raw::CLOCK_PROCESS_CPUTIME_ID as i32;
const THREAD_CPU: i32 = raw::CLOCK_THREAD_CPUTIME_ID as i32;
const MONOTONIC_RAW: i32 = raw::CLOCK_MONOTONIC_RAW as i32;
const REALTIME_COARSE: i32 = raw::CLOCK_REALTIME_COARSE as i32;
const MONOTONIC_COARSE: i32 = raw::CLOCK_MONOTONIC_COARSE as i32;
const BOOTTIME: i32 = raw::CLOCK_BOOTTIME as i32;
const TAI: i32 = raw::CLOCK_TAI as i32;
/// The last of the consecutive clock ids. The next id is unused.
const ALARMS: i32 = raw::CLOCK_BOOTTIME_ALARM as i32;

/// The clock that a clock id means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Clock {
    /// The time of day.
    Real,
    /// The time since boot.
    Monotonic,
    /// The CPU time of a process (0: the caller's process).
    Process(Pid),
    /// The CPU time of a thread (0: the caller).
    Thread(Pid),
}

impl Clock {
    pub(crate) fn new(id: i32) -> Result<Clock, Errno> {
        Ok(match id {
            REALTIME | REALTIME_COARSE | TAI => Clock::Real,
            MONOTONIC | MONOTONIC_RAW | MONOTONIC_COARSE | BOOTTIME => Clock::Monotonic,
            PROCESS_CPU => Clock::Process(0),
            THREAD_CPU => Clock::Thread(0),
            // An id of `clock_getcpuclockid`: the complement of the process or thread id, above three bits for the
            // clock.
            id if id < 0 && id & 3 == 2 => {
                let pid = !(id >> 3) as Pid;
                if id & 4 != 0 { Clock::Thread(pid) } else { Clock::Process(pid) }
            }
            _ => return Err(Errno::EINVAL),
        })
    }

    fn now<M: Machine>(self, ctx: &Ctx<'_, M>) -> Result<u64, Errno> {
        let linux = ctx.linux;
        Ok(match self {
            Clock::Real => linux.machine.realtime(),
            Clock::Monotonic => ctx.now(),
            Clock::Process(pid) => {
                let process = match pid {
                    0 => ctx.process().clone(),
                    pid => linux.ids.process(pid).ok_or(Errno::EINVAL)?,
                };
                let usage = process.usage();
                usage.user + usage.system
            }
            Clock::Thread(0) => {
                let times = linux.scheduler.times(&linux.scheduler.current());
                times.user_ns + times.system_ns
            }
            Clock::Thread(tid) => {
                let task = linux.ids.thread(tid).ok_or(Errno::EINVAL)?;
                let times = linux.scheduler.times(&task);
                times.user_ns + times.system_ns
            }
        })
    }
}

/// Whether `id` is a valid clock that cannot be adjusted. That is any clock except [`REALTIME`] and clocks of devices.
pub(super) fn is_other_clock(id: i32) -> bool {
    const DEVICE: i32 = 3;
    matches!(id, MONOTONIC..=ALARMS | TAI) || id < 0 && id & 7 != DEVICE
}

/// `clock_gettime`
pub fn sys_clock_gettime<M: Machine>(ctx: &mut Ctx<'_, M>, clock: i32, to: u64) -> Result<usize, Errno> {
    let now = Clock::new(clock)?.now(ctx)?;
    ctx.write(to, &Timespec::from_nanos(now))?;
    Ok(0)
}

/// `clock_getres`
pub fn sys_clock_getres<M: Machine>(ctx: &mut Ctx<'_, M>, clock: i32, to: u64) -> Result<usize, Errno> {
    // The process or thread of a CPU clock must exist, because libc's `clock_getcpuclockid` uses this call to check
    // that it exists.
    Clock::new(clock)?.now(ctx)?;
    ctx.write_optional(to, &Timespec::from_nanos(ctx.linux.machine.clock_resolution()))?;
    Ok(0)
}

/// Linux's `TIME_SETTOD_SEC_MAX`, in seconds: the range of signed 64-bit nanoseconds, less thirty years of uptime.
const LATEST: u64 = i64::MAX as u64 / SECOND - 30 * 365 * 24 * 3600;

/// Checks that the clock may be set to `nanos`. `capable` says whether the caller has the capability, and `now` gives
/// the time since boot. As on Linux, the new time must not put the boot before 1970.
pub(super) fn check_day(nanos: u64, capable: bool, now: impl FnOnce() -> u64) -> Result<(), Errno> {
    if nanos / SECOND >= LATEST {
        return Err(Errno::EINVAL);
    }
    if !capable {
        return Err(Errno::EPERM);
    }
    if nanos < now() { Err(Errno::EINVAL) } else { Ok(()) }
}

fn set_realtime<M: Machine>(ctx: &Ctx<'_, M>, nanos: u64) -> Result<usize, Errno> {
    check_day(nanos, ctx.credentials().may(cap::SYS_TIME), || ctx.now())?;
    ctx.linux.vdso.change_realtime(ctx.linux.machine, |_| Ok(nanos))?;
    ctx.linux.day_changed();
    Ok(0)
}

/// `clock_settime`
pub fn sys_clock_settime<M: Machine>(ctx: &mut Ctx<'_, M>, clock: i32, from: u64) -> Result<usize, Errno> {
    if clock != REALTIME {
        return Err(Errno::EINVAL);
    }
    let nanos = ctx.read::<Timespec>(from)?.nanos()?;
    set_realtime(ctx, nanos)
}

/// `gettimeofday`
pub fn sys_gettimeofday<M: Machine>(ctx: &mut Ctx<'_, M>, to: u64, zone: u64) -> Result<usize, Errno> {
    if to != 0 {
        ctx.write(to, &Timeval::from_nanos(ctx.linux.machine.realtime()))?;
    }
    ctx.write_optional(zone, &[0i32, 0])?;
    Ok(0)
}

/// `settimeofday`
pub fn sys_settimeofday<M: Machine>(ctx: &mut Ctx<'_, M>, from: u64, _zone: u64) -> Result<usize, Errno> {
    if from == 0 {
        return Ok(0);
    }
    let nanos = ctx.read::<Timeval>(from)?.nanos()?;
    set_realtime(ctx, nanos)
}

/// `time`
pub fn sys_time<M: Machine>(ctx: &mut Ctx<'_, M>, to: u64) -> Result<usize, Errno> {
    let seconds = ctx.linux.machine.realtime() / SECOND;
    ctx.write_optional(to, &seconds)?;
    Ok(seconds as usize)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_linux_state::time::moved;

    #[test]
    fn a_deadline_on_another_clock_is_not_early() {
        let passed = core::cell::Cell::new(100);
        let read = |epoch: u64| {
            passed.set(passed.get() + 10);
            epoch + passed.get()
        };
        let at = moved(5000 + 700, || read(5000), || read(0));
        assert!((700..=710).contains(&at), "{at}");
        assert_eq!(moved(5000, || read(5000), || read(0)), 140, "at once, if the time has passed");
    }

    #[test]
    fn a_clock_is_set_within_linuxs_bounds() {
        let check = |nanos, capable| check_day(nanos, capable, || 100);
        assert_eq!(LATEST, 8_277_292_036);
        let latest = LATEST * SECOND;
        for (nanos, answer) in [
            (100, Ok(())),
            (99, Err(Errno::EINVAL)),
            (latest - 1, Ok(())),
            (latest, Err(Errno::EINVAL)),
            (u64::MAX, Err(Errno::EINVAL)),
        ] {
            assert_eq!(check(nanos, true), answer, "{nanos}");
        }
        // The upper bound is checked before the capability, and the other bounds after it.
        assert_eq!((check(99, false), check(latest, false)), (Err(Errno::EPERM), Err(Errno::EINVAL)));
    }

    #[test]
    fn cpu_clocks_of_others_are_taken_apart() {
        // The ids that libc makes for clock_getcpuclockid(42) and for pthread_getcpuclockid of thread 42.
        assert_eq!(Clock::new((!42i32) << 3 | 2), Ok(Clock::Process(42)));
        assert_eq!(Clock::new((!42i32) << 3 | 6), Ok(Clock::Thread(42)));
        assert_eq!(Clock::new(99), Err(Errno::EINVAL));
    }

    #[test]
    fn clocks_that_are_not_adjusted_are_known() {
        for id in [MONOTONIC, PROCESS_CPU, REALTIME_COARSE, BOOTTIME, ALARMS, TAI, (!42i32) << 3 | 2] {
            assert!(is_other_clock(id), "{id}");
        }
        for id in [REALTIME, 10, 12, 99, (!4i32) << 3 | 3] {
            assert!(!is_other_clock(id), "{id}");
        }
    }
}
