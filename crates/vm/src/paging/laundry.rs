//! Laundering: writes dirty pages out, so that their frames can be freed.
//!
//! # Rules (relies on C2)
//! - The order of the steps is: clear dirty; fence; write-protect all translations; flush; *then* the pager reads the
//!   data. A store before the flush is in the data. A store after the flush faults first, and marks the page dirty
//!   again. If the dirty bit is clear when the write is done, the pager has the page's content.
//! - The dirty bit in the index is cleared last, when the page is LAUNDERING. So a write-back (such as fsync) that
//!   finds the bit clear finds the page LAUNDERING, and waits for the write. A cleaner that leaves a page unwritten
//!   also leaves its bit set (mutant [`Mutant::UntagEarly`]).
//! - The completion of a write never clears the dirty bit, because a program may have stored into the page since. If
//!   the write failed, completion sets the bit.
//! - A page is [`LAUNDERING`](State::LAUNDERING) from before its write starts until the write is finished. During that
//!   time no second write begins, so old data never overwrites new data. The page is not busy during the write:
//!   programs continue to use it, and may store into it (pages are not stable under a write).
//! - The write holds the frame. A remover (truncate, exit) removes the page's identity at once, and the frame is freed
//!   when the write is done. The write owns the swap slot until then, so a late write never reaches a slot of another
//!   page. A file's pager must not be written to after a truncation. So the removal of a file's page waits for the
//!   write.
//! - Another thread stores into a *held* page through its frame, and sets the dirty bit before the store. The cleaner
//!   skips held pages. It reads the hold after it has cleared dirty and fenced. The holder sets dirty after it has
//!   taken the hold. So either the cleaner sees the hold, or the holder sets dirty after the clearing.
//!
//! | | fault stores | copy from a program (hold) | truncate, free | another cleaner | completion |
//! |---|---|---|---|---|---|
//! | **launder** | busy; dirty before writable | hold seen, or dirty again | one at a time | LAUNDERING | after it |
//! | **completion** | dirty stays as it is | as a fault | state word: the later one frees slot and frame | | |

use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::object::Object;
use crate::object::Objects;
use crate::object::batch::Batch;
use crate::object::kept::KeptObject;
use crate::paging::io::{Body, Direction, Share, Taken};
use crate::paging::pager::{Pager, PagerError};
use crate::paging::swap::SwapSlots;
use crate::phys::page::{Page, State};
use crate::rmap;
use crate::sleep::MaySleep;
use crate::stats::Event;
use crate::tlb::flush::Pass;
use crate::types::Pfn;
use core::ops::Range;
use quire_sync::epoch::Pinned;

/// The place to which an object's pages are written.
enum Where<'o> {
    Swap,
    Pager(&'o dyn Pager),
}

/// The place to which dirty pages of `object` are written. `None`: they stay in memory.
fn destination<'o, M: Machine>(object: &'o Object<M>) -> Option<Where<'o>> {
    match object.pager() {
        Some(pager) if !pager.in_memory() => pager.takes_writes().then_some(Where::Pager(pager)),
        _ => object.vm().swap().store().map(|_| Where::Swap),
    }
}

/// Whether dirty pages of `object` can be written to any place.
pub(crate) fn can_launder<M: Machine>(object: &Object<M>) -> bool {
    destination(object).is_some()
}

/// The share of records that writes of `object` are counted in.
pub(crate) fn share<M: Machine>(object: &Object<M>) -> Share {
    match destination(object) {
        Some(Where::Pager(pager)) => Share::of(pager.share()),
        _ => Share::SWAP,
    }
}

/// Whether there is room at the place to which `page` would be written. The result is a hint, because other threads may
/// take the room.
pub(crate) fn has_room<M: Machine>(object: &Object<M>, page: &Page) -> bool {
    match destination(object) {
        Some(Where::Swap) => object.vm().swap().free() != 0 || page.swap_slot().is_some(),
        Some(Where::Pager(_)) => true,
        None => false,
    }
}

/// Whether `page` may be written now: it is dirty, not held, and not being written. The caller holds it busy.
pub(crate) fn is_laundry(page: &Page) -> bool {
    let state = page.state();
    state.valid() && state.dirty() && !state.laundering() && (page.holds() == 1 || mutant(Mutant::NoHoldCheck))
}

/// Neighbouring pages of an object that are being written to their pager. Each method is a step, in this order.
struct Laundering<'w, M: Machine> {
    object: &'w Object<M>,
    to: Option<Where<'w>>,
    /// The numbers of the pages at the place `to`: swap slots, or pages of the file.
    slots: SwapSlots,
    /// Whether `slots` are the swap slots that the pages already have, and not new ones.
    own: bool,
    /// The busy pages that are written.
    pages: &'w [(u64, Pfn)],
}

impl<'w, M: Machine> Laundering<'w, M> {
    /// Finds places for the pages, and ends the busy state of pages without a place. Also returns the number of pages
    /// that are left out before the first written page.
    fn find_places(object: &'w Object<M>, pages: &'w [(u64, Pfn)]) -> (usize, Self) {
        let vm = object.vm();
        let to = destination(object);
        let (mut slots, mut own) = (SwapSlots { first: 0, len: 0 }, false);
        let mut from = 0;
        match &to {
            Some(Where::Swap) => match vm.swap().allocate(pages.len()) {
                Some(found) => slots = found,
                // Swap is full, so pages that have slots overwrite them.
                None => (own, (from, slots)) = (true, own_slots(vm, pages)),
            },
            Some(Where::Pager(_)) => {
                slots = SwapSlots { first: pages.first().map_or(0, |p| p.0), len: pages.len() as u64 };
            }
            None => {}
        }
        let (before, pages) = pages.split_at(from);
        let (pages, rest) = pages.split_at((slots.len as usize).min(pages.len()));
        before.iter().chain(rest).for_each(|(_, pfn)| vm.unbusy(vm.page(*pfn)));
        (from, Laundering { object, to, slots, own, pages })
    }

    fn goes_to_swap(&self) -> bool {
        matches!(self.to, Some(Where::Swap))
    }

    fn unbusy(&self) {
        let vm = self.object.vm();
        self.pages.iter().for_each(|(_, pfn)| vm.unbusy(vm.page(*pfn)));
    }

    /// Leaves out the first held page and all pages after it. Marks them dirty again, so that a later pass writes them.
    fn leave_held(&mut self, may: &mut MaySleep) {
        let vm = self.object.vm();
        let n = match mutant(Mutant::NoHoldCheck) {
            true => self.pages.len(),
            false => self.pages.iter().take_while(|(_, pfn)| vm.page(*pfn).holds() == 1).count(),
        };
        let (pages, rest) = self.pages.split_at(n);
        {
            let pin = may.pin(vm.epoch());
            for (key, pfn) in rest {
                mark_dirty(self.object, *key, vm.page(*pfn), &pin);
            }
        }
        rest.iter().for_each(|(_, pfn)| vm.unbusy(vm.page(*pfn)));
        if self.goes_to_swap() && !self.own {
            let SwapSlots { first, len } = self.slots;
            vm.swap().release(SwapSlots { first: first + n as u64, len: len - n as u64 });
        }
        self.pages = pages;
    }

    /// Lists the pages in the request, which holds them until they are written.
    fn list(&self, body: &mut Body) {
        let vm = self.object.vm();
        body.direction = Direction::Write;
        body.swap = self.goes_to_swap();
        body.first = self.slots.first;
        for (key, pfn) in self.pages {
            let page = vm.page(*pfn);
            if let Some(old) = page.take_swap_slot()
                && !self.own
            {
                vm.swap().release(SwapSlots { first: old, len: 1 });
            }
            let held = page.try_hold();
            debug_assert!(held, "a busy page has an identity, which is a hold");
            page.set(State::LAUNDERING);
            body.push(vm, *key, *pfn);
        }
    }

    /// Clears the index's dirty bits of the listed pages. For a write to a pager, keeps the object, because the pager
    /// must live until the write is done.
    fn untag_and_keep(&self, body: &mut Body, may: &mut MaySleep) {
        let pin = may.pin(self.object.vm().epoch());
        untag(self.object, self.pages, &pin);
        if !self.goes_to_swap() {
            body.object = KeptObject::new(self.object, &pin).map_or(core::ptr::null(), KeptObject::into_raw);
        }
    }
}

/// Writes pages of `object` that have neighbouring keys and for which [`is_laundry`] holds. The caller has set them
/// busy. When this returns, they are no longer busy, and pages that could not be written are dirty as before. Returns
/// the range of the batch that is being written. It is shorter than the batch if swap has fewer adjacent slots. The
/// pager may sleep, but this function does not wait for the write.
pub(crate) fn launder<M: Machine>(
    object: &Object<M>,
    batch: &Batch,
    mut taken: Taken<'_>,
    may: &mut MaySleep,
) -> Range<usize> {
    let vm = object.vm();
    let (from, mut laundering) = Laundering::find_places(object, batch.as_slice());
    if laundering.pages.is_empty() {
        return 0..0;
    }
    let mut batch = Batch::new();
    laundering.pages.iter().for_each(|(key, pfn)| batch.push(*key, *pfn));
    mark_clean(object, &batch);
    let flushed = match mutant(Mutant::ReadBeforeProtect) {
        false => rmap::write_protect(object, &batch),
        // The mutants leave this step out.
        true => Pass::over(object.address()).end(),
    };
    if mutant(Mutant::UntagEarly) {
        untag(object, batch.as_slice(), &may.pin(vm.epoch()));
    }
    laundering.leave_held(may);
    let n = laundering.pages.len();
    if n == 0 {
        return 0..0;
    }
    laundering.list(taken.body());
    laundering.untag_and_keep(taken.body(), may);
    let request = taken.start_writing(&flushed);
    if !mutant(Mutant::ReadBeforeProtect) {
        laundering.unbusy();
    }
    vm.stats().add(if laundering.goes_to_swap() { Event::SwapOut } else { Event::PageOut }, n as u64);
    match (&laundering.to, vm.swap().store()) {
        (Some(Where::Pager(pager)), _) => pager.start(request),
        (_, Some(store)) => store.start(request),
        (_, None) => drop(request),
    }
    if mutant(Mutant::ReadBeforeProtect) {
        let _flushed = rmap::write_protect(object, &batch);
        laundering.unbusy();
    }
    from..from + n
}

/// The first step of cleaning: clears the dirty bits of the batch's pages. Their dirty bits in the index stay until
/// LAUNDERING shows that a write follows.
///
/// # Requires
/// The pages are busy.
pub(crate) fn mark_clean<M: Machine>(object: &Object<M>, batch: &Batch) {
    for (_, pfn) in batch.as_slice() {
        object.vm().page(*pfn).clear(State::DIRTY);
    }
}

/// Clears the index's dirty bits of those `pages` that are still clean. Two parties may mark a busy page dirty, and
/// both do so before this step. Threads with a hold were checked already. CPUs that removed a PTE after the dirty bit
/// was cleared have copied the PTE's dirty bit to the page ([`copy::credit`](crate::rmap::dirty::credit)).
///
/// # Requires
/// `pages` are busy and LAUNDERING. So a write-back of all pages with a dirty bit finds either the bit or the write.
fn untag<M: Machine>(object: &Object<M>, pages: &[(u64, Pfn)], pin: &Pinned<'_>) {
    for (key, pfn) in pages {
        if !object.vm().page(*pfn).state().dirty() || mutant(Mutant::CreditUntagged) {
            object.index().untag_dirty(*key, pin);
        }
    }
}

/// The number of the first of `pages` that has a swap slot. Also returns its slot with the slots of the next pages, as
/// far as they are adjacent.
fn own_slots<M: Machine>(vm: &Objects<M>, pages: &[(u64, Pfn)]) -> (usize, SwapSlots) {
    let slot = |p: &(u64, Pfn)| vm.page(p.1).swap_slot();
    let Some((from, first)) = pages.iter().enumerate().find_map(|(i, p)| Some((i, slot(p)?))) else {
        return (0, SwapSlots { first: 0, len: 0 });
    };
    let len = (first..).zip(&pages[from..]).take_while(|(s, p)| slot(p) == Some(*s)).count();
    (from, SwapSlots { first, len: len as u64 })
}

/// Marks a page dirty. The caller holds the page, or has set it busy.
///
/// The index's dirty bit is set first. A thread that finds the page dirty does nothing more, and may at once write back
/// all pages whose bit is set. If a cleaner clears the bit in between, it either sees the hold, or has cleared the
/// page's dirty bit before.
pub(crate) fn mark_dirty<M: Machine>(object: &Object<M>, key: u64, page: &Page, pin: &Pinned<'_>) {
    if mutant(Mutant::TagAfterDirty) {
        page.set(State::DIRTY);
    }
    object.index().tag_dirty(key, pin);
    page.set(State::DIRTY);
}

/// Finishes a completed write. `file` is the object that the write kept alive, or `None` for a write to swap.
pub(crate) fn finish<M: Machine>(
    vm: &'static Objects<M>,
    file: Option<&Object<M>>,
    body: &Body,
    result: Result<(), PagerError>,
    may: &mut MaySleep,
) {
    if let (Err(error), Some(file)) = (result, file) {
        // The error is recorded before a thread that waits for the write continues and checks for errors.
        file.write_errors().raise(error);
    }
    for i in 0..body.len {
        let page = vm.page(body.pfn(i));
        let slot = body.swap.then_some(body.first + i as u64);
        if result.is_err() {
            // As in `mark_dirty`, the index's dirty bit is set first. The write keeps other cleaners away, and keeps
            // the frame from becoming another page.
            let pin = may.pin(vm.epoch());
            // SAFETY: `launder` took a hold for this write.
            if let Some(object) = unsafe { vm.object_of_held(page, &pin) } {
                object.index().tag_dirty(page.index(), &pin);
            }
        }
        if let (Ok(()), Some(file)) = (result, file) {
            file.count_written();
        }
        let alive = if result.is_ok() {
            // The slot is set before LAUNDERING is cleared. After that, a remover frees the slot with the page.
            page.set_swap_slot(slot);
            page.set_failed_writes(0);
            page.end_laundering(0) || mutant(Mutant::NoGoneCheck)
        } else {
            vm.stats().count(Event::WriteFailed);
            page.set_failed_writes(page.failed_writes().saturating_add(1));
            page.end_laundering(State::DIRTY)
        };
        if let Some(slot) = slot
            && !(alive && result.is_ok())
        {
            page.set_swap_slot(None);
            vm.swap().release(SwapSlots { first: slot, len: 1 });
        }
        vm.page_waits(page).wake_all();
        vm.unhold_page(page);
    }
}
