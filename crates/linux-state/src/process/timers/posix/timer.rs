//! One timer: its state, and how it is added to a wheel, the list of expired timers or the tree, and removed again.

use crate::errno::Errno;
use crate::machine::Machine;
use crate::process::Process;
use crate::process::thread::work;
use crate::process::timers::posix::course::{Course, Status};
use crate::process::timers::posix::{Notify, PosixTimers, TimerClock};
use crate::process::users::Charge;
use crate::signal::info::code;
use crate::signal::{Detail, SigInfo};
use crate::time::on_monotonic;
use crate::{Linux, Pid};
use core::mem::offset_of;
use core::ptr::NonNull;
use quire_heap::{Arc, Map, SpareEntry};
use quire_sync::SpinLock;
use quire_sync::atomic::{AtomicBool, Ordering};
use quire_task::list::{Adapter, Links, List};
use quire_task::{ThreadRef, Timer};

/// The key of a timer in the tree: its thread (0: the process), the time of its expiry, its id.
pub(super) type CpuKey = (Pid, u64, i32);
pub(super) type CpuTree<M> = Map<CpuKey, Arc<PosixTimer<M>>>;

/// The part of a timer that changes.
pub struct State<M: Machine> {
    pub(super) course: Course,
    /// `course.expires` is a time of day, so the deadline follows changes of the time of day.
    pub(super) of_day: bool,
    /// The memory of the timer's entry in the tree, while the timer is not in the tree. `None` for timers on real time.
    pub entry: Option<SpareEntry<CpuKey, Arc<PosixTimer<M>>>>,
    /// The timer is deleted, and must not be armed any more.
    pub deleted: bool,
}

impl<M: Machine> State<M> {
    pub const fn new(entry: Option<SpareEntry<CpuKey, Arc<PosixTimer<M>>>>) -> Self {
        State { course: Course::new(), of_day: false, entry, deleted: false }
    }
}

/// A timer of `timer_create`.
pub struct PosixTimer<M: Machine> {
    pub timer: Timer,
    /// The links of the list of expired timers, and whether the timer is on that list. The list's lock guards them.
    pub place: Links<PosixTimer<M>>,
    pub listed: AtomicBool,
    /// The timers of the process that owns this timer. They live as long as the process.
    pub all: NonNull<PosixTimers<M>>,
    pub id: i32,
    pub clock: TimerClock,
    pub notify: Notify,
    pub value: u64,
    pub state: SpinLock<State<M>>,
    /// The charge to the user for the timer's signal in a queue.
    pub _charge: Charge,
}

// SAFETY: the list's lock guards the links, and a timer does not outlive the process that owns `all`.
unsafe impl<M: Machine> Send for PosixTimer<M> {}
// SAFETY: shared access needs the timer's locks, or the list's lock for the links.
unsafe impl<M: Machine> Sync for PosixTimer<M> {}

pub(super) struct OnExpired<M>(core::marker::PhantomData<M>);
// SAFETY: a timer has one field of links, and does not move because it is in an `Arc`.
unsafe impl<M: Machine> Adapter for OnExpired<M> {
    type Node = PosixTimer<M>;
    fn links(node: &PosixTimer<M>) -> &Links<PosixTimer<M>> {
        &node.place
    }
}

/// The expired timers of a process, and the thread that sends their signals.
pub(super) struct Expired<M: Machine> {
    pub list: List<OnExpired<M>>,
    pub target: Option<ThreadRef<M>>,
}

/// The timer's callback, which runs in interrupt context.
///
/// # Safety
/// `timer` is the field of a [`PosixTimer`] that is alive and does not move.
pub unsafe fn expire<M: Machine>(timer: NonNull<Timer>, _now: u64) -> Option<u64> {
    // SAFETY: by this function's contract `timer` lies in a live `PosixTimer`. The reference is shared.
    let timer = unsafe { timer.byte_sub(offset_of!(PosixTimer<M>, timer)).cast::<PosixTimer<M>>().as_ref() };
    let all = timer.all();
    let mut expired = all.expired.lock(all.linux.machine);
    if !timer.listed.swap(true, Ordering::Relaxed) {
        // SAFETY: the timer was not on the list. It is removed from the list before the process drops it.
        unsafe { expired.list.push_back(NonNull::from(timer)) };
    }
    expired.notify(all.linux);
    None
}

impl<M: Machine> Expired<M> {
    /// Makes the target check the list.
    pub fn notify(&self, linux: &Linux<M>) {
        if let Some(task) = &self.target
            && let Some(thread) = task.payload()
        {
            thread.work.fetch_or(work::TIMER, Ordering::AcqRel);
            linux.poke(task);
        }
    }
}

impl<M: Machine> PosixTimer<M> {
    pub fn all(&self) -> &PosixTimers<M> {
        // SAFETY: the set of timers lives as long as the process. After its removal from the set, a timer is used only
        // by threads that hold a reference to the process.
        unsafe { self.all.as_ref() }
    }

    pub fn is_silent(&self) -> bool {
        self.notify == Notify::Nothing
    }

    /// The id of the thread that gets the timer's signal. `None`: any thread of the process may get it.
    pub fn receiver(&self) -> Option<Pid> {
        match self.notify {
            Notify::Thread(_, tid) => Some(tid),
            _ => None,
        }
    }

    /// The CPU time of the timer's clock, in nanoseconds. 0 for real-time clocks; ESRCH if the clock's thread has
    /// ended.
    pub(super) fn cpu_time(&self, process: &Process<M>) -> Result<u64, Errno> {
        Ok(match self.clock {
            TimerClock::Real | TimerClock::Monotonic => 0,
            TimerClock::Process => process.cpu_time(),
            TimerClock::Thread(tid) => process.cpu_time_of(tid).ok_or(Errno::ESRCH)?,
        })
    }

    pub(super) fn is_on_cpu_time(&self) -> bool {
        matches!(self.clock, TimerClock::Process | TimerClock::Thread(_))
    }

    pub(super) fn key(&self, course: &Course) -> CpuKey {
        let thread = if let TimerClock::Thread(tid) = self.clock { tid } else { 0 };
        (thread, course.expires, self.id)
    }

    /// The present time on the timer's clock. `cpu_time` is the result of an earlier call of `cpu_time`.
    pub fn now(&self, state: &State<M>, cpu_time: u64) -> u64 {
        match self.clock {
            TimerClock::Real if state.of_day => self.all().linux.machine.realtime(),
            TimerClock::Real | TimerClock::Monotonic => quire_sync::hooks::now(),
            TimerClock::Process | TimerClock::Thread(_) => cpu_time,
        }
    }

    /// Adds the timer to this CPU's wheel, or to the tree. `course.status` is `Armed`.
    pub fn arm(this: &Arc<Self>, state: &mut State<M>) {
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

    /// Adds the timer to this CPU's wheel. `deadline` is in nanoseconds since boot.
    pub(super) fn arm_at(&self, deadline: u64) {
        let scheduler = all_scheduler(self);
        // `cancel` also waits for a callback that has just expired the timer.
        scheduler.cancel(&self.timer);
        // SAFETY: the timer is in an `Arc`, which its process holds until `delete` has cancelled the timer.
        unsafe { scheduler.arm(&self.timer, deadline) };
    }

    /// Removes the timer from the list of expired timers. Returns whether it was on the list.
    ///
    /// The wheel is not changed, because another thread may have armed the timer again since the expiry.
    ///
    /// # Requires
    /// The caller holds `state`.
    pub(super) fn unlist(&self) -> bool {
        let all = self.all();
        let mut expired = all.expired.lock(all.linux.machine);
        let was = self.listed.swap(false, Ordering::Relaxed);
        if was {
            // SAFETY: `remove` needs a node of this list. `listed` is set, so the timer is on it: the flag and the
            // links change together under the list's lock, which is held here.
            unsafe { expired.list.remove(NonNull::from(self)) };
        }
        was
    }

    /// Removes the timer from the wheel and the list, or from the tree. Returns whether the timer was on the list or in
    /// the tree.
    pub(super) fn disarm(&self, state: &mut State<M>) -> bool {
        let all = self.all();
        if self.is_on_cpu_time() {
            let taken = all.on_cpu_time.lock().take(&self.key(&state.course));
            let Some((entry, _, this)) = taken else { return false };
            state.entry = Some(entry);
            // This is not the last reference, because the process's table holds another.
            drop(this);
            return true;
        }
        all.linux.scheduler.cancel(&self.timer);
        self.unlist()
    }

    /// Removes the timer's signal for the setting `setting` from its queue, if it is there. The caller holds no lock.
    pub(super) fn unqueue(&self, process: &Process<M>, setting: u32) {
        let Some(tid) = self.receiver() else { return process.pending.remove_of_timer(self.id, setting) };
        let task = process.threads.lock().get(tid).cloned();
        if let Some(thread) = task.as_ref().and_then(|task| task.payload().as_ref()) {
            thread.pending.remove_of_timer(self.id, setting);
        }
    }

    /// The signal to send for an expired timer that was removed from the list or the tree. `None` if no signal is due.
    pub fn expired(this: &Arc<Self>, state: &mut State<M>, cpu_time: u64) -> Option<SigInfo> {
        let (Notify::Process(signal) | Notify::Thread(signal, _)) = this.notify else { return None };
        if state.course.status != Status::Armed {
            return None;
        }
        if this.now(state, cpu_time) < state.course.expires {
            // The time of day was set back, so the timer has not expired yet.
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
