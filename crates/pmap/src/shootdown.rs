//! Which CPUs must drop translations, and how one that was not asked finds out (relies on C4).
//!
//! # The protocol
//! A space has a generation and the set of CPUs that *run* it. Whoever owes a flush raises the generation, fences, then
//! reads the set and interrupts those CPUs only. A CPU that switches in adds itself to the set, fences, then reads the
//! generation: where it differs from what this CPU had last seen, everything that is cached for the space goes. One of the
//! two sees the other, so no CPU runs on translations older than the last completed flush.
//!
//! | | switch in | flush | go lazy | structure flush |
//! |---|---|---|---|---|
//! | **switch in** | own CPU's state only | bump before set, set before generation | own CPU | lazy mark dropped after the catch-up |
//! | **flush** | | each has its own generation; late ones find it passed | an extra interrupt, harmless | as flush |
//! | **go lazy** | | not a target: catches up when it runs again | own CPU | lazy mark set before the running mark goes |
//!
//! A *lazy* CPU has the space loaded but runs a kernel thread: user translations may stay stale there until it runs the
//! space again, but page tables that are freed must leave its paging-structure caches, so structure flushes ask it too.

use crate::format::Format;
use crate::hardware::Hardware;
use crate::mmu::CpuMmu;
use crate::mutant::{Mutant, mutant};
use crate::roots::Reach;
use core::marker::PhantomData;
use quire_sync::CpuId;
use quire_sync::atomic::{AtomicBool, AtomicU64, Ordering, fence_after_rmw};
use quire_sync::cpuset::{CpuMask, CpuSet};
use quire_vm::tlb::flush::FlushSet;
use quire_vm::{PAGE_SIZE, Pfn, VirtRange};

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
    /// Resident pages, but for what CPUs that have it loaded have not told yet ([`CpuMmu::count`]).
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

/// What one CPU asks of others. It lives on the asker's stack until all have answered.
pub struct Request<'a, F: Format> {
    kind: Kind<'a>,
    format: PhantomData<F>,
}

enum Kind<'a> {
    /// Drop `set` of the space, as of `generation`.
    Flush { space: &'a Residency, generation: u64, set: &'a FlushSet },
    /// Drop `set`, which lies below entry `i` of the space `id`'s root, as of `generation` of that entry.
    Entry { id: u64, i: usize, reach: &'a Reach, generation: u64, set: &'a FlushSet },
    /// Whoever has a root of its own loaded for the space loads the space's.
    Home { space: &'a Residency, root: Pfn, regime: u64 },
    /// The space is about to lose its tables: whoever has it loaded loads the kernel's.
    Leave { space: &'a Residency },
    /// Kernel addresses, the same in every space.
    Kernel { ranges: &'a [VirtRange] },
    /// All translations of kernel addresses, whichever.
    Everything,
}

impl<'a, F: Format> Request<'a, F> {
    pub(crate) fn flush(space: &'a Residency, generation: u64, set: &'a FlushSet) -> Self {
        Request { kind: Kind::Flush { space, generation, set }, format: PhantomData }
    }

    pub(crate) fn entry(id: u64, i: usize, (reach, generation): (&'a Reach, u64), set: &'a FlushSet) -> Self {
        Request { kind: Kind::Entry { id, i, reach, generation, set }, format: PhantomData }
    }

    pub(crate) fn home(space: &'a Residency, root: Pfn, regime: u64) -> Self {
        Request { kind: Kind::Home { space, root, regime }, format: PhantomData }
    }

    pub(crate) fn leave(space: &'a Residency) -> Self {
        Request { kind: Kind::Leave { space }, format: PhantomData }
    }

    /// Kernel addresses, in whole pages, must leave every TLB: the one flush that may be sent to all CPUs. Page by page, since
    /// global translations survive everything else but the costliest.
    pub fn kernel(ranges: &'a [VirtRange]) -> Self {
        Request { kind: Kind::Kernel { ranges }, format: PhantomData }
    }

    /// Every translation must leave every TLB, global ones included: for so many kernel addresses at once that naming them
    /// costs more than filling the TLBs again.
    pub fn everything() -> Self {
        Request { kind: Kind::Everything, format: PhantomData }
    }

    /// Does what is asked on the calling CPU: from the interrupt handler, or from the asker itself. Preemption is off.
    pub fn serve<M: Hardware<Format = F>>(&self, machine: &M) {
        let mmu = machine.mmu();
        let cpu = quire_sync::current_cpu();
        let state = mmu.cpu(cpu);
        match &self.kind {
            Kind::Flush { space, generation, set } => {
                if state.loaded() == space.id {
                    flush_here(machine, state, space, *generation, set);
                }
            }
            Kind::Entry { id, i, reach, generation, set } => {
                // Masked: as for `Leave`, and who is asked to come home must not go on with what is freed then.
                machine.masked(|| {
                    if state.loaded() == *id {
                        flush_entry_here(machine, state, *i, reach, *generation, set);
                    }
                });
            }
            Kind::Home { space, root, regime } => {
                // Masked: as for `Leave`.
                machine.masked(|| {
                    if state.loaded() == space.id && state.has_own() {
                        // SAFETY: on the CPU that is asked, interrupts masked; the root is the loaded space's.
                        unsafe { mmu.come_home(machine, cpu, space, *root, *regime) };
                    }
                });
            }
            Kind::Leave { space } => {
                // Masked: a handler must find either all of the space loaded or nothing of it. Otherwise it could call a flush
                // done while the hardware still walks tables that are about to be freed.
                machine.masked(|| {
                    if state.loaded() == space.id {
                        // SAFETY: on the CPU that is asked, interrupts masked; nothing of the user half is used there.
                        unsafe { mmu.leave(machine, cpu) };
                    }
                });
            }
            Kind::Kernel { ranges } => {
                for range in *ranges {
                    let pages = (range.start..range.end).step_by(PAGE_SIZE as usize);
                    pages.for_each(|va| Hardware::drop_page(machine, va));
                }
            }
            Kind::Everything => machine.drop_all(),
        }
    }
}

/// What a flush drops on the CPU that it runs on.
pub(crate) trait Drops {
    /// See [`Format::PAGE_DROPS_UPPER`].
    const PAGE_DROPS_UPPER: bool;

    /// The translation of one page, in the loaded space.
    fn drop_page(&self, va: u64);

    /// All that is cached for what is loaded; global translations stay.
    fn drop_loaded(&self, state: &CpuMmu);
}

impl<M: Hardware> Drops for M {
    const PAGE_DROPS_UPPER: bool = M::Format::PAGE_DROPS_UPPER;

    fn drop_page(&self, va: u64) {
        Hardware::drop_page(self, va);
    }

    fn drop_loaded(&self, state: &CpuMmu) {
        // Masked: without tags the root is loaded again, and it must not be one that a handler has left meanwhile, to be freed.
        self.masked(|| {
            let (root, tag) = state.root();
            Hardware::drop_loaded(self, root, tag);
        });
    }
}

/// The space is loaded here: drops what `set` names, or everything where an earlier flush was missed.
///
/// A handler may serve another request in the middle of this; what this CPU has seen may then be written down too low,
/// which costs one flush too many and never one too few.
pub(crate) fn flush_here(machine: &impl Drops, state: &CpuMmu, space: &Residency, generation: u64, set: &FlushSet) {
    let seen = state.seen();
    if seen >= generation {
        return;
    }
    if let Some(ranges) = set.ranges()
        // Only where nothing was missed in between does dropping single pages bring this CPU up to date.
        && (seen + 1 == generation || mutant(Mutant::MissedCountAsSeen))
    {
        drop_ranges(machine, state, ranges, set.structure());
        state.set_seen(generation);
    } else {
        // Read before the flush: whatever was cleared up to that generation is gone after it.
        let mut newest = space.generation();
        machine.drop_loaded(state);
        if mutant(Mutant::NewestAfterFlush) {
            newest = space.generation();
        }
        state.set_seen(newest);
    }
}

/// As [`flush_here`], for what lies below one entry of the root.
fn flush_entry_here(machine: &impl Drops, state: &CpuMmu, i: usize, reach: &Reach, generation: u64, set: &FlushSet) {
    let Some(own) = state.own() else {
        // On the space's root a CPU keeps no account of single entries: it is asked for each flush while it runs the space.
        match set.ranges() {
            Some(ranges) => drop_ranges(machine, state, ranges, set.structure()),
            None => machine.drop_loaded(state),
        }
        return;
    };
    let seen = own.seen(i);
    if !own.has(i) || seen >= generation {
        return;
    }
    if let Some(ranges) = set.ranges()
        && seen + 1 == generation
    {
        drop_ranges(machine, state, ranges, set.structure());
        own.set_seen(i, generation);
    } else {
        let newest = reach.generation();
        machine.drop_loaded(state);
        own.set_seen(i, newest);
    }
}

/// Drops what this CPU has cached of `ranges`, and of upper levels where `upper` says so.
fn drop_ranges<M: Drops>(machine: &M, state: &CpuMmu, ranges: &[VirtRange], mut upper: bool) {
    for range in ranges {
        for va in (range.start..range.end).step_by(PAGE_SIZE as usize) {
            machine.drop_page(va);
            upper &= !M::PAGE_DROPS_UPPER;
        }
    }
    if upper && M::PAGE_DROPS_UPPER {
        machine.drop_page(0);
    } else if upper {
        machine.drop_loaded(state);
    }
}
