//! The life of a page: a frame gets an identity, is busy at times, and loses its identity (relies on C1).
//!
//! A new page is busy, has its object and key, and joins the active queue. A thread that sets a page busy owns it
//! alone. When it loses its identity, the page leaves its queue and its swap slot. The frame is free with the last
//! hold.

use super::Object;
use super::batch::{Batch, Subset};
use crate::machine::Machine;
use crate::object::Objects;
use crate::paging::swap::SwapSlots;
use crate::phys::frames::Frame;
use crate::phys::page::{Page, State};
use crate::phys::queues::NEW;
use crate::sleep::MaySleep;
use crate::stats::Event;
use crate::types::Pfn;
use quire_sync::trace::{EventKind, Span};

/// Turns of a spin before a wait sleeps.
const SPINS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 64 };

impl<M: Machine> Objects<M> {
    /// Gives a wild frame an identity, as a new page: busy, on its way to the active queue. The caller owns the frame,
    /// puts it into the index and calls [`Objects::enqueue_new`](crate::object::Objects::enqueue_new).
    #[inline]
    pub(crate) fn assume_page(&self, page: &Page, object: u64, key: u64, bits: u64) {
        page.set_swap_slot(None);
        page.set_failed_writes(0);
        if bits & State::SHARED != 0 {
            self.stats().count(Event::SharedPage);
        }
        page.assume(object, key, NEW | bits);
    }

    /// Puts a new page into this CPU's batch.
    #[inline]
    pub(crate) fn enqueue_new(&self, page: &Page) {
        self.queues().add(page);
    }

    /// Puts new pages into this CPU's batch.
    #[inline]
    pub(crate) fn enqueue_all_new(&self, pages: impl Iterator<Item = Pfn>) {
        self.queues().add_all(pages);
    }

    /// Clears busy, and wakes the threads that wait for the page.
    #[inline]
    pub(crate) fn unbusy(&self, page: &Page) {
        if page.unbusy() {
            self.page_waits(page).wake_all();
        }
    }

    /// Waits until `page` is not busy any more, or was not to begin with.
    #[cold]
    pub(crate) fn wait_unbusy(&self, page: &Page, may: &mut MaySleep) {
        // Most pages are busy for a few hundred instructions of another CPU: a copy, zeroing, removal. Some are busy
        // until a whole window ahead is filled.
        for _ in 0..SPINS {
            if !page.state().busy() {
                return;
            }
            quire_sync::hooks::relax();
        }
        let _span = Span::begin(EventKind::BusyPage, page.object(), page.index());
        may.sleep_on(self.page_waits(page), || !page.announce_waiter());
    }

    /// Takes the identity of a busy page that is in no index and no leaf. Frees the frame, at once or with its last
    /// hold. Relies on C1.
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

    /// As [`Objects::release_page`](crate::object::Objects::release_page), for each page of a batch that is in `which`.
    /// They leave their queues together, and their frames are freed together.
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
        // SAFETY: the last hold of each of these pages was undone by this call, so no other CPU frees or uses its
        // frame.
        unsafe { self.free_frames(freed.map(|(_, (_, pfn))| *pfn)) };
    }

    /// Whether a page that has lost its identity leaves waiters, a queue entry or a swap slot behind.
    #[inline]
    fn leaves_more(page: &Page, before: State) -> bool {
        before.waiters() || page.swap_slot().is_some()
    }

    /// Releases the waiters, queue entry and swap slot of a page that has lost its identity.
    #[cold]
    fn left(&self, page: &Page, before: State) {
        // While the page is being written the write owns its swap slot.
        if !before.laundering()
            && let Some(slot) = page.take_swap_slot()
        {
            self.swap().release(SwapSlots { first: slot, len: 1 });
        }
        if before.waiters() {
            self.page_waits(page).wake_all();
        }
    }

    /// Undoes one hold; frees the frame where it was the last.
    pub(crate) fn unhold_page(&self, page: &Page) {
        if page.unhold() {
            // SAFETY: no identity and no hold is left, so no other CPU frees or reads the frame.
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
