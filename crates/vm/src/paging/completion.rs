//! Finishes completed reads and writes, and waits for their completion.

use super::io::{Direction, Polled, RECORDS, Share, Taken, TooManyPolled, written};
use super::pager::PagerError;
use super::{laundry, page_in};
use crate::machine::Machine;
use crate::object::Objects;
use crate::object::kept::KeptObject;
use crate::phys::page::Page;
use crate::sleep::MaySleep;
use core::ptr::{self, NonNull};
use quire_sync::atomic::Ordering;
use quire_sync::hooks::relax;

impl<M: Machine> Objects<M> {
    /// Registers `polled`, which is polled from now on while requests are in progress. Returns an error if all places
    /// are taken.
    pub fn poll_with(&self, polled: &'static dyn Polled) -> Result<(), TooManyPolled> {
        let free = self.io().polled.iter().find_map(|p| {
            let place = p.lock();
            place.is_none().then_some(place)
        });
        *free.ok_or(TooManyPolled)? = Some(polled);
        self.io().polling.store(true, Ordering::Release);
        Ok(())
    }

    /// Polls the registered pagers. Returns whether the pagers still have requests.
    pub(crate) fn poll_pagers(&self) -> bool {
        let mut left = false;
        for place in &self.io().polled {
            let polled = *place.lock();
            left |= polled.is_some_and(|p| p.poll());
        }
        left
    }

    /// Waits until all reads and writes in progress are finished.
    pub fn finish_io(&'static self, may: &mut MaySleep) {
        self.wait_for_io(may, || (self.io().in_flight() == 0).then_some(()));
    }

    /// Finishes completed reads and writes. Returns their number. May sleep, because it may drop the last reference to
    /// an object.
    // This function is not inlined, so that its variables are not in the stack frames of its callers, which sleep.
    #[inline(never)]
    pub(crate) fn finish_completed(&'static self, may: &mut MaySleep) -> usize {
        let io = self.io();
        let mut at = io.completed.swap(ptr::null_mut(), Ordering::AcqRel);
        let mut n = 0;
        // The objects are dropped only after all records are finished. The teardown of an object may wait for a record,
        // or for a read or write that is further down this list.
        let mut kept: [Option<KeptObject<M>>; RECORDS] = [const { None }; RECORDS];
        while let Some(record) = NonNull::new(at) {
            // SAFETY: the swap took the whole list, so this call owns its records until it frees them. Records are
            // never freed to memory.
            let r = unsafe { record.as_ref() };
            at = r.next.load(Ordering::Relaxed);
            let result = PagerError::from_code(r.result.load(Ordering::Relaxed));
            // SAFETY: no pager uses a completed request, so this call alone reaches the record's body.
            let body = unsafe { &*r.body.get() };
            // SAFETY: the pointer is null, or was returned by `KeptObject::into_raw` when the record was filled. A
            // record is finished once.
            let object = unsafe { KeptObject::<M>::from_raw(body.object) };
            match body.direction {
                Direction::Read => object.iter().for_each(|o| page_in::finish(self, o.object(), body, result, may)),
                Direction::Write => laundry::finish(self, object.as_ref().map(KeptObject::object), body, result, may),
            }
            kept[n] = object;
            io.writing.fetch_sub(written(record), Ordering::Relaxed);
            io.finished.fetch_add(1, Ordering::AcqRel);
            io.in_flight.fetch_sub(1, Ordering::AcqRel);
            io.end(record);
            n += 1;
        }
        n
    }

    /// Sleeps until `ready` returns a value. During the wait, finishes completed I/O if no daemon does so.
    pub(crate) fn wait_for_io<R>(&'static self, may: &mut MaySleep, mut ready: impl FnMut() -> Option<R>) -> R {
        let io = self.io();
        loop {
            if io.has_completed() {
                self.finish_completed(may);
            }
            if let Some(r) = ready() {
                return r;
            }
            if io.has_completer() {
                let mut found = None;
                may.sleep_on(&io.waits, || {
                    found = ready();
                    found.is_some() || !io.has_completer() || io.has_completed()
                });
                if let Some(r) = found {
                    return r;
                }
            } else {
                self.poll_pagers();
                if self.finish_completed(may) == 0 {
                    relax();
                }
            }
        }
    }

    /// Waits until `page` is not being written.
    #[cold]
    pub(crate) fn wait_laundered(&'static self, page: &Page, may: &mut MaySleep) {
        self.wait_for_io(may, || (!page.state().laundering()).then_some(()));
    }

    /// Takes a record, and waits until one is free for `share`.
    pub(crate) fn take_record(&'static self, share: Share, may: &mut MaySleep) -> Taken<'static> {
        self.wait_for_io(may, || self.io().try_take(share))
    }

    /// As [`Objects::take_record`](crate::object::Objects::take_record), but leaves some records for reads. So a large
    /// page-out does not keep faults from paging in. Returns `None` at once if `share` holds its part: page-out serves
    /// other pagers then.
    pub(crate) fn take_record_for_writing(&'static self, share: Share, may: &mut MaySleep) -> Option<Taken<'static>> {
        let io = self.io();
        self.wait_for_io(may, || match io.free() > RECORDS / 4 {
            true if !io.has_room(share) => Some(None),
            true => io.try_take(share).map(Some),
            false => None,
        })
    }
}
