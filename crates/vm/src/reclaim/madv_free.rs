//! `MADV_FREE`: a program gives memory up lazily. The pages keep their frames and content until memory is short. A
//! store before that keeps the page.
//!
//! No flag marks a page that was given up. The page is made to look like a private page that was never stored into:
//! clean, without a swap slot. Pageout replaces such a page by a zero marker, which reads as zeroes and hides pages of
//! the objects behind in the shadow chain. A later store makes the page dirty first, so the page is kept from then on.
//!
//! The rules are those of a cleaner (see [`crate::paging::laundry`]): clear dirty, fence, write-protect all
//! translations, flush. A store before the flush may be lost with the old content, because it raced with the system
//! call. A store after the flush faults first and marks the page dirty again. If another thread holds the page, either
//! this code sees the hold, or that thread marks the page dirty after the clearing.

use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::object::batch::Batch;
use crate::object::index::Slot;
use crate::object::{Object, SlotFilter};
use crate::paging::laundry;
use crate::paging::swap::{Returned, SwapSlots};
use crate::phys::page::Page;
use crate::phys::queues::Queue;
use crate::rmap;
use crate::sleep::MaySleep;
use crate::stats::Event;
use core::ops::Range;

/// Gives up the pages of `keys`, if `object` is private memory. Pages that are busy, held or being written stay as they
/// are.
pub(crate) fn give_up<M: Machine>(object: &Object<M>, keys: Range<u64>, may: &mut MaySleep) {
    if !object.is_private() {
        return;
    }
    object.vm().io().note_freeable();
    let mut range = object.range(keys, SlotFilter::BOTH);
    while !range.is_done() {
        let mut batch = Batch::new();
        {
            let pin = may.pin(object.vm().epoch());
            let mut returned = Returned::new(object.vm().swap());
            let mut stop = None;
            for found in range.walk(&pin) {
                let (key, slot) = (found.key(), found.slot());
                match slot {
                    Slot::Page(_) if batch.is_full() => {
                        stop = Some(key);
                        break;
                    }
                    Slot::Page(pfn) => match object.vm().try_busy_page(object, key, object.vm().page(pfn)) {
                        Some(page) if is_free(page) => batch.push(key, pfn),
                        Some(page) => object.vm().unbusy(page),
                        None => {}
                    },
                    // If the replacement fails, a fault has just begun to read the page.
                    Slot::Swap(at) if object.index().replace(key, slot, Slot::ZeroMarker, &pin) => returned.add(at),
                    _ => {}
                }
            }
            if let Some(key) = stop {
                range.resume_at(key);
            }
        }
        if !batch.is_empty() {
            make_clean(object, &batch, may);
        }
    }
}

/// Whether a busy page is valid, not held and not being written.
fn is_free(page: &Page) -> bool {
    let state = page.state();
    state.valid() && !state.laundering() && page.holds() == 1
}

/// Makes busy pages look as if they were never stored into, and releases them.
fn make_clean<M: Machine>(object: &Object<M>, batch: &Batch, may: &mut MaySleep) {
    let vm = object.vm();
    laundry::mark_clean(object, batch);
    if !mutant(Mutant::FreeLeavesWritable) {
        let _flushed = rmap::write_protect(object, batch);
    }
    // The reference bits are cleared, because these pages do not deserve a second chance.
    rmap::take_referenced(object, batch);
    let pin = may.pin(vm.epoch());
    let mut n = 0;
    for (key, pfn) in batch.as_slice() {
        let page = vm.page(*pfn);
        if page.holds() != 1 {
            laundry::mark_dirty(object, *key, page, &pin);
        } else {
            if let Some(slot) = page.take_swap_slot() {
                vm.swap().release(SwapSlots { first: slot, len: 1 });
            }
            n += 1;
        }
        vm.queues().move_to(page, Queue::Inactive);
        vm.unbusy(page);
    }
    vm.stats().add(Event::LazyFree, n);
}
