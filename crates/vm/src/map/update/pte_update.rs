//! The page-table work of map changes: it clears or weakens the present leaves of a range, and flushes.
//!
//! The cost follows resident pages (relies on C7). Absent tables of each level are skipped as a whole, and a table page
//! has a bitmap of its present leaves.

use crate::machine::{Machine, Pmap, Table};
use crate::map::space::Space;
use crate::mutant::{Mutant, mutant};
use crate::rmap::dirty::credit;
use crate::stats::Event;
use crate::tlb::flush::{Flushed, Obligation};
use crate::types::{Prot, VirtRange};

/// The effect of a change on the leaves of its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::map) enum Work {
    /// The leaves stay as they are.
    None,
    /// All leaves of the range are cleared.
    Clear(VirtRange),
    /// The leaves keep these rights at most.
    Weaken(VirtRange, Prot),
}

impl Work {
    /// The work for entries of `range` that lose the rights `lost` and keep `prot`.
    pub fn lose(range: VirtRange, lost: Prot, prot: Prot) -> Work {
        if lost.is_empty() {
            Work::None
        } else if lost == Prot::WRITE && !prot.is_empty() {
            // Only the right to store is lost, and some right remains. No leaf allows more than its entry did, so
            // removing that right from the leaves suffices. For this work, only table pages that have writable leaves
            // are searched. (If `prot` is empty, no leaf may stay present.)
            Work::Weaken(range, UNWRITABLE)
        } else {
            Work::Weaken(range, prot)
        }
    }
}

/// All rights but that to store.
pub(in crate::map) const UNWRITABLE: Prot = Prot::all().difference(Prot::WRITE);

/// Work on leaves, and the flush that it owes.
pub(in crate::map) struct Sweep<'s, M: Machine> {
    space: &'s Space<M>,
    owed: Obligation<'s, M>,
    /// The range from the first to the last table page that has no leaf any more after a clearing.
    pub emptied: Option<VirtRange>,
    /// Leaves that were cleared.
    pub cleared: u64,
    /// Leaves that were looked at.
    visited: u64,
}

impl<'s, M: Machine> Sweep<'s, M> {
    pub fn new(space: &'s Space<M>) -> Self {
        Sweep { space, owed: Obligation::new(space.vm(), space.pmap()), emptied: None, cleared: 0, visited: 0 }
    }

    /// Performs `work`. The caller has marked the entries stale, and issued a full fence (relies on C3). Otherwise a
    /// fault could enter a leaf after this call has skipped its absent table page.
    pub fn perform(&mut self, work: Work) {
        let (range, keep) = match work {
            Work::None => return,
            Work::Clear(range) => (range, None),
            Work::Weaken(range, keep) => (range, Some(keep)),
        };
        if keep.is_none_or(|keep| keep.is_empty()) {
            self.space.note_removal();
        }
        let (vm, pmap) = (self.space.vm(), self.space.pmap());
        let mut at = range.start;
        while at < range.end {
            if self.owed.is_full() {
                // The proof of a partial flush is dropped. [`Sweep::finish`] returns the proof of the last flush.
                let _part = self.owed.discharge_so_far();
            }
            let Some(mut table) = pmap.next_table(vm, VirtRange { start: at, end: range.end }) else { break };
            let span = table.span();
            let end = span.end.min(range.end);
            let seen = self.sweep(&mut table, VirtRange { start: at.max(span.start), end }, keep);
            if keep.is_none() {
                self.cleared += seen;
            }
            if keep.is_none() && seen != 0 && table.live() == 0 {
                let start = self.emptied.map_or(span.start, |e| e.start);
                self.emptied = Some(VirtRange { start, end: span.end });
            }
            at = span.end;
        }
    }

    /// Weakens several ranges in ascending order. Ranges on the same table page share one acquisition of its lock. The
    /// requirements are those of [`perform`](Self::perform).
    pub fn weaken_all(&mut self, ranges: impl Iterator<Item = (VirtRange, Prot)>) {
        let (vm, pmap) = (self.space.vm(), self.space.pmap());
        let mut held: Option<<M::Pmap as Pmap<M>>::Table<'_>> = None;
        for (range, keep) in ranges {
            let mut at = range.start;
            while at < range.end {
                let mut table = match held.take().filter(|t| t.span().contains(at)) {
                    Some(table) => table,
                    None => {
                        if self.owed.is_full() {
                            let _part = self.owed.discharge_so_far();
                        }
                        match pmap.next_table(vm, VirtRange { start: at, end: range.end }) {
                            Some(table) => table,
                            None => break,
                        }
                    }
                };
                let span = table.span();
                let end = span.end.min(range.end);
                self.sweep(&mut table, VirtRange { start: at.max(span.start), end }, Some(keep));
                at = end;
                held = Some(table);
            }
        }
    }

    /// Weakens the leaves of `part` in `table` to the rights `keep`, or clears them if `keep` is `None`. Returns the
    /// number of visited leaves.
    fn sweep(&mut self, table: &mut <M::Pmap as Pmap<M>>::Table<'_>, part: VirtRange, keep: Option<Prot>) -> u64 {
        if !mutant(Mutant::NoUnflushedSweep) && table.unflushed() {
            // A TLB may still cache leaves that a reverse scan removed, or rights that a write-back removed. This
            // change must flush them too.
            self.owed.owe_range(part);
        }
        let vm = self.space.vm();
        let seen = table.sweep(part, keep, &mut self.owed, |old| credit(vm, Some(old)));
        self.visited += seen;
        seen
    }

    /// Flushes for all work so far. Returns the proof of the flush.
    pub fn finish(&mut self) -> Flushed {
        if self.visited != 0 {
            self.space.vm().stats().add(Event::RangeVisit, self.visited);
        }
        self.owed.discharge_so_far()
    }
}
