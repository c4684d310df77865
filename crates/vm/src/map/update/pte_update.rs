//! The page-table work of map changes: clears or weakens the present leaves of a range, and pays for the flush.
//!
//! Cost follows resident pages: absent levels are skipped whole, and a table page's bitmap finds its present leaves
//! (relies on C7).

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
    /// Nothing: they stay right.
    None,
    /// All are cleared.
    Clear(VirtRange),
    /// The leaves keep these rights at most.
    Weaken(VirtRange, Prot),
}

impl Work {
    /// The entries of a range lose the rights `lost`, and have `prot` from then on.
    pub fn lose(range: VirtRange, lost: Prot, prot: Prot) -> Work {
        if lost.is_empty() {
            Work::None
        } else if lost == Prot::WRITE && !prot.is_empty() {
            // Without any right no leaf is present. Otherwise no leaf allows more than its entry did, so all rights but
            // stores stay. A weakening of stores alone looks only at table pages with stores.
            Work::Weaken(range, UNWRITABLE)
        } else {
            Work::Weaken(range, prot)
        }
    }
}

/// Everything but stores.
pub(in crate::map) const UNWRITABLE: Prot = Prot::all().difference(Prot::WRITE);

/// Work on leaves whose flush is owed.
pub(in crate::map) struct Sweep<'s, M: Machine> {
    space: &'s Space<M>,
    owed: Obligation<'s, M>,
    /// From the first to the last table page that a clearing emptied.
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

    /// Does `work`. Relies on C3: the caller has marked the entries stale, and fenced. Only then may an absent table
    /// page be skipped.
    pub fn perform(&mut self, work: Work) {
        let (range, keep) = match work {
            Work::None => return,
            Work::Clear(range) => (range, None),
            Work::Weaken(range, keep) => (range, Some(keep)),
        };
        let (vm, pmap) = (self.space.vm(), self.space.pmap());
        let mut at = range.start;
        while at < range.end {
            if self.owed.is_full() {
                // The proof of a part is not the caller's; the last one is returned when all is paid.
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

    /// Weakens several ranges, ascending; those that share a table page share its lock. The caller as for `perform`.
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

    /// The leaves of `part` in `table`: they keep the rights `keep` at most, or go. Returns how many were visited.
    fn sweep(&mut self, table: &mut <M::Pmap as Pmap<M>>::Table<'_>, part: VirtRange, keep: Option<Prot>) -> u64 {
        if !mutant(Mutant::NoUnflushedSweep) && table.unflushed() {
            // A TLB may still cache leaves that a reverse scan removed, or rights that a cleaner took away. This
            // change's flush ends that.
            self.owed.owe_range(part);
        }
        let vm = self.space.vm();
        let seen = table.sweep(part, keep, &mut self.owed, |old| credit(vm, Some(old)));
        self.visited += seen;
        seen
    }

    /// Flushes for all of it.
    pub fn finish(&mut self) -> Flushed {
        if self.visited != 0 {
            self.space.vm().stats().add(Event::RangeVisit, self.visited);
        }
        self.owed.discharge_so_far()
    }
}
