//! The calls for POSIX timers (`timer_create` and its companions).

use crate::time::clock::Clock;
use linux_raw_sys::general as raw;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::limits::which;
use quire_linux_state::process::timers::posix::{Notify, TimerClock, send_expired};
use quire_linux_state::process::users::Account;
use quire_linux_state::signal::Signal;
use quire_linux_state::time::TimerSpec;
use quire_linux_state::{Ctx, Pid};

/// Values of `sigev_notify`.
const SIGEV_SIGNAL: u32 = 0;
const SIGEV_NONE: u32 = 1;
const SIGEV_THREAD: u32 = 2;
const SIGEV_THREAD_ID: u32 = 4;

/// Converts the clock of a new timer, and checks that timers on it are supported.
fn clock_of<M: Machine>(ctx: &Ctx<'_, M>, clock: i32) -> Result<TimerClock, Errno> {
    // Alarm clocks are refused, because no device wakes a suspended machine. The raw monotonic clock and the two coarse
    // clocks have no timers on Linux either.
    if let Ok(
        raw::CLOCK_REALTIME_ALARM
        | raw::CLOCK_BOOTTIME_ALARM
        | raw::CLOCK_MONOTONIC_RAW
        | raw::CLOCK_REALTIME_COARSE
        | raw::CLOCK_MONOTONIC_COARSE,
    ) = u32::try_from(clock)
    {
        return Err(Errno::EOPNOTSUPP);
    }
    let threads = || ctx.process().threads.lock();
    Ok(match Clock::new(clock)? {
        Clock::Real => TimerClock::Real,
        Clock::Monotonic => TimerClock::Monotonic,
        Clock::Process(pid) if pid == 0 || pid == ctx.pid() => TimerClock::Process,
        Clock::Process(pid) => {
            let there = ctx.linux.ids.process(pid).is_some();
            return Err(if there { Errno::EOPNOTSUPP } else { Errno::EINVAL });
        }
        Clock::Thread(0) => TimerClock::Thread(ctx.thread.tid()),
        Clock::Thread(tid) if threads().get(tid).is_some() => TimerClock::Thread(tid),
        Clock::Thread(_) => return Err(Errno::EINVAL),
    })
}

/// The notification that a `struct sigevent` requests, and its value.
fn notify_of<M: Machine>(ctx: &Ctx<'_, M>, event: &[u64; 8]) -> Result<(Notify, u64), Errno> {
    let [value, kind, thread, ..] = *event;
    let signal = || Signal::new(u64::from(kind as u32)).map_err(|_| Errno::EINVAL);
    let notify = match (kind >> 32) as u32 {
        SIGEV_NONE => Notify::Nothing,
        SIGEV_SIGNAL | SIGEV_THREAD => Notify::Process(signal()?),
        SIGEV_THREAD_ID => {
            let tid = thread as u32 as Pid;
            ctx.process().threads.lock().get(tid).ok_or(Errno::EINVAL)?;
            Notify::Thread(signal()?, tid)
        }
        _ => return Err(Errno::EINVAL),
    };
    Ok((notify, value))
}

/// `timer_create`
pub fn sys_timer_create<M: Machine>(ctx: &mut Ctx<'_, M>, clock: i32, event: u64, to: u64) -> Result<usize, Errno> {
    let event = if event == 0 { None } else { Some(ctx.read::<[u64; 8]>(event)?) };
    let clock = clock_of(ctx, clock)?;
    let process = ctx.process();
    let limit = process.soft_limit(which::SIGPENDING);
    // SAFETY: the value belongs to the calling thread, which does not replace it during the access.
    let user_charge = unsafe { ctx.thread.user_charge.get() };
    let charge = ctx.linux.users.charge(user_charge, Account::Signals, 1, limit).ok_or(Errno::EAGAIN)?;
    let (notify, value) = match event {
        Some(event) => notify_of(ctx, &event).map(|(notify, value)| (notify, Some(value)))?,
        None => (Notify::Process(Signal::ALRM), None),
    };
    process.posix_timers()?.create(clock, notify, value, charge, |id| ctx.write(to, &id))?;
    Ok(0)
}

/// `timer_settime`
pub fn sys_timer_settime<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    id: i32,
    flags: u32,
    new: u64,
    old: u64,
) -> Result<usize, Errno> {
    if new == 0 {
        return Err(Errno::EINVAL);
    }
    let new = ctx.read::<TimerSpec>(new)?.setting()?;
    let process = ctx.process();
    let timers = process.posix_timers.get().ok_or(Errno::EINVAL)?;
    send_expired(ctx.linux, process);
    let me = ctx.linux.scheduler.current();
    let before = timers.set(process, &me, id, flags & raw::TIMER_ABSTIME != 0, new)?;
    ctx.write_optional(old, &TimerSpec::from(before))?;
    Ok(0)
}

/// `timer_gettime`
pub fn sys_timer_gettime<M: Machine>(ctx: &mut Ctx<'_, M>, id: i32, to: u64) -> Result<usize, Errno> {
    let process = ctx.process();
    let timers = process.posix_timers.get().ok_or(Errno::EINVAL)?;
    // Expired timers are handled first, so that a one-shot timer that has expired shows no time left.
    send_expired(ctx.linux, process);
    let rest = timers.get(process, id)?;
    ctx.write(to, &TimerSpec::from(rest))?;
    Ok(0)
}

/// `timer_getoverrun`
pub fn sys_timer_getoverrun<M: Machine>(ctx: &mut Ctx<'_, M>, id: i32) -> Result<usize, Errno> {
    let timers = ctx.process().posix_timers.get().ok_or(Errno::EINVAL)?;
    Ok(timers.overrun(id)? as usize)
}

/// `timer_delete`
pub fn sys_timer_delete<M: Machine>(ctx: &mut Ctx<'_, M>, id: i32) -> Result<usize, Errno> {
    let process = ctx.process();
    process.posix_timers.get().ok_or(Errno::EINVAL)?.delete(process, id)?;
    Ok(0)
}
