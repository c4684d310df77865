//! Migration: moves a page to another frame, so that its frame becomes free.
//!
//! Migration removes all translations of the page and moves the page, in one busy period. It sets the page busy,
//! fences, and removes and flushes all translations (relies on C2). After that only holders read or store through the
//! frame, and a held page stays. Then the bytes are copied, the object's slot changes from the old frame to the new
//! frame in one step, and the old frame loses its identity. A fault that had found the old frame sees under its table
//! page's lock that the page's generation has risen, and retries. (Mutants [`Mutant::CopyBeforeRemove`] and
//! [`Mutant::MoveUnderHold`].)
//!
//! A clean page that no PTE maps is evicted instead, because that needs no memory.
//!
//! - **vacate**
//!   - fault: busy and generation, under the table page's lock
//!   - copy from or to a program (hold): this thread sees the hold, or the thread that acquires the hold sees the busy
//!     page
//!   - cleaner: this thread waits until the page is not LAUNDERING
//!   - pageout, truncate, another claim: only one thread can hold the page busy

use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::object::Object;
use crate::object::Objects;
use crate::object::batch::Batch;
use crate::object::index::Slot;
use crate::object::kept::KeptObject;
use crate::phys::frames::{Fill, For, Frame};
use crate::phys::page::{Page, State};
use crate::reclaim::evict;
use crate::rmap;
use crate::sleep::MaySleep;
use crate::stats::Event;
use crate::types::{PAGE_SIZE, Pfn};
use quire_sync::epoch::Pinned;

/// The result for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Vacated {
    /// The page has left its frame.
    Gone,
    /// The page is in use at present, or the frame is another page by now. The caller tries again.
    Again,
    /// The page cannot leave: it is wired, or it is dirty and no memory is free to move it to.
    Never,
}

/// Makes `page` leave its frame, and passes the frame to `take`. If `wanted` accepts the new frame for the page, that
/// frame also goes to `take`. This happens at most once, so `take` gets at most two frames. May sleep.
pub(crate) fn vacate<M: Machine>(
    vm: &'static Objects<M>,
    page: &'static Page,
    wanted: &mut dyn FnMut(&Frame) -> bool,
    may: &mut MaySleep,
    take: &mut dyn FnMut(Frame),
) -> Vacated {
    let found = {
        let pin = may.pin(vm.epoch());
        let key = page.index();
        vm.object_of(page, &pin).and_then(|object| KeptObject::new(object, &pin)).map(|kept| (kept, key))
    };
    let Some((kept, key)) = found else {
        vm.wait_unbusy(page, may);
        return Vacated::Again;
    };
    if page.state().laundering() {
        vm.wait_laundered(page, may);
    }
    // The new frame is allocated before the page is busy. A frame of the wanted run cannot be the new place.
    let mut to = vm.alloc_frame(Fill::Any, For::User).ok();
    if to.as_ref().is_some_and(&mut *wanted) {
        to.take().into_iter().for_each(&mut *take);
        to = vm.alloc_frame(Fill::Any, For::User).ok();
        if to.as_ref().is_some_and(&mut *wanted) {
            to.take().into_iter().for_each(|frame| vm.return_frame(frame));
            return Vacated::Again;
        }
    }
    let object = kept.object();
    if vm.try_busy_page(object, key, page).is_none() {
        to.into_iter().for_each(|frame| vm.return_frame(frame));
        vm.wait_unbusy(page, may);
        return Vacated::Again;
    }
    let (done, rest) = leave(object, key, page, to, may, take);
    rest.into_iter().for_each(|frame| vm.return_frame(frame));
    vm.stats().count(if done == Vacated::Gone { Event::Migrated } else { Event::MigrateFailed });
    done
}

/// Takes the busy page out of its frame, into the frame `to` if the content must be kept. Returns `to` if it was not
/// needed.
fn leave<M: Machine>(
    object: &Object<M>,
    key: u64,
    page: &'static Page,
    to: Option<Frame>,
    may: &mut MaySleep,
    take: &mut dyn FnMut(Frame),
) -> (Vacated, Option<Frame>) {
    let vm = object.vm();
    let mut batch = Batch::new();
    batch.push(key, vm.pfn_of_page(page));
    let mapped = rmap::query(object, &batch).mapped.contains(0);
    if mutant(Mutant::CopyBeforeRemove)
        && let Some(to) = &to
    {
        copy_bytes(vm, vm.pfn_of_page(page), to.pfn());
    }
    let (_flushed, wired) = rmap::unmap_unwired(object, &batch);
    let state = page.state();
    // This thread set the page busy, the pass fenced, and now this thread reads the holds. So it sees the hold of
    // another thread, or that thread sees the busy page.
    let held = page.holds() != 1 && !mutant(Mutant::MoveUnderHold);
    if wired.contains(0) || !state.valid() || state.laundering() || held {
        vm.unbusy(page);
        return (if wired.contains(0) { Vacated::Never } else { Vacated::Again }, to);
    }
    let pin = may.pin(vm.epoch());
    let rest = match to {
        Some(to) if state.dirty() || mapped => {
            let moved = settle(object, key, page, to, mapped, &pin);
            give_up(vm, page, take);
            vm.unbusy(moved);
            return (Vacated::Gone, None);
        }
        None if state.dirty() => {
            vm.unbusy(page);
            return (Vacated::Never, None);
        }
        rest => rest,
    };
    evict::leave(object, key, page, &pin);
    give_up(vm, page, take);
    (Vacated::Gone, rest)
}

/// Moves the content and the identity of the busy page to another frame. The page of the new frame is busy too.
fn settle<M: Machine>(
    object: &Object<M>,
    key: u64,
    page: &Page,
    to: Frame,
    mapped: bool,
    pin: &Pinned<'_>,
) -> &'static Page {
    let vm = object.vm();
    let (from, to) = (vm.pfn_of_page(page), to.into_pfn());
    if !mutant(Mutant::CopyBeforeRemove) {
        // The old page is busy, not mapped and not held, so no CPU stores into it.
        copy_bytes(vm, from, to);
    }
    let new = vm.page(to);
    let referenced = if mapped { State::REFERENCED } else { 0 };
    let bits = object.page_bits() | State::VALID | page.state().0 & State::DIRTY | referenced;
    vm.assume_page(new, object.address(), key, bits);
    new.set_swap_slot(page.take_swap_slot());
    new.set_failed_writes(page.failed_writes());
    // Records of copies, even of copies in progress, stay with the old descriptor. So the new page is marked as
    // possibly copied, and its next copy searches for a backing that still maps it.
    new.suspect();
    let replaced = object.index().replace(key, Slot::Page(from), Slot::Page(to), pin);
    debug_assert!(replaced, "a busy page stays in its slot");
    vm.enqueue_new(new);
    new
}

fn copy_bytes<M: Machine>(vm: &Objects<M>, from: Pfn, to: Pfn) {
    // SAFETY: the frames differ. The caller owns the second frame, and holds the page of the first frame busy.
    unsafe {
        let (source, target) = (vm.machine().frame_ptr(from), vm.machine().frame_ptr(to));
        crate::machine::bytes::copy(source, target, PAGE_SIZE as usize);
    }
}

/// Removes the identity of a busy page that is in no index any more, and passes its frame to `take`. This function's
/// own hold keeps the frame off the free lists. If another thread holds the page at this moment, that thread finds a
/// changed identity and frees the frame.
fn give_up<M: Machine>(vm: &Objects<M>, page: &Page, take: &mut dyn FnMut(Frame)) {
    let held = page.try_hold();
    debug_assert!(held, "a busy page has an identity, which is a hold");
    vm.release_page(page);
    if page.unhold() {
        // SAFETY: no identity and no hold is left, so no other thread frees or uses the frame.
        take(unsafe { Frame::from_pfn(vm.pfn_of_page(page)) });
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
