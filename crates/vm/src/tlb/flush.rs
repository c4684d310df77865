//! Flush obligations: the flush that is owed after a translation was removed or weakened, and the proof that it was
//! done.
//!
//! # Contract C4: frames after the flush
//! Weakening a translation returns an obligation that owns the frames. Only its discharge yields the proof that later
//! steps take as an argument.
//!
//! An [`Obligation`] collects addresses, table pages, and frames that may be freed only after the flush. Each of these
//! table pages counts its unflushed removals. The obligation has raised that count once, however many PTEs it removed
//! there. Its `discharge` makes the CPUs that run the space drop those translations, lowers the counts, frees the
//! frames and yields [`Flushed`]. Dropping the obligation also discharges it, so that no path can forget this. Only
//! `discharge` gives the proof. An obligation has room for a bounded number of ranges and table pages. When the ranges
//! are full, they widen to "everything". When it has no room for another table page, its owner discharges it before the
//! next removal.

use crate::machine::{Machine, Pmap};
use crate::phys::Physical;
use crate::phys::frames::Frame;
use crate::types::{PAGE_SIZE, Pfn, VirtRange};
use core::ptr;

/// The number of separate ranges that are kept before the set becomes "everything". With more ranges, single
/// invalidations cost more than refilling a TLB.
const RANGES: usize = 8;
/// The number of table pages with raised counts that an obligation carries. Each covers 2 MiB, so a batch covers 32
/// MiB.
const TABLES: usize = 16;
/// The number of pages above which a flush drops everything instead of page by page (Linux found 33 on its machines).
const PAGES: u64 = 32;

const NOWHERE: VirtRange = VirtRange { start: u64::MAX, end: 0 };
const EVERYWHERE: VirtRange = VirtRange { start: 0, end: u64::MAX };

/// The translations that must leave the TLBs.
#[derive(Clone, Debug)]
pub struct FlushSet {
    ranges: [VirtRange; RANGES],
    len: usize,
    pages: u64,
    all: bool,
    /// The paging-structure caches must be flushed too, because a table page was unlinked.
    structure: bool,
    /// A range that contains all added ranges. It is kept up to date even after the set became "everything".
    hull: VirtRange,
}

impl FlushSet {
    /// An empty set.
    pub const fn new() -> Self {
        let ranges = [VirtRange { start: 0, end: 0 }; RANGES];
        FlushSet { ranges, len: 0, pages: 0, all: false, structure: false, hull: NOWHERE }
    }

    #[inline]
    fn widen(&mut self, range: VirtRange) {
        self.hull.start = self.hull.start.min(range.start);
        self.hull.end = self.hull.end.max(range.end);
    }

    /// Empties the set.
    fn clear(&mut self) {
        (self.len, self.pages, self.all, self.structure, self.hull) = (0, 0, false, false, NOWHERE);
    }

    /// Adds `range`, for the models of page tables.
    #[cfg(any(loom, shuttle))]
    pub fn add_for_model(&mut self, range: VirtRange) {
        self.add(range);
    }

    /// Adds `range`.
    #[inline]
    pub(crate) fn add(&mut self, range: VirtRange) {
        self.widen(range);
        if self.all {
            return;
        }
        self.pages += range.bytes() / PAGE_SIZE;
        if self.pages > PAGES {
            self.all = true;
            return;
        }
        if self.len > 0 && self.ranges[self.len - 1].end == range.start {
            self.ranges[self.len - 1].end = range.end;
        } else if self.len < RANGES {
            self.ranges[self.len] = range;
            self.len += 1;
        } else {
            self.all = true;
        }
    }

    /// Adds all translations of the space.
    pub fn add_all(&mut self) {
        self.all = true;
        self.hull = EVERYWHERE;
    }

    /// Makes the flush also drop cached upper levels for the addresses of `range`.
    pub fn add_structure(&mut self, range: VirtRange) {
        self.structure = true;
        self.widen(range);
    }

    /// A range that contains all addresses to flush.
    pub fn hull(&self) -> VirtRange {
        self.hull
    }

    /// Whether the set has nothing to flush.
    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0 && !self.all && !self.structure
    }

    /// The ranges to flush, or `None` for everything.
    pub fn ranges(&self) -> Option<&[VirtRange]> {
        (!self.all).then_some(&self.ranges[..self.len])
    }

    /// Whether cached upper levels must be flushed.
    pub fn structure(&self) -> bool {
        self.structure
    }
}

impl Default for FlushSet {
    fn default() -> Self {
        Self::new()
    }
}

/// A flush that is owed; see the module's comment.
#[must_use = "a flush is owed: discharge it and pass the proof on"]
pub struct Obligation<'p, M: Machine> {
    vm: &'static Physical<M>,
    pmap: &'p M::Pmap,
    set: FlushSet,
    tables: [Pfn; TABLES],
    tables_len: usize,
    /// A range that contains the addresses that all table pages in `tables` cover.
    covered: VirtRange,
    /// Whether the discharge frees table pages that are empty once their counts are lowered.
    prunes: bool,
    /// A table page in `covered` may be empty although this obligation owes no flush for it.
    empties: bool,
    frames: Option<Pfn>,
}

/// Proof that the owed translations of one space have left all TLBs. It identifies the space by the address of its page
/// tables.
#[derive(Debug)]
pub struct Flushed {
    pmap: *const (),
}

impl Flushed {
    fn of<M: Machine>(pmap: &M::Pmap) -> Flushed {
        Flushed { pmap: ptr::from_ref(pmap).cast() }
    }

    /// Flushes all of a space.
    pub(crate) fn whole<M: Machine>(vm: &'static Physical<M>, pmap: &M::Pmap) -> Flushed {
        let mut set = FlushSet::new();
        set.add_all();
        pmap.flush(vm, &set);
        Flushed::of::<M>(pmap)
    }
}

/// Proof that a pass over the mappings of an object's pages has flushed all that it owed, in each space. It identifies
/// the object.
#[derive(Debug)]
pub struct FlushedEverywhere {
    object: u64,
}

impl FlushedEverywhere {
    /// The address of the object.
    pub(crate) fn object(&self) -> u64 {
        self.object
    }
}

/// A pass over the mappings of an object's pages. It takes the proof of each space before it continues with the next
/// one. It flushes without a lock ([`Shards::scan_flushing`](crate::object::mapping_list::Shards::scan_flushing)).
pub(crate) struct Pass {
    object: u64,
}

impl Pass {
    /// Begins a pass over the object at address `object`.
    pub(crate) fn over(object: u64) -> Pass {
        Pass { object }
    }

    /// Takes the proof that the pass has flushed one space.
    #[inline(always)]
    pub(crate) fn paid(&mut self, _one: Flushed) {}

    /// Ends the pass after it has visited all mappings.
    pub(crate) fn end(self) -> FlushedEverywhere {
        FlushedEverywhere { object: self.object }
    }
}

/// A statement that no PTE was ever installed for a backing, so no TLB can have one of its translations.
pub(crate) struct NeverMapped(());

impl NeverMapped {
    /// # Safety
    /// No translation was ever installed for the backing for which the statement is used.
    pub(crate) unsafe fn new() -> NeverMapped {
        NeverMapped(())
    }
}

/// Proof that no TLB has a translation of a backing. Either its space was flushed, or the backing never had a PTE.
pub(crate) trait NoTranslation {
    /// Whether the proof holds for the space with these page tables.
    fn is_about<M: Machine>(&self, pmap: &M::Pmap) -> bool;
}

impl NoTranslation for Flushed {
    fn is_about<M: Machine>(&self, pmap: &M::Pmap) -> bool {
        ptr::eq(self.pmap, ptr::from_ref(pmap).cast())
    }
}

impl NoTranslation for NeverMapped {
    fn is_about<M: Machine>(&self, _: &M::Pmap) -> bool {
        true
    }
}

impl<'p, M: Machine> Obligation<'p, M> {
    /// An obligation that owes nothing yet.
    #[inline(always)]
    pub fn new(vm: &'static Physical<M>, pmap: &'p M::Pmap) -> Self {
        Obligation {
            vm,
            pmap,
            set: FlushSet::new(),
            tables: [Pfn(0); TABLES],
            tables_len: 0,
            covered: VirtRange { start: u64::MAX, end: 0 },
            prunes: false,
            empties: false,
            frames: None,
        }
    }

    /// Makes the discharge free table pages that are empty once their counts are lowered. Reverse-map passes use this,
    /// because possibly no later operation visits the table page. Map operations free table pages at better times.
    #[inline(always)]
    pub fn pruning(mut self) -> Self {
        self.prunes = true;
        self
    }

    /// Adds the flush of one page at `va`. If this is the first entry for `table` since the last discharge, calls
    /// `raise`, which raises the table page's count of unflushed removals by one. The pmap calls this while `table`,
    /// which covers `span`, is locked. It calls this before it clears or weakens the PTE, or after that under the same
    /// hold of the lock (relies on C2).
    #[inline]
    pub fn owe(&mut self, va: u64, table: Pfn, span: VirtRange, raise: impl FnOnce()) {
        self.set.add(VirtRange { start: va, end: va + PAGE_SIZE });
        self.owe_table(table, span, raise);
    }

    /// The first half of [`owe`](Self::owe), which comes before PTEs of `table` are cleared or weakened. Their
    /// addresses may be added later ([`owe_range`](Self::owe_range)), while the table page is still locked.
    #[inline]
    pub fn owe_table(&mut self, table: Pfn, span: VirtRange, raise: impl FnOnce()) {
        // Most often `table` is the table page that was added last.
        if !self.tables[..self.tables_len].iter().rev().any(|t| *t == table) {
            assert!(self.tables_len < TABLES, "an obligation is discharged before it visits more table pages");
            raise();
            self.tables[self.tables_len] = table;
            self.tables_len += 1;
            self.cover(span);
        }
    }

    #[inline]
    fn cover(&mut self, span: VirtRange) {
        self.covered.start = self.covered.start.min(span.start);
        self.covered.end = self.covered.end.max(span.end);
    }

    /// Records that an earlier removal, which is already flushed, left a table page empty. The table page covers
    /// `span`. It may be freed at the discharge.
    #[cold]
    pub fn empties(&mut self, span: VirtRange) {
        self.empties = true;
        self.cover(span);
    }

    /// Adds a flush of one page at `va` that another obligation already owes. The PTE is cleared, but the translation
    /// is not yet flushed from all TLBs (relies on C2: every remover sees unflushed removals).
    pub(crate) fn owe_again(&mut self, va: u64) {
        self.set.add(VirtRange { start: va, end: va + PAGE_SIZE });
    }

    /// Whether the next table page may not fit. The caller then discharges (with no table page locked) and begins
    /// again.
    pub(crate) fn is_full(&self) -> bool {
        self.tables_len == TABLES
    }

    /// Adds a flush of `range`. Its PTEs are in table pages that this obligation has counted
    /// ([`owe_table`](Self::owe_table)), or that other obligations have counted already. Relies on C2: every remover
    /// sees unflushed removals.
    pub fn owe_range(&mut self, range: VirtRange) {
        self.set.add(range);
    }

    /// Takes over a frame that may be freed only after the flush.
    pub fn own(&mut self, frame: Frame) {
        let pfn = frame.into_pfn();
        self.vm.page(pfn).set_next(self.frames);
        self.frames = Some(pfn);
    }

    /// Whether the obligation owes nothing.
    pub fn is_empty(&self) -> bool {
        self.set.is_empty() && self.frames.is_none()
    }

    /// Flushes, lowers the counts of the table pages, and frees the frames.
    pub fn discharge(mut self) -> Flushed {
        self.discharge_so_far()
    }

    /// Discharges like [`Obligation::discharge`], but the obligation can be used again afterwards.
    #[inline]
    pub(crate) fn discharge_so_far(&mut self) -> Flushed {
        if self.owes() {
            self.pay();
        }
        Flushed::of::<M>(self.pmap)
    }

    /// Whether a flush is owed, or a table page may be pruned.
    #[inline(always)]
    pub(crate) fn owes(&self) -> bool {
        self.tables_len != 0 || self.empties || !self.is_empty()
    }

    // Keeps C4: owed frames are freed only here, after the flush.
    fn pay(&mut self) {
        if !self.set.is_empty() {
            self.pmap.flush(self.vm, &self.set);
            self.set.clear();
        }
        let mut empty = core::mem::take(&mut self.empties);
        for table in &self.tables[..self.tables_len] {
            empty |= self.pmap.settle(self.vm, *table);
        }
        self.tables_len = 0;
        if empty && self.prunes {
            self.pmap.prune(self.vm, self.covered);
        }
        self.covered = VirtRange { start: u64::MAX, end: 0 };
        while let Some(pfn) = self.frames {
            self.frames = self.vm.page(pfn).next();
            // SAFETY: `own` took the frame from its owner, and this loop takes it off the list.
            self.vm.return_frame(unsafe { Frame::from_pfn(pfn) });
        }
    }
}

impl<M: Machine> Drop for Obligation<'_, M> {
    #[inline(always)]
    fn drop(&mut self) {
        if self.owes() {
            self.pay();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::testing::{TestPmap, boot, page};

    #[test]
    fn an_obligation_raises_a_table_page_count_once() {
        let boot = boot(512, 1);
        // SAFETY: the page tables are used only with `boot.vm`, which made them.
        let pmap = unsafe { TestPmap::new(boot.vm) }.unwrap();
        let mut raised = 0;
        for _ in 0..2 {
            let mut owed = Obligation::new(boot.vm, &pmap);
            for n in 0..100 {
                // The obligation alternates between two table pages. It raises the count of each only once until the
                // discharge.
                owed.owe(page(n), Pfn(n % 2), VirtRange { start: page(0), end: page(100) }, || raised += 1);
            }
            // The closure raised no count of a table page, so none may be lowered.
            owed.tables_len = 0;
            let _flushed = owed.discharge();
        }
        assert_eq!(raised, 4);
    }

    #[test]
    fn flushed_ranges_are_not_flushed_again() {
        let boot = boot(512, 1);
        // SAFETY: the page tables are used only with `boot.vm`, which made them.
        let pmap = unsafe { TestPmap::new(boot.vm) }.unwrap();
        let range = |n| VirtRange { start: page(n), end: page(n + 1) };
        let mut owed = Obligation::new(boot.vm, &pmap);
        owed.owe_range(range(0));
        let _flushed = owed.discharge_so_far();
        assert!(owed.is_empty());
        owed.owe_range(range(9));
        // The hull selects the CPUs that the flush targets, if CPUs have their own root tables.
        assert_eq!(owed.set.hull(), range(9));
        let _flushed = owed.discharge();
    }
}
