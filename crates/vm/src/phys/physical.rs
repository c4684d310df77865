//! The lowest storey (nested value) of a memory system: the machine, descriptors, frames, slabs, queues, the epoch and
//! counters.

use super::boot::{BootMemory, write_storey};
use super::config::Config;
use super::descriptors::Descriptors;
use super::frames::Frames;
use super::page::Page;
use super::queues::Queues;
use super::slab::Heap;
use crate::check::{Broken, Due, Level};
use crate::error::OutOfMemory;
use crate::machine::Machine;
use crate::stats::{Counters, Event, Stats};
use crate::types::{PAGE_SIZE, Pfn};
use core::alloc::Layout;
use quire_sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use quire_sync::{PerCpu, WaitQueue, epoch};

/// The bit of `fail_in` with which allocations fail at random.
const AT_RANDOM: u64 = 1 << 63;

/// The number of wait queues for busy pages, for each CPU. A hash chooses a page's queue among those of all CPUs. So
/// waiting threads rarely share a queue.
pub(crate) const PAGE_WAITS: usize = 4;

/// The lowest storey (innermost nested value) of a memory system, and the only storey that page tables see.
/// [`Vm`](crate::Vm) is the whole system, and dereferences to this value.
pub struct Physical<M: Machine> {
    pub(crate) machine: M,
    pub(crate) pages: Descriptors,
    /// The frame of zeroes, which is mapped for holes and never stored into.
    pub(crate) zero: Pfn,
    pub(crate) frames: Frames,
    pub(crate) epoch: epoch::Domain,
    pub(crate) stats: Stats,
    pub(crate) heap: Heap,
    pub(crate) queues: Queues,
    /// The wait queues of threads that wait for busy pages, by a hash of the page.
    pub(crate) page_waits: PerCpu<[WaitQueue; PAGE_WAITS]>,
    pub(crate) config: Config,
    pub(crate) failures: Failures,
    /// The number of map changes since queues and slabs were last checked.
    pub(crate) check_updates: AtomicU64,
    /// A [`Level`], written at boot and by [`Physical::set_check_level`].
    pub(crate) check: AtomicU8,
}

/// The state of allocations that fail on purpose.
pub(crate) struct Failures {
    /// 0: none fails. n: the n-th allocation from now fails. [`AT_RANDOM`] | n: one in n allocations fails (for tests
    /// of error paths).
    fail_in: AtomicU64,
    /// An allocation has failed on purpose, and no thread has handled this yet.
    injected: AtomicBool,
    /// The state of the random generator.
    fail_seed: AtomicU64,
}

impl Failures {
    pub(crate) fn new() -> Failures {
        Failures { fail_in: AtomicU64::new(0), injected: AtomicBool::new(false), fail_seed: AtomicU64::new(0) }
    }
}

/// In each epoch, at most one part in this number of all memory may wait until readers have unpinned.
const WAITS: u64 = 1024;

impl<M: Machine> Physical<M> {
    /// Initialises all fields except the machine, for the `managed` frames of `pages`.
    ///
    /// # Safety
    /// The place is fresh memory that no reader can reach. Its field `machine` is already written, and `boot` refers to
    /// it.
    #[inline(never)]
    pub(crate) unsafe fn write(
        place: *mut Self,
        boot: &mut BootMemory<'_, M>,
        pages: Descriptors,
        managed: u64,
        queue_parts: usize,
        config: Config,
    ) {
        let epoch = epoch::Domain::new(boot.per_cpu(|_| epoch::Slot::new())).holding(managed * PAGE_SIZE / WAITS);
        boot.burst = epoch.every();
        write_storey!(place => Physical {
            epoch: epoch,
            pages: pages,
            zero: boot.machine().pfn_of(boot.take(PAGE_SIZE as usize, PAGE_SIZE as usize).as_ptr()),
            frames: Frames::new(boot, pages, managed, &config),
            stats: Stats::new(boot.per_cpu(|_| Counters::new())),
            heap: Heap::new(boot),
            queues: Queues::new(boot, pages, queue_parts),
            page_waits: boot.per_cpu(|_| core::array::from_fn(|_| WaitQueue::new())),
            check: AtomicU8::new(config.check as u8),
            config: config,
            failures: Failures::new(),
            check_updates: AtomicU64::new(0);
            machine,
        });
    }

    /// The machine that the system runs on.
    #[inline(always)]
    pub fn machine(&self) -> &M {
        &self.machine
    }

    /// The descriptor of frame `pfn`.
    ///
    /// # Panics
    /// Panics if `pfn` is beyond the machine's RAM.
    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    pub(crate) fn page(&self, pfn: Pfn) -> &'static Page {
        self.pages.get(pfn)
    }

    /// All descriptors.
    pub(crate) fn descriptors(&self) -> &Descriptors {
        &self.pages
    }

    /// The descriptor of frame `pfn`. `None` if it has none, such as memory that was never used.
    pub(crate) fn find_page(&self, pfn: Pfn) -> Option<&'static Page> {
        self.pages.find(pfn)
    }

    /// The initialised descriptors, ascending. Memory that was never used has none yet.
    pub(crate) fn described(&self) -> impl Iterator<Item = &'static Page> + Clone + use<M> {
        let pages = self.pages;
        pages.opened().map(move |pfn| pages.get(pfn))
    }

    /// The descriptor of frame `pfn`, for page tables, the hosted machine and tests. The words of a descriptor are the
    /// state of its page. A caller that changes a page's identity could free the frame of another page.
    ///
    /// # Safety
    /// The frame is RAM of this system that was in use before. The caller changes only fields that the frame's kind
    /// gives to it alone (a table page's words and kind). It only reads the other fields.
    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    pub unsafe fn descriptor(&self, pfn: Pfn) -> &'static Page {
        self.page(pfn)
    }
    /// Returns the descriptor like [`Physical::descriptor`], but for any frame number. `None` if the frame has no
    /// descriptor.
    ///
    /// # Safety
    /// The caller only reads the descriptor.
    pub unsafe fn find_descriptor(&self, pfn: Pfn) -> Option<&'static Page> {
        self.find_page(pfn)
    }
    /// All initialised descriptors, ascending.
    ///
    /// # Safety
    /// The caller only reads the descriptors.
    pub unsafe fn descriptors_in_use(&self) -> impl Iterator<Item = &'static Page> + Clone + use<M> {
        self.described()
    }
    /// The frame of zeroes that private mappings map for holes of files in memory. It is not a page of an object.
    #[inline(always)]
    pub fn zero_frame(&self) -> Pfn {
        self.zero
    }

    /// The page that a PTE for frame `pfn` maps. `None` if the PTE maps a device: no RAM, or a frame that is not a page
    /// of an object.
    #[inline]
    pub(crate) fn page_of_leaf(&self, pfn: Pfn) -> Option<&'static Page> {
        self.pages.of_leaf(pfn).filter(|p| p.kind() == crate::phys::page::FrameKind::Object)
    }

    /// The frame that `page` describes.
    #[inline(always)]
    pub fn pfn_of_page(&self, page: &Page) -> Pfn {
        self.pages.pfn(page)
    }

    /// The highest frame number plus one.
    pub fn page_count(&self) -> u64 {
        self.pages.span().end
    }

    /// The numbers of the frames that may have a page descriptor: from the lowest frame of RAM, rounded down to 4 MiB, up
    /// to the highest one.
    pub fn frame_span(&self) -> core::ops::Range<u64> {
        self.pages.span()
    }

    /// The physical frames, for totals and the reserve.
    #[inline(always)]
    pub fn frames(&self) -> &Frames {
        &self.frames
    }

    /// The epoch that frees entries, nodes, backings and pruned page tables.
    #[inline(always)]
    pub fn epoch(&self) -> &epoch::Domain {
        &self.epoch
    }

    /// Event counters.
    #[inline(always)]
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// The heap, which allocates memory by size for the layers above.
    pub fn heap(&self) -> &Heap {
        &self.heap
    }

    /// Puts `value` into memory of the system, where it stays for ever: a swap store, for example, in a kernel that has
    /// no heap of its own.
    pub fn leak<T: 'static>(&self, value: T) -> Result<&'static T, OutOfMemory> {
        // SAFETY: the heap is this system's.
        let place = unsafe { self.heap().alloc(self, Layout::new::<T>()) }?.cast::<T>();
        // SAFETY: the memory has the layout of a `T`, no other user, and is never freed.
        unsafe {
            place.write(value);
            Ok(place.as_ref())
        }
    }

    /// The page queues.
    #[inline(always)]
    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    /// The queue in which to wait until `page` is not busy. Pages share queues, so a woken thread checks its page
    /// again.
    pub(crate) fn page_waits(&self, page: &Page) -> &WaitQueue {
        let hash = self.pfn_of_page(page).0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let n = hash as usize % (self.page_waits.len() * PAGE_WAITS);
        &self.page_waits.of(n / PAGE_WAITS)[n % PAGE_WAITS]
    }

    /// The limit of layers in a chain ([`Config::layers`]), within its bounds.
    pub(crate) fn layers(&self) -> usize {
        // A front and the layer behind it are two layers. The depth of a chain is counted up to 255.
        self.config.layers.clamp(2, u8::MAX - 1).into()
    }

    #[inline(always)]
    pub(crate) fn poisons(&self) -> bool {
        self.config.poison
    }

    /// Makes the `n`-th allocation from now fail, once (1: the next; 0: none). Frames, runs of frames, table pages and
    /// objects of slabs count. For tests of error paths.
    pub fn fail_allocation(&self, n: u64) {
        self.failures.injected.store(false, Ordering::Relaxed);
        self.failures.fail_in.store(n & !AT_RANDOM, Ordering::Relaxed);
    }

    /// Makes one allocation in `one_in` fail from now on, until [`Physical::fail_allocation`] ends this. `seed` and the
    /// order of allocations determine which ones fail. For tests of error paths.
    pub fn fail_allocations(&self, one_in: u32, seed: u64) {
        self.failures.fail_seed.store(seed, Ordering::Relaxed);
        self.failures.fail_in.store(AT_RANDOM | u64::from(one_in.max(1)), Ordering::Relaxed);
    }

    /// Whether a failure that [`Physical::fail_allocation`] has set has not happened yet.
    pub fn failure_is_pending(&self) -> bool {
        self.failures.fail_in.load(Ordering::Relaxed) != 0
    }

    /// Whether this allocation must fail on purpose. This is one relaxed load of a read-mostly word, and a call of the
    /// machine.
    #[inline(always)]
    pub fn inject_failure(&self) -> bool {
        (self.failures.fail_in.load(Ordering::Relaxed) != 0 && self.choose_failure()) || self.machine_refuses()
    }

    #[inline(always)]
    fn machine_refuses(&self) -> bool {
        let refuses = self.machine().refuses_allocation();
        if refuses {
            self.failures.injected.store(true, Ordering::Relaxed);
        }
        refuses
    }

    #[cold]
    fn choose_failure(&self) -> bool {
        let fails = self.fails_now();
        if fails {
            self.failures.injected.store(true, Ordering::Relaxed);
        }
        fails
    }

    fn fails_now(&self) -> bool {
        let mut left = self.failures.fail_in.load(Ordering::Relaxed);
        if left & AT_RANDOM != 0 {
            // SplitMix64 (Steele et al. 2014). Its state is a counter, so CPUs share it without a lock.
            let z = self.failures.fail_seed.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            return (z ^ (z >> 31)).is_multiple_of(left & !AT_RANDOM);
        }
        while left != 0 && left & AT_RANDOM == 0 {
            match self.failures.fail_in.compare_exchange_weak(left, left - 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return left == 1,
                Err(now) => left = now,
            }
        }
        false
    }

    /// Whether an allocation has failed on purpose since the last [`Physical::forget_injected`].
    pub fn is_injected(&self) -> bool {
        self.failures.injected.load(Ordering::Relaxed)
    }

    /// Records that all failures on purpose until now were handled.
    pub fn forget_injected(&self) {
        self.failures.injected.store(false, Ordering::Relaxed);
    }

    /// Whether an allocation has failed on purpose since the last call. If so, memory is not short.
    pub(crate) fn take_injected(&self) -> bool {
        self.failures.injected.load(Ordering::Relaxed) && self.failures.injected.swap(false, Ordering::Relaxed)
    }

    /// How often structures are checked. One relaxed load of a read-mostly word.
    #[inline(always)]
    pub fn check_level(&self) -> Level {
        match self.check.load(Ordering::Relaxed) {
            0 => Level::Never,
            1 => Level::AtRelease,
            _ => Level::Always,
        }
    }

    /// Changes how often structures are checked, from now on.
    pub fn set_check_level(&self, level: Level) {
        self.check.store(level as u8, Ordering::Relaxed);
    }

    /// Ends the check of a structure. If the structure is broken, panics with the report. Otherwise the next check is
    /// due after a number of updates that equals the steps of this check.
    #[cold]
    pub(crate) fn checked(&self, due: &mut Due, result: Result<u64, Broken>) {
        match result {
            Ok(cost) => {
                due.checked(cost);
                self.stats().add(Event::CheckVisit, cost);
            }
            Err(broken) => self.broken(broken),
        }
    }

    /// Panics because an invariant does not hold.
    #[cold]
    pub(crate) fn broken(&self, broken: Broken) -> ! {
        // The panic unwinds and releases locks, so checks are switched off first.
        self.set_check_level(Level::Never);
        panic!("consistency check: {broken}")
    }
}
