//! Timers: a hierarchical wheel per CPU. Its size does not depend on the number of timers; arming and cancelling are
//! O(1).
//!
//! A wheel has seven levels of 64 slots. A slot of level 0 covers one tick of 16 microseconds; a slot of level n covers
//! 64 slots of level n - 1. A timer is on the level of the highest 6-bit digit in which its tick differs from the
//! wheel's time. It moves to a lower level at most six times before it expires, in its exact tick. Occupancy bitmaps
//! find the next slot without a scan and without a periodic tick. An idle CPU is woken only for timers that are due or
//! move to a lower level. (Varghese and Lauck, "Hashed and hierarchical timing wheels", 1987, scheme 7; the digit rule
//! is tokio's.)
//!
//! Callbacks run in interrupt context under the wheel's lock. So when a cancel returns, the callback has returned or
//! will never run. A callback may wake threads, but must not arm or cancel timers. A callback that returns a deadline
//! arms its timer again.

use crate::list::{Adapter, Links, List};
use crate::mutant::{Mutant, mutant};
use core::ptr::NonNull;
use quire_sync::CpuId;
use quire_sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};
use quire_sync::record;

/// log2 of a tick in nanoseconds.
const TICK_SHIFT: u32 = 14;
#[cfg(not(any(loom, shuttle)))]
const DIGIT: u32 = 6;
#[cfg(not(any(loom, shuttle)))]
const LEVELS: usize = 7;
// Model checkers build a wheel for every schedule that they try, so their wheels are small.
#[cfg(any(loom, shuttle))]
const DIGIT: u32 = 2;
#[cfg(any(loom, shuttle))]
const LEVELS: usize = 2;
const SLOTS: usize = 1 << DIGIT;
/// The greatest distance of a timer from the wheel's time, in ticks (2.3 years). A timer with a later deadline is put
/// at this distance, and is inserted again when the wheel reaches it. The distance is one top-level slot less than the
/// whole wheel. So such a timer is never inserted in the slot that is being emptied.
const HORIZON: u64 = (1 << (DIGIT * LEVELS as u32)) - (1 << (DIGIT * (LEVELS as u32 - 1))) - 1;
/// How many timers one interrupt handles at most. The next interrupt handles the rest, so that no interrupt is long.
const BATCH: usize = 64;

/// A timer's callback. Called with the timer and the time, in nanoseconds, when the timer's deadline has passed. A
/// returned deadline arms the timer again.
///
/// # Safety
/// Called only by the wheel on which the timer is armed, while the timer is alive.
pub type Expire = unsafe fn(timer: NonNull<Timer>, now: u64) -> Option<u64>;

/// A timer, in memory of its owner. While it is armed, it must stay in place and alive.
pub struct Timer {
    links: Links<Timer>,
    /// 0 if the timer is not armed, else 1 + the CPU of its wheel. Written under that wheel's lock.
    wheel: AtomicU32,
    /// The timer's level and slot on the wheel; guarded by the wheel's lock.
    slot: AtomicU32,
    /// The deadline in nanoseconds; guarded by the wheel's lock.
    deadline: AtomicU64,
    expire: Expire,
}

struct Hung;
// SAFETY: `links` is the only field with list links, and an armed timer stays in place.
unsafe impl Adapter for Hung {
    type Node = Timer;
    fn links(node: &Timer) -> &Links<Timer> {
        &node.links
    }
}

impl Timer {
    /// A timer that is not armed.
    pub fn new(expire: Expire) -> Self {
        Timer {
            links: Links::new(),
            wheel: AtomicU32::new(0),
            slot: AtomicU32::new(0),
            deadline: AtomicU64::new(0),
            expire,
        }
    }

    /// Whether the timer is armed. The answer is exact only for the owner, which arms and cancels the timer.
    pub fn is_armed(&self) -> bool {
        self.wheel.load(Acquire) != 0
    }

    /// The deadline of the last arming, in nanoseconds.
    pub fn deadline(&self) -> u64 {
        self.deadline.load(Relaxed)
    }

    /// The CPU on whose wheel the timer is armed; `None` if it is not armed.
    pub(crate) fn wheel(&self) -> Option<CpuId> {
        self.wheel.load(Acquire).checked_sub(1).map(|c| c as CpuId)
    }
}

/// The timer wheel of one CPU, guarded by the lock that contains it.
pub(crate) struct Wheel {
    cpu: CpuId,
    /// The wheel's time in ticks. Every timer on the wheel is due at this time or later.
    time: u64,
    occupied: [u64; LEVELS],
    /// A bitmap of the levels with an occupied slot.
    levels: u32,
    /// The last call of `expire` stopped before a slot was empty, because it had handled its bounded number of timers.
    left_early: bool,
    slots: [[List<Hung>; SLOTS]; LEVELS],
}

impl Wheel {
    pub fn new(cpu: CpuId) -> Self {
        Wheel {
            cpu,
            time: 0,
            occupied: [0; LEVELS],
            levels: 0,
            left_early: false,
            slots: core::array::from_fn(|_| core::array::from_fn(|_| List::new())),
        }
    }

    fn level_of(&self, tick: u64) -> usize {
        // The bits of the lowest digit are always set, so that equal times give level 0.
        let differing = (self.time ^ tick) | (SLOTS as u64 - 1);
        ((63 - differing.leading_zeros()) / DIGIT) as usize
    }

    /// Inserts a timer, which is not armed, in the slot of its deadline.
    ///
    /// # Safety
    /// The timer stays in place and alive until it has expired or is removed.
    pub unsafe fn insert(&mut self, timer: &Timer, deadline: u64) {
        timer.deadline.store(deadline, Relaxed);
        timer.wheel.store(self.cpu as u32 + 1, Relaxed);
        // The tick is rounded up, so that a timer never expires early.
        let tick = (deadline >> TICK_SHIFT) + u64::from(deadline & ((1 << TICK_SHIFT) - 1) != 0);
        let tick = tick.clamp(self.time, self.time.saturating_add(HORIZON));
        let level = self.level_of(tick).min(LEVELS - 1);
        let slot = (tick >> (level as u32 * DIGIT)) as usize % SLOTS;
        timer.slot.store((level * SLOTS + slot) as u32, Relaxed);
        self.occupied[level] |= 1 << slot;
        self.levels |= 1 << level;
        record::wrote(&self.slots[level][slot]);
        // SAFETY: the timer is not armed, so it is on no list. The caller keeps it alive.
        unsafe { self.slots[level][slot].push_back(NonNull::from(timer)) };
    }

    /// Removes a timer from this wheel.
    pub fn remove(&mut self, timer: &Timer) {
        debug_assert_eq!(timer.wheel(), Some(self.cpu));
        let at = timer.slot.load(Relaxed) as usize;
        let (level, slot) = (at / SLOTS, at % SLOTS);
        record::wrote(&self.slots[level][slot]);
        // SAFETY: the timer's field `wheel` names this wheel, and its field `slot` names the list.
        unsafe { self.slots[level][slot].remove(NonNull::from(timer)) };
        if self.slots[level][slot].is_empty() {
            self.vacate(level, slot);
        }
        timer.wheel.store(0, Release);
    }

    /// Clears the occupancy bits of a slot that has become empty.
    fn vacate(&mut self, level: usize, slot: usize) {
        self.occupied[level] &= !(1 << slot);
        if self.occupied[level] == 0 {
            self.levels &= !(1 << level);
        }
    }

    /// The occupied slot that is due first: its level, its number, and the tick at which it is due.
    fn next_slot(&self) -> Option<(usize, usize, u64)> {
        // A slot that an earlier call did not empty comes first. Above level 0, only a slot that was not emptied
        // contains the wheel's present time.
        let mut above = if self.left_early { self.levels & !1 } else { 0 };
        while above != 0 {
            let level = above.ilog2() as usize;
            let here = (self.time >> (level as u32 * DIGIT)) as usize % SLOTS;
            if self.occupied[level] & (1 << here) != 0 {
                return Some((level, here, self.time));
            }
            above &= !(1 << level);
        }
        // Of the other timers, the timers on the lowest level are due first, because their ticks agree with the wheel's
        // time in more digits.
        if self.levels == 0 {
            return None;
        }
        let level = self.levels.trailing_zeros() as usize;
        let shift = level as u32 * DIGIT;
        let here = (self.time >> shift) as usize % SLOTS;
        let slot = (self.occupied[level].rotate_right(here as u32).trailing_zeros() as usize + here) % SLOTS;
        let turn = (SLOTS as u64) << shift;
        let mut due = (self.time & !(turn - 1)) + ((slot as u64) << shift);
        // Only on the top level can the found slot be before the present slot. Then it is due in the next revolution of
        // the wheel.
        if slot < here {
            due += turn;
        }
        Some((level, slot, due))
    }

    /// The time at which [`expire`](Self::expire) must be called next, in nanoseconds; `None` if the wheel is empty.
    pub fn next(&self) -> Option<u64> {
        self.next_slot().map(|(_, _, due)| due << TICK_SHIFT)
    }

    /// Expires timers that are due at `now` (nanoseconds), up to a bounded number. If due timers remain,
    /// [`next`](Self::next) returns a time in the past. Returns how many timers expired.
    pub fn expire(&mut self, now: u64) -> usize {
        let now_tick = now >> TICK_SHIFT;
        let (mut expired, mut handled) = (0, 0);
        while let Some((level, slot, due)) = self.next_slot() {
            if due > now_tick {
                break;
            }
            self.time = due;
            record::wrote(&self.slots[level][slot]);
            while handled < BATCH
                && let Some(node) = self.slots[level][slot].pop_front()
            {
                handled += 1;
                // SAFETY: the timer was on this wheel, so it is alive. A cancel waits for the wheel's lock, which the
                // caller holds.
                let timer = unsafe { node.as_ref() };
                let deadline = timer.deadline.load(Relaxed);
                let again = if deadline > now {
                    Some(deadline)
                } else {
                    expired += 1;
                    if mutant(Mutant::UnarmedBeforeFired) {
                        timer.wheel.store(0, Release);
                    }
                    // SAFETY: the timer was armed on this wheel, and is alive.
                    unsafe { (timer.expire)(node, now) }.map(|d| d.max(now + (1 << TICK_SHIFT)))
                };
                match again {
                    // The timer moves to a lower level, or is armed again. In both cases it joins another slot than the
                    // slot that this loop empties. A timer that moves agrees with `time` in this level's digit. A timer
                    // that is armed again is due in a later tick.
                    // SAFETY: the timer stays armed, so its owner keeps it alive and in place.
                    Some(deadline) => unsafe { self.insert(timer, deadline) },
                    // The timer is marked as not armed only after its callback, because the owner may free the timer
                    // when a cancel reads this.
                    None => timer.wheel.store(0, Release),
                }
            }
            if self.slots[level][slot].is_empty() {
                self.vacate(level, slot);
            }
            if handled >= BATCH {
                self.left_early = true;
                return expired;
            }
        }
        self.left_early = false;
        self.time = self.time.max(now_tick);
        expired
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
#[allow(clippy::undocumented_unsafe_blocks)] // all memory is the test's own
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64 as Count, Ordering::SeqCst};

    #[repr(C)]
    struct Probe {
        timer: Timer,
        fired: Count,
        period: u64,
    }
    unsafe fn fire(timer: NonNull<Timer>, now: u64) -> Option<u64> {
        let probe = unsafe { timer.cast::<Probe>().as_ref() };
        assert!(probe.timer.deadline() <= now, "early");
        probe.fired.fetch_add(1, SeqCst);
        (probe.period != 0).then_some(now + probe.period)
    }
    fn probe(period: u64) -> Box<Probe> {
        Box::new(Probe { timer: Timer::new(fire), fired: Count::new(0), period })
    }
    fn random(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        *state >> 20
    }

    #[test]
    fn each_timer_fires_once_in_its_tick_despite_cancellations() {
        let mut seed = 42;
        let mut wheel = Wheel::new(3);
        let mut now = 0u64;
        let mut probes: Vec<(Box<Probe>, bool)> = Vec::new();
        for _ in 0..400 {
            for _ in 0..20 {
                let p = probe(0);
                // Delays of all magnitudes, from one tick to beyond `HORIZON`.
                let delay = random(&mut seed) >> (random(&mut seed) % 44);
                unsafe { wheel.insert(&p.timer, now + delay) };
                probes.push((p, false));
            }
            for _ in 0..5 {
                let at = random(&mut seed) as usize % probes.len();
                if probes[at].0.timer.is_armed() {
                    wheel.remove(&probes[at].0.timer);
                    probes[at].1 = true;
                }
            }
            now = match random(&mut seed) % 3 {
                0 => now + random(&mut seed) % 50_000,
                1 => wheel.next().unwrap_or(now).max(now),
                _ => now + (random(&mut seed) >> (random(&mut seed) % 40)),
            };
            while wheel.next().is_some_and(|due| due <= now) {
                wheel.expire(now);
            }
            for (p, cancelled) in &probes {
                let due = p.timer.deadline().next_multiple_of(1 << TICK_SHIFT) <= now;
                assert_eq!(p.fired.load(SeqCst), u64::from(due && !cancelled), "deadline {}", p.timer.deadline());
                assert_eq!(p.timer.is_armed(), !due && !cancelled);
            }
            probes.retain(|(p, _)| p.timer.is_armed());
        }
    }

    #[test]
    fn one_interrupt_handles_a_bounded_number_of_timers() {
        let mut wheel = Wheel::new(0);
        let probes: Vec<_> = (0..1000).map(|_| probe(0)).collect();
        probes.iter().for_each(|p| unsafe { wheel.insert(&p.timer, 5_000_000) });
        let mut rounds = 0;
        while wheel.next().is_some_and(|due| due <= 6_000_000) {
            assert!(wheel.expire(6_000_000) <= BATCH);
            rounds += 1;
        }
        assert!(probes.iter().all(|p| p.fired.load(SeqCst) == 1));
        assert!(rounds >= 1000 / BATCH);
    }

    #[test]
    fn a_periodic_callback_fires_again_in_a_later_interrupt() {
        let mut wheel = Wheel::new(0);
        let p = probe(1);
        unsafe { wheel.insert(&p.timer, 1) };
        for i in 1..=100u64 {
            wheel.expire(i * 100_000);
        }
        assert_eq!(p.fired.load(SeqCst), 100);
        wheel.remove(&p.timer);
        assert_eq!(wheel.next(), None);
    }

    #[test]
    fn the_wheel_sleeps_until_something_is_due() {
        let mut wheel = Wheel::new(0);
        let p = probe(0);
        unsafe { wheel.insert(&p.timer, 3_600_000_000_000) };
        let mut looks = 0;
        while let Some(due) = wheel.next() {
            wheel.expire(due);
            looks += 1;
        }
        assert_eq!(p.fired.load(SeqCst), 1);
        assert!(looks <= LEVELS, "an hour's sleep costs {looks} interrupts");
    }
}
