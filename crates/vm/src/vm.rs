//! The memory system as one value: everything that the core shares between CPUs, in the memory that it manages.

use crate::check::Level;
use crate::cow::reaper::Reaper;
use crate::machine::Machine;
use crate::map::MapMemory;
use crate::object::ObjectMemory;
use crate::phys::descriptors::{self, Descriptors, Run};
use crate::phys::frames::Frames;
use crate::phys::page::Page;
use crate::phys::queues::{MAX_PARTS, Queues};
use crate::phys::slab::Heap;
use crate::reclaim::daemon::Daemons;
use crate::reclaim::io::Io;
use crate::reclaim::scan::Pageout;
use crate::reclaim::swap::Swap;
use crate::stats::{Counters, Stats};
use crate::types::{PAGE_SIZE, Pfn, PhysRange};
use core::fmt;
use core::ptr::NonNull;
use quire_sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use quire_sync::cpuset::MAX_CPUS;
use quire_sync::{CpuId, PerCpu, WaitQueue, epoch, record};

/// Why a memory system cannot be built.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BootError {
    /// Not enough RAM for the page descriptors and a little more; the number of frames that were there.
    TooLittleMemory(u64),
    /// RAM beyond frame number 2^32 - 2, or ranges that are empty, unsorted or overlap.
    BadRange(PhysRange),
    /// No CPU, or more than [`MAX_CPUS`]; the number that the machine told.
    BadCpus(usize),
}

impl fmt::Display for BootError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BootError::TooLittleMemory(frames) => write!(f, "{frames} frames are too few for a memory system"),
            BootError::BadRange(r) => write!(f, "frames {}..{} cannot be RAM", r.start.0, r.end.0),
            BootError::BadCpus(cpus) => write!(f, "{cpus} CPUs, where 1 to {MAX_CPUS} can be"),
        }
    }
}
impl core::error::Error for BootError {}

/// In the word of failures: they happen at random.
const AT_RANDOM: u64 = 1 << 63;

/// Wait queues for busy pages, for each CPU: as many threads as can wait at once rarely share one.
const PAGE_WAITS: usize = 4;

/// Settings that are fixed when the system is built.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Overwrite freed frames with a pattern, so that use after free shows. Debug builds and the hosted machine's default.
    pub poison: bool,
    /// Frames kept back for the kernel; `None`: one in 64, at least 256 and at most 4,096.
    pub reserve: Option<u64>,
    /// When structures are checked at first ([`Vm::set_check_level`] changes it).
    pub check: Level,
    /// Parts of each page queue, at most [`MAX_PARTS`]; `None`: as [`Queues::scale`] says.
    pub queue_parts: Option<usize>,
    /// Zeroed frames that each CPU may keep for first touches, made while it idles ([`Vm::idle_zero`]); 0: none. Small machines
    /// keep fewer.
    pub zero_stock: u32,
    /// Pages that a first touch of private memory makes at most, its own included, where the touches before it came in a row: 64 at most,
    /// whole lines of eight. Below 8: its own alone.
    pub zero_window: u32,
    /// Machines of at most so many frames initialise all page descriptors at boot, since there is little to save; larger ones as
    /// memory is used.
    pub describe_at_boot: u64,
    /// Layers that a private chain may have before what others see too is copied up, from 2 to 254: fewer cost memory and copies where
    /// generations of forks live side by side, more cost forks and walks.
    pub layers: u8,
}

// Only where debug assertions are off do all fields have their types' defaults.
#[allow(clippy::derivable_impls)]
impl Default for Config {
    fn default() -> Self {
        Config {
            poison: cfg!(debug_assertions),
            reserve: None,
            check: Level::DEFAULT,
            queue_parts: None,
            zero_stock: 256,
            zero_window: if cfg!(any(loom, shuttle)) { 0 } else { 32 },
            describe_at_boot: 1 << 18,
            layers: if cfg!(any(loom, shuttle)) { 2 } else { 12 },
        }
    }
}

/// A memory system. It lives in the RAM that it manages, for ever.
pub struct Vm<M: Machine> {
    machine: M,
    pages: Descriptors,
    /// Shown for holes; never stored into.
    zero: Pfn,
    frames: Frames,
    epoch: epoch::Domain,
    stats: Stats,
    heap: Heap,
    object_memory: ObjectMemory<M>,
    map_memory: MapMemory<M>,
    queues: Queues,
    reaper: Reaper<M>,
    io: Io,
    swap: Swap,
    daemons: Daemons,
    pageout: Pageout,
    /// Where threads sleep for busy pages, by a hash of the page.
    page_waits: PerCpu<[WaitQueue; PAGE_WAITS]>,
    config: Config,
    /// 0: off; n: the n-th allocation from now fails; [`AT_RANDOM`] | n: one in n does (tests of error paths).
    fail_in: AtomicU64,
    /// An allocation has failed because of that, and nobody has asked why yet.
    injected: AtomicBool,
    /// Where the random choice stands.
    fail_seed: AtomicU64,
    /// Changes of maps since queues and slabs were checked last.
    pub(crate) check_updates: AtomicU64,
    /// A [`Level`]. Written by hand only.
    check: AtomicU8,
}

/// RAM handed out while the system is built, never taken back: a bump allocator over one range.
pub struct BootMemory<'m, M: Machine> {
    machine: &'m M,
    next: *mut u8,
    end: *mut u8,
    /// How many structures come back through the epoch at once; known once that is made.
    pub(crate) burst: u32,
}

impl<'m, M: Machine> BootMemory<'m, M> {
    pub(crate) fn machine(&self) -> &'m M {
        self.machine
    }

    /// `bytes` of zeroed memory, aligned to `align`.
    ///
    /// # Panics
    /// Where [`Vm::new`]'s estimate was too small: a bug of this crate, at boot.
    pub(crate) fn take(&mut self, bytes: usize, align: usize) -> NonNull<u8> {
        let at = self.take_untouched(bytes, align);
        // SAFETY: inside the range that `Vm::new` set aside, and taken just now.
        unsafe { core::ptr::write_bytes(at.as_ptr(), 0, bytes) };
        at
    }

    /// As [`BootMemory::take`], with whatever the memory holds.
    fn take_untouched(&mut self, bytes: usize, align: usize) -> NonNull<u8> {
        let at = self.next.map_addr(|a| a.next_multiple_of(align));
        let next = at.wrapping_add(bytes);
        assert!(next as usize <= self.end as usize, "boot memory was estimated too small");
        self.next = next;
        NonNull::new(at).expect("RAM does not lie at address zero")
    }

    /// `n` elements, for ever.
    pub(crate) fn slice<T>(&mut self, n: usize, mut init: impl FnMut() -> T) -> &'static [T] {
        let first = self.take(n * size_of::<T>(), align_of::<T>()).cast::<T>();
        for i in 0..n {
            // SAFETY: within the memory just taken.
            unsafe { first.add(i).write(init()) };
        }
        // SAFETY: `n` initialised elements, never freed, and from now on only shared.
        unsafe { core::slice::from_raw_parts(first.as_ptr(), n) }
    }

    /// One `T` a CPU.
    pub(crate) fn per_cpu<T>(&mut self, init: impl FnMut(CpuId) -> T) -> PerCpu<T> {
        let cpus = self.machine.cpus();
        let memory = self.take(PerCpu::<T>::bytes(cpus), 128);
        // SAFETY: fresh, large enough and aligned, and never freed.
        unsafe { PerCpu::new(memory, cpus, init) }
    }
}

/// Bytes that the system itself, its queues, its depots and its per-CPU parts take at most, without the page descriptors.
const fn boot_bytes<M: Machine>(cpus: usize, queue_parts: usize, domains: usize) -> usize {
    let parts = Queues::boot_bytes(queue_parts) + Frames::boot_bytes(domains) + Io::boot_bytes() + Pageout::BOOT_BYTES;
    size_of::<Vm<M>>() + 2 * PAGE_SIZE as usize + 128 * 1024 + cpus * 16 * 1024 + parts
}

/// RAM as runs of frames of one domain.
fn runs_of<M: Machine>(machine: &M, ram: impl Iterator<Item = PhysRange>) -> impl Iterator<Item = Run> {
    let domains = machine.domains().clamp(1, 128);
    ram.flat_map(move |r| {
        let mut at = r.start.0;
        core::iter::from_fn(move || {
            let start = at;
            let (domain, end) = (start < r.end.0).then(|| machine.domain_of_frame(Pfn(start)))?;
            at = end.0.clamp(start + 1, r.end.0);
            Some(Run { start, end: at, domain: (domain % domains) as u8 })
        })
    })
}

/// One part of memory in so many may wait for readers in each epoch.
const WAITS: u64 = 1024;

impl<M: Machine> Vm<M> {
    /// Builds the system over `ram`: sorted, disjoint ranges of frames that nobody else uses. The first part of the largest
    /// range is taken for page descriptors and the system itself.
    ///
    /// # Safety
    /// The frames of `ram` belong to the system from now on, and `machine`'s RAM stays reachable as long as the returned
    /// reference, or anything made through it, is used.
    pub unsafe fn new(machine: M, ram: &[PhysRange], config: Config) -> Result<&'static Vm<M>, BootError> {
        let cpus = machine.cpus();
        if cpus == 0 || cpus > MAX_CPUS {
            return Err(BootError::BadCpus(cpus));
        }
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
        let queue_parts = config.queue_parts.map_or(Queues::scale(cpus, total), |n| n.clamp(1, MAX_PARTS));
        let domains = machine.domains().clamp(1, 128);
        let tables = Descriptors::words(page_count) * size_of::<AtomicU64>()
            + runs_of(&machine, ram.iter().copied()).count() * size_of::<Run>();
        let bytes = descriptors::bytes(page_count) + (tables + boot_bytes::<M>(cpus, queue_parts, domains)) as u64;
        let boot_frames = bytes.div_ceil(PAGE_SIZE);
        let boot_end = largest.start.0 + boot_frames;
        if boot_end + 64 > largest.end.0 {
            return Err(BootError::TooLittleMemory(total));
        }
        let next = machine.frame_ptr(largest.start);
        // SAFETY: one past the part of the range that is set aside; consecutive frames are consecutive in memory.
        let end = unsafe { next.add((boot_frames * PAGE_SIZE) as usize) };
        let mut boot = BootMemory { machine: &machine, next, end, burst: 0 };

        let pages = boot.take_untouched(page_count as usize * size_of::<Page>(), 64).cast::<Page>();
        record::own_array(pages.as_ptr().cast(), page_count as usize * size_of::<Page>(), size_of::<Page>(), "page");
        let open = boot.slice(Descriptors::words(page_count), || AtomicU64::new(0));
        record::own(open.as_ptr().cast(), size_of_val(open), "open-sections");
        let managed_ram = || {
            let start = |r: &PhysRange| if r.start == largest.start { Pfn(boot_end) } else { r.start };
            ram.iter().map(move |r| PhysRange { start: start(r), end: r.end })
        };
        let runs = {
            let mut each = runs_of(&machine, managed_ram());
            let count = runs_of(&machine, managed_ram()).count();
            boot.slice(count, || each.next().expect("counted just now"))
        };
        // SAFETY: the array's memory was just taken, and is never freed; the words are zero, the runs as sorted as `ram`.
        let pages = unsafe { Descriptors::new(pages, page_count, open, runs) };
        let managed = total - boot_frames;
        let frames = Frames::new(&mut boot, pages, managed, domains, &config);
        let epoch = epoch::Domain::new(boot.per_cpu(|_| epoch::Slot::new())).holding(managed * PAGE_SIZE / WAITS);
        boot.burst = epoch.every();
        let stats = Stats::new(boot.per_cpu(|_| Counters::new()));
        let heap = Heap::new(&mut boot);
        let object_memory = ObjectMemory::new(&mut boot);
        let map_memory = MapMemory::new(&mut boot);
        let queues = Queues::new(&mut boot, pages, queue_parts);
        let reaper = Reaper::new(&mut boot);
        let io = Io::new(&mut boot);
        let pageout = Pageout::new(&mut boot, managed);
        let page_waits = boot.per_cpu(|_| core::array::from_fn(|_| WaitQueue::new()));
        let zero = machine.pfn_of(boot.take(PAGE_SIZE as usize, PAGE_SIZE as usize).as_ptr());
        let place = boot.take(size_of::<Vm<M>>(), align_of::<Vm<M>>()).cast::<Vm<M>>();
        let vm = Vm {
            machine,
            pages,
            zero,
            frames,
            epoch,
            stats,
            heap,
            object_memory,
            map_memory,
            queues,
            reaper,
            io,
            swap: Swap::new(),
            daemons: Daemons::new(),
            pageout,
            injected: AtomicBool::new(false),
            page_waits,
            config,
            fail_in: AtomicU64::new(0),
            fail_seed: AtomicU64::new(0),
            check_updates: AtomicU64::new(0),
            check: AtomicU8::new(config.check as u8),
        };
        record::own(place.as_ptr().cast(), size_of::<Vm<M>>(), "vm");
        // SAFETY: fresh memory of the right size and alignment, never freed.
        let vm: &'static Vm<M> = unsafe {
            place.write(vm);
            place.as_ref()
        };
        // Leaves show the zero frame.
        // SAFETY: boot is alone.
        unsafe { pages.open_reserved(zero.0, zero.0 + 1) };
        vm.donate_all(managed <= config.describe_at_boot);
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
    #[cfg_attr(recording, track_caller)]
    pub(crate) fn page(&self, pfn: Pfn) -> &'static Page {
        self.pages.get(pfn)
    }
    /// All descriptors.
    pub(crate) fn descriptors(&self) -> &Descriptors {
        &self.pages
    }
    /// The descriptor of frame `pfn`, if it has one: memory that was never used has none yet.
    pub(crate) fn find_page(&self, pfn: Pfn) -> Option<&'static Page> {
        self.pages.find(pfn)
    }
    /// The descriptors that are in use, ascending: memory that was never used has none yet.
    pub(crate) fn described(&self) -> impl Iterator<Item = &'static Page> + Clone + use<M> {
        let pages = self.pages;
        pages.opened().map(move |pfn| pages.get(pfn))
    }
    /// As a page table's keeper, the hosted machine and tests see the descriptor of frame `pfn`. A page is changed by its
    /// descriptor: who renames one behind the core's back frees another's frame.
    ///
    /// # Safety
    /// The frame is RAM of this system that was in use before. The caller changes what its frame's kind makes the caller's alone
    /// (a table page's words and kind), and looks at the rest.
    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    pub unsafe fn descriptor(&self, pfn: Pfn) -> &'static Page {
        self.page(pfn)
    }
    /// As [`Vm::descriptor`], of any frame number: `None` where it has none.
    ///
    /// # Safety
    /// The caller only looks.
    pub unsafe fn find_descriptor(&self, pfn: Pfn) -> Option<&'static Page> {
        self.find_page(pfn)
    }
    /// All descriptors that are in use, ascending.
    ///
    /// # Safety
    /// The caller only looks.
    pub unsafe fn descriptors_in_use(&self) -> impl Iterator<Item = &'static Page> + Clone + use<M> {
        self.described()
    }
    /// The frame of zeroes that private mappings show for holes of files in memory. It is no object's page.
    #[inline(always)]
    pub fn zero_frame(&self) -> Pfn {
        self.zero
    }
    /// The page that a leaf shows; `None` where it shows a device: no RAM, or a frame that is no object's page.
    #[inline]
    pub(crate) fn page_of_leaf(&self, pfn: Pfn) -> Option<&'static Page> {
        (pfn.0 < self.page_count()).then(|| self.page(pfn)).filter(|p| p.kind() == crate::phys::page::Kind::Object)
    }
    /// The frame that `page` describes.
    #[inline(always)]
    pub fn pfn_of_page(&self, page: &Page) -> Pfn {
        self.pages.pfn(page)
    }
    /// Number of page descriptors: one more than the highest frame number.
    pub fn page_count(&self) -> u64 {
        self.pages.len()
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
    #[inline(always)]
    pub(crate) fn reaper(&self) -> &Reaper<M> {
        &self.reaper
    }
    /// Reads and writes under way.
    pub fn io(&self) -> &Io {
        &self.io
    }
    /// Swap: totals. A store is added with [`Vm::add_swap`].
    pub fn swap(&self) -> &Swap {
        &self.swap
    }
    /// Pageout: passes, and who waits for memory.
    pub fn pageout(&self) -> &Pageout {
        &self.pageout
    }
    /// What the daemons share.
    pub(crate) fn daemons(&self) -> &Daemons {
        &self.daemons
    }
    /// Where to sleep until `page` is not busy. Strangers may share it: who wakes there looks again.
    pub(crate) fn page_waits(&self, page: &Page) -> &WaitQueue {
        let hash = self.pfn_of_page(page).0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let n = hash as usize % (self.page_waits.len() * PAGE_WAITS);
        &self.page_waits.of(n / PAGE_WAITS)[n % PAGE_WAITS]
    }

    /// As [`Config::zero_window`] says.
    #[inline(always)]
    pub(crate) fn zero_window(&self) -> u64 {
        u64::from(self.config.zero_window).min(crate::fault::zero_ahead::MOST)
    }

    /// As [`Config::layers`] says.
    pub(crate) fn layers(&self) -> usize {
        // A front and what lies behind it are two; a chain's depth is told up to 255.
        self.config.layers.clamp(2, u8::MAX - 1).into()
    }

    #[inline(always)]
    pub(crate) fn poisons(&self) -> bool {
        self.config.poison
    }

    /// Makes the `n`-th allocation from now fail, once (1: the next; 0: none): of frames, runs of frames, table pages and
    /// objects of slabs alike. For tests of error paths.
    pub fn fail_allocation(&self, n: u64) {
        self.injected.store(false, Ordering::Relaxed);
        self.fail_in.store(n & !AT_RANDOM, Ordering::Relaxed);
    }

    /// Makes one allocation in `one_in` fail from now on, until [`Vm::fail_allocation`] ends that: which ones follows from
    /// `seed` and from the order of allocations. For tests of error paths.
    pub fn fail_allocations(&self, one_in: u32, seed: u64) {
        self.fail_seed.store(seed, Ordering::Relaxed);
        self.fail_in.store(AT_RANDOM | u64::from(one_in.max(1)), Ordering::Relaxed);
    }

    /// Whether the failure that [`Vm::fail_allocation`] asked for has not happened yet.
    pub fn failure_is_pending(&self) -> bool {
        self.fail_in.load(Ordering::Relaxed) != 0
    }

    /// Whether this allocation is one that shall fail. One relaxed load of a read-mostly word.
    #[inline(always)]
    pub fn inject_failure(&self) -> bool {
        (self.fail_in.load(Ordering::Relaxed) != 0 && self.choose_failure()) || self.machine_refuses()
    }

    #[inline(always)]
    fn machine_refuses(&self) -> bool {
        let refuses = self.machine().refuses_allocation();
        if refuses {
            self.injected.store(true, Ordering::Relaxed);
        }
        refuses
    }

    #[cold]
    fn choose_failure(&self) -> bool {
        let fails = self.fails_now();
        if fails {
            self.injected.store(true, Ordering::Relaxed);
        }
        fails
    }

    fn fails_now(&self) -> bool {
        let mut left = self.fail_in.load(Ordering::Relaxed);
        if left & AT_RANDOM != 0 {
            // SplitMix64 (Steele et al. 2014): its state is a counter, so that CPUs share it without a lock.
            let z = self.fail_seed.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
            let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            return (z ^ (z >> 31)).is_multiple_of(left & !AT_RANDOM);
        }
        while left != 0 && left & AT_RANDOM == 0 {
            match self.fail_in.compare_exchange_weak(left, left - 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return left == 1,
                Err(now) => left = now,
            }
        }
        false
    }

    /// Whether an allocation has failed on purpose, and nobody has met it yet.
    pub fn is_injected(&self) -> bool {
        self.injected.load(Ordering::Relaxed)
    }

    /// What failed on purpose until now was met.
    pub fn forget_injected(&self) {
        self.injected.store(false, Ordering::Relaxed);
    }

    /// Whether an allocation has failed since the last question only because it was told to: then memory is not short.
    pub(crate) fn take_injected(&self) -> bool {
        self.injected.load(Ordering::Relaxed) && self.injected.swap(false, Ordering::Relaxed)
    }

    /// When structures are checked. One relaxed load of a word that nobody writes.
    #[inline(always)]
    pub fn check_level(&self) -> Level {
        match self.check.load(Ordering::Relaxed) {
            0 => Level::Never,
            1 => Level::AtRelease,
            _ => Level::Always,
        }
    }

    /// Changes when structures are checked, from now on.
    pub fn set_check_level(&self, level: Level) {
        self.check.store(level as u8, Ordering::Relaxed);
    }
}
