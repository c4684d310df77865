//! The memory system as one value: everything that the core shares between CPUs, in the memory that it manages.

use crate::frames::{Frames, Magazine};
use crate::machine::Machine;
use crate::map::MapMemory;
use crate::object::ObjectMemory;
use crate::page::Page;
use crate::queue::Queues;
use crate::slab::Heap;
use crate::stats::{Counters, Stats};
use crate::types::{PAGE_SIZE, Pfn, PhysRange};
use core::ptr::NonNull;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::{CpuId, PerCpu, WaitQueue, epoch};

/// Why a memory system cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BootError {
    /// Not enough RAM for the page descriptors and a little more; the number of frames that were there.
    TooLittleMemory(u64),
    /// RAM beyond frame number 2^32 - 2, or ranges that are empty, unsorted or overlap.
    BadRange(PhysRange),
}

/// Wait queues for busy pages, for each CPU: as many threads as can wait at once rarely share one.
const PAGE_WAITS: usize = 4;

/// Settings that are fixed when the system is built.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Overwrite freed frames with a pattern, so that use after free shows. Debug builds and the hosted machine's default.
    pub poison: bool,
    /// Frames kept back for the kernel; `None`: one in 64, at least 256 and at most 4,096.
    pub reserve: Option<u64>,
}

// Only where debug assertions are off do all fields have their types' defaults.
#[allow(clippy::derivable_impls)]
impl Default for Config {
    fn default() -> Self {
        Config { poison: cfg!(debug_assertions), reserve: None }
    }
}

/// A memory system. It lives in the RAM that it manages, for ever.
pub struct Vm<M: Machine> {
    machine: M,
    pages: NonNull<Page>,
    page_count: u64,
    frames: Frames,
    epoch: epoch::Domain,
    stats: Stats,
    heap: Heap,
    object_memory: ObjectMemory<M>,
    map_memory: MapMemory<M>,
    queues: Queues,
    /// Where threads sleep for busy pages, by a hash of the page.
    page_waits: PerCpu<[WaitQueue; PAGE_WAITS]>,
    config: Config,
    /// 0: off; n: the n-th allocation from now fails (tests of error paths).
    fail_in: AtomicU64,
}

// SAFETY: `pages` points to descriptors made of atomics that live as long as the system; everything else is shared by design.
unsafe impl<M: Machine> Send for Vm<M> {}
// SAFETY: as above.
unsafe impl<M: Machine> Sync for Vm<M> {}

/// RAM handed out while the system is built, never taken back: a bump allocator over one range.
pub struct BootMemory<'m, M: Machine> {
    machine: &'m M,
    next: *mut u8,
    end: *mut u8,
}

impl<M: Machine> BootMemory<'_, M> {
    /// `bytes` of zeroed memory, aligned to `align`.
    ///
    /// # Panics
    /// Where [`Vm::new`]'s estimate was too small: a bug of this crate, at boot.
    pub(crate) fn take(&mut self, bytes: usize, align: usize) -> NonNull<u8> {
        let at = self.next.map_addr(|a| a.next_multiple_of(align));
        let next = at.wrapping_add(bytes);
        assert!(next as usize <= self.end as usize, "boot memory was estimated too small");
        self.next = next;
        // SAFETY: inside the range that `Vm::new` set aside, which nobody else uses.
        unsafe { core::ptr::write_bytes(at, 0, bytes) };
        NonNull::new(at).expect("RAM does not lie at address zero")
    }

    /// One `T` a CPU.
    pub(crate) fn per_cpu<T>(&mut self, init: impl FnMut(CpuId) -> T) -> PerCpu<T> {
        let cpus = self.machine.cpus();
        let memory = self.take(PerCpu::<T>::bytes(cpus), 128);
        // SAFETY: fresh, large enough and aligned, and never freed.
        unsafe { PerCpu::new(memory, cpus, init) }
    }
}

/// Bytes that the system itself and its per-CPU parts take at most, for `cpus` CPUs, without the page descriptors.
const fn boot_bytes<M: Machine>(cpus: usize) -> usize {
    size_of::<Vm<M>>() + 128 * 1024 + cpus * 16 * 1024
}

impl<M: Machine> Vm<M> {
    /// Builds the system over `ram`: sorted, disjoint ranges of frames that nobody else uses. The first part of the largest
    /// range is taken for page descriptors and the system itself.
    ///
    /// # Safety
    /// The frames of `ram` belong to the system from now on, and `machine`'s RAM stays reachable as long as the returned
    /// reference, or anything made through it, is used.
    pub unsafe fn new(machine: M, ram: &[PhysRange], config: Config) -> Result<&'static Vm<M>, BootError> {
        let mut at = 0;
        for r in ram {
            if r.start.0 < at || r.end <= r.start || r.end.0 >= u32::MAX as u64 {
                return Err(BootError::BadRange(*r));
            }
            at = r.end.0;
        }
        let page_count = at;
        let total: u64 = ram.iter().map(|r| r.end.0 - r.start.0).sum();
        let largest = ram.iter().copied().max_by_key(|r| r.end.0 - r.start.0).ok_or(BootError::TooLittleMemory(0))?;
        let cpus = machine.cpus();
        let bytes = page_count * size_of::<Page>() as u64 + boot_bytes::<M>(cpus) as u64;
        let boot_frames = bytes.div_ceil(PAGE_SIZE);
        let boot_end = largest.start.0 + boot_frames;
        if boot_end + 64 > largest.end.0 {
            return Err(BootError::TooLittleMemory(total));
        }
        let next = machine.frame_ptr(largest.start);
        // SAFETY: one past the part of the range that is set aside; consecutive frames are consecutive in memory.
        let end = unsafe { next.add((boot_frames * PAGE_SIZE) as usize) };
        let mut boot = BootMemory { machine: &machine, next, end };

        // All-zero bytes are a descriptor of a frame that is not RAM (`Kind::Reserved`), which is what holes stay.
        let pages = boot.take(page_count as usize * size_of::<Page>(), 64).cast::<Page>();
        // The checkers' atomics are not made of zeroes.
        #[cfg(any(loom, shuttle))]
        for i in 0..page_count as usize {
            // SAFETY: within the array, which nobody else has yet.
            unsafe { pages.as_ptr().add(i).write(Page::new()) };
        }
        let managed = total - boot_frames;
        let reserve = config.reserve.unwrap_or((total / 64).clamp(256, 4096));
        let frames = Frames::new(boot.per_cpu(|_| Magazine::new()), managed, reserve.min(managed / 2));
        let epoch = epoch::Domain::new(boot.per_cpu(|_| epoch::Slot::new()));
        let stats = Stats::new(boot.per_cpu(|_| Counters::new()));
        let heap = Heap::new(&mut boot);
        let object_memory = ObjectMemory::new(&mut boot);
        let map_memory = MapMemory::new(&mut boot);
        let queues = Queues::new(&mut boot);
        let page_waits = boot.per_cpu(|_| core::array::from_fn(|_| WaitQueue::new()));
        let place = boot.take(size_of::<Vm<M>>(), align_of::<Vm<M>>()).cast::<Vm<M>>();
        let vm = Vm {
            machine,
            pages,
            page_count,
            frames,
            epoch,
            stats,
            heap,
            object_memory,
            map_memory,
            queues,
            page_waits,
            config,
            fail_in: AtomicU64::new(0),
        };
        // SAFETY: fresh memory of the right size and alignment, never freed.
        let vm: &'static Vm<M> = unsafe {
            place.write(vm);
            place.as_ref()
        };
        for r in ram {
            let start = if r.start == largest.start { boot_end } else { r.start.0 };
            vm.donate(start, r.end.0);
        }
        Ok(vm)
    }

    /// The machine beneath.
    #[inline(always)]
    pub fn machine(&self) -> &M {
        &self.machine
    }
    /// The descriptor of frame `pfn`.
    ///
    /// # Panics
    /// Where `pfn` lies beyond the machine's RAM.
    #[inline(always)]
    pub fn page(&self, pfn: Pfn) -> &'static Page {
        assert!(pfn.0 < self.page_count, "frame number beyond RAM");
        // SAFETY: in bounds of the descriptor array, which lives as long as the system.
        unsafe { &*self.pages.as_ptr().add(pfn.0 as usize) }
    }
    /// The frame that `page` describes.
    #[inline(always)]
    pub fn pfn_of_page(&self, page: &Page) -> Pfn {
        Pfn(((page as *const Page as usize - self.pages.as_ptr() as usize) / size_of::<Page>()) as u64)
    }
    /// Number of page descriptors: one more than the highest frame number.
    pub fn page_count(&self) -> u64 {
        self.page_count
    }
    /// Physical frames: totals and the reserve.
    #[inline(always)]
    pub fn frames(&self) -> &Frames {
        &self.frames
    }
    /// The reclamation domain of entries, nodes, backings and pruned tables.
    #[inline(always)]
    pub fn epoch(&self) -> &epoch::Domain {
        &self.epoch
    }
    /// Event counters.
    #[inline(always)]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }
    /// Memory by size for the layers above.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Slabs of spaces, entries and tree nodes.
    pub fn map_memory(&self) -> &MapMemory<M> {
        &self.map_memory
    }
    /// Slabs of objects, backings and index nodes.
    pub fn object_memory(&self) -> &ObjectMemory<M> {
        &self.object_memory
    }
    /// The page queues.
    #[inline(always)]
    pub fn queues(&self) -> &Queues {
        &self.queues
    }
    /// Where to sleep until `page` is not busy. Strangers may share it: who wakes there looks again.
    pub(crate) fn page_waits(&self, page: &Page) -> &WaitQueue {
        let hash = self.pfn_of_page(page).0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let n = hash as usize % (self.page_waits.len() * PAGE_WAITS);
        &self.page_waits.of(n / PAGE_WAITS)[n % PAGE_WAITS]
    }

    #[inline(always)]
    pub(crate) fn poisons(&self) -> bool {
        self.config.poison
    }

    /// Makes the `n`-th allocation from now fail, once (1: the next; 0: none). For tests of error paths.
    pub fn fail_allocation(&self, n: u64) {
        self.fail_in.store(n, Ordering::Relaxed);
    }

    /// Whether this allocation is the one that [`Vm::fail_allocation`] chose. One relaxed load of a read-mostly word.
    #[inline(always)]
    pub(crate) fn inject_failure(&self) -> bool {
        self.fail_in.load(Ordering::Relaxed) != 0 && self.fail_in.fetch_sub(1, Ordering::Relaxed) == 1
    }
}
