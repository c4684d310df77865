//! Interval timers: `getitimer`, `setitimer` and `alarm`.

use quire_linux_state::base::plain::Plain;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::time::TimerSetting;
use quire_linux_state::time::{SECOND, Timeval};
use quire_linux_state::{Ctx, Process};
use quire_sync::atomic::Ordering;

/// `struct itimerval`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Interval {
    every: Timeval,
    value: Timeval,
}

// SAFETY: four words of eight bytes leave no padding, and every bit pattern is a value.
unsafe impl Plain for Interval {}

/// The interval timers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Which {
    /// The timer of real time.
    Real,
    /// A timer of CPU time: in user mode (0), or in both modes (1).
    Cpu(usize),
}

impl Which {
    fn new(which: i32) -> Result<Which, Errno> {
        match which {
            0 => Ok(Which::Real),
            1 | 2 => Ok(Which::Cpu(which as usize - 1)),
            _ => Err(Errno::EINVAL),
        }
    }
}

/// The CPU time of `process` in nanoseconds, on the clock of timer `which` (see [`Which::Cpu`]).
fn used_on<M: Machine>(process: &Process<M>, which: usize) -> u64 {
    let usage = process.usage();
    if which == 0 { usage.user } else { usage.user + usage.system }
}

/// `getitimer`
pub fn sys_getitimer<M: Machine>(ctx: &mut Ctx<'_, M>, which: i32, to: u64) -> Result<usize, Errno> {
    let process = ctx.process();
    let (value, every) = match Which::new(which)? {
        Which::Real => match process.timers.get() {
            Some(timers) => (timers.remaining(ctx.now()), timers.every.load(Ordering::Relaxed)),
            None => (0, 0),
        },
        Which::Cpu(which) => match process.posix_timers.get() {
            Some(timers) => {
                let rest = timers.interval(which, used_on(process, which));
                (rest.value, rest.every)
            }
            None => (0, 0),
        },
    };
    ctx.write(to, &Interval { every: Timeval::from_nanos(every), value: Timeval::from_nanos(value) })?;
    Ok(0)
}

/// `setitimer`
pub fn sys_setitimer<M: Machine>(ctx: &mut Ctx<'_, M>, which: i32, new: u64, old: u64) -> Result<usize, Errno> {
    let new: Interval = if new == 0 { Interval::default() } else { ctx.read(new)? };
    let (value, every) = (new.value.nanos()?, new.every.nanos()?);
    let process = ctx.process();
    let me = ctx.linux.scheduler.current();
    let before = match Which::new(which)? {
        Which::Real => process.set_timer(me.to_ref(), value, every)?,
        Which::Cpu(_) if value == 0 && every == 0 && process.posix_timers.get().is_none() => (0, 0),
        Which::Cpu(which) => {
            let timers = process.posix_timers()?;
            let rest = timers.set_interval(which, used_on(process, which), TimerSetting { value, every });
            process.count_soon(&me);
            (rest.value, rest.every)
        }
    };
    let before = Interval { every: Timeval::from_nanos(before.1), value: Timeval::from_nanos(before.0) };
    ctx.write_optional(old, &before)?;
    Ok(0)
}

/// `alarm`
pub fn sys_alarm<M: Machine>(ctx: &mut Ctx<'_, M>, seconds: u32) -> Result<usize, Errno> {
    let me = ctx.linux.scheduler.current().to_ref();
    let (before, _) = ctx.process().set_timer(me, u64::from(seconds) * SECOND, 0)?;
    // As on Linux, the remaining time is rounded to seconds, but not down to 0.
    let rounded = (before + SECOND / 2) / SECOND;
    Ok(if before > 0 { rounded.max(1) } else { 0 } as usize)
}
