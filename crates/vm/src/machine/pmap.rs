//! The page tables of one address space: a cache of the map. Each page-table page has a lock of its own.

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
    /// The rights of the leaf.
    pub prot: Prot,
    /// The access bit: hardware or the kernel has set it at an access.
    pub accessed: bool,
    /// The dirty bit: hardware or the kernel has set it at a store.
    pub dirty: bool,
}

/// A leaf to install. Its access bit is always set at once. Its dirty bit is set at once if `prot` has WRITE.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enter {
    /// The frame.
    pub pfn: Pfn,
    /// The rights. WRITE is allowed only if the page is already marked dirty, because a writable leaf implies a dirty
    /// page.
    pub prot: Prot,
    /// The memory type. Types other than write-back are for devices.
    pub memory: MemoryType,
    /// Whether the leaf raises the count from which [`Pmap::peak_pages`] is made.
    pub count: Count,
}

/// Whether a new leaf raises the space's count of resident pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Count {
    /// It does.
    More,
    /// It does, unless the page tables [inherited](Pmap::inherit) a count, which includes the leaf's page.
    UnlessInherited,
    /// It does not, because it shows the frame of zeroes.
    Zeroes,
}

impl Enter {
    /// A leaf for a page of RAM.
    #[inline(always)]
    pub const fn new(pfn: Pfn, prot: Prot) -> Enter {
        Enter { pfn, prot, memory: MemoryType::WriteBack, count: Count::More }
    }

    /// A leaf for a page that was there before. A private one (`private`) may be among the pages that a child's page
    /// tables inherited.
    #[inline(always)]
    pub const fn existing(pfn: Pfn, prot: Prot, private: bool) -> Enter {
        Enter { count: if private { Count::UnlessInherited } else { Count::More }, ..Enter::new(pfn, prot) }
    }

    /// A leaf for the frame of zeroes, which allows no stores.
    #[inline(always)]
    pub const fn zeroes(pfn: Pfn, prot: Prot) -> Enter {
        Enter { count: Count::Zeroes, ..Enter::new(pfn, prot.difference(Prot::WRITE)) }
    }
}

/// The last content of a leaf that was removed or weakened by an atomic exchange.
pub type Removed = Leaf;

/// The page tables of one address space.
///
/// # Safety
/// The implementation must keep C2, C3 (dead table pages) and C4 for its own memory. A table page is freed only after
/// four steps. It is marked dead under its lock, it is unlinked, the paging-structure caches are flushed, and no walker
/// is left.
pub unsafe trait Pmap<M: Machine<Pmap = Self>>: Send + Sync + Sized + 'static {
    /// The addresses that a program may map.
    const USER: VirtRange;

    /// Number of bytes that one last-level table page covers: a power of two. Each table page begins at a multiple of
    /// this number.
    const TABLE_SPAN: u64;

    /// A locked last-level table page.
    type Table<'a>: Table<M>
    where
        Self: 'a;

    /// Makes empty page tables that share the kernel's half.
    ///
    /// # Safety
    /// Each later call for these page tables passes the same `vm`. [`destroy`](Self::destroy) destroys them, after
    /// every CPU has left them.
    unsafe fn new(vm: &'static Physical<M>) -> Result<Self, OutOfMemory>;

    /// Locks the last-level table page that covers `va`. Allocates missing levels, and the root if it was dropped. The
    /// returned table page is live (not dead). A full fence separates the lock from the return (`fence_after_rmw`,
    /// relies on C2). `pin` belongs to the system's epoch; a faulting thread has one already.
    fn table(&self, vm: &'static Physical<M>, va: u64, pin: &Pinned<'_>) -> Result<Self::Table<'_>, OutOfMemory>;

    /// Locks the first *existing* last-level table page that covers an address of `range`. `None` if there is none. It
    /// never allocates, and skips absent tables of each level as a whole. To continue, call again with a range that
    /// starts at the returned table's `span().end`. The caller has issued a full fence since it published its stale
    /// marks, because absent tables may be skipped only then.
    fn next_table(&self, vm: &'static Physical<M>, range: VirtRange) -> Option<Self::Table<'_>>;

    /// Whether a removal in the last-level table page that covers `va` is not flushed yet. If that table page is
    /// absent, the lowest existing table page over `va`, of a higher level, counts. Called by reverse scans that found
    /// no table page there (relies on C2: every remover sees unflushed removals).
    fn unflushed_above(&self, vm: &'static Physical<M>, va: u64) -> bool;

    /// Makes every CPU that may hold translations of this space drop those in `set` (or all), and returns when all of
    /// them have dropped them. Sends interrupts only to CPUs that run this space now. The others compare the space's
    /// generation, which the flush raises, when they switch to the space.
    fn flush(&self, vm: &'static Physical<M>, set: &FlushSet);

    /// Lowers the count of unflushed removals of table page `table` by one. Only the discharge of an [`Obligation`]
    /// calls it. Returns whether the table page then has no leaf and no unflushed removal: a hint that it may be
    /// pruned.
    fn settle(&self, vm: &'static Physical<M>, table: Pfn) -> bool;

    /// Frees empty last-level table pages inside `range`, and upper levels that become empty, while other CPUs may walk
    /// them. The steps: lock the parent, then the child. Check that the child is empty. Mark it dead, unlink it, and
    /// flush. Free it once no walker is left. Preemption is off for a bounded number of table pages at a time.
    fn prune(&self, vm: &'static Physical<M>, range: VirtRange);

    /// Called when the map has fanned out: CPUs map in arenas of their own (relies on C9). From then on, CPUs that
    /// fault in this space may get root tables of their own. A flush then targets only the CPUs that have copied the
    /// root entry. If no memory is free, nothing changes.
    fn fan_out(&self, vm: &'static Physical<M>) {
        let _one_root_serves_all = vm;
    }

    /// Undoes [`fan_out`](Self::fan_out): all CPUs share the root again, and their own roots are freed.
    fn fan_in(&self, vm: &'static Physical<M>) {
        let _one_root_serves_all = vm;
    }

    /// Whether a CPU runs the space now. The answer is a hint, because it is read without a request to other CPUs.
    fn is_running(&self) -> bool;

    /// Whether a CPU other than `cpu` runs the space now. The answer is a hint, as that of
    /// [`is_running`](Self::is_running).
    fn is_running_elsewhere(&self, cpu: CpuId) -> bool;

    /// Whether a CPU has switched to the space since the last call. For pageout, which keeps tables that are in use.
    fn take_ran(&self) -> bool {
        true
    }

    /// Returns empty table pages that CPUs keep for reuse to the frame allocator. Returns their number. Called when
    /// memory is short; the caller may hold locks of slabs.
    fn reclaim_tables(vm: &Physical<M>) -> u64 {
        let _none_kept = vm;
        0
    }

    /// Frees the root table too, if no CPU runs the space and no other table page is left. The next
    /// [`table`](Self::table) makes a new root. Returns whether the root is freed, or will be once no walker can hold
    /// it. A CPU that has the space loaded without running it is first made to leave the root. A machine may keep its
    /// roots.
    fn drop_root(&self, vm: &'static Physical<M>) -> bool {
        let _kept = vm;
        false
    }

    /// Frees all table pages but the root. The caller has emptied the map, so no thread can fault in this space any
    /// more, and no reverse scan can reach it. So no wait for the epoch is needed (relies on C4: the flush at the exit
    /// came before).
    fn clear(&self, vm: &'static Physical<M>);

    /// Frees the root too, if it was not dropped.
    ///
    /// # Safety
    /// No CPU runs this space, and `clear` was called.
    unsafe fn destroy(&mut self, vm: &'static Physical<M>);

    /// Checks the invariants of the table pages. Every present entry leads to a live table page or is a leaf. The
    /// counts of present entries are right. No scan would skip a present entry. With `quiet`, no operation is in
    /// progress, and the count of unflushed removals must be zero. Otherwise other CPUs may walk, link and remove
    /// during the check. Returns the number of checked entries.
    fn check(&self, vm: &'static Physical<M>, quiet: bool) -> Result<u64, Broken>;

    /// Number of resident (present) user pages, summed from the table pages' counts.
    fn resident_pages(&self, vm: &'static Physical<M>) -> u64;

    /// [`resident_pages`](Self::resident_pages) and [`table_pages`](Self::table_pages), from one walk.
    fn pages(&self, vm: &'static Physical<M>) -> (u64, u64) {
        (self.resident_pages(vm), self.table_pages(vm))
    }

    /// The most pages that were resident at the same time. Reads no table page. The number may be too low by the pages
    /// that CPUs which run the space now have counted only locally.
    fn peak_pages(&self, vm: &'static Physical<M>) -> u64;

    /// Called for the new page tables of a child. Lets them count as resident the pages that `parent` counts, `most` at
    /// most, although no leaf maps them yet. Only the peak is made from this count.
    fn inherit(&self, vm: &'static Physical<M>, parent: &Self, most: u64) {
        let _none_counted = (vm, parent, most);
    }

    /// Ends an [inheritance](Self::inherit): all leaves were removed, and each leaf counts from now on.
    fn disinherit(&self) {}

    /// The count of resident pages from which the peak is made, with [inherited](Self::inherit) ones. Reads no table
    /// page. `None` if there is no such count.
    fn counted_pages(&self, vm: &'static Physical<M>) -> Option<u64> {
        let _none = vm;
        None
    }

    /// Makes `pages` the value of [`counted_pages`](Self::counted_pages).
    fn recount(&self, vm: &'static Physical<M>, pages: u64) {
        let _none_counted = (vm, pages);
    }

    /// Restarts the peak: [`peak_pages`](Self::peak_pages) becomes the largest number since this call, the present one
    /// included.
    fn restart_peak(&self, vm: &'static Physical<M>);

    /// Number of table pages, the root included; 0 if all were dropped.
    fn table_pages(&self, vm: &'static Physical<M>) -> u64;
}

/// A live last-level table page whose spin lock this value holds. The holder must not sleep (relies on C5).
pub trait Table<M: Machine> {
    /// The addresses that this table page covers (2 MiB on x86-64).
    fn span(&self) -> VirtRange;

    /// The leaf at `va`, if present.
    fn get(&self, va: u64) -> Option<Leaf>;

    /// Installs a leaf by one atomic read-modify-write. If a leaf is present already, it must map the same frame, and
    /// may only gain rights (a spurious or upgrading fault). Then this CPU's TLB entry is dropped. The caller has made
    /// all checks that C2 requires under this lock.
    fn enter(&mut self, va: u64, new: Enter);

    /// For each bit n of `which`, [`enter`](Self::enter)s the leaf `leaf(n)` at page n from address `from` on, if no
    /// leaf is present there. All these addresses lie in this table page.
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

    /// Removes the leaf at `va`, if present, and returns it. Adds its flush to `owed`, and counts the removal as
    /// unflushed.
    fn remove(&mut self, va: u64, owed: &mut Obligation<'_, M>) -> Option<Removed>;

    /// Removes the leaf like [`remove`](Self::remove), for a caller that removes no other leaf in this table page. If
    /// no CPU runs the space, this raises the generation at once, which flushes the removal. Then no flush is owed.
    fn remove_alone(&mut self, va: u64, owed: &mut Obligation<'_, M>) -> Option<Removed> {
        self.remove(va, owed)
    }

    /// Reduces the leaf's rights to `keep`. Adds a flush to `owed` if the leaf loses a right. Returns the old leaf with
    /// its dirty bit. The new leaf loses the dirty bit if it loses WRITE.
    fn weaken(&mut self, va: u64, keep: Prot, owed: &mut Obligation<'_, M>) -> Option<Removed>;

    /// [`remove`](Self::remove)s all leaves in `range`, or [`weaken`](Self::weaken)s them to `keep`. Calls `each` with
    /// the last content of each present leaf, and returns their number. If `keep` is all rights but WRITE, leaves
    /// without WRITE may be skipped: they are neither passed to `each` nor counted. If the table page is
    /// store-protected, or becomes so by this call, all leaves are skipped, and the call counts one leaf.
    fn sweep(
        &mut self,
        range: VirtRange,
        keep: Option<Prot>,
        owed: &mut Obligation<'_, M>,
        each: impl FnMut(Removed),
    ) -> u64 {
        self.sweep_leaves(range, keep, owed, each)
    }

    /// As [`sweep`](Self::sweep), but always leaf by leaf.
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

    /// Whether the table page is *store-protected*: no store through it is allowed, whatever rights its leaves have. A
    /// [`sweep`](Self::sweep) that removes WRITE from all its leaves may set this instead. It lasts until
    /// [`restore_stores`](Self::restore_stores). Leaves with WRITE are entered only after that. A removed or weakened
    /// leaf is returned with its own rights.
    fn is_store_protected(&self) -> bool {
        false
    }

    /// Ends store protection. With `keep`, all leaves get their own rights back; the caller has checked that this is
    /// allowed. Otherwise each leaf loses WRITE, and `each` is called with the leaves that had it. No flush is needed,
    /// because a CPU that has cached fewer rights faults.
    fn restore_stores(&mut self, keep: bool, each: impl FnMut(Removed)) {
        let (_none_is_store_protected, _) = (keep, each);
    }

    /// Clears the access bit of the leaf at `va` without a flush, and returns its old value.
    fn take_accessed(&mut self, va: u64) -> bool;

    /// The first address at or above `from` and below `to` with a present leaf.
    fn next_present(&self, from: u64, to: u64) -> Option<u64>;

    /// The number of present leaves in `range`, which lies in this table page, without those of the frame `zero`.
    fn count_in(&self, range: VirtRange, zero: Pfn) -> u64 {
        let (mut at, mut leaves) = (range.start, 0);
        while let Some(present) = self.next_present(at, range.end) {
            leaves += u64::from(self.get(present).is_some_and(|leaf| leaf.pfn != zero));
            at = present + PAGE_SIZE;
        }
        leaves
    }

    /// Whether removals in this table page are not flushed yet (relies on C2).
    fn unflushed(&self) -> bool;

    /// Number of present leaves in this table page.
    fn live(&self) -> u32;

    /// Called after the [frame of zeroes](crate::phys::Physical::zero_frame) was entered. Its leaves do not count as
    /// [resident](Pmap::resident_pages) pages.
    fn note_zeroes(&mut self) {}

    /// Whether the frame of zeroes may be mapped in this table page.
    fn shows_zeroes(&self) -> bool {
        true
    }
}
