//! Taking pages out of an object's index: those that no leaf maps, and the steps that every remover takes.

use super::batch::{Batch, Subset};
use super::index::{KEYS, Slot};
use super::{Object, ObjectRange, SlotFilter};
use crate::machine::Machine;
use crate::paging::swap::Returned;
use crate::phys::page::Page;
use crate::sleep::MaySleep;
use core::ops::Range;
use quire_sync::epoch::Pinned;

/// The slots that a remover visits: pages in memory or in swap, and zero markers.
pub(crate) const EVERYTHING: SlotFilter = SlotFilter::BOTH.union(SlotFilter::MARKS);

/// What stopped a collection.
pub(crate) enum CollectEnd {
    /// The range is done.
    Done,
    /// The batch is full.
    Full,
    /// This page is busy; the walk stands before it.
    Busy(&'static Page),
    /// A slot is being filled or emptied; the walk stands before it.
    Reserved,
    /// This page is being written to the object's pager; the walk stands before it.
    Laundering(&'static Page),
}

/// Collects pages from the walk's position on, each busy, into an empty batch. Drops zero markers and frees pages in
/// swap.
pub(crate) fn collect<M: Machine>(range: &mut ObjectRange<'_, M>, batch: &mut Batch, pin: &Pinned<'_>) -> CollectEnd {
    let object = range.object();
    let mut returned = Returned::new(object.vm().swap());
    let (key, stop) = 'walk: {
        for found in range.walk(pin) {
            let (key, slot) = (found.key(), found.slot());
            match slot {
                Slot::Page(pfn) => {
                    if batch.is_full() {
                        break 'walk (key, CollectEnd::Full);
                    }
                    let page = object.vm().page(pfn);
                    match object.vm().try_busy_page(object, key, page) {
                        // No write may reach the file beyond its new end.
                        Some(_) if page.state().laundering() && !object.holes_are_zero() => {
                            object.vm().unbusy(page);
                            break 'walk (key, CollectEnd::Laundering(page));
                        }
                        Some(_) => batch.push(key, pfn),
                        None => break 'walk (key, CollectEnd::Busy(page)),
                    }
                }
                Slot::Reserved => break 'walk (key, CollectEnd::Reserved),
                Slot::ZeroMarker => {
                    object.index().clear(key, slot, pin);
                }
                Slot::Swap(at) => {
                    // Else a fault has just begun to read it in, and its busy page is in the slot now.
                    match object.index().clear(key, slot, pin) {
                        true => {
                            returned.add(at);
                            object.uncharge(1);
                        }
                        false => break 'walk (key, CollectEnd::Reserved),
                    }
                }
                Slot::Empty => {}
            }
        }
        return CollectEnd::Done;
    };
    range.resume_at(key);
    stop
}

/// Frees the batch's pages, which no leaf maps any more.
pub(crate) fn finish<M: Machine>(object: &Object<M>, batch: &Batch, pin: &Pinned<'_>) {
    for (key, pfn) in batch.as_slice() {
        let cleared = object.index().clear(*key, Slot::Page(*pfn), pin);
        debug_assert!(cleared, "a busy page stays in its slot");
    }
    object.uncharge(batch.as_slice().len() as u64);
    object.vm().release_pages(batch, Subset::of(batch));
}

/// Frees pages and zero markers of `keys` that no leaf maps or will map. Their leaves are gone and flushed, and faults
/// on this private memory give up. May sleep, because a page may be on its way in from swap.
pub(crate) fn free<M: Machine>(object: &Object<M>, keys: Range<u64>) {
    free_unmapped(object, keys.clone(), EVERYTHING, false);
    let pin = object.vm().epoch().pin();
    object.index().prune(keys, &pin);
}

/// As [`free`]; zero markers stay.
pub(crate) fn free_but_marks<M: Machine>(object: &Object<M>, keys: Range<u64>) {
    free_unmapped(object, keys.clone(), SlotFilter::BOTH, false);
    let pin = object.vm().epoch().pin();
    object.index().prune(keys, &pin);
}

/// As [`free`], but keeps empty nodes. `whole`: the index goes next, so its slots need not be emptied.
fn free_unmapped<M: Machine>(object: &Object<M>, keys: Range<u64>, filter: SlotFilter, whole: bool) {
    let vm = object.vm();
    let mut range = object.range(keys, filter);
    loop {
        let pin = vm.epoch().pin();
        let mut batch = Batch::new();
        let stop = collect(&mut range, &mut batch, &pin);
        if whole {
            object.uncharge(batch.as_slice().len() as u64);
            vm.release_pages(&batch, Subset::of(&batch));
        } else {
            finish(object, &batch, &pin);
        }
        drop(pin);
        match stop {
            CollectEnd::Done => return,
            CollectEnd::Full => {}
            CollectEnd::Busy(page) => vm.wait_unbusy(page, &mut MaySleep::here()),
            CollectEnd::Reserved => quire_sync::hooks::relax(),
            CollectEnd::Laundering(page) => vm.wait_laundered(page, &mut MaySleep::here()),
        }
    }
}

/// Frees all pages of a dead object: no backing shows it, every flush is done.
pub(crate) fn free_all<M: Machine>(object: &Object<M>) {
    free_unmapped(object, 0..KEYS, EVERYTHING, true);
}

/// Frees those pages of `keys` that no backing of this private object shows any more. Their backings were flushed, then
/// unlinked. The work grows with the overlapping backings and the freed pages, not with the pages that stay.
pub(crate) fn trim<M: Machine>(object: &Object<M>, keys: Range<u64>) {
    let mut at = keys.start;
    while at < keys.end {
        at = object.shards().covered(at, keys.end);
        if at >= keys.end {
            return;
        }
        let end = object.shards().next_start(at).unwrap_or(u64::MAX).min(keys.end);
        // No chain can show it again, because a private object spreads only through chains that show it already.
        free(object, at..end);
        at = end;
    }
}
