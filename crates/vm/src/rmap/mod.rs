//! Reverse mapping: operations on all translations of an object's pages, in all spaces that map them.
//!
//! No record exists for a mapped page. An object knows the backings that show it. A backing knows at which address of
//! which space a page of the object can be. The table page for that address shows whether the page is mapped there. So
//! a mapping of a page costs only a PTE. An operation on all mappings of many pages visits each backing once, not once
//! for each page.
//!
//! # Operations
//! Each operation works on a [`Batch`] of pages of one object, in one pass over the backings that show any of the
//! pages. The pass changes the leaves at a backing under the lock of the backing's shard (a separately locked part of the
//! mapping list). It locks each table page once for all the pages that the table page covers.
//!
//! | operation | effect on a leaf | who holds the pages busy | flush |
//! |---|---|---|---|
//! | [`unmap`] | removed; its dirty bit is credited to the page | the caller | yes |
//! | [`unmap_unwired`] | removed and credited, if no wired backing shows the page | the caller | yes |
//! | [`write_protect`] | loses WRITE and its own dirty bit | a cleaner; callers that only detect stores do not | yes |
//! | [`take_referenced`] | loses its accessed bit | not held | no: if a TLB has the bit, a use may be missed |
//! | [`query`], [`count`] | is read | not held | no |
//!
//! # Flushes (relies on C2)
//! A pass that removes or weakens PTEs flushes each space before it visits the next backing. It releases the shard's lock
//! before the flush, because no lock is held while a CPU waits for others (relies on C5). Until the flush, the table
//! page's count of unflushed removals shows to others that a leaf was removed or weakened, but not flushed
//! ([`flushing`](crate::object::mapping_list)). If the pass finds no PTE, another remover may have cleared the PTE but not
//! flushed it yet. Then this pass flushes that address too, so that its proof covers each translation that existed.
//!
//! # Cleaning
//! A cleaner clears the page's dirty bit, fences, calls [`write_protect`], and only then reads the page (the pass
//! fences at its start). The read sees each store before the flush. A store after the flush faults, waits until the
//! page is not busy, and marks the page dirty again. So the write-protecting pass must not credit the dirty bits of
//! PTEs, because the read will see those stores.

use crate::machine::{Leaf, Machine, Pmap, Table};
use crate::mutant::{Mutant, mutant};
use crate::object::Object;
use crate::object::Objects;
use crate::object::backing::Backing;
use crate::object::batch::{Batch, Subset};
use crate::object::interval::Interval;
use crate::phys::page::State;
use crate::rmap::dirty::credit;
use crate::tlb::flush::{FlushedEverywhere, Obligation, Pass};
use crate::types::{PAGE_SHIFT, PAGE_SIZE, Pfn, Prot, VirtRange};
use core::ops::Range;
use quire_sync::atomic::fence_full;

/// The effect of a pass on a PTE that maps one of its pages.
trait Operation<M: Machine> {
    /// Whether translations are removed or weakened. If so, the pass fences first, and also flushes removals that other
    /// CPUs have not flushed yet.
    const FLUSHES: bool;
    /// Called for each PTE. `at` is the page's number in the batch, and `leaf` is the PTE at address `va` in the locked
    /// `table`.
    fn leaf(&mut self, at: usize, va: u64, leaf: Leaf, table: &mut impl Table<M>, owed: &mut Obligation<'_, M>);
    /// Whether the pass skips the PTEs of `b`. `pages` are the numbers of the pages in the batch that `b` shows.
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

/// Removes all translations of the batch's pages, and has flushed them when it returns. Relies on C2: the caller holds
/// the pages busy. Marks a page dirty if the dirty bit of one of its PTEs was set.
pub(crate) fn unmap<M: Machine>(object: &Object<M>, batch: &Batch) -> FlushedEverywhere {
    pass(object, batch, &mut Unmap(object.vm(), batch))
}

/// Removes translations like [`unmap`], for an eviction, but skips wired backings. Returns the pages that a wired
/// backing shows, which must stay in the object.
pub(crate) fn unmap_unwired<M: Machine>(object: &Object<M>, batch: &Batch) -> (FlushedEverywhere, Subset) {
    struct Eviction<'b, M: Machine>(Unmap<'b, M>, Subset);
    impl<M: Machine> Operation<M> for Eviction<'_, M> {
        const FLUSHES: bool = true;
        fn leaf(&mut self, at: usize, va: u64, leaf: Leaf, table: &mut impl Table<M>, owed: &mut Obligation<'_, M>) {
            self.0.leaf(at, va, leaf, table, owed);
        }
        fn spares(&mut self, b: &Backing<M>, pages: Range<usize>) -> bool {
            // This CPU has set the pages busy and fenced before it reads the wired mark. So a fault through a newly
            // wired mapping sees the busy page, or this read sees the mark.
            let wired = b.is_wired();
            if wired {
                pages.for_each(|at| self.1.add(at));
            }
            wired
        }
    }
    let mut eviction = Eviction(Unmap(object.vm(), batch), Subset::default());
    let flushed = pass(object, batch, &mut eviction);
    (flushed, eviction.1)
}

/// Removes all translations at the addresses at which backings show `keys` of `object`, whatever pages they map. So a
/// private mapping's copies in front of a file are unmapped together with the file's own pages. All these translations
/// are flushed when this returns. The caller has made sure that no fault installs one of them any more, and has fenced.
pub(crate) fn unmap_shown<M: Machine>(object: &Object<M>, keys: Range<u64>) -> FlushedEverywhere {
    let vm = object.vm();
    let mut passed = Pass::over(object.address());
    object.scan_flushing(keys.start, keys.end, &mut passed, |b, resumed, owed| {
        let (from, to) = (keys.start.max(Interval::start(b)), keys.end.min(Interval::end(b)));
        if from >= to {
            return None;
        }
        let (mut at, end) = (b.va(from).max(resumed), b.va(from) + ((to - from) << PAGE_SHIFT));
        while let Some(mut table) = b.pmap().next_table(vm, VirtRange { start: at, end }) {
            let span = table.span();
            at = at.max(span.start);
            if table.unflushed() {
                // Another remover has cleared leaves here that it has not flushed yet.
                owed.owe_range(VirtRange { start: at, end: span.end.min(end) });
            }
            while let Some(va) = table.next_present(at, span.end.min(end)) {
                let gone = table.remove(va, owed);
                credit(vm, gone);
                at = va + PAGE_SIZE;
            }
            at = span.end;
            drop(table);
            if at >= end {
                break;
            }
            if owed.is_full() {
                return Some(at);
            }
        }
        None
    });
    object.scanned();
    passed.end()
}

/// Write-protects all translations of the batch's pages, and has flushed them when it returns. The dirty bits of the
/// PTEs are dropped (see *Cleaning*).
pub(crate) fn write_protect<M: Machine>(object: &Object<M>, batch: &Batch) -> FlushedEverywhere {
    struct Protect;
    impl<M: Machine> Operation<M> for Protect {
        const FLUSHES: bool = true;
        fn leaf(&mut self, _: usize, va: u64, leaf: Leaf, table: &mut impl Table<M>, owed: &mut Obligation<'_, M>) {
            if leaf.prot.contains(Prot::WRITE) {
                table.weaken(va, Prot::READ | Prot::EXEC, owed);
            } else if !mutant(Mutant::NoUnflushedCheck) && table.unflushed() {
                // Another CPU weakened the PTE and has not flushed it yet, so a TLB may still allow stores.
                owed.owe_again(va);
            }
        }
    }
    pass(object, batch, &mut Protect)
}

/// Returns the pages of the batch that were referenced since the last call. Reads and clears the reference bits of the
/// pages and the accessed bits of all translations.
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

/// The state of the pages of a batch, read without a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Query {
    /// The pages that some translation maps.
    pub mapped: Subset,
    /// The pages that were referenced since the last call of [`take_referenced`].
    pub referenced: Subset,
    /// The pages that are newer than the pager's copy.
    pub dirty: Subset,
}

/// Reads the bits of the batch's pages and of all their translations.
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

/// A count of the translations of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mappings {
    /// The number of PTEs that map the frame.
    pub leaves: u64,
    /// Whether one of the leaves belongs to a wired mapping, whose pages stay resident.
    pub wired: bool,
}

/// How often a count starts again because a backing was linked during the count.
const RECOUNTS: u32 = 4;

/// Counts the translations of page `key` of `object` that map frame `pfn`. Changes nothing. A pass may visit a backing
/// and its replacement, or a backing twice. So the count starts again if the list has changed, up to [`RECOUNTS`]
/// times. After that, a translation may be counted twice.
pub(crate) fn count<M: Machine>(object: &Object<M>, key: u64, pfn: Pfn) -> Mappings {
    /// The counts, and whether the backing that the pass visits is wired.
    struct Count(Mappings, bool);
    impl<M: Machine> Operation<M> for Count {
        const FLUSHES: bool = false;
        fn leaf(&mut self, _: usize, _: u64, _: Leaf, _: &mut impl Table<M>, _: &mut Obligation<'_, M>) {
            self.0.leaves += 1;
            self.0.wired |= self.1;
        }
        fn spares(&mut self, b: &Backing<M>, _: Range<usize>) -> bool {
            self.1 = b.is_wired();
            false
        }
    }
    let mut batch = Batch::new();
    batch.push(key, pfn);
    let mut left = RECOUNTS;
    loop {
        let before = object.shards().linkings();
        let mut count = Count(Mappings::default(), false);
        pass(object, &batch, &mut count);
        if left == 0 || object.shards().linkings() == before {
            return count.0;
        }
        left -= 1;
    }
}

/// Runs one pass of `op` over the backings of `object` that show any page of the batch.
fn pass<M: Machine, O: Operation<M>>(object: &Object<M>, batch: &Batch, op: &mut O) -> FlushedEverywhere {
    let pages = batch.as_slice();
    let mut passed = Pass::over(object.address());
    if let (Some(first), Some(last)) = (pages.first(), pages.last()) {
        if O::FLUSHES && !mutant(Mutant::NoFenceBeforeScan) {
            fence_full();
        }
        object.scan_flushing(first.0, last.0 + 1, &mut passed, |b, from, owed| {
            in_backing(object.vm(), b, (pages, from as usize), op, owed).map(|at| at as u64)
        });
        object.scanned();
    }
    // The flush of each backing's space also covered PTEs that other CPUs had removed from the space and not flushed.
    passed.end()
}

/// Runs the pass through one backing: over the table pages of the `pages` that it shows, from the number `from` on. If
/// `owed` is full, returns the number of the page at which the pass goes on.
fn in_backing<'b, M: Machine, O: Operation<M>>(
    vm: &'static Objects<M>,
    b: &'b Backing<M>,
    (pages, from): (&[(u64, Pfn)], usize),
    op: &mut O,
    owed: &mut Obligation<'b, M>,
) -> Option<usize> {
    let pmap = b.pmap();
    let flushes = O::FLUSHES && !mutant(Mutant::NoUnflushedCheck);
    let (mut at, to) = match pages {
        // Most scans are for one page, and visit only backings that show it.
        [(key, _)] => (usize::from(*key < Interval::start(b)), usize::from(*key < Interval::end(b))),
        _ => (pages.partition_point(|p| p.0 < Interval::start(b)), pages.partition_point(|p| p.0 < Interval::end(b))),
    };
    // A pass that goes on has found that the operation does not skip the backing.
    if from == 0 && op.spares(b, at..to) {
        return None;
    }
    at = at.max(from);
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
                Some(leaf) if leaf.pfn == pfn => op.leaf(at, va, leaf, &mut table, owed),
                _ if flushes && table.unflushed() => owed.owe_again(va),
                _ => {}
            }
            at += 1;
        }
        drop(table);
        if owed.is_full() && at < to {
            return Some(at);
        }
    }
    None
}

pub(crate) mod dirty;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
