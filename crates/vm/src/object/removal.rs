//! Removes pages from an object's index: pages that no PTE maps, and the steps that all removers share.

use super::batch::{Batch, Subset};
use super::index::{KEYS, Slot};
use super::{Object, ObjectRange, SlotFilter};
use crate::machine::Machine;
use crate::paging::swap::Returned;
use crate::phys::page::Page;
use crate::sleep::MaySleep;
use core::ops::Range;
use quire_sync::epoch::Pinned;

/// The slots that a remover visits: pages in memory or in swap, and zero markers (pages that read as zeroes).
pub(crate) const EVERYTHING: SlotFilter = SlotFilter::BOTH.union(SlotFilter::MARKS);

/// Why [`collect`] stopped.
pub(crate) enum CollectEnd {
    /// The walk has reached the end of the range.
    Done,
    /// The batch is full.
    Full,
    /// This page is busy. The walk's position is before it.
    Busy(&'static Page),
    /// A slot is being filled or emptied. The walk's position is before it.
    Reserved,
    /// This page is being written to the object's pager. The walk's position is before it.
    Laundering(&'static Page),
}

/// Sets pages busy and collects them into the empty `batch`, from the walk's position on. Also drops zero markers and
/// frees pages in swap.
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
                        // The write must finish first, because no write may reach the file beyond its new end.
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
                    // The clear fails if a fault has begun to read the page in. The slot then has that fault's busy
                    // page.
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

/// Frees the pages of the batch, which no PTE maps any more.
pub(crate) fn finish<M: Machine>(object: &Object<M>, batch: &Batch, pin: &Pinned<'_>) {
    for (key, pfn) in batch.as_slice() {
        let cleared = object.index().clear(*key, Slot::Page(*pfn), pin);
        debug_assert!(cleared, "a busy page stays in its slot");
    }
    object.uncharge(batch.as_slice().len() as u64);
    object.vm().release_pages(batch, Subset::of(batch));
}

/// Frees the pages and zero markers of `keys`, which no PTE maps or will map. Their PTEs are cleared and flushed, and
/// faults on this private memory give up. May sleep, because a page may be in the middle of a read from swap.
pub(crate) fn free<M: Machine>(object: &Object<M>, keys: Range<u64>) {
    free_unmapped(object, keys.clone(), EVERYTHING, false);
    let pin = object.vm().epoch().pin();
    object.index().prune(keys, &pin);
}

/// As [`free`], but keeps zero markers.
pub(crate) fn free_but_marks<M: Machine>(object: &Object<M>, keys: Range<u64>) {
    free_unmapped(object, keys.clone(), SlotFilter::BOTH, false);
    let pin = object.vm().epoch().pin();
    object.index().prune(keys, &pin);
}

/// Frees pages like [`free`], but keeps empty nodes of the index. `whole`: the caller dismantles the index next, so its
/// slots need not be emptied.
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

/// Frees all pages of an object that is being torn down. No backing shows it, and all flushes are done.
pub(crate) fn free_all<M: Machine>(object: &Object<M>) {
    free_unmapped(object, 0..KEYS, EVERYTHING, true);
}

/// Frees those pages of `keys` that no backing of this private object shows any more. The backings that showed them
/// were flushed, then unlinked. The work grows with the overlapping backings and the freed pages, not with the pages
/// that stay.
pub(crate) fn trim<M: Machine>(object: &Object<M>, keys: Range<u64>) {
    let mut at = keys.start;
    while at < keys.end {
        at = object.shards().covered(at, keys.end);
        if at >= keys.end {
            return;
        }
        let end = object.shards().next_start(at).unwrap_or(u64::MAX).min(keys.end);
        // No backing can show these pages again. New backings of a private object are only copies of existing ones, and
        // none of those shows these pages.
        free(object, at..end);
        at = end;
    }
}
