//! The timers of `timer_create`: their state. [`posix`](crate::time::posix) has the calls.
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
//! their process. They are checked when the process's CPU time is counted ([`cpu_limit`](crate::time::cpu_limit)).
//!
//! # Locks
//! A timer's `state` comes first, then the list or the tree. A timer expires by leaving the list or the tree, under
//! both locks. So a timer that was set anew meanwhile does not expire for its old setting.

use super::Process;
use super::cpu_limit::CpuLimit;
use super::thread::{Thread, work};
use crate::errno::Errno;
use crate::machine::Machine;
use crate::process::users::Charge;
use crate::signal::info::code;
use crate::signal::{Detail, SigInfo, SigSet, Signal};
use crate::time::on_monotonic;
use crate::{Linux, Pid};
use core::mem::offset_of;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use quire_heap::{Arc, Map, SpareEntry};
use quire_lookup::Slots;
use quire_lookup::slots::NoNumber;
use quire_sync::{Rank, SpinLock};
use quire_task::list::{Adapter, Links, List};
use quire_task::{IrqLock, Thread as Task, ThreadRef, Timer};

/// The most timers of a process: ids are positive.
const MOST: usize = i32::MAX as usize;
/// When a signal that found no memory is sent again, in nanoseconds.
const RETRY: u64 = 10_000_000;
/// The shortest time between two checks of a timer whose signal is ignored, in nanoseconds.
const IGNORED: u64 = 4_000_000;

/// The clock of a timer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TimerClock {
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
pub(crate) enum Notify {
    /// None: the timer is only read.
    Nothing,
    /// A signal to the process.
    Process(Signal),
    /// A signal to this thread.
    Thread(Signal, Pid),
}

/// A timer's setting, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Setting {
    /// Until the first expiry; 0: off.
    pub value: u64,
    /// Between expiries; 0: once.
    pub every: u64,
}

/// Where a timer is in the life of its expiry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Status {
    /// It is off, has expired for good, or notifies of nothing.
    Off,
    /// It is on a wheel, on the list of expired timers, or in the tree.
    Armed,
    /// Its signal is in a queue.
    Queued,
}

/// The key of a timer in the tree: its thread (0: the process), its expiry, its id.
type CpuKey = (Pid, u64, i32);
type CpuTree<M> = Map<CpuKey, Arc<PosixTimer<M>>>;

/// Counts of expiries and the setting; a value without locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Course {
    status: Status,
    /// The next expiry, on the timer's clock.
    expires: u64,
    every: u64,
    /// Expiries since the last signal was taken. The first of them is the signal itself, so the count begins at -1.
    overrun: i64,
    /// The overrun of the last signal.
    reported: i32,
    /// Differs after each setting, so that a signal of an older one is recognised.
    setting: u32,
}

impl Course {
    const fn new() -> Self {
        Course { status: Status::Off, expires: 0, every: 0, overrun: -1, reported: 0, setting: 0 }
    }

    /// The setting, if its signal is in a queue or on the way there.
    fn queued(&self) -> Option<u32> {
        (self.status == Status::Queued).then_some(self.setting)
    }

    /// Moves the expiry behind `now`, by whole periods, and counts them.
    fn forward(&mut self, now: u64) {
        if self.every != 0 && now >= self.expires {
            let periods = (now - self.expires) / self.every + 1;
            self.expires = self.expires.saturating_add(periods.saturating_mul(self.every));
            self.overrun = self.overrun.saturating_add(i64::try_from(periods).unwrap_or(i64::MAX));
        }
    }

    /// The rest at `now`. `silent`: the timer notifies of nothing.
    fn rest(&mut self, now: u64, silent: bool) -> Setting {
        if self.every == 0 && self.status != Status::Armed && !silent {
            return Setting::default();
        }
        if self.status != Status::Armed {
            self.forward(now);
        }
        // A timer that is armed has time left, if only a little.
        let value = self.expires.saturating_sub(now).max(u64::from(!silent));
        Setting { value, every: self.every }
    }

    /// Its signal was taken at `now`: begins the next period if there is one. Returns the overrun to report. `None`: its
    /// clock was the CPU time of a thread that has ended, and it ends too.
    fn taken(&mut self, now: Option<u64>) -> i32 {
        self.status = Status::Off;
        if self.every == 0 {
            return 0;
        }
        if let Some(now) = now {
            self.forward(now);
            self.status = Status::Armed;
        }
        self.reported = i32::try_from(self.overrun.max(0)).unwrap_or(i32::MAX);
        self.overrun = -1;
        self.reported
    }
}

/// The state of a timer that changes.
struct State<M: Machine> {
    course: Course,
    /// `expires` is a time of day: it follows changes of that clock.
    of_day: bool,
    /// The memory of its entry in the tree while it is not there; `None` for timers on clocks of time.
    entry: Option<SpareEntry<CpuKey, Arc<PosixTimer<M>>>>,
    /// It is deleted, and must not be armed any more.
    deleted: bool,
}

impl<M: Machine> State<M> {
    const fn new(entry: Option<SpareEntry<CpuKey, Arc<PosixTimer<M>>>>) -> Self {
        State { course: Course::new(), of_day: false, entry, deleted: false }
    }
}

/// A timer.
pub(crate) struct PosixTimer<M: Machine> {
    timer: Timer,
    /// Its place on the list of expired timers, and whether it is there. Guarded by the list's lock.
    place: Links<PosixTimer<M>>,
    listed: AtomicBool,
    /// The timers of its process, which live as long as the process.
    all: NonNull<PosixTimers<M>>,
    id: i32,
    clock: TimerClock,
    notify: Notify,
    value: u64,
    state: SpinLock<State<M>>,
    /// The charge for its place in a queue.
    _charge: Charge,
}

// SAFETY: the list's lock guards the links; a timer lives no longer than the process whose timers `all` points to.
unsafe impl<M: Machine> Send for PosixTimer<M> {}
// SAFETY: shared access goes through the timer's locks, and through the list's for its links.
unsafe impl<M: Machine> Sync for PosixTimer<M> {}

struct OnExpired<M>(core::marker::PhantomData<M>);
// SAFETY: a timer has one field of links, and stays in place: it is in an `Arc`.
unsafe impl<M: Machine> Adapter for OnExpired<M> {
    type Node = PosixTimer<M>;
    fn links(node: &PosixTimer<M>) -> &Links<PosixTimer<M>> {
        &node.place
    }
}

/// Timers that have expired, and the thread that sends their signals.
struct Expired<M: Machine> {
    list: List<OnExpired<M>>,
    target: Option<ThreadRef<M>>,
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

/// An interval timer on CPU time.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct CpuInterval {
    /// CPU time of the next expiry; 0: off.
    expires: u64,
    every: u64,
}

impl CpuInterval {
    /// Whether it has expired; then begins the next period, or switches it off.
    fn passes(&mut self, used: u64) -> bool {
        if self.expires == 0 || used < self.expires {
            return false;
        }
        self.expires = match self.every {
            0 => 0,
            every => self.expires.saturating_add(((used - self.expires) / every + 1).saturating_mul(every)),
        };
        true
    }
}

/// Runs in interrupt context.
///
/// # Safety
/// `timer` is the field of a [`PosixTimer`] that is alive and in place.
unsafe fn expire<M: Machine>(timer: NonNull<Timer>, _now: u64) -> Option<u64> {
    // SAFETY: by this function's contract; shared access only.
    let timer = unsafe { timer.byte_sub(offset_of!(PosixTimer<M>, timer)).cast::<PosixTimer<M>>().as_ref() };
    let all = timer.all();
    let mut expired = all.expired.lock(all.linux.machine);
    if !timer.listed.swap(true, Ordering::Relaxed) {
        // SAFETY: it was not listed. It is removed from the list before the process gives it up.
        unsafe { expired.list.push_back(NonNull::from(timer)) };
    }
    expired.tell(all.linux);
    None
}

impl<M: Machine> Expired<M> {
    /// Makes the target look at the list.
    fn tell(&self, linux: &Linux<M>) {
        if let Some(task) = &self.target
            && let Some(thread) = task.payload()
        {
            thread.work.fetch_or(work::TIMER, Ordering::AcqRel);
            linux.poke(task);
        }
    }
}

impl<M: Machine> PosixTimer<M> {
    fn all(&self) -> &PosixTimers<M> {
        // SAFETY: the timers of a process live as long as it. A timer outlives its removal from them only in the hands
        // of a thread that has the process.
        unsafe { self.all.as_ref() }
    }

    fn is_silent(&self) -> bool {
        self.notify == Notify::Nothing
    }

    /// The thread that gets its signal; `None`: any of the process.
    pub(crate) fn receiver(&self) -> Option<Pid> {
        match self.notify {
            Notify::Thread(_, tid) => Some(tid),
            _ => None,
        }
    }

    /// The CPU time of its clock. 0 for clocks of time; an error if its thread has ended.
    fn cpu_time(&self, process: &Process<M>) -> Result<u64, Errno> {
        Ok(match self.clock {
            TimerClock::Real | TimerClock::Monotonic => 0,
            TimerClock::Process => process.cpu_time(),
            TimerClock::Thread(tid) => process.cpu_time_of(tid).ok_or(Errno::ESRCH)?,
        })
    }

    fn is_on_cpu_time(&self) -> bool {
        matches!(self.clock, TimerClock::Process | TimerClock::Thread(_))
    }

    fn key(&self, course: &Course) -> CpuKey {
        let thread = if let TimerClock::Thread(tid) = self.clock { tid } else { 0 };
        (thread, course.expires, self.id)
    }

    /// The present time on its clock, where `cpu_time` was counted before.
    fn now(&self, state: &State<M>, cpu_time: u64) -> u64 {
        match self.clock {
            TimerClock::Real if state.of_day => self.all().linux.machine.realtime(),
            TimerClock::Real | TimerClock::Monotonic => quire_sync::hooks::now(),
            TimerClock::Process | TimerClock::Thread(_) => cpu_time,
        }
    }

    /// Puts it on this CPU's wheel, or in the tree. `course.status` is `Armed`.
    fn arm(this: &Arc<Self>, state: &mut State<M>) {
        let all = this.all();
        if this.is_on_cpu_time() {
            if let Some(entry) = state.entry.take() {
                all.on_cpu_time.lock().insert(entry, this.key(&state.course), this.clone());
                all.cpu_changes.fetch_add(1, Ordering::AcqRel);
            }
            return;
        }
        let expires = state.course.expires;
        let deadline = match state.of_day {
            true => on_monotonic(all.linux.machine, expires),
            false => expires,
        };
        this.arm_at(deadline);
    }

    /// Puts it on this CPU's wheel.
    fn arm_at(&self, deadline: u64) {
        let scheduler = all_scheduler(self);
        // Waits for the callback that has just made it expire.
        scheduler.cancel(&self.timer);
        // SAFETY: the timer is in an `Arc` that its process has until `delete` has cancelled it.
        unsafe { scheduler.arm(&self.timer, deadline) };
    }

    /// Takes it off the list of expired timers. Returns whether it was there.
    ///
    /// It leaves the wheel alone: between the expiry and this call another thread may have armed the timer anew.
    ///
    /// # Requires
    /// The caller holds `state`.
    fn unlist(&self) -> bool {
        let all = self.all();
        let mut expired = all.expired.lock(all.linux.machine);
        let was = self.listed.swap(false, Ordering::Relaxed);
        if was {
            // SAFETY: `remove` needs a node of this very list, and `listed` says that the timer is on it: the flag and
            // the links change together, under the list's lock, which is held here.
            unsafe { expired.list.remove(NonNull::from(self)) };
        }
        was
    }

    /// Takes it off the wheel and the list, or out of the tree. Returns whether it was on the list or in the tree.
    fn disarm(&self, state: &mut State<M>) -> bool {
        let all = self.all();
        if self.is_on_cpu_time() {
            let taken = all.on_cpu_time.lock().take(&self.key(&state.course));
            let Some((entry, _, this)) = taken else { return false };
            state.entry = Some(entry);
            // The process has another.
            drop(this);
            return true;
        }
        all.linux.scheduler.cancel(&self.timer);
        self.unlist()
    }

    /// Takes its signal for the setting `setting` off the queue that it was sent to, if it is there. No lock is held.
    fn unqueue(&self, process: &Process<M>, setting: u32) {
        let Some(tid) = self.receiver() else { return process.pending.remove_of_timer(self.id, setting) };
        let task = process.threads.lock().get(tid).cloned();
        if let Some(thread) = task.as_ref().and_then(|task| task.payload().as_ref()) {
            thread.pending.remove_of_timer(self.id, setting);
        }
    }

    /// It left the list or the tree because it has expired: the signal to send, if one is due.
    fn expired(this: &Arc<Self>, state: &mut State<M>, cpu_time: u64) -> Option<SigInfo> {
        let (Notify::Process(signal) | Notify::Thread(signal, _)) = this.notify else { return None };
        if state.course.status != Status::Armed {
            return None;
        }
        if this.now(state, cpu_time) < state.course.expires {
            // The time of day was set back.
            Self::arm(this, state);
            return None;
        }
        state.course.status = Status::Queued;
        let detail = Detail::Timer { id: this.id, overrun: 0, value: this.value, setting: state.course.setting };
        Some(SigInfo { signal, code: code::TIMER, errno: 0, detail })
    }
}

fn all_scheduler<M: Machine>(timer: &PosixTimer<M>) -> &'static quire_task::Scheduler<M> {
    timer.all().linux.scheduler
}

/// The time since boot in `nanos` nanoseconds.
fn after(nanos: u64) -> u64 {
    quire_sync::hooks::now().saturating_add(nanos)
}

impl<M: Machine> PosixTimers<M> {
    fn new(linux: &'static Linux<M>) -> Self {
        PosixTimers {
            linux,
            slots: Slots::new(Rank::OWNED),
            expired: IrqLock::new(Rank::EXPIRED, Expired { list: List::new(), target: None }),
            on_cpu_time: SpinLock::new(Rank(Rank::OWNED.0 + 2), Map::new()),
            cpu_changes: AtomicU32::new(0),
            intervals: SpinLock::new(Rank::OWNED, [CpuInterval::default(); 2]),
            settings: AtomicU32::new(0),
        }
    }

    /// Makes a timer that is off. `tell` gives its id to the program, and the timer is made only if that succeeds. Until
    /// then no other thread finds the timer under this id.
    pub(crate) fn create(
        &self,
        clock: TimerClock,
        notify: Notify,
        value: Option<u64>,
        charge: Charge,
        tell: impl FnOnce(i32) -> Result<(), Errno>,
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
            state: SpinLock::new(Rank(Rank::OWNED.0 + 1), State::new(entry)),
            _charge: charge,
        };
        let told = Arc::try_new(timer).map_err(Errno::from).and_then(|timer| tell(id as i32).map(|()| timer));
        match told {
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
    pub(crate) fn get(&self, process: &Process<M>, id: i32) -> Result<Setting, Errno> {
        let timer = self.find(id).ok_or(Errno::EINVAL)?;
        let Ok(cpu_time) = timer.cpu_time(process) else { return Ok(Setting::default()) };
        let mut state = timer.state.lock();
        let now = timer.now(&state, cpu_time);
        Ok(state.course.rest(now, timer.is_silent()))
    }

    /// Sets timer `id`; `absolute`: `new.value` is a time of its clock. Returns the rest of the old setting. `me`
    /// becomes the target if there is none.
    pub(crate) fn set(
        &self,
        process: &Process<M>,
        me: &Task<M>,
        id: i32,
        absolute: bool,
        new: Setting,
    ) -> Result<Setting, Errno> {
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
    pub(crate) fn overrun(&self, id: i32) -> Result<i32, Errno> {
        let timer = self.find(id).ok_or(Errno::EINVAL)?;
        let overrun = timer.state.lock().course.reported;
        Ok(overrun)
    }

    /// Deletes timer `id`.
    pub(crate) fn delete(&self, process: &Process<M>, id: i32) -> Result<(), Errno> {
        let id = usize::try_from(id).map_err(|_| Errno::EINVAL)?;
        let timer = self.slots.remove(id, self.linux.vm.epoch()).ok_or(Errno::EINVAL)?;
        if let Some(setting) = Self::end(&timer) {
            timer.unqueue(process, setting);
        }
        Ok(())
    }

    /// Deletes all timers. Their signals stay in the queues, which the caller empties or leaves for good.
    pub(crate) fn delete_all(&self) {
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
    pub(crate) fn thread_ends(&self, process: &Process<M>, thread: &Thread<M>) {
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
            expired.tell(self.linux);
            old
        };
        drop(old);
    }

    /// Switches off the timers on the CPU time of thread `tid`, which ends.
    fn leave_clock(&self, tid: Pid) {
        while let Some(timer) = self.first_on(tid, u64::MAX) {
            let mut state = timer.state.lock();
            if timer.disarm(&mut state) {
                state.course.status = Status::Off;
            }
        }
    }

    /// The process ends: all timers are deleted, and it has no target.
    pub(crate) fn process_ends(&self) {
        self.delete_all();
        *self.intervals.lock() = [CpuInterval::default(); 2];
        let target = self.expired.lock(self.linux.machine).target.take();
        drop(target);
    }

    /// Takes an expired timer, and returns it with the signal to send.
    pub(crate) fn next_expired(&self) -> Option<(Arc<PosixTimer<M>>, SigInfo)> {
        loop {
            let timer = {
                let expired = self.expired.lock(self.linux.machine);
                let first = expired.list.first()?;
                let raw = first.as_ptr().cast_const();
                // SAFETY: a timer on the list is in an `Arc` that its process has until the timer is off the list.
                unsafe {
                    Arc::increment_strong_count(raw);
                    Arc::from_raw(raw)
                }
            };
            let mut state = timer.state.lock();
            // A thread that sets the timer meanwhile has taken it off the list, and may have put it on a wheel.
            let signal = if timer.unlist() { PosixTimer::expired(&timer, &mut state, 0) } else { None };
            drop(state);
            if let Some(signal) = signal {
                return Some((timer, signal));
            }
        }
    }

    /// The first timer in the tree on the CPU time of `thread` (0: the process) that is due at `used`.
    fn first_on(&self, thread: Pid, used: u64) -> Option<Arc<PosixTimer<M>>> {
        let tree = self.on_cpu_time.lock();
        let (key, timer) = tree.iter_from(&(thread, 0, 0)).next()?;
        (key.0 == thread && key.1 <= used).then(|| timer.clone())
    }

    /// Takes a timer on the CPU time of `thread` (0: the process) that is due at `used`, with the signal to send.
    pub(crate) fn next_on(&self, thread: Pid, used: u64) -> Option<(Arc<PosixTimer<M>>, SigInfo)> {
        loop {
            let timer = self.first_on(thread, used)?;
            let mut state = timer.state.lock();
            let due = state.course.expires <= used && timer.disarm(&mut state);
            let signal = if due { PosixTimer::expired(&timer, &mut state, used) } else { None };
            drop(state);
            if let Some(signal) = signal {
                return Some((timer, signal));
            }
        }
    }

    /// The first expiry on the CPU time of the least thread from `thread` on (0: the process), with that thread.
    pub(crate) fn first_expiry(&self, thread: Pid) -> Option<(Pid, u64)> {
        let tree = self.on_cpu_time.lock();
        let ((thread, expires, _), _) = tree.iter_from(&(thread, 0, 0)).next()?;
        Some((*thread, *expires))
    }

    /// Whether a timer on CPU time is armed.
    pub(crate) fn counts_cpu_time(&self) -> bool {
        !self.on_cpu_time.lock().is_empty() || self.intervals.lock().iter().any(|i| i.expires != 0)
    }

    /// The signal `sent` of `timer` is in a queue: takes it off again if the timer was set anew or deleted before it came
    /// there, since the setter then found nothing to take off. Otherwise a later setter finds it.
    pub(crate) fn sent(&self, process: &Process<M>, timer: &PosixTimer<M>, sent: &SigInfo) {
        let Detail::Timer { setting, .. } = sent.detail else { return };
        let now = timer.state.lock().course.setting;
        if now != setting {
            timer.unqueue(process, setting);
        }
    }

    /// The signal of `timer` was not sent, because it is ignored (or memory was out): the next expiry tries again.
    pub(crate) fn not_sent(&self, process: &Process<M>, timer: &Arc<PosixTimer<M>>, sent: &SigInfo, ignored: bool) {
        let Detail::Timer { setting, .. } = sent.detail else { return };
        let cpu_time = timer.cpu_time(process);
        let mut state = timer.state.lock();
        if state.course.setting != setting || state.course.status != Status::Queued {
            return;
        }
        let (Ok(cpu_time), false) = (cpu_time, ignored && state.course.every == 0) else {
            state.course.status = Status::Off;
            return;
        };
        state.course.status = Status::Armed;
        let now = timer.now(&state, cpu_time);
        if ignored {
            // Not more often than a tick of Linux's.
            state.course.forward(now.saturating_add(IGNORED));
        } else if timer.is_on_cpu_time() {
            state.course.expires = now.saturating_add(RETRY);
        } else {
            timer.arm_at(after(RETRY));
            return;
        }
        PosixTimer::arm(timer, &mut state);
    }

    /// The signal `info` of a timer was taken off a queue: arms the timer for its next period. Returns the signal with
    /// its overrun; `None` if the timer was set anew or deleted since.
    fn taken(&self, process: &Process<M>, info: SigInfo) -> Option<SigInfo> {
        let Detail::Timer { id, value, setting, .. } = info.detail else { return Some(info) };
        let timer = self.find(id)?;
        let cpu_time = timer.cpu_time(process);
        let mut state = timer.state.lock();
        if state.course.setting != setting || state.course.status != Status::Queued {
            return None;
        }
        let now = cpu_time.ok().map(|cpu_time| timer.now(&state, cpu_time));
        let overrun = state.course.taken(now);
        if state.course.status == Status::Armed {
            PosixTimer::arm(&timer, &mut state);
        }
        drop(state);
        if timer.is_on_cpu_time() {
            process.count_soon(&self.linux.scheduler.current());
        }
        Some(SigInfo { detail: Detail::Timer { id, overrun, value, setting }, ..info })
    }

    fn each(&self, mut f: impl FnMut(&Arc<PosixTimer<M>>)) {
        for id in 0..self.slots.size() {
            if let Some(timer) = self.slots.peek(id) {
                f(&timer);
            }
        }
    }

    /// Queued signals of `gone` were dropped: their timers go on with the next period.
    #[cold]
    pub(crate) fn dropped(&self, process: &Process<M>, gone: SigSet) {
        self.each(|timer| {
            let cpu_time = timer.cpu_time(process);
            let (Notify::Process(signal) | Notify::Thread(signal, _)) = timer.notify else { return };
            let mut state = timer.state.lock();
            if gone.has(signal) && state.course.status == Status::Queued {
                let now = cpu_time.ok().map(|cpu_time| timer.now(&state, cpu_time));
                let _overrun = state.course.taken(now);
                if state.course.status == Status::Armed {
                    PosixTimer::arm(timer, &mut state);
                }
            }
        });
        if let Some(limit) = process.cpu_limit.get() {
            limit.count_in_all_threads(self.linux, process);
        }
    }

    /// The time of day was set: absolute timers on it expire at other moments.
    #[cold]
    pub(crate) fn day_changed(&self) {
        self.each(|timer| {
            let mut state = timer.state.lock();
            if state.of_day && state.course.status == Status::Armed {
                timer.disarm(&mut state);
                PosixTimer::arm(timer, &mut state);
            }
        });
    }

    /// Sets an interval timer on CPU time that has `used` so much: first after `new.value` nanoseconds. Returns the
    /// rest of the old setting.
    pub(crate) fn set_interval(&self, which: usize, used: u64, new: Setting) -> Setting {
        let expires = if new.value == 0 { 0 } else { used.saturating_add(new.value) };
        let mut intervals = self.intervals.lock();
        let old = core::mem::replace(&mut intervals[which], CpuInterval { expires, every: new.every });
        drop(intervals);
        self.cpu_changes.fetch_add(1, Ordering::AcqRel);
        rest_of(old, used)
    }

    /// The rest of an interval timer on CPU time.
    pub(crate) fn interval(&self, which: usize, used: u64) -> Setting {
        rest_of(self.intervals.lock()[which], used)
    }

    /// Whether interval timer `which` has expired at `used`, and the time until it expires again.
    pub(crate) fn interval_passes(&self, which: usize, used: u64) -> (bool, Option<u64>) {
        let mut intervals = self.intervals.lock();
        let passes = intervals[which].passes(used);
        let expires = intervals[which].expires;
        (passes, (expires != 0).then(|| expires.saturating_sub(used)))
    }
}

/// The rest of an interval timer at `used`. An armed timer has at least a microsecond.
fn rest_of(interval: CpuInterval, used: u64) -> Setting {
    match interval.expires {
        0 => Setting { value: 0, every: interval.every },
        expires => Setting { value: expires.saturating_sub(used).max(1000), every: interval.every },
    }
}

impl<M: Machine> Process<M> {
    /// Its POSIX timers, made if there are none, and the state that counts its CPU time for them. ENOMEM if there is no
    /// memory.
    pub(crate) fn posix_timers(&self) -> Result<&PosixTimers<M>, Errno> {
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
    pub(crate) fn count_soon(&self, me: &Task<M>) {
        if let Some(limit) = self.cpu_limit.get() {
            limit.count_soon(me);
        }
    }

    /// A signal was taken off a queue of the process. `None` if it is of a timer that was set anew or deleted since.
    #[inline]
    pub(crate) fn signal_taken(&self, info: SigInfo) -> Option<SigInfo> {
        match info.detail {
            Detail::Timer { .. } => self.posix_timers.get()?.taken(self, info),
            _ => Some(info),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn armed(expires: u64, every: u64) -> Course {
        Course { status: Status::Armed, expires, every, ..Course::new() }
    }

    #[test]
    fn the_overrun_counts_the_expiries_behind_the_reported_one() {
        for (now, overrun, next) in [(100, 0, 110), (109, 0, 110), (110, 1, 120), (195, 9, 200)] {
            let mut course = armed(100, 10);
            course.status = Status::Queued;
            assert_eq!((course.taken(Some(now)), course.expires), (overrun, next), "at {now}");
            assert_eq!((course.status, course.reported, course.overrun), (Status::Armed, overrun, -1));
        }
        let mut once = armed(100, 0);
        assert_eq!((once.taken(Some(500)), once.status, once.reported), (0, Status::Off, 0));
    }

    #[test]
    fn a_timer_ends_with_the_thread_whose_cpu_time_it_measures() {
        let mut course = Course { status: Status::Queued, ..armed(100, 10) };
        course.forward(125);
        assert_eq!((course.taken(None), course.status, course.reported), (2, Status::Off, 2));
        assert_eq!((course.expires, course.overrun), (130, -1));
    }

    #[test]
    fn a_look_at_the_rest_does_not_lose_expiries() {
        let mut course = armed(100, 10);
        course.status = Status::Queued;
        assert_eq!(course.rest(134, false), Setting { value: 6, every: 10 });
        assert_eq!(course.rest(151, false), Setting { value: 9, every: 10 });
        // 100 is reported; 110, 120, 130, 140, 150 and 160 come on top.
        assert_eq!((course.taken(Some(160)), course.expires), (6, 170));
    }

    #[test]
    fn the_rest_of_timers_of_each_kind() {
        assert_eq!(Course::new().rest(50, false), Setting::default());
        assert_eq!(armed(100, 0).rest(40, false), Setting { value: 60, every: 0 });
        // It is armed, and has not expired yet.
        assert_eq!(armed(100, 0).rest(100, false), Setting { value: 1, every: 0 });
        let silent = |expires, every| Course { expires, every, ..Course::new() };
        assert_eq!(silent(100, 0).rest(100, true), Setting::default());
        assert_eq!(silent(100, 30).rest(131, true), Setting { value: 29, every: 30 });
        let mut queued = Course { status: Status::Queued, ..armed(100, 0) };
        assert_eq!(queued.rest(90, false), Setting::default());
    }

    #[test]
    fn counts_end_at_the_largest_number() {
        let mut course = Course { status: Status::Queued, ..armed(0, 1) };
        assert_eq!(course.taken(Some(u64::MAX - 1)), i32::MAX);
        assert_eq!((course.expires, course.overrun), (u64::MAX, -1));
        let mut course = armed(u64::MAX - 1, u64::MAX);
        course.forward(u64::MAX);
        assert_eq!(course.expires, u64::MAX);
    }

    #[test]
    fn an_interval_keeps_its_phase() {
        let mut interval = CpuInterval { expires: 100, every: 30 };
        assert!(!interval.passes(99));
        assert!(interval.passes(165));
        assert_eq!(interval.expires, 190);
        let mut once = CpuInterval { expires: 100, every: 0 };
        assert!(once.passes(100) && !once.passes(1000));
        assert_eq!(rest_of(CpuInterval { expires: 100, every: 7 }, 300), Setting { value: 1000, every: 7 });
        assert_eq!(rest_of(CpuInterval { expires: 0, every: 7 }, 300), Setting { value: 0, every: 7 });
    }
}
