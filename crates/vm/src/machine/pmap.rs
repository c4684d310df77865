//! The page tables of one address space, as the core sees them: a cache of the map, locked by page-table page.

use super::Machine;
use crate::check::Broken;
use crate::error::OutOfMemory;
use crate::phys::Physical;
use crate::tlb::flush::{FlushSet, Obligation};
use crate::types::{MemoryType, PAGE_SIZE, Pfn, Prot, VirtRange};
use quire_sync::CpuId;
use quire_sync::epoch::Pinned;

/// What a present leaf says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf {
    /// The frame that it maps.
    pub pfn: Pfn,
    /// What it allows.
    pub prot: Prot,
    /// Hardware or the kernel has seen an access.
    pub accessed: bool,
    /// Hardware or the kernel has seen a store.
    pub dirty: bool,
}

/// What is to be installed. Accessed is always preset; dirty is preset where `prot` has WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enter {
    /// The frame.
    pub pfn: Pfn,
    /// Protection; WRITE only where the page is marked dirty already (a writable leaf implies page.dirty).
    pub prot: Prot,
    /// How accesses are cached: anything but write-back is for devices.
    pub memory: MemoryType,
}

impl Enter {
    /// A page of RAM.
    #[inline(always)]
    pub const fn new(pfn: Pfn, prot: Prot) -> Enter {
        Enter { pfn, prot, memory: MemoryType::WriteBack }
    }
}

/// What was taken away or weakened: the leaf as it last was, exchanged atomically.
pub type Removed = Leaf;

/// The page tables of one address space.
///
/// # Safety
/// The implementation must keep C2, C3 (dead table pages) and C4 for its own memory: a table page is freed only
/// after it is marked dead under its lock, unlinked, flushed from paging-structure caches, and no walker is left.
pub unsafe trait Pmap<M: Machine<Pmap = Self>>: Send + Sync + Sized + 'static {
    /// The addresses that a program may map.
    const USER: VirtRange;

    /// Bytes that one last-level table page shows; a power of two, and each begins at a multiple of it.
    const TABLE_SPAN: u64;

    /// A locked last-level table page.
    type Table<'a>: Table<M>
    where
        Self: 'a;

    /// Empty tables that share the kernel's half.
    ///
    /// # Safety
    /// Whatever is called with the tables names this system. They are destroyed by [`destroy`](Self::destroy), after every CPU has left them.
    unsafe fn new(vm: &'static Physical<M>) -> Result<Self, OutOfMemory>;

    /// Locks the last-level table page that covers `va`, linking new levels as needed. What is returned is live (not
    /// dead), and a full fence stands between the lock and the return (`fence_after_rmw`, relies on C2). `pin` is of the
    /// system's epoch: who faults has one already.
    fn table(&self, vm: &'static Physical<M>, va: u64, pin: &Pinned<'_>) -> Result<Self::Table<'_>, OutOfMemory>;

    /// Locks the first *existing* last-level table page that covers an address of `range`; never allocates; absent levels
    /// are skipped whole. To go on, call again with a range that starts at the returned table's `span().end`.
    /// The caller has fenced since it published what it relies on (stale marks): an absent table may be skipped only then.
    fn next_table(&self, vm: &'static Physical<M>, range: VirtRange) -> Option<Self::Table<'_>>;

    /// Whether a removal below the (absent or present) table level over `va` is not flushed yet. Asked by reverse scans
    /// that found no table page there (relies on C2, unflushed removals).
    fn unflushed_above(&self, vm: &'static Physical<M>, va: u64) -> bool;

    /// Makes every CPU that may hold translations of this space drop those in `set` (or all), and returns when they have.
    /// Sends interrupts only to CPUs that run this space now; others catch up by generation when they switch in.
    fn flush(&self, vm: &'static Physical<M>, set: &FlushSet);

    /// Lowers the count of unflushed removals of table page `table` by one. Called only by [`Obligation`]'s discharge. Returns
    /// whether the table page held nothing and owed nothing then: a hint that it may be pruned.
    fn settle(&self, vm: &'static Physical<M>, table: Pfn) -> bool;

    /// Frees empty last-level table pages inside `range` (and upper levels that become empty) while others may be walking:
    /// parent then child locked, verified empty, marked dead, unlinked, flushed, freed after the walkers. Preemption is off for
    /// a bounded number of table pages at a time.
    fn prune(&self, vm: &'static Physical<M>, range: VirtRange);

    /// The map has fanned out (relies on C9): from now on CPUs that fault here have root tables of their own, where that helps,
    /// and a flush asks only those that have reached what it is about. Where there is no memory for that, nothing changes.
    fn fan_out(&self, vm: &'static Physical<M>) {
        let _one_root_serves_all = vm;
    }

    /// Undoes [`fan_out`](Self::fan_out): all CPUs share the root again, and what was theirs is freed.
    fn fan_in(&self, vm: &'static Physical<M>) {
        let _one_root_serves_all = vm;
    }

    /// Whether a CPU runs the space now, as far as can be told without asking it.
    fn is_running(&self) -> bool;

    /// Whether a CPU other than `cpu` runs the space now, as far as can be told without asking it.
    fn is_running_elsewhere(&self, cpu: CpuId) -> bool;

    /// Whether a CPU has begun to run the space since this was asked last. For pageout, which lets tables be that are in use.
    fn take_ran(&self) -> bool {
        true
    }

    /// Gives empty table pages that CPUs keep for later back to the frame allocator; returns how many. Called when memory
    /// is short, with locks of slabs possibly held.
    fn reclaim_tables(vm: &Physical<M>) -> u64 {
        let _none_kept = vm;
        0
    }

    /// Frees all table pages but the root. The caller has emptied the map: nothing can fault here any more, and no reverse
    /// scan can reach this space. Needs no epoch (C4: exit).
    fn clear(&self, vm: &'static Physical<M>);

    /// Frees the root too.
    ///
    /// # Safety
    /// No CPU runs this space, and `clear` was called.
    unsafe fn destroy(&mut self, vm: &'static Physical<M>);

    /// Derives the invariants of the table pages again: every present entry leads to a live table page or is a leaf, counts
    /// of present entries are right, nothing that is present would be skipped by a scan; and where nothing at all is under
    /// way (`quiet`), no removal counts as not flushed. Others may walk, link and remove meanwhile. Returns how many entries
    /// were looked at.
    fn check(&self, vm: &'static Physical<M>, quiet: bool) -> Result<u64, Broken>;

    /// Number of resident (present) user pages, summed from the table pages' counts.
    fn resident_pages(&self, vm: &'static Physical<M>) -> u64;

    /// The most pages that were resident at once, without a look at table pages. For each CPU that runs the space now, it may be too few
    /// by what a CPU counts for itself before it says so.
    fn peak_pages(&self, vm: &'static Physical<M>) -> u64;

    /// Number of table pages, the root included.
    fn table_pages(&self, vm: &'static Physical<M>) -> u64;
}

/// A locked, live, last-level table page. Spins; nothing may sleep while it is held (relies on C5).
pub trait Table<M: Machine> {
    /// The addresses that this table page covers (2 MiB on x86-64).
    fn span(&self) -> VirtRange;

    /// The leaf at `va`, if present.
    fn get(&self, va: u64) -> Option<Leaf>;

    /// Installs a leaf by one read-modify-write. Where a leaf is present already it must map the same frame and may only
    /// gain rights (a spurious or upgrading fault); the local TLB entry is dropped then. The caller has checked all that
    /// C2 asks for under this lock.
    fn enter(&mut self, va: u64, new: Enter);

    /// [`enter`](Self::enter)s a leaf at page n from `from` on for each bit n of `which`, where none is present: what `leaf`
    /// says of n. All lie in this table page.
    fn enter_absent(&mut self, from: u64, mut which: u64, mut leaf: impl FnMut(usize) -> Enter) {
        while which != 0 {
            let n = which.trailing_zeros();
            which &= which - 1;
            let va = from + u64::from(n) * PAGE_SIZE;
            if self.get(va).is_none() {
                self.enter(va, leaf(n as usize));
            }
        }
    }

    /// Takes the leaf at `va` away, if present, noting it in `owed` and counting it unflushed.
    fn remove(&mut self, va: u64, owed: &mut Obligation<'_, M>) -> Option<Removed>;

    /// As [`remove`](Self::remove), for who takes nothing else away here: where no CPU runs the space, the removal is flushed when this
    /// returns, by the generation alone, and nothing is owed for it.
    fn remove_alone(&mut self, va: u64, owed: &mut Obligation<'_, M>) -> Option<Removed> {
        self.remove(va, owed)
    }

    /// Leaves only `keep` of the leaf's rights, noting it in `owed` where something was taken. Dirty is kept in what is
    /// returned, and cleared in the leaf where WRITE was taken.
    fn weaken(&mut self, va: u64, keep: Prot, owed: &mut Obligation<'_, M>) -> Option<Removed>;

    /// [`remove`](Self::remove)s all leaves in `range`, or [`weaken`](Self::weaken)s them to `keep`, and hands each that is there
    /// to `each`, as it last was. Returns how many those were. Where `keep` is all but stores, leaves that allow none may be passed over,
    /// and all of them where the table page is sealed, or is from then on (which counts as one): neither
    /// handed over nor counted.
    fn sweep(
        &mut self,
        range: VirtRange,
        keep: Option<Prot>,
        owed: &mut Obligation<'_, M>,
        each: impl FnMut(Removed),
    ) -> u64 {
        self.sweep_leaves(range, keep, owed, each)
    }

    /// [`sweep`](Self::sweep), leaf by leaf.
    fn sweep_leaves(
        &mut self,
        range: VirtRange,
        keep: Option<Prot>,
        owed: &mut Obligation<'_, M>,
        mut each: impl FnMut(Removed),
    ) -> u64 {
        let (mut va, mut seen) = (range.start, 0);
        while let Some(present) = self.next_present(va, range.end) {
            seen += 1;
            let old = match keep {
                None => self.remove(present, owed),
                Some(keep) => self.weaken(present, keep, owed),
            };
            old.into_iter().for_each(&mut each);
            va = present + PAGE_SIZE;
        }
        seen
    }

    /// Whether the table page is *sealed*: nothing in it allows stores, whatever its leaves say. One whose stores are taken away as a whole
    /// ([`sweep`](Self::sweep)) may be, and stays so until it is unsealed; what may allow stores is entered after that only. What is taken
    /// away or weakened meanwhile says what the leaf said.
    fn is_sealed(&self) -> bool {
        false
    }

    /// Ends that. `keep`: the leaves allow what they say again, which the caller has made sure is right for all of them. Else they lose the
    /// right to store one by one, and those that had it are handed to `each`. Nobody has to be flushed: a CPU that remembers less
    /// faults.
    fn unseal(&mut self, keep: bool, each: impl FnMut(Removed)) {
        let (_none_is_sealed, _) = (keep, each);
    }

    /// Clears the accessed bit without a flush, and returns what it was.
    fn take_accessed(&mut self, va: u64) -> bool;

    /// The first address at or above `from` and below `to` with a present leaf.
    fn next_present(&self, from: u64, to: u64) -> Option<u64>;

    /// Whether removals in this table page are not flushed yet (relies on C2).
    fn unflushed(&self) -> bool;

    /// The address of the first byte of user space that shares this table with `va`; number of present leaves.
    fn live(&self) -> u32;
}
