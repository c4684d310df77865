//! A thread's own address space, and the access that other threads have to it.
//!
//! A thread's own space is an [`OwnSpace`]. Only [`enter`](OwnSpace::enter) changes it, by exec and at the thread's
//! end. A reader of another thread's space gets a [`Foreign`]. A `Foreign` cannot become a thread's own space. It gives
//! access neither to the page tables nor to the map.

use crate::base::owned::Owned;
use crate::machine::Machine;
use crate::memory::AddressSpace;
use crate::memory::image::Image;
use quire_heap::{Arc, Weak};
use quire_sync::atomic::AtomicU32;
use quire_vm::FaultError;
use quire_vm::VirtRange;
use quire_vm::map::PageInfo;
use quire_vm::map::{EntryInfo, Holdings, Limits, SpaceStats, Structures};

/// The address space that a thread runs in; `None` after the thread has left it.
pub struct OwnSpace<M: Machine>(Owned<Option<Arc<AddressSpace<M>>>>);

impl<M: Machine> OwnSpace<M> {
    /// The own space of a new thread that runs in `space`.
    pub fn new(space: Arc<AddressSpace<M>>) -> Self {
        OwnSpace(Owned::new(Some(space)))
    }

    /// The owning thread's view, without a lock.
    ///
    /// # Safety
    /// The caller fulfils the contract of [`Owned::get`].
    #[inline(always)]
    pub unsafe fn get(&self) -> Option<&Arc<AddressSpace<M>>> {
        // SAFETY: the caller is the owner. It replaces the space only while it holds no view of it, as `Owned::get`
        // requires.
        unsafe { self.0.get() }.as_ref()
    }

    /// Makes the thread run in `new`, or in no space. Returns the old space. The caller drops it after this call,
    /// because the last reference may be dropped only when no CPU runs in the space for this thread.
    ///
    /// # Safety
    /// The caller fulfils the contract of [`Owned::replace`], and the thread runs on this CPU.
    #[must_use = "the returned value may hold the last reference"]
    pub unsafe fn enter(&self, machine: &M, new: Option<Arc<AddressSpace<M>>>) -> Option<Arc<AddressSpace<M>>> {
        // The order matters. First the new space is stored in the thread, because a context switch to the thread loads
        // the stored space. Then this CPU leaves the old space.
        // SAFETY: the caller fulfils the contract of `Owned::replace`. The view `new` begins after the change.
        let (old, new) = unsafe { (self.0.replace(new), self.0.get()) };
        // SAFETY: the machine loads the page tables, and leaves them before the space is freed.
        machine.activate(new.as_ref().map(|space| unsafe { space.page_tables() }));
        old
    }

    /// A handle on the space for another thread; `None` if the owner has left the space.
    pub fn borrow(&self) -> Option<Foreign<M>> {
        self.0.look(|space| space.clone()).map(Foreign)
    }
}

/// The address space of a thread, for a reader that may be another thread.
pub struct Foreign<M: Machine>(Arc<AddressSpace<M>>);

impl<M: Machine> Foreign<M> {
    /// The program that the space holds.
    pub fn image(&self) -> &Arc<Image<M>> {
        &self.0.image
    }

    /// Whether other processes of the space's owner may read the memory of the space.
    pub fn is_dumpable(&self) -> bool {
        self.0.is_dumpable()
    }

    /// Whether both handles are on one space.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// A weak reference. An open file (such as `/proc/<pid>/mem`) holds it, so that the file does not keep the memory
    /// of an ended process.
    pub fn downgrade(&self) -> Weak<AddressSpace<M>> {
        Arc::downgrade(&self.0)
    }

    /// The space behind a weak reference; `None` if all threads have left it.
    pub fn again(weak: &Weak<AddressSpace<M>>) -> Option<Self> {
        weak.upgrade().map(Foreign)
    }

    /// Fills `to` with the bytes from address `at` on. Returns the number of bytes read. May sleep.
    pub fn read(&self, at: u64, to: &mut [u8]) -> Result<usize, FaultError> {
        self.0.read(at, to)
    }

    /// Stores the bytes of `from` at address `at`. Returns the number of bytes stored. May sleep.
    pub fn store(&self, at: u64, from: &[u8]) -> Result<usize, FaultError> {
        self.0.store(at, from)
    }

    /// As [`read`](Self::read), also of memory that the program may not read, for a debugger.
    pub fn force_read(&self, at: u64, to: &mut [u8]) -> Result<usize, FaultError> {
        self.0.force_read(at, to)
    }

    /// As [`store`](Self::store), also into private memory that the program may not store into, for a debugger.
    pub fn force_store(&self, at: u64, from: &[u8]) -> Result<usize, FaultError> {
        self.0.force_store(at, from)
    }

    /// The kinds of memory that a core file of the space holds.
    pub fn core_filter(&self) -> &AtomicU32 {
        &self.0.core_filter
    }

    /// The space's statistics.
    pub fn stats(&self) -> SpaceStats {
        self.0.stats()
    }

    /// The highest number of pages that were resident at once.
    pub fn peak_resident(&self) -> u64 {
        self.0.peak_resident()
    }

    /// The number of bytes that are locked in memory.
    pub fn wired_bytes(&self) -> u64 {
        self.0.wired_bytes()
    }

    /// The address of the heap's first byte.
    pub fn heap_start(&self) -> u64 {
        self.0.heap.lock().start
    }

    /// The page at address `at`, if one is mapped.
    pub fn page_at(&self, at: u64) -> Option<PageInfo> {
        self.0.page_at(at)
    }

    /// The number of private pages in `range` that are in swap.
    pub fn swapped_in(&self, range: VirtRange) -> u64 {
        if self.swap_is_empty() { 0 } else { self.0.swapped_in(range) }
    }

    /// Calls `f` with each resident page in `range`, until `f` returns false ([`quire_vm::Space::each_page`]). `f` must
    /// not sleep.
    pub fn each_page(&self, range: VirtRange, f: &mut dyn FnMut(u64, &PageInfo) -> bool) {
        self.0.each_page(range, f);
    }

    /// The first address in `range` that a PTE maps.
    pub fn next_leaf(&self, range: VirtRange) -> Option<u64> {
        self.0.next_leaf(range)
    }

    /// The number of PTEs in `range`.
    pub fn leaves_in(&self, range: VirtRange) -> u64 {
        self.0.leaves_in(range)
    }

    /// The number of PTEs in `range`, a part of mappings of files, that map private copies.
    pub fn mapped_copies_in(&self, range: VirtRange) -> u64 {
        self.0.mapped_copies_in(range)
    }

    /// Clears the access state of all pages that PTEs in `range` map.
    pub fn forget_accesses(&self, range: VirtRange) {
        self.0.forget_accesses(range);
    }

    /// Resets the highest number of resident pages to the present number.
    pub fn restart_peak(&self) {
        self.0.restart_peak();
    }

    /// As [`entries`](Self::entries), with entries that continue each other as one mapping.
    pub fn mappings(&self, from: u64, f: &mut dyn FnMut(&EntryInfo<M>) -> bool) {
        self.0.mappings(from, f)
    }

    /// Calls `f` for each entry of the map from address `from` on, until `f` returns false.
    pub fn entries(&self, from: u64, f: &mut dyn FnMut(&EntryInfo<M>) -> bool) {
        self.0.entries(from, f)
    }

    /// Calls `f` for each entry of the map that shows a file or shared memory, until `f` returns false.
    pub fn entries_of_objects(&self, f: &mut dyn FnMut(&EntryInfo<M>) -> bool) {
        self.0.entries_of_objects(f)
    }

    /// The number of private pages in swap.
    pub fn swapped(&self) -> u64 {
        if self.swap_is_empty() { 0 } else { self.0.holdings().swapped }
    }

    /// Mostly there is nothing in swap, and then no mapping is searched.
    fn swap_is_empty(&self) -> bool {
        let swap = self.0.vm().swap();
        swap.free() >= swap.total()
    }

    /// Whether the calling thread, which reads this memory, must end.
    pub fn is_reader_killed(&self) -> bool {
        quire_vm::Machine::is_ending(self.0.vm().machine())
    }

    /// The pages that the end of this space would free.
    pub fn holdings(&self) -> Holdings {
        self.0.holdings()
    }

    /// Upper bounds of [`holdings`](Self::holdings), read from a few counters.
    pub fn most_holdings(&self) -> Holdings {
        self.0.most_holdings()
    }

    /// The number of resident pages, read from a few counters.
    pub fn resident_estimate(&self) -> u64 {
        self.0.resident_estimate()
    }

    /// The kernel memory that the space's data structures use.
    pub fn structures(&self) -> Structures {
        self.0.structures()
    }

    /// Whether both handles are on the same space.
    pub fn is_same(&self, other: &Foreign<M>) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Frees the space's private memory. All threads that run in it must have been killed. May sleep.
    pub fn reap(&self) {
        self.0.condemn();
        self.0.reap();
    }

    /// Changes the size limits of the space, for `prlimit`.
    pub fn change_limits(&self, change: impl FnOnce(Limits) -> Limits) {
        self.0.set_limits(change(self.0.limits()));
    }
}
