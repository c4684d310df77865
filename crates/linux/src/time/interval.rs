//! Interval timers: `setitimer`, `alarm`, and a thread's work when a timer of its process has expired.

use super::{SECOND, Timeval};
use crate::errno::Errno;
use crate::machine::Machine;
use crate::plain::Plain;
use crate::process::posix_timers::Setting;
use crate::process::thread::{Thread, work};
use crate::process::timers::Timers;
use crate::signal::{SigInfo, Signal};
use crate::{Ctx, Linux, Process};
use quire_sync::atomic::{AtomicU32, Ordering};

/// `struct itimerval`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Interval {
    every: Timeval,
    value: Timeval,
}

// SAFETY: four words of eight bytes leave no padding, and every bit pattern is a value.
unsafe impl Plain for Interval {}

impl<M: Machine> Timers<M> {
    /// Called by the target: sends the signal if the timer expired.
    pub(crate) fn expired(&self, linux: &'static Linux<M>, process: &Process<M>) {
        if self.take_fired() {
            let _merged = linux.signal_process(process, SigInfo::kernel(Signal::ALRM));
        }
    }
}

impl<M: Machine> Thread<M> {
    /// Whether the thread should leave an interruptible wait. The thread itself calls it, with no spin lock held. An
    /// expired timer is handled here: only its signal, if this thread gets it, ends the wait.
    #[inline]
    pub fn interrupted(&self) -> bool {
        ends_wait(&self.work, || self.see_to_timers())
    }

    /// Sends the signal of an expired timer of the process. The thread itself calls it, with no spin lock held.
    #[cold]
    pub(crate) fn see_to_timers(&self) {
        self.work.fetch_and(!work::TIMER, Ordering::AcqRel);
        if let Some(timers) = self.process.timers.get() {
            timers.expired(self.linux, &self.process);
        }
        super::posix::send_expired(self.linux, &self.process);
        if let Some(limit) = self.process.cpu_limit.get() {
            limit.see_to(self.linux, &self.process);
        }
    }
}

/// Whether one of the flags in `flags` ends a wait. Before that, timers are handled by `see_to_timers`, which clears
/// their flag. A timer that expires later wakes the thread, which then looks again.
#[inline]
fn ends_wait(flags: &AtomicU32, see_to_timers: impl Fn()) -> bool {
    loop {
        let now = flags.load(Ordering::Acquire);
        if now & work::TIMER == 0 {
            return now & work::INTERRUPTS != 0;
        }
        see_to_timers();
    }
}

impl<M: Machine> Ctx<'_, M> {
    /// Whether a wait should end: with the partial result, else with [`Errno::ERESTARTSYS`] (or a similar one).
    pub fn interrupted(&self) -> bool {
        self.thread.interrupted()
    }
}

/// The interval timers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Which {
    /// Of time.
    Real,
    /// Of CPU time in user mode (0), or of all CPU time (1).
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

/// CPU time of `process` on the clock of an interval timer.
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
            let rest = timers.set_interval(which, used_on(process, which), Setting { value, every });
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
    // As on Linux: rounded to seconds, but not to 0.
    let rounded = (before + SECOND / 2) / SECOND;
    Ok(if before > 0 { rounded.max(1) } else { 0 } as usize)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn a_timer_ends_a_wait_by_a_signal_only() {
        // How often a timer expires again while its signal is sent, and whether this thread gets one.
        for (again, signal) in [(0, 0), (0, work::SIGNAL), (2, 0), (2, work::SIGNAL)] {
            let flags = AtomicU32::new(work::TIMER | work::RSEQ);
            let left = Cell::new(again);
            let ends = ends_wait(&flags, || {
                flags.fetch_and(!work::TIMER, Ordering::AcqRel);
                match left.get() {
                    0 => flags.fetch_or(signal, Ordering::AcqRel),
                    n => {
                        left.set(n - 1);
                        flags.fetch_or(work::TIMER, Ordering::AcqRel)
                    }
                };
            });
            assert_eq!((ends, left.get()), (signal != 0, 0), "{again} times again");
        }
        assert!(ends_wait(&AtomicU32::new(work::KILL), || unreachable!("no timer expired")));
    }
}
