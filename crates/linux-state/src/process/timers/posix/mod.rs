//! The timers of `timer_create`: their state.
//!
//! # Life of an expiry
//! 1. The CPU's timer wheel calls [`expire`] in interrupt context, where no signal can be sent. `expire` adds the timer
//!    to the process's list of expired timers. It then wakes the process's *target*, one of its threads. A target that
//!    ends passes its role to another thread.
//! 2. The target removes the timer from the list, and queues its signal.
//! 3. The thread that receives the signal counts the expiries since the signal was queued, and arms the timer again. So
//!    a timer whose signal is blocked causes no interrupts, and has at most one signal in a queue.
//!
//! A timer on real time is armed, cancelled and expired in O(1) steps. Timers on CPU time are in a tree of their
//! process. The process checks them when it sums up its CPU time ([`cpu_limit`](crate::process::timers::cpu_limit)).
//!
//! # Locks
//! A timer's `state` is locked first, then the list or the tree. An expiry removes the timer from the list or the tree
//! with both locks held. So a timer that another thread sets again during an expiry does not expire for its old
//! setting.
//!
//! # Modules
//! - `course`: the setting and the count of expiries, without locks.
//! - `timer`: how one timer is added to a wheel, the list or the tree, and removed again.
//! - `signals`: how a signal is queued after an expiry, and how its receipt arms the timer again.
//! - `cpu_time`: the tree, and the interval timers on CPU time.

mod course;
mod cpu_time;
mod signals;
mod timer;

pub use signals::{send_expired, send_signal};
pub use timer::PosixTimer;

use crate::errno::Errno;
use crate::machine::Machine;
use crate::process::Process;
use crate::process::thread::Thread;
use crate::process::timers::cpu_limit::CpuLimit;
use crate::process::users::Charge;
use crate::signal::{Detail, SigInfo, Signal};
use crate::time::TimerSetting;
use crate::{Linux, Pid};
use core::ptr::{self, NonNull};
use course::{Course, Status};
use cpu_time::CpuInterval;
use quire_heap::{Arc, Map, SpareEntry};
use quire_lookup::Slots;
use quire_lookup::slots::NoNumber;
use quire_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use quire_sync::{Rank, SpinLock};
use quire_task::list::{Links, List};
use quire_task::{IrqLock, Thread as Task, ThreadRef, Timer};
use timer::{CpuTree, Expired, State, expire};

/// The most timers of a process. Timer ids are not negative and have 32 bits.
const MOST: usize = i32::MAX as usize;

/// The clock of a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerClock {
    /// The time of day.
    Real,
    /// The time since boot.
    Monotonic,
    /// The CPU time of the process.
    Process,
    /// The CPU time of this thread.
    Thread(Pid),
}

/// The notification of a timer's expiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notify {
    /// No notification: the program only reads the timer.
    Nothing,
    /// A signal to the process, for any of its threads.
    Process(Signal),
    /// A signal to this thread.
    Thread(Signal, Pid),
}

/// The timers of a process. Allocated at the first use; freed with the process.
pub struct PosixTimers<M: Machine> {
    linux: &'static Linux<M>,
    slots: Slots<PosixTimer<M>>,
    expired: IrqLock<Expired<M>>,
    /// The timers that are armed on CPU time.
    on_cpu_time: SpinLock<CpuTree<M>>,
    /// A thread increments this number when it adds a timer to the tree, and when it sets an interval timer on CPU
    /// time.
    pub(crate) cpu_changes: AtomicU32,
    /// The interval timers on CPU time: ITIMER_VIRTUAL and ITIMER_PROF.
    intervals: SpinLock<[CpuInterval; 2]>,
    settings: AtomicU32,
}

impl<M: Machine> PosixTimers<M> {
    fn new(linux: &'static Linux<M>) -> Self {
        PosixTimers {
            linux,
            slots: Slots::new(Rank::OWNED),
            expired: IrqLock::new(Rank::EXPIRED, Expired { list: List::new(), target: None }),
            on_cpu_time: SpinLock::new(Rank::CPU_TIMERS, Map::new()),
            cpu_changes: AtomicU32::new(0),
            intervals: SpinLock::new(Rank::OWNED, [CpuInterval::default(); 2]),
            settings: AtomicU32::new(0),
        }
    }

    /// The kernel memory of the timers, in bytes.
    pub fn held(&self) -> u64 {
        let timers = (0..self.slots.size()).filter(|n| self.slots.marked(*n).is_some()).count();
        (timers * size_of::<PosixTimer<M>>()) as u64
    }

    /// Creates a timer that is off. `report` stores the new id in the program's memory. If `report` fails, no timer is
    /// created. No other thread can find the timer under this id before `report` returns.
    pub fn create(
        &self,
        clock: TimerClock,
        notify: Notify,
        value: Option<u64>,
        charge: Charge,
        report: impl FnOnce(i32) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let on_cpu_time = matches!(clock, TimerClock::Process | TimerClock::Thread(_));
        let entry = if on_cpu_time { Some(SpareEntry::try_new()?) } else { None };
        // All threads of the process use the table, so it must be marked as shared while it is empty. Each call marks
        // it before its reservation, so the first mark precedes the first entry.
        self.slots.share()?;
        let epoch = self.linux.vm.epoch();
        let id = self.slots.reserve(false, 0, MOST, epoch).map_err(|why| match why {
            NoNumber::Memory => Errno::ENOMEM,
            NoNumber::Limit | NoNumber::Reserved => Errno::EAGAIN,
        })?;
        let timer = PosixTimer {
            timer: Timer::new(expire::<M>),
            place: Links::new(),
            listed: AtomicBool::new(false),
            all: NonNull::from(self),
            id: id as i32,
            clock,
            notify,
            value: value.unwrap_or(id as u64),
            state: SpinLock::new(Rank::POSIX_TIMER, State::new(entry)),
            _charge: charge,
        };
        let reported = Arc::try_new(timer).map_err(Errno::from).and_then(|timer| report(id as i32).map(|()| timer));
        match reported {
            Ok(timer) => self.slots.fill_reserved(id, timer),
            Err(why) => {
                self.slots.give_back(id);
                return Err(why);
            }
        }
        Ok(())
    }

    fn find(&self, id: i32) -> Option<Arc<PosixTimer<M>>> {
        self.slots.peek(usize::try_from(id).ok()?)
    }

    /// The remaining time of timer `id`. EINVAL if there is no such timer.
    pub fn get(&self, process: &Process<M>, id: i32) -> Result<TimerSetting, Errno> {
        let timer = self.find(id).ok_or(Errno::EINVAL)?;
        let Ok(cpu_time) = timer.cpu_time(process) else { return Ok(TimerSetting::default()) };
        let mut state = timer.state.lock();
        let now = timer.now(&state, cpu_time);
        Ok(state.course.rest(now, timer.is_silent()))
    }

    /// Sets timer `id`, and returns the remaining time of the old setting. `absolute`: `new.value` is a time on the
    /// timer's clock. If the process has no target, `me`, the calling thread, becomes the target.
    pub fn set(
        &self,
        process: &Process<M>,
        me: &Task<M>,
        id: i32,
        absolute: bool,
        new: TimerSetting,
    ) -> Result<TimerSetting, Errno> {
        let timer = self.find(id).ok_or(Errno::EINVAL)?;
        let cpu_time = timer.cpu_time(process)?;
        self.take_target(me);
        let mut state = timer.state.lock();
        if state.deleted {
            return Err(Errno::EINVAL);
        }
        let now = timer.now(&state, cpu_time);
        let old = state.course.rest(now, timer.is_silent());
        timer.disarm(&mut state);
        let queued = state.course.queued();
        state.course = Course { setting: self.next_setting(), ..Course::new() };
        state.of_day = absolute && timer.clock == TimerClock::Real;
        if new.value != 0 {
            let from = if absolute { 0 } else { timer.now(&state, cpu_time) };
            state.course.every = new.every;
            state.course.expires = from.saturating_add(new.value);
            if !timer.is_silent() {
                state.course.status = Status::Armed;
                PosixTimer::arm(&timer, &mut state);
            }
        }
        drop(state);
        if let Some(setting) = queued {
            timer.unqueue(process, setting);
        }
        if timer.is_on_cpu_time() {
            process.count_soon(me);
        }
        Ok(old)
    }

    /// The overrun of timer `id`: how many further expiries its last received signal stands for.
    pub fn overrun(&self, id: i32) -> Result<i32, Errno> {
        let timer = self.find(id).ok_or(Errno::EINVAL)?;
        let overrun = timer.state.lock().course.reported;
        Ok(overrun)
    }

    /// Deletes timer `id`.
    pub fn delete(&self, process: &Process<M>, id: i32) -> Result<(), Errno> {
        let id = usize::try_from(id).map_err(|_| Errno::EINVAL)?;
        let timer = self.slots.remove(id, self.linux.vm.epoch()).ok_or(Errno::EINVAL)?;
        if let Some(setting) = Self::end(&timer) {
            timer.unqueue(process, setting);
        }
        Ok(())
    }

    /// Deletes all timers. Their signals stay in the queues; the caller empties the queues or does not read them again.
    pub fn delete_all(&self) {
        self.slots.remove_range(0, usize::MAX, false, self.linux.vm.epoch(), |timer| {
            let _queued = Self::end(&timer);
        });
    }

    /// Ends a timer that was removed from its slot. Returns the number of the setting whose signal is in a queue.
    fn end(timer: &PosixTimer<M>) -> Option<u32> {
        let mut state = timer.state.lock();
        timer.disarm(&mut state);
        // Another thread may have found the timer before its removal. The flag keeps that thread from arming it again.
        state.deleted = true;
        let queued = state.course.queued();
        state.course = Course { setting: timer.all().next_setting(), ..Course::new() };
        let entry = state.entry.take();
        drop(state);
        drop(entry);
        queued
    }

    fn next_setting(&self) -> u32 {
        self.settings.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes `me`, the calling thread, the target if the process has none.
    fn take_target(&self, me: &Task<M>) {
        let mut expired = self.expired.lock(self.linux.machine);
        if expired.target.is_none() {
            if let Some(thread) = me.payload() {
                thread.timed.store(true, Ordering::Relaxed);
            }
            expired.target = Some(me.to_ref());
        }
    }

    /// Called when `thread` ends. Another thread becomes the target, and the timers on the CPU time of `thread` end.
    pub fn thread_ends(&self, process: &Process<M>, thread: &Thread<M>) {
        self.leave_clock(thread.tid());
        let threads = process.threads.lock();
        let stays = |t: &&ThreadRef<M>| t.payload().as_ref().is_some_and(|t| !t.leaving.load(Ordering::Relaxed));
        let heir = threads.iter().find(stays).cloned();
        let old = {
            // If the new target begins to end after this point, it runs this function itself.
            let mut expired = self.expired.lock(self.linux.machine);
            drop(threads);
            let mine =
                expired.target.as_ref().is_some_and(|t| t.payload().as_ref().is_some_and(|t| ptr::eq(t, thread)));
            if !mine {
                drop(expired);
                drop(heir);
                return;
            }
            if let Some(heir) = heir.as_ref().and_then(|heir| heir.payload().as_ref()) {
                heir.timed.store(true, Ordering::Relaxed);
            }
            let old = core::mem::replace(&mut expired.target, heir);
            expired.notify(self.linux);
            old
        };
        drop(old);
    }

    /// Called when the process ends: deletes all timers, and the process then has no target.
    pub fn process_ends(&self) {
        self.delete_all();
        *self.intervals.lock() = [CpuInterval::default(); 2];
        let target = self.expired.lock(self.linux.machine).target.take();
        drop(target);
    }

    fn each(&self, mut f: impl FnMut(&Arc<PosixTimer<M>>)) {
        for id in 0..self.slots.size() {
            if let Some(timer) = self.slots.peek(id) {
                f(&timer);
            }
        }
    }

    /// Called when the time of day was set. Absolute timers on that clock are armed again, because their deadlines
    /// moved.
    #[cold]
    pub fn day_changed(&self) {
        self.each(|timer| {
            let mut state = timer.state.lock();
            if state.of_day && state.course.status == Status::Armed {
                timer.disarm(&mut state);
                PosixTimer::arm(timer, &mut state);
            }
        });
    }
}

impl<M: Machine> Process<M> {
    /// The POSIX timers of the process, and the state that checks CPU time for them. Both are allocated at the first
    /// call. ENOMEM if there is no memory.
    pub fn posix_timers(&self) -> Result<&PosixTimers<M>, Errno> {
        self.cpu_limit.get_or_make(CpuLimit::new)?;
        Ok(self.posix_timers.get_or_make(|| PosixTimers::new(self.linux))?)
    }

    /// The CPU time of all the process's threads, in nanoseconds.
    pub(crate) fn cpu_time(&self) -> u64 {
        let usage = self.usage();
        usage.user + usage.system
    }

    /// The CPU time of the process's thread `tid`, in nanoseconds. `None` if the thread has ended.
    pub(crate) fn cpu_time_of(&self, tid: Pid) -> Option<u64> {
        let threads = self.threads.lock();
        let times = self.linux.scheduler.times(threads.get(tid)?);
        Some(times.user_ns + times.system_ns)
    }

    /// Makes `me`, the calling thread, sum up the CPU time before it returns to user mode.
    pub fn count_soon(&self, me: &Task<M>) {
        if let Some(limit) = self.cpu_limit.get() {
            limit.count_soon(me);
        }
    }

    /// Called when a signal was removed from a queue of the process. `None` if the signal belongs to a timer that was
    /// set again or deleted since the expiry.
    #[inline]
    pub fn signal_taken(&self, info: SigInfo) -> Option<SigInfo> {
        match info.detail {
            Detail::Timer { .. } => self.posix_timers.get()?.taken(self, info),
            _ => Some(info),
        }
    }
}
