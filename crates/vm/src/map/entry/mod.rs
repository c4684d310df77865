//! Entries. An entry describes a mapped range. A published entry is immutable: a writer replaces it, and never edits
//! it.

pub(crate) mod piece;
pub(crate) mod wired;

use crate::error::OutOfMemory;
use crate::machine::Machine;
use crate::map::maps::Maps;
use crate::mutant::{Mutant, mutant};
use crate::object::backing::Backing;
use crate::types::{Prot, VirtRange};
use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{AtomicU8, Ordering};
use quire_sync::epoch::Retired;
use quire_sync::record;

bitflags::bitflags! {
    /// The kind of an entry's mapping.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Flags: u16 {
        /// Stores go to the object itself, so that every mapping of the object sees them.
        const SHARED = 1;
        /// A fault below the entry extends it downward (a stack).
        const GROWS_DOWN = 2;
        /// The front backing (the first of the chain) does not belong to this mapping alone. It is a file, or a layer
        /// shared since a fork. An entry with this flag never allows stores. A change that allows them first puts a new
        /// front before it.
        const NEEDS_FRONT = 4;
        /// A fork leaves the range out of the child.
        const DONT_FORK = 8;
        /// A fork gives the child new, zero-filled memory in place of the range.
        const WIPE_ON_FORK = 16;
        /// The entry's pages stay resident ([`Wire`](super::Wire)).
        const WIRED = 32;
        /// Together with `WIRED`: a page stays resident from its first use on. No page is made resident before.
        const WIRED_ON_FAULT = 64;
        /// A private mapping with a file at the end of its chain. An access beyond the file's end fails, even if the
        /// page was copied before.
        const FILE = 128;
        /// The range stays mapped with its protection until the space ends ([`Space::seal`](super::Space::seal)).
        const SEALED = 256;
        /// A core dump leaves the range out.
        const DONT_DUMP = 512;
    }
}

/// The purpose of a range, for tools: a name in /proc/self/maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Tag {
    /// No special purpose.
    #[default]
    None,
    /// The heap, whose end `brk` moves.
    Heap,
    /// The first thread's stack.
    Stack,
    /// Code that the kernel gives to every program.
    Vdso,
    /// Data that the kernel gives to every program.
    Vvar,
}

/// The description of a mapped range; see the module.
#[repr(C)]
pub struct Entry<M: Machine> {
    /// Must be the first field, because the epoch passes its address to the function that frees the entry.
    retired: Retired,
    vm: &'static Maps<M>,
    /// The front backing: the newest layer of the chain. If a chain passes from an old entry to a new one, it belongs
    /// to the new one. In an unpublished entry this field first points to the old entry whose chain the new one will
    /// take over or copy.
    front: Cell<*const ()>,
    range: VirtRange,
    prot: Prot,
    max_prot: Prot,
    flags: Flags,
    tag: Tag,
    /// [`STALE`] and [`NO_STORES`].
    state: AtomicU8,
    /// How an unpublished entry gets its chain. Only the writer uses it.
    pub(super) how: Cell<How>,
    /// Notes of the writer on the chain. Only the writer uses them.
    notes: Cell<Notes>,
    /// The next entry on a list of the writer: of new entries before their publication, or of entries marked stale.
    /// Only the writer uses it.
    pub(super) link: Cell<*const Entry<M>>,
    _front: PhantomData<*const Backing<M>>,
}

#[cfg(test)]
quire_sync::assert_layout!(Entry<crate::testing::TestMachine> {
    size: 64, align: 8,
    retired: 0, vm: 16, front: 24, range: 32, prot: 48, flags: 50, state: 53,
});

/// A writer has begun to replace the entry. The writer sets the bit before it touches any PTE of the range. Faults
/// check it under the lock of the table page (relies on C3).
const STALE: u8 = 1;
/// No leaf of the range allows stores: a fork has write-protected them, and no fault has entered one since. A fault
/// clears the bit before it enters a leaf, and can do so only while the entry is not stale. So the bit does not change
/// while the entry is stale, and a writer can rely on it.
const NO_STORES: u8 = 2;

bitflags::bitflags! {
    /// A writer's notes on an entry's chain.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) struct Notes: u8 {
        /// On a new entry: its chain gets a new, empty front.
        const ADD_FRONT = 1;
        /// On an old entry: a new entry has taken over its chain.
        const CHAIN_TAKEN = 2;
    }
}

/// How a new entry gets its chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum How {
    /// The entry gets new private, zero-filled memory.
    Empty,
    /// The entry maps the object that the operation passed to the update.
    Object,
    /// The entry takes over the whole chain of its origin, which is removed.
    Taken,
    /// The entry gets a copy of the origin's chain, for the entry's range only.
    Copied,
    /// The entry gets a copy of the origin's chain. The copied front covers more addresses than the entry, so that the
    /// mapping can grow.
    Grown,
    /// The entry gets a copy of the last layer of its origin's chain, which is a file.
    Tail,
}

// SAFETY: readers use only fields that are immutable once published, and `state`, which is atomic. Only the arena's one
// writer uses the cells.
unsafe impl<M: Machine> Send for Entry<M> {}
// SAFETY: readers load `state` and fields that stay as they are once published; the cells are set by the arena's one
// writer.
unsafe impl<M: Machine> Sync for Entry<M> {}

/// The attributes of an entry: all but its place and its chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// The allowed accesses.
    pub prot: Prot,
    /// The accesses that `protect` may allow at most.
    pub max_prot: Prot,
    /// The kind of mapping.
    pub flags: Flags,
    /// The purpose of the range.
    pub tag: Tag,
}

impl Attributes {
    /// Whether stores through the entry can change the object, now or after a change of the protection.
    pub(super) fn may_store(&self) -> bool {
        self.flags.contains(Flags::SHARED) && self.max_prot.contains(Prot::WRITE)
    }

    /// Returns these attributes, adapted to an adjoining range of new private memory, which has a front of its own and
    /// no file.
    pub(super) fn emptied(self) -> Attributes {
        Attributes { flags: self.flags - Flags::NEEDS_FRONT - Flags::FILE, ..self }
    }
}

impl<M: Machine> Entry<M> {
    fn new(vm: &'static Maps<M>, range: VirtRange, a: Attributes, how: How, origin: *const Entry<M>) -> Self {
        debug_assert!(!(a.flags.contains(Flags::NEEDS_FRONT) && a.prot.contains(Prot::WRITE)));
        Entry {
            retired: Retired::new(),
            vm,
            front: Cell::new(origin.cast()),
            range,
            prot: a.prot,
            max_prot: a.max_prot,
            flags: a.flags,
            tag: a.tag,
            state: AtomicU8::new(0),
            how: Cell::new(how),
            notes: Cell::new(Notes::empty()),
            link: Cell::new(ptr::null()),
            _front: PhantomData,
        }
    }

    /// The addresses of the entry.
    #[inline(always)]
    pub(crate) fn range(&self) -> VirtRange {
        record::read(&self.range);
        self.range
    }
    /// The allowed accesses.
    #[inline(always)]
    pub(crate) fn prot(&self) -> Prot {
        record::read(&self.prot);
        self.prot
    }
    /// The kind of mapping.
    #[inline(always)]
    pub(crate) fn flags(&self) -> Flags {
        record::read(&self.flags);
        self.flags
    }
    /// Whether stores go to the object itself (a shared mapping).
    #[inline(always)]
    pub(crate) fn shared(&self) -> bool {
        self.flags().contains(Flags::SHARED)
    }
    /// All of the entry's attributes.
    pub(crate) fn attributes(&self) -> Attributes {
        Attributes { prot: self.prot, max_prot: self.max_prot, flags: self.flags, tag: self.tag }
    }
    /// The newest layer of the chain.
    #[inline(always)]
    pub fn front(&self) -> &Backing<M> {
        record::read(&self.front);
        // SAFETY: `front` was set before the entry was published. The chain outlives the entry: backings are retired
        // through the epoch only after their entry is unreachable.
        unsafe { &*self.front.get().cast() }
    }
    /// The old entry from which this unpublished entry gets its chain.
    ///
    /// # Safety
    /// The entry was made with an origin, is not published, and has no chain yet.
    pub(super) unsafe fn origin<'a>(&self) -> &'a Entry<M> {
        // SAFETY: by this function's contract; old entries are retired after the new ones are published.
        unsafe { &*self.front.get().cast() }
    }
    pub(super) fn front_ptr(&self) -> NonNull<Backing<M>> {
        NonNull::from(self.front())
    }
    /// Gives an unpublished entry its chain.
    pub(super) fn set_front(&self, front: NonNull<Backing<M>>) {
        record::wrote(&self.front);
        self.front.set(front.as_ptr().cast_const().cast());
    }

    /// Adds to the writer's notes.
    pub(super) fn note(&self, more: Notes) {
        self.notes.set(self.notes.get() | more);
    }
    /// Whether the writer has made this note.
    pub(super) fn noted(&self, note: Notes) -> bool {
        self.notes.get().contains(note)
    }

    /// Whether a writer has begun to replace the entry. The answer is reliable only under the lock of the table page
    /// that covers the address (relies on C3). Without that lock it is a hint.
    #[inline(always)]
    pub(crate) fn is_stale(&self) -> bool {
        self.state.load(Ordering::Acquire) & STALE != 0
    }

    /// Whether a fault may enter leaves of the entry, because the entry is not stale. If so, clears [`NO_STORES`]. The
    /// answer is reliable only under the lock of the table page that covers the address. Without that lock it is a
    /// hint.
    #[inline(always)]
    pub(crate) fn admits(&self) -> bool {
        self.state.load(Ordering::Acquire) == 0 || self.admits_after_fork()
    }

    #[cold]
    fn admits_after_fork(&self) -> bool {
        if mutant(Mutant::StoresUnnoted) {
            return !self.is_stale();
        }
        if mutant(Mutant::NotedUnlooked) {
            let stale = self.is_stale();
            self.state.fetch_and(!NO_STORES, Ordering::AcqRel);
            return !stale;
        }
        let taken_off = self.state.compare_exchange(NO_STORES, 0, Ordering::AcqRel, Ordering::Acquire);
        // `Err(0)` means that another fault of the same entry cleared the bit first.
        matches!(taken_off, Ok(_) | Err(0))
    }

    /// Marks the entry stale, before the writer touches any PTE of the range (relies on C3). The writer issues one
    /// fence after all its marks.
    pub(super) fn mark_stale(&self) {
        self.state.store(STALE, Ordering::Release);
    }

    /// As [`mark_stale`](Self::mark_stale), but keeps [`NO_STORES`].
    pub(super) fn mark_stale_for_fork(&self) {
        self.state.fetch_or(STALE, Ordering::AcqRel);
    }

    /// Clears the stale mark of an entry that is not replaced after all.
    pub(super) fn unmark_stale(&self) {
        // No other thread changes `state` while the entry is stale.
        self.state.store(self.state.load(Ordering::Relaxed) & !STALE, Ordering::Release);
    }

    /// Whether no leaf of the range allows stores. False means unknown.
    ///
    /// # Requires
    /// [`mark_stale_for_fork`](Self::mark_stale_for_fork) has marked the entry. Or the caller holds the writer of the
    /// entry's arena, and the lock of the table page that has the leaves in question.
    pub(super) fn has_no_stores(&self) -> bool {
        self.state.load(Ordering::Relaxed) & NO_STORES != 0
    }

    /// Sets the mark that no leaf allows stores.
    ///
    /// # Requires
    /// The entry is not published. Or it is stale, and its leaves lose the right to store before the stale mark is
    /// cleared.
    pub(super) fn note_no_stores(&self) {
        self.state.store(self.state.load(Ordering::Relaxed) | NO_STORES, Ordering::Relaxed);
    }

    /// Makes the entry's maximal rights wrong, for tests of the checker.
    ///
    /// # Safety
    /// No other thread reads the entry during the call.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub(super) unsafe fn corrupt_rights(entry: NonNull<Entry<M>>, max_prot: Prot) {
        // SAFETY: by this function's contract.
        unsafe { (*entry.as_ptr()).max_prot = max_prot };
    }

    /// Retires an entry that readers may still hold. The caller disposes of its chain.
    ///
    /// # Safety
    /// No new reader can reach the entry, and it is retired once.
    pub(super) unsafe fn retire(entry: NonNull<Entry<M>>) {
        unsafe fn free<M: Machine>(retired: *mut Retired) {
            // SAFETY: `retired` is an entry's first field; no reader is left.
            unsafe {
                let entry = NonNull::new_unchecked(retired.cast::<Entry<M>>());
                let vm = entry.as_ref().vm;
                vm.map_memory().entries.free(vm, entry);
            }
        }
        // SAFETY: by this function's contract.
        unsafe {
            let vm = entry.as_ref().vm;
            vm.epoch().retire(entry.as_ptr().cast(), free::<M>);
        }
    }
}

/// A list of entries that are not published yet, in ascending order. A drop frees them; they have no chains yet.
pub(super) struct NewEntries<M: Machine> {
    vm: &'static Maps<M>,
    first: *const Entry<M>,
    last: *const Entry<M>,
    len: usize,
}

impl<M: Machine> NewEntries<M> {
    pub fn new(vm: &'static Maps<M>) -> Self {
        NewEntries { vm, first: ptr::null(), last: ptr::null(), len: 0 }
    }

    pub fn push(
        &mut self,
        range: VirtRange,
        a: Attributes,
        how: How,
        origin: *const Entry<M>,
    ) -> Result<NonNull<Entry<M>>, OutOfMemory> {
        let entry = self.vm.map_memory().entries.alloc(self.vm, Entry::new(self.vm, range, a, how, origin))?;
        if self.last.is_null() {
            self.first = entry.as_ptr();
        } else {
            // SAFETY: `last` is on this list. The list frees its entries only when it is dropped before their
            // publication.
            unsafe { (*self.last).link.set(entry.as_ptr()) };
        }
        self.last = entry.as_ptr();
        self.len += 1;
        Ok(entry)
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn iter(&self) -> impl Iterator<Item = NonNull<Entry<M>>> + use<M> {
        let mut at = self.first;
        core::iter::from_fn(move || {
            let entry = NonNull::new(at.cast_mut())?;
            // SAFETY: the entry is on the list, so it is not published. Only the list's `drop` frees it, after this
            // step.
            at = unsafe { entry.as_ref() }.link.get();
            Some(entry)
        })
    }

    /// Empties the list, because the entries belong to the tree now.
    pub fn published(&mut self) {
        (self.first, self.last) = (ptr::null(), ptr::null());
    }
}

impl<M: Machine> Drop for NewEntries<M> {
    fn drop(&mut self) {
        for entry in self.iter() {
            // SAFETY: the entries were never published, and this list alone refers to them. (The iterator has already
            // read the link.)
            unsafe { self.vm.map_memory().entries.free(self.vm, entry) };
        }
    }
}
