//! The timers of `timer_create`: their state.
//!
//! # Life of an expiry
//! 1. The CPU's wheel calls [`expire`] in interrupt context, where no signal can be sent. It puts the timer on the
//!    process's list of expired timers, and wakes the process's *target*, one of its threads. A target that ends passes
//!    the list on.
//! 2. The target takes the timer off the list, and queues its signal.
//! 3. The thread that takes the signal off its queue counts the expiries since, and arms the timer again. So a blocked
//!    signal costs no interrupt, and a timer has at most one signal in a queue.
//!
//! Arming, cancelling and expiring of a timer on a clock of time take O(1) steps. Timers on CPU time lie in a tree of
//! their process. They are checked when the process's CPU time is counted
//! ([`cpu_limit`](crate::process::timers::cpu_limit)).
//!
//! # Locks
//! A timer's `state` comes first, then the list or the tree. A timer expires by leaving the list or the tree, under
//! both locks. So a timer that was set anew meanwhile does not expire for its old setting.
//!
//! # Rooms
//! - `course`: the setting and the count of expiries, without locks.
//! - `timer`: one timer's ways onto a wheel, the list or the tree, and off them.
//! - `signals`: from the expiry to the queue, and off the queue again.
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

/// The most timers of a process: ids are positive.
const MOST: usize = i32::MAX as usize;

/// The clock of a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TimerClock {
    /// Time of day.
    Real,
    /// Time since boot.
    Monotonic,
    /// CPU time of the process.
    Process,
    /// CPU time of this thread.
    Thread(Pid),
}

/// The notification of a timer's expiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notify {
    /// None: the timer is only read.
    Nothing,
    /// A signal to the process.
    Process(Signal),
    /// A signal to this thread.
    Thread(Signal, Pid),
}

/// The timers of a process. Made at the first use, and in place as long as the process.
pub struct PosixTimers<M: Machine> {
    linux: &'static Linux<M>,
    slots: Slots<PosixTimer<M>>,
    expired: IrqLock<Expired<M>>,
    /// Timers that are armed on CPU time.
    on_cpu_time: SpinLock<CpuTree<M>>,
    /// Changed with each timer that joins the tree, and with each setting of an interval timer on CPU time.
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

    /// Makes a timer that is off. `report` gives its id to the program, and the timer is made only if that succeeds.
    /// Until then no other thread finds the timer under this id.
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
        // All threads of the process fill the table. Each shares it before its first reservation, so the table is still
        // empty when the first of them does.
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

    /// The rest of timer `id`.
    pub fn get(&self, process: &Process<M>, id: i32) -> Result<TimerSetting, Errno> {
        let timer = self.find(id).ok_or(Errno::EINVAL)?;
        let Ok(cpu_time) = timer.cpu_time(process) else { return Ok(TimerSetting::default()) };
        let mut state = timer.state.lock();
        let now = timer.now(&state, cpu_time);
        Ok(state.course.rest(now, timer.is_silent()))
    }

    /// Sets timer `id`; `absolute`: `new.value` is a time of its clock. Returns the rest of the old setting. `me`
    /// becomes the target if there is none.
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

    /// How often timer `id` had expired again when its last signal was taken.
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

    /// Deletes all timers. Their signals stay in the queues, which the caller empties or leaves for good.
    pub fn delete_all(&self) {
        self.slots.remove_range(0, usize::MAX, false, self.linux.vm.epoch(), |timer| {
            let _queued = Self::end(&timer);
        });
    }

    /// Ends a timer that was taken out of its slot. Returns the setting whose signal is in a queue.
    fn end(timer: &PosixTimer<M>) -> Option<u32> {
        let mut state = timer.state.lock();
        timer.disarm(&mut state);
        // A thread that has found it meanwhile does not arm it again.
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

    /// Makes `me`, the calling thread, the target if there is none.
    fn take_target(&self, me: &Task<M>) {
        let mut expired = self.expired.lock(self.linux.machine);
        if expired.target.is_none() {
            if let Some(thread) = me.payload() {
                thread.timed.store(true, Ordering::Relaxed);
            }
            expired.target = Some(me.to_ref());
        }
    }

    /// `thread` ends: another thread becomes the target, and timers on the ending one's CPU time end.
    pub fn thread_ends(&self, process: &Process<M>, thread: &Thread<M>) {
        self.leave_clock(thread.tid());
        let threads = process.threads.lock();
        let stays = |t: &&ThreadRef<M>| t.payload().as_ref().is_some_and(|t| !t.leaving.load(Ordering::Relaxed));
        let heir = threads.iter().find(stays).cloned();
        let old = {
            // A new target that begins to end from now on runs this function later.
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

    /// The process ends: all timers are deleted, and it has no target.
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

    /// The time of day was set: absolute timers on it expire at other moments.
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
    /// Its POSIX timers, made if there are none, and the state that counts its CPU time for them. ENOMEM if there is no
    /// memory.
    pub fn posix_timers(&self) -> Result<&PosixTimers<M>, Errno> {
        self.cpu_limit.get_or_make(CpuLimit::new)?;
        Ok(self.posix_timers.get_or_make(|| PosixTimers::new(self.linux))?)
    }

    /// CPU time of all its threads.
    pub(crate) fn cpu_time(&self) -> u64 {
        let usage = self.usage();
        usage.user + usage.system
    }

    /// CPU time of its thread `tid`.
    pub(crate) fn cpu_time_of(&self, tid: Pid) -> Option<u64> {
        let threads = self.threads.lock();
        let times = self.linux.scheduler.times(threads.get(tid)?);
        Some(times.user_ns + times.system_ns)
    }

    /// Makes `me`, the calling thread, count its CPU time before it goes to user mode.
    pub fn count_soon(&self, me: &Task<M>) {
        if let Some(limit) = self.cpu_limit.get() {
            limit.count_soon(me);
        }
    }

    /// A signal was taken off a queue of the process. `None` if it is of a timer that was set anew or deleted since.
    #[inline]
    pub fn signal_taken(&self, info: SigInfo) -> Option<SigInfo> {
        match info.detail {
            Detail::Timer { .. } => self.posix_timers.get()?.taken(self, info),
            _ => Some(info),
        }
    }
}
