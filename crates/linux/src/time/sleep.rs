//! Calls that sleep for a time.

use crate::time::clock::Clock;
use linux_raw_sys::general as raw;
use quire_linux_state::Ctx;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::sleep::{Sleep, TimeSleep};
use quire_linux_state::process::thread::Restart;
use quire_linux_state::time::Timespec;

/// Ends the sleep, or sleeps again, without a kernel stack. If a signal interrupts a relative sleep, the remaining time
/// is written, and the state for a restart is stored.
pub(crate) fn go_on<M: Machine>(ctx: &mut Ctx<'_, M>, sleep: TimeSleep) -> Result<usize, Errno> {
    let TimeSleep { deadline, relative } = sleep;
    // If another thread has set the time of day during the sleep, the old deadline is not valid any more. The change
    // interrupts the sleep, and the call is repeated with a new deadline.
    if ctx.now() >= deadline && !ctx.thread.day_was_set() {
        return Ok(0);
    }
    if !ctx.interrupted() {
        return Err(ctx.sleep(Sleep::Time(sleep), Some(sleep.deadline)));
    }
    let Some((clock, remaining)) = relative else { return Err(Errno::ERESTARTNOHAND) };
    let left = deadline.saturating_sub(ctx.now());
    ctx.write_optional(remaining, &Timespec::from_nanos(left))?;
    Err(ctx.restart_with(Restart::Sleep { clock, deadline, remaining }))
}

/// Sleeps until `deadline`. If a signal comes first, the remaining time is written to user address `remaining`, and the
/// state for a restart is stored.
pub(crate) fn sleep<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    clock: i32,
    deadline: u64,
    remaining: u64,
) -> Result<usize, Errno> {
    go_on(ctx, TimeSleep { deadline, relative: Some((clock, remaining)) })
}

/// `nanosleep`
pub fn sys_nanosleep<M: Machine>(ctx: &mut Ctx<'_, M>, from: u64, remaining: u64) -> Result<usize, Errno> {
    let nanos = ctx.read::<Timespec>(from)?.nanos()?;
    let deadline = ctx.now().saturating_add(nanos);
    sleep(ctx, raw::CLOCK_MONOTONIC as i32, deadline, remaining)
}

/// `clock_nanosleep`
pub fn sys_clock_nanosleep<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    clock: i32,
    flags: u32,
    from: u64,
    remaining: u64,
) -> Result<usize, Errno> {
    let which = Clock::new(clock)?;
    let can_only_be_read = matches!(
        u32::try_from(clock),
        Ok(raw::CLOCK_MONOTONIC_RAW | raw::CLOCK_REALTIME_COARSE | raw::CLOCK_MONOTONIC_COARSE)
    );
    if can_only_be_read || matches!(which, Clock::Process(_) | Clock::Thread(_)) {
        return Err(Errno::EOPNOTSUPP);
    }
    let nanos = ctx.read::<Timespec>(from)?.nanos()?;
    let absolute = flags & raw::TIMER_ABSTIME != 0;
    if !absolute {
        let deadline = ctx.now().saturating_add(nanos);
        return sleep(ctx, clock, deadline, remaining);
    }
    let deadline = match which {
        Clock::Real => ctx.until_day(nanos),
        _ => nanos,
    };
    go_on(ctx, TimeSleep { deadline, relative: None })
}

/// `restart_syscall`: resumes a call that a signal interrupted. Programs do not call it themselves.
pub fn sys_restart_syscall<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    // SAFETY: the owning thread runs this, and nothing borrows the value.
    let how = unsafe { ctx.thread.restart.replace(None) };
    let done = match how {
        None => Err(Errno::EINTR),
        Some(Restart::Sleep { clock, deadline, remaining }) => sleep(ctx, clock, deadline, remaining),
        Some(Restart::Futex { at, value, bitset, private, deadline }) => {
            crate::futex::wait(ctx, at, value, bitset, private, Some(deadline))
        }
        Some(Restart::Poll { fds, count, deadline }) => crate::file::restart_poll(ctx, fds, count, deadline),
    };
    if done == Err(Errno::ENOMEM) {
        // The state is stored again, so that a repetition resumes the same call.
        // SAFETY: only the owning thread has a context, and nothing borrows the value, which was taken out above.
        unsafe { ctx.thread.restart.replace(how) };
    }
    done
}
