//! Interval timers: `setitimer`, `alarm`.
//!
//! A timer runs out in interrupt context, where no signal can be sent: it raises a flag of one thread of its process, its
//! *target*, and wakes it; that thread sends the signal on its way to user mode. A target that ends passes the timer on.

use super::{SECOND, Timeval};
use crate::errno::Errno;
use crate::machine::Machine;
use crate::plain::Plain;
use crate::process::thread::{Thread, work};
use crate::signal::{SigInfo, Signal};
use crate::{Ctx, Linux, Process};
use core::mem::offset_of;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use quire_heap::Arc;
use quire_sync::{Rank, SpinLock};
use quire_task::{Thread as Task, ThreadRef, Timer};

/// `struct itimerval`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Interval {
    every: Timeval,
    value: Timeval,
}

// SAFETY: four words of eight bytes leave no padding, and every bit pattern is a value.
unsafe impl Plain for Interval {}

/// A timer of a process. In place while armed: processes do not move.
pub struct Timers<M: Machine> {
    timer: Timer,
    /// Nanoseconds between expiries; 0: once. Read by the expiry.
    every: AtomicU64,
    /// It ran out since the target last looked.
    fired: AtomicBool,
    /// The target's task, counted by `target` while the timer is armed. Read by the expiry.
    task: AtomicPtr<Task<M>>,
    /// Guards arming and cancelling.
    target: SpinLock<Option<ThreadRef<M>>>,
}

/// Runs in interrupt context.
///
/// # Safety
/// `timer` is the field of a [`Timers`] that is alive and in place.
unsafe fn expire<M: Machine>(timer: NonNull<Timer>, now: u64) -> Option<u64> {
    // SAFETY: by this function's contract; shared access only.
    let timers = unsafe { timer.byte_sub(offset_of!(Timers<M>, timer)).cast::<Timers<M>>().as_ref() };
    timers.fired.store(true, Ordering::Release);
    let task = timers.task.load(Ordering::Acquire);
    // SAFETY: counted by `target` while armed, and a cancel waits for this callback.
    if let Some(task) = unsafe { task.as_ref() }
        && let Some(thread) = task.payload()
    {
        thread.work.fetch_or(work::TIMER, Ordering::AcqRel);
        thread.linux.poke(task);
    }
    match timers.every.load(Ordering::Relaxed) {
        0 => None,
        every => {
            // On the old beat; what was missed is not made up for.
            let late = now.saturating_sub(timers.timer.deadline());
            Some(timers.timer.deadline().saturating_add((late / every + 1).saturating_mul(every)))
        }
    }
}

impl<M: Machine> Default for Timers<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Machine> Timers<M> {
    /// Not armed.
    pub fn new() -> Self {
        Timers {
            timer: Timer::new(expire::<M>),
            every: AtomicU64::new(0),
            fired: AtomicBool::new(false),
            task: AtomicPtr::new(ptr::null_mut()),
            target: SpinLock::new(Rank::OWNED, None),
        }
    }

    fn remaining(&self, now: u64) -> u64 {
        if self.timer.is_armed() { self.timer.deadline().saturating_sub(now).max(1) } else { 0 }
    }

    /// Sets the timer: first after `value` nanoseconds (0: off), then every `every`. Returns what was set before, as
    /// (value, every).
    pub(super) fn set(&self, linux: &Linux<M>, target: ThreadRef<M>, value: u64, every: u64) -> (u64, u64) {
        let now = quire_sync::hooks::now();
        let mut guard = self.target.lock();
        let before = (self.remaining(now), self.every.load(Ordering::Relaxed));
        linux.scheduler.cancel(&self.timer);
        let old = if value == 0 {
            self.every.store(0, Ordering::Relaxed);
            self.task.store(ptr::null_mut(), Ordering::Release);
            guard.take()
        } else {
            self.every.store(every, Ordering::Relaxed);
            if let Some(thread) = target.payload() {
                thread.timed.store(true, Ordering::Relaxed);
            }
            self.task.store(ptr::from_ref::<Task<M>>(&target).cast_mut(), Ordering::Release);
            let old = guard.replace(target);
            // SAFETY: the timer is part of a process, which neither moves nor ends before `end` has cancelled it.
            unsafe { linux.scheduler.arm(&self.timer, now.saturating_add(value)) };
            old
        };
        drop(guard);
        drop(old);
        before
    }

    /// Whether the timer ran out since this was asked last.
    pub(super) fn take_fired(&self) -> bool {
        self.fired.load(Ordering::Relaxed) && self.fired.swap(false, Ordering::AcqRel)
    }

    /// As if the timer ran out.
    pub(super) fn fire(&self) {
        self.fired.store(true, Ordering::Release);
    }

    /// The target looks: sends the signal where the timer ran out.
    pub(crate) fn expired(&self, linux: &'static Linux<M>, process: &Process<M>) {
        if self.take_fired() {
            let _merged = linux.signal_process(process, SigInfo::kernel(Signal::ALRM));
        }
    }

    /// `thread` ends: another thread of the process becomes the target.
    pub(crate) fn thread_ends(&self, linux: &'static Linux<M>, process: &Arc<Process<M>>, thread: &Thread<M>) {
        if !thread.timed.load(Ordering::Relaxed) || self.task.load(Ordering::Acquire).is_null() {
            return;
        }
        let threads = process.threads.lock();
        let stays = |t: &&ThreadRef<M>| t.payload().as_ref().is_some_and(|t| !t.leaving.load(Ordering::Relaxed));
        let heir = threads.iter().find(stays).cloned();
        if let Some(heir) = heir.as_ref().and_then(|heir| heir.payload().as_ref()) {
            heir.timed.store(true, Ordering::Relaxed);
        }
        let old = {
            // An heir that begins to leave from now on comes here after this, and passes the timer on.
            let mut guard = self.target.lock();
            drop(threads);
            let mine = guard.as_ref().is_some_and(|t| t.payload().as_ref().is_some_and(|t| ptr::eq(t, thread)));
            if !mine {
                return;
            }
            let armed = self.timer.is_armed();
            let deadline = self.timer.deadline();
            let still = linux.scheduler.cancel(&self.timer);
            let heir_task = heir.as_ref().map_or(ptr::null_mut(), |t| ptr::from_ref::<Task<M>>(t).cast_mut());
            self.task.store(heir_task, Ordering::Release);
            if let Some(heir) = &heir {
                if armed && still {
                    // SAFETY: the timer is part of a process, which neither moves nor ends before `end` has cancelled it.
                    unsafe { linux.scheduler.arm(&self.timer, deadline) };
                }
                if let Some(thread) = heir.payload() {
                    thread.work.fetch_or(work::TIMER, Ordering::AcqRel);
                    linux.poke(heir);
                }
            }
            core::mem::replace(&mut *guard, heir)
        };
        drop(old);
    }

    /// The process ends.
    pub(crate) fn end(&self, linux: &'static Linux<M>) {
        if self.task.load(Ordering::Acquire).is_null() {
            return;
        }
        let old = {
            let mut guard = self.target.lock();
            linux.scheduler.cancel(&self.timer);
            self.task.store(ptr::null_mut(), Ordering::Release);
            guard.take()
        };
        drop(old);
    }
}

/// Only the timer of real time; the ones of CPU time are not there.
fn check(which: i32) -> Result<(), Errno> {
    if which == 0 { Ok(()) } else { Err(Errno::EINVAL) }
}

/// `getitimer`
pub fn sys_getitimer<M: Machine>(ctx: &mut Ctx<'_, M>, which: i32, to: u64) -> Result<usize, Errno> {
    check(which)?;
    let timers = &ctx.process().timers;
    let value = timers.remaining(ctx.now());
    let every = timers.every.load(Ordering::Relaxed);
    ctx.write(to, &Interval { every: Timeval::from_nanos(every), value: Timeval::from_nanos(value) })?;
    Ok(0)
}

/// `setitimer`
pub fn sys_setitimer<M: Machine>(ctx: &mut Ctx<'_, M>, which: i32, new: u64, old: u64) -> Result<usize, Errno> {
    check(which)?;
    let new: Interval = if new == 0 { Interval::default() } else { ctx.read(new)? };
    let (value, every) = (new.value.nanos()?, new.every.nanos()?);
    let me = ctx.linux.scheduler.current().to_ref();
    let before = ctx.process().timers.set(ctx.linux, me, value, every);
    let before = Interval { every: Timeval::from_nanos(before.1), value: Timeval::from_nanos(before.0) };
    ctx.write_optional(old, &before)?;
    Ok(0)
}

/// `alarm`
pub fn sys_alarm<M: Machine>(ctx: &mut Ctx<'_, M>, seconds: u32) -> Result<usize, Errno> {
    let me = ctx.linux.scheduler.current().to_ref();
    let (before, _) = ctx.process().timers.set(ctx.linux, me, u64::from(seconds) * SECOND, 0);
    // As Linux: rounded to seconds, but not to nothing.
    let rounded = (before + SECOND / 2) / SECOND;
    Ok(if before > 0 { rounded.max(1) } else { 0 } as usize)
}
