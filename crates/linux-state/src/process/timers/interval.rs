//! A timer of a process on real time.
//!
//! The timer expires in interrupt context, where no signal can be sent. The expiry sets a flag of one thread of the
//! process, the *target*, and wakes it. That thread sends the signal on its way to user mode. A target that ends passes
//! the timer to another thread.
//!
//! Most processes set no timer. The timer's memory is allocated when the timer is first set, and is freed with the
//! process.

use crate::machine::Machine;
use crate::process::Process;
use crate::process::thread::{Thread, work};
use crate::signal::{SigInfo, Signal};
use crate::{Errno, Linux};
use core::mem::offset_of;
use core::ptr::{self, NonNull};
use quire_heap::Arc;
use quire_sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use quire_sync::{Rank, SpinLock};
use quire_task::{Thread as Task, ThreadRef, Timer};

/// A timer of a process. It does not move while it is armed, because it lies in its own allocation ([`FirstUse`]).
///
/// [`FirstUse`]: crate::process::first_use::FirstUse
pub struct Timers<M: Machine> {
    timer: Timer,
    /// Nanoseconds between expiries; 0: the timer expires once. The expiry reads this field.
    pub every: AtomicU64,
    /// The timer has expired since the target's last check.
    fired: AtomicBool,
    /// The target's task. `target` holds a reference to the task while the timer is armed. The expiry reads this
    /// pointer.
    task: AtomicPtr<Task<M>>,
    /// The thread that sends the signal. The lock guards arming and cancelling.
    target: SpinLock<Option<ThreadRef<M>>>,
}

/// The timer's callback, which runs in interrupt context. Returns the time of the next expiry, if there is one.
///
/// # Safety
/// `timer` is the field of a [`Timers`] that is alive and in place.
unsafe fn expire<M: Machine>(timer: NonNull<Timer>, now: u64) -> Option<u64> {
    // SAFETY: by this function's contract `timer` lies in a live `Timers`. The reference is shared.
    let timers = unsafe { timer.byte_sub(offset_of!(Timers<M>, timer)).cast::<Timers<M>>().as_ref() };
    timers.fired.store(true, Ordering::Release);
    let task = timers.task.load(Ordering::Acquire);
    // SAFETY: `target` holds a reference while the timer is armed, and a cancel waits for this callback.
    if let Some(task) = unsafe { task.as_ref() }
        && let Some(thread) = task.payload()
    {
        thread.work.fetch_or(work::TIMER, Ordering::AcqRel);
        thread.linux.poke(task);
    }
    match timers.every.load(Ordering::Relaxed) {
        0 => None,
        every => {
            // The next expiry is a whole number of periods after the last deadline. Missed expiries are not made up.
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
    /// A timer that is not armed.
    pub fn new() -> Self {
        Timers {
            timer: Timer::new(expire::<M>),
            every: AtomicU64::new(0),
            fired: AtomicBool::new(false),
            task: AtomicPtr::new(ptr::null_mut()),
            target: SpinLock::new(Rank::OWNED, None),
        }
    }

    /// Nanoseconds until the timer expires; 0 if it is off.
    pub fn remaining(&self, now: u64) -> u64 {
        if self.timer.is_armed() { self.timer.deadline().saturating_sub(now).max(1) } else { 0 }
    }

    /// Sets the timer: first after `value` nanoseconds (0: off), then every `every`. Returns the old setting as (value,
    /// every).
    pub fn set(&self, linux: &Linux<M>, target: ThreadRef<M>, value: u64, every: u64) -> (u64, u64) {
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
            // SAFETY: the timer's memory belongs to a process, whose end cancels the timer first (`end`).
            unsafe { linux.scheduler.arm(&self.timer, now.saturating_add(value)) };
            old
        };
        drop(guard);
        drop(old);
        before
    }

    /// Whether the timer expired since the last call.
    pub fn take_fired(&self) -> bool {
        self.fired.load(Ordering::Relaxed) && self.fired.swap(false, Ordering::AcqRel)
    }

    /// Acts as if the timer expired.
    pub(crate) fn fire(&self) {
        self.fired.store(true, Ordering::Release);
    }

    /// Called when `thread` ends: another thread of the process becomes the target.
    pub fn thread_ends(&self, linux: &'static Linux<M>, process: &Arc<Process<M>>, thread: &Thread<M>) {
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
            // If the new target begins to end after this point, it runs this function itself and passes the timer on.
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
                    // SAFETY: the timer's memory belongs to a process, whose end cancels the timer first (`end`).
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

    /// Called when the process ends: cancels the timer.
    pub fn end(&self, linux: &'static Linux<M>) {
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

impl<M: Machine> Process<M> {
    /// Sets the interval timer: first after `value` nanoseconds (0: off), then every `every`. Returns the old setting
    /// as (value, every). ENOMEM if there is no memory for the first setting.
    pub fn set_timer(&self, target: ThreadRef<M>, value: u64, every: u64) -> Result<(u64, u64), Errno> {
        if value == 0 && self.timers.get().is_none() {
            return Ok((0, 0));
        }
        Ok(self.timers.get_or_make(Timers::new)?.set(self.linux, target, value, every))
    }
}

impl<M: Machine> Timers<M> {
    /// Sends SIGALRM if the timer has expired. Called by the target.
    pub fn expired(&self, linux: &'static Linux<M>, process: &Process<M>) {
        if self.take_fired() {
            let _merged = linux.signal_process(process, SigInfo::kernel(Signal::ALRM));
        }
    }
}

impl<M: Machine> Thread<M> {
    /// Whether the thread should leave an interruptible wait. Called by the thread itself, with no spin lock held. If a
    /// timer has expired, its signal is sent first. The expiry itself does not end the wait. The signal ends it, if
    /// this thread receives the signal.
    #[inline]
    pub fn interrupted(&self) -> bool {
        ends_wait(&self.work, || self.see_to_timers())
    }

    /// Sends the signals of expired timers of the process. Called by the thread itself, with no spin lock held.
    #[cold]
    pub fn see_to_timers(&self) {
        self.work.fetch_and(!work::TIMER, Ordering::AcqRel);
        if let Some(timers) = self.process.timers.get() {
            timers.expired(self.linux, &self.process);
        }
        crate::process::timers::posix::send_expired(self.linux, &self.process);
        if let Some(limit) = self.process.cpu_limit.get() {
            limit.see_to(self.linux, &self.process);
        }
    }
}

/// Whether one of `flags` ends a wait. If the flag of expired timers is set, this function first calls `see_to_timers`,
/// which clears the flag. A timer that expires after the check wakes the thread, which then checks again.
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use core::cell::Cell;

    #[test]
    fn a_timer_ends_a_wait_by_a_signal_only() {
        // Each case has the number of further expiries while the signal is sent (`again`), and the signal flag that
        // this thread then gets (`signal`).
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
