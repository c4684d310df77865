//! Address spaces: a map and its page tables, counted by handles.

use super::arena::{Arena, Writer};
use super::entry::Entry;
use super::unmap;
use crate::error::{FaultError, OutOfMemory};
use crate::fault::FaultKind;
use crate::machine::{Machine, Pmap};
use crate::types::{Access, PAGE_SIZE, VirtRange};
use crate::vm::Vm;
use core::ops::Deref;
use core::ptr::NonNull;
use quire_sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use quire_sync::epoch::Pinned;

/// The addresses that a program may map: not page 0, and not the last page before the hole, from which a system call's
/// return address would lie in the hole (as Linux).
pub const USER: VirtRange = VirtRange { start: 0x1000, end: 0x7fff_ffff_f000 };

/// Addresses below a stack that nothing is placed in unasked, and that a stack never grows into: 256 pages, as Linux.
pub const STACK_GUARD: u64 = 256 * PAGE_SIZE;

/// Leaves that go unnoticed, however few there are.
const LOOK_AFTER: u64 = 256;

/// Where a space puts what has no address, and how much it may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Mappings without an address go to the lowest hole at or above this; where there is none, to the lowest hole at all.
    pub base: u64,
    /// Bytes a stack may grow to.
    pub stack: u64,
    /// Bytes that may be mapped.
    pub bytes: u64,
    /// Entries that may exist.
    pub entries: u64,
}

impl Limits {
    /// No limit but the address space itself, a stack of 8 MiB, and 2^20 entries.
    pub const DEFAULT: Limits =
        Limits { base: 0x7000_0000_0000, stack: 8 << 20, bytes: USER.end - USER.start, entries: 1 << 20 };
}

/// An address space. Made by [`Space::new`] or [`Space::fork`], reached through [`SpaceRef`]s.
pub struct Space<M: Machine> {
    vm: &'static Vm<M>,
    /// Handles.
    refs: AtomicUsize,
    id: u64,
    pmap: M::Pmap,
    pub(super) arena: Arena<M>,
    /// Settings: written by their owner's system calls, read by map operations.
    base: AtomicU64,
    stack: AtomicU64,
    bytes: AtomicU64,
    entries: AtomicU64,
    /// The most resident pages that a look has found.
    peak: AtomicU64,
    /// Leaves that map operations have cleared since the last look. Written under the arena's lock.
    cleared: AtomicU64,
}

/// What a space holds, counted when asked: no fault touches a counter of the space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceStats {
    /// Bytes that entries cover.
    pub mapped_bytes: u64,
    /// Pages that the page tables map.
    pub resident_pages: u64,
    /// Page-table pages, the root included.
    pub table_pages: u64,
    /// Entries.
    pub entries: u64,
    /// The largest number of resident pages seen when many were removed, or now.
    pub peak_resident: u64,
}

/// A counted handle of a [`Space`]. The last one, dropped, takes the space apart: drop it where sleeping is allowed, and
/// after every CPU has left it.
pub struct SpaceRef<M: Machine>(NonNull<Space<M>>);

// SAFETY: a handle is a shared reference to a space that lives while it exists; a space is made of locks and atomics.
unsafe impl<M: Machine> Send for SpaceRef<M> {}
// SAFETY: as above.
unsafe impl<M: Machine> Sync for SpaceRef<M> {}

impl<M: Machine> Space<M> {
    /// An empty space. Its cost is a root table and this structure.
    #[allow(clippy::new_ret_no_self)] // A space is reached through handles only.
    pub fn new(vm: &'static Vm<M>) -> Result<SpaceRef<M>, OutOfMemory> {
        Self::with_limits(vm, Limits::DEFAULT)
    }

    pub(super) fn with_limits(vm: &'static Vm<M>, limits: Limits) -> Result<SpaceRef<M>, OutOfMemory> {
        let memory = vm.map_memory();
        let place = memory.spaces.cache().alloc(vm)?.cast::<Space<M>>();
        let pmap = match M::Pmap::new(vm) {
            Ok(pmap) => pmap,
            Err(e) => {
                // SAFETY: just taken, and holding nothing.
                unsafe { memory.spaces.cache().free(vm, place.cast()) };
                return Err(e);
            }
        };
        let space = Space {
            vm,
            refs: AtomicUsize::new(1),
            id: memory.new_id(),
            pmap,
            arena: Arena::new(vm),
            base: AtomicU64::new(limits.base),
            stack: AtomicU64::new(limits.stack),
            bytes: AtomicU64::new(limits.bytes),
            entries: AtomicU64::new(limits.entries),
            peak: AtomicU64::new(0),
            cleared: AtomicU64::new(0),
        };
        // SAFETY: memory for a space, written before anybody sees it.
        unsafe { place.write(space) };
        Ok(SpaceRef(place))
    }

    /// The system that it belongs to.
    #[inline(always)]
    pub fn vm(&self) -> &'static Vm<M> {
        self.vm
    }
    /// The page tables.
    #[inline(always)]
    pub fn pmap(&self) -> &M::Pmap {
        &self.pmap
    }
    /// A number that no other space ever has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The entry that covers `va`. No lock is taken and nothing is written but the pin. A hit counts while the entry is not
    /// stale under the lock of the table page; a miss while [`Space::unchanged_since`] holds (Contract C3).
    #[inline]
    pub fn lookup<'p>(&self, va: u64, pin: &'p Pinned<'_>) -> Option<&'p Entry<M>> {
        self.arena.lookup(va, pin)
    }

    /// The sequence that stands for the state of the arena of `va`; taken before a lookup whose miss shall count.
    #[inline]
    pub fn sequence(&self, va: u64) -> u64 {
        let _one_arena = va;
        self.arena.sequence()
    }

    /// Whether nothing changed in the arena of `va` since `sequence`.
    #[inline]
    pub fn unchanged_since(&self, va: u64, sequence: u64) -> bool {
        let _one_arena = va;
        self.arena.unchanged_since(sequence)
    }

    /// Sleeps until no writer changes the arena of `va`, and keeps writers out while the result is held: no entry is or
    /// becomes stale. For a fault that was defeated too often (progress), and to wait for a stale entry to be replaced.
    pub fn keep_writers_out(&self, va: u64) -> Writer<'_, M> {
        let _one_arena = va;
        self.arena.write()
    }

    /// What the space may hold, and where it puts things.
    pub fn limits(&self) -> Limits {
        Limits {
            base: self.base.load(Ordering::Relaxed),
            stack: self.stack.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            entries: self.entries.load(Ordering::Relaxed),
        }
    }

    /// Changes limits from now on; what exceeds them stays.
    pub fn set_limits(&self, limits: Limits) {
        self.base.store(limits.base, Ordering::Relaxed);
        self.stack.store(limits.stack, Ordering::Relaxed);
        self.bytes.store(limits.bytes, Ordering::Relaxed);
        self.entries.store(limits.entries, Ordering::Relaxed);
    }

    /// Counts what the space holds, from its tables.
    pub fn stats(&self) -> SpaceStats {
        let resident_pages = self.note_peak();
        SpaceStats {
            mapped_bytes: self.arena.mapped(),
            resident_pages,
            table_pages: self.pmap.table_pages(self.vm),
            entries: self.arena.len() as u64,
            peak_resident: self.peak.load(Ordering::Relaxed).max(resident_pages),
        }
    }

    /// The most pages that were resident at once, as far as anybody looked.
    pub fn peak_resident(&self) -> u64 {
        let now = self.note_peak();
        self.peak.load(Ordering::Relaxed).max(now)
    }

    /// A map operation has cleared `leaves`: remembers how many there were before, within an eighth. Counting visits every
    /// table page, so it is done only where about as many leaves went. => caller holds the arena's lock.
    pub(super) fn note_cleared(&self, leaves: u64) {
        let cleared = self.cleared.load(Ordering::Relaxed) + leaves;
        let due = cleared > self.peak.load(Ordering::Relaxed) / 8 + LOOK_AFTER;
        self.cleared.store(if due { 0 } else { cleared }, Ordering::Relaxed);
        if due {
            self.peak.fetch_max(self.pmap.resident_pages(self.vm) + leaves, Ordering::Relaxed);
        }
    }

    /// Counts residents and remembers the most.
    fn note_peak(&self) -> u64 {
        let now = self.pmap.resident_pages(self.vm);
        self.peak.fetch_max(now, Ordering::Relaxed);
        now
    }

    /// Serves an access at `va` (the page fault handler, and kernel code on a program's behalf). May sleep; the caller holds
    /// nothing. A miss below a stack is the caller's to turn into [`Space::grow_stack`] and another try.
    pub fn fault(&self, va: u64, access: Access) -> Result<FaultKind, FaultError> {
        crate::fault::fault(self, va, access)
    }

    /// Unmaps everything. The space can be used again. (At exit there is no need: dropping the last handle does it faster.)
    pub fn clear(&self) {
        // Whole entries are removed, which allocates nothing and so cannot fail.
        let done = self.unmap(USER);
        debug_assert!(done.is_ok(), "unmapping everything needs no memory");
    }

    /// Another handle.
    pub fn handle(&self) -> SpaceRef<M> {
        self.refs.fetch_add(1, Ordering::Relaxed);
        SpaceRef(NonNull::from(self))
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
        // SAFETY: the handle keeps the space alive.
        unsafe { self.0.as_ref() }
    }
}

impl<M: Machine> Drop for SpaceRef<M> {
    fn drop(&mut self) {
        if self.refs.fetch_sub(1, Ordering::AcqRel) != 1 {
            return;
        }
        quire_sync::atomic::fence_after_rmw();
        // SAFETY: this was the last handle: nobody faults in the space, and no CPU runs it; after the first step no backing
        // leads to it either.
        unsafe {
            unmap::take_apart(self);
            let space = self.0.as_mut();
            space.arena.free_nodes();
            space.pmap.destroy(space.vm);
            space.vm.map_memory().spaces.free(space.vm, self.0);
        }
    }
}
