//! The page tables of one address space, as the core sees them: a cache of the map, locked by page-table page.

use super::Machine;
use crate::check::Broken;
use crate::error::OutOfMemory;
use crate::phys::Physical;
use crate::tlb::flush::{FlushSet, Obligation};
use crate::types::{MemoryType, PAGE_SIZE, Pfn, Prot, VirtRange};
use quire_sync::CpuId;
use quire_sync::epoch::Pinned;

/// The content of a present leaf.
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

/// A leaf to install. Accessed is always preset; dirty is preset where `prot` has WRITE.
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

/// A leaf that was taken away or weakened, as it last was, exchanged atomically.
pub type Removed = Leaf;

/// The page tables of one address space.
///
/// # Safety
/// The implementation must keep C2, C3 (dead table pages) and C4 for its own memory. A table page is freed only after
/// four steps: it is marked dead under its lock, unlinked, flushed from paging-structure caches, and no walker is left.
pub unsafe trait Pmap<M: Machine<Pmap = Self>>: Send + Sync + Sized + 'static {
    /// The addresses that a program may map.
    const USER: VirtRange;

    /// Bytes that one last-level table page maps; a power of two, and each begins at a multiple of it.
    const TABLE_SPAN: u64;

    /// A locked last-level table page.
    type Table<'a>: Table<M>
    where
        Self: 'a;

    /// Empty tables that share the kernel's half.
    ///
    /// # Safety
    /// Each later call with the tables names this system. They are destroyed by [`destroy`](Self::destroy), after every
    /// CPU has left them.
    unsafe fn new(vm: &'static Physical<M>) -> Result<Self, OutOfMemory>;

    /// Locks the last-level table page that covers `va`, linking new levels as needed, and the root where it was
    /// dropped. The returned page is live (not
    /// dead), and a full fence stands between the lock and the return (`fence_after_rmw`, relies on C2). `pin` is of
    /// the system's epoch; a faulting thread has one already.
    fn table(&self, vm: &'static Physical<M>, va: u64, pin: &Pinned<'_>) -> Result<Self::Table<'_>, OutOfMemory>;

    /// Locks the first *existing* last-level table page that covers an address of `range`; never allocates; absent
    /// levels are skipped whole. To continue, call again with a range that starts at the returned table's `span().end`.
    /// The caller has fenced since it published its stale marks: an absent table may be skipped only then.
    fn next_table(&self, vm: &'static Physical<M>, range: VirtRange) -> Option<Self::Table<'_>>;

    /// Whether a removal below the (absent or present) table level over `va` is not flushed yet. Called by reverse
    /// scans that found no table page there (relies on C2, unflushed removals).
    fn unflushed_above(&self, vm: &'static Physical<M>, va: u64) -> bool;

    /// Makes every CPU that may hold translations of this space drop those in `set` (or all), and returns when they
    /// have. Sends interrupts only to CPUs that run this space now; others catch up by generation when they switch in.
    fn flush(&self, vm: &'static Physical<M>, set: &FlushSet);

    /// Lowers the count of unflushed removals of table page `table` by one. Called only by [`Obligation`]'s discharge.
    /// Returns whether the table page held nothing and owed nothing then: a hint that it may be pruned.
    fn settle(&self, vm: &'static Physical<M>, table: Pfn) -> bool;

    /// Frees empty last-level table pages inside `range` (and upper levels that become empty) while other CPUs may walk
    /// them. The order: parent then child locked, verified empty, marked dead, unlinked, flushed, freed after the
    /// walkers. Preemption is off for a bounded number of table pages at a time.
    fn prune(&self, vm: &'static Physical<M>, range: VirtRange);

    /// The map has fanned out (relies on C9). From now on CPUs that fault here get root tables of their own, where that
    /// helps. A flush then targets only the CPUs that have copied the root entry. Without memory nothing changes.
    fn fan_out(&self, vm: &'static Physical<M>) {
        let _one_root_serves_all = vm;
    }

    /// Undoes [`fan_out`](Self::fan_out): all CPUs share the root again, and their own roots are freed.
    fn fan_in(&self, vm: &'static Physical<M>) {
        let _one_root_serves_all = vm;
    }

    /// Whether a CPU runs the space now, as far as this CPU sees without a request.
    fn is_running(&self) -> bool;

    /// Whether a CPU other than `cpu` runs the space now, as far as this CPU sees without a request.
    fn is_running_elsewhere(&self, cpu: CpuId) -> bool;

    /// Whether a CPU has begun to run the space since the last call. For pageout, which keeps tables that are in use.
    fn take_ran(&self) -> bool {
        true
    }

    /// Gives empty table pages that CPUs keep for later back to the frame allocator; returns how many. Called when
    /// memory is short, with locks of slabs possibly held.
    fn reclaim_tables(vm: &Physical<M>) -> u64 {
        let _none_kept = vm;
        0
    }

    /// Drops the root table too, where no CPU runs the space and nothing else is left of its tables. The next
    /// [`table`](Self::table) makes one. Returns whether the root is gone, or will be when the last walker has left. A
    /// CPU that keeps the space loaded without running it is made to leave the root first. A machine may keep its
    /// roots.
    fn drop_root(&self, vm: &'static Physical<M>) -> bool {
        let _kept = vm;
        false
    }

    /// Frees all table pages but the root. The caller has emptied the map: no thread can fault here any more, and no
    /// reverse scan can reach this space. Needs no epoch (C4: exit).
    fn clear(&self, vm: &'static Physical<M>);

    /// Frees the root too, where there is one.
    ///
    /// # Safety
    /// No CPU runs this space, and `clear` was called.
    unsafe fn destroy(&mut self, vm: &'static Physical<M>);

    /// Checks the invariants of the table pages. Every present entry leads to a live table page or is a leaf, counts of
    /// present entries are right, and no scan would skip a present entry. Where no operation is under way (`quiet`), no
    /// removal counts as not flushed. Otherwise other CPUs may walk, link and remove meanwhile. Returns the number of
    /// checked entries.
    fn check(&self, vm: &'static Physical<M>, quiet: bool) -> Result<u64, Broken>;

    /// Number of resident (present) user pages, summed from the table pages' counts.
    fn resident_pages(&self, vm: &'static Physical<M>) -> u64;

    /// The most pages that were resident at once, without reading table pages. For each CPU that runs the space now, it
    /// may be too low by the pages that the CPU has counted only for itself.
    fn peak_pages(&self, vm: &'static Physical<M>) -> u64;

    /// Forgets the peak: from now on [`peak_pages`](Self::peak_pages) is the most since this call, or the count of now.
    fn restart_peak(&self, vm: &'static Physical<M>);

    /// Number of table pages, the root included; 0 where it was dropped.
    fn table_pages(&self, vm: &'static Physical<M>) -> u64;
}

/// A live last-level table page, held by its spin lock. The holder must not sleep (relies on C5).
pub trait Table<M: Machine> {
    /// The addresses that this table page covers (2 MiB on x86-64).
    fn span(&self) -> VirtRange;

    /// The leaf at `va`, if present.
    fn get(&self, va: u64) -> Option<Leaf>;

    /// Installs a leaf by one read-modify-write. Where a leaf is present already it must map the same frame and may
    /// only gain rights (a spurious or upgrading fault); the local TLB entry is dropped then. The caller has made all
    /// checks that C2 requires under this lock.
    fn enter(&mut self, va: u64, new: Enter);

    /// [`enter`](Self::enter)s a leaf at page n from `from` on for each bit n of `which`, where none is present: the
    /// result of `leaf(n)`. All lie in this table page.
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

    /// As [`remove`](Self::remove), for a caller that removes only this leaf here. Where no CPU runs the space, the
    /// generation alone flushes the removal before this returns, and nothing is owed for it.
    fn remove_alone(&mut self, va: u64, owed: &mut Obligation<'_, M>) -> Option<Removed> {
        self.remove(va, owed)
    }

    /// Leaves only `keep` of the leaf's rights, noting it in `owed` where a right was taken. The returned leaf keeps
    /// dirty; the installed leaf loses it where WRITE was taken.
    fn weaken(&mut self, va: u64, keep: Prot, owed: &mut Obligation<'_, M>) -> Option<Removed>;

    /// [`remove`](Self::remove)s all leaves in `range`, or [`weaken`](Self::weaken)s them to `keep`, and hands each
    /// present leaf to `each`, as it last was. Returns their number. Where `keep` is all rights but stores, leaves that
    /// allow none may be skipped: neither handed over nor counted. All are skipped where the table page is
    /// store-protected, or becomes so now, which counts as one.
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

    /// Whether the table page is *store-protected*: no store through it is allowed, whatever its leaves say. A
    /// [`sweep`](Self::sweep) that takes all its stores may set this, and it lasts until
    /// [`restore_stores`](Self::restore_stores). Leaves that allow stores are entered only after that. A removed or
    /// weakened leaf is returned with its own rights.
    fn is_store_protected(&self) -> bool {
        false
    }

    /// Ends store protection. `keep`: all leaves allow their own rights again, and the caller has made sure that this
    /// is right. Else they lose the right to store one by one, and those that had it are handed to `each`. No flush is
    /// needed, because a CPU that has cached fewer rights faults.
    fn restore_stores(&mut self, keep: bool, each: impl FnMut(Removed)) {
        let (_none_is_store_protected, _) = (keep, each);
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
