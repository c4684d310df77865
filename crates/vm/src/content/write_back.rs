//! Write-back of an object's dirty pages, for `fsync` and `msync`.
//!
//! A first walk over the pages that the index tags dirty starts the writes, in clusters of neighbours. A second walk
//! over the same range waits for them, and for writes that other threads have started. Other writers of dirty pages
//! clear the tag only after they have set the page's state to "being written". So one of the two walks finds each dirty
//! page. A walk remembers its key before it sleeps. It waits for a busy page, for a page that is being written (perhaps
//! with older content), or for a page with a hold. Then it continues at that page. After a cluster it continues with
//! the page after the cluster. A walk holds no lock.
//!
//! A page that becomes dirty during the call may be written or not. A page that is dirty at the beginning is written
//! when the call returns. Otherwise its write has failed: the call returns an error, and the page stays dirty.

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

/// The treatment of dirty pages that a thread holds, in a write-back.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    /// It waits until they are released.
    Awaited,
    /// It leaves them dirty.
    Skipped,
}

/// The reason why a step of the walk ended. The walk continues at the page that it names.
enum WalkEnd {
    /// The range has no more dirty pages.
    Done,
    /// The cluster is complete.
    Cluster,
    /// The page is busy.
    Busy(&'static Page),
    /// The page is being written.
    Laundering(&'static Page),
    /// Another thread has a hold on the page.
    Held(&'static Page),
    /// The slot is being filled or emptied.
    Reserved,
}

impl<M: Machine> Object<M> {
    /// Whether the object's dirty pages are written to a pager even if memory is not short.
    pub(crate) fn is_written_back(&self) -> bool {
        !self.holes_are_zero() && laundry::can_launder(self)
    }

    /// Waits until the object, whose pager has pages elsewhere, may have one more dirty page. The caller holds no page.
    pub(crate) fn wait_to_dirty(&self, may: &mut MaySleep) -> Result<(), PagerError> {
        if self.may_dirty() { Ok(()) } else { self.make_clean(may) }
    }

    #[cold]
    fn make_clean(&self, may: &mut MaySleep) -> Result<(), PagerError> {
        // Removed pages may be counted still.
        self.recount_dirty(may);
        if self.may_dirty() || self.has_no_dirty() {
            return Ok(());
        }
        if !self.is_written_back() {
            return Err(PagerError::TooManyDirty);
        }
        let own = ObjectRef::of(self, &may.pin(self.vm().epoch()));
        // An object that is being torn down has no pages to write.
        if let Some(own) = own {
            // The calling thread may hold a page of the object, whose bytes it copies to or from a mapping.
            own.start_writes(0..KEYS, Held::Skipped, may);
            own.wait_for_writes(0..KEYS, may)?;
        }
        self.recount_dirty(may);
        // Other objects may have used up the limit. An object without dirty pages may still have one.
        if self.may_dirty() || self.has_no_dirty() { Ok(()) } else { Err(PagerError::TooManyDirty) }
    }
}

impl<M: Machine> ObjectRef<M> {
    /// Writes the dirty pages of `pages` to the object's pager, and waits for the writes. Returns the number of pages
    /// that it wrote. Does nothing for objects without write-back. May sleep.
    pub fn write_back(&self, pages: Range<u64>) -> Result<u64, PagerError> {
        let pages = pages.start..pages.end.min(KEYS);
        let written = self.start_write_back(pages.clone());
        if self.is_written_back() {
            self.wait_for_writes(pages, &mut MaySleep::here())?;
        }
        Ok(written)
    }

    /// Starts writes of the dirty pages of `pages`, and does not wait for their ends. Returns the number of pages whose
    /// writes it started. May sleep.
    pub(crate) fn start_write_back(&self, pages: Range<u64>) -> u64 {
        match self.is_written_back() {
            true => self.start_writes(pages.start..pages.end.min(KEYS), Held::Awaited, &mut MaySleep::here()),
            false => 0,
        }
    }

    fn start_writes(&self, pages: Range<u64>, held: Held, may: &mut MaySleep) -> u64 {
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
            // The record is freed before the wait below, because the thread for which this call waits may need a
            // record.
            if batch.is_empty() {
                drop(taken);
            } else {
                let n = laundry::launder(self, &batch, taken, may).len();
                written += n as u64;
                if let Some((key, pfn)) = batch.as_slice().get(n) {
                    // Another thread has just acquired a hold on the page.
                    (next, wait) = (Some(*key), WalkEnd::Held(vm.page(*pfn)));
                }
            }
            let Some(next) = next else { return written };
            if held == Held::Skipped && matches!(wait, WalkEnd::Held(_)) {
                range.resume_at(next + 1);
                continue;
            }
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

    /// Sets the page at `key` busy and adds it to the cluster, if it must be written. Returns the reason to stop the
    /// walk at this page, if any.
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

    /// The state of `page`, which was found at this object's `key`, and the number of its failed writes. `None` if the
    /// page has another identity now.
    fn state_of(&self, key: u64, page: &Page) -> Option<(State, u64)> {
        let state = page.state();
        let (is_ours, failed) = (page.object() == self.address() && page.index() == key, page.failed_writes());
        // If the generation is the same after these reads, all values belong to one identity of the page.
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
                    // If the page belongs to another object now, its writes do not matter. Then the slot has changed,
                    // so look again.
                    let Some((state, failed)) = self.state_of(found.key(), page) else {
                        wait = Some((found.key(), None));
                        break;
                    };
                    if state.laundering() {
                        wait = Some((found.key(), Some((page, state.generation()))));
                        break;
                    }
                    if state.dirty() && failed != 0 {
                        result = Err(self.write_errors().last());
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
