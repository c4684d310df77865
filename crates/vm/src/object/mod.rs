//! Memory objects: files and anonymous memory, each with an index of its pages.
//!
//! # Lifetime of an object
//! Two things keep an object alive: its handles ([`ObjectRef`], for files and shared memory) and its backings. Each
//! handle counts as one reference. Backings are not counted one by one. Each non-empty *shard* of the object's mapping
//! list counts as one reference. A shard that belongs to one CPU counts until it is closed, even while it is empty. So
//! linking and unlinking a backing write the reference count only when a shard fills or empties (`References`).
//! Faults never write the count. The thread that lowers the count to zero tears the object down, and the count never
//! rises from zero.
//!
//! # Fields and what guards them
//! - `index`: lock-free, synchronises its own changes.
//! - `size`: written by the owner of size changes (the file). Faults that find no page of the file read it under the
//!   rule of C2.
//! - `refs`, `flags`: atomic.
//! - The tree of a shard: guarded by the shard's lock.
//! - All other fields are fixed.
//!
//! # What lives here
//! This folder has objects, their page [`index`], and the lists of their mappings (`mapping_list`). It also has the
//! [`backing`]s that form shadow chains, and the life of pages (`page_lifecycle`, `removal`). [`Objects`] is the part
//! of the memory system that owns all objects. This folder uses frames, page queues and swap slots. It does not know
//! maps, faults or reverse mapping. Code that needs those is in `content`.

pub mod backing;
pub(crate) mod batch;
mod charge;
mod check;
mod device;
mod dirty;
mod errors;
pub mod index;
pub mod interval;
pub(crate) mod kept;
pub(crate) mod mapping_list;
pub(crate) mod objects;
pub(crate) mod page_lifecycle;
mod weak;

mod range;
pub(crate) mod reap_list;
mod references;
pub(crate) mod removal;
mod scan;
mod store_times;

pub(crate) use charge::{Charge, NoRoom};
pub use device::Device;
use device::Own;
pub(crate) use dirty::DirtyPages;
pub use errors::{ErrorCursor, WriteErrors, WritesFailed};
pub(crate) use mapping_list::{MoreShards, OwnShards, Shards};
pub use objects::Objects;
pub use range::{ObjectRange, Present, SlotFilter, Walk};
pub(crate) use references::{GivenUp, References};
pub(crate) use scan::{Scan, Step};
pub use weak::WeakRef;

use crate::error::OutOfMemory;
use crate::machine::Machine;
use crate::object::backing::Backing;
use crate::object::index::{Index, IndexNode, Nodes};
use crate::paging::pager::Pager;
use crate::phys::boot::BootMemory;
use crate::phys::page::{Page, State};
use crate::phys::slab::Slab;
use crate::tlb::flush::{NoTranslation, Obligation, Pass};
use crate::types::PAGE_SIZE;
use core::alloc::Layout;
use core::fmt;
use core::ops::{ControlFlow, Deref};
use core::ptr::{self, NonNull};
use quire_sync::Quota;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence_full};
use quire_sync::epoch::{Pinned, Retired};

/// The slabs of objects, backings and index nodes.
pub struct ObjectMemory<M: Machine> {
    pub(crate) objects: Slab<Object<M>>,
    pub(crate) backings: Slab<Backing<M>>,
    pub(crate) shards: Slab<MoreShards<M>>,
    pub(crate) own_shards: Slab<OwnShards<M>>,
    nodes: Slab<IndexNode<&'static Objects<M>>>,
    /// The last id that was given to an object.
    last_id: AtomicU64,
}

impl<M: Machine> ObjectMemory<M> {
    pub(crate) fn new(boot: &mut BootMemory<'_, impl Machine>) -> Self {
        let burst = boot.burst;
        ObjectMemory {
            objects: Slab::new("object", boot).deferred(burst),
            backings: Slab::new("backing", boot).deferred(burst),
            shards: Slab::new("backing-shards", boot),
            own_shards: Slab::new("own-backing-shards", boot),
            nodes: Slab::new("index-node", boot).deferred(burst),
            last_id: AtomicU64::new(0),
        }
    }

    /// Bytes of slab memory that one index node costs.
    pub(crate) fn node_share(&self) -> u64 {
        self.nodes.cache().share()
    }

    /// The slabs, for labels and counts.
    pub fn caches(&self) -> [&crate::phys::slab::Cache; 5] {
        let shards = [self.shards.cache(), self.own_shards.cache()];
        [self.objects.cache(), self.backings.cache(), shards[0], shards[1], self.nodes.cache()]
    }
}

// SAFETY: the objects of the slab have the layout of a node.
unsafe impl<M: Machine> Nodes for &'static Objects<M> {
    fn allocate(self) -> Result<NonNull<IndexNode<Self>>, OutOfMemory> {
        Ok(self.object_memory().nodes.cache().alloc(self)?.cast())
    }
    unsafe fn release(self, node: NonNull<IndexNode<Self>>) {
        // SAFETY: by the trait's contract, the node came from `allocate` and is not used any more. The index has
        // dropped its content.
        unsafe { self.object_memory().nodes.cache().free(self, node.cast()) }
    }
    unsafe fn retire(self, node: *mut Retired, free: unsafe fn(*mut Retired)) {
        // SAFETY: the caller of `Nodes::retire` guarantees that no new reader can reach `node` and that it is retired
        // once. Readers of the index pin this epoch.
        unsafe { self.epoch().retire(node, free) }
    }
}

/// The object is being torn down. A thread that inserts a page from now on removes it again.
const DEAD: u32 = 1;
/// Anonymous memory, reachable through backings only.
const PRIVATE: u32 = 2;
/// The object shows physical addresses of a device, and has neither pages nor a pager.
const DEVICE: u32 = 4;
/// Private mappings may map the shared frame of zeroes for holes of the object.
pub(crate) const HOLES_SHOWN: u32 = 8;
/// The object's pager has content of pages that are not resident. This is a flag of the object, because a fault may
/// read it after the pager is released.
const ELSEWHERE: u32 = 16;
/// The object's pager counts the mappings that may store into it.
const STORES_COUNTED: u32 = 32;
/// The object's pager counts all mappings.
const MAPPINGS_COUNTED: u32 = 64;
/// The object's pages stay resident.
const KEPT_RESIDENT: u32 = 128;

/// Stores through shared mappings are timed, for the file's modification time.
const STORES_TIMED: u32 = 256;
/// At least one store through a shared mapping has been timed.
const STORED: u32 = 512;
/// The pager lies in memory of the heap, and is dropped with the object.
const OWNS_PAGER: u32 = 1024;

/// A file or anonymous memory, with an index of its pages. The module explains its lifetime.
#[repr(C, align(64))]
pub struct Object<M: Machine> {
    /// Must be the first field, because the epoch's free function casts the header to the object.
    retired: Retired,
    index: Index<&'static Objects<M>>,
    /// 0 until the method `id` assigns a number at its first call.
    id: AtomicU64,
    pub(crate) flags: AtomicU32,
    write_errors: WriteErrors,
    vm: &'static Objects<M>,
    pager: Option<NonNull<dyn Pager>>,
    // The first cache line ends here. Faults read its fields. They are written only when the index grows, and when the
    // object is made or torn down.
    shards: Shards<M>,
    /// The count of handles and of non-empty shards; see [`References`].
    refs: References,
    // The second cache line ends here. The operations mmap, fork and exit write its fields.
    own: Own,
    /// Bytes, or `u64::MAX` for private memory, which has no end. The field is not on the first line, because each
    /// append to a file writes it.
    pub(crate) size: AtomicU64,
    /// The quota that the object's pages are charged to, or `None`. Fixed.
    quota: Option<&'static Quota>,
    /// The object's place on the list of a reaper of pages.
    reaping: reap_list::ReapPlace<M>,
}

#[cfg(test)]
quire_sync::assert_layout!(Object<crate::testing::TestMachine> {
    size: 192, align: 64,
    retired: 0, index: 16, id: 24, flags: 32, write_errors: 36, vm: 40, pager: 48, shards: 64, refs: 120, own: 128,
    size: 144, quota: 152,
});

// SAFETY: the pager is `Send + Sync` and outlives the object (`Pager::released`). The other fields are atomics and
// locks.
unsafe impl<M: Machine> Send for Object<M> {}
// SAFETY: shared references change only atomics, and lists under their locks. The pager is `Sync`, and all other fields
// are fixed.
unsafe impl<M: Machine> Sync for Object<M> {}

impl<M: Machine> Object<M> {
    fn build(vm: &'static Objects<M>, size: u64, flags: u32, pager: Option<NonNull<dyn Pager>>) -> Object<M> {
        Object {
            retired: Retired::new(),
            index: Index::new(),
            size: AtomicU64::new(size),
            flags: AtomicU32::new(flags),
            refs: References::one(),
            vm,
            shards: Shards::new(ptr::null_mut()),
            pager,
            own: Own::new(),
            quota: None,
            id: AtomicU64::new(0),
            write_errors: WriteErrors::new(),
            reaping: reap_list::ReapPlace::new(),
        }
    }

    /// Makes the object of private memory that `only` shows. `only` is in no mapping list yet, and its links are
    /// unused. Two CPUs may make an object for the same backing at once. The CPU that fails to set its object discards
    /// it.
    pub(crate) fn private(
        vm: &'static Objects<M>,
        only: NonNull<Backing<M>>,
    ) -> Result<NonNull<Object<M>>, OutOfMemory> {
        let mut o = Object::build(vm, u64::MAX, PRIVATE, None);
        o.shards = Shards::new(only.as_ptr());
        vm.object_memory().objects.alloc(vm, o)
    }

    /// Frees an object that no other thread has reached.
    ///
    /// # Safety
    /// The object came from its system's slab. The caller alone can reach it: it has no handle, no backing and no
    /// reader. It is discarded once.
    pub(crate) unsafe fn discard(this: NonNull<Object<M>>) {
        // SAFETY: by this function's contract.
        unsafe {
            let vm = this.as_ref().vm;
            vm.object_memory().objects.free(vm, this);
        }
    }

    /// Whether the object belongs to this system.
    pub fn is_of(&self, vm: &Objects<M>) -> bool {
        ptr::eq(self.vm, vm)
    }
    /// The system that the object belongs to.
    #[inline(always)]
    pub fn vm(&self) -> &'static Objects<M> {
        self.vm
    }
    /// The object's page index.
    #[inline(always)]
    pub(crate) fn index(&self) -> &Index<&'static Objects<M>> {
        &self.index
    }
    /// The object's page index, for tests and measurements.
    ///
    /// # Safety
    /// The caller only reads it, under pins of this object's system.
    pub unsafe fn page_index(&self) -> &Index<&'static Objects<M>> {
        &self.index
    }
    /// The first page from `from` on that is in memory or in swap, or `None`.
    pub fn next_page(&self, from: u64) -> Option<u64> {
        let pin = self.vm.epoch().pin();
        self.index.first(from, u64::MAX, &pin).map(|(at, _)| at)
    }
    /// The first page from `from` on that is neither in memory nor in swap.
    pub fn next_hole(&self, from: u64) -> u64 {
        /// The number of pages visited under one pin.
        const STEP: usize = 512;
        let mut at = from;
        loop {
            let pin = self.vm.epoch().pin();
            for _ in 0..STEP {
                match self.index.first(at, u64::MAX, &pin) {
                    Some((found, _)) if found == at => at += 1,
                    _ => return at,
                }
            }
        }
    }
    /// The object's address, in the form that pages store.
    #[inline(always)]
    pub(crate) fn address(&self) -> u64 {
        ptr::from_ref(self).expose_provenance() as u64
    }
    /// Whether the object is anonymous and is reached through backings only.
    #[inline(always)]
    pub(crate) fn is_private(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & PRIVATE != 0
    }
    /// The state bits that mark a page as a page of this kind of object.
    #[inline(always)]
    pub(crate) fn page_bits(&self) -> u64 {
        if self.is_private() { 0 } else { State::SHARED }
    }
    /// Whether the object is being torn down.
    #[inline(always)]
    pub(crate) fn is_dead(&self) -> bool {
        self.flags.load(Ordering::Acquire) & DEAD != 0
    }
    /// The pager, or `None` for memory without one.
    #[inline(always)]
    pub(crate) fn pager(&self) -> Option<&dyn Pager> {
        // SAFETY: the pager lives for ever, or until `release_pager`, which is called only at the teardown of the object.
        self.pager.map(|p| unsafe { &*p.as_ptr() })
    }
    /// Whether a page that is neither resident nor in swap reads as zeroes.
    #[inline(always)]
    pub(crate) fn holes_are_zero(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & ELSEWHERE == 0
    }
    pub(crate) fn shards(&self) -> &Shards<M> {
        &self.shards
    }
    pub(crate) fn reaping(&self) -> &reap_list::ReapPlace<M> {
        &self.reaping
    }

    /// The size in bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }
    /// The page number one past the last page.
    #[inline(always)]
    pub(crate) fn end(&self) -> u64 {
        self.size.load(Ordering::Acquire).div_ceil(PAGE_SIZE)
    }

    /// Whether exactly one backing shows the object, and no handle holds it. If that backing is the caller's, the
    /// answer stays true until the caller's own map changes, because no other thread can reach the object.
    #[inline(always)]
    pub(crate) fn is_exclusive(&self) -> bool {
        self.is_private() && self.shards.is_single()
    }

    /// Whether [`is_exclusive`](Self::is_exclusive) holds and the object has no page outside the range of its one
    /// backing. A backing's range may grow only if this is true. Pages outside the range can remain while another CPU
    /// unlinks a backing and frees the pages that only that backing showed.
    pub(crate) fn is_alone(&self) -> bool {
        // `unlink` takes a reference before the count of backings falls, and drops it after the pages are freed. So
        // this function reads in the reverse order: first the number of backings, then the references.
        self.is_exclusive() && self.refs.count() == 1
    }

    /// The number of resident pages: the sum over the index's nodes.
    pub fn resident(&self) -> u64 {
        let pin = self.vm.epoch().pin();
        self.index.count(0..crate::object::index::KEYS, &pin)
    }

    /// A number that is unique in this system for all time. The first call assigns it.
    pub(crate) fn id(&self) -> u64 {
        let id = self.id.load(Ordering::Acquire);
        if id != 0 {
            return id;
        }
        let fresh = self.vm.object_memory().last_id.fetch_add(1, Ordering::Relaxed) + 1;
        match self.id.compare_exchange(0, fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => fresh,
            Err(there) => there,
        }
    }

    /// The object's failed writes, including writes in the background.
    pub fn write_errors(&self) -> &WriteErrors {
        &self.write_errors
    }

    /// Device and inode number for tools. They come from the pager, and are zeroes without a pager.
    pub(crate) fn ident(&self) -> (u64, u64) {
        self.pager().map_or((0, 0), |p| p.ident())
    }

    /// Writes the object's name for tools. Writes nothing for anonymous memory.
    pub(crate) fn name(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        self.pager().map_or(Ok(()), |p| p.name(to))
    }

    /// Links backing `b`, which shows the object, into the shard that `b` names. The caller keeps the object alive
    /// during the call.
    pub(crate) fn link(&self, b: NonNull<Backing<M>>) {
        // SAFETY: the caller made `b` and has not linked it yet. A backing is retired only after it was unlinked.
        self.note_mapping(unsafe { b.as_ref() }, true);
        self.shards.insert(self.vm, b, &self.refs);
    }

    /// Reports that a backing was linked (`came`) or is about to be unlinked, if the pager counts mappings or storing
    /// mappings.
    #[inline]
    fn note_mapping(&self, b: &Backing<M>, came: bool) {
        let counted = self.flags.load(Ordering::Relaxed);
        if b.stores() && counted & STORES_COUNTED != 0 {
            without_unwinding(|| self.pager().inspect(|pager| pager.stores_noted(came)));
        }
        if counted & MAPPINGS_COUNTED != 0 {
            without_unwinding(|| self.pager().inspect(|pager| pager.mapping_noted(came)));
        }
    }

    /// Whether the object's resident pages stay resident ([`ObjectRef::keep_resident`]).
    pub(crate) fn is_kept_resident(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & KEPT_RESIDENT != 0
    }

    /// Chooses the shard for a new backing, and returns its number.
    pub(crate) fn choose_shard(&self) -> u16 {
        self.shards.choose(self.vm)
    }

    /// Unlinks backing `b`, whose PTEs are flushed. This may tear the object down.
    ///
    /// # Safety
    /// `b` is linked into this object, and the caller does not use the object through it any more.
    pub(crate) unsafe fn unlink(
        vm: &'static Objects<M>,
        this: NonNull<Object<M>>,
        b: NonNull<Backing<M>>,
        proof: &impl NoTranslation,
    ) {
        // SAFETY: the backing keeps the object until it is unlinked. If `remove` empties a shard that all CPUs use,
        // this shard's reference keeps the object until `unref`. After a `remove` from a CPU's own shard, the object
        // may be freed, and is not used any more.
        let object = unsafe { this.as_ref() };
        let keys = {
            // SAFETY: `b` is linked, by this function's contract, and a backing is retired only after it was unlinked.
            let b = unsafe { b.as_ref() };
            debug_assert!(proof.is_about::<M>(b.pmap()), "another space was flushed");
            let start = b.offset();
            start..start + (b.range().bytes() / PAGE_SIZE)
        };
        // A private object may be freed as soon as this or another CPU unlinks its last backing. An extra reference
        // keeps it for `trim` below, which frees pages of the object.
        let keeps = object.is_private() && !object.is_exclusive();
        if keeps {
            object.refs.add();
        }
        // Shrinks the list now, while `b` still keeps the object.
        // SAFETY: `b` leaves its list only in the `remove` below, and its memory lives until the caller retires it.
        if object.shards.is_too_wide(unsafe { b.as_ref() }) {
            object.shards.shrink(&object.refs);
        }
        // SAFETY: `b` is linked until the `remove` below, so `b` and the object that it keeps are alive.
        object.note_mapping(unsafe { b.as_ref() }, false);
        // SAFETY: by this function's contract.
        let emptied = unsafe { object.shards.remove(b) };
        if keeps {
            removal::trim(object, keys);
            // The remaining backings may hide pages that only `b` showed. The reaper looks for them.
            vm.reaper().flag(object);
        }
        for _ in 0..emptied as u32 + keeps as u32 {
            // SAFETY: each of these references belongs to a counted shard that is empty now, or was taken above.
            unsafe { Object::unref(vm, this) };
        }
    }

    /// Calls `visit` with every backing that shows a page of `start..end`, until one breaks; see [`Shards::search`]. The
    /// caller keeps the object alive by a reference, a backing or a busy page.
    pub(crate) fn search<T>(
        &self,
        start: u64,
        end: u64,
        visit: impl FnMut(&Backing<M>) -> ControlFlow<T>,
    ) -> Option<T> {
        self.shards.search(start, end, &self.refs, visit)
    }

    /// Visits backings as [`search`](Self::search) does, and flushes what `part` owes; see [`Shards::scan_flushing`].
    pub(crate) fn scan_flushing(
        &self,
        start: u64,
        end: u64,
        passed: &mut Pass,
        part: impl for<'b> FnMut(&'b Backing<M>, u64, &mut Obligation<'b, M>) -> Option<u64>,
    ) {
        self.shards.scan_flushing(start, end, &self.refs, passed, part);
    }

    /// Notes that a scan of all backings is over. If the list is short and scanned often, closes its extra shards. The
    /// caller keeps the object alive.
    pub(crate) fn scanned(&self) {
        if self.shards.scanned() {
            self.shards.shrink(&self.refs);
        }
    }

    /// Takes a reference that keeps the object during a sleep. Returns false if the object is being torn down. The
    /// caller is pinned.
    pub(crate) fn try_ref(&self, _pin: &Pinned<'_>) -> bool {
        self.refs.try_add()
    }

    /// Drops one reference; the last one tears the object down.
    ///
    /// # Safety
    /// The caller has a reference, and does not use the object through it any more.
    pub(crate) unsafe fn unref(vm: &'static Objects<M>, this: NonNull<Object<M>>) {
        // SAFETY: by this function's contract the caller has a reference, which is dropped only below.
        let object = unsafe { this.as_ref() };
        loop {
            match object.refs.give_up() {
                GivenUp::Kept => return,
                GivenUp::Last => break,
                GivenUp::OnlyOwn => object.shards.shrink(&object.refs),
            }
        }
        // A thread that panicked may have left a page of the object busy for ever. The teardown would wait for that
        // page.
        if quire_sync::hooks::is_panicking() {
            return;
        }
        object.flags.fetch_or(DEAD, Ordering::AcqRel);
        // An inserter fills the slot with a busy page, fences, then reads `DEAD`. The teardown sets `DEAD`, fences,
        // then reads the slots. So one of the two sees the other's write.
        fence_full();
        vm.reaper().forget(object);
        removal::free_all(object);
        let pin = vm.epoch().pin();
        object.index.dismantle(&pin);
        drop(pin);
        object.release_pager();
        object.shards.free(vm);
        unsafe fn free<M: Machine>(retired: *mut Retired) {
            // SAFETY: the header is the first field of the object, and no reader is left.
            unsafe { Object::discard(NonNull::new_unchecked(retired.cast::<Object<M>>())) }
        }
        // SAFETY: no handle and no backing leads to the object any more. Faults that found the object before are
        // pinned, and `object_of` rejects a page that such a fault still makes.
        unsafe { vm.epoch().retire(this.as_ptr().cast(), free::<M>) };
    }
}

impl<M: Machine> Object<M> {
    /// Ends the use of the pager, and drops it if the object owns it. Called once, by the thread that tears the object
    /// down.
    fn release_pager(&self) {
        let (Some(pager), Some(place)) = (self.pager(), self.pager) else { return };
        self.forget_dirty();
        pager.released();
        if self.flags.load(Ordering::Relaxed) & OWNS_PAGER != 0 {
            let layout = Layout::for_value(pager);
            // SAFETY: `owning` put the pager into memory of this system's heap, with this layout. Handles, mappings,
            // requests and waiting threads count as references of the object, and none is left.
            unsafe {
                place.drop_in_place();
                self.vm.heap().free(self.vm, place.cast(), layout);
            }
        }
    }
}

/// Calls `f`, a pager's method, in the middle of a change. A panic of `f` aborts the process, because unwinding would
/// leave the change half done.
fn without_unwinding<R>(f: impl FnOnce() -> R) -> R {
    struct Abort;
    impl Drop for Abort {
        fn drop(&mut self) {
            // This is reached only by unwinding, and a panic during that aborts.
            panic!("a pager panicked under locks of the map");
        }
    }
    let abort = Abort;
    let result = f();
    core::mem::forget(abort);
    result
}

impl<M: Machine> Objects<M> {
    /// The object that `page` belongs to now. The object is not freed under `pin`, even if the page leaves it. Returns
    /// `None` if the page has no identity or is busy. A fault may still be inserting a busy page, and the object of
    /// such a page may have been retired before this pin.
    pub(crate) fn object_of<'p>(&self, page: &Page, pin: &'p Pinned<'_>) -> Option<&'p Object<M>> {
        let state = page.state();
        let object = page.object();
        // The page had one identity at both reads, and was not busy at the first. So its maker had inserted it
        // completely before the object was read.
        let let_go = state.0 & (State::IDENTITY | State::BUSY) == State::IDENTITY;
        let stays = let_go && page.state().generation() == state.generation();
        // SAFETY: both reads saw one generation, and the first saw an identity and no busy bit. So the page named
        // `object` under the pin, after its maker had released busy.
        if stays { unsafe { self.object_at(object, pin) } } else { None }
    }

    /// Returns the object of `page` like [`Objects::object_of`](crate::object::Objects::object_of), but also for a busy
    /// page.
    ///
    /// # Safety
    /// The caller has held the page since its maker released busy. So the page still has that identity, or none.
    pub(crate) unsafe fn object_of_held<'p>(&self, page: &Page, pin: &'p Pinned<'_>) -> Option<&'p Object<M>> {
        // SAFETY: by this function's contract.
        unsafe { self.object_at(page.object(), pin) }
    }

    /// # Safety
    /// `object` is 0, or the address that a page's descriptor had under the pin, after the maker of the page had
    /// released busy.
    unsafe fn object_at<'p>(&self, object: u64, _pin: &'p Pinned<'_>) -> Option<&'p Object<M>> {
        // SAFETY: an object is retired only after all its pages that were ever not busy have lost their identities. So
        // an object that such a page named under the pin is not freed under the pin.
        unsafe { core::ptr::with_exposed_provenance::<Object<M>>(object as usize).as_ref() }
    }
}

/// A counted handle on the object of a file or of shared memory. Dropping the last handle may sleep. Mappings and
/// requests keep the object without handles, and pageout keeps it for moments. The last of them tears it down:
/// [`Vm::settle`](crate::reclaim::Reclaimer::settle) waits for that.
pub struct ObjectRef<M: Machine> {
    object: NonNull<Object<M>>,
}

// SAFETY: `Object` is `Send` and `Sync`, and a handle's reference can be dropped on any CPU.
unsafe impl<M: Machine> Send for ObjectRef<M> {}
// SAFETY: `&ObjectRef` gives `&Object`, which is `Sync`, and clones, which count atomically.
unsafe impl<M: Machine> Sync for ObjectRef<M> {}

impl<M: Machine> ObjectRef<M> {
    /// Makes shared anonymous memory of `pages` pages.
    pub fn anonymous(vm: &'static Objects<M>, pages: u64) -> Result<Self, OutOfMemory> {
        let size = pages.checked_mul(PAGE_SIZE).ok_or(OutOfMemory)?;
        Ok(ObjectRef { object: vm.object_memory().objects.alloc(vm, Object::build(vm, size, 0, None))? })
    }

    /// Makes the object of a file of `bytes` bytes, with the content of `pager`. The pager is used until its
    /// [`Pager::released`] is called.
    pub fn with_pager(vm: &'static Objects<M>, pager: &'static dyn Pager, bytes: u64) -> Result<Self, OutOfMemory> {
        Self::charged(vm, pager, bytes, None)
    }

    /// Makes the object of a file like [`with_pager`](Self::with_pager), with a `quota` for a file [in
    /// memory](Pager::in_memory). Its pages, resident or in swap, are charged to the quota. Where the quota is full,
    /// writes and faults that would fill a hole are refused.
    pub fn charged(
        vm: &'static Objects<M>,
        pager: &'static dyn Pager,
        bytes: u64,
        quota: Option<&'static Quota>,
    ) -> Result<Self, OutOfMemory> {
        Self::paged(vm, NonNull::from(pager), bytes, quota, 0)
    }

    /// Makes the object of a file like [`with_pager`](Self::with_pager), which owns its pager. The pager is dropped after
    /// [`Pager::released`]: when no handle, no mapping and no request of the object is left. Objects that share a store
    /// each own a pager with a counted handle of it, and with one number ([`Pager::share`]).
    pub fn owning<P: Pager + 'static>(
        vm: &'static Objects<M>,
        pager: P,
        bytes: u64,
        quota: Option<&'static Quota>,
    ) -> Result<Self, OutOfMemory> {
        let layout = Layout::new::<P>();
        // SAFETY: the heap is this system's.
        let place = unsafe { vm.heap().alloc(vm, layout) }?.cast::<P>();
        // SAFETY: the memory has the layout of the pager, and no other user.
        unsafe { place.write(pager) };
        Self::paged(vm, place, bytes, quota, OWNS_PAGER).inspect_err(|_| {
            // SAFETY: no object was made, so nothing else leads to the pager.
            unsafe {
                place.drop_in_place();
                vm.heap().free(vm, place.cast(), layout);
            }
        })
    }

    /// Makes an object with the pager at `place`, which lives until [`Object::release_pager`].
    fn paged(
        vm: &'static Objects<M>,
        place: NonNull<dyn Pager>,
        bytes: u64,
        quota: Option<&'static Quota>,
        mut flags: u32,
    ) -> Result<Self, OutOfMemory> {
        // SAFETY: the callers pass a pager that lives at least as long as the object.
        let pager = unsafe { place.as_ref() };
        if !pager.in_memory() {
            vm.io().note_freeable();
            flags |= ELSEWHERE;
        }
        if pager.counts_stores() {
            flags |= STORES_COUNTED;
        }
        if pager.counts_mappings() {
            flags |= MAPPINGS_COUNTED;
        }
        if pager.times_stores() {
            flags |= STORES_TIMED;
        }
        let mut object = Object::build(vm, bytes, flags, Some(place));
        object.quota = quota.filter(|_| pager.in_memory());
        Ok(ObjectRef { object: vm.object_memory().objects.alloc(vm, object)? })
    }

    /// If `keep`, the object's resident pages stay resident from now on. Pages in swap stay there until they are used.
    pub fn keep_resident(&self, keep: bool) {
        if keep {
            self.flags.fetch_or(KEPT_RESIDENT, Ordering::AcqRel);
        } else {
            self.flags.fetch_and(!KEPT_RESIDENT, Ordering::AcqRel);
        }
    }

    /// A handle on an object that a backing shows. Returns `None` for private memory, which has no handles, and for an
    /// object that is being torn down.
    pub(crate) fn of(object: &Object<M>, pin: &Pinned<'_>) -> Option<Self> {
        (!object.is_private() && object.try_ref(pin)).then(|| ObjectRef { object: NonNull::from(object) })
    }
}

impl<M: Machine> Clone for ObjectRef<M> {
    fn clone(&self) -> Self {
        self.refs.add();
        ObjectRef { object: self.object }
    }
}

impl<M: Machine> Drop for ObjectRef<M> {
    fn drop(&mut self) {
        let vm = self.vm;
        // SAFETY: the handle has one reference, and is not used after this.
        unsafe { Object::unref(vm, self.object) }
    }
}

impl<M: Machine> Deref for ObjectRef<M> {
    type Target = Object<M>;
    fn deref(&self) -> &Object<M> {
        // SAFETY: the handle is counted in `refs`, and an object is retired only after that count has reached zero.
        unsafe { self.object.as_ref() }
    }
}

impl<M: Machine> PartialEq for ObjectRef<M> {
    fn eq(&self, other: &Self) -> bool {
        self.object == other.object
    }
}

impl<M: Machine> fmt::Debug for ObjectRef<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Object({:#x}, {} bytes)", self.object().address(), self.size())
    }
}

impl<M: Machine> ObjectRef<M> {
    fn object(&self) -> &Object<M> {
        self
    }
}
