//! The kernel's own address space: a map of the same kind as a program's, by the same tree. It maps stacks with guards,
//! large buffers and windows on devices.
//!
//! # How addresses come and go
//! A range is the lowest hole that fits, with its guard (pages that are never mapped) below it. Ranges are mapped as a
//! whole when they are made: the kernel takes no faults on them.
//!
//! A range that is given up is *recycled* or *retired*. Stacks, which come and go with threads, stay mapped on a list
//! of the CPU that gave them up. The next thread there gets one without any work on page tables. The last idle stack of
//! a CPU is set aside for a switch to a thread without a stack, because no memory can be had during a switch
//! ([`KernelMap::last_stack`]). That thread then restocks the list ([`KernelMap::stock`]). Everything else, and stacks
//! beyond [`KEEP`], is retired. Its page-table entries are cleared at once, and its frames and addresses wait. A new
//! *generation* begins when [`BATCH`] ranges or [`PAGES`] pages wait, or when memory or addresses run out. All CPUs
//! then drop their translations, once for all waiting ranges. Only then are the frames freed and may the addresses be
//! used again.
//!
//! Each cell says what keeps two operations apart when two CPUs execute them at once:
//!
//! - **make**
//!   - make: the tree's lock
//!   - give up: the CPU's list; a retired range is still in the tree
//!   - new generation: a retired range stays in the tree until after the flush, so no other CPU uses its addresses
//! - **give up**
//!   - give up: the list of waiting ranges
//!   - new generation: it waits for this flush or the next: the waiting ranges are taken before the flush begins
//! - **new generation**
//!   - new generation: each takes the ranges that wait then
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

/// Idle stacks that a CPU keeps mapped.
#[cfg(not(any(loom, shuttle)))]
pub const KEEP: usize = 64;
/// 0, so that the checkers see addresses used again.
#[cfg(any(loom, shuttle))]
pub const KEEP: usize = 0;
/// Idle stacks above [`KEEP`] that a call of [`KernelMap::stock`] gives back at most. A switch adds one at most.
pub const SURPLUS: usize = 16;
/// Idle stacks of a CPU that are set aside for a switch.
#[cfg(not(any(loom, shuttle)))]
const LAST: u64 = 1;
/// 0, as [`KEEP`].
#[cfg(any(loom, shuttle))]
const LAST: u64 = 0;
/// Retired ranges that make a generation.
#[cfg(not(any(test, loom, shuttle)))]
pub const BATCH: u64 = 64;
/// Few, so that generations come often.
#[cfg(any(test, loom, shuttle))]
pub const BATCH: u64 = if cfg!(any(loom, shuttle)) { 1 } else { 4 };
/// Retired pages that make a generation: 8 MiB.
pub const PAGES: u64 = 2048;

/// The purpose of a range of kernel addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// A thread's stack, of [`KernelMap::stack_bytes`] bytes, an unmapped page below.
    Stack,
    /// Memory that need not be contiguous.
    Buffer,
    /// A window on physical addresses that are a device's.
    Device,
}

impl Purpose {
    /// The events that count its pages, made and gone.
    fn pages(self) -> (Event, Event) {
        match self {
            Purpose::Stack => (Event::StackPage, Event::StackPageGone),
            Purpose::Buffer | Purpose::Device => (Event::BufferPage, Event::BufferPageGone),
        }
    }
}

/// A range in the tree. On a line of its own, because each CPU lists its own stacks, though they lie side by side in a
/// slab.
#[repr(align(64))]
pub struct Region {
    /// The mapped addresses; the guard lies below them.
    range: VirtRange,
    guard: u64,
    purpose: Purpose,
    /// Whether it is mapped to its end. If its making failed half-way, it is not, and it is never recycled.
    whole: Cell<bool>,
    /// The next region on the list that it is on: guarded by that list's lock.
    link: Cell<*mut Region>,
    /// Frames that wait for a generation, linked. Guarded as `link`.
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
        // SAFETY: the caller has the region, which is on no list, and a region is freed only by `settle`, off a list.
        let r = unsafe { region.as_ref() };
        r.link.set(self.first);
        self.first = region.as_ptr();
        self.len += 1;
        self.pages += r.range.len() / PAGE_SIZE;
    }

    /// Takes a region off a list of more than `keep`.
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
    /// Each CPU's idle stacks, mapped.
    idle: PerCpu<SpinLock<RegionList>>,
    /// Retired ranges that wait for a generation: unmapped, still in the tree.
    waiting: SpinLock<RegionList>,
    generation: AtomicU64,
}

// SAFETY: regions are reached under the tree's lock or a list's lock; a region in use changes only by its holder, and
// its range is fixed.
unsafe impl<M: KernelPages> Send for KernelMap<M> {}
// SAFETY: a shared map takes the tree's lock or a list's lock before it looks at a region that a list has.
unsafe impl<M: KernelPages> Sync for KernelMap<M> {}

impl<M: KernelPages> KernelMap<M> {
    /// An empty map of the addresses `range`, whose stacks have `stack_bytes` bytes, a multiple of the page size. It is
    /// never taken apart.
    ///
    /// # Safety
    /// `range` lies in the kernel's part of every space's page tables, and nothing else is mapped there, by this map or
    /// another.
    pub unsafe fn new(vm: &'static Maps<M>, range: VirtRange, stack_bytes: u64) -> Result<KernelMap<M>, OutOfMemory> {
        let cpus = vm.machine().cpus();
        let layout =
            Layout::from_size_align(PerCpu::<SpinLock<RegionList>>::bytes(cpus), 128).map_err(|_| OutOfMemory)?;
        // SAFETY: the heap is the one of `vm`, which `Heap::alloc` asks for.
        let memory = unsafe { vm.heap().alloc(vm, layout)? };
        // SAFETY: fresh, large enough, aligned, and never freed.
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
    /// How often every CPU has dropped the translations of retired ranges.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }
    /// Ranges in use, idle or waiting.
    pub fn len(&self) -> usize {
        self.regions.len()
    }
    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A stack with an unmapped page below; it has the contents of its last use. Leaves the CPU's last idle one.
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

    /// An idle stack of this CPU, the last one too. `None` only if the CPU was not [stocked](Self::stock) since it took
    /// its last one. For the switch to a thread without a stack: no memory is asked for, and interrupts may be masked.
    ///
    /// # Requires
    /// The caller stays on this CPU.
    pub fn last_stack(&'static self) -> Option<KernelRange<M>> {
        let cpu = preempt_off();
        let region = self.idle.mine(&cpu).lock().pop()?;
        Some(KernelRange { map: self, region })
    }

    /// Makes sure that this CPU has an idle stack for the next [`last_stack`](Self::last_stack), and gives back up to
    /// [`SURPLUS`] idle stacks above [`KEEP`]. Does not sleep. Interrupts are on.
    ///
    /// # Errors
    /// The CPU has none, and there is no memory for one.
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

    /// Gives a stack to this CPU's idle ones, above [`KEEP`] too: with interrupts masked nothing can be retired.
    /// Another range is given up as usual.
    ///
    /// # Requires
    /// The caller stays on this CPU, and runs on another stack.
    pub fn put_by(&self, stack: KernelRange<M>) {
        // SAFETY: the region is the caller's, and it is freed only after it was given up.
        let r = unsafe { stack.region.as_ref() };
        if r.purpose != Purpose::Stack || !r.whole.get() || !ptr::eq(stack.map, self) {
            return;
        }
        let cpu = preempt_off();
        self.idle.mine(&cpu).lock().push(stack.region);
        core::mem::forget(stack);
    }

    /// Memory of `bytes` bytes (rounded up to pages), not contiguous in RAM, contents arbitrary, an unmapped page
    /// below.
    pub fn buffer(&'static self, bytes: u64) -> Result<KernelRange<M>, MapError> {
        let bytes = bytes.checked_next_multiple_of(PAGE_SIZE).filter(|b| *b != 0).ok_or(MapError::Invalid)?;
        self.mapped(bytes, PAGE_SIZE, Purpose::Buffer)
    }

    /// A window on the physical addresses of `frames`, which are a device's.
    ///
    /// # Safety
    /// The frames are used for nothing else meanwhile, nor mapped elsewhere with another memory type.
    pub unsafe fn device(&'static self, frames: PhysRange, memory: MemoryType) -> Result<KernelRange<M>, MapError> {
        let pages = frames.end.0.checked_sub(frames.start.0).filter(|n| *n != 0).ok_or(MapError::Invalid)?;
        let bytes = pages.checked_mul(PAGE_SIZE).ok_or(MapError::Invalid)?;
        let window = self.reserve(bytes, 0, Purpose::Device)?;
        for (n, va) in window.pages().enumerate() {
            // SAFETY: the addresses are the region's, where nothing is mapped yet, and the frames are the caller's by
            // `device`'s contract.
            unsafe { self.vm.machine().map_kernel(self.vm, va, Pfn(frames.start.0 + n as u64), memory)? };
        }
        Ok(window)
    }

    /// A range with memory of its own.
    fn mapped(&'static self, bytes: u64, guard: u64, purpose: Purpose) -> Result<KernelRange<M>, MapError> {
        let made = self.reserve(bytes, guard, purpose)?;
        for va in made.pages() {
            let frame = self.frame()?;
            let pfn = frame.pfn();
            // SAFETY: the addresses are the region's, where nothing is mapped yet, and the frame was allocated for
            // them.
            let map = || unsafe { self.vm.machine().map_kernel(self.vm, va, pfn, MemoryType::WriteBack) };
            if let Err(e) = self.or_reclaim(map) {
                self.vm.return_frame(frame);
                // The pages mapped so far were never used, but a CPU may have cached them: the range is retired like
                // any other.
                return Err(e.into());
            }
            let _mapped = frame.into_pfn();
            self.vm.stats().count(purpose.pages().0);
        }
        // SAFETY: `made` is a region of this call's that no list has, and it is freed only after it was given up.
        unsafe { made.region.as_ref() }.whole.set(true);
        Ok(made)
    }

    fn frame(&self) -> Result<Frame, OutOfMemory> {
        self.or_reclaim(|| self.vm.alloc_frame(Fill::Any, For::Kernel))
    }

    /// Retired frames and idle stacks are memory too: tries once more if there were any.
    fn or_reclaim<T>(&self, mut f: impl FnMut() -> Result<T, OutOfMemory>) -> Result<T, OutOfMemory> {
        f().or_else(|e| if self.reclaim() { f() } else { Err(e) })
    }

    /// Unmapped addresses for `bytes` bytes above `guard` bytes, in the tree from now on.
    fn reserve(&'static self, bytes: u64, guard: u64, purpose: Purpose) -> Result<KernelRange<M>, MapError> {
        let len = bytes.checked_add(guard).ok_or(MapError::Invalid)?;
        loop {
            if let Some(region) = self.or_reclaim(|| self.find(len, guard, purpose))? {
                return Ok(KernelRange { map: self, region });
            }
            // Addresses may wait for a generation, or be idle stacks'.
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

    /// Takes a region back from its holder.
    fn give_up(&self, region: NonNull<Region>) {
        // SAFETY: its holder gives the region up by this call, and a region is freed only by `settle`, after it was
        // retired.
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

    /// Takes a region's leaves away. Its frames and addresses wait for a generation, which begins here if enough waits.
    /// Returns whether anything came back by that.
    fn retire(&self, region: NonNull<Region>) -> bool {
        // SAFETY: the region was given up by its holder or popped from an idle list, so this call alone has it.
        let r = unsafe { region.as_ref() };
        for va in (r.range.start..r.range.end).step_by(PAGE_SIZE as usize) {
            // SAFETY: the region is given up, and its holder reaches nothing of it.
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

    /// A new generation: every CPU drops the waiting ranges' translations, then their frames are freed and their
    /// addresses may be used again. Returns whether anything came back.
    pub fn settle(&self) -> bool {
        let mut batch = core::mem::replace(&mut *self.waiting.lock(), RegionList::EMPTY);
        if batch.len == 0 {
            return false;
        }
        let early = mutant(Mutant::ReuseBeforeFlush);
        let mut set = FlushSet::new();
        let mut at = batch.first;
        // SAFETY: the batch was taken off `waiting` under its lock, and only the loop below frees its regions.
        while let Some(r) = unsafe { at.as_ref() } {
            set.add(r.range);
            at = r.link.get();
        }
        // Relies on C4: the one flush that is sent to all CPUs.
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
                // SAFETY: unmapped everywhere and flushed; the region's own frame.
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
                    // SAFETY: in no tree and on no list; the tree is read under its lock only.
                    unsafe { self.vm.map_memory().regions.free(self.vm, region) };
                    any = true;
                }
                Err(OutOfMemory) => {
                    drop(owner);
                    // The tree has no memory to shrink by: the addresses wait for the next time.
                    self.waiting.lock().push(region);
                }
            }
        }
        if early {
            self.vm.machine().flush_kernel(&set);
        }
        any
    }

    /// Gives idle stacks back when memory is short, but each CPU's last one. Returns whether anything came back.
    pub fn reclaim(&self) -> bool {
        self.give_back(LAST)
    }

    /// As [`reclaim`](Self::reclaim), with each CPU's last idle stack: for a machine that switches to no thread without
    /// a stack any more.
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
            // SAFETY: a region is freed only after a commit has taken it out of the tree, and the tree's lock is held.
            let r = unsafe { item.value.as_ref() };
            f(r.range, r.purpose, r.guard);
        }
    }

    /// The nodes of the tree that finding room for a stack visits now.
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

/// A range of kernel addresses that the holder has; given up when dropped.
pub struct KernelRange<M: KernelPages> {
    map: &'static KernelMap<M>,
    region: NonNull<Region>,
}

// SAFETY: regions are in a slab that all CPUs share, and the holder alone uses this one until it is given up.
unsafe impl<M: KernelPages> Send for KernelRange<M> {}
// SAFETY: a shared range is only asked for the region's `range`, which is fixed before the holder has it.
unsafe impl<M: KernelPages> Sync for KernelRange<M> {}

impl<M: KernelPages> KernelRange<M> {
    /// The addresses.
    pub fn range(&self) -> VirtRange {
        // SAFETY: the region is freed only after it was given up, which is the holder's `drop`.
        unsafe { self.region.as_ref() }.range
    }

    /// Keeps it for as long as the machine runs. Returns the addresses.
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
