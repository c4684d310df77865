//! POSIX timers: `timer_create` and its kin.

use super::Timespec;
use super::alarms::{Alarm, By, next_id};
use super::clock::Clock;
use crate::errno::Errno;
use crate::machine::Machine;
use crate::signal::info::code;
use crate::signal::{Detail, SigInfo, Signal};
use crate::user::Plain;
use crate::{Ctx, Linux, Pid, Process};
use core::sync::atomic::Ordering;
use linux_raw_sys::general as raw;

/// The most timers of one process: each has a signal of its own, beyond those that a queue has room for.
const MOST: usize = 1024;

/// Whom a timer tells when it runs out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Notify {
    Nobody,
    Process,
    Thread(Pid),
}

/// One timer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posix {
    pub by: By,
    pub alarm: Alarm,
    /// Times are of the time of day.
    real: bool,
    notify: Notify,
    signal: Signal,
    value: u64,
    /// How often it ran out beyond the one, when its signal was last delivered.
    overrun: i32,
}

impl Posix {
    /// Whether anybody is told when it runs out.
    pub fn tells(&self) -> bool {
        self.notify != Notify::Nobody
    }

    /// Sends the signal: timer `id` has run out `times` times.
    pub fn tell<M: Machine>(&self, linux: &Linux<M>, process: &Process<M>, id: i32, times: u64) {
        let overrun = i32::try_from(times.saturating_sub(1)).unwrap_or(i32::MAX);
        let detail = Detail::Timer { id, overrun, value: self.value };
        let info = SigInfo { signal: self.signal, code: code::TIMER, errno: 0, detail };
        match self.notify {
            Notify::Nobody => {}
            Notify::Process => linux.timer_signals_process(process, info),
            Notify::Thread(tid) => {
                let task = process.threads.lock().get(tid).cloned();
                if let Some(task) = task {
                    linux.timer_signals_thread(&task, info);
                }
            }
        }
    }
}

/// `struct sigevent`, as far as the kernel reads it.
#[repr(C)]
#[derive(Clone, Copy)]
struct Event {
    value: u64,
    signal: i32,
    notify: u32,
    thread: i32,
    unused: i32,
}

// SAFETY: words without padding.
unsafe impl Plain for Event {}

/// `struct itimerspec`.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Setting {
    every: Timespec,
    value: Timespec,
}

// SAFETY: four words.
unsafe impl Plain for Setting {}

impl Setting {
    fn new((value, every): (u64, u64)) -> Self {
        Setting { every: Timespec::from_nanos(every), value: Timespec::from_nanos(value) }
    }
}

/// `timer_create`
pub fn sys_timer_create<M: Machine>(ctx: &mut Ctx<'_, M>, clock: i32, event: u64, to: u64) -> Result<usize, Errno> {
    let (by, real) = match (Clock::new(clock)?, clock as u32) {
        (Clock::Real, raw::CLOCK_REALTIME | raw::CLOCK_TAI) => (By::Boot, true),
        (Clock::Monotonic, raw::CLOCK_MONOTONIC | raw::CLOCK_BOOTTIME) => (By::Boot, false),
        (Clock::Process(pid), _) if pid == 0 || pid == ctx.pid() => (By::Cpu, false),
        _ => return Err(Errno::EOPNOTSUPP),
    };
    let event = if event == 0 { None } else { Some(ctx.read::<Event>(event)?) };
    let (notify, signal) = match event {
        None => (Notify::Process, Signal::ALRM),
        Some(Event { notify: raw::SIGEV_NONE, .. }) => (Notify::Nobody, Signal::ALRM),
        Some(event) => {
            let notify = match event.notify {
                // What a library does in a thread, it has another signal for.
                raw::SIGEV_SIGNAL | raw::SIGEV_THREAD => Notify::Process,
                raw::SIGEV_THREAD_ID => {
                    let tid = Pid::try_from(event.thread).map_err(|_| Errno::EINVAL)?;
                    ctx.process().threads.lock().get(tid).ok_or(Errno::EINVAL)?;
                    Notify::Thread(tid)
                }
                _ => return Err(Errno::EINVAL),
            };
            let signal = u64::try_from(event.signal).map_err(|_| Errno::EINVAL)?;
            (notify, Signal::new(signal)?)
        }
    };
    let process = ctx.process();
    process.timers.named.store(true, Ordering::Relaxed);
    let id = process.timers.plain(|state| {
        if state.posix.len() >= MOST {
            return Err(Errno::EAGAIN);
        }
        let id = next_id(state);
        // Where the program gives no value, it gets the id.
        let value = event.map_or(id as u64, |event| event.value);
        let alarm = Alarm::default();
        state.posix.insert(id, Posix { by, alarm, real, notify, signal, value, overrun: 0 });
        state.last_id = id;
        Ok(id)
    })?;
    if let Err(bad) = ctx.write(to, &id) {
        remove(ctx, id)?;
        return Err(bad);
    }
    Ok(0)
}

/// Takes a timer out, and what it has sent and nobody got.
fn remove<M: Machine>(ctx: &Ctx<'_, M>, id: i32) -> Result<(), Errno> {
    let process = ctx.process();
    let gone = process.timers.change(ctx.linux, process, false, |state, _| state.posix.remove(&id));
    forget(process, id, &gone.ok_or(Errno::EINVAL)?);
    Ok(())
}

/// What the timer has sent and nobody got, is not got any more.
fn forget<M: Machine>(process: &Process<M>, id: i32, timer: &Posix) {
    match timer.notify {
        Notify::Nobody => {}
        Notify::Process => process.pending.forget_timer(id),
        Notify::Thread(tid) => {
            let task = process.threads.lock().get(tid).cloned();
            if let Some(thread) = task.as_ref().and_then(|task| task.payload().as_ref()) {
                thread.pending.forget_timer(id);
            }
        }
    }
}

/// `timer_delete`
pub fn sys_timer_delete<M: Machine>(ctx: &mut Ctx<'_, M>, id: i32) -> Result<usize, Errno> {
    remove(ctx, id)?;
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
    let new: Setting = ctx.read(new)?;
    let (value, every) = (new.value.nanos()?, new.every.nanos()?);
    let absolute = flags & raw::TIMER_ABSTIME != 0;
    let process = ctx.process();
    let known = |timer: &Posix| (timer.by, timer.real);
    let (by, real) = process.timers.plain(|state| state.posix.get(&id).map(known)).ok_or(Errno::EINVAL)?;
    // A time that has passed is due now.
    let on_boot = if absolute && real && value != 0 { super::sleep::on_monotonic(ctx, value).max(1) } else { value };
    let set = process.timers.change(ctx.linux, process, by == By::Cpu, |state, now| {
        let timer = state.posix.get_mut(&id)?;
        let now = now.by(by);
        let before = (timer.alarm.left(now), timer.alarm.every);
        timer.alarm = match value {
            0 => Alarm::default(),
            _ if absolute => Alarm { at: on_boot, every },
            value => Alarm::after(now, value, every),
        };
        timer.overrun = 0;
        Some((before, *timer))
    });
    let (before, timer) = set.ok_or(Errno::EINVAL)?;
    forget(process, id, &timer);
    ctx.write_optional(old, &Setting::new(before))?;
    Ok(0)
}

/// `timer_gettime`
pub fn sys_timer_gettime<M: Machine>(ctx: &mut Ctx<'_, M>, id: i32, to: u64) -> Result<usize, Errno> {
    let process = ctx.process();
    let by = process.timers.plain(|state| state.posix.get(&id).map(|timer| timer.by)).ok_or(Errno::EINVAL)?;
    let left = process.timers.look(process, by == By::Cpu, |state, now| {
        let (timer, now) = (state.posix.get_mut(&id)?, now.by(by));
        if !timer.tells() {
            // Nobody else keeps it on its beat.
            timer.alarm.run_out(now);
        }
        Some((timer.alarm.left(now), timer.alarm.every))
    });
    ctx.write(to, &Setting::new(left.ok_or(Errno::EINVAL)?))?;
    Ok(0)
}

/// `timer_getoverrun`
pub fn sys_timer_getoverrun<M: Machine>(ctx: &mut Ctx<'_, M>, id: i32) -> Result<usize, Errno> {
    let process = ctx.process();
    let overrun = process.timers.plain(|state| state.posix.get(&id).map(|timer| timer.overrun));
    Ok(overrun.ok_or(Errno::EINVAL)? as usize)
}

impl<M: Machine> Process<M> {
    /// Another program has no timers of the one before.
    pub(crate) fn exec_drops_timers(&self) {
        if !self.timers.named.load(Ordering::Relaxed) {
            return;
        }
        let timers = self.timers.plain(|state| core::mem::take(&mut state.posix));
        for (id, timer) in &timers {
            forget(self, *id, timer);
        }
    }

    /// A signal was taken off a queue: where it is a timer's, that tells from now on how often it had run out.
    pub(crate) fn note_overrun(&self, taken: &SigInfo) {
        if let Detail::Timer { id, overrun, .. } = taken.detail {
            self.timers.plain(|state| {
                if let Some(timer) = state.posix.get_mut(&id) {
                    timer.overrun = overrun;
                }
            });
        }
    }
}
