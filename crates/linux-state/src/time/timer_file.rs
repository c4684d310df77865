//! The files of `timerfd_create`.
//!
//! An expiry changes no state, because the number of expiries follows from the setting and the clock. An expiry only
//! notifies waiters. The timer's callback runs in interrupt context, where no waiter can be notified. The callback adds
//! the file to a list, and wakes the *notifier*, a kernel thread. A periodic timer is not armed between an expiry and
//! the next read. So a file that is not read causes no interrupts.

use crate::machine::Machine;
use crate::time::TimerSetting;
use crate::time::on_monotonic;
use core::any::Any;
use core::mem::offset_of;
use core::ptr::NonNull;
use quire_fs::readiness::Readiness;
use quire_fs::{FsError, Io, Ready, Sink, Source, Stream};
use quire_heap::{Arc, OutOfMemory, Weak};
use quire_sync::atomic::{AtomicBool, Ordering};
use quire_sync::hooks::{ThreadHandle, current_thread, now, park, unpark};
use quire_sync::{Rank, SpinLock};
use quire_task::list::{Adapter, Links, List};
use quire_task::{IrqLock, Scheduler, Timer};

/// The state that all timer files share.
pub struct TimerFiles<M: Machine> {
    expired: IrqLock<Expired<M>>,
    of_day: SpinLock<OfDay<M>>,
}

/// The expired files whose waiters must be notified, and the thread that notifies them.
struct Expired<M: Machine> {
    list: List<OnExpired<M>>,
    notifier: Option<ThreadHandle>,
}

/// The files whose deadline is a time of day.
struct OfDay<M: Machine> {
    list: List<OnDay<M>>,
    len: usize,
}

struct OnExpired<M>(core::marker::PhantomData<M>);
// SAFETY: a file has one field of these links, and does not move because it is in an `Arc`.
unsafe impl<M: Machine> Adapter for OnExpired<M> {
    type Node = TimerFile<M>;
    fn links(node: &TimerFile<M>) -> &Links<TimerFile<M>> {
        &node.among_expired
    }
}

struct OnDay<M>(core::marker::PhantomData<M>);
// SAFETY: a file has one field of these links, and does not move because it is in an `Arc`.
unsafe impl<M: Machine> Adapter for OnDay<M> {
    type Node = TimerFile<M>;
    fn links(node: &TimerFile<M>) -> &Links<TimerFile<M>> {
        &node.among_of_day
    }
}

/// The setting of a timer file and the state of its expiries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Course {
    armed: bool,
    /// The time of the first unread expiry, on the file's clock.
    expires: u64,
    every: u64,
    /// Whether `expires` is a time of day.
    of_day: bool,
    /// Whether a read reports a change of the time of day as an error (`TFD_TIMER_CANCEL_ON_SET`).
    reports: bool,
    /// Whether the time of day has changed and no read has reported the change yet.
    changed: bool,
}

impl Course {
    /// The number of expiries since the last read.
    fn expiries(&self, now: u64) -> u64 {
        match self.every {
            _ if !self.armed || now < self.expires => 0,
            0 => 1,
            every => (now - self.expires) / every + 1,
        }
    }

    /// Whether the next unread expiry is in the future.
    fn is_ahead(&self, now: u64) -> bool {
        self.armed && now < self.expires
    }

    /// Reads and clears the number of expiries. `None` if there are none.
    fn take(&mut self, now: u64) -> Option<u64> {
        let n = self.expiries(now);
        if n == 0 {
            return None;
        }
        self.armed = self.every != 0;
        self.expires = self.expires.saturating_add(n.saturating_mul(self.every));
        Some(n)
    }

    fn rest(&self, now: u64) -> TimerSetting {
        let next = self.expires.saturating_add(self.expiries(now).saturating_mul(self.every));
        TimerSetting { value: if self.armed { next.saturating_sub(now) } else { 0 }, every: self.every }
    }
}

/// An open timer file.
pub struct TimerFile<M: Machine> {
    timer: Timer,
    /// The links of the list of expired files, and whether the file is on it. The list's lock guards both fields.
    among_expired: Links<TimerFile<M>>,
    is_expired: AtomicBool,
    /// The links of the list of files whose deadline is a time of day (`of_day`), and whether the file is on that list.
    /// That list's lock guards both fields.
    among_of_day: Links<TimerFile<M>>,
    is_of_day: AtomicBool,
    itself: Weak<TimerFile<M>>,
    all: &'static TimerFiles<M>,
    scheduler: &'static Scheduler<M>,
    /// Whether the file's clock is the time of day. If not, it is the time since boot.
    day: bool,
    /// Whether the file's clock would wake a sleeping machine. Setting such a timer needs a capability.
    pub alarm: bool,
    course: SpinLock<Course>,
    readiness: Readiness,
}

// SAFETY: the lists' locks guard the links.
unsafe impl<M: Machine> Send for TimerFile<M> {}
// SAFETY: shared access needs the file's lock, or the lists' locks for the links.
unsafe impl<M: Machine> Sync for TimerFile<M> {}

/// The timer's callback, which runs in interrupt context.
///
/// # Safety
/// `timer` is the field of a [`TimerFile`] that is alive and does not move.
unsafe fn expire<M: Machine>(timer: NonNull<Timer>, _now: u64) -> Option<u64> {
    // SAFETY: by this function's contract `timer` lies in a live `TimerFile`. The reference is shared.
    let file = unsafe { timer.byte_sub(offset_of!(TimerFile<M>, timer)).cast::<TimerFile<M>>().as_ref() };
    let mut expired = file.all.expired.lock(file.scheduler.machine());
    if !file.is_expired.swap(true, Ordering::Relaxed) {
        // SAFETY: the file was not on the list. Its drop removes it from the list.
        unsafe { expired.list.push_back(NonNull::from(file)) };
    }
    if let Some(notifier) = expired.notifier {
        unpark(notifier);
    }
    None
}

impl<M: Machine> Default for TimerFiles<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Machine> TimerFiles<M> {
    /// The state of a machine without timer files.
    pub fn new() -> Self {
        TimerFiles {
            expired: IrqLock::new(Rank::EXPIRED, Expired { list: List::new(), notifier: None }),
            of_day: SpinLock::new(Rank::DAY_TIMERS, OfDay { list: List::new(), len: 0 }),
        }
    }

    /// Notifies the waiters for expired files, in an endless loop. The caller is a kernel thread.
    pub fn notify(&self, machine: &M) -> ! {
        self.expired.lock(machine).notifier = Some(current_thread());
        loop {
            while let Some(file) = self.next_expired(machine) {
                file.go_on_if_early();
                file.readiness.notify();
            }
            park(None);
        }
    }

    fn next_expired(&self, machine: &M) -> Option<Arc<TimerFile<M>>> {
        loop {
            let mut expired = self.expired.lock(machine);
            let first = expired.list.pop_front()?;
            // SAFETY: a file on the list is alive, or its drop waits for the list's lock.
            let first = unsafe { first.as_ref() };
            first.is_expired.store(false, Ordering::Relaxed);
            let file = first.itself.upgrade();
            drop(expired);
            if file.is_some() {
                return file;
            }
        }
    }

    /// Called when the time of day was set. Absolute timers on the time of day are armed again, and some files report
    /// the change.
    #[cold]
    pub fn day_changed(&self) {
        // Each step visits the first file of the list, and moves it to the end. There are as many steps as the list had
        // files. If a file is removed during the loop, the loop visits some files twice, which is harmless.
        let files = self.of_day.lock().len;
        for _ in 0..files {
            let file = {
                let mut of_day = self.of_day.lock();
                let Some(first) = of_day.list.pop_front() else { return };
                // SAFETY: the file was just removed from the list. A file on the list is alive, or its drop waits for
                // the list's lock.
                unsafe {
                    of_day.list.push_back(first);
                    first.as_ref().itself.upgrade()
                }
            };
            if let Some(file) = file {
                file.day_changed();
            }
        }
    }
}

impl<M: Machine> TimerFile<M> {
    /// A file whose timer is off. `day`: its clock is the time of day. `alarm`: setting the timer needs a capability.
    pub fn new(
        all: &'static TimerFiles<M>,
        scheduler: &'static Scheduler<M>,
        day: bool,
        alarm: bool,
    ) -> Result<Arc<Self>, OutOfMemory> {
        Arc::try_new_cyclic(|itself| TimerFile {
            timer: Timer::new(expire::<M>),
            among_expired: Links::new(),
            is_expired: AtomicBool::new(false),
            among_of_day: Links::new(),
            is_of_day: AtomicBool::new(false),
            itself: itself.clone(),
            all,
            scheduler,
            day,
            alarm,
            course: SpinLock::new(Rank::TIMER_FILE, Course::default()),
            readiness: Readiness::new(),
        })
    }

    fn now(&self, course: &Course) -> u64 {
        if course.of_day { self.scheduler.machine().realtime() } else { now() }
    }

    /// Arms the timer for the next unread expiry.
    fn arm(&self, course: &Course) {
        // `cancel` also waits for a callback that runs.
        self.scheduler.cancel(&self.timer);
        if course.armed {
            let deadline = match course.of_day {
                true => on_monotonic(self.scheduler.machine(), course.expires),
                false => course.expires,
            };
            // SAFETY: the file is in an `Arc`, and its drop cancels the timer.
            unsafe { self.scheduler.arm(&self.timer, deadline) };
        }
    }

    /// Arms the timer again if it has not expired yet. Called after the timer's callback has run. The expiry has
    /// disarmed the timer.
    fn go_on_if_early(&self) {
        let course = self.course.lock();
        if course.is_ahead(self.now(&course)) {
            self.arm(&course);
        }
        drop(course);
    }

    fn list_of_day(&self, listed: bool) {
        let mut of_day = self.all.of_day.lock();
        if self.is_of_day.swap(listed, Ordering::Relaxed) == listed {
            return;
        }
        // SAFETY: `is_of_day` shows whether the file is on the list. Its drop removes it.
        unsafe {
            if listed {
                of_day.list.push_back(NonNull::from(self));
                of_day.len += 1;
            } else {
                of_day.list.remove(NonNull::from(self));
                of_day.len -= 1;
            }
        }
    }

    /// Sets the timer. `absolute`: `new.value` is a time on the file's clock. `reports`: a change of the time of day is
    /// reported. Returns the remaining time of the old setting, and whether an earlier change was not reported yet.
    pub fn set(&self, absolute: bool, reports: bool, new: TimerSetting) -> (TimerSetting, bool) {
        let of_day = absolute && self.day;
        let mut course = self.course.lock();
        let old = course.rest(self.now(&course));
        let reports = reports && of_day;
        let was_changed = course.changed && reports && new.value != 0;
        *course = Course {
            armed: new.value != 0,
            expires: if absolute { new.value } else { now().saturating_add(new.value) },
            every: new.every,
            of_day,
            reports,
            changed: course.changed && reports && !was_changed,
        };
        self.list_of_day(of_day && (course.armed || reports));
        self.arm(&course);
        drop(course);
        // The waiters are notified, so that they check again whether the file is ready under the new setting.
        self.readiness.notify();
        (old, was_changed)
    }

    /// The remaining time of the file's setting.
    pub fn get(&self) -> TimerSetting {
        let course = self.course.lock();
        course.rest(self.now(&course))
    }

    fn day_changed(&self) {
        let mut course = self.course.lock();
        if course.of_day {
            course.changed |= course.reports;
            self.arm(&course);
        }
        drop(course);
        self.readiness.notify();
    }

    /// Reads the number of expiries. `None` if there are none. `Canceled` if a change of the time of day must be
    /// reported.
    fn take(&self) -> Option<Result<u64, FsError>> {
        let mut course = self.course.lock();
        let now = self.now(&course);
        if course.changed {
            course.changed = false;
            // The expiries before the change are lost.
            let _lost = course.take(now);
            self.arm(&course);
            return Some(Err(FsError::Canceled));
        }
        let n = course.take(now)?;
        self.arm(&course);
        Some(Ok(n))
    }
}

impl<M: Machine> Drop for TimerFile<M> {
    fn drop(&mut self) {
        self.scheduler.cancel(&self.timer);
        self.list_of_day(false);
        let mut expired = self.all.expired.lock(self.scheduler.machine());
        if self.is_expired.swap(false, Ordering::Relaxed) {
            // SAFETY: `is_expired` was set, so the file is on the list.
            unsafe { expired.list.remove(NonNull::from(&*self)) };
        }
    }
}

impl<M: Machine> Stream for TimerFile<M> {
    fn read(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        if sink.room() < 8 {
            return Err(FsError::Invalid);
        }
        let n = self.readiness.wait(io, || self.take())??;
        match sink.put(&n.to_le_bytes())? {
            8 => Ok(8),
            _ => Err(FsError::Fault),
        }
    }

    fn write(&self, _io: &Io<'_>, _source: &mut dyn Source) -> Result<usize, FsError> {
        Err(FsError::Invalid)
    }

    fn ready(&self) -> Ready {
        let course = self.course.lock();
        let ready = course.changed || course.expiries(self.now(&course)) > 0;
        if ready { Ready::READ } else { Ready::empty() }
    }

    fn readiness(&self) -> Option<&Readiness> {
        Some(&self.readiness)
    }

    fn held(&self) -> usize {
        size_of::<Self>()
    }

    fn seek(&self) -> Result<u64, FsError> {
        Ok(0)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn set(expires: u64, every: u64) -> Course {
        Course { armed: true, expires, every, ..Course::default() }
    }

    #[test]
    fn expiries_are_read_once() {
        let mut once = set(100, 0);
        assert_eq!((once.take(99), once.take(5000), once.take(5000)), (None, Some(1), None));
        let mut often = set(100, 10);
        assert_eq!((often.take(99), often.take(100), often.take(109)), (None, Some(1), None));
        assert_eq!((often.take(131), often.take(139), often.take(140)), (Some(3), None, Some(1)));
        assert_eq!(Course::default().take(u64::MAX), None);
    }

    #[test]
    fn a_callback_that_ran_early_has_an_expiry_ahead() {
        let mut course = set(100, 0);
        assert!(course.is_ahead(99) && !course.is_ahead(100));
        assert_eq!((course.take(100), course.is_ahead(100), course.is_ahead(50)), (Some(1), false, false));
        let mut course = set(100, 10);
        assert_eq!((course.take(100), course.is_ahead(100), course.is_ahead(110)), (Some(1), true, false));
    }

    #[test]
    fn the_rest_is_that_of_the_next_expiry() {
        assert_eq!(set(100, 0).rest(40), TimerSetting { value: 60, every: 0 });
        assert_eq!(set(100, 0).rest(140), TimerSetting::default());
        assert_eq!(set(100, 30).rest(131), TimerSetting { value: 29, every: 30 });
        let off = Course { every: 30, ..Course::default() };
        assert_eq!(off.rest(131), TimerSetting { value: 0, every: 30 });
    }

    #[test]
    fn counts_end_at_the_largest_number() {
        let mut course = set(0, 1);
        assert_eq!(course.take(u64::MAX - 1), Some(u64::MAX));
        assert_eq!(course.rest(u64::MAX), TimerSetting { value: 0, every: 1 });
        let mut course = set(u64::MAX - 1, u64::MAX);
        assert_eq!((course.take(u64::MAX - 1), course.expires), (Some(1), u64::MAX));
    }
}
