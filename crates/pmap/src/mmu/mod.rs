//! The tables that each CPU has loaded, and its tags (PCIDs, ASIDs) for spaces.
//!
//! A CPU keeps the translations of the last few spaces that it ran. No tag belongs to a space for ever: each CPU uses
//! its tags as a small cache of spaces. So each CPU needs a few words of memory, however many spaces there are (relies
//! on C8: no memory in proportion to processes times CPUs). A CPU loads a space without losing a translation if the
//! space still has a tag there and its generation has not changed.
//!
//! This module has the state; `switch` loads and leaves spaces by the machine's instructions.

mod switch;

use crate::format::Format;
use crate::kernel_tables::KernelTables;
use crate::roots::Own;
use crate::shootdown::residency::Residency;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{AtomicPtr, AtomicU16, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use quire_sync::{CpuId, PerCpu, Rank, SpinLock, preempt_off};
use quire_vm::phys::Physical;
use quire_vm::{Machine, Pfn};

/// The number of tags that each CPU uses for spaces. More tags would gain nothing, because the programs that run in
/// between evict the translations before their space runs again. Linux uses six PCIDs as well.
pub const TAGS: usize = 6;

/// One tag of one CPU: the space whose translations it has, and how fresh they are.
struct Tagged {
    space: AtomicU64,
    seen: AtomicU64,
    /// The regime under which the translations were made. The number rises when the use of per-CPU roots
    /// ([`Roots`](crate::roots::Roots)) begins or ends.
    regime: AtomicU64,
}

/// The most empty table pages that a CPU keeps: enough for two small processes, and only 64 KiB of memory.
const SPARE: u32 = 16;

/// A list of empty table pages, linked through their descriptors.
#[derive(Default)]
struct SpareTables {
    head: Option<Pfn>,
}

/// One CPU's translation state. Only that CPU uses it, with interrupts off or from a shootdown handler.
pub struct CpuMmu {
    /// The space that is loaded; null for the kernel's own root.
    space: AtomicPtr<Residency>,
    /// The number of the loaded space; 0 for the kernel's own root.
    loaded: AtomicU64,
    /// The value of the root register: a root of the loaded space, or the kernel's root if the space has none.
    root: AtomicU64,
    /// This CPU's own root of the loaded space, if that root is loaded.
    own: AtomicPtr<Own>,
    tag: AtomicU16,
    slot: AtomicUsize,
    slots: [Tagged; TAGS],
    /// Spare table pages for this CPU. A table page is all zeroes again when it is freed, so its next use needs no
    /// zeroing. Other CPUs acquire the lock only to drain the list.
    spare: SpinLock<SpareTables>,
    /// The number of spare pages. A CPU changes it under the lock. The owner reads it without the lock, to find out
    /// whether the list is empty or full.
    spares: AtomicU32,
    /// The number of spaces to which this CPU has given a number.
    given: AtomicU64,
    /// The number of resident pages that this CPU has added to the loaded space, less removed pages, since its last
    /// report to the space.
    unreported: AtomicU64,
}

/// How many pages a CPU counts for itself before it adds them to the space's shared count. So a CPU fetches the cache
/// line of the shared count once in 1,024 zero-fill faults. At most 4 MiB a CPU are unreported.
#[cfg(not(any(loom, shuttle)))]
const REPORT_AFTER: i64 = 1024;
#[cfg(any(loom, shuttle))]
const REPORT_AFTER: i64 = 2;
/// A CPU that is about to remove pages first reports its count if the count has reached this number. Otherwise the peak
/// could miss the counted pages.
const REPORT_BEFORE: i64 = REPORT_AFTER / 8 + 1;

impl CpuMmu {
    pub(crate) fn new() -> Self {
        CpuMmu {
            space: AtomicPtr::new(ptr::null_mut()),
            loaded: AtomicU64::new(0),
            root: AtomicU64::new(0),
            own: AtomicPtr::new(ptr::null_mut()),
            tag: AtomicU16::new(0),
            slot: AtomicUsize::new(0),
            slots: core::array::from_fn(|_| Tagged {
                space: AtomicU64::new(0),
                seen: AtomicU64::new(0),
                regime: AtomicU64::new(0),
            }),
            spare: SpinLock::new(Rank::TABLE_SPARE, SpareTables::default()),
            spares: AtomicU32::new(0),
            given: AtomicU64::new(0),
            unreported: AtomicU64::new(0),
        }
    }

    /// Counts pages that the calling CPU has added to `space` (`by` above zero) or removed from it. `id` is the number
    /// of `space`.
    ///
    /// An interrupt handler may leave the space in the middle of this function. It has then reported the earlier count
    /// to the space. The count written here then belongs to no space and is dropped at the next load.
    ///
    /// # Requires
    /// The caller holds the lock of the table page, which keeps it on that CPU.
    #[inline]
    pub(crate) fn count(&self, id: u64, space: &Residency, by: i64) {
        if self.loaded() != id {
            return space.add_resident(by);
        }
        let unreported = self.unreported.load(Ordering::Relaxed).cast_signed();
        let (reported, left) = match unreported + by {
            _ if by < 0 && unreported >= REPORT_BEFORE => (unreported, by),
            n if n.abs() >= REPORT_AFTER => (n, 0),
            n => (0, n),
        };
        self.unreported.store(left.cast_unsigned(), Ordering::Relaxed);
        if reported != 0 {
            space.add_resident(reported);
        }
    }

    /// The number of pages that this CPU has not reported to the space `id` yet; it may be negative.
    ///
    /// # Requires
    /// As [`count`](Self::count).
    pub(crate) fn unreported(&self, id: u64) -> i64 {
        if self.loaded() == id { self.unreported.load(Ordering::Relaxed).cast_signed() } else { 0 }
    }

    /// Begins to count for another space, and reports the rest of the old count to `before`, the space that was loaded.
    ///
    /// # Requires
    /// Runs on this CPU, with interrupts off.
    fn count_anew(&self, before: Option<&Residency>) {
        let n = self.unreported.load(Ordering::Relaxed).cast_signed();
        self.unreported.store(0, Ordering::Relaxed);
        if let Some(before) = before
            && n != 0
        {
            before.add_resident(n);
        }
    }

    /// Sets the unreported count of the loaded space to zero, without a report.
    ///
    /// # Requires
    /// Runs on this CPU.
    pub(crate) fn forget_unreported(&self) {
        self.unreported.store(0, Ordering::Relaxed);
    }

    /// The number of the space that is loaded, 0 for the kernel's own root.
    pub fn loaded(&self) -> u64 {
        self.loaded.load(Ordering::Relaxed)
    }

    /// The root that is loaded, and its tag.
    pub(crate) fn root(&self) -> (Pfn, u16) {
        (Pfn(self.root.load(Ordering::Relaxed)), self.tag.load(Ordering::Relaxed))
    }

    fn set_root(&self, root: Pfn, own: Option<&Own>, tag: u16) {
        self.root.store(root.0, Ordering::Relaxed);
        self.own.store(own.map_or(ptr::null_mut(), |o| ptr::from_ref(o).cast_mut()), Ordering::Relaxed);
        self.tag.store(tag, Ordering::Relaxed);
    }

    /// Whether this CPU has a root of its own loaded. The result is only a hint if another CPU asks.
    pub(crate) fn has_own(&self) -> bool {
        !self.own.load(Ordering::Relaxed).is_null()
    }

    /// This CPU's own root of the loaded space, if it is loaded.
    ///
    /// # Requires
    /// Runs on that CPU, with interrupts off.
    #[inline]
    pub(crate) fn own(&self) -> Option<&Own> {
        // SAFETY: an own root is freed only after this CPU has loaded the space's root again, or left the space.
        unsafe { self.own.load(Ordering::Relaxed).as_ref() }
    }

    /// The generation of the loaded space that this CPU has caught up with.
    pub(crate) fn seen(&self) -> u64 {
        self.slots[self.slot.load(Ordering::Relaxed)].seen.load(Ordering::Relaxed)
    }

    pub(crate) fn set_seen(&self, generation: u64) {
        self.slots[self.slot.load(Ordering::Relaxed)].seen.store(generation, Ordering::Relaxed);
    }

    /// Records that the translations under the loaded tag are up to date with `generation` and `regime`.
    fn set_fresh(&self, generation: u64, regime: u64) {
        self.set_seen(generation);
        self.slots[self.slot.load(Ordering::Relaxed)].regime.store(regime, Ordering::Relaxed);
    }

    /// Whether the translations under tag slot `i` are up to date with `generation` and `regime`.
    fn is_fresh(&self, i: usize, generation: u64, regime: u64) -> bool {
        let slot = &self.slots[i];
        slot.seen.load(Ordering::Relaxed) == generation && slot.regime.load(Ordering::Relaxed) == regime
    }

    /// Returns the tag slot to load `space` into. Also returns whether that slot has translations of `space` that are
    /// up to date with `generation` and `regime`.
    fn choose(&self, space: u64, generation: u64, regime: u64, tags: bool) -> (usize, bool) {
        if !tags {
            return (0, false);
        }
        match self.slots.iter().position(|s| s.space.load(Ordering::Relaxed) == space) {
            Some(i) => (i, self.is_fresh(i, generation, regime)),
            // The CPU replaces its slots round-robin. If the spaces run round-robin too, this evicts the slot that was
            // loaded longest ago.
            None => ((self.slot.load(Ordering::Relaxed) + 1) % TAGS, false),
        }
    }
}

/// The translation state of all CPUs, and the kernel's half.
pub struct Mmu<F: Format> {
    kernel: KernelTables<F>,
    cpus: PerCpu<CpuMmu>,
    tags: bool,
}

impl<F: Format> Mmu<F> {
    /// The size in bytes of the memory that [`Mmu::new`] needs, aligned to 128.
    pub const fn bytes(cpus: usize) -> usize {
        PerCpu::<CpuMmu>::bytes(cpus)
    }

    /// The state of `cpus` CPUs, each of which runs on the kernel's own root. `tags` says whether address-space tags
    /// exist and are enabled on every CPU.
    ///
    /// # Safety
    /// `memory` points to [`Mmu::bytes`]`(cpus)` writable bytes, aligned to 128, that no other code ever uses.
    pub unsafe fn new(memory: NonNull<u8>, cpus: usize, kernel: KernelTables<F>, tags: bool) -> Mmu<F> {
        let root = kernel.root();
        // SAFETY: the caller gives up memory for `cpus` elements for ever, as `PerCpu::new` requires.
        let cpus = unsafe { PerCpu::new(memory, cpus, |_| CpuMmu::new()) };
        cpus.iter().for_each(|c| c.set_root(root, None, 0));
        Mmu { kernel, cpus, tags }
    }

    /// Whether address-space tags are used.
    pub fn tags(&self) -> bool {
        self.tags
    }

    /// The kernel's half, shared by all spaces.
    pub fn kernel(&self) -> &KernelTables<F> {
        &self.kernel
    }

    /// One CPU's state.
    pub fn cpu(&self, cpu: CpuId) -> &CpuMmu {
        self.cpus.of(cpu)
    }

    /// Takes a spare table page, which is empty, from this CPU's list; `None` if the list is empty.
    pub(crate) fn take_spare<M: Machine>(&self, vm: &Physical<M>) -> Option<Pfn> {
        let cpu = preempt_off();
        let mine = self.cpus.mine(&cpu);
        if mine.spares.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let mut spare = mine.spare.lock();
        let t = spare.head?;
        // SAFETY: an empty table page, which belongs to the holder of the list.
        spare.head = unsafe { vm.descriptor(t) }.next();
        mine.spares.store(mine.spares.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        Some(t)
    }

    /// Keeps the empty table page `t` as a spare. Returns `false`, and leaves it to the caller, if the list is full.
    pub(crate) fn keep_spare<M: Machine>(&self, vm: &Physical<M>, t: Pfn) -> bool {
        let cpu = preempt_off();
        let mine = self.cpus.mine(&cpu);
        // Only this CPU adds to its own list, so the list cannot become full after this check.
        if mine.spares.load(Ordering::Relaxed) == SPARE {
            return false;
        }
        let mut spare = mine.spare.lock();
        // The machine is notified before another CPU can drain the page, because the page may have a new owner from
        // then on.
        // SAFETY: a table page that was unlinked and flushed.
        unsafe { vm.machine().frame_freed(t) };
        // SAFETY: an empty table page, which no other CPU has.
        unsafe { vm.descriptor(t) }.set_next(spare.head);
        spare.head = Some(t);
        mine.spares.store(mine.spares.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        true
    }

    /// Gives the empty table pages that the CPUs keep back to the system. Returns their number.
    pub(crate) fn drain<M: Machine>(&self, vm: &Physical<M>) -> u64 {
        let mut n = 0;
        for cpu in self.cpus.iter() {
            let mut next = {
                let mut spare = cpu.spare.lock();
                cpu.spares.store(0, Ordering::Relaxed);
                spare.head.take()
            };
            while let Some(t) = next {
                // SAFETY: no other CPU has a page that was kept here.
                unsafe {
                    next = vm.descriptor(t).next();
                    vm.free_pfn(t);
                }
                n += 1;
            }
        }
        n
    }

    /// Allocates the number of a new space; never 0, never reused. Each CPU counts for itself, and the numbers of the
    /// CPUs interleave.
    pub(crate) fn new_id(&self) -> u64 {
        let cpu = preempt_off();
        let given = &self.cpus.mine(&cpu).given;
        let n = given.load(Ordering::Relaxed) + 1;
        given.store(n, Ordering::Relaxed);
        n * self.cpus.len() as u64 + cpu.cpu() as u64
    }
}
