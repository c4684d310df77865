//! The life of a page. A frame gets an identity, is busy from time to time, and loses its identity (relies on C1).
//!
//! A new page is busy, has its object and key, and joins the active queue. The thread that sets a page busy has
//! exclusive access to it. When a page loses its identity, it leaves its page queue and its swap slot. The frame is
//! freed when its last hold is dropped (a hold keeps the frame while its bytes are copied).

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

/// The number of polls before a waiter sleeps.
const SPINS: u32 = if cfg!(any(loom, shuttle)) { 0 } else { 64 };

impl<M: Machine> Objects<M> {
    /// Gives an unowned frame an identity, as a new page. The page is busy and will join the active queue. The caller
    /// owns the frame, puts it into the index and calls [`Objects::enqueue_new`](crate::object::Objects::enqueue_new).
    #[inline]
    pub(crate) fn assume_page(&self, page: &Page, object: u64, key: u64, bits: u64) {
        page.set_swap_slot(None);
        page.set_failed_writes(0);
        if bits & State::SHARED != 0 {
            self.stats().count(Event::SharedPage);
        }
        page.assume(object, key, NEW | bits);
    }

    /// Puts a new page into this CPU's batch for the active queue.
    #[inline]
    pub(crate) fn enqueue_new(&self, page: &Page) {
        self.queues().add(page);
    }

    /// Puts new pages into this CPU's batch for the active queue.
    #[inline]
    pub(crate) fn enqueue_all_new(&self, pages: impl Iterator<Item = Pfn>) {
        self.queues().add_all(pages);
    }

    /// Clears the busy bit, and wakes the threads that wait for the page.
    #[inline]
    pub(crate) fn unbusy(&self, page: &Page) {
        if page.unbusy() {
            self.page_waits(page).wake_all();
        }
    }

    /// Waits until `page` is not busy. Returns at once if it is not busy now.
    #[cold]
    pub(crate) fn wait_unbusy(&'static self, page: &Page, may: &mut MaySleep) {
        // The wait begins with a short spin. Most pages are busy for a few hundred instructions of another CPU: a copy,
        // zeroing or removal. Some are busy until a whole readahead window is filled.
        for _ in 0..SPINS {
            if !page.state().busy() {
                return;
            }
            quire_sync::hooks::relax();
        }
        let _span = Span::begin(EventKind::BusyPage, page.object(), page.index());
        if self.io().needs_finisher() {
            return self.wait_for_io(may, || (!page.state().busy()).then_some(()));
        }
        may.sleep_on(self.page_waits(page), || !page.announce_waiter());
    }

    /// Removes the identity of a busy page that is in no index and no PTE. The frame is freed now or with its last
    /// hold. Relies on C1: a page loses its identity only while it is busy.
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

    /// Releases each page of `batch` that is in `which`, like
    /// [`Objects::release_page`](crate::object::Objects::release_page). The pages leave their queues together, and
    /// their frames are freed together.
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
        // SAFETY: this call dropped the last hold of each of these pages, so no other CPU frees or uses its frame.
        unsafe { self.free_frames(freed.map(|(_, (_, pfn))| *pfn)) };
    }

    /// Whether a page that has lost its identity still has waiters or a swap slot.
    #[inline]
    fn leaves_more(page: &Page, before: State) -> bool {
        before.waiters() || page.swap_slot().is_some()
    }

    /// Wakes the threads that wait for a page that has lost its identity, and releases its swap slot.
    #[cold]
    fn left(&self, page: &Page, before: State) {
        // While the page is being written, the write owns the swap slot.
        if !before.laundering()
            && let Some(slot) = page.take_swap_slot()
        {
            self.swap().release(SwapSlots { first: slot, len: 1 });
        }
        if before.waiters() {
            self.page_waits(page).wake_all();
        }
    }

    /// Drops one hold, and frees the frame if it was the last.
    pub(crate) fn unhold_page(&self, page: &Page) {
        if page.unhold() {
            // SAFETY: no identity and no hold is left, so no other CPU frees or reads the frame.
            self.return_frame(unsafe { Frame::from_pfn(self.pfn_of_page(page)) });
        }
    }

    /// Sets the page in `object`'s slot `key` busy. Returns `None` if the page is busy, or is no longer the page of
    /// that slot.
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
