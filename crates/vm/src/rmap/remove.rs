//! The remover: takes pages away from an object, and from everybody who maps them (Contract C2).
//!
//! # The protocol
//! 1. Set the page exclusively busy.
//! 2. Fence.
//! 3. ([`rmap::unmap`]) For each backing that shows it, under the lock of the backing's part: lock the table page over it, exchange the leaf if
//!    it maps the frame, credit dirty; flush that space before the part is let go.
//! 4. Empty the index slot, drop the identity (the generation rises), free the frame.
//!
//! A fault checks busy and generation under the table page's lock, after a fence; so either it sees busy, or the scan sees its
//! leaf. A leaf that another remover has cleared and not flushed yet shows in the table page's count of unflushed removals:
//! then this scan flushes that space too, though it found nothing.
//!
//! | | fault enters | another remover | copy-on-write | first touch, fork, clip |
//! |---|---|---|---|---|
//! | **remover** | busy + fence, check under the table's lock | busy: one at a time; unflushed counts | generation after the copy | the part's lock: old or new backing is there |
//!
//! Pages are taken in batches, so that a scan and a flush serve many. A batch is never held over a wait: where a page is busy,
//! the batch so far is finished first, then the wait begins, with nothing held.

use crate::machine::Machine;
use crate::object::index::{KEYS, Slot};
use crate::object::{Object, ObjectRange, What};
use crate::phys::frames::Frame;
use crate::phys::page::{Page, State};
use crate::reclaim::swap::{Returned, Slots};
use crate::rmap::{self, Batch, Subset};
use crate::sleep::MaySleep;
use crate::stats::Event;
use crate::vm::Vm;
use core::ops::Range;
use quire_sync::epoch::Pinned;
use quire_sync::trace::{Kind, Span};

impl<M: Machine> Vm<M> {
    /// Lets go of a busy page and wakes who waits for it.
    #[inline]
    pub(crate) fn unbusy(&self, page: &Page) {
        if page.unbusy() {
            self.page_waits(page).wake_all();
        }
    }

    /// Waits until `page` is not busy any more, or was not to begin with.
    #[cold]
    pub(crate) fn wait_unbusy(&self, page: &Page, may: &mut MaySleep) {
        // Most are busy for a few hundred instructions of another CPU (copied, zeroed, on their way out), some for as long as a window is
        // made ahead.
        for _ in 0..SPINS {
            if !page.state().busy() {
                return;
            }
            quire_sync::hooks::relax();
        }
        let _span = Span::begin(Kind::BusyPage, page.object(), page.index());
        may.sleep_on(self.page_waits(page), || !page.announce_waiter());
    }

    /// Waits until `page` is not being written any more.
    #[cold]
    pub(crate) fn wait_laundered(&'static self, page: &Page, may: &mut MaySleep) {
        self.wait_for_io(may, || (!page.state().laundering()).then_some(()));
    }

    /// Takes the identity of a busy page that no index and no leaf has any more; frees the frame, at once or with its last
    /// hold. Contract C1.
    pub(crate) fn release_page(&self, page: &Page) {
        let before = page.disown();
        self.queues().leave(page, before);
        if before.shared() {
            self.stats().count(Event::SharedPageGone);
        }
        if Self::leaves_more(page, before) {
            self.left(page, before);
        }
        self.unhold_page(page);
    }

    /// As [`Vm::release_page`], for each page of a batch that is in `which`: they leave their queues together, as they came, and so go
    /// their frames.
    pub(crate) fn release_pages(&self, batch: &Batch, which: Subset) {
        if which.len() == 0 {
            return;
        }
        let mut freed = Subset::default();
        let mut shared = 0;
        let mut leaving = self.queues().leaving();
        for (n, (_, pfn)) in batch.as_slice().iter().enumerate().filter(|(n, _)| which.contains(*n)) {
            let page = self.page(*pfn);
            let before = leaving.disown(page);
            shared += u64::from(before.shared());
            if Self::leaves_more(page, before) {
                leaving.pause();
                self.left(page, before);
            }
            if page.unhold() {
                freed.add(n);
            }
        }
        drop(leaving);
        if shared != 0 {
            self.stats().add(Event::SharedPageGone, shared);
        }
        let freed = batch.as_slice().iter().enumerate().filter(|(n, _)| freed.contains(*n));
        // SAFETY: as in `unhold_page`, for those whose last hold was undone.
        unsafe { self.free_frames(freed.map(|(_, (_, pfn))| *pfn)) };
    }

    /// Whether a page that has lost its identity leaves something else than its frame.
    #[inline]
    fn leaves_more(page: &Page, before: State) -> bool {
        before.waiters() || page.swap_slot().is_some()
    }

    /// Gives up what a page leaves that has lost its identity.
    #[cold]
    fn left(&self, page: &Page, before: State) {
        // While the page is being written its swap slot is the write's.
        if !before.laundering()
            && let Some(slot) = page.take_swap_slot()
        {
            self.swap().release(Slots { first: slot, len: 1 });
        }
        if before.waiters() {
            self.page_waits(page).wake_all();
        }
    }

    /// Undoes one hold; frees the frame where it was the last.
    pub(crate) fn unhold_page(&self, page: &Page) {
        if page.unhold() {
            // SAFETY: no identity and no hold is left, so nobody else frees it or looks at it.
            self.return_frame(unsafe { Frame::from_pfn(self.pfn_of_page(page)) });
        }
    }

    /// Sets the page in `object`'s slot `key` busy; `None` where it is busy or not that page (any more).
    pub(crate) fn try_busy_page<'p>(&self, object: &Object<M>, key: u64, page: &'p Page) -> Option<&'p Page> {
        let state = page.state();
        if !page.try_busy(state.generation()) {
            return None;
        }
        if page.object() == object.address() && page.index() == key {
            return Some(page);
        }
        self.unbusy(page);
        None
    }
}

/// Turns of a spin before a wait sleeps.
const SPINS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 64 };

/// What a remover has to look at: pages wherever they are, and the marks that go with them.
const EVERYTHING: What = What::BOTH.union(What::MARKS);

/// What stopped a collection.
enum Stop {
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

/// Takes pages from where the walk stands, each busy, into an empty batch; drops cuts, and frees what is in swap.
fn collect<M: Machine>(range: &mut ObjectRange<'_, M>, batch: &mut Batch, pin: &Pinned<'_>) -> Stop {
    let object = range.object();
    let mut returned = Returned::new(object.vm().swap());
    let (key, stop) = 'walk: {
        for found in range.walk(pin) {
            let (key, slot) = (found.key(), found.slot());
            match slot {
                Slot::Page(pfn) => {
                    if batch.is_full() {
                        break 'walk (key, Stop::Full);
                    }
                    let page = object.vm().page(pfn);
                    match object.vm().try_busy_page(object, key, page) {
                        // No write may fall on the file beyond the end that it is about to have.
                        Some(_) if page.state().laundering() && !object.holes_are_zero() => {
                            object.vm().unbusy(page);
                            break 'walk (key, Stop::Laundering(page));
                        }
                        Some(_) => batch.push(key, pfn),
                        None => break 'walk (key, Stop::Busy(page)),
                    }
                }
                Slot::Reserved => break 'walk (key, Stop::Reserved),
                Slot::Cut | Slot::Cover(_) => {
                    object.index().clear(key, slot, pin);
                }
                Slot::Swap(at) => {
                    // Else a fault has just begun to read it, and stands there busy now.
                    match object.index().clear(key, slot, pin) {
                        true => {
                            returned.add(at);
                            object.uncharge(1);
                        }
                        false => break 'walk (key, Stop::Reserved),
                    }
                }
                Slot::Empty => {}
            }
        }
        return Stop::Done;
    };
    range.resume_at(key);
    stop
}

/// Frees the batch's pages, which no leaf maps any more.
fn finish<M: Machine>(object: &Object<M>, batch: &Batch, pin: &Pinned<'_>) {
    for (key, pfn) in batch.as_slice() {
        let cleared = object.index().clear(*key, Slot::Page(*pfn), pin);
        debug_assert!(cleared, "a busy page stays in its slot");
    }
    object.uncharge(batch.as_slice().len() as u64);
    object.vm().release_pages(batch, Subset::of(batch));
}

/// Takes the pages of `keys` (and cuts) away from `object` and from everybody who maps them.
pub(crate) fn evict<M: Machine>(object: &Object<M>, keys: Range<u64>, may: &mut MaySleep) {
    let vm = object.vm();
    let mut range = object.range(keys.clone(), EVERYTHING);
    loop {
        let mut batch = Batch::new();
        let stop = {
            let pin = may.pin(vm.epoch());
            collect(&mut range, &mut batch, &pin)
        };
        if !batch.is_empty() {
            let _flushed = rmap::unmap(object, &batch);
            let pin = may.pin(vm.epoch());
            finish(object, &batch, &pin);
        }
        match stop {
            Stop::Done => break,
            Stop::Full => {}
            Stop::Busy(page) => vm.wait_unbusy(page, may),
            Stop::Reserved => quire_sync::hooks::relax(),
            Stop::Laundering(page) => vm.wait_laundered(page, may),
        }
    }
    let pin = may.pin(vm.epoch());
    object.index().prune(keys, &pin);
}

/// Frees pages (and cuts) of `keys` that no leaf maps nor will: those of private memory whose leaves are gone and flushed and
/// whose faults give up. May sleep: a page may be on its way in from swap.
pub(crate) fn free<M: Machine>(object: &Object<M>, keys: Range<u64>) {
    free_unmapped(object, keys.clone(), EVERYTHING, false);
    let pin = object.vm().epoch().pin();
    object.index().prune(keys, &pin);
}

/// As [`free`]; cuts stay.
pub(crate) fn free_but_marks<M: Machine>(object: &Object<M>, keys: Range<u64>) {
    free_unmapped(object, keys.clone(), What::BOTH, false);
    let pin = object.vm().epoch().pin();
    object.index().prune(keys, &pin);
}

/// As [`free`], and leaves empty nodes where they are. `whole`: the index goes next, so its slots need not be emptied.
fn free_unmapped<M: Machine>(object: &Object<M>, keys: Range<u64>, what: What, whole: bool) {
    let vm = object.vm();
    let mut range = object.range(keys, what);
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
            Stop::Done => return,
            Stop::Full => {}
            Stop::Busy(page) => vm.wait_unbusy(page, &mut MaySleep::here()),
            Stop::Reserved => quire_sync::hooks::relax(),
            Stop::Laundering(page) => vm.wait_laundered(page, &mut MaySleep::here()),
        }
    }
}

/// Frees all pages of a dead object: nobody shows it, every flush is done.
pub(crate) fn free_all<M: Machine>(object: &Object<M>) {
    free_unmapped(object, 0..KEYS, EVERYTHING, true);
}

/// Frees those pages of `keys` that no backing of this private object shows any more. Who showed them has unlinked, and
/// flushed before that. Work for the backings that overlap and for the pages that go, not for those that stay.
pub(crate) fn trim<M: Machine>(object: &Object<M>, keys: Range<u64>) {
    let mut at = keys.start;
    while at < keys.end {
        at = object.parts().covered(at, keys.end);
        if at >= keys.end {
            return;
        }
        let end = object.parts().next_start(at).unwrap_or(u64::MAX).min(keys.end);
        // Nobody can show it again: a private object is shown through chains that show it already.
        free(object, at..end);
        at = end;
    }
}
