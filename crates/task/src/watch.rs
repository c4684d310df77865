//! The lockup watchdog. Each CPU publishes its ticks, so that its own timer or another CPU detects that it is stuck.
//!
//! A CPU that runs threads serves a *tick* once a period. The tick makes the CPU enter its scheduler, as a preemption
//! does. A CPU that serves ticks but does not enter its scheduler is in a *soft lockup*. A CPU that serves no ticks is
//! in a *hard lockup*. Its *watcher*, the CPU with the next number, detects it.
//!
//! # What counts
//! A virtual CPU may be descheduled for any time, so elapsed time does not prove a lockup. Only events that the CPU
//! itself served count: a tick that came in time, or a *probe*. A probe is a non-maskable interrupt from the watcher.
//! It counts if it finds interrupts masked and no tick served since the last probe.
//!
//! # Idle CPUs
//! A CPU that becomes idle serves one more tick, and then stops its tick unless its *ward* (the CPU that it watches) is
//! busy.
//!
//! A CPU that becomes busy *marks itself busy, executes a fence, and checks whether its watcher has a tick*. A watcher
//! that stops its tick *clears its tick flag, executes a fence, and checks whether its ward is busy*. So either the CPU
//! finds the watcher without a tick and interrupts it, or the watcher finds the CPU busy and restarts its tick.

use crate::mutant::{Mutant, mutant};
use quire_sync::CpuId;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence_full};

/// The settings of the watchdog.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watching {
    /// The time between two ticks, in nanoseconds.
    pub period: u64,
    /// The number of ticks without an entry to the scheduler that make a soft lockup.
    pub soft: u32,
    /// The number of the watcher's ticks, or probes, without a tick of the ward that make a hard lockup.
    pub hard: u32,
}

/// A CPU that is stuck.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lockup {
    /// The calling CPU has served this number of ticks in a row and has not entered its scheduler.
    Soft(u32),
    /// This CPU has interrupts masked, and does not unmask them.
    Hard(CpuId),
}

/// The due time of a CPU that has no tick.
const NEVER: u64 = u64::MAX;

/// A bit of [`Watch::state`]: the CPU has a tick.
const TICKS: u64 = 1;
/// A bit of [`Watch::state`]: the CPU runs threads, or did at its last tick.
const BUSY: u64 = 2;
/// The unit of [`Watch::state`] that counts served ticks; the bits above `BUSY` are the count.
const SERVED: u64 = 4;

/// The published state of a CPU. Only that CPU writes it, and its watcher reads it once a period. The handler of the
/// CPU's non-maskable interrupt writes the fields about probes.
pub(crate) struct Watch {
    /// The number of ticks served, [`BUSY`] and [`TICKS`].
    state: AtomicU64,
    /// The number of probes in a row that found interrupts masked and no tick served.
    strikes: AtomicU32,
    /// The state that the last probe saw.
    probed: AtomicU64,
    /// (own) The time at which the next tick is due, in nanoseconds. Only this CPU uses a field marked (own).
    due: AtomicU64,
    /// (own) How often the CPU had entered its scheduler at the last tick. `stuck` counts the ticks since the last
    /// entry.
    came: AtomicU64,
    stuck: AtomicU32,
    /// (own) The ward's state at this CPU's last tick. `unchanged` counts this CPU's ticks since the ward's state
    /// changed. `reported` is the ward's state at the last report of a hard lockup.
    ward: AtomicU64,
    unchanged: AtomicU32,
    reported: AtomicU64,
}

/// The findings of a tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct TickFindings {
    /// The CPU itself is stuck, for this number of ticks; `None` if it is not, or was reported.
    pub soft: Option<u32>,
    /// The ward must be probed.
    pub probe: bool,
    /// The ward is stuck.
    pub hard: bool,
}

impl Watch {
    pub fn new() -> Self {
        Watch {
            state: AtomicU64::new(0),
            strikes: AtomicU32::new(0),
            probed: AtomicU64::new(0),
            due: AtomicU64::new(NEVER),
            came: AtomicU64::new(0),
            stuck: AtomicU32::new(0),
            ward: AtomicU64::new(0),
            unchanged: AtomicU32::new(0),
            reported: AtomicU64::new(NEVER),
        }
    }

    /// The time at which the next tick is due, in nanoseconds; [`NEVER`] if the CPU has no tick.
    #[inline(always)]
    pub fn due(&self) -> u64 {
        self.due.load(Ordering::Relaxed)
    }

    /// Whether the CPU is marked as busy. Called only by that CPU.
    #[inline(always)]
    pub fn is_busy(&self) -> bool {
        self.state.load(Ordering::Relaxed) & BUSY != 0
    }

    fn ticks(&self) -> bool {
        self.state.load(Ordering::Acquire) & TICKS != 0
    }

    /// Sets or clears `bits` of the state. Called only by the CPU itself, with interrupts masked.
    fn set(&self, bits: u64, to: bool) {
        let state = self.state.load(Ordering::Relaxed);
        self.state.store(if to { state | bits } else { state & !bits }, Ordering::Release);
    }

    /// Stops the CPU's tick and marks it as not busy, because watching was turned off.
    pub fn stop(&self) {
        self.set(TICKS | BUSY, false);
        self.due.store(NEVER, Ordering::Relaxed);
    }

    /// Starts the CPU's tick at `due`, unless it has one.
    pub fn start(&self, due: u64) {
        if self.due() == NEVER {
            self.due.store(due, Ordering::Relaxed);
            self.set(TICKS, true);
        }
    }

    /// Marks the CPU as busy. Returns true if its watcher has no tick. The caller must then interrupt the watcher.
    pub fn becomes_busy(&self, due: u64, watcher: Option<&Watch>) -> bool {
        self.start(due);
        self.set(BUSY, true);
        if !mutant(Mutant::BusyNoFence) {
            fence_full();
        }
        watcher.is_some_and(|watcher| !watcher.ticks())
    }

    /// Stops the tick of an idle CPU. If its ward (the CPU that it watches) is busy, starts the tick again at `due`.
    fn stands_down(&self, due: u64, ward: Option<&Watch>) {
        self.set(TICKS | BUSY, false);
        self.due.store(NEVER, Ordering::Relaxed);
        fence_full();
        let busy = |ward: &Watch| ward.state.load(Ordering::Acquire) & BUSY != 0;
        if ward.is_some_and(busy) && !mutant(Mutant::StandDownNoLook) {
            self.start(due);
        }
    }

    /// Serves a tick at `now`, and returns its findings. `came` is how often the CPU has entered its scheduler, and
    /// `idle` is whether the CPU is idle.
    pub fn tick(&self, how: &Watching, now: u64, came: u64, idle: bool, ward: Option<&Watch>) -> TickFindings {
        // A late tick does not prove a lockup: the virtual CPU was descheduled, or had interrupts masked.
        let in_time = now.saturating_sub(self.due()) <= how.period / 2;
        self.state.store(self.state.load(Ordering::Relaxed) + SERVED, Ordering::Release);
        let mut found = TickFindings::default();

        let stuck = match () {
            () if self.came.swap(came, Ordering::Relaxed) != came => 0,
            () => self.stuck.load(Ordering::Relaxed) + u32::from(in_time),
        };
        if stuck == how.soft && self.stuck.load(Ordering::Relaxed) != stuck {
            found.soft = Some(stuck);
        }
        self.stuck.store(stuck, Ordering::Relaxed);

        if let Some(ward) = ward {
            let state = ward.state.load(Ordering::Acquire);
            let unchanged = match () {
                () if self.ward.swap(state, Ordering::Relaxed) != state || state & TICKS == 0 => 0,
                () => self.unchanged.load(Ordering::Relaxed).saturating_add(u32::from(in_time)),
            };
            self.unchanged.store(unchanged, Ordering::Relaxed);
            found.probe = unchanged >= 2;
            // The watcher's first two ticks without a tick of the ward count too, although the watcher sends no probe
            // at them.
            let enough = ward.strikes.load(Ordering::Acquire) + 2 >= how.hard.max(3);
            if found.probe && enough && self.reported.swap(state, Ordering::Relaxed) != state {
                found.hard = true;
            }
        }

        let due = now.saturating_add(how.period);
        if idle && stuck == 0 {
            self.stands_down(due, ward);
        } else {
            self.due.store(due, Ordering::Relaxed);
        }
        found
    }

    /// Serves a probe, the watcher's non-maskable interrupt. `masked` is whether it found interrupts masked.
    pub fn probe(&self, masked: bool) {
        let state = self.state.load(Ordering::Relaxed);
        let same = self.probed.swap(state, Ordering::Relaxed) == state;
        let strikes = if same && masked { self.strikes.load(Ordering::Relaxed).saturating_add(1) } else { 0 };
        self.strikes.store(strikes, Ordering::Release);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const HOW: Watching = Watching { period: 100, soft: 4, hard: 5 };

    /// Serves one tick in time for each item of `came`, which is how often the CPU has entered its scheduler by then.
    fn ticks(watch: &Watch, came: impl IntoIterator<Item = u64>, ward: Option<&Watch>) -> Vec<TickFindings> {
        came.into_iter().map(|came| watch.tick(&HOW, watch.due(), came, false, ward)).collect()
    }

    #[test]
    fn a_cpu_that_does_not_come_to_its_scheduler_is_reported_once() {
        let watch = Watch::new();
        assert!(!watch.becomes_busy(100, None));
        let soft: Vec<_> = ticks(&watch, [1; 9], None).iter().map(|f| f.soft).collect();
        assert_eq!(soft, [None, None, None, None, Some(4), None, None, None, None]);
        // After the CPU has entered its scheduler, the next lockup is another incident.
        let soft = ticks(&watch, [2, 2, 2, 2, 2], None);
        assert_eq!(soft.iter().filter(|f| f.soft.is_some()).count(), 1);
    }

    #[test]
    fn a_cpu_that_comes_between_two_ticks_is_not_reported() {
        let watch = Watch::new();
        watch.becomes_busy(100, None);
        assert!(ticks(&watch, (0..100).map(|n| n / 3 + 1), None).iter().all(|f| *f == TickFindings::default()));
    }

    #[test]
    fn late_ticks_are_no_evidence() {
        let (watch, ward) = (Watch::new(), Watch::new());
        watch.becomes_busy(100, None);
        ward.becomes_busy(100, Some(&watch));
        for _ in 0..100 {
            let found = watch.tick(&HOW, watch.due() + 51, 1, false, Some(&ward));
            assert_eq!(found, TickFindings::default());
        }
        // Ticks at the very end of the tolerance are in time, so they count.
        let found: Vec<_> = (0..5).map(|_| watch.tick(&HOW, watch.due() + 50, 1, false, Some(&ward))).collect();
        assert!(found.iter().any(|f| f.soft.is_some()) && found.iter().any(|f| f.probe));
    }

    #[test]
    fn a_ward_without_ticks_is_probed_and_then_reported() {
        let (watch, ward) = (Watch::new(), Watch::new());
        watch.becomes_busy(100, None);
        ward.becomes_busy(100, Some(&watch));
        // The ward serves no probes, as a descheduled CPU. Events that a CPU does not serve do not count.
        let found = ticks(&watch, 1..50, Some(&ward));
        assert!(found.iter().all(|f| !f.hard) && found.iter().filter(|f| f.probe).count() == 47);
        // The ward serves probes with interrupts on, so a tick will follow.
        (0..50).for_each(|_| ward.probe(false));
        assert!(!ticks(&watch, [50], Some(&ward))[0].hard);
        (0..3).for_each(|_| ward.probe(true));
        let hard = ticks(&watch, 51..60, Some(&ward)).iter().filter(|f| f.hard).count();
        assert_eq!(hard, 1, "one incident");
    }

    #[test]
    fn a_ward_that_serves_a_tick_now_and_then_is_not_reported() {
        let (watch, ward) = (Watch::new(), Watch::new());
        watch.becomes_busy(100, None);
        ward.becomes_busy(100, Some(&watch));
        for turn in 1..20 {
            ticks(&ward, [turn], None);
            for came in 0..4 {
                let found = ticks(&watch, [turn * 10 + came], Some(&ward))[0];
                assert!(!found.hard);
                if found.probe {
                    ward.probe(true);
                }
            }
        }
    }

    #[test]
    fn an_idle_cpu_ticks_once_more_unless_its_ward_is_busy() {
        let (watch, ward) = (Watch::new(), Watch::new());
        watch.becomes_busy(100, None);
        watch.tick(&HOW, 100, 1, true, Some(&ward));
        assert_eq!((watch.due(), watch.is_busy()), (NEVER, false));
        // The ward becomes busy, and must interrupt its watcher.
        assert!(ward.becomes_busy(200, Some(&watch)));
        watch.start(250);
        assert!(!ward.becomes_busy(200, Some(&watch)));
        watch.tick(&HOW, 250, 2, true, Some(&ward));
        assert_eq!((watch.due(), watch.is_busy()), (350, false));
        ward.tick(&HOW, 300, 1, true, None);
        watch.tick(&HOW, 350, 3, true, Some(&ward));
        assert_eq!(watch.due(), NEVER);
    }
}
