//! Backings: one per whole mmap operation and address space; the only reverse map there is.
//!
//! A backing says: this range of this address space shows that object from that page on, and behind it lies the next
//! backing (copy-on-write). A *chain* belongs to one entry of one map. Clip, fork and protect make new chains of new
//! backings, in the same shards of the same objects' lists. They never copy a list of pages.
//!
//! # Rules
//! - A backing is linked into its object's list before an entry shows it. It is unlinked after the entry is stale, its
//!   leaves are cleared and the flush is done ([`dispose`] requires the proof). Being linked is its reference to the
//!   object.
//! - A private front is made *untouched*: without an object, until the first page is needed. The faulting thread then
//!   makes one and sets it by compare-and-swap. [`Backing::close`] ends that, so that a writer that replaces the chain
//!   knows what to carry over.
//! - Ranges, offsets and the space never change. `behind` changes only when a layer that has become empty is taken out
//!   ([`crate::cow::collapse`]), under the map's lock.
//! - A backing's memory goes back through the epoch: faults walk chains under a pin.

use crate::error::OutOfMemory;
use crate::machine::Machine;
use crate::object::Objects;
use crate::object::interval::{Age, Interval, Links};
use crate::object::{Object, ObjectRef};
use crate::tlb::flush::NoTranslation;
use crate::types::{PAGE_SHIFT, VirtRange};
use core::mem::ManuallyDrop;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU16, AtomicU64, Ordering};
use quire_sync::epoch::{Pile, Pinned, Retired};
use quire_sync::{Shared, record};

/// The progress of a front that is not being copied up.
pub(crate) const IDLE: u64 = u64::MAX;

/// A range of an address space that shows an object; see the module.
#[repr(C, align(64))]
pub struct Backing<M: Machine> {
    /// Must be first: the epoch hands it back.
    head: Head,
    /// Null: untouched. [`closed`]: untouched for ever.
    object: AtomicPtr<Object<M>>,
    /// The next layer, or null. Written under the map's lock.
    behind: AtomicPtr<Backing<M>>,
    range: VirtRange,
    /// The page of the object that the range begins with.
    offset: u64,
    // First cache line to here: all fields that a fault reads.
    vm: &'static Objects<M>,
    pmap: NonNull<M::Pmap>,
    /// The layer in front of it, or null. Written under the map's lock; read under a pin.
    in_front: AtomicPtr<Backing<M>>,
    /// A front: how far its chain is copied up ([`crate::fault::copy_up`]).
    progress: AtomicU64,
    /// A front: the layers of its chain, itself included; 255 also stands for more. Written under the map's lock.
    layers: AtomicU8,
    /// How many runs of layers ended in it, one after the other ([`crate::fault::copy_up`]); 255 also stands for more.
    /// Written under the map's lock.
    merges: AtomicU8,
    /// Its shard of the object's list. Written before it is linked.
    shard: AtomicU16,
    /// Its pages stay resident. Written under the map's lock.
    wired: AtomicBool,
    /// Its entry is shared and may allow stores at some time. Fixed before it is linked.
    stores: bool,
    /// Guarded by that shard's lock.
    links: Shared<Links<Backing<M>>>,
}

/// The first bytes of a backing: its age while it is listed, and the epoch's header once it is retired.
#[repr(C)]
union Head {
    /// Written by the epoch alone, after the backing has left its list.
    _retired: ManuallyDrop<Retired>,
    /// Guarded as the links are.
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

// SAFETY: `links` is guarded by the lock of the object's shard; the pmap outlives the backing, by the rules of this
// module.
unsafe impl<M: Machine> Send for Backing<M> {}
// SAFETY: shared references change atomics only; `links` is reached under the lock of the backing's shard, and all else
// is fixed.
unsafe impl<M: Machine> Sync for Backing<M> {}

// SAFETY: the interval is made of fields that never change; ranges are not empty.
unsafe impl<M: Machine> Interval for Backing<M> {
    fn links(&self) -> &Shared<Links<Self>> {
        &self.links
    }
    fn age(&self) -> &Shared<Age> {
        // SAFETY: `new` wrote an age, and the epoch writes its header only once no list has the backing; ages are plain
        // numbers, so even then the bytes are a valid value.
        unsafe { &self.head.age }
    }
    fn start(&self) -> u64 {
        self.offset()
    }
    fn end(&self) -> u64 {
        self.offset + (self.range().bytes() >> PAGE_SHIFT)
    }
}

/// The mark of a front that will never be touched: an address that no object has.
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
            links: Shared::new(Links::new(offset + (range.bytes() >> PAGE_SHIFT))),
        }
    }

    /// The addresses that show the object.
    #[inline(always)]
    pub(crate) fn range(&self) -> VirtRange {
        record::read(&self.range);
        self.range
    }
    /// The page of the object that the range begins with.
    #[inline(always)]
    pub(crate) fn offset(&self) -> u64 {
        record::read(&self.offset);
        self.offset
    }
    /// The page of the object that `va` shows. `va` lies in the range.
    #[inline(always)]
    pub fn key(&self, va: u64) -> u64 {
        debug_assert!(self.range.contains(va));
        self.offset() + ((va - self.range.start) >> PAGE_SHIFT)
    }
    /// The address that shows page `key` of the object. `key` lies in the interval.
    pub(crate) fn va(&self, key: u64) -> u64 {
        self.range().start + ((key - self.offset) << PAGE_SHIFT)
    }
    /// The next layer.
    #[inline(always)]
    pub(crate) fn behind(&self) -> Option<&Backing<M>> {
        // SAFETY: a layer outlives the one in front of it, up to the epoch.
        unsafe { self.behind.load(Ordering::Acquire).as_ref() }
    }
    pub(crate) fn behind_ptr(&self) -> *mut Backing<M> {
        self.behind.load(Ordering::Acquire)
    }
    fn set_behind(&self, behind: *mut Backing<M>) {
        self.behind.store(behind, Ordering::Release);
    }
    /// The layer in front of it. Its memory outlives the pin, because a layer clears this link before it is retired.
    pub(crate) fn in_front<'p>(&self, _pin: &'p Pinned<'_>) -> Option<&'p Backing<M>> {
        // SAFETY: a layer clears this link in the layer behind it before it is retired (`take_out`, `dispose_onto`), so
        // it outlives the pin.
        unsafe { self.in_front.load(Ordering::Acquire).as_ref() }
    }
    /// The layers in front of it, nearest first.
    pub(crate) fn all_in_front<'p>(&self, pin: &'p Pinned<'_>) -> impl Iterator<Item = &'p Backing<M>> + use<'p, M> {
        let first: Option<&'p Backing<M>> = self.in_front(pin);
        core::iter::successors(first, |b| b.in_front(pin))
    }
    fn set_in_front(&self, front: *mut Backing<M>) {
        self.in_front.store(front, Ordering::Release);
    }
    /// The object, where the backing has been touched.
    #[inline(always)]
    pub fn object(&self) -> Option<&Object<M>> {
        let object = self.object.load(Ordering::Acquire);
        // SAFETY: a linked backing keeps its object alive, and an object's memory goes through the epoch.
        if object == closed() { None } else { unsafe { object.as_ref() } }
    }
    /// The page tables of the space that the range lies in.
    pub(crate) fn pmap(&self) -> &M::Pmap {
        record::read(&self.pmap);
        // SAFETY: a space unlinks its backings before its page tables go.
        unsafe { self.pmap.as_ref() }
    }
    /// The system.
    pub(crate) fn vm(&self) -> &'static Objects<M> {
        self.vm
    }
    /// The layers of a front's chain, up to 255.
    #[inline(always)]
    pub(crate) fn layers(&self) -> usize {
        self.layers.load(Ordering::Relaxed).into()
    }
    pub(crate) fn progress(&self) -> &AtomicU64 {
        &self.progress
    }
    /// Number of copied-up runs that this layer absorbed, at most 255; an estimate of how often each of its pages was
    /// copied.
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
    /// Whether its pages stay resident ([`crate::map::Wire`]).
    pub(crate) fn is_wired(&self) -> bool {
        self.wired.load(Ordering::Acquire)
    }
    pub(crate) fn set_wired(&self, wired: bool) {
        if self.wired.load(Ordering::Relaxed) != wired {
            self.wired.store(wired, Ordering::Release);
        }
    }
    /// Whether it belongs to a shared mapping that may store into the object, now or after a change of its protection.
    #[inline(always)]
    pub(crate) fn stores(&self) -> bool {
        self.stores
    }
    /// The layer's object and the key of `va` in it; `None` where the layer does not reach there or is untouched.
    #[inline(always)]
    pub(crate) fn layer(&self, va: u64) -> Option<(&Object<M>, u64)> {
        if !self.range().contains(va) {
            return None;
        }
        self.object().map(|o| (o, self.key(va)))
    }

    /// Whether the file at the end of the chain ends before `va`. Then copies that were made while it was longer cannot
    /// be reached either (as on Linux).
    pub(crate) fn is_cut_off(&self, va: u64) -> bool {
        let file = core::iter::successors(Some(self), |b| b.behind()).last();
        file.and_then(|b| b.layer(va)).is_some_and(|(o, key)| !o.is_private() && key >= o.end())
    }

    /// The object of a private front, made now where there is none. `None`: the front is closed, so its entry is stale.
    pub(crate) fn touch(&self, _pin: &Pinned<'_>) -> Result<Option<&Object<M>>, OutOfMemory> {
        let now = self.object.load(Ordering::Acquire);
        if !now.is_null() {
            return Ok(self.object());
        }
        let fresh = Object::private(self.vm, NonNull::from(self))?;
        match self.object.compare_exchange(ptr::null_mut(), fresh.as_ptr(), Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {}
            // SAFETY: the exchange failed, so no backing and no list has the address of `fresh` but this call.
            Err(_) => unsafe { Object::discard(fresh) },
        }
        Ok(self.object())
    }

    /// Ends the time in which a first touch may give the front an object; returns the object that it has.
    pub(crate) fn close(&self) -> Option<&Object<M>> {
        // A touched front is only read, so a fork takes no cache line from threads that fault here.
        if self.object.load(Ordering::Acquire).is_null() {
            let _lost = self.object.compare_exchange(ptr::null_mut(), closed(), Ordering::AcqRel, Ordering::Acquire);
        }
        self.object()
    }

    /// Links its chain to a wrong layer, for tests of the checker.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn corrupt_behind(&self, behind: *mut Backing<M>) {
        self.set_behind(behind);
    }
    /// Links it to a wrong layer in front, for tests of the checker.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn corrupt_in_front(&self, front: NonNull<Backing<M>>) {
        self.set_in_front(front.as_ptr());
    }
    /// Makes it show another object than the one whose list it is on, for tests of the checker.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(crate) fn corrupt_object(&self, other: &Object<M>) {
        self.object.store(ptr::from_ref(other).cast_mut(), Ordering::Release);
    }

    /// Whether the layer holds nothing of its own in its range, now.
    pub(crate) fn is_empty(&self, pin: &Pinned<'_>) -> bool {
        match self.object() {
            None => true,
            Some(o) => o.index().first(self.offset, Interval::end(self), pin).is_none(),
        }
    }

    /// Gives the memory back once no fault can walk here any more.
    ///
    /// # Safety
    /// The backing is linked nowhere, no chain that new readers can reach has it, and it is retired once.
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
        // SAFETY: the header is the backing's first field; no reader is left.
        unsafe {
            let this = NonNull::new_unchecked(retired.cast::<Backing<M>>());
            let vm = this.as_ref().vm;
            vm.object_memory().backings.free(vm, this);
        }
    }
}

/// Memory for backings, reserved in the phase of a map change that may fail, for the phase that must not (relies on
/// C3). The unused rest is freed when it is dropped.
pub struct SpareBackings<M: Machine> {
    vm: &'static Objects<M>,
    first: *mut FreeBacking,
    len: usize,
}

struct FreeBacking {
    next: *mut FreeBacking,
}

impl<M: Machine> SpareBackings<M> {
    /// Memory for none yet.
    pub(crate) fn empty(vm: &'static Objects<M>) -> SpareBackings<M> {
        SpareBackings { vm, first: ptr::null_mut(), len: 0 }
    }

    /// Memory for `n` more.
    pub(crate) fn reserve_more(&mut self, n: usize) -> Result<(), OutOfMemory> {
        for _ in 0..n {
            let memory = self.vm.object_memory().backings.cache().alloc(self.vm)?.cast::<FreeBacking>();
            // SAFETY: fresh memory, larger than the link.
            unsafe { memory.write(FreeBacking { next: self.first }) };
            self.first = memory.as_ptr();
            self.len += 1;
        }
        Ok(())
    }

    /// # Panics
    /// Where fewer were reserved than are used: a bug of the map.
    fn take(&mut self, value: Backing<M>) -> NonNull<Backing<M>> {
        let at = NonNull::new(self.first).expect("backings are reserved before they are used");
        // SAFETY: `reserve_more` took the memory from the slab of backings, so a backing fits; until now this list
        // alone had it.
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

/// A private, untouched front over `range`; one of `spare`. `offset` is the page number of its first page: 0, or the
/// room for downward growth. `behind` is a chain that the caller owns.
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

/// Notes in a front how many layers its chain has.
///
/// # Requires
/// The map's lock is held, or no other thread can reach the chain yet.
pub(crate) fn note_depth<M: Machine>(front: &Backing<M>) {
    front.layers.store(depth(front).min(u8::MAX.into()) as u8, Ordering::Relaxed);
}

/// Takes `gone` out of the chain, right behind `layer`.
///
/// # Requires
/// The map's lock is held; the caller unlinks and retires `gone`.
pub(crate) fn take_out<M: Machine>(layer: &Backing<M>, gone: &Backing<M>) {
    let behind = gone.behind_ptr();
    // SAFETY: the layer behind `gone` is of the chain too, which changes only under the map's lock; the caller holds
    // it.
    if let Some(b) = unsafe { behind.as_ref() } {
        b.set_in_front(ptr::from_ref(layer).cast_mut());
    }
    layer.set_behind(behind);
}

/// A layer that shows `object` from page `offset` on; linked; one of `spare`. `stores`: its entry is shared and may
/// allow stores at some time.
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
    // SAFETY: the caller has just made it, and no other thread can reach it yet.
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

/// A new chain over `range`, which shows at `to` the pages of `front`'s chain at `range.start`. Uses at most
/// [`depth`]`(front)` of `spare`. Cannot fail. The old chain's front is closed: its entry is stale already, and its
/// owner disposes of the chain after this.
///
/// `range` may reach beyond the old chain, to grow a mapping. The front and a file grow with it. An anonymous layer
/// behind does not, so that the new pages show nothing of it.
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
    // SAFETY: the caller holds the lock of the map that the chain is of, and `pmap` outlives the new chain.
    unsafe { copy_from(spare, front, true, range, to, pmap) }.expect("a chain has a front")
}

/// As [`replicate`], from the layer `from` on. `grows`: that layer is a front, which grows with the range.
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
        // Page numbers wrap only where a caller grows a range below page 0 of its object: `private`'s offset is for
        // that.
        let shift = (window.start as i64 - b.range.start as i64) >> PAGE_SHIFT;
        let offset = b.offset.wrapping_add_signed(shift);
        let new = Backing::new(spare.vm, NonNull::from(pmap), shown, offset, ptr::null_mut());
        let new = spare.take(Backing { stores: b.stores, ..new });
        // Before it is listed, because a CPU that finds it there reads which layers hide it.
        // SAFETY: `take` has just written a backing there, and it is retired only when its chain is disposed of.
        let copy = unsafe { new.as_ref() };
        copy.set_merges(b.merges());
        copy.set_in_front(last.map_or(ptr::null_mut(), NonNull::as_ptr));
        if let Some(o) = object {
            show(new, o, b.shard());
        }
        match last {
            None => first = Some(new),
            // SAFETY: `l` was taken from `spare` in the pass before, and nothing disposes of a chain that is being
            // built.
            Some(l) => unsafe { l.as_ref() }.set_behind(new.as_ptr()),
        }
        last = Some(new);
    }
    // SAFETY: `f` was taken from `spare` in this call, and nothing disposes of a chain that is being built.
    first.inspect(|f| note_depth(unsafe { f.as_ref() }));
    first
}

/// The two chains after a fork of a private chain.
pub struct Forked<M: Machine> {
    /// The parent's front: the old one where nothing was in it, else a new, untouched one before it.
    pub parent: NonNull<Backing<M>>,
    /// The child's front, over a chain of its own.
    pub child: NonNull<Backing<M>>,
}

/// How many backings [`fork`] needs at most.
pub(crate) fn fork_needs<M: Machine>(front: &Backing<M>, empty: bool) -> usize {
    // The child's front replaces an empty one; else parent and child each get a front over the whole chain.
    depth(front) + if empty { 0 } else { 2 }
}

/// Makes the chains of parent and child out of a private chain: no work per page. Each gets an untouched front. Where
/// the parent's front is empty, the child is stacked directly on the layers behind it. So the caller first marks the
/// entry stale and write-protects its leaves, then checks whether the front is `empty`. (A fault that still fills the
/// front after that gives its page up.)
///
/// # Safety
/// The caller holds the map's lock and has marked the entry stale. None of its leaves allows stores any more. `child`
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
        // SAFETY: the caller holds the lock of the map that the chain is of, and `child` outlives the new chain.
        (front, f.behind().and_then(|b| unsafe { copy_from(spare, b, false, range, range.start, child) }))
    } else {
        let parent = spare.take(Backing::new(spare.vm, f.pmap, range, offset, front.as_ptr()));
        f.set_in_front(parent.as_ptr());
        // SAFETY: `take` has just written a backing there, and no entry leads to it yet.
        note_depth(unsafe { parent.as_ref() });
        // SAFETY: `f` is of the chain of the map whose lock the caller holds, and `child` outlives the new chain.
        (parent, unsafe { copy_from(spare, f, true, range, range.start, child) })
    };
    Forked { parent, child: private(spare, child, range, offset, behind) }
}

/// Unlinks a chain from its objects and frees it. Objects that no backing shows any more are freed. Of private objects
/// that other backings still show, the pages that only this chain showed are freed. May sleep.
///
/// # Safety
/// The caller owns the chain; no entry that new readers can find has it; it is disposed of once.
pub(crate) unsafe fn dispose<M: Machine>(
    vm: &'static Objects<M>,
    front: NonNull<Backing<M>>,
    proof: &impl NoTranslation,
) {
    // SAFETY: the caller owns the chain, which no new reader finds, and disposes of it once: this function's contract.
    unsafe { dispose_onto(vm, front, proof, &mut vm.epoch().pile()) }
}

/// As [`dispose`]; the memory goes onto `pile`.
///
/// # Safety
/// The caller owns the chain; no entry that new readers can find has it; it is disposed of once.
pub(crate) unsafe fn dispose_onto<M: Machine>(
    vm: &'static Objects<M>,
    front: NonNull<Backing<M>>,
    proof: &impl NoTranslation,
    pile: &mut Pile<'_>,
) {
    // SAFETY: the caller owns the chain, so its front is retired by this call at the earliest.
    unsafe { front.as_ref() }.close();
    let mut at = front.as_ptr();
    while let Some(b) = NonNull::new(at) {
        // SAFETY: `b` is the front, or the link of a layer that this loop has left; only this loop retires the caller's
        // layers.
        let layer = unsafe { b.as_ref() };
        at = layer.behind_ptr();
        // Before its object may go, because a CPU that later finds the layer behind in a list must not reach this layer
        // from there.
        // SAFETY: a layer of the chain, which the caller owns.
        if let Some(behind) = unsafe { at.as_ref() } {
            behind.set_in_front(ptr::null_mut());
        }
        if let Some(object) = layer.object() {
            let object = NonNull::from(object);
            // SAFETY: linked until now; the proof says that its leaves are flushed.
            unsafe { Object::unlink(vm, object, b, proof) };
        }
        // SAFETY: unlinked, and unreachable for new readers by this function's contract.
        unsafe { pile.add(b.as_ptr().cast(), Backing::<M>::free) };
    }
}
