//! The alarms of a process: what `setitimer`, `alarm` and `timer_create` set.
//!
//! A process has one timer on a wheel, armed for the earliest of its alarms. It runs out in interrupt context, where no signal can be
//! sent: it raises a flag of one thread of its process, its *target*, and wakes it; that thread sees to all alarms that are due, sends
//! their signals on its way to user mode, and arms the timer for the next one. A target that ends passes the timer on.
//!
//! CPU time makes no timer run out. Until an alarm by CPU time can be due at the earliest, with so many threads, the timer waits in
//! real time; then somebody looks. Where the process has one thread the interrupt itself does, so that a program that sleeps is not
//! woken for it.

use super::posix::Posix;
use crate::machine::Machine;
use crate::signal::{SigInfo, Signal};
use crate::thread::{Thread, work};
use crate::{Linux, Process, rank};
use alloc::collections::BTreeMap;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem::offset_of;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use quire_sync::SpinLock;
use quire_task::{Thread as Task, ThreadRef, Timer};

/// What an alarm goes by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum By {
    /// Nanoseconds since boot.
    Boot,
    /// The process's time in user mode.
    User,
    /// All CPU time of the process.
    Cpu,
}

/// The interval timers, as Linux numbers them.
pub(super) const INTERVALS: [(By, Signal); 3] =
    [(By::Boot, Signal::ALRM), (By::User, Signal::VTALRM), (By::Cpu, Signal::PROF)];

/// When an alarm is due, in nanoseconds of its clock.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Alarm {
    /// 0: it is not set.
    pub at: u64,
    /// And again every so often; 0: once.
    pub every: u64,
}

impl Alarm {
    /// Set to be due `value` after `now`; 0: not set.
    pub fn after(now: u64, value: u64, every: u64) -> Alarm {
        if value == 0 { Alarm::default() } else { Alarm { at: now.saturating_add(value), every } }
    }

    /// How often it was due up to `now`; from then on it is set to the next time.
    pub fn run_out(&mut self, now: u64) -> u64 {
        if self.at == 0 || now < self.at {
            return 0;
        }
        if self.every == 0 {
            self.at = 0;
            return 1;
        }
        let times = (now - self.at) / self.every + 1;
        self.at = self.at.saturating_add(times.saturating_mul(self.every));
        times
    }

    /// What is left until it is due, 0 where it is not set.
    pub fn left(&self, now: u64) -> u64 {
        if self.at == 0 { 0 } else { self.at.saturating_sub(now).max(1) }
    }
}

/// What the clocks say.
#[derive(Clone, Copy, Debug)]
pub(super) struct Now {
    boot: u64,
    /// User and all CPU time, and how many threads there are, where somebody asked.
    used: Option<(u64, u64, usize)>,
}

impl Now {
    /// What `by` says. Of CPU time 0, unless it was asked for.
    pub fn by(&self, by: By) -> u64 {
        let (user, cpu, _) = self.used.unwrap_or_default();
        match by {
            By::Boot => self.boot,
            By::User => user,
            By::Cpu => cpu,
        }
    }
}

/// After what has run out the timer is not armed for a time sooner than this: programs may set periods of a nanosecond.
const LEAST: u64 = 100_000;
/// How often CPU time is looked at, at most.
const LEAST_LOOK: u64 = 1_000_000;
/// Where several threads run, it is looked at as often as this at least: there may be more of them soon.
const MOST_LOOK: u64 = 10_000_000;

/// All alarms of a process. In place while armed: processes do not move.
pub struct Timers<M: Machine> {
    timer: Timer,
    /// The target's task, counted by the target while the timer is armed. Read by the expiry.
    task: AtomicPtr<Task<M>>,
    /// Something is set that goes by CPU time. Changed under the lock.
    by_cpu: AtomicBool,
    /// How much CPU time the target has used, in its life, when the first alarm can be due; 0 where that is not for it alone to tell.
    /// Read by the expiry.
    due_at: AtomicU64,
    /// `timer_create` was called.
    pub(super) named: AtomicBool,
    state: SpinLock<State<M>>,
}

/// What is set.
pub(super) struct State<M: Machine> {
    target: Option<ThreadRef<M>>,
    intervals: [Alarm; INTERVALS.len()],
    pub posix: BTreeMap<i32, Posix>,
    /// The last id that a timer of `posix` got.
    pub last_id: i32,
}

impl<M: Machine> State<M> {
    fn alarms(&self) -> impl Iterator<Item = (By, &Alarm)> {
        let intervals = INTERVALS.iter().map(|(by, _)| *by).zip(&self.intervals);
        intervals.chain(self.posix.values().filter(|timer| timer.tells()).map(|timer| (timer.by, &timer.alarm)))
    }

    /// What is left until the first alarm by real time can be due, and of CPU time until the first one by that.
    fn left(&self, now: &Now) -> (Option<u64>, Option<u64>) {
        let least = |cpu: bool| {
            let set = self.alarms().filter(|(by, alarm)| (*by != By::Boot) == cpu && alarm.at != 0);
            set.map(|(by, alarm)| alarm.left(now.by(by))).min()
        };
        (least(false), least(true))
    }
}

/// All CPU time that a thread has used.
fn used_by<M: Machine>(linux: &Linux<M>, task: &Task<M>) -> u64 {
    let times = linux.scheduler.times(task);
    times.user_ns + times.system_ns
}

/// Runs in interrupt context.
///
/// # Safety
/// `timer` is the field of a [`Timers`] that is alive and in place.
unsafe fn expire<M: Machine>(timer: NonNull<Timer>, now: u64) -> Option<u64> {
    // SAFETY: by this function's contract; shared access only.
    let timers = unsafe { timer.byte_sub(offset_of!(Timers<M>, timer)).cast::<Timers<M>>().as_ref() };
    // SAFETY: counted by the target while armed, and a cancel waits for this callback.
    let task = unsafe { timers.task.load(Ordering::Acquire).as_ref() }?;
    let thread = task.payload().as_ref()?;
    let due_at = timers.due_at.load(Ordering::Relaxed);
    if due_at != 0 && !task.is_running() {
        let used = used_by(thread.linux, task);
        if used < due_at {
            return Some(now.saturating_add((due_at - used).max(LEAST_LOOK)));
        }
    }
    thread.work.fetch_or(work::TIMER, Ordering::AcqRel);
    thread.linux.poke(task);
    None
}

impl<M: Machine> Default for Timers<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Machine> Timers<M> {
    /// Nothing is set.
    pub fn new() -> Self {
        Timers {
            timer: Timer::new(expire::<M>),
            task: AtomicPtr::new(ptr::null_mut()),
            by_cpu: AtomicBool::new(false),
            due_at: AtomicU64::new(0),
            named: AtomicBool::new(false),
            state: SpinLock::new(
                rank::OWNED,
                State {
                    target: None,
                    intervals: [Alarm::default(); INTERVALS.len()],
                    posix: BTreeMap::new(),
                    last_id: -1,
                },
            ),
        }
    }

    /// Calls `look` with what is set, and with the time, of the CPU too where something goes by that or `cpu` says so.
    pub(super) fn look<R>(&self, process: &Process<M>, cpu: bool, look: impl FnOnce(&mut State<M>, &Now) -> R) -> R {
        let mut cpu = cpu;
        loop {
            cpu |= self.by_cpu.load(Ordering::Relaxed);
            // Before the lock: threads and their sums have locks of their own.
            let used = cpu.then(|| process.cpu_used());
            let mut state = self.state.lock();
            // Somebody has set an alarm by CPU time meanwhile.
            if used.is_none() && self.by_cpu.load(Ordering::Relaxed) {
                cpu = true;
                continue;
            }
            let now = Now { boot: quire_sync::hooks::now(), used };
            return look(&mut state, &now);
        }
    }

    /// As [`look`](Self::look), for `target`, the caller, who changes what is set and takes the timer on.
    pub(super) fn change<R>(
        &self,
        linux: &Linux<M>,
        process: &Process<M>,
        cpu: bool,
        change: impl FnOnce(&mut State<M>, &Now) -> R,
    ) -> R {
        let me = linux.scheduler.current().to_ref();
        let (out, old) = self.look(process, cpu, |state, now| {
            let out = change(state, now);
            let old = state.target.replace(me);
            (out, [old, self.arm(linux, state, now, 0)])
        });
        drop(old);
        out
    }

    /// Arms the timer for what is due next, not before `least` from now. Returns the target where there is nothing left to do for it,
    /// to be dropped without the lock.
    fn arm(&self, linux: &Linux<M>, state: &mut State<M>, now: &Now, least: u64) -> Option<ThreadRef<M>> {
        linux.scheduler.cancel(&self.timer);
        let (real, cpu) = state.left(now);
        self.by_cpu.store(cpu.is_some(), Ordering::Relaxed);
        let threads = now.used.map_or(1, |(_, _, threads)| threads.min(linux.scheduler.cpus()));
        let cpu_in = cpu.map(|left| match threads {
            0 | 1 => left.max(LEAST_LOOK),
            threads => (left / threads as u64).clamp(LEAST_LOOK, MOST_LOOK),
        });
        let next = real.into_iter().chain(cpu_in).min();
        let (Some(next), Some(target)) = (next, &state.target) else {
            self.task.store(ptr::null_mut(), Ordering::Release);
            return state.target.take();
        };
        if let Some(thread) = target.payload() {
            thread.timed.store(true, Ordering::Relaxed);
        }
        // Of its own thread the interrupt can tell, if nothing is to be done at some real time.
        let alone = threads == 1 && real.is_none();
        let due_at = cpu.filter(|_| alone).map_or(0, |left| used_by(linux, target).saturating_add(left));
        self.due_at.store(due_at, Ordering::Relaxed);
        self.task.store(ptr::from_ref::<Task<M>>(target).cast_mut(), Ordering::Release);
        // SAFETY: the timer is part of a process, which neither moves nor ends before `end` has cancelled it.
        unsafe { linux.scheduler.arm(&self.timer, now.boot.saturating_add(next.max(least))) };
        None
    }

    /// The target looks: sends the signals of what is due.
    pub(crate) fn expired(&self, linux: &'static Linux<M>, process: &Process<M>) {
        let mut due: Vec<(i32, u64, Posix)> = Vec::new();
        let (intervals, old) = self.look(process, false, |state, now| {
            // Without memory nothing has run out yet: it is tried again.
            if due.try_reserve(state.posix.len()).is_err() {
                return (0, self.arm(linux, state, now, LEAST_LOOK));
            }
            let mut intervals = 0;
            for (i, (alarm, (by, _))) in state.intervals.iter_mut().zip(INTERVALS).enumerate() {
                if alarm.run_out(now.by(by)) > 0 {
                    intervals |= 1 << i;
                }
            }
            for (id, timer) in state.posix.iter_mut().filter(|(_, timer)| timer.tells()) {
                let times = timer.alarm.run_out(now.by(timer.by));
                if times > 0 {
                    due.push((*id, times, *timer));
                }
            }
            (intervals, self.arm(linux, state, now, LEAST))
        });
        drop(old);
        for (i, (_, signal)) in INTERVALS.into_iter().enumerate() {
            if intervals & 1 << i != 0 {
                let _merged = linux.signal_process(process, SigInfo::kernel(signal));
            }
        }
        for (id, times, timer) in due {
            timer.tell(linux, process, id, times);
        }
    }

    /// The process, which had one thread, `thread`, has two: that one looks.
    pub(crate) fn thread_joins(&self, thread: &Thread<M>) {
        if self.due_at.load(Ordering::Relaxed) != 0 {
            self.due_at.store(0, Ordering::Relaxed);
            thread.work.fetch_or(work::TIMER, Ordering::AcqRel);
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
            let mut state = self.state.lock();
            drop(threads);
            let mine = state.target.as_ref().is_some_and(|t| t.payload().as_ref().is_some_and(|t| ptr::eq(t, thread)));
            if !mine {
                return;
            }
            linux.scheduler.cancel(&self.timer);
            let task = heir.as_ref().map_or(ptr::null_mut(), |t| ptr::from_ref::<Task<M>>(t).cast_mut());
            self.task.store(task, Ordering::Release);
            if let Some(heir) = &heir
                && let Some(thread) = heir.payload()
            {
                // It looks, and arms the timer.
                thread.work.fetch_or(work::TIMER, Ordering::AcqRel);
                linux.poke(heir);
            }
            core::mem::replace(&mut state.target, heir)
        };
        drop(old);
    }

    /// Calls `look` with what is set, for what needs no clock.
    pub(super) fn plain<R>(&self, look: impl FnOnce(&mut State<M>) -> R) -> R {
        look(&mut self.state.lock())
    }

    /// The process ends.
    pub(crate) fn end(&self, linux: &'static Linux<M>) {
        if self.task.load(Ordering::Acquire).is_null() {
            return;
        }
        let old = {
            let mut state = self.state.lock();
            linux.scheduler.cancel(&self.timer);
            self.task.store(ptr::null_mut(), Ordering::Release);
            state.target.take()
        };
        drop(old);
    }

    /// Sets interval timer `which`: first after `value` nanoseconds (0: off), then every `every`. Returns what was set before, as
    /// (value, every).
    pub(super) fn set(
        &self,
        linux: &Linux<M>,
        process: &Process<M>,
        which: usize,
        (value, every): (u64, u64),
    ) -> (u64, u64) {
        let by = INTERVALS[which].0;
        self.change(linux, process, by != By::Boot, |state, now| {
            let alarm = &mut state.intervals[which];
            let before = (alarm.left(now.by(by)), alarm.every);
            *alarm = Alarm::after(now.by(by), value, if value == 0 { 0 } else { every });
            before
        })
    }

    /// What is left of interval timer `which`, and its period.
    pub(super) fn get(&self, process: &Process<M>, which: usize) -> (u64, u64) {
        let by = INTERVALS[which].0;
        self.look(process, by != By::Boot, |state, now| {
            let alarm = &state.intervals[which];
            (alarm.left(now.by(by)), alarm.every)
        })
    }
}

impl<M: Machine> Process<M> {
    /// What its threads have used of CPUs, in user mode and altogether, and how many they are. Those that run on other CPUs are
    /// interrupted: what they have used since they were is told the next time.
    fn cpu_used(&self) -> (u64, u64, usize) {
        let linux = self.linux;
        let threads = {
            let threads = self.threads.lock();
            for task in threads.iter().filter(|task| task.is_running()) {
                let home = task.home();
                if home != quire_sync::current_cpu() {
                    quire_task::Machine::kick(linux.machine, home);
                }
            }
            threads.len()
        };
        let usage = self.usage();
        (usage.user, usage.user + usage.system, threads)
    }
}

/// An id for a new timer.
pub(super) fn next_id<M: Machine>(state: &State<M>) -> i32 {
    let mut id = state.last_id;
    loop {
        id = if id == i32::MAX { 0 } else { id + 1 };
        if !state.posix.contains_key(&id) {
            return id;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alarm_keeps_its_beat_and_tells_how_often_it_was_due() {
        let mut alarm = Alarm::after(100, 50, 20);
        assert_eq!((alarm.run_out(149), alarm.left(149)), (0, 1));
        assert_eq!((alarm.run_out(150), alarm.at), (1, 170));
        assert_eq!((alarm.run_out(231), alarm.at), (4, 250));
        let mut once = Alarm::after(100, 50, 0);
        assert_eq!((once.run_out(1000), once.left(1000), once.run_out(2000)), (1, 0, 0));
        assert_eq!(Alarm::after(100, 0, 20), Alarm::default());
    }

    #[test]
    fn no_alarm_overflows() {
        let mut alarm = Alarm::after(u64::MAX - 1, u64::MAX, u64::MAX);
        assert_eq!(alarm.run_out(u64::MAX), 1);
        assert_eq!(alarm.at, u64::MAX);
    }
}
