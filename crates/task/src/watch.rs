//! The lockup watchdog: each CPU publishes its ticks, so that another CPU, or its own timer, detects that it is stuck.
//!
//! A CPU that runs threads serves a *tick* once a period. The tick makes the CPU enter its scheduler, as a preemption
//! does. A CPU that serves ticks but does not enter its scheduler is in a *soft lockup*. A CPU that serves no ticks is
//! in a *hard lockup*. Its *watcher*, the CPU with the next number, detects it.
//!
//! # What counts
//! A virtual CPU may be descheduled for any time, so the clock is no evidence. Only events that the CPU itself served
//! count: a tick that came in time, or a *probe*. A probe is a non-maskable interrupt from the watcher; it counts where
//! it finds interrupts masked and no tick served since the last probe.
//!
//! # Idle CPUs
//! An idle CPU serves one more tick, then none, unless its *ward* (the CPU that it watches) is busy.
//!
//! A CPU that becomes busy *is marked busy, fences, checks whether its watcher has a tick*. A watcher that stops its
//! tick *has no tick, fences, checks whether its ward is busy*. So the CPU finds the watcher without a tick and
//! interrupts it, or the watcher finds the CPU busy and restarts its tick.

use crate::mutant::{Mutant, mutant};
use quire_sync::CpuId;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence_full};

/// How CPUs are watched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watching {
    /// Nanoseconds from tick to tick.
    pub period: u64,
    /// A soft lockup is so many ticks without an entry to the scheduler.
    pub soft: u32,
    /// A hard lockup is so many ticks of the watcher, or probes, without a tick.
    pub hard: u32,
}

/// A CPU that is stuck.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lockup {
    /// The calling CPU served that many ticks and did not enter its scheduler.
    Soft(u32),
    /// This CPU has interrupts masked, and does not unmask them.
    Hard(CpuId),
}

/// There is no tick.
const NEVER: u64 = u64::MAX;

/// [`Watch::state`]: a tick is due.
const TICKS: u64 = 1;
/// [`Watch::state`]: the CPU runs threads, or did at its last tick.
const BUSY: u64 = 2;
/// [`Watch::state`]: one tick served.
const SERVED: u64 = 4;

/// The published state of a CPU. Only that CPU writes it, the probes by its non-maskable interrupt; its watcher reads
/// it once a period.
pub(crate) struct Watch {
    /// Ticks served, [`BUSY`] and [`TICKS`].
    state: AtomicU64,
    /// Probes in a row that found interrupts masked and no tick served.
    strikes: AtomicU32,
    /// The state that the last probe saw.
    probed: AtomicU64,
    /// (own) When the next tick is due, nanoseconds.
    due: AtomicU64,
    /// (own) How often the CPU had entered its scheduler at the last tick, and ticks since it did.
    came: AtomicU64,
    stuck: AtomicU32,
    /// (own) The ward's state at the last tick, ticks since it changed, and whether the ward was reported.
    ward: AtomicU64,
    unchanged: AtomicU32,
    reported: AtomicU64,
}

/// The findings of a tick.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct TickFindings {
    /// The CPU itself is stuck, for so many ticks.
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

    /// When the next tick is due.
    #[inline(always)]
    pub fn due(&self) -> u64 {
        self.due.load(Ordering::Relaxed)
    }

    /// Whether the CPU is marked as busy; for that CPU only.
    #[inline(always)]
    pub fn is_busy(&self) -> bool {
        self.state.load(Ordering::Relaxed) & BUSY != 0
    }

    fn ticks(&self) -> bool {
        self.state.load(Ordering::Acquire) & TICKS != 0
    }

    /// This CPU only, with interrupts masked.
    fn set(&self, bits: u64, to: bool) {
        let state = self.state.load(Ordering::Relaxed);
        self.state.store(if to { state | bits } else { state & !bits }, Ordering::Release);
    }

    /// Stops the watch of CPUs.
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

    /// Marks the CPU as busy. True if its watcher has no tick, and must be interrupted to get one.
    pub fn becomes_busy(&self, due: u64, watcher: Option<&Watch>) -> bool {
        self.start(due);
        self.set(BUSY, true);
        if !mutant(Mutant::BusyNoFence) {
            fence_full();
        }
        watcher.is_some_and(|watcher| !watcher.ticks())
    }

    /// The CPU is idle: it stops its tick, unless its ward is busy, for which it starts one at `due`.
    fn stands_down(&self, due: u64, ward: Option<&Watch>) {
        self.set(TICKS | BUSY, false);
        self.due.store(NEVER, Ordering::Relaxed);
        fence_full();
        let busy = |ward: &Watch| ward.state.load(Ordering::Acquire) & BUSY != 0;
        if ward.is_some_and(busy) && !mutant(Mutant::StandDownNoLook) {
            self.start(due);
        }
    }

    /// A tick was served at `now`: `came` is how often the CPU has entered its scheduler, `idle` whether it is idle.
    pub fn tick(&self, how: &Watching, now: u64, came: u64, idle: bool, ward: Option<&Watch>) -> TickFindings {
        // A late tick means that the CPU did not run, or had interrupts masked: no evidence that it was stuck.
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
            // The first two ticks without a tick of the ward, in which it was not probed, count too.
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

    /// The CPU serves a probe, which found interrupts masked or not.
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

    /// Ticks in time, at each of which the CPU has entered its scheduler as often as `came` says.
    fn ticks(watch: &Watch, came: impl IntoIterator<Item = u64>, ward: Option<&Watch>) -> Vec<TickFindings> {
        came.into_iter().map(|came| watch.tick(&HOW, watch.due(), came, false, ward)).collect()
    }

    #[test]
    fn a_cpu_that_does_not_come_to_its_scheduler_is_reported_once() {
        let watch = Watch::new();
        assert!(!watch.becomes_busy(100, None));
        let soft: Vec<_> = ticks(&watch, [1; 9], None).iter().map(|f| f.soft).collect();
        assert_eq!(soft, [None, None, None, None, Some(4), None, None, None, None]);
        // Once it has entered, the next lockup is another incident.
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
        // At the very end of the tolerance they are.
        let found: Vec<_> = (0..5).map(|_| watch.tick(&HOW, watch.due() + 50, 1, false, Some(&ward))).collect();
        assert!(found.iter().any(|f| f.soft.is_some()) && found.iter().any(|f| f.probe));
    }

    #[test]
    fn a_ward_without_ticks_is_probed_and_then_reported() {
        let (watch, ward) = (Watch::new(), Watch::new());
        watch.becomes_busy(100, None);
        ward.becomes_busy(100, Some(&watch));
        // The CPU does not run: events that it does not serve do not count.
        let found = ticks(&watch, 1..50, Some(&ward));
        assert!(found.iter().all(|f| !f.hard) && found.iter().filter(|f| f.probe).count() == 47);
        // It runs, with interrupts on: its tick will come.
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
        // Its ward becomes busy, and must interrupt it.
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
