//! Backings: one for each mmap operation and address space. They are the only reverse map.
//!
//! A backing states that a range of an address space shows an object, beginning with a given page. It also names the
//! backing *behind* it, in which a fault searches for pages that this object lacks (copy-on-write). A *chain* is a
//! backing with all backings behind it, and belongs to one entry of one map. Clip, fork and protect make new chains of
//! new backings. They link each new backing into the shard of the mapping list that has the old backing, and never copy
//! a list of pages.
//!
//! # Rules
//! - A backing is linked into its object's mapping list before an entry shows it. It is unlinked only after the entry
//!   is stale, its PTEs are cleared and the flush is done (`dispose` requires the proof). While it is linked, it
//!   keeps the object alive.
//! - The unlinking ends only when no pass of the reverse map flushes the backing's space any more (`passes`). Passes
//!   flush without the lock of the shard. So the page tables of a space stay until such a flush is done.
//! - A private front is created *untouched*, which means without an object. When it needs its first page, the faulting
//!   thread makes an object and sets it by compare-and-swap. `Backing::close` forbids later first touches, so a
//!   writer that replaces the chain knows which objects it must carry over.
//! - The range, the offset and the space of a backing never change. `behind` changes only under the map's lock, when an
//!   empty layer is taken out of the chain ([`crate::cow::collapse`]).
//! - The epoch frees a backing's memory, because faults walk chains under a pin.

use crate::error::OutOfMemory;
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::object::Objects;
use crate::object::interval::{Age, Interval, Links};
use crate::object::{Object, ObjectRef};
use crate::tlb::flush::NoTranslation;
use crate::types::{PAGE_SHIFT, VirtRange};
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU64, Ordering};
use quire_sync::epoch::{Pile, Pinned, Retired};
use quire_sync::hooks::relax;
use quire_sync::rank::assert_may_await_cpus;
use quire_sync::{Shared, record};

/// The value of `Backing::progress` in a front (the first backing of a chain) that is not being copied up.
pub(crate) const IDLE: u64 = u64::MAX;

/// A range of an address space that shows an object; see the module's comment.
#[repr(C, align(64))]
pub struct Backing<M: Machine> {
    /// Must be the first field, because the epoch's free function casts the header to the backing.
    head: Head,
    /// Null in an untouched front (a first backing without an object yet). [`closed`] in a front that stays untouched
    /// for ever.
    object: AtomicPtr<Object<M>>,
    /// The backing that a fault searches next, if this one lacks the page, or null. Written under the map's lock.
    behind: AtomicPtr<Backing<M>>,
    range: VirtRange,
    /// The object's page that the first page of the range shows.
    offset: u64,
    // The first cache line ends here. It has all fields that a fault reads.
    vm: &'static Objects<M>,
    pmap: NonNull<M::Pmap>,
    /// The layer in front of this one, or null. Written under the map's lock, read under a pin.
    in_front: AtomicPtr<Backing<M>>,
    /// In a front (the first backing of a chain): how far the chain is copied up ([`crate::fault::copy_up`]), or
    /// `IDLE`.
    progress: AtomicU64,
    /// In a front (the first backing of a chain): the number of backings in the chain, the front included. 255 means
    /// 255 or more. Written under the map's lock.
    layers: AtomicU8,
    /// How often a page of this layer was copied up at most ([`crate::fault::copy_up`]). 255 means 255 or more. Written
    /// under the map's lock.
    merges: AtomicU8,
    /// The number of the backing's shard in the object's mapping list. Written before the backing is linked.
    shard: AtomicU16,
    /// The pages of the range stay resident (wired). Written under the map's lock.
    wired: AtomicBool,
    /// The map entry is shared, and stores may be allowed through it now or later. Fixed before the backing is linked.
    stores: bool,
    /// The number of passes that flush the backing's space now, without the lock of the shard. A pass raises it under
    /// that lock.
    passes: AtomicU16,
    /// Guarded by the lock of the shard.
    links: Shared<Links<Backing<M>>>,
}

/// The first bytes of a backing. They hold its age while it is in a list, and the epoch's header once it is retired.
#[repr(C)]
union Head {
    /// Written only by the epoch, after the backing has left its list.
    _retired: ManuallyDrop<Retired>,
    /// Guarded by the lock of the shard, as `Backing::links` is.
    age: ManuallyDrop<Shared<Age>>,
}

impl Head {
    fn new() -> Head {
        Head { age: ManuallyDrop::new(Shared::new(Age::new())) }
    }
}

#[cfg(test)]
quire_sync::assert_layout!(Backing<crate::testing::TestMachine> {
    size: 128, align: 64,
    head: 0, object: 16, behind: 24, range: 32, offset: 48, vm: 56, pmap: 64,
});

// SAFETY: the lock of the object's shard guards `links`. The pmap outlives the backing, by the rules of this module.
unsafe impl<M: Machine> Send for Backing<M> {}
// SAFETY: shared references change only atomics. `links` is reached under the lock of the backing's shard, and all
// other fields are fixed.
unsafe impl<M: Machine> Sync for Backing<M> {}

// SAFETY: the interval consists of fields that never change, and ranges are not empty.
unsafe impl<M: Machine> Interval for Backing<M> {
    fn links(&self) -> &Shared<Links<Self>> {
        &self.links
    }
    fn age(&self) -> &Shared<Age> {
        // SAFETY: `new` wrote an age, and the epoch writes its header only after the backing has left its list. Ages
        // are plain numbers, so the bytes are a valid value even then.
        unsafe { &self.head.age }
    }
    fn start(&self) -> u64 {
        self.offset()
    }
    fn end(&self) -> u64 {
        self.offset + (self.range().bytes() >> PAGE_SHIFT)
    }
}

/// The object pointer of a front (a first backing) that never gets an object: an address that no object has.
fn closed<M: Machine>() -> *mut Object<M> {
    ptr::without_provenance_mut(1)
}

impl<M: Machine> Backing<M> {
    fn new(
        vm: &'static Objects<M>,
        pmap: NonNull<M::Pmap>,
        range: VirtRange,
        offset: u64,
        behind: *mut Backing<M>,
    ) -> Backing<M> {
        debug_assert!(!range.is_empty());
        debug_assert!(size_of::<Backing<M>>() <= 128 || cfg!(any(loom, shuttle)), "two lines");
        Backing {
            head: Head::new(),
            object: AtomicPtr::new(ptr::null_mut()),
            behind: AtomicPtr::new(behind),
            range,
            offset,
            vm,
            pmap,
            in_front: AtomicPtr::new(ptr::null_mut()),
            layers: AtomicU8::new(1),
            merges: AtomicU8::new(0),
            progress: AtomicU64::new(IDLE),
            shard: AtomicU16::new(0),
            wired: AtomicBool::new(false),
            stores: false,
            passes: AtomicU16::new(0),
            links: Shared::new(Links::new(offset + (range.bytes() >> PAGE_SHIFT))),
        }
    }

    /// The addresses at which the range shows the object.
    #[inline(always)]
    pub(crate) fn range(&self) -> VirtRange {
        record::read(&self.range);
        self.range
    }
    /// The object's page that the first page of the range shows.
    #[inline(always)]
    pub(crate) fn offset(&self) -> u64 {
        record::read(&self.offset);
        self.offset
    }
    /// The object's page that address `va` shows. `va` lies in the range.
    #[inline(always)]
    pub fn key(&self, va: u64) -> u64 {
        debug_assert!(self.range.contains(va));
        self.offset() + ((va - self.range.start) >> PAGE_SHIFT)
    }
    /// The address that shows page `key` of the object. The backing shows that page.
    pub(crate) fn va(&self, key: u64) -> u64 {
        self.range().start + ((key - self.offset) << PAGE_SHIFT)
    }
    /// The next layer behind this one.
    #[inline(always)]
    pub(crate) fn behind(&self) -> Option<&Backing<M>> {
        // SAFETY: the layer behind is retired only after this link has changed, or after this layer is retired. So the
        // epoch keeps it for pinned readers of this layer.
        unsafe { self.behind.load(Ordering::Acquire).as_ref() }
    }
    pub(crate) fn behind_ptr(&self) -> *mut Backing<M> {
        self.behind.load(Ordering::Acquire)
    }
    fn set_behind(&self, behind: *mut Backing<M>) {
        self.behind.store(behind, Ordering::Release);
    }
    /// The backing in front of this one, which a fault searches before this one. Its memory outlives the pin, because
    /// the link to a layer is cleared before that layer is retired.
    pub(crate) fn in_front<'p>(&self, _pin: &'p Pinned<'_>) -> Option<&'p Backing<M>> {
        // SAFETY: a layer is retired only after `take_out` or `dispose_onto` has cleared this link to it. So it
        // outlives the pin.
        unsafe { self.in_front.load(Ordering::Acquire).as_ref() }
    }
    /// The layers in front of this one, nearest first.
    pub(crate) fn all_in_front<'p>(&self, pin: &'p Pinned<'_>) -> impl Iterator<Item = &'p Backing<M>> + use<'p, M> {
        let first: Option<&'p Backing<M>> = self.in_front(pin);
        core::iter::successors(first, |b| b.in_front(pin))
    }
    fn set_in_front(&self, front: *mut Backing<M>) {
        self.in_front.store(front, Ordering::Release);
    }
    /// The object, or `None` if the backing has none yet (is untouched).
    #[inline(always)]
    pub fn object(&self) -> Option<&Object<M>> {
        let object = self.object.load(Ordering::Acquire);
        // SAFETY: a linked backing keeps its object alive, and the epoch frees an object's memory.
        if object == closed() { None } else { unsafe { object.as_ref() } }
    }
    /// The page tables of the space that the range lies in.
    pub(crate) fn pmap(&self) -> &M::Pmap {
        record::read(&self.pmap);
        // SAFETY: a space unlinks its backings before its page tables are freed, and each unlinking waits for the passes
        // that use the backing.
        unsafe { self.pmap.as_ref() }
    }
    /// The system.
    pub(crate) fn vm(&self) -> &'static Objects<M> {
        self.vm
    }
    /// In a front (the first backing of a chain): the number of backings in the chain, at most 255.
    #[inline(always)]
    pub(crate) fn layers(&self) -> usize {
        self.layers.load(Ordering::Relaxed).into()
    }
    pub(crate) fn progress(&self) -> &AtomicU64 {
        &self.progress
    }
    /// How often a page of this layer was copied up at most (255 means 255 or more). Copy-up chooses layers by it.
    pub(crate) fn merges(&self) -> u8 {
        self.merges.load(Ordering::Relaxed)
    }
    pub(crate) fn set_merges(&self, merges: u8) {
        self.merges.store(merges, Ordering::Relaxed);
    }
    pub(crate) fn shard(&self) -> u16 {
        self.shard.load(Ordering::Relaxed)
    }
    pub(crate) fn set_shard(&self, shard: u16) {
        self.shard.store(shard, Ordering::Relaxed);
    }
    /// Whether the pages of the range stay resident ([`crate::map::Wire`]).
    pub(crate) fn is_wired(&self) -> bool {
        self.wired.load(Ordering::Acquire)
    }
    pub(crate) fn set_wired(&self, wired: bool) {
        if self.wired.load(Ordering::Relaxed) != wired {
            self.wired.store(wired, Ordering::Release);
        }
    }
    /// Whether the backing belongs to a shared mapping that may store into the object, now or after a change of its
    /// protection.
    #[inline(always)]
    pub(crate) fn stores(&self) -> bool {
        self.stores
    }
    /// The layer's object, and the page of that object that `va` shows. `None` if the layer does not reach `va`, or has
    /// no object yet.
    #[inline(always)]
    pub(crate) fn layer(&self, va: u64) -> Option<(&Object<M>, u64)> {
        if !self.range().contains(va) {
            return None;
        }
        self.object().map(|o| (o, self.key(va)))
    }

    /// Whether the file at the end of the chain ends before `va`. If it does, copies that were made while the file was
    /// longer cannot be reached either (as on Linux).
    pub(crate) fn is_cut_off(&self, va: u64) -> bool {
        let file = core::iter::successors(Some(self), |b| b.behind()).last();
        file.and_then(|b| b.layer(va)).is_some_and(|(o, key)| !o.is_private() && key >= o.end())
    }

    /// Returns the object of a private front (the first backing of a chain), and makes it first if there is none yet.
    /// `None` means that a map change has closed the front, so its entry is stale.
    pub(crate) fn touch(&self, _pin: &Pinned<'_>) -> Result<Option<&Object<M>>, OutOfMemory> {
        let now = self.object.load(Ordering::Acquire);
        if !now.is_null() {
            return Ok(self.object());
        }
        let fresh = Object::private(self.vm, NonNull::from(self))?;
        match self.object.compare_exchange(ptr::null_mut(), fresh.as_ptr(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {}
            // SAFETY: the exchange failed, so only this call has the address of `fresh`.
            Err(_) => unsafe { Object::discard(fresh) },
        }
        Ok(self.object())
    }

    /// Closes the front (the first backing of a chain): if it has no object yet, a first touch can no longer give it
    /// one. Returns the object that it has, if any.
    pub(crate) fn close(&self) -> Option<&Object<M>> {
        // If the front has an object, there is nothing to store. So a fork does not take this cache line from threads
        // that fault in the front.
        if self.object.load(Ordering::Acquire).is_null() {
            let _lost = self.object.compare_exchange(ptr::null_mut(), closed(), Ordering::AcqRel, Ordering::Acquire);
        }
        self.object()
    }

    /// Keeps the backing's unlinking from ending until [`end_pass`](Self::end_pass). So the page tables of its space
    /// stay.
    ///
    /// # Requires
    /// The caller holds the lock of the shard in which the backing is linked.
    pub(super) fn begin_pass(&self) {
        self.passes.fetch_add(1, Ordering::Relaxed);
    }
    /// Ends what [`begin_pass`](Self::begin_pass) began. The caller does not use the backing after that.
    pub(super) fn end_pass(&self) {
        self.passes.fetch_sub(1, Ordering::Release);
    }
    /// Waits until no pass uses the backing. It was unlinked, so no further pass finds it. Passes end soon, because they
    /// wait only for the answers of CPUs.
    #[inline]
    pub(super) fn await_passes(&self) {
        assert_may_await_cpus();
        while self.passes.load(Ordering::Acquire) != 0 && !mutant(Mutant::UnlinkUnawaited) {
            relax();
        }
    }

    /// Replaces the layer behind by a wrong one, for tests of the checker.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn corrupt_behind(&self, behind: *mut Backing<M>) {
        self.set_behind(behind);
    }
    /// Replaces the layer in front by a wrong one, for tests of the checker.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn corrupt_in_front(&self, front: NonNull<Backing<M>>) {
        self.set_in_front(front.as_ptr());
    }
    /// Makes the backing point to another object than the object whose mapping list it is in, for tests of the checker.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn corrupt_object(&self, other: &Object<M>) {
        self.object.store(ptr::from_ref(other).cast_mut(), Ordering::Release);
    }

    /// Whether the layer's object has neither pages nor marks in the layer's range now.
    pub(crate) fn is_empty(&self, pin: &Pinned<'_>) -> bool {
        match self.object() {
            None => true,
            Some(o) => o.index().first(self.offset, Interval::end(self), pin).is_none(),
        }
    }

    /// Frees the backing's memory once no fault can walk it any more.
    ///
    /// # Safety
    /// The backing is in no mapping list. No chain that new readers can reach contains it, and it is retired once.
    pub(crate) unsafe fn retire(this: NonNull<Backing<M>>) {
        // SAFETY: by this function's contract.
        unsafe {
            let vm = this.as_ref().vm;
            vm.epoch().retire(this.as_ptr().cast(), Self::free);
        }
    }

    /// # Safety
    /// `retired` is the header of a backing that was retired, and no reader is left.
    unsafe fn free(retired: *mut Retired) {
        // SAFETY: the header is the first field of the backing, and no reader is left.
        unsafe {
            let this = NonNull::new_unchecked(retired.cast::<Backing<M>>());
            let vm = this.as_ref().vm;
            vm.object_memory().backings.free(vm, this);
        }
    }
}

/// Memory for backings. A map change reserves this memory in its first phase, which may fail. It uses the memory in its
/// second phase, which must not fail (relies on C3). Dropping the value frees the unused memory.
pub struct SpareBackings<M: Machine> {
    vm: &'static Objects<M>,
    first: *mut FreeBacking,
    len: usize,
}

struct FreeBacking {
    next: *mut FreeBacking,
}

impl<M: Machine> SpareBackings<M> {
    /// An empty reserve.
    pub(crate) fn empty(vm: &'static Objects<M>) -> SpareBackings<M> {
        SpareBackings { vm, first: ptr::null_mut(), len: 0 }
    }

    /// Reserves memory for `n` more backings.
    pub(crate) fn reserve_more(&mut self, n: usize) -> Result<(), OutOfMemory> {
        for _ in 0..n {
            let memory = self.vm.object_memory().backings.cache().alloc(self.vm)?.cast::<FreeBacking>();
            // SAFETY: this is fresh memory, which is larger than the link.
            unsafe { memory.write(FreeBacking { next: self.first }) };
            self.first = memory.as_ptr();
            self.len += 1;
        }
        Ok(())
    }

    /// # Panics
    /// Panics if the map uses more backings than it has reserved, which is a bug.
    fn take(&mut self, value: Backing<M>) -> NonNull<Backing<M>> {
        let at = NonNull::new(self.first).expect("backings are reserved before they are used");
        // SAFETY: `reserve_more` took the memory from the slab of backings, so a backing fits. Until now only this list
        // had it.
        unsafe {
            self.first = at.as_ref().next;
            self.len -= 1;
            let b = at.cast::<Backing<M>>();
            record::wrote(b.as_ptr());
            b.write(value);
            b
        }
    }
}

impl<M: Machine> Drop for SpareBackings<M> {
    fn drop(&mut self) {
        while let Some(at) = NonNull::new(self.first) {
            // SAFETY: the memory came from this slab, holds no backing, and is on this list alone.
            unsafe {
                self.first = at.as_ref().next;
                self.vm.object_memory().backings.cache().free(self.vm, at.cast());
            }
        }
    }
}

/// The number of layers of a chain.
pub(crate) fn depth<M: Machine>(front: &Backing<M>) -> usize {
    1 + core::iter::successors(front.behind(), |b| b.behind()).count()
}

/// Takes a backing from `spare` and makes it a private, untouched front over `range`. `offset` is the object's page
/// that `range` begins with. It is 0, or large enough that the range can grow downward later. `behind` is a chain that
/// the caller owns.
pub(crate) fn private<M: Machine>(
    spare: &mut SpareBackings<M>,
    pmap: &M::Pmap,
    range: VirtRange,
    offset: u64,
    behind: Option<NonNull<Backing<M>>>,
) -> NonNull<Backing<M>> {
    let at = behind.map_or(ptr::null_mut(), |b| b.as_ptr());
    let front = spare.take(Backing::new(spare.vm, NonNull::from(pmap), range, offset, at));
    // SAFETY: `behind` heads a chain that the caller owns, and its layers are retired only when that owner disposes of
    // it.
    behind.inspect(|b| unsafe { b.as_ref() }.set_in_front(front.as_ptr()));
    // SAFETY: `take` has just written a backing there, and no list and no entry has its address yet.
    note_depth(unsafe { front.as_ref() });
    front
}

/// Stores in a front (the first backing of a chain) how many backings the chain has.
///
/// # Requires
/// The map's lock is held, or no other thread can reach the chain yet.
pub(crate) fn note_depth<M: Machine>(front: &Backing<M>) {
    front.layers.store(depth(front).min(u8::MAX.into()) as u8, Ordering::Relaxed);
}

/// Takes `gone`, the layer directly behind `layer`, out of the chain.
///
/// # Requires
/// The caller holds the map's lock, and unlinks and retires `gone` afterwards.
pub(crate) fn take_out<M: Machine>(layer: &Backing<M>, gone: &Backing<M>) {
    let behind = gone.behind_ptr();
    // SAFETY: the layer behind `gone` belongs to the chain, too. The chain changes only under the map's lock, which the
    // caller holds.
    if let Some(b) = unsafe { behind.as_ref() } {
        b.set_in_front(ptr::from_ref(layer).cast_mut());
    }
    layer.set_behind(behind);
}

/// Takes a backing from `spare` and links it as a layer that shows `object` from page `offset` on. `stores`: the entry
/// is shared, and stores may be allowed through it now or later.
pub(crate) fn showing<M: Machine>(
    spare: &mut SpareBackings<M>,
    pmap: &M::Pmap,
    range: VirtRange,
    object: &ObjectRef<M>,
    offset: u64,
    stores: bool,
) -> NonNull<Backing<M>> {
    let new = Backing::new(spare.vm, NonNull::from(pmap), range, offset, ptr::null_mut());
    let b = spare.take(Backing { stores, ..new });
    object.link_new(b);
    b
}

fn show<M: Machine>(b: NonNull<Backing<M>>, object: &Object<M>, shard: u16) {
    // SAFETY: the caller has just made the backing, and no other thread can reach it yet.
    let new = unsafe { b.as_ref() };
    new.object.store(ptr::from_ref(object).cast_mut(), Ordering::Release);
    new.set_shard(shard);
    object.link(b);
}

impl<M: Machine> ObjectRef<M> {
    fn link_new(&self, b: NonNull<Backing<M>>) {
        show(b, self, self.choose_shard());
    }
}

/// Copies the part `range` of `front`'s chain to the addresses from `to` on. The new chain shows at `to` the page that
/// the old chain shows at `range.start`, and so on. Uses at most [`depth`]`(front)` backings of `spare`, and cannot
/// fail. The front of the old chain is closed, because its entry is already stale. The owner of the old chain disposes
/// of it afterwards.
///
/// `range` may reach beyond the old chain, to grow a mapping. The front and a file's backing then grow with it. An
/// anonymous layer behind the front does not grow, so the new pages show nothing of that layer.
///
/// # Safety
/// The caller holds the lock of the map that `front`'s chain belongs to, and `pmap` outlives the new chain.
pub(crate) unsafe fn replicate<M: Machine>(
    spare: &mut SpareBackings<M>,
    front: &Backing<M>,
    range: VirtRange,
    to: u64,
    pmap: &M::Pmap,
) -> NonNull<Backing<M>> {
    front.close();
    // SAFETY: the caller holds the lock of the map that owns the chain, and `pmap` outlives the new chain.
    unsafe { copy_from(spare, front, true, range, to, pmap) }.expect("a chain has a front")
}

/// Copies a chain like [`replicate`], but begins with the layer `from`. `grows`: `from` is the front of the chain,
/// whose copy covers all of `range`, even where `from` does not.
///
/// # Safety
/// The caller holds the lock of the map that `from`'s chain belongs to, and `pmap` outlives the new chain.
unsafe fn copy_from<M: Machine>(
    spare: &mut SpareBackings<M>,
    from: &Backing<M>,
    grows: bool,
    range: VirtRange,
    to: u64,
    pmap: &M::Pmap,
) -> Option<NonNull<Backing<M>>> {
    let mut first: Option<NonNull<Backing<M>>> = None;
    let mut last: Option<NonNull<Backing<M>>> = None;
    let mut at = Some(from);
    while let Some(b) = at {
        at = b.behind();
        let object = b.object();
        let grows = grows && ptr::eq(b, from) || object.is_some_and(|o| !o.is_private());
        let Some(window) = (if grows { Some(range) } else { b.range.intersect(&range) }) else { continue };
        let start = to + (window.start - range.start);
        let shown = VirtRange { start, end: start + window.bytes() };
        // `shift` is negative if the range grows downward. The sum would wrap only below page 0 of the object. This
        // does not happen, because a front that may grow begins with a large offset ([`private`]).
        let shift = (window.start as i64 - b.range.start as i64) >> PAGE_SHIFT;
        let offset = b.offset.wrapping_add_signed(shift);
        let new = Backing::new(spare.vm, NonNull::from(pmap), shown, offset, ptr::null_mut());
        let new = spare.take(Backing { stores: b.stores, ..new });
        // `in_front` is set before the copy is linked into the mapping list. A CPU that finds the copy in the list
        // follows `in_front` to the layers that hide its pages.
        // SAFETY: `take` has just written a backing there, and it is retired only when its chain is disposed of.
        let copy = unsafe { new.as_ref() };
        copy.set_merges(b.merges());
        copy.set_in_front(last.map_or(ptr::null_mut(), NonNull::as_ptr));
        if let Some(o) = object {
            show(new, o, b.shard());
        }
        match last {
            None => first = Some(new),
            // SAFETY: `l` was taken from `spare` in the previous iteration, and no code disposes of a chain that is
            // being built.
            Some(l) => unsafe { l.as_ref() }.set_behind(new.as_ptr()),
        }
        last = Some(new);
    }
    // SAFETY: `f` was taken from `spare` in this call, and no code disposes of a chain that is being built.
    first.inspect(|f| note_depth(unsafe { f.as_ref() }));
    first
}

/// The chains of parent and child after a fork of a private chain.
pub struct Forked<M: Machine> {
    /// The parent's front (first backing). It is the old front if that had no page, and otherwise a new front before
    /// the old one.
    pub parent: NonNull<Backing<M>>,
    /// The child's front (first backing), with its own copies of the other backings behind it.
    pub child: NonNull<Backing<M>>,
}

/// The most backings that [`fork`] needs.
pub(crate) fn fork_needs<M: Machine>(front: &Backing<M>, empty: bool) -> usize {
    // The child's front replaces an empty front. Otherwise parent and child each get a new front over the whole chain.
    depth(front) + if empty { 0 } else { 2 }
}

/// Makes the chains of parent and child from one private chain, with no work per page. Each gets a front (first
/// backing) without an object. If the parent's front is `empty`, the parent keeps it, and the child's front lies
/// directly before copies of the backings behind it. So the caller must check for emptiness only after it has marked
/// the entry stale and write-protected its PTEs. (A fault that fills the front later finds the stale mark and gives its
/// page up.)
///
/// # Safety
/// The caller holds the map's lock and has marked the entry stale. No PTE of the entry allows stores any more. `child`
/// outlives the child's chain.
pub(crate) unsafe fn fork<M: Machine>(
    spare: &mut SpareBackings<M>,
    front: NonNull<Backing<M>>,
    empty: bool,
    child: &M::Pmap,
) -> Forked<M> {
    // SAFETY: the chain belongs to the map whose lock the caller holds.
    let f = unsafe { front.as_ref() };
    let (range, offset) = (f.range, f.offset);
    let (parent, behind) = if empty {
        // SAFETY: the caller holds the lock of the map that owns the chain, and `child` outlives the new chain.
        (front, f.behind().and_then(|b| unsafe { copy_from(spare, b, false, range, range.start, child) }))
    } else {
        let parent = spare.take(Backing::new(spare.vm, f.pmap, range, offset, front.as_ptr()));
        f.set_in_front(parent.as_ptr());
        // SAFETY: `take` has just written a backing there, and no entry leads to it yet.
        note_depth(unsafe { parent.as_ref() });
        // SAFETY: `f` belongs to the map whose lock the caller holds, and `child` outlives the new chain.
        (parent, unsafe { copy_from(spare, f, true, range, range.start, child) })
    };
    Forked { parent, child: private(spare, child, range, offset, behind) }
}

/// Unlinks a chain from its objects and frees it. Also frees objects that no backing shows any more. A private object
/// that other backings still show loses the pages that only this chain showed. May sleep.
///
/// # Safety
/// The caller owns the chain. No entry that new readers can find shows it. It is disposed of once.
pub(crate) unsafe fn dispose<M: Machine>(
    vm: &'static Objects<M>,
    front: NonNull<Backing<M>>,
    proof: &impl NoTranslation,
) {
    // SAFETY: by this function's contract, the caller owns the chain and disposes of it once, and no new reader finds
    // it.
    unsafe { dispose_onto(vm, front, proof, &mut vm.epoch().pile()) }
}

/// Unlinks and frees a chain like [`dispose`], but puts the memory of the backings onto `pile`.
///
/// # Safety
/// The caller owns the chain. No entry that new readers can find shows it. It is disposed of once.
pub(crate) unsafe fn dispose_onto<M: Machine>(
    vm: &'static Objects<M>,
    front: NonNull<Backing<M>>,
    proof: &impl NoTranslation,
    pile: &mut Pile<'_>,
) {
    // SAFETY: the caller owns the chain, so its front is not retired before this call does so.
    unsafe { front.as_ref() }.close();
    let mut at = front.as_ptr();
    while let Some(b) = NonNull::new(at) {
        // SAFETY: `b` is the front, or the layer behind the previous `b`. Only this loop retires the caller's layers.
        let layer = unsafe { b.as_ref() };
        at = layer.behind_ptr();
        // The link is cleared before this layer may be freed. Otherwise a CPU that later finds the layer behind in a
        // mapping list could reach this layer.
        // SAFETY: `at` is null, or a layer of the chain, which the caller owns.
        if let Some(behind) = unsafe { at.as_ref() } {
            behind.set_in_front(ptr::null_mut());
        }
        if let Some(object) = layer.object() {
            let object = NonNull::from(object);
            // SAFETY: the layer is linked until now, and the proof states that its PTEs are flushed.
            unsafe { Object::unlink(vm, object, b, proof) };
        }
        // SAFETY: the layer is unlinked, and by this function's contract new readers cannot reach it.
        unsafe { pile.add(b.as_ptr().cast(), Backing::<M>::free) };
    }
}
