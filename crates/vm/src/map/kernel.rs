//! The kernel's own address space. Its map uses the same tree as a program's. It has stacks with guards, large buffers
//! and windows on devices.
//!
//! # Allocation and release of addresses
//! A new range gets the lowest hole that fits, with its guard (pages that are never mapped) below it. It is mapped as a
//! whole when it is made, because the kernel does not fault on these addresses.
//!
//! A released range is *recycled* or *retired*. A released stack is recycled: it stays mapped, on a list of the CPU
//! that released it. The next thread on that CPU gets it without any work on page tables. The last idle stack of a CPU
//! is set aside for a switch to a thread without a stack ([`KernelMap::last_stack`]). The reason is that no memory can
//! be allocated during a switch. That thread then restocks the list ([`KernelMap::stock`]). Other ranges, and stacks
//! beyond [`KEEP`], are retired. Their PTEs are cleared at once, but their frames and addresses wait for a flush. A new
//! *generation* begins when [`BATCH`] ranges or [`PAGES`] pages wait, or when memory or addresses are exhausted. Then
//! all CPUs drop the translations of all waiting ranges in one flush. Only after that are the frames freed, and may the
//! addresses be used again.
//!
//! Each line of this list names the lock or the rule that orders two operations on two CPUs:
//!
//! - **make**
//!   - make: the lock of the tree
//!   - release: the lock of the CPU's list; a retired range is still in the tree
//!   - new generation: a retired range stays in the tree until after the flush, so no other CPU uses its addresses
//! - **release**
//!   - release: the lock of the list of waiting ranges
//!   - new generation: it takes the waiting ranges off the list before its flush begins. So a released range waits for
//!     this flush or for the next one
//! - **new generation**
//!   - new generation: each takes all ranges that wait at that moment
//!
//! Model: `a_kernel_address_is_reused_after_all_cpus_flushed_it`, mutant
//! [`Mutant::ReuseBeforeFlush`](crate::mutant::Mutant).

use super::memory::{FAN_OUT, Nodes};
use super::tree::{Cursor, Item, Owner, Tree};
use crate::error::{MapError, OutOfMemory};
use crate::machine::KernelPages;
use crate::map::maps::Maps;
use crate::mutant::{Mutant, mutant};
use crate::paging::waiting::Reclaim;
use crate::phys::frames::{Fill, For, Frame};
use crate::stats::Event;
use crate::tlb::flush::FlushSet;
use crate::types::{MemoryType, PAGE_SIZE, Pfn, PhysRange, VirtRange};
use core::alloc::Layout;
use core::cell::Cell;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::{PerCpu, Rank, SpinLock, preempt_off};

/// Number of idle stacks that a CPU keeps mapped.
#[cfg(not(any(loom, shuttle)))]
pub const KEEP: usize = 64;
/// 0, so that addresses are reused in the models.
#[cfg(any(loom, shuttle))]
pub const KEEP: usize = 0;
/// The most idle stacks above [`KEEP`] that one call of [`KernelMap::stock`] retires. A switch adds at most one.
pub const SURPLUS: usize = 16;
/// Number of idle stacks of a CPU that are set aside for a switch.
#[cfg(not(any(loom, shuttle)))]
const LAST: u64 = 1;
/// 0, for the reason at [`KEEP`].
#[cfg(any(loom, shuttle))]
const LAST: u64 = 0;
/// Number of waiting ranges at which a new generation begins.
#[cfg(not(any(test, loom, shuttle)))]
pub const BATCH: u64 = 64;
/// A small number, so that new generations begin often.
#[cfg(any(test, loom, shuttle))]
pub const BATCH: u64 = if cfg!(any(loom, shuttle)) { 1 } else { 4 };
/// Number of waiting pages at which a new generation begins: 8 MiB.
pub const PAGES: u64 = 2048;

/// The purpose of a range of kernel addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A thread's stack of [`KernelMap::stack_bytes`] bytes, with an unmapped page below.
    Stack,
    /// Memory that need not be contiguous in RAM.
    Buffer,
    /// A window on a device's physical addresses.
    Device,
}

impl Purpose {
    /// The events that count mapped and released pages of this purpose.
    fn pages(self) -> (Event, Event) {
        match self {
            Purpose::Stack => (Event::StackPage, Event::StackPageGone),
            Purpose::Buffer | Purpose::Device => (Event::BufferPage, Event::BufferPageGone),
        }
    }
}

/// A range in the tree. It has a cache line of its own, because regions on the lists of different CPUs lie side by side
/// in a slab.
#[repr(align(64))]
pub struct Region {
    /// The mapped addresses; the guard lies below them.
    range: VirtRange,
    guard: u64,
    purpose: Purpose,
    /// Whether the range is mapped to its end. It is mapped only in part if an allocation failed while it was made. A
    /// range that is mapped in part is never recycled.
    whole: Cell<bool>,
    /// The next region on the same list. Guarded by that list's lock.
    link: Cell<*mut Region>,
    /// The linked frames of a retired region, which wait for a new generation. Guarded by the lock of the list, like
    /// `link`.
    frames: Cell<Option<Pfn>>,
}

/// Regions, linked.
struct RegionList {
    first: *mut Region,
    len: u64,
    pages: u64,
}

// SAFETY: only the holder of a list's lock reaches the regions on it.
unsafe impl Send for RegionList {}

impl RegionList {
    const EMPTY: RegionList = RegionList { first: ptr::null_mut(), len: 0, pages: 0 };

    fn push(&mut self, region: NonNull<Region>) {
        // SAFETY: the caller owns the region, which is on no list. Only `settle` frees a region, after it took the
        // region off a list.
        let r = unsafe { region.as_ref() };
        r.link.set(self.first);
        self.first = region.as_ptr();
        self.len += 1;
        self.pages += r.range.len() / PAGE_SIZE;
    }

    /// Removes a region from the list, if the list has more than `keep` regions.
    fn pop_above(&mut self, keep: u64) -> Option<NonNull<Region>> {
        if self.len > keep { self.pop() } else { None }
    }

    fn pop(&mut self) -> Option<NonNull<Region>> {
        let region = NonNull::new(self.first)?;
        // SAFETY: a region on a list is freed only after it was popped, by the holder of the list's lock.
        let r = unsafe { region.as_ref() };
        self.first = r.link.get();
        self.len -= 1;
        self.pages -= r.range.len() / PAGE_SIZE;
        Some(region)
    }
}

/// The kernel's map; see the module.
pub struct KernelMap<M: KernelPages> {
    vm: &'static Maps<M>,
    range: VirtRange,
    stack_bytes: u64,
    regions: Tree<Region, Nodes<M>, FAN_OUT>,
    writer: SpinLock<Owner>,
    /// Each CPU's idle stacks, which are mapped.
    idle: PerCpu<SpinLock<RegionList>>,
    /// Retired ranges that wait for a new generation (one flush on all CPUs for many ranges). They are unmapped, and
    /// still in the tree.
    waiting: SpinLock<RegionList>,
    generation: AtomicU64,
}

// SAFETY: regions are reached under the tree's lock or a list's lock. Only the holder of a region in use changes the
// region, and its range is fixed.
unsafe impl<M: KernelPages> Send for KernelMap<M> {}
// SAFETY: a shared map acquires the tree's lock or a list's lock before it reads a region of a list.
unsafe impl<M: KernelPages> Sync for KernelMap<M> {}

impl<M: KernelPages> KernelMap<M> {
    /// An empty map of the addresses `range`. Its stacks have `stack_bytes` bytes, a multiple of the page size. The map
    /// is never destroyed.
    ///
    /// # Safety
    /// `range` lies in the kernel's part of every space's page tables, and nothing else is mapped there, by this map or
    /// another.
    pub unsafe fn new(vm: &'static Maps<M>, range: VirtRange, stack_bytes: u64) -> Result<KernelMap<M>, OutOfMemory> {
        let cpus = vm.machine().cpus();
        let layout =
            Layout::from_size_align(PerCpu::<SpinLock<RegionList>>::bytes(cpus), 128).map_err(|_| OutOfMemory)?;
        // SAFETY: the heap belongs to `vm`, as `Heap::alloc` requires.
        let memory = unsafe { vm.heap().alloc(vm, layout)? };
        // SAFETY: the memory is new, large enough, aligned, and never freed.
        let idle = unsafe { PerCpu::new(memory, cpus, |_| SpinLock::new(Rank::KERNEL_STACKS, RegionList::EMPTY)) };
        let (regions, owner) = Tree::new(Nodes(vm));
        Ok(KernelMap {
            vm,
            range,
            stack_bytes,
            regions,
            writer: SpinLock::new(Rank::MAP, owner),
            idle,
            waiting: SpinLock::new(Rank::KERNEL_STACKS, RegionList::EMPTY),
            generation: AtomicU64::new(0),
        })
    }

    /// Bytes of a stack.
    pub fn stack_bytes(&self) -> u64 {
        self.stack_bytes
    }
    /// The map's addresses.
    pub fn range(&self) -> VirtRange {
        self.range
    }
    /// Number of generations so far: of flushes of retired ranges on all CPUs.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }
    /// Number of ranges that are in use, idle or waiting.
    pub fn len(&self) -> usize {
        self.regions.len()
    }
    /// Whether the map has no range.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A stack with an unmapped page below. It has the content of its last use. The CPU's last idle stack is not taken.
    pub fn stack(&'static self) -> Result<KernelRange<M>, MapError> {
        let idle = {
            let cpu = preempt_off();
            self.idle.mine(&cpu).lock().pop_above(LAST)
        };
        match idle {
            Some(region) => Ok(KernelRange { map: self, region }),
            None => self.mapped(self.stack_bytes, PAGE_SIZE, Purpose::Stack),
        }
    }

    /// An idle stack of this CPU, even the last one. `None` only if [`stock`](Self::stock) was not called on this CPU
    /// since its last idle stack was taken. For the switch to a thread without a stack: this allocates nothing, and
    /// interrupts may be masked.
    ///
    /// # Requires
    /// The caller stays on this CPU.
    pub fn last_stack(&'static self) -> Option<KernelRange<M>> {
        let cpu = preempt_off();
        let region = self.idle.mine(&cpu).lock().pop()?;
        Some(KernelRange { map: self, region })
    }

    /// Makes sure that this CPU has an idle stack for the next [`last_stack`](Self::last_stack), and retires up to
    /// [`SURPLUS`] idle stacks above [`KEEP`]. Does not sleep. The caller has interrupts enabled.
    ///
    /// # Errors
    /// The CPU has no idle stack, and no memory is free for one.
    pub fn stock(&'static self) -> Result<(), MapError> {
        let cpu = preempt_off();
        let idle = self.idle.mine(&cpu);
        let len = idle.lock().len;
        if len == 0 {
            let made = self.mapped(self.stack_bytes, PAGE_SIZE, Purpose::Stack)?;
            idle.lock().push(made.region);
            core::mem::forget(made);
        }
        if len > KEEP as u64 {
            for _ in 0..SURPLUS {
                let Some(region) = idle.lock().pop_above(KEEP as u64) else { break };
                let _came = self.retire(region);
            }
        }
        Ok(())
    }

    /// Adds a stack to this CPU's idle stacks, even above [`KEEP`], because nothing can be retired while interrupts are
    /// masked. A range that is no stack of this map is released as usual.
    ///
    /// # Requires
    /// The caller stays on this CPU, and runs on another stack.
    pub fn put_by(&self, stack: KernelRange<M>) {
        // SAFETY: the caller owns the region, and it is freed only after its release.
        let r = unsafe { stack.region.as_ref() };
        if r.purpose != Purpose::Stack || !r.whole.get() || !ptr::eq(stack.map, self) {
            return;
        }
        let cpu = preempt_off();
        self.idle.mine(&cpu).lock().push(stack.region);
        core::mem::forget(stack);
    }

    /// A buffer of `bytes` bytes (rounded up to pages), with an unmapped page below. It is not contiguous in RAM, and
    /// its content is arbitrary.
    pub fn buffer(&'static self, bytes: u64) -> Result<KernelRange<M>, MapError> {
        let bytes = bytes.checked_next_multiple_of(PAGE_SIZE).filter(|b| *b != 0).ok_or(MapError::Invalid)?;
        self.mapped(bytes, PAGE_SIZE, Purpose::Buffer)
    }

    /// A window on `frames`, the physical addresses of a device.
    ///
    /// # Safety
    /// No other code uses the frames while the returned range exists, and they are not mapped elsewhere with another
    /// memory type.
    pub unsafe fn device(&'static self, frames: PhysRange, memory: MemoryType) -> Result<KernelRange<M>, MapError> {
        let pages = frames.end.0.checked_sub(frames.start.0).filter(|n| *n != 0).ok_or(MapError::Invalid)?;
        let bytes = pages.checked_mul(PAGE_SIZE).ok_or(MapError::Invalid)?;
        let window = self.reserve(bytes, 0, Purpose::Device)?;
        for (n, va) in window.pages().enumerate() {
            // SAFETY: nothing is mapped at the new region's addresses yet, and the caller owns the frames by `device`'s
            // contract.
            unsafe { self.vm.machine().map_kernel(self.vm, va, Pfn(frames.start.0 + n as u64), memory)? };
        }
        Ok(window)
    }

    /// A new range, with newly allocated frames mapped in it.
    fn mapped(&'static self, bytes: u64, guard: u64, purpose: Purpose) -> Result<KernelRange<M>, MapError> {
        let made = self.reserve(bytes, guard, purpose)?;
        for va in made.pages() {
            let frame = self.frame()?;
            let pfn = frame.pfn();
            // SAFETY: nothing is mapped at the new region's addresses yet, and the frame was allocated for them.
            let map = || unsafe { self.vm.machine().map_kernel(self.vm, va, pfn, MemoryType::WriteBack) };
            if let Err(e) = self.or_reclaim(map) {
                self.vm.return_frame(frame);
                // The pages mapped so far were never used, but a CPU may have cached their translations. So the range
                // is retired like any other.
                return Err(e.into());
            }
            let _mapped = frame.into_pfn();
            self.vm.stats().count(purpose.pages().0);
        }
        // SAFETY: `made` is a region of this call that is on no list, and it is freed only after its release.
        unsafe { made.region.as_ref() }.whole.set(true);
        Ok(made)
    }

    fn frame(&self) -> Result<Frame, OutOfMemory> {
        self.or_reclaim(|| self.vm.alloc_frame(Fill::Any, For::Kernel))
    }

    /// Calls `f`. If it fails, frees retired frames and idle stacks, and calls `f` once more if this freed anything.
    fn or_reclaim<T>(&self, mut f: impl FnMut() -> Result<T, OutOfMemory>) -> Result<T, OutOfMemory> {
        f().or_else(|e| if self.reclaim() { f() } else { Err(e) })
    }

    /// Reserves unmapped addresses: `bytes` bytes above `guard` bytes. Adds them to the tree.
    fn reserve(&'static self, bytes: u64, guard: u64, purpose: Purpose) -> Result<KernelRange<M>, MapError> {
        let len = bytes.checked_add(guard).ok_or(MapError::Invalid)?;
        loop {
            if let Some(region) = self.or_reclaim(|| self.find(len, guard, purpose))? {
                return Ok(KernelRange { map: self, region });
            }
            // Addresses may wait for a new generation, or belong to idle stacks.
            if !self.reclaim() {
                return Err(MapError::NoSpace);
            }
        }
    }

    fn find(&self, len: u64, guard: u64, purpose: Purpose) -> Result<Option<NonNull<Region>>, OutOfMemory> {
        let slab = &self.vm.map_memory().regions;
        let nothing = Region {
            range: VirtRange { start: 0, end: 0 },
            guard,
            purpose,
            whole: Cell::new(false),
            link: Cell::new(ptr::null_mut()),
            frames: Cell::new(None),
        };
        let mut region = slab.alloc(self.vm, nothing)?;
        let mut owner = self.writer.lock();
        let Some(at) = self.regions.first_fit(&owner, len, PAGE_SIZE, self.range.start, self.range.end) else {
            drop(owner);
            // SAFETY: `region` came from this slab just now, and the tree has no item for it.
            unsafe { slab.free(self.vm, region) };
            return Ok(None);
        };
        let end = at + len;
        // SAFETY: no list and no tree has the region before `commit`, so this reference is the only one.
        unsafe { region.as_mut() }.range = VirtRange { start: at + guard, end };
        let item = Item { start: at, end, value: region };
        match self.regions.prepare(&mut owner, at, end, 1, core::iter::once(item)) {
            Ok(change) => self.regions.commit(&mut owner, change),
            Err(e) => {
                drop(owner);
                // SAFETY: `prepare` failed and so changed nothing: no tree and no list has the region, which came from
                // this slab.
                unsafe { slab.free(self.vm, region) };
                return Err(e);
            }
        }
        Ok(Some(region))
    }

    /// Releases a region: recycles or retires it.
    fn give_up(&self, region: NonNull<Region>) {
        // SAFETY: the holder releases the region by this call, and only `settle` frees a region, after it was retired.
        let r = unsafe { region.as_ref() };
        if r.purpose == Purpose::Stack && r.whole.get() {
            let cpu = preempt_off();
            let mut idle = self.idle.mine(&cpu).lock();
            if idle.len < KEEP as u64 {
                idle.push(region);
                return;
            }
        }
        let _came = self.retire(region);
    }

    /// Clears a region's leaves. Its frames and addresses wait for a new generation, which this call begins if enough
    /// ranges or pages wait. Returns whether the new generation freed any frame or address.
    fn retire(&self, region: NonNull<Region>) -> bool {
        // SAFETY: the holder released the region, or it was popped from an idle list, so this call alone has it.
        let r = unsafe { region.as_ref() };
        for va in (r.range.start..r.range.end).step_by(PAGE_SIZE as usize) {
            // SAFETY: the region was released, and no code uses its addresses any more.
            if let Some(pfn) = unsafe { self.vm.machine().unmap_kernel(va) }
                && r.purpose != Purpose::Device
            {
                self.vm.page(pfn).set_next(r.frames.get());
                r.frames.set(Some(pfn));
            }
        }
        let due = {
            let mut waiting = self.waiting.lock();
            waiting.push(region);
            waiting.len >= BATCH || waiting.pages >= PAGES
        };
        due && self.settle()
    }

    /// Begins a new generation. All CPUs drop the translations of the waiting ranges. Then the frames are freed, and
    /// the addresses may be used again. Returns whether any frame or address was freed.
    pub fn settle(&self) -> bool {
        let mut batch = core::mem::replace(&mut *self.waiting.lock(), RegionList::EMPTY);
        if batch.len == 0 {
            return false;
        }
        let early = mutant(Mutant::ReuseBeforeFlush);
        let mut set = FlushSet::new();
        let mut at = batch.first;
        // SAFETY: the batch was removed from `waiting` under its lock, and only the loop below frees its regions.
        while let Some(r) = unsafe { at.as_ref() } {
            set.add(r.range);
            at = r.link.get();
        }
        // One flush on all CPUs, before any frame is freed (relies on C4).
        if !early {
            self.vm.machine().flush_kernel(&set);
            self.generation.fetch_add(1, Ordering::Relaxed);
        }
        let mut any = false;
        while let Some(region) = batch.pop() {
            // SAFETY: the region was popped from this call's batch, so no other thread looks at it.
            let r = unsafe { region.as_ref() };
            while let Some(pfn) = r.frames.get() {
                r.frames.set(self.vm.page(pfn).next());
                // SAFETY: the frame belonged to the region, is unmapped everywhere, and was flushed.
                self.vm.return_frame(unsafe { Frame::from_pfn(pfn) });
                self.vm.stats().count(r.purpose.pages().1);
                any = true;
            }
            let (start, end) = (r.range.start - r.guard, r.range.end);
            let mut owner = self.writer.lock();
            match self.regions.prepare(&mut owner, start, end, 0, core::iter::empty()) {
                Ok(change) => {
                    self.regions.commit(&mut owner, change);
                    drop(owner);
                    // SAFETY: the region is in no tree and on no list, and the tree is read under its lock only.
                    unsafe { self.vm.map_memory().regions.free(self.vm, region) };
                    any = true;
                }
                Err(OutOfMemory) => {
                    drop(owner);
                    // The tree has no memory for the removal, so the addresses wait for the next generation.
                    self.waiting.lock().push(region);
                }
            }
        }
        if early {
            self.vm.machine().flush_kernel(&set);
        }
        any
    }

    /// Frees idle stacks and waiting ranges when memory is short. Each CPU keeps its last idle stack. Returns whether
    /// anything was freed.
    pub fn reclaim(&self) -> bool {
        self.give_back(LAST)
    }

    /// Frees idle stacks and waiting ranges like [`reclaim`](Self::reclaim), but also each CPU's last idle stack. The
    /// caller is a machine that no longer switches to threads without a stack.
    pub fn reclaim_all(&self) -> bool {
        self.give_back(0)
    }

    fn give_back(&self, keep: u64) -> bool {
        let mut any = false;
        for idle in self.idle.iter() {
            loop {
                let Some(region) = idle.lock().pop_above(keep) else { break };
                any |= self.retire(region);
            }
        }
        self.settle() || any
    }

    /// Calls `f` with each range, its purpose, and the bytes of its guard, ascending, under the tree's lock.
    pub fn each(&self, mut f: impl FnMut(VirtRange, Purpose, u64)) {
        let _owner = self.writer.lock();
        // SAFETY: the tree's lock is held for as long as the cursor is used, so no writer retires a node.
        let cursor: Cursor<_, _, FAN_OUT> = unsafe { self.regions.cursor(0) };
        for item in cursor {
            // SAFETY: a region is freed only after a commit has removed it from the tree, and the tree's lock is held.
            let r = unsafe { item.value.as_ref() };
            f(r.range, r.purpose, r.guard);
        }
    }

    /// Number of tree nodes that the search for a stack's addresses visits now.
    pub fn visits_for_a_stack(&self) -> u64 {
        let owner = self.writer.lock();
        let len = self.stack_bytes + PAGE_SIZE;
        self.regions.first_fit_visits(&owner, len, PAGE_SIZE, self.range.start, self.range.end).1
    }
}

impl<M: KernelPages> Reclaim for KernelMap<M> {
    fn reclaim(&self) -> bool {
        self.reclaim()
    }
}

/// A range of kernel addresses that belongs to the holder. A drop releases it.
pub struct KernelRange<M: KernelPages> {
    map: &'static KernelMap<M>,
    region: NonNull<Region>,
}

// SAFETY: regions are in a slab that all CPUs share, and the holder alone uses this one until its release.
unsafe impl<M: KernelPages> Send for KernelRange<M> {}
// SAFETY: a shared reference only reads the region's `range`, which is fixed before the holder gets it.
unsafe impl<M: KernelPages> Sync for KernelRange<M> {}

impl<M: KernelPages> KernelRange<M> {
    /// The addresses of the range.
    pub fn range(&self) -> VirtRange {
        // SAFETY: the region is freed only after its release, which is the holder's `drop`.
        unsafe { self.region.as_ref() }.range
    }

    /// Keeps the range for as long as the machine runs. Returns the addresses.
    pub fn keep(self) -> VirtRange {
        let range = self.range();
        core::mem::forget(self);
        range
    }

    fn pages(&self) -> impl Iterator<Item = u64> + use<M> {
        let r = self.range();
        (r.start..r.end).step_by(PAGE_SIZE as usize)
    }
}

impl<M: KernelPages> Drop for KernelRange<M> {
    fn drop(&mut self) {
        self.map.give_up(self.region);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
