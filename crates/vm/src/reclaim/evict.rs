//! Eviction: frees the frames of clean pages, and pages out a range.
//!
//! # Order of the steps (relies on C2)
//! Eviction sets the page busy, fences, removes and flushes all translations, and only then checks the dirty bit. By
//! then the dirty bit includes the dirty bits of all PTEs, and no store can follow. A held page stays, because its
//! holder may be about to change its memory. The index slot keeps the information from which the content is restored:
//! - the swap slot, if the page has one;
//! - nothing, if the object's pager has the page, or if the page was zeroes and holes read as zeroes;
//! - a zero marker, if a page of private memory has never been stored into. The key then reads as zeroes, even if an
//!   object behind it in the shadow chain has got other content meanwhile.

impl<M: Machine> ObjectRef<M> {
    /// Pages out `pages`: writes the dirty pages and frees the frames. Pages that are in use, or cannot be written,
    /// stay. May sleep.
    pub fn page_out(&self, pages: Range<u64>) {
        push_out(self, pages, &mut MaySleep::here());
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use crate::machine::Machine;
use crate::object::batch::{Batch, Subset};
use crate::object::index::Slot;
use crate::object::{Object, ObjectRef, SlotFilter};
use crate::paging::io::CLUSTER;
use crate::paging::laundry;
use crate::phys::page::{Page, State};
use crate::rmap;
use crate::sleep::MaySleep;
use crate::stats::Event;
use core::ops::Range;
use quire_sync::epoch::Pinned;

/// Evicts the clean pages of the batch. The caller has set all of them busy. Calls `stays` with each page that is not
/// evicted, while the page is still busy. Then releases the page. Returns the number of evicted pages.
pub(crate) fn evict<M: Machine>(
    object: &Object<M>,
    batch: &Batch,
    stays: &mut dyn FnMut(&'static Page),
    may: &mut MaySleep,
) -> usize {
    let vm = object.vm();
    if batch.is_empty() {
        return 0;
    }
    if object.is_kept_resident() {
        for (_, pfn) in batch.as_slice() {
            let page = vm.page(*pfn);
            stays(page);
            vm.unbusy(page);
        }
        return 0;
    }
    let (_flushed, wired) = rmap::unmap_unwired(object, batch);
    let pin = may.pin(vm.epoch());
    let mut gone = Subset::default();
    for (i, (key, pfn)) in batch.as_slice().iter().enumerate() {
        let page = vm.page(*pfn);
        let state = page.state();
        if state.dirty() || state.laundering() || page.holds() != 1 || wired.contains(i) {
            stays(page);
            vm.unbusy(page);
            continue;
        }
        leave(object, *key, page, &pin);
        vm.ghosts.evicted(object.address(), *key);
        gone.add(i);
    }
    vm.release_pages(batch, gone);
    let n = gone.len() as usize;
    vm.stats().add(Event::Evict, n as u64);
    n
}

/// Replaces the page in its index slot by a swap slot, a zero marker or an empty slot, from which the content can be
/// restored.
pub(crate) fn leave<M: Machine>(object: &Object<M>, key: u64, page: &Page, pin: &Pinned<'_>) {
    let here = Slot::Page(object.vm().pfn_of_page(page));
    let done = match page.take_swap_slot() {
        Some(slot) => object.index().replace(key, here, Slot::Swap(slot), pin),
        None if object.is_private() => object.index().replace(key, here, Slot::ZeroMarker, pin),
        None => {
            let done = object.index().clear(key, here, pin);
            object.uncharge(1);
            done
        }
    };
    debug_assert!(done, "a busy page stays in its slot");
}

/// Whether the frame of `page` may be freed without a write. The caller holds the page busy.
pub(crate) fn is_clean(page: &Page) -> bool {
    let state = page.state();
    state.valid() && state.0 & (State::DIRTY | State::LAUNDERING) == 0 && page.holds() == 1
}

/// Pages out the pages of `keys`: writes the dirty pages, waits for the writes, and frees the clean pages. Pages that
/// are busy, held or cannot be written stay.
pub(crate) fn push_out<M: Machine>(object: &Object<M>, keys: Range<u64>, may: &mut MaySleep) {
    write_out(object, keys.clone(), may);
    let vm = object.vm();
    let mut range = object.range(keys, SlotFilter::PAGES);
    while !range.is_done() {
        let mut clean = Batch::new();
        let wait = {
            let pin = may.pin(vm.epoch());
            let mut wait = None;
            let mut stop = None;
            for found in range.walk(&pin) {
                let (key, Slot::Page(pfn)) = (found.key(), found.slot()) else { continue };
                if clean.is_full() {
                    stop = Some(key);
                    break;
                }
                let page = vm.page(pfn);
                if page.state().laundering() {
                    (wait, stop) = (Some(page), Some(key));
                    break;
                }
                if vm.try_busy_page(object, key, page).is_none() {
                    continue;
                }
                // A page may look clean here and still be mapped by PTEs that allow stores. So `evict` checks again
                // after the flush.
                if is_clean(page) { clean.push(key, pfn) } else { vm.unbusy(page) }
            }
            if let Some(key) = stop {
                range.resume_at(key);
            }
            wait
        };
        evict(object, &clean, &mut |_| {}, may);
        if let Some(page) = wait {
            vm.wait_laundered(page, may);
        }
    }
}

/// Starts writes of the dirty pages of `keys`, one cluster after the other. Returns the number of pages.
pub(crate) fn write_out<M: Machine>(object: &Object<M>, keys: Range<u64>, may: &mut MaySleep) -> usize {
    if !laundry::can_launder(object) {
        return 0;
    }
    let vm = object.vm();
    let mut n = 0;
    let mut range = object.range(keys, SlotFilter::PAGES);
    while !range.is_done() {
        // The record is taken before any page is busy, because this may wait.
        let taken = vm.take_record(laundry::share(object), may);
        let mut batch = Batch::new();
        {
            let pin = may.pin(vm.epoch());
            let mut next = None;
            let mut stop = None;
            for found in range.walk(&pin) {
                let (key, Slot::Page(pfn)) = (found.key(), found.slot()) else { continue };
                if next.is_some_and(|n| n != key) || batch.as_slice().len() == CLUSTER {
                    stop = Some(key);
                    break;
                }
                let page = vm.page(pfn);
                if !page.state().dirty() || vm.try_busy_page(object, key, page).is_none() {
                    continue;
                }
                if !laundry::is_laundry(page) {
                    vm.unbusy(page);
                    continue;
                }
                batch.push(key, pfn);
                next = Some(key + 1);
            }
            if let Some(key) = stop {
                range.resume_at(key);
            }
        }
        if !batch.is_empty() {
            let begun = laundry::launder(object, &batch, taken, may);
            n += begun.len();
            // Swap had fewer adjacent slots than the cluster has pages, so the rest goes into the next slots. If swap
            // had no free slot, pages of other clusters may still have slots of their own.
            if !begun.is_empty()
                && let Some((key, _)) = batch.as_slice().get(begun.end)
            {
                range.resume_at(*key);
            }
        }
    }
    n
}
