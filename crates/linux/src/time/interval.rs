//! Interval timers: `setitimer`, `getitimer`, `alarm`.

use super::alarms::INTERVALS;
use super::{SECOND, Timeval};
use crate::Ctx;
use crate::errno::Errno;
use crate::machine::Machine;
use crate::user::Plain;

/// `struct itimerval`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Interval {
    every: Timeval,
    value: Timeval,
}

// SAFETY: four words.
unsafe impl Plain for Interval {}

impl Interval {
    fn new((value, every): (u64, u64)) -> Self {
        Interval { every: Timeval::from_nanos(every), value: Timeval::from_nanos(value) }
    }
}

fn which(number: i32) -> Result<usize, Errno> {
    usize::try_from(number).ok().filter(|which| *which < INTERVALS.len()).ok_or(Errno::EINVAL)
}

/// `getitimer`
pub fn sys_getitimer<M: Machine>(ctx: &mut Ctx<'_, M>, number: i32, to: u64) -> Result<usize, Errno> {
    let process = ctx.process();
    ctx.write(to, &Interval::new(process.timers.get(process, which(number)?)))?;
    Ok(0)
}

/// `setitimer`
pub fn sys_setitimer<M: Machine>(ctx: &mut Ctx<'_, M>, number: i32, new: u64, old: u64) -> Result<usize, Errno> {
    let which = which(number)?;
    let new: Interval = if new == 0 { Interval::default() } else { ctx.read(new)? };
    let new = (new.value.nanos()?, new.every.nanos()?);
    let process = ctx.process();
    let before = process.timers.set(ctx.linux, process, which, new);
    ctx.write_optional(old, &Interval::new(before))?;
    Ok(0)
}

/// `alarm`
pub fn sys_alarm<M: Machine>(ctx: &mut Ctx<'_, M>, seconds: u32) -> Result<usize, Errno> {
    let process = ctx.process();
    let (before, _) = process.timers.set(ctx.linux, process, 0, (u64::from(seconds) * SECOND, 0));
    // As Linux: rounded to seconds, but not to nothing.
    let rounded = (before + SECOND / 2) / SECOND;
    Ok(if before > 0 { rounded.max(1) } else { 0 } as usize)
}
