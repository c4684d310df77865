//! Signals that are sent and not yet delivered.

use super::info::{Detail, SigInfo, code};
use super::set::{SigSet, Signal};
use crate::process::users::Charge;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quire_heap::Deque;
use quire_sync::{Rank, SpinLock};

/// One queue: a thread's or a process's.
#[derive(Default)]
pub struct Pending {
    set: SigSet,
    queue: Entries,
}

/// Signals with their details, the oldest first, each charged to the user of its receiver. The place of a timer's
/// signal is charged with the timer.
pub(super) type Entries = Deque<(SigInfo, Option<Charge>)>;

/// The payment for a place in a queue.
pub(super) enum Payment {
    /// For a signal that was not paid before.
    Charge(Charge),
    /// Its timer has paid.
    OfTimer,
    /// None: the signal gets no place.
    None,
}

fn is_of_timer(info: &SigInfo) -> bool {
    matches!(info.detail, Detail::Timer { .. })
}

/// Unused places that a queue may keep.
const MANY: usize = 8;

/// There was no room for a signal's details, without which it is not sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Full;

impl Pending {
    /// Nothing pending.
    pub const fn new() -> Pending {
        Pending { set: SigSet::EMPTY, queue: Deque::new() }
    }

    /// What is pending.
    pub fn set(&self) -> SigSet {
        self.set
    }

    /// Whether `info` needs a place in the queue: a standard signal that is already pending does not, unless it is a
    /// timer's.
    pub(super) fn wants_place(&self, info: &SigInfo) -> bool {
        info.signal.is_queued() || !self.set.has(info.signal) || is_of_timer(info)
    }

    /// The used places in the queue, and all places.
    pub(super) fn places(&self) -> (usize, usize) {
        (self.queue.len(), self.queue.capacity())
    }

    /// Whether it has many places, of which it uses few.
    pub(super) fn is_large(&self) -> bool {
        let (used, places) = self.places();
        places > MANY && 8 * used < places
    }

    /// Moves the queue into `other`, which has room for it, and leaves the old one there.
    pub(super) fn exchange(&mut self, other: &mut Entries) {
        while let Some(entry) = self.queue.pop_front() {
            other.push_back_reserved(entry);
        }
        core::mem::swap(&mut self.queue, other);
    }

    /// Adds a signal. A pending standard signal absorbs it. The caller has ensured a free place in the queue if it
    /// gives a payment.
    ///
    /// Without a payment there is no place for the details. `kill` and standard signals become pending without them,
    /// others not at all, as on Linux. Nor does a timer's, because its details lead back to the timer.
    pub(super) fn add(&mut self, info: SigInfo, payment: Payment) -> Result<(), Full> {
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
        Ok(())
    }

    /// Takes the first signal that is in `wanted`, with its details.
    pub fn take(&mut self, wanted: SigSet) -> Option<SigInfo> {
        let signal = self.set.and(wanted).first()?;
        let mut found = None;
        let mut more = false;
        let mut at = 0;
        while at < self.queue.len() {
            if self.queue.get(at).is_some_and(|(info, _)| info.signal == signal) {
                if found.is_some() {
                    more = true;
                    break;
                }
                found = self.queue.remove(at).map(|(info, _)| info);
            } else {
                at += 1;
            }
        }
        if !more {
            self.set = self.set.without(SigSet::of(&[signal]));
        }
        Some(found.unwrap_or(SigInfo { code: code::USER, ..SigInfo::kernel(signal) }))
    }

    /// Drops the signals in `gone`. Returns whether one of them was a timer's.
    pub fn discard(&mut self, gone: SigSet) -> bool {
        if self.set.and(gone).is_empty() {
            return false;
        }
        self.set = self.set.without(gone);
        let mut of_timer = false;
        self.queue.retain(|(info, _)| {
            let stays = !gone.has(info.signal);
            of_timer |= !stays && is_of_timer(info);
            stays
        });
        of_timer
    }

    /// Drops the signals of timers.
    fn discard_of_timers(&mut self) {
        let mut gone = SigSet::EMPTY;
        self.queue.retain(|(info, _)| {
            if is_of_timer(info) {
                gone = gone.with(info.signal);
            }
            !is_of_timer(info)
        });
        let left = self.queue.iter().fold(SigSet::EMPTY, |left, (info, _)| left.with(info.signal));
        self.set = self.set.without(gone.without(left));
    }

    /// Whether `signal` is pending.
    pub fn has(&self, signal: Signal) -> bool {
        self.set.has(signal)
    }
}

/// A queue of pending signals, and the set of them, readable without its lock.
pub struct PendingQueue {
    bits: AtomicU64,
    pub(super) queue: SpinLock<Pending>,
}

impl Default for PendingQueue {
    fn default() -> Self {
        Self::new()
    }
}

impl PendingQueue {
    /// Nothing pending.
    pub const fn new() -> Self {
        PendingQueue { bits: AtomicU64::new(0), queue: SpinLock::new(Rank::SIGNALS, Pending::new()) }
    }
    /// What is pending.
    pub fn set(&self) -> SigSet {
        SigSet(self.bits.load(Ordering::Acquire))
    }
    /// Adds a signal; `charge` is for its place in the queue, if its user may have one. Without memory for it the
    /// signal has no place.
    pub(crate) fn add(&self, info: SigInfo, charge: Option<Charge>) -> Result<(), Full> {
        self.put(info, charge.map_or(Payment::None, Payment::Charge))
    }
    /// Adds the signal of a timer, which has paid for its place. An error if there is no memory.
    pub(crate) fn add_of_timer(&self, info: SigInfo) -> Result<(), Full> {
        self.put(info, Payment::OfTimer)
    }
    fn put(&self, info: SigInfo, mut payment: Payment) -> Result<(), Full> {
        // Dropped after the lock, like all memory that is allocated before it.
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
    /// Takes the first signal of `wanted`.
    pub fn take(&self, wanted: SigSet) -> Option<SigInfo> {
        self.take_and(wanted, |_| {})
    }
    /// Takes the first signal of `wanted`, to deliver it. If it may stop the process, `stop_taken` is set before the
    /// queue's set changes. So a SIGCONT finds the stop in the queue or in the flag.
    pub(super) fn take_to_deliver(&self, wanted: SigSet, stop_taken: &AtomicBool) -> Option<SigInfo> {
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
    /// Drops the signals in `gone` and updates the set. Returns whether one of them was a timer's, which then goes on
    /// without it.
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
    /// Drops the signals of timers.
    pub(crate) fn discard_of_timers(&self) {
        let mut queue = self.queue.lock();
        queue.discard_of_timers();
        self.bits.store(queue.set().0, Ordering::Release);
        let large = queue.is_large();
        drop(queue);
        if large {
            self.shrink();
        }
    }
    /// Frees the memory of a queue that was once full, because no user is charged for it. Without memory for a smaller
    /// queue it stays until the next signal is taken.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::users::testing::Counted;
    use crate::signal::{Detail, info::code};

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
    fn exec_drops_the_signals_of_timers_only() {
        let user = Counted::new();
        let p = PendingQueue::new();
        p.add(with_value(40, 1), user.signal(9)).expect("room");
        for (number, id) in [(40, 0), (41, 1)] {
            p.add_of_timer(of_timer(number, id)).expect("memory");
        }
        p.discard_of_timers();
        assert_eq!(p.take(SigSet(u64::MAX)), Some(with_value(40, 1)));
        assert_eq!(p.set(), SigSet::EMPTY);
        p.add_of_timer(of_timer(20, 0)).expect("memory");
        assert!(!p.discard(SigSet::of(&[Signal::CONT])) && p.discard(SigSet::STOPPING));
    }
}
