//! Slabs: small objects of one size in frames, cached for each CPU. Each allocation can fail, and has a label.
//!
//! A [`Cache`] keeps a short list of free objects for each CPU. Whole batches move between this list and the depot. The
//! depot keeps the slabs (runs of frames) that have free objects. A slab whose objects are all free returns its frames.
//! [`Slab`] is a cache of one type. [`Heap`] is a row of caches by size, for memory that has no type of its own.

mod check;

use crate::error::OutOfMemory;
use crate::machine::Machine;
use crate::phys::Physical;
use crate::phys::boot::BootMemory;
use crate::phys::frames::{For, Frame};
use crate::phys::page::{FrameKind, Page};
use crate::stats::Event;
use crate::types::{PAGE_SIZE, Pfn};
use core::alloc::Layout;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_sync::hooks::PreemptOff;
use quire_sync::{CachePadded, Own, Owned, PerCpu, Rank, SpinLock, preempt_off, record};

/// A list of free objects. The first word of a free object points to the next one.
type FreeList = *mut Free;
struct Free {
    next: FreeList,
}

/// The free object after this one.
///
/// # Safety
/// `object` is free, and on a list that the caller owns.
#[inline(always)]
unsafe fn next(object: FreeList) -> FreeList {
    record::read(object);
    // SAFETY: by this function's contract.
    unsafe { (*object).next }
}

/// Links a free object before `next`.
///
/// # Safety
/// `object` is free. It is on a list that the caller owns, or will be.
#[inline(always)]
unsafe fn link(object: FreeList, next: FreeList) {
    record::wrote(object);
    // SAFETY: by this function's contract.
    unsafe { (*object).next = next }
}

/// The head of a list of free objects.
struct Head(FreeList);
// SAFETY: only the owner of the head reaches the free objects of the list.
unsafe impl Send for Head {}

/// The free objects of a CPU. No other CPU accesses them, so they need no lock.
struct Local {
    head: Own<Head>,
    /// The length of the list. Written by its CPU, and read by other CPUs for counts.
    len: AtomicU32,
}

/// The access of the calling CPU to its own free objects.
struct Mine<'a> {
    head: Owned<'a, Head>,
    len: &'a AtomicU32,
    _cpu: &'a PreemptOff,
}

impl Local {
    fn new() -> Local {
        Local { head: Own::new(Head(ptr::null_mut())), len: AtomicU32::new(0) }
    }
}

impl Mine<'_> {
    #[inline(always)]
    fn len(&self) -> u32 {
        self.len.load(Ordering::Relaxed)
    }
    #[inline(always)]
    fn pop(&mut self) -> Option<NonNull<u8>> {
        let object = NonNull::new(self.head.0)?;
        // SAFETY: a free object's first word is its link, and this CPU owns the list.
        self.head.0 = unsafe { next(object.as_ptr()) };
        self.len.store(self.len() - 1, Ordering::Relaxed);
        Some(object.cast())
    }
    /// # Safety
    /// `object` is free, and the caller owns it.
    #[inline(always)]
    unsafe fn push(&mut self, object: FreeList) {
        // SAFETY: by this function's contract, the object is free. Its first word becomes the link.
        unsafe { link(object, self.head.0) };
        self.head.0 = object;
        self.len.store(self.len() + 1, Ordering::Relaxed);
    }
}

struct Depot {
    /// The slabs with at least one free object, linked through the descriptors of their first frames.
    partial: Option<Pfn>,
}

/// A cache of objects of one size.
pub struct Cache {
    label: &'static str,
    size: u32,
    per_slab: u32,
    /// log2 of the frames in a slab.
    order: u8,
    /// The number of objects that move between a CPU and the depot at once.
    batch: u32,
    /// The most free objects that a CPU keeps.
    keep: u32,
    local: PerCpu<Local>,
    depot: CachePadded<Shelf>,
}

/// The fields that all CPUs share. They have cache lines of their own, because each allocation reads the other fields
/// of a cache.
struct Shelf {
    slabs: SpinLock<Depot>,
    /// The number of slabs. Written under the lock.
    count: AtomicU64,
}

// The indexes of the words in the descriptor of a slab's first frame: the free list, the number of objects in use
// (which CPUs or callers have), and the address of the cache.
const FREE: usize = 0;
const USED: usize = 1;
const CACHE: usize = 2;

impl Cache {
    /// Makes a cache of objects of `layout`. The alignment must not exceed the size rounded up to a power of two.
    pub(crate) fn new(label: &'static str, layout: Layout, boot: &mut BootMemory<'_, impl Machine>) -> Cache {
        let size = layout.size().max(size_of::<Free>()).next_multiple_of(layout.align().max(8));
        // A slab of few large objects wastes its tail. So the slab grows until the waste is at most an eighth.
        let mut order = 0u8;
        while order < 3 {
            let bytes = (PAGE_SIZE as usize) << order;
            if (bytes / size >= 4 || size <= SINGLE) && (bytes % size) * 8 <= bytes {
                break;
            }
            order += 1;
        }
        let per_slab = ((PAGE_SIZE as usize) << order) / size;
        assert!(per_slab > 0, "slab objects are smaller than eight pages");
        // A batch is half a frame of objects, but at least a small slab. So the CPU that makes a slab keeps all of it.
        // Otherwise other CPUs would get objects that share cache lines with the objects of this CPU.
        let batch = (2048 / size).clamp(4, 64).max(per_slab.min(8)) as u32;
        let local = boot.per_cpu(|_| Local::new());
        Cache {
            label,
            size: size as u32,
            per_slab: per_slab as u32,
            order,
            batch,
            keep: 2 * batch,
            local,
            depot: CachePadded(Shelf {
                slabs: SpinLock::new(Rank::SLAB, Depot { partial: None }),
                count: AtomicU64::new(0),
            }),
        }
    }

    /// Adjusts the cache for objects that the epoch frees, up to `burst` at once
    /// ([`Domain::every`](quire_sync::epoch::Domain::every)). A CPU keeps that number of free objects. Otherwise it
    /// would exchange objects with the depot again and again.
    pub(crate) fn deferred(mut self, burst: u32) -> Cache {
        self.keep = self.keep.max(burst + self.batch);
        self
    }

    /// The name of the objects.
    pub fn label(&self) -> &'static str {
        self.label
    }
    /// The bytes of one object.
    pub fn object_size(&self) -> usize {
        self.size as usize
    }
    /// The bytes of a slab for each object, its part of the waste included.
    pub fn share(&self) -> u64 {
        (PAGE_SIZE << self.order) / u64::from(self.per_slab)
    }
    /// The number of frames that the cache has now.
    pub fn frames(&self) -> u64 {
        self.depot.count.load(Ordering::Relaxed) << self.order
    }

    /// Whether this cache owns the slab whose first frame has the descriptor `page`.
    pub(crate) fn is_of(&self, page: &Page) -> bool {
        page.words()[CACHE].load(Ordering::Relaxed) == ptr::from_ref(self).addr() as u64
    }
    /// The number of frames in one slab.
    pub(crate) fn slab_frames(&self) -> u64 {
        1 << self.order
    }

    /// The free objects of the calling CPU.
    ///
    /// # Requires
    /// The caller holds no other reference to them.
    #[inline(always)]
    fn mine<'a>(&'a self, cpu: &'a PreemptOff) -> Mine<'a> {
        let local = self.local.mine(cpu);
        // SAFETY: the caller stays on this CPU and holds no other reference to the list. Interrupt handlers do not
        // allocate from a cache.
        Mine { head: unsafe { local.head.get() }, len: &local.len, _cpu: cpu }
    }

    /// Allocates memory for an object, uninitialised.
    pub(crate) fn alloc<M: Machine>(&self, vm: &Physical<M>) -> Result<NonNull<u8>, OutOfMemory> {
        if vm.inject_failure() {
            return Err(OutOfMemory);
        }
        // The path through the depot is a separate function, so that this path need not save the registers that the
        // other function uses.
        let object = self.mine(&preempt_off()).pop();
        match object {
            Some(object) => Ok(object),
            None => self.alloc_from_depot(vm),
        }
    }

    #[cold]
    fn alloc_from_depot<M: Machine>(&self, vm: &Physical<M>) -> Result<NonNull<u8>, OutOfMemory> {
        let cpu = preempt_off();
        let mut local = self.mine(&cpu);
        if local.head.0.is_null() {
            self.refill(vm, &mut local)?;
        }
        local.pop().ok_or(OutOfMemory)
    }

    /// Frees an object.
    ///
    /// # Safety
    /// `object` came from this cache's `alloc` and is not used any more.
    pub(crate) unsafe fn free<M: Machine>(&self, vm: &Physical<M>, object: NonNull<u8>) {
        let object: FreeList = given_up(object).as_ptr().cast();
        let full = {
            let cpu = preempt_off();
            let mut local = self.mine(&cpu);
            // SAFETY: the caller gave the object up, and the object came from this cache, by this function's contract.
            unsafe { local.push(object) };
            local.len() > self.keep
        };
        if full {
            self.flush_some(vm);
        }
    }

    #[cold]
    fn flush_some<M: Machine>(&self, vm: &Physical<M>) {
        let cpu = preempt_off();
        let mut local = self.mine(&cpu);
        if local.len() > self.keep {
            self.flush(vm, &mut local, self.batch);
        }
    }

    fn refill<M: Machine>(&self, vm: &Physical<M>, local: &mut Mine<'_>) -> Result<(), OutOfMemory> {
        let mut depot = self.depot.slabs.lock();
        while local.len() < self.batch {
            let Some(slab) = depot.partial else {
                if local.len() > 0 {
                    break;
                }
                drop(depot);
                let fresh = self.new_slab(vm)?;
                depot = self.depot.slabs.lock();
                self.depot.count.store(self.depot.count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                self.link(vm, &mut depot, fresh);
                continue;
            };
            let page = vm.page(slab);
            let mut free = page.words()[FREE].load(Ordering::Relaxed) as FreeList;
            let mut used = page.words()[USED].load(Ordering::Relaxed);
            while local.len() < self.batch && !free.is_null() {
                // SAFETY: objects on a slab's free list are free, and the depot's lock guards that list.
                unsafe {
                    let rest = next(free);
                    local.push(free);
                    free = rest;
                }
                used += 1;
            }
            page.words()[FREE].store(free as u64, Ordering::Relaxed);
            page.words()[USED].store(used, Ordering::Relaxed);
            if free.is_null() {
                self.unlink(vm, &mut depot, slab);
            }
        }
        Ok(())
    }

    fn new_slab<M: Machine>(&self, vm: &Physical<M>) -> Result<Pfn, OutOfMemory> {
        let run = if self.order == 0 {
            vm.alloc_frame(crate::phys::frames::Fill::Any, For::Kernel)?
        } else {
            vm.alloc_run(self.order, For::Kernel)?
        };
        let pfn = run.into_pfn();
        let page = vm.page(pfn);
        page.words()[CACHE].store(ptr::from_ref(self).addr() as u64, Ordering::Relaxed);
        page.set_kind(FrameKind::Slab);
        let base = vm.machine().frame_ptr(pfn);
        record::own_array(base, self.size as usize * self.per_slab as usize, self.size as usize, self.label);
        let mut list: FreeList = ptr::null_mut();
        for i in (0..self.per_slab as usize).rev() {
            // SAFETY: each object lies within the run, which was allocated by this call, and objects do not overlap.
            unsafe {
                let object: FreeList = base.add(i * self.size as usize).cast();
                link(object, list);
                list = object;
            }
        }
        page.words()[FREE].store(list as u64, Ordering::Relaxed);
        page.words()[USED].store(0, Ordering::Relaxed);
        Ok(pfn)
    }

    /// Moves `n` objects of this CPU back to their slabs. Frees the slabs that become empty.
    fn flush<M: Machine>(&self, vm: &Physical<M>, local: &mut Mine<'_>, n: u32) {
        let mut depot = self.depot.slabs.lock();
        let mut empty: Option<Pfn> = None;
        for _ in 0..n {
            let Some(object) = local.pop() else { break };
            let object: FreeList = object.as_ptr().cast();
            let pfn = vm.machine().pfn_of(object.cast());
            let slab = Pfn(pfn.0 & !((1 << self.order) - 1));
            let page = vm.page(slab);
            debug_assert_eq!(page.kind(), FrameKind::Slab, "an object is freed into a cache of another slab");
            let free = page.words()[FREE].load(Ordering::Relaxed) as FreeList;
            // SAFETY: the object came from this CPU's free list, and the depot's lock guards its new list.
            unsafe { link(object, free) };
            page.words()[FREE].store(object as u64, Ordering::Relaxed);
            let used = page.words()[USED].load(Ordering::Relaxed) - 1;
            page.words()[USED].store(used, Ordering::Relaxed);
            if free.is_null() {
                self.link(vm, &mut depot, slab);
            }
            if used == 0 {
                self.unlink(vm, &mut depot, slab);
                self.depot.count.store(self.depot.count.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
                page.set_prev(empty);
                empty = Some(slab);
            }
        }
        drop(depot);
        while let Some(slab) = empty {
            empty = vm.page(slab).prev();
            vm.page(slab).set_kind(FrameKind::Unowned);
            record::disown(vm.machine().frame_ptr(slab));
            // SAFETY: the slab is on no list, and none of its objects is in use.
            let run = unsafe { Frame::from_pfn(slab) };
            if self.order == 0 { vm.return_frame(run) } else { vm.return_run(run, self.order) }
        }
    }

    /// Returns this CPU's free objects to their slabs, and frees the empty slabs.
    ///
    /// # Safety
    /// `vm` is the system that owns the slabs.
    pub unsafe fn drain<M: Machine>(&self, vm: &Physical<M>) {
        let cpu = preempt_off();
        let mut local = self.mine(&cpu);
        let n = local.len();
        self.flush(vm, &mut local, n);
    }

    fn link<M: Machine>(&self, vm: &Physical<M>, depot: &mut Depot, slab: Pfn) {
        let page = vm.page(slab);
        page.set_prev(None);
        page.set_next(depot.partial);
        if let Some(h) = depot.partial {
            vm.page(h).set_prev(Some(slab));
        }
        depot.partial = Some(slab);
    }

    fn unlink<M: Machine>(&self, vm: &Physical<M>, depot: &mut Depot, slab: Pfn) {
        let page = vm.page(slab);
        match page.prev() {
            Some(p) => vm.page(p).set_next(page.next()),
            None => depot.partial = page.next(),
        }
        if let Some(n) = page.next() {
            vm.page(n).set_prev(page.prev());
        }
    }
}

/// A cache of one type.
pub struct Slab<T> {
    cache: Cache,
    _type: PhantomData<fn(T) -> T>,
}

impl<T> Slab<T> {
    pub(crate) fn new(label: &'static str, boot: &mut BootMemory<'_, impl Machine>) -> Self {
        Slab { cache: Cache::new(label, Layout::new::<T>(), boot), _type: PhantomData }
    }

    /// See [`Cache::deferred`].
    pub(crate) fn deferred(mut self, burst: u32) -> Self {
        self.cache = self.cache.deferred(burst);
        self
    }

    /// Allocates an object with the value `value`. The caller frees it with [`Slab::free`].
    pub(crate) fn alloc<M: Machine>(&self, vm: &Physical<M>, value: T) -> Result<NonNull<T>, OutOfMemory> {
        let memory = self.cache.alloc(vm)?.cast::<T>();
        record::wrote(memory.as_ptr());
        // SAFETY: this is fresh memory of the right size and alignment.
        unsafe { memory.write(value) };
        Ok(memory)
    }

    /// Drops the object and frees its memory.
    ///
    /// # Safety
    /// `object` came from this slab, and is not used any more.
    pub(crate) unsafe fn free<M: Machine>(&self, vm: &Physical<M>, object: NonNull<T>) {
        let object = given_up(object);
        // SAFETY: by this function's contract.
        unsafe {
            object.drop_in_place();
            self.cache.free(vm, object.cast());
        }
    }

    /// The cache of this slab, for its label and counts.
    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }
}

/// The same address, with the right to write there. The owner of an object may know it by a shared reference, which
/// allows reads alone. All RAM is memory whose provenance is exposed.
fn given_up<T>(object: NonNull<T>) -> NonNull<T> {
    NonNull::with_exposed_provenance(object.expose_provenance())
}

/// The sizes of the heap's caches, in bytes. Larger requests allocate runs of frames. From 128 bytes on each size is a
/// multiple of a cache line. Otherwise an object that is aligned to a line (a process, a vector unit's state) would
/// need the next larger size.
const CLASSES: [usize; 18] =
    [16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1344, 2048, 2688, 4096, 5440, 8192];
const LABELS: [&str; 18] = [
    "heap-16",
    "heap-32",
    "heap-48",
    "heap-64",
    "heap-96",
    "heap-128",
    "heap-192",
    "heap-256",
    "heap-384",
    "heap-512",
    "heap-768",
    "heap-1024",
    "heap-1344",
    "heap-2048",
    "heap-2688",
    "heap-4096",
    "heap-5440",
    "heap-8192",
];

/// Each size is a multiple of this number of bytes.
const STEP: usize = 16;

/// The number of the smallest class for sizes up to each multiple of [`STEP`]. Each allocation and each free reads this
/// table, so that it need not search.
static BY_SIZE: [u8; CLASSES[CLASSES.len() - 1] / STEP + 1] = {
    let mut all = [0; CLASSES[CLASSES.len() - 1] / STEP + 1];
    let (mut at, mut class) = (0, 0);
    while at < all.len() {
        if at * STEP > CLASSES[class] {
            class += 1;
        }
        all[at] = class as u8;
        at += 1;
    }
    all
};

/// The number of the smallest class whose objects have the size and alignment of `layout`. `None` if it is larger than
/// all classes.
#[inline]
fn class_of(layout: Layout) -> Option<usize> {
    let mut class = usize::from(*BY_SIZE.get(layout.size().div_ceil(STEP))?);
    if layout.align() > STEP {
        while CLASSES.get(class)? & (layout.align() - 1) != 0 {
            class += 1;
        }
    }
    Some(class)
}

/// The largest object size, in bytes, for which a slab may be a single frame. A single frame may be free when no run is
/// free.
const SINGLE: usize = 2048;

/// Memory by size, for the layers above the core. A kernel binds its global allocator to it.
pub struct Heap {
    caches: [Cache; CLASSES.len()],
}

impl Heap {
    pub(crate) fn new(boot: &mut BootMemory<'_, impl Machine>) -> Self {
        Heap {
            caches: core::array::from_fn(|i| {
                let align = 1 << CLASSES[i].trailing_zeros().min(12);
                let layout = Layout::from_size_align(CLASSES[i], align).unwrap_or(Layout::new::<u64>());
                Cache::new(LABELS[i], layout, boot)
            }),
        }
    }

    /// The cache that serves `layout`, or `None` if it is too large.
    #[inline]
    fn class(&self, layout: Layout) -> Option<&Cache> {
        class_of(layout).and_then(|i| self.caches.get(i))
    }

    /// Allocates memory of `layout`, uninitialised. The request is refused if only the
    /// [floor](crate::phys::frames::Frames::floor) (half of the reserve) is left.
    ///
    /// # Safety
    /// `vm` is the system that owns the heap.
    pub unsafe fn alloc<M: Machine>(&self, vm: &Physical<M>, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        match self.class(layout) {
            Some(cache) => cache.alloc(vm),
            None => {
                let order = order_of(layout)?;
                let run = vm.alloc_run(order, For::Kernel)?;
                vm.stats().add(Event::BufferPage, 1 << order);
                NonNull::new(vm.machine().frame_ptr(run.into_pfn())).ok_or(OutOfMemory)
            }
        }
    }

    /// Frees memory. This function is not inlined. In a caller that frees the memory of its own argument, the compiler
    /// would otherwise see the stores into that memory.
    ///
    /// # Safety
    /// `memory` came from `alloc` with the same `layout`, and is not used any more.
    #[inline(never)]
    pub unsafe fn free<M: Machine>(&self, vm: &Physical<M>, memory: NonNull<u8>, layout: Layout) {
        match self.class(layout) {
            // SAFETY: by this function's contract.
            Some(cache) => unsafe { cache.free(vm, memory) },
            None => {
                let pfn = vm.machine().pfn_of(memory.as_ptr());
                if let Ok(order) = order_of(layout) {
                    // SAFETY: the caller owns the run, by this function's contract.
                    vm.return_run(unsafe { Frame::from_pfn(pfn) }, order);
                    vm.stats().add(Event::BufferPageGone, 1 << order);
                }
            }
        }
    }

    /// The bytes that an allocation of `layout` uses, waste included.
    pub fn share(&self, layout: Layout) -> u64 {
        match self.class(layout) {
            Some(cache) => cache.share(),
            None => order_of(layout).map_or(0, |order| PAGE_SIZE << order),
        }
    }

    /// The caches, in ascending order of size.
    pub fn caches(&self) -> &[Cache] {
        &self.caches
    }
}

fn order_of(layout: Layout) -> Result<u8, OutOfMemory> {
    let bytes = layout.size().max(layout.align()).max(PAGE_SIZE as usize);
    let frames = bytes.div_ceil(PAGE_SIZE as usize).checked_next_power_of_two().ok_or(OutOfMemory)?;
    u8::try_from(frames.trailing_zeros()).map_err(|_| OutOfMemory)
}
