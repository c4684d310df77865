//! The CPUs that run a space or have it loaded, and the generation of its flushes. Both sides of the protocol share
//! this state.
//!
//! The protocol is described at the head of [`shootdown`](crate::shootdown).

use crate::mutant::{Mutant, mutant};
use quire_sync::CpuId;
use quire_sync::atomic::{AtomicBool, AtomicU64, Ordering, fence_after_rmw};
use quire_sync::cpuset::{CpuMask, CpuSet};

/// Returns `count` plus `more`, or zero if that is negative. It is negative for a short time if a CPU reports removed
/// pages before another CPU reports that it added them.
fn at_least_none(count: u64, more: i64) -> u64 {
    count.wrapping_add_signed(more).cast_signed().max(0).cast_unsigned()
}

/// The CPUs that may hold translations of one space, and how old these translations may be. The struct has cache lines
/// of its own, because CPUs write it when they switch, and faults read the neighbouring fields of `Tables`.
#[repr(C, align(64))]
pub struct Residency {
    /// The space's number. Never reused, so a tag that still holds a dead space's translations is never taken for a new
    /// space's. Zero is the kernel's own.
    id: u64,
    /// The generation. Every flush raises it before it reads the set `running`.
    generation: AtomicU64,
    /// The CPUs that run the space, or may begin to run it at any moment.
    running: CpuSet,
    /// The CPUs that have the space loaded while they run a thread without a user half.
    lazy: CpuSet,
    /// Whether a CPU has begun to run the space since the last check. It lies on a line that every switch-in writes
    /// anyway.
    ran: AtomicBool,
    /// The number of resident pages that CPUs have reported. A CPU that has the space loaded may have pages that it has
    /// not reported yet ([`CpuMmu::count`](crate::mmu::CpuMmu::count)).
    resident: AtomicU64,
    /// The highest count of resident pages.
    peak: AtomicU64,
}

impl Residency {
    /// Makes the state of a space that no CPU runs. `id` must never have been used before.
    pub(crate) fn new(id: u64) -> Self {
        Residency {
            id,
            generation: AtomicU64::new(1),
            running: CpuSet::new(),
            lazy: CpuSet::new(),
            ran: AtomicBool::new(true),
            resident: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        }
    }

    /// Adds `by` to the count of resident pages, and raises the peak to it.
    #[cold]
    pub(crate) fn add_resident(&self, by: i64) {
        let now = at_least_none(self.resident.fetch_add(by as u64, Ordering::Relaxed), by);
        if now > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// The present count of resident pages. `more` is the number of pages that the caller's CPU has not reported yet.
    pub(crate) fn resident(&self, more: i64) -> u64 {
        at_least_none(self.resident.load(Ordering::Relaxed), more)
    }

    /// Sets the count of resident pages to zero.
    pub(crate) fn none_resident(&self) {
        self.resident.store(0, Ordering::Relaxed);
    }

    /// The highest count of resident pages so far, the present count included. `more` is the number of pages that the
    /// caller's CPU has not reported yet.
    pub(crate) fn peak(&self, more: i64) -> u64 {
        self.peak.load(Ordering::Relaxed).max(self.resident(more))
    }

    /// Makes the present count, plus `more` unreported pages, the peak. If another CPU reports pages during this call,
    /// the stored peak may miss these pages. The result of [`peak`](Self::peak) still includes them, because it
    /// includes the present count.
    pub(crate) fn restart_peak(&self, more: i64) {
        self.peak.store(self.resident(more), Ordering::Relaxed);
    }

    /// The space's number, which is never reused.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// First half of switch-in: from now on flushes target this CPU. Returns the generation that the CPU must catch up
    /// with, and whether the CPU begins to run the space.
    pub(crate) fn arrive(&self, cpu: CpuId) -> (u64, bool) {
        let new = self.running.insert(cpu);
        // `ran` is a hint: no protocol relies on it.
        if new && !self.ran.load(Ordering::Relaxed) {
            self.ran.store(true, Ordering::Relaxed);
        }
        // The shooter raises the generation, then reads the set. This CPU enters the set, then reads the generation.
        // Without store-to-load order on both sides, each could miss the other's store.
        if !mutant(Mutant::ArriveNoFence) {
            fence_after_rmw();
        }
        (self.generation.load(Ordering::Acquire), new)
    }

    /// Second half of switch-in, after this CPU has dropped stale translations: the CPU is no longer lazy.
    pub(crate) fn arrived(&self, cpu: CpuId) {
        if self.lazy.contains(cpu) {
            self.lazy.remove(cpu);
        }
    }

    /// Marks this CPU as lazy: it keeps the space loaded but does not run it.
    pub(crate) fn idle(&self, cpu: CpuId) {
        if mutant(Mutant::LazyAfterRunning) {
            self.running.remove(cpu);
        }
        self.lazy.insert(cpu);
        self.running.remove(cpu);
    }

    /// Removes this CPU, which has loaded another root, from both sets. Once it is in neither set, the space may be
    /// destroyed and its memory reused. So this function reads both sets before it leaves one, and accesses nothing
    /// after that.
    pub(crate) fn leave(&self, cpu: CpuId) {
        let runs = self.running.contains(cpu);
        let lazy = !mutant(Mutant::LeaveLooksLate) && self.lazy.contains(cpu);
        match (runs, lazy) {
            // The CPU was lazy, and its switch-in has not finished. So the CPU leaves the sets one after the other; the
            // space is not destroyed while the CPU is still in one of them.
            (true, true) => {
                self.lazy.remove(cpu);
                self.running.remove(cpu);
            }
            (true, false) => self.running.remove(cpu),
            (false, true) => self.lazy.remove(cpu),
            (false, false) => {}
        }
        if mutant(Mutant::LeaveLooksLate) && self.lazy.contains(cpu) {
            self.lazy.remove(cpu);
        }
    }

    /// Whether a CPU has begun to run the space since the last call.
    pub(crate) fn take_ran(&self) -> bool {
        self.ran.load(Ordering::Relaxed) && self.ran.swap(false, Ordering::Relaxed)
    }

    /// First half of a flush: raises the generation. Returns the new generation and the CPUs to interrupt. If
    /// `structure` is true, the flush covers upper levels, and lazy CPUs are interrupted too.
    pub(crate) fn bump(&self, structure: bool) -> (u64, CpuMask) {
        let generation = self.generation.fetch_add(1, Ordering::AcqRel) + 1;
        if !mutant(Mutant::BumpNoFence) {
            fence_after_rmw();
        }
        let mut targets = self.running.snapshot();
        if structure {
            self.lazy.snapshot().iter().for_each(|cpu| targets.insert(cpu));
        }
        (generation, targets)
    }

    /// The newest generation.
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The CPUs that run the space.
    pub(crate) fn running(&self) -> CpuMask {
        self.running.snapshot()
    }

    /// The CPUs that have the space loaded, running or lazy.
    pub(crate) fn loaded(&self) -> CpuMask {
        let mut mask = self.running.snapshot();
        self.lazy.snapshot().iter().for_each(|cpu| mask.insert(cpu));
        mask
    }
}
