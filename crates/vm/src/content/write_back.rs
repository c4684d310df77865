//! Writing an object's changes back: the work of `fsync` and `msync`.
//!
//! One walk over the pages tagged dirty starts the writes, in clusters of neighbours. A second walk over the same range
//! waits for them, and for writes that other threads have begun. A cleaner clears the tag only after the page says that
//! it is being written, so one of the two walks finds it. The walk is suspended to its key before anything that sleeps.
//! It waits for a busy page and continues at it. The same holds for a page that is already being written, perhaps with
//! older content, and for a page that is held. Behind a cluster it continues behind the cluster. No lock is held over a
//! walk.
//!
//! A page that becomes dirty while this runs may be written or not. A page that is dirty at the begin has been written
//! at the return. Otherwise its write has failed, which is an error and leaves the page dirty.

use crate::machine::Machine;
use crate::object::batch::Batch;
use crate::object::index::{KEYS, Slot};
use crate::object::{Object, ObjectRef, SlotFilter};
use crate::paging::io::CLUSTER;
use crate::paging::laundry;
use crate::paging::pager::PagerError;
use crate::phys::page::{Page, State};
use crate::sleep::MaySleep;
use core::ops::Range;

/// The reason why a step of the walk ended; the walk stands before it.
enum WalkEnd {
    /// The range is done.
    Done,
    /// The cluster is complete.
    Cluster,
    /// This page is busy.
    Busy(&'static Page),
    /// This page is being written.
    Laundering(&'static Page),
    /// This page is held.
    Held(&'static Page),
    /// The slot is being filled or emptied.
    Reserved,
}

impl<M: Machine> Object<M> {
    /// Whether changes go to a pager before memory is short.
    pub(crate) fn is_written_back(&self) -> bool {
        !self.holes_are_zero() && laundry::can_launder(self)
    }
}

impl<M: Machine> ObjectRef<M> {
    /// Writes the changes in `pages` to the object's pager, and waits until that is done; returns how many pages it
    /// wrote. Writes nothing for objects whose pages have nowhere to go. May sleep.
    pub fn write_back(&self, pages: Range<u64>) -> Result<u64, PagerError> {
        let pages = pages.start..pages.end.min(KEYS);
        let written = self.start_write_back(pages.clone());
        if self.is_written_back() {
            self.wait_for_writes(pages, &mut MaySleep::here())?;
        }
        Ok(written)
    }

    /// Begins to write the changes in `pages`, without waiting for the ends; returns how many pages are being written.
    /// May sleep.
    pub(crate) fn start_write_back(&self, pages: Range<u64>) -> u64 {
        match self.is_written_back() {
            true => self.start_writes(pages.start..pages.end.min(KEYS), &mut MaySleep::here()),
            false => 0,
        }
    }

    fn start_writes(&self, pages: Range<u64>, may: &mut MaySleep) -> u64 {
        let vm = self.vm();
        let mut range = self.range(pages, SlotFilter::PAGES | SlotFilter::DIRTY_ONLY);
        let mut written = 0;
        loop {
            // Before any page is busy: this may wait.
            let taken = vm.take_record(laundry::share(self), may);
            let mut batch = Batch::new();
            let (key, stop) = {
                let pin = may.pin(vm.epoch());
                let mut end = (0, WalkEnd::Done);
                for found in range.walk(&pin) {
                    let (key, slot) = (found.key(), found.slot());
                    if let Some(stop) = self.consider(key, slot, &mut batch) {
                        end = (key, stop);
                        break;
                    }
                }
                end
            };
            let mut next = (!matches!(stop, WalkEnd::Done)).then_some(key);
            let mut wait = stop;
            // The thread that this waits for may need a record.
            if batch.is_empty() {
                drop(taken);
            } else {
                let n = laundry::launder(self, &batch, taken, may).len();
                written += n as u64;
                if let Some((key, pfn)) = batch.as_slice().get(n) {
                    // Another thread has just taken a hold of it.
                    (next, wait) = (Some(*key), WalkEnd::Held(vm.page(*pfn)));
                }
            }
            let Some(next) = next else { return written };
            range.resume_at(next);
            match wait {
                WalkEnd::Done | WalkEnd::Cluster => {}
                WalkEnd::Busy(page) => vm.wait_unbusy(page, may),
                WalkEnd::Laundering(page) => vm.wait_laundered(page, may),
                WalkEnd::Held(page) => may.sleep_until(|| page.holds() <= 1),
                WalkEnd::Reserved => quire_sync::hooks::relax(),
            }
        }
    }

    /// Adds the page at `key` to the cluster, busy; returns the reason to stop the walk before it, if any.
    fn consider(&self, key: u64, slot: Slot, batch: &mut Batch) -> Option<WalkEnd> {
        let vm = self.vm();
        let pfn = match slot {
            Slot::Page(pfn) => pfn,
            Slot::Reserved => return Some(WalkEnd::Reserved),
            _ => return None,
        };
        let pages = batch.as_slice();
        if pages.len() == CLUSTER || pages.last().is_some_and(|last| last.0 + 1 != key) {
            return Some(WalkEnd::Cluster);
        }
        let page = vm.page(pfn);
        if vm.try_busy_page(self, key, page).is_none() {
            return Some(WalkEnd::Busy(page));
        }
        let state = page.state();
        if laundry::is_laundry(page) {
            batch.push(key, pfn);
            return None;
        }
        vm.unbusy(page);
        if !state.valid() || !state.dirty() {
            None
        } else if state.laundering() {
            Some(WalkEnd::Laundering(page))
        } else {
            Some(WalkEnd::Held(page))
        }
    }

    /// The state of `page` while it was this object's page `key`, and how often writing it has failed; `None` if it has
    /// another identity by now.
    fn state_of(&self, key: u64, page: &Page) -> Option<(State, u64)> {
        let state = page.state();
        let (is_ours, failed) = (page.object() == self.address() && page.index() == key, page.failed_writes());
        // The same generation after that: all values are of one page.
        (is_ours && page.state().generation() == state.generation()).then_some((state, failed))
    }

    fn wait_for_writes(&self, pages: Range<u64>, may: &mut MaySleep) -> Result<(), PagerError> {
        let vm = self.vm();
        let mut range = self.range(pages, SlotFilter::PAGES);
        let mut result = Ok(());
        loop {
            let wait = {
                let pin = may.pin(vm.epoch());
                let mut wait = None;
                for found in range.walk(&pin) {
                    let Slot::Page(pfn) = found.slot() else { continue };
                    let page = vm.page(pfn);
                    // The page may be another object's by now, whose writes do not matter here. Then the slot has
                    // changed.
                    let Some((state, failed)) = self.state_of(found.key(), page) else {
                        wait = Some((found.key(), None));
                        break;
                    };
                    if state.laundering() {
                        wait = Some((found.key(), Some((page, state.generation()))));
                        break;
                    }
                    if state.dirty() && failed != 0 {
                        result = Err(PagerError);
                    }
                }
                wait
            };
            let Some((key, write)) = wait else { return result };
            match write {
                Some((page, generation)) => {
                    let over = |state: State| !state.laundering() || state.generation() != generation;
                    vm.wait_for_io(may, || over(page.state()).then_some(()));
                }
                None => quire_sync::hooks::relax(),
            }
            range.resume_at(key);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
