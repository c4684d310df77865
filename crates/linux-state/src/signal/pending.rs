//! Signals that were sent and are not delivered yet.

use crate::process::users::Charge;
use crate::signal::info::{Detail, SigInfo, code};
use crate::signal::set::{SigSet, Signal};
use quire_heap::Deque;
use quire_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quire_sync::{Rank, SpinLock};

/// The pending signals of one thread or one process.
#[derive(Default)]
pub struct Pending {
    /// All pending signals.
    set: SigSet,
    /// The signals in `set` that were not sent by timers. They may have an entry in the queue, or none. The other
    /// signals in `set` have entries of timers in the queue.
    sent: SigSet,
    queue: Entries,
}

/// Signals with their details, the oldest first. Each entry is charged to the user of its receiver. The entry of a
/// timer's signal is charged when the timer is created.
pub type Entries = Deque<(SigInfo, Option<Charge>)>;

/// The charge for an entry in a queue.
pub(crate) enum Payment {
    /// A charge for this signal.
    Charge(Charge),
    /// The signal's timer was charged when it was created.
    OfTimer,
    /// No charge: the signal gets no entry.
    None,
}

fn is_of_timer(info: &SigInfo) -> bool {
    matches!(info.detail, Detail::Timer { .. })
}

/// The number of unused entries that a queue may keep allocated.
const MANY: usize = 8;

/// The error of a signal that needs an entry in the queue and found no room for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl Pending {
    /// An empty queue.
    pub const fn new() -> Pending {
        Pending { set: SigSet::EMPTY, sent: SigSet::EMPTY, queue: Deque::new() }
    }

    /// The set of pending signals.
    pub fn set(&self) -> SigSet {
        self.set
    }

    /// Whether `info` needs an entry in the queue. A standard signal that was sent already needs none.
    ///
    /// The entry of a timer's signal is never merged with another signal's entry, because the entry becomes invalid if
    /// the timer is set again. A signal that had been merged into it would then be lost.
    pub(super) fn wants_place(&self, info: &SigInfo) -> bool {
        info.signal.is_queued() || !self.sent.has(info.signal) || is_of_timer(info)
    }

    /// The number of used entries in the queue, and its capacity.
    pub fn places(&self) -> (usize, usize) {
        (self.queue.len(), self.queue.capacity())
    }

    /// Whether the queue has a large capacity, of which it uses less than an eighth.
    pub(super) fn is_large(&self) -> bool {
        let (used, places) = self.places();
        places > MANY && 8 * used < places
    }

    /// Moves the entries into `other`, which has room for them and becomes the queue. `other` gets the old, empty
    /// queue.
    pub fn exchange(&mut self, other: &mut Entries) {
        while let Some(entry) = self.queue.pop_front() {
            other.push_back_reserved(entry);
        }
        core::mem::swap(&mut self.queue, other);
    }

    /// Adds a signal. A standard signal that was sent already is not added again. A caller that passes a payment has
    /// ensured that the queue has a free entry.
    ///
    /// Without a payment the signal gets no entry and no details. Standard signals, and real-time signals of `kill`,
    /// then become pending without details. Other signals are refused, as on Linux. Signals of timers are refused too,
    /// because their details name the timer.
    pub(crate) fn add(&mut self, info: SigInfo, payment: Payment) -> Result<(), Full> {
        if !self.wants_place(&info) {
            return Ok(());
        }
        match payment {
            Payment::Charge(charge) => self.queue.push_back_reserved((info, Some(charge))),
            Payment::OfTimer => self.queue.push_back_reserved((info, None)),
            Payment::None if is_of_timer(&info) || info.signal.is_queued() && info.code != code::USER => {
                return Err(Full);
            }
            Payment::None => {}
        }
        self.set = self.set.with(info.signal);
        if !is_of_timer(&info) {
            self.sent = self.sent.with(info.signal);
        }
        Ok(())
    }

    /// Removes the first signal that is in `wanted`, and returns it with its details.
    pub fn take(&mut self, wanted: SigSet) -> Option<SigInfo> {
        let signal = self.set.and(wanted).first()?;
        let at = self.queue.iter().position(|(info, _)| info.signal == signal);
        let found = at.and_then(|at| self.queue.remove(at)).map(|(info, _)| info);
        if !found.as_ref().is_some_and(is_of_timer) {
            // The signal may also have been sent without an entry. As on Linux, this entry then stands for both.
            let more = found.is_some() && self.holds(at, |info| info.signal == signal && !is_of_timer(info));
            self.set_sent(signal, more);
        }
        self.see_what_is_left(signal, at);
        Some(found.unwrap_or(SigInfo { code: code::USER, ..SigInfo::kernel(signal) }))
    }

    /// Whether `is` accepts one of the entries from index `from` on (`None`: all entries).
    fn holds(&self, from: Option<usize>, is: impl Fn(&SigInfo) -> bool) -> bool {
        (from.unwrap_or(0)..self.queue.len()).any(|at| self.queue.get(at).is_some_and(|(info, _)| is(info)))
    }

    fn set_sent(&mut self, signal: Signal, sent: bool) {
        self.sent = if sent { self.sent.with(signal) } else { self.sent.without(SigSet::of(&[signal])) };
    }

    /// Clears `signal` in `set`, unless `signal` is still pending. Called after the first entry of `signal` was
    /// removed, at index `at`. `None`: there was no entry.
    fn see_what_is_left(&mut self, signal: Signal, at: Option<usize>) {
        let stays = self.sent.has(signal) || at.is_some() && self.holds(at, |info| info.signal == signal);
        if !stays {
            self.set = self.set.without(SigSet::of(&[signal]));
        }
    }

    /// Removes the entry of timer `id` for its setting `setting`, if there is one.
    fn remove_of_timer(&mut self, id: i32, setting: u32) {
        let is_it = |info: &SigInfo| match info.detail {
            Detail::Timer { id: of, setting: at, .. } => (of, at) == (id, setting),
            _ => false,
        };
        let Some(at) = self.queue.iter().position(|(info, _)| is_it(info)) else { return };
        if let Some((info, _)) = self.queue.remove(at) {
            self.see_what_is_left(info.signal, Some(0));
        }
    }

    /// Removes the signals in `gone`. Returns whether one of them was a timer's.
    pub fn discard(&mut self, gone: SigSet) -> bool {
        if self.set.and(gone).is_empty() {
            return false;
        }
        self.set = self.set.without(gone);
        self.sent = self.sent.without(gone);
        let mut of_timer = false;
        self.queue.retain(|(info, _)| {
            let stays = !gone.has(info.signal);
            of_timer |= !stays && is_of_timer(info);
            stays
        });
        of_timer
    }

    /// Removes the signals of timers.
    fn discard_of_timers(&mut self) {
        self.queue.retain(|(info, _)| !is_of_timer(info));
        self.set = self.sent;
    }

    /// Whether `signal` is pending.
    pub fn has(&self, signal: Signal) -> bool {
        self.set.has(signal)
    }
}

/// A queue of pending signals. The set of pending signals can be read without the queue's lock.
pub struct PendingQueue {
    bits: AtomicU64,
    pub queue: SpinLock<Pending>,
}

impl Default for PendingQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl PendingQueue {
    /// An empty queue.
    pub fn new() -> Self {
        PendingQueue { bits: AtomicU64::new(0), queue: SpinLock::new(Rank::SIGNALS, Pending::new()) }
    }
    /// The set of pending signals.
    pub fn set(&self) -> SigSet {
        SigSet(self.bits.load(Ordering::Acquire))
    }
    /// Adds a signal. `charge` is the charge for its entry, or `None` if its user is at the limit. If there is no
    /// memory for the entry, the signal is added without one.
    pub fn add(&self, info: SigInfo, charge: Option<Charge>) -> Result<(), Full> {
        self.put(info, charge.map_or(Payment::None, Payment::Charge))
    }
    /// Adds the signal of a timer, whose entry is charged to the timer. `Full` if there is no memory for the entry.
    pub(crate) fn add_of_timer(&self, info: SigInfo) -> Result<(), Full> {
        self.put(info, Payment::OfTimer)
    }
    fn put(&self, info: SigInfo, mut payment: Payment) -> Result<(), Full> {
        // The variable is declared before the lock is acquired, so that the old queue is freed after the lock is
        // released.
        let mut larger = Entries::new();
        loop {
            let mut queue = self.queue.lock();
            let (used, places) = queue.places();
            if !matches!(payment, Payment::None) && used == places && queue.wants_place(&info) {
                if larger.capacity() <= used {
                    drop(queue);
                    match Entries::try_with_capacity(2 * used.max(1)) {
                        Ok(entries) => larger = entries,
                        Err(_) => payment = Payment::None,
                    }
                    continue;
                }
                queue.exchange(&mut larger);
            }
            let result = queue.add(info, payment);
            self.bits.store(queue.set().0, Ordering::Release);
            drop(queue);
            return result;
        }
    }
    /// Removes and returns the first signal of `wanted`.
    pub fn take(&self, wanted: SigSet) -> Option<SigInfo> {
        self.take_and(wanted, |_| {})
    }
    /// Removes the first signal of `wanted`, to deliver it. If the signal may stop the process, sets `stop_taken`
    /// before the queue's set changes. So the sender of a SIGCONT always finds the stop signal: in the queue, or by the
    /// flag.
    pub fn take_to_deliver(&self, wanted: SigSet, stop_taken: &AtomicBool) -> Option<SigInfo> {
        self.take_and(wanted, |info| {
            if SigSet::STOPPING.has(info.signal) {
                stop_taken.store(true, Ordering::Relaxed);
            }
        })
    }
    fn take_and(&self, wanted: SigSet, taken: impl FnOnce(&SigInfo)) -> Option<SigInfo> {
        if self.set().and(wanted).is_empty() {
            return None;
        }
        let mut queue = self.queue.lock();
        let info = queue.take(wanted);
        if let Some(info) = &info {
            taken(info);
        }
        self.bits.store(queue.set().0, Ordering::Release);
        let large = queue.is_large();
        drop(queue);
        if large {
            self.shrink();
        }
        info
    }
    /// Removes the signals in `gone` and updates the set. Returns whether one of them was a timer's. If so, the caller
    /// lets that timer continue.
    pub fn discard(&self, gone: SigSet) -> bool {
        if self.set().and(gone).is_empty() {
            return false;
        }
        let mut queue = self.queue.lock();
        let of_timer = queue.discard(gone);
        self.bits.store(queue.set().0, Ordering::Release);
        let large = queue.is_large();
        drop(queue);
        if large {
            self.shrink();
        }
        of_timer
    }
    /// Removes the signals of timers.
    pub fn discard_of_timers(&self) {
        self.drop_entries(Pending::discard_of_timers);
    }
    /// Removes the signal of timer `id` for its setting `setting`, if it is in this queue.
    pub(crate) fn remove_of_timer(&self, id: i32, setting: u32) {
        self.drop_entries(|queue| queue.remove_of_timer(id, setting));
    }
    fn drop_entries(&self, f: impl FnOnce(&mut Pending)) {
        let mut queue = self.queue.lock();
        f(&mut queue);
        self.bits.store(queue.set().0, Ordering::Release);
        let large = queue.is_large();
        drop(queue);
        if large {
            self.shrink();
        }
    }
    /// Frees the unused memory of a queue that was large, because no user is charged for it. If there is no memory for
    /// a smaller queue, the large one stays until the next signal is removed.
    #[cold]
    fn shrink(&self) {
        let used = self.queue.lock().places().0;
        let Ok(mut smaller) = Entries::try_with_capacity(2 * used) else { return };
        let mut queue = self.queue.lock();
        if queue.is_large() && queue.places().0 <= smaller.capacity() {
            queue.exchange(&mut smaller);
        }
        drop(queue);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::process::users::testing::Counted;
    use crate::signal::Detail;
    use crate::signal::info::code;

    fn with_value(n: u64, value: u64) -> SigInfo {
        let signal = Signal::new(n).expect("a valid number");
        SigInfo { signal, code: code::QUEUE, errno: 0, detail: Detail::Value { pid: 0, uid: 0, value } }
    }

    #[test]
    fn standard_signals_merge_and_real_time_ones_queue_in_order() {
        let user = Counted::new();
        let p = PendingQueue::new();
        for value in 0..3 {
            p.add(with_value(10, value), user.signal(9)).expect("room");
            p.add(with_value(40, value), user.signal(9)).expect("room");
        }
        assert_eq!(user.signals(), 4);
        let all = SigSet(u64::MAX);
        assert_eq!(p.take(all), Some(with_value(10, 0)));
        for value in 0..3 {
            assert_eq!(p.take(all), Some(with_value(40, value)));
        }
        assert_eq!((p.take(all), user.signals()), (None, 0));
    }

    #[test]
    fn without_room_kill_and_standard_signals_lose_their_details() {
        let user = Counted::new();
        let p = PendingQueue::new();
        for value in 0..1000 {
            p.add(with_value(40, value), user.signal(1000)).expect("room");
        }
        assert!(user.signal(1000).is_none());
        assert_eq!(p.add(with_value(41, 0), None), Err(Full));
        assert!(!p.set().has(Signal::new(41).expect("valid")));
        for (number, code) in [(41, code::USER), (10, code::QUEUE)] {
            let sent = SigInfo { code, ..with_value(number, 7) };
            assert_eq!(p.add(sent, None), Ok(()));
            let one = Signal::new(number).expect("valid");
            let taken = p.take(SigSet::of(&[one])).expect("pending");
            assert_eq!((taken.signal, taken.code, taken.detail), (one, code::USER, SigInfo::kernel(one).detail));
        }
        assert_eq!(p.take(SigSet(u64::MAX)), Some(with_value(40, 0)));
    }

    #[test]
    fn a_queue_that_was_full_gives_its_memory_back() {
        let user = Counted::new();
        let p = PendingQueue::new();
        let places = || p.queue.lock().places();
        for value in 0..1000 {
            p.add(with_value(40, value), user.signal(1000)).expect("room");
        }
        assert!(places().1 >= 1000);
        for left in (0..1000).rev() {
            p.take(SigSet(u64::MAX)).expect("pending");
            assert_eq!(places().0, left);
            assert!(places().1 <= MANY.max(8 * left), "{} places for {left}", places().1);
        }
        for value in 0..100 {
            p.add(with_value(40, value), user.signal(1000)).expect("room");
        }
        p.discard(SigSet(u64::MAX));
        assert_eq!((places().1, user.signals()), (0, 0));
    }

    #[test]
    fn a_discarded_or_dropped_signal_is_no_longer_charged() {
        let user = Counted::new();
        let p = PendingQueue::new();
        for number in [18, 20, 40, 40] {
            p.add(with_value(number, 0), user.signal(9)).expect("room");
        }
        p.discard(SigSet::STOPPING);
        assert_eq!((p.set().has(Signal::CONT), user.signals()), (true, 3));
        drop(p);
        assert_eq!(user.signals(), 0);
    }

    fn of_timer(n: u64, id: i32) -> SigInfo {
        let detail = Detail::Timer { id, overrun: 0, value: 0, setting: 0 };
        SigInfo { code: code::TIMER, detail, ..with_value(n, 0) }
    }

    #[test]
    fn each_timer_has_a_place_of_its_own_even_for_a_standard_signal() {
        let p = PendingQueue::new();
        for id in 0..3 {
            p.add_of_timer(of_timer(14, id)).expect("memory");
        }
        for id in 0..3 {
            assert_eq!(p.take(SigSet(u64::MAX)), Some(of_timer(14, id)));
        }
        assert_eq!(p.take(SigSet(u64::MAX)), None);
        let p = PendingQueue::new();
        let (refused, requests) = quire_heap::refusal::at(1, || p.add_of_timer(of_timer(14, 0)));
        assert_eq!((refused, requests, p.set().has(Signal::ALRM)), (Err(Full), 1, false));
    }

    #[test]
    fn a_timers_entry_goes_without_the_signals_of_others() {
        let user = Counted::new();
        let all = SigSet(u64::MAX);
        let plain = |n| SigInfo { code: code::USER, ..SigInfo::kernel(with_value(n, 0).signal) };
        // A signal of `kill` has an entry of its own beside the timer's entry. A second signal of `kill` is merged into
        // the first.
        let p = PendingQueue::new();
        p.add_of_timer(of_timer(14, 0)).expect("memory");
        for value in [1, 2] {
            p.add(with_value(14, value), user.signal(9)).expect("room");
        }
        p.remove_of_timer(0, 0);
        assert_eq!((p.take(all), p.take(all), p.set()), (Some(with_value(14, 1)), None, SigSet::EMPTY));
        // The timer's entry is first, and the `kill` has no entry.
        p.add_of_timer(of_timer(14, 0)).expect("memory");
        p.add(with_value(14, 1), None).expect("a standard signal");
        assert_eq!((p.take(all), p.take(all), p.take(all)), (Some(of_timer(14, 0)), Some(plain(14)), None));
        p.add_of_timer(of_timer(14, 0)).expect("memory");
        p.add(with_value(14, 1), None).expect("a standard signal");
        p.remove_of_timer(0, 0);
        assert_eq!((p.take(all), p.take(all), p.set()), (Some(plain(14)), None, SigSet::EMPTY));
        // The `kill` is before the timer's entry.
        p.add(with_value(14, 1), user.signal(9)).expect("room");
        p.add_of_timer(of_timer(14, 0)).expect("memory");
        p.remove_of_timer(0, 0);
        assert_eq!((p.take(all), p.take(all), user.signals()), (Some(with_value(14, 1)), None, 0));
    }

    #[test]
    fn a_timer_that_is_set_often_uses_one_place() {
        let p = PendingQueue::new();
        let of_setting = |setting| {
            let detail = Detail::Timer { id: 3, overrun: 0, value: 0, setting };
            SigInfo { detail, ..of_timer(40, 3) }
        };
        p.add_of_timer(of_timer(40, 2)).expect("memory");
        for setting in 0..1000 {
            p.add_of_timer(of_setting(setting)).expect("memory");
            // A removal with another timer's id, or with another setting's number, removes nothing.
            p.remove_of_timer(1, setting);
            p.remove_of_timer(3, setting + 1);
            assert_eq!(p.queue.lock().places().0, 2);
            p.remove_of_timer(3, setting);
        }
        assert_eq!(p.take(SigSet(u64::MAX)), Some(of_timer(40, 2)));
        assert_eq!(p.set(), SigSet::EMPTY);
    }

    #[test]
    fn exec_drops_the_signals_of_timers_only() {
        let user = Counted::new();
        let p = PendingQueue::new();
        p.add(with_value(40, 1), user.signal(9)).expect("room");
        for (number, id) in [(40, 0), (41, 1)] {
            p.add_of_timer(of_timer(number, id)).expect("memory");
        }
        // A signal of `kill` without an entry, beside the entry of a timer's signal.
        let usr1 = with_value(10, 0).signal;
        p.add_of_timer(of_timer(10, 2)).expect("memory");
        p.add(with_value(10, 0), None).expect("a standard signal");
        p.discard_of_timers();
        assert_eq!(p.take(SigSet(u64::MAX)), Some(SigInfo { code: code::USER, ..SigInfo::kernel(usr1) }));
        assert_eq!(p.take(SigSet(u64::MAX)), Some(with_value(40, 1)));
        assert_eq!(p.set(), SigSet::EMPTY);
        p.add_of_timer(of_timer(20, 0)).expect("memory");
        assert!(!p.discard(SigSet::of(&[Signal::CONT])) && p.discard(SigSet::STOPPING));
    }
}
