//! Address spaces: a map and its page tables, counted by handles.

pub(crate) mod accesses;
pub(crate) mod commit;
pub(crate) mod idle;
pub(crate) mod pages;
pub(crate) mod query;
pub(crate) mod shown;
pub(crate) mod spaces;

use super::arena::Arena;
use super::entry::Entry;
use crate::error::{MapError, OutOfMemory};
use crate::machine::{Machine, Pmap};
use crate::map::arena::arenas::Arenas;
use crate::map::arena::covered::Covered;
use crate::map::entry::wired::Wire;
use crate::map::maps::Maps;
use crate::map::space::spaces::SpacePlace;
use crate::tlb::flush::{NeverMapped, NoTranslation};
use crate::types::{PAGE_SIZE, VirtRange};
use core::mem::ManuallyDrop;
use core::ops::Deref;
use core::ptr::NonNull;
use quire_sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering, fence_full};
use quire_sync::epoch::Pinned;

/// The addresses that a program may map at most. On x86-64 the last page before the non-canonical hole is left out, as
/// in Linux. A system call at the end of that page would return to an address in the hole. Page tables may cover less
/// ([`Pmap::USER`]).
pub const USER: VirtRange = VirtRange { start: 0, end: 0x7fff_ffff_f000 };

/// Nothing is placed below this address without a fixed address, and no stack grows below it, because a program with an
/// error reads there by a null pointer. Linux has this as the default of `vm.mmap_min_addr`.
pub const LOWEST_CHOSEN: u64 = 0x1_0000;

/// The size in bytes of the guard below a stack: 256 pages, as in Linux. Only a mapping with a fixed address is placed
/// there. A stack stops growing at this distance from the mapping below it.
pub const STACK_GUARD: u64 = 256 * PAGE_SIZE;

/// How often an operation is tried again after pageout has freed memory. One retry may not suffice, because other
/// threads may allocate that memory first.
const ATTEMPTS: u32 = 32;

/// The placement of mappings without an address, and the limits of a space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// A mapping without a fixed address goes to the lowest hole that fits at or above this address. If there is none,
    /// it goes to the lowest hole that fits anywhere.
    pub base: u64,
    /// Bytes to which a stack may grow.
    pub stack: u64,
    /// Bytes that may be mapped.
    pub bytes: u64,
    /// Bytes that may be mapped as writable private memory, except stacks.
    pub data: u64,
    /// Entries that may exist.
    pub entries: u64,
}

impl Limits {
    /// No limit but the address space itself, a stack of 8 MiB, and 2^20 entries.
    pub(crate) const DEFAULT: Limits = Limits {
        base: 0x7000_0000_0000,
        stack: 8 << 20,
        bytes: USER.end - USER.start,
        data: u64::MAX,
        entries: 1 << 20,
    };
}

/// An address space. [`Space::new`] and [`Space::fork`] make one. Callers reach it through [`SpaceRef`]s. It has cache
/// lines of its own, because spaces that lie side by side are used by different CPUs.
#[repr(C, align(64))]
pub struct Space<M: Machine> {
    vm: &'static Maps<M>,
    id: u64,
    /// The number of leaves that were dropped with page tables while no CPU ran the space, and [`BARE`] if all tables
    /// were dropped. The next fault that succeeds sets it to zero. Every fault reads it, so it is beside fields that
    /// never change.
    dropped: AtomicU64,
    /// Set if no fault may enter a translation any more. Every fault reads it. It is written once, by
    /// [`Space::condemn`].
    pub(super) condemned: AtomicBool,
    /// Whether resident private pages may lack a leaf ([`shown::CHILD`] and other flags). Queries read it, and changes
    /// that remove leaves.
    pub(super) lacks_leaves: AtomicU8,
    pmap: M::Pmap,
    pub(super) arenas: Arenas<M>,
    /// The fields of [`Limits`]. System calls of the process write them; map operations read them.
    base: AtomicU64,
    stack: AtomicU64,
    bytes: AtomicU64,
    data: AtomicU64,
    entries: AtomicU64,
    /// How future mappings are wired (a [`Wire`]).
    future: AtomicU8,
    /// The largest number of resident pages that a query has found since the peak was restarted.
    peak: AtomicU64,
    /// The space's place on pageout's lists, and the number of its handles.
    pub(super) place: SpacePlace<M>,
}

/// A flag in `dropped`: all page tables were dropped, the root too.
const BARE: u64 = 1 << 63;

/// Counts of a space, computed by a query: no fault touches a counter of the space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceStats {
    /// Bytes that entries cover.
    pub mapped_bytes: u64,
    /// Bytes that entries cover, by class.
    pub covered: Covered,
    /// The most bytes that entries ever covered. Exact if the space never had a second arena, otherwise an upper bound.
    pub peak_bytes: u64,
    /// Pages that the page tables map, and private pages that they would map if a fork had copied them.
    pub resident_pages: u64,
    /// Page-table pages, the root included; 0 if all were dropped.
    pub table_pages: u64,
    /// Entries.
    pub entries: u64,
    /// The largest number of resident pages so far, the present number included ([`Pmap::peak_pages`]).
    pub peak_resident: u64,
}

/// A counted handle of a [`Space`]. Dropping the last handle destroys the space. Drop it only where sleeping is
/// allowed, on a CPU of the machine, and after no CPU runs the space any more. The drop unmaps everything before it
/// returns, but pages that are being written are freed later. [`Vm::settle`](crate::reclaim::Reclaimer::settle) waits
/// for them.
pub struct SpaceRef<M: Machine>(pub(super) NonNull<Space<M>>);

// SAFETY: a handle is a shared reference to a space, which lives while the handle exists. A space is made of locks and
// atomics.
unsafe impl<M: Machine> Send for SpaceRef<M> {}
// SAFETY: `&SpaceRef` gives `&Space`, which is made of locks and atomics, and clones, which count atomically.
unsafe impl<M: Machine> Sync for SpaceRef<M> {}

impl<M: Machine> Space<M> {
    /// An empty space. Its cost is a root table and this structure.
    #[allow(clippy::new_ret_no_self)] // A space is reached through handles only.
    pub fn new(vm: &'static Maps<M>) -> Result<SpaceRef<M>, OutOfMemory> {
        let space = NewSpace::new(vm, Limits::DEFAULT)?;
        // SAFETY: the space maps no page, so it shares no page with another space.
        Ok(space.born(&unsafe { NeverMapped::new() }))
    }
}

/// A new space. Only the thread that makes it can reach it, so the thread fills its map without a lock. A drop frees
/// the space; its map must be empty then.
pub(super) struct NewSpace<M: Machine>(NonNull<Space<M>>);

impl<M: Machine> NewSpace<M> {
    pub fn new(vm: &'static Maps<M>, limits: Limits) -> Result<NewSpace<M>, OutOfMemory> {
        let memory = vm.map_memory();
        let place = memory.spaces.cache().alloc(vm)?.cast::<Space<M>>();
        // SAFETY: the space uses the page tables with its own `vm` only, and destroys them in `free`.
        let pmap = match unsafe { M::Pmap::new(vm) } {
            Ok(pmap) => pmap,
            Err(e) => {
                // SAFETY: the memory was just allocated from this slab, and nothing was written there.
                unsafe { memory.spaces.cache().free(vm, place.cast()) };
                return Err(e);
            }
        };
        let space = Space {
            vm,
            id: memory.new_id(),
            pmap,
            arenas: Arenas::new(vm),
            dropped: AtomicU64::new(0),
            condemned: AtomicBool::new(false),
            lacks_leaves: AtomicU8::new(0),
            base: AtomicU64::new(limits.base),
            stack: AtomicU64::new(limits.stack),
            bytes: AtomicU64::new(limits.bytes),
            data: AtomicU64::new(limits.data),
            entries: AtomicU64::new(limits.entries),
            future: AtomicU8::new(Wire::No as u8),
            peak: AtomicU64::new(0),
            place: SpacePlace::new(),
        };
        // SAFETY: `place` is new memory from the slab of spaces, so it has a space's size and alignment.
        unsafe { place.write(space) };
        Ok(NewSpace(place))
    }

    pub fn pmap(&self) -> &M::Pmap {
        // SAFETY: `new` wrote the space. Only `drop` frees it, and `born` consumes `self`.
        unsafe { self.0.as_ref() }.pmap()
    }

    /// The arena of its entries.
    pub fn home(&mut self) -> &mut Arena<M> {
        // SAFETY: no other thread can reach the arenas: a backing leads to the page tables only, and only the maker has
        // `&mut self`.
        unsafe { (*self.0.as_ptr()).arenas.home_mut() }
    }

    /// Lets the space count the resident pages of `parent` as its own, `most` at most, although its page tables are
    /// empty.
    pub fn inherit(&mut self, parent: &Space<M>, most: u64) {
        // SAFETY: `new` wrote the space. Only `drop` frees it, and `born` consumes `self`.
        let space = unsafe { self.0.as_ref() };
        space.lacks_leaves.store(shown::CHILD, Ordering::Relaxed);
        space.pmap.inherit(space.vm, &parent.pmap, most);
    }

    /// Publishes the space, so that other threads can find it. `_shared` is a proof about memory that this space shares
    /// with another space. The other space's leaves of this memory are write-protected, and the write-protection was
    /// flushed.
    pub fn born(self, _shared: &impl NoTranslation) -> SpaceRef<M> {
        let this = ManuallyDrop::new(self);
        let space = SpaceRef(this.0);
        space.vm.map_memory().all.add(&space);
        space
    }
}

impl<M: Machine> Drop for NewSpace<M> {
    fn drop(&mut self) {
        if quire_sync::hooks::is_panicking() {
            // Mapping lists may already have backings that point to the space, so it must not be freed.
            return;
        }
        // SAFETY: the space was never published, so no handle and no list refers to it, and its map has no entries.
        unsafe { Space::free(self.0) };
    }
}

impl<M: Machine> Space<M> {
    /// Frees a space that has no entries and no leaves, with its arenas and page tables.
    ///
    /// # Safety
    /// The caller alone can reach the space, no CPU runs it, and it is freed once.
    pub(super) unsafe fn free(mut this: NonNull<Space<M>>) {
        // SAFETY: by this function's contract.
        unsafe {
            let space = this.as_mut();
            let vm = space.vm;
            space.arenas.free(vm);
            space.pmap.destroy(vm);
            vm.map_memory().spaces.free(vm, this);
        }
    }

    /// Whether the space belongs to this system.
    pub fn is_of(&self, vm: &Maps<M>) -> bool {
        core::ptr::eq(self.vm, vm)
    }
    /// The system that it belongs to.
    #[inline(always)]
    pub fn vm(&self) -> &'static Maps<M> {
        self.vm
    }
    /// The page tables.
    #[inline(always)]
    pub(crate) fn pmap(&self) -> &M::Pmap {
        &self.pmap
    }
    /// The page tables, for the machine that loads them.
    ///
    /// # Safety
    /// The caller loads or reads the page tables, or removes leaves by the rules of [`Pmap`] and
    /// [`Table`](crate::Table). It enters no leaves, because the map would not know them. It does not use the page
    /// tables after the space's last handle is dropped.
    #[inline(always)]
    pub unsafe fn page_tables(&self) -> &M::Pmap {
        &self.pmap
    }
    /// The mark of [`Space::condemn`], for faults.
    #[inline(always)]
    pub(crate) fn condemned(&self) -> &AtomicBool {
        &self.condemned
    }
    /// A number that no other space ever has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The entry that covers `va`. The lookup takes no lock, and writes nothing but the pin. A found entry is valid if
    /// it is not stale under the lock of the table page. `None` is valid if [`Space::unchanged_since`] returns true
    /// (relies on C3).
    #[inline]
    pub(crate) fn lookup<'p>(&self, va: u64, pin: &'p Pinned<'_>) -> Option<&'p Entry<M>> {
        self.arenas.of(va).lookup(va, pin)
    }

    /// The first entry that ends beyond `va`.
    pub(crate) fn next_entry<'p>(&'p self, va: u64, pin: &'p Pinned<'_>) -> Option<&'p Entry<M>> {
        self.arenas.next(va, pin)
    }

    /// The entry that covers `va`, found as a fault finds it, for tests.
    ///
    /// # Safety
    /// The pin is of this space's system.
    pub unsafe fn entry_at<'p>(&self, va: u64, pin: &'p Pinned<'_>) -> Option<&'p Entry<M>> {
        self.lookup(va, pin)
    }

    /// How future mappings are wired.
    pub fn future(&self) -> Wire {
        Wire::from_u8(self.future.load(Ordering::Relaxed))
    }
    pub(super) fn set_future(&self, how: Wire) {
        self.future.store(how as u8, Ordering::Relaxed);
    }

    /// The limits of the space, and the base address for new mappings.
    pub fn limits(&self) -> Limits {
        Limits {
            base: self.base.load(Ordering::Relaxed),
            stack: self.stack.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            data: self.data.load(Ordering::Relaxed),
            entries: self.entries.load(Ordering::Relaxed),
        }
    }

    /// Changes limits from now on; mappings that exceed them stay.
    pub fn set_limits(&self, limits: Limits) {
        self.base.store(limits.base, Ordering::Relaxed);
        self.stack.store(limits.stack, Ordering::Relaxed);
        self.bytes.store(limits.bytes, Ordering::Relaxed);
        self.data.store(limits.data, Ordering::Relaxed);
        self.entries.store(limits.entries, Ordering::Relaxed);
    }

    /// Runs a map operation, and runs it again while it fails for lack of memory and pageout frees some.
    ///
    /// # Requires
    /// A failed operation changes nothing, or can be repeated with the same result. The caller holds no lock.
    pub(super) fn with_memory<R>(&self, mut operation: impl FnMut() -> Result<R, MapError>) -> Result<R, MapError> {
        for _ in 0..ATTEMPTS {
            match operation() {
                Err(MapError::OutOfMemory) if self.vm.wait_for_frames() => {}
                done => return done,
            }
        }
        operation()
    }

    /// Calls `part` with the rest of `range`, until it returns no place at which the next part begins. No lock is held
    /// between two parts, and a calling thread that must end stops there.
    pub(super) fn in_parts(
        &self,
        range: VirtRange,
        mut part: impl FnMut(VirtRange) -> Result<Option<u64>, MapError>,
    ) -> Result<(), MapError> {
        let mut rest = range;
        while let Some(next) = self.with_memory(|| part(rest))? {
            self.goes_on()?;
            rest.start = next;
        }
        Ok(())
    }

    /// [`MapError::Ending`] if the calling thread must end. Operations on many entries call this between two parts, and
    /// where they have changed nothing yet.
    pub(super) fn goes_on(&self) -> Result<(), MapError> {
        if self.vm().machine().is_ending() { Err(MapError::Ending) } else { Ok(()) }
    }

    /// Checks a range that a program passed (relies on C10).
    pub(super) fn valid(&self, range: VirtRange) -> Result<(), MapError> {
        let len = range.end.checked_sub(range.start).ok_or(MapError::Invalid)?;
        VirtRange::checked(range.start, len)
            .filter(|r| r.start >= M::Pmap::USER.start && r.end <= M::Pmap::USER.end)
            .map(|_| ())
            .ok_or(MapError::Invalid)
    }

    /// The counts of the space, read from its entries and page tables.
    pub fn stats(&self) -> SpaceStats {
        let (mapped, table_pages) = self.pmap.pages(self.vm);
        let resident_pages = self.with_unmapped(mapped);
        let covered = self.arenas.all().map(|a| a.covered()).fold(Covered::default(), |sum, more| sum.and(&more));
        SpaceStats {
            mapped_bytes: covered.bytes,
            covered,
            peak_bytes: self.arenas.peak(),
            resident_pages,
            table_pages,
            entries: self.arenas.all().map(|a| a.len() as u64).sum(),
            peak_resident: self.note_peak(resident_pages),
        }
    }

    /// The most pages that were resident at the same time. The number is as exact as [`Pmap::peak_pages`]. Reads no
    /// page table.
    pub fn peak_resident(&self) -> u64 {
        self.peak.load(Ordering::Relaxed).max(self.pmap.peak_pages(self.vm))
    }

    /// Bytes that entries cover, in all arenas.
    pub(super) fn mapped(&self) -> u64 {
        self.arenas.all().map(|a| a.mapped()).sum()
    }

    /// Bytes of writable private memory in all arenas, except stacks.
    pub(super) fn data(&self) -> u64 {
        self.arenas.all().map(|a| a.data()).sum()
    }

    /// Notes that page tables with `leaves` leaves were dropped. `bare` says that no table page was left.
    pub(super) fn note_dropped(&self, leaves: u64, bare: bool) {
        self.peak.fetch_max(leaves, Ordering::Relaxed);
        self.lacks_leaves.fetch_or(shown::ANY, Ordering::Relaxed);
        self.pmap.disinherit();
        let more = |dropped: u64| Some((dropped + leaves) | if bare { BARE } else { 0 });
        let _always = self.dropped.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        if !bare {
            return;
        }
        self.vm.map_memory().all.bare(self);
        // This CPU stores the note in `dropped`, fences, and then looks for tables. A fault on another CPU that did not
        // read the note entered its leaf before the note was stored. If no other fault follows, only this look finds
        // the table of that leaf.
        fence_full();
        if self.pmap.table_pages(self.vm) > 0 {
            self.vm.map_memory().all.tabled(self);
        }
    }

    /// Called after a fault has failed for lack of memory. The fault may have made a root and some tables. If it has,
    /// this call makes pageout visit the space again and free them. Otherwise a space whose threads wait for memory
    /// would keep these tables while it waits. The note of the drop stays for the fault that succeeds.
    #[cold]
    pub(crate) fn note_tables_left(&self) {
        // Pairs with the fence in `note_dropped`, which notes the drop and then looks for tables.
        fence_full();
        if self.is_bare() && self.pmap.table_pages(self.vm) > 0 {
            self.vm.map_memory().all.tabled(self);
        }
    }

    /// Whether all page tables were dropped since the last fault.
    pub(super) fn is_bare(&self) -> bool {
        self.dropped.load(Ordering::Relaxed) & BARE != 0
    }

    /// Whether page tables were dropped since the last fault.
    #[inline(always)]
    pub(crate) fn were_tables_dropped(&self) -> bool {
        self.dropped.load(Ordering::Relaxed) != 0
    }

    /// Clears the note of dropped page tables, and returns the number of leaves that were dropped with them. Only one
    /// fault gets the number. From then on pageout visits the space again.
    pub(crate) fn take_dropped(&self) -> u64 {
        let dropped = self.dropped.swap(0, Ordering::Relaxed);
        if dropped & BARE != 0 {
            self.vm.map_memory().all.tabled(self);
        }
        dropped & !BARE
    }

    /// Records that `now` pages are resident. Returns the peak.
    fn note_peak(&self, now: u64) -> u64 {
        // Usually `now` is no new peak. Then this does not write the cache line, which map operations read.
        if now > self.peak.load(Ordering::Relaxed) {
            self.peak.fetch_max(now, Ordering::Relaxed);
        }
        self.peak_resident()
    }

    /// Restarts the peak of resident pages: [`Space::peak_resident`] becomes the largest number since this call, the
    /// present one included. A page that is mapped or unmapped during the call may count in the new peak.
    pub fn restart_peak(&self) {
        self.pmap.restart_peak(self.vm);
        // Sum over the page tables, because the pmap's own count lacks pages that other CPUs have not reported yet.
        self.peak.store(0, Ordering::Relaxed);
        self.note_peak(self.resident_pages());
    }

    /// Unmaps everything. The space can be used again. An exit needs no call, because dropping the last handle unmaps
    /// faster.
    pub fn clear(&self) {
        let mut at = M::Pmap::USER.start;
        while at < M::Pmap::USER.end {
            let (writer, end) = self.write_at(at);
            let range = VirtRange { start: at, end: end.min(M::Pmap::USER.end) };
            // Whole entries are removed, which allocates nothing and so cannot fail.
            let done = self.unmap_by(writer, range);
            debug_assert!(done.is_ok(), "unmapping everything needs no memory");
            at = range.end;
        }
    }

    /// Another handle.
    pub(crate) fn handle(&self) -> SpaceRef<M> {
        self.place.refs.fetch_add(1, Ordering::Relaxed);
        SpaceRef(NonNull::from(self))
    }

    /// Returns another handle, or `None` if the last handle was dropped.
    ///
    /// # Requires
    /// The caller holds the lock of the list that the space is on.
    pub(super) fn try_handle(&self) -> Option<SpaceRef<M>> {
        let more = |n: usize| (n != 0).then_some(n + 1);
        self.place.refs.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).ok()?;
        Some(SpaceRef(NonNull::from(self)))
    }
}

impl<M: Machine> Clone for SpaceRef<M> {
    fn clone(&self) -> Self {
        self.handle()
    }
}

impl<M: Machine> Deref for SpaceRef<M> {
    type Target = Space<M>;
    #[inline(always)]
    fn deref(&self) -> &Space<M> {
        // SAFETY: the handle counts in the space's `place.refs`, and the space is freed only after that count is zero.
        unsafe { self.0.as_ref() }
    }
}
