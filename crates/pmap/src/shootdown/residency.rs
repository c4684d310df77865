//! The CPUs that run a space or have it loaded, and the generation of its flushes: the state that both sides of the protocol share.
//!
//! The protocol stands at the head of [`shootdown`](crate::shootdown).

use crate::mutant::{Mutant, mutant};
use quire_sync::CpuId;
use quire_sync::atomic::{AtomicBool, AtomicU64, Ordering, fence_after_rmw};
use quire_sync::cpuset::{CpuMask, CpuSet};

/// `count` and `more`, none where that is less: a CPU may have told that pages went which another has not told to have come.
fn at_least_none(count: u64, more: i64) -> u64 {
    count.wrapping_add_signed(more).cast_signed().max(0).cast_unsigned()
}

/// Who may hold translations of one space, and how old they may be. On lines of its own: CPUs that come and go write it, and
/// beside it stands what faults read.
#[repr(C, align(64))]
pub struct Residency {
    /// Never reused, so that a tag that still holds a dead space's entries is never taken for a new one's. Zero is the
    /// kernel's own.
    id: u64,
    /// Raised by every flush before it reads the set.
    generation: AtomicU64,
    /// The CPUs that run the space, or may at any moment.
    running: CpuSet,
    /// The CPUs that have it loaded while they run something that has no user half.
    lazy: CpuSet,
    /// A CPU has begun to run it since somebody asked. Beside what every switch-in writes.
    ran: AtomicBool,
    /// Resident pages, but for what CPUs that have it loaded have not told yet ([`CpuMmu::count`](crate::mmu::CpuMmu::count)).
    resident: AtomicU64,
    /// The most that ever were.
    peak: AtomicU64,
}

impl Residency {
    /// A space that no CPU runs. `id` must never have been used before.
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

    /// Pages became resident, or are no more.
    #[cold]
    pub(crate) fn add_resident(&self, by: i64) {
        let now = at_least_none(self.resident.fetch_add(by as u64, Ordering::Relaxed), by);
        if now > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// No page is resident: what was not told yet does not count any more.
    pub(crate) fn none_resident(&self) {
        self.resident.store(0, Ordering::Relaxed);
    }

    /// The most resident pages there were, or are with `more`.
    pub(crate) fn peak(&self, more: i64) -> u64 {
        let now = at_least_none(self.resident.load(Ordering::Relaxed), more);
        self.peak.load(Ordering::Relaxed).max(now)
    }

    /// The space's number, unique for ever.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Switch-in, first half: from now on flushes ask this CPU. Returns the generation to catch up with, and whether the CPU did
    /// not run the space until now.
    pub(crate) fn arrive(&self, cpu: CpuId) -> (u64, bool) {
        let new = self.running.insert(cpu);
        // A hint: no protocol rests on it.
        if new && !self.ran.load(Ordering::Relaxed) {
            self.ran.store(true, Ordering::Relaxed);
        }
        // The shooter bumps, then reads the set; this CPU enters the set, then reads the generation: store-to-load order
        // on both sides, or neither sees the other.
        if !mutant(Mutant::ArriveNoFence) {
            fence_after_rmw();
        }
        (self.generation.load(Ordering::Acquire), new)
    }

    /// Switch-in, second half: what was stale is gone.
    pub(crate) fn arrived(&self, cpu: CpuId) {
        if self.lazy.contains(cpu) {
            self.lazy.remove(cpu);
        }
    }

    /// This CPU keeps the space loaded but runs nothing of it.
    pub(crate) fn idle(&self, cpu: CpuId) {
        if mutant(Mutant::LazyAfterRunning) {
            self.running.remove(cpu);
        }
        self.lazy.insert(cpu);
        self.running.remove(cpu);
    }

    /// This CPU has loaded something else. Once it is in neither set the space may be destroyed and its memory be another's: it
    /// looks at both before it leaves one, and touches nothing after that.
    pub(crate) fn leave(&self, cpu: CpuId) {
        let runs = self.running.contains(cpu);
        let lazy = !mutant(Mutant::LeaveLooksLate) && self.lazy.contains(cpu);
        match (runs, lazy) {
            // It idled, and its return is not over: nobody waits for a CPU that is still in the other set.
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

    /// Whether a CPU has begun to run it since this was asked last.
    pub(crate) fn take_ran(&self) -> bool {
        self.ran.load(Ordering::Relaxed) && self.ran.swap(false, Ordering::Relaxed)
    }

    /// A flush's first half: raises the generation, and says which CPUs to ask.
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
