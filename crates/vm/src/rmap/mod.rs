//! Reverse mapping: what is done to every translation of an object's pages, wherever they are mapped.
//!
//! There is no record for a mapped page. An object knows the backings that show it; a backing says at which address of which
//! space a page of the object would be; the table page over that address says whether it is. So a mapping of a page costs a
//! leaf and nothing else, and whoever wants all mappings of many pages asks each backing once, not each page.
//!
//! # Operations
//! All work on a [`Batch`] of pages of one object, in one pass over the backings that show any of them, each backing under the
//! lock of the part of the list that it stands in, each table page locked once for all the pages that it covers.
//!
//! | operation | what becomes of a leaf | who holds the pages busy | flush |
//! |---|---|---|---|
//! | [`unmap`] | goes; what it says of stores is credited to the page | the caller | yes |
//! | [`unmap_unwired`] | the same, where no wired backing shows it | the caller | yes |
//! | [`write_protect`] | loses WRITE and its own dirty bit | a cleaner; nobody where only stores are to be seen | yes |
//! | [`take_referenced`] | loses its accessed bit | nobody | no: a TLB that still holds it set is a missed look, not an error |
//! | [`query`] | is read | nobody | no |
//!
//! # Flushes (relies on C2)
//! A pass that takes away or weakens flushes each space before it lets the backing's part go. Where it finds nothing to take,
//! another remover may have been faster and not flushed yet: the table page's count of unflushed removals says so, and then
//! this pass flushes that address too, so that its [`Flushed`] holds for every translation there was.
//!
//! # Cleaning
//! Clear the page's dirty mark, fence, [`write_protect`], and only then read the page (the pass fences at its start). A store
//! before the flush is in what is read; one after it faults, waits until the page is not busy, and marks it dirty again. So
//! the write-protecting pass must not credit the leaves' dirty bits: they are of stores that the read will see.

use crate::machine::{Leaf, Machine, Pmap, Table};
use crate::mutant::{Mutant, mutant};
use crate::object::Object;
use crate::object::Objects;
use crate::object::backing::Backing;
use crate::object::batch::{Batch, Subset};
use crate::object::interval::Interval;
use crate::phys::page::State;
use crate::rmap::dirty::credit;
use crate::tlb::flush::{Flushed, FlushedEverywhere, Obligation, Pass};
use crate::types::{PAGE_SHIFT, PAGE_SIZE, Pfn, Prot, VirtRange};
use core::ops::Range;
use quire_sync::atomic::fence_full;

/// What a pass does where it meets a leaf that maps one of its pages.
trait Operation<M: Machine> {
    /// Translations are taken away or weakened: the pass fences first, and flushes what others have not flushed yet.
    const FLUSHES: bool;
    /// `at`: the page's number in the batch. `leaf` stands at `va` in the locked `table`.
    fn leaf(&mut self, at: usize, va: u64, leaf: Leaf, table: &mut impl Table<M>, owed: &mut Obligation<'_, M>);
    /// Whether the pass leaves alone what `b` shows, among the pages with these numbers in the batch.
    fn spares(&mut self, b: &Backing<M>, pages: Range<usize>) -> bool {
        let _nothing = (b, pages);
        false
    }
}

struct Unmap<'b, M: Machine>(&'static Objects<M>, &'b Batch);

impl<M: Machine> Operation<M> for Unmap<'_, M> {
    const FLUSHES: bool = true;
    fn leaf(&mut self, at: usize, va: u64, _: Leaf, table: &mut impl Table<M>, owed: &mut Obligation<'_, M>) {
        let gone = match self.1.as_slice() {
            [_] => table.remove_alone(va, owed),
            _ => table.remove(va, owed),
        };
        if gone.is_some_and(|leaf| leaf.dirty) {
            self.0.page(self.1.as_slice()[at].1).set(State::DIRTY);
        }
    }
}

/// Takes every translation of the batch's pages away; flushed when it returns. Relies on C2: the caller holds them busy, and
/// they are marked dirty where a leaf says that they were stored into.
pub(crate) fn unmap<M: Machine>(object: &Object<M>, batch: &Batch) -> FlushedEverywhere {
    pass(object, batch, &mut Unmap(object.vm(), batch))
}

/// As [`unmap`], for who wants to steal the pages: those that a wired backing shows are returned, and stay the object's.
pub(crate) fn unmap_unwired<M: Machine>(object: &Object<M>, batch: &Batch) -> (FlushedEverywhere, Subset) {
    struct Steal<'b, M: Machine>(Unmap<'b, M>, Subset);
    impl<M: Machine> Operation<M> for Steal<'_, M> {
        const FLUSHES: bool = true;
        fn leaf(&mut self, at: usize, va: u64, leaf: Leaf, table: &mut impl Table<M>, owed: &mut Obligation<'_, M>) {
            self.0.leaf(at, va, leaf, table, owed);
        }
        fn spares(&mut self, b: &Backing<M>, pages: Range<usize>) -> bool {
            // Behind the fence that follows busy: a fault of whoever has wired it since has seen busy, or is seen here.
            let wired = b.is_wired();
            if wired {
                pages.for_each(|at| self.1.add(at));
            }
            wired
        }
    }
    let mut steal = Steal(Unmap(object.vm(), batch), Subset::default());
    let flushed = pass(object, batch, &mut steal);
    (flushed, steal.1)
}

/// Takes every translation away that a backing which shows `keys` of `object` allows there, whatever page it is of: copies that
/// private mappings have in front of a file go with the file's own pages. Flushed when it returns. The caller has made sure
/// that no fault installs such a translation any more, and has fenced.
pub(crate) fn unmap_shown<M: Machine>(object: &Object<M>, keys: Range<u64>) -> FlushedEverywhere {
    let vm = object.vm();
    let mut passed = Pass::over(object.address());
    object.scan(keys.start, keys.end, |b| {
        let (from, to) = (keys.start.max(Interval::start(b)), keys.end.min(Interval::end(b)));
        if from >= to {
            return;
        }
        let (mut at, end) = (b.va(from), b.va(from) + ((to - from) << PAGE_SHIFT));
        let mut owed = Obligation::new(vm, b.pmap());
        while let Some(mut table) = b.pmap().next_table(vm, VirtRange { start: at, end }) {
            let span = table.span();
            at = at.max(span.start);
            while let Some(va) = table.next_present(at, span.end.min(end)) {
                let gone = table.remove(va, &mut owed);
                credit(vm, gone);
                at = va + PAGE_SIZE;
            }
            at = span.end;
            drop(table);
            if owed.is_full() {
                passed.paid(core::mem::replace(&mut owed, Obligation::new(vm, b.pmap())).discharge());
            }
            if at >= end {
                break;
            }
        }
        passed.paid(owed.discharge());
    });
    object.scanned();
    passed.end()
}

/// Takes the right to store away from every translation of the batch's pages; flushed when it returns. What the leaves say of
/// stores so far is dropped (see *Cleaning*).
pub(crate) fn write_protect<M: Machine>(object: &Object<M>, batch: &Batch) -> FlushedEverywhere {
    struct Protect;
    impl<M: Machine> Operation<M> for Protect {
        const FLUSHES: bool = true;
        fn leaf(&mut self, _: usize, va: u64, leaf: Leaf, table: &mut impl Table<M>, owed: &mut Obligation<'_, M>) {
            if leaf.prot.contains(Prot::WRITE) {
                table.weaken(va, Prot::READ | Prot::EXEC, owed);
            } else if !mutant(Mutant::NoUnflushedCheck) && table.unflushed() {
                // Weakened by somebody who has not flushed yet: a TLB may still allow stores.
                owed.owe_again(va);
            }
        }
    }
    pass(object, batch, &mut Protect)
}

/// Which of the batch's pages were referenced since the last look: by the pages' own marks and by the accessed bits of every
/// translation; both are cleared.
pub(crate) fn take_referenced<M: Machine>(object: &Object<M>, batch: &Batch) -> Subset {
    struct Take(Subset);
    impl<M: Machine> Operation<M> for Take {
        const FLUSHES: bool = false;
        fn leaf(&mut self, at: usize, va: u64, leaf: Leaf, table: &mut impl Table<M>, _: &mut Obligation<'_, M>) {
            if leaf.accessed && table.take_accessed(va) {
                self.0.add(at);
            }
        }
    }
    let mut take = Take(Subset::default());
    for (at, (_, pfn)) in batch.as_slice().iter().enumerate() {
        let page = object.vm().page(*pfn);
        if page.state().0 & State::REFERENCED != 0 && page.clear(State::REFERENCED).0 & State::REFERENCED != 0 {
            take.0.add(at);
        }
    }
    pass(object, batch, &mut take);
    take.0
}

/// What is known of a batch's pages; nothing is changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Query {
    /// Some translation exists.
    pub mapped: Subset,
    /// Referenced since the last look.
    pub referenced: Subset,
    /// Memory is newer than what the pager has.
    pub dirty: Subset,
}

/// Looks at the marks of the batch's pages and at every translation of them.
pub(crate) fn query<M: Machine>(object: &Object<M>, batch: &Batch) -> Query {
    struct Look(Query);
    impl<M: Machine> Operation<M> for Look {
        const FLUSHES: bool = false;
        fn leaf(&mut self, at: usize, _: u64, leaf: Leaf, _: &mut impl Table<M>, _: &mut Obligation<'_, M>) {
            self.0.mapped.add(at);
            if leaf.accessed {
                self.0.referenced.add(at);
            }
            if leaf.dirty {
                self.0.dirty.add(at);
            }
        }
    }
    let mut found = Query::default();
    for (at, (_, pfn)) in batch.as_slice().iter().enumerate() {
        let state = object.vm().page(*pfn).state();
        if state.0 & State::REFERENCED != 0 {
            found.referenced.add(at);
        }
        if state.dirty() {
            found.dirty.add(at);
        }
    }
    let mut look = Look(found);
    pass(object, batch, &mut look);
    look.0
}

/// One pass over the backings of `object` that show any page of the batch.
fn pass<M: Machine, O: Operation<M>>(object: &Object<M>, batch: &Batch, op: &mut O) -> FlushedEverywhere {
    let pages = batch.as_slice();
    let mut passed = Pass::over(object.address());
    if let (Some(first), Some(last)) = (pages.first(), pages.last()) {
        if O::FLUSHES && !mutant(Mutant::NoFenceBeforeScan) {
            fence_full();
        }
        object.scan(first.0, last.0 + 1, |b| passed.paid(in_backing(object.vm(), b, pages, op)));
        object.scanned();
    }
    // What was owed in each backing's space includes what others had taken away there and not flushed.
    passed.end()
}

/// The pass through one backing: the table pages over what it shows of `pages`.
fn in_backing<M: Machine, O: Operation<M>>(
    vm: &'static Objects<M>,
    b: &Backing<M>,
    pages: &[(u64, Pfn)],
    op: &mut O,
) -> Flushed {
    let pmap = b.pmap();
    let flushes = O::FLUSHES && !mutant(Mutant::NoUnflushedCheck);
    let (mut at, to) = match pages {
        // Most scans are for one page, and come to those only that show it.
        [(key, _)] => (usize::from(*key < Interval::start(b)), usize::from(*key < Interval::end(b))),
        _ => (pages.partition_point(|p| p.0 < Interval::start(b)), pages.partition_point(|p| p.0 < Interval::end(b))),
    };
    let mut owed = Obligation::new(vm, pmap).pruning();
    if op.spares(b, at..to) {
        return owed.discharge();
    }
    while at < to {
        let va = b.va(pages[at].0);
        let Some(mut table) = pmap.next_table(vm, VirtRange { start: va, end: va + PAGE_SIZE }) else {
            if flushes && pmap.unflushed_above(vm, va) {
                owed.owe_again(va);
            }
            at += 1;
            continue;
        };
        let end = table.span().end;
        while at < to {
            let (key, pfn) = pages[at];
            let va = b.va(key);
            if va >= end {
                break;
            }
            match table.get(va) {
                Some(leaf) if leaf.pfn == pfn => op.leaf(at, va, leaf, &mut table, &mut owed),
                _ if flushes && table.unflushed() => owed.owe_again(va),
                _ => {}
            }
            at += 1;
        }
        drop(table);
        if owed.is_full() {
            let _flushed = owed.discharge_so_far();
        }
    }
    owed.discharge()
}

pub(crate) mod dirty;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
