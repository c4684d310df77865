//! Finishing completed reads and writes, and waiting for that.

use super::io::{Direction, Polled, RECORDS, Taken, TooManyPolled, written};
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
    /// Polls `what` from now on, while requests are under way.
    pub fn poll_with(&self, polled: &'static dyn Polled) -> Result<(), TooManyPolled> {
        let free = self.io().polled.iter().find_map(|p| {
            let place = p.lock();
            place.is_none().then_some(place)
        });
        *free.ok_or(TooManyPolled)? = Some(polled);
        self.io().polling.store(true, Ordering::Release);
        Ok(())
    }

    /// Polls the registered pagers; returns whether requests are left there.
    pub(crate) fn poll_pagers(&self) -> bool {
        let mut left = false;
        for place in &self.io().polled {
            let polled = *place.lock();
            left |= polled.is_some_and(|p| p.poll());
        }
        left
    }

    /// Waits until every read and write that is under way is finished.
    pub fn finish_io(&'static self, may: &mut MaySleep) {
        self.wait_for_io(may, || (self.io().in_flight() == 0).then_some(()));
    }

    /// Finishes completed reads and writes; returns how many. May sleep: an object's last reference may go.
    // Not in its callers' frames, which sleep.
    #[inline(never)]
    pub(crate) fn finish_completed(&'static self, may: &mut MaySleep) -> usize {
        let io = self.io();
        let mut at = io.completed.swap(ptr::null_mut(), Ordering::AcqRel);
        let mut n = 0;
        // Dropped when all of them are finished. The end of an object may wait for a record, or for a read or write,
        // that is further down this list.
        let mut kept: [Option<KeptObject<M>>; RECORDS] = [const { None }; RECORDS];
        while let Some(record) = NonNull::new(at) {
            // SAFETY: the swap took the whole list, so its records are this call's until it gives them back; records
            // are never freed.
            let r = unsafe { record.as_ref() };
            at = r.next.load(Ordering::Relaxed);
            let result = if r.failed.load(Ordering::Relaxed) == 0 { Ok(()) } else { Err(PagerError) };
            // SAFETY: a request that is complete is used by no pager, so the record's body is this call's alone.
            let body = unsafe { &*r.body.get() };
            // SAFETY: the record got the pointer from `KeptObject::into_raw`, or null, when it was filled, and is
            // finished once.
            let object = unsafe { KeptObject::<M>::from_raw(body.object) };
            match body.direction {
                Direction::Read => object.iter().for_each(|o| page_in::finish(self, o.object(), body, result, may)),
                Direction::Write => laundry::finish(self, object.as_ref().map(KeptObject::object), body, result, may),
            }
            kept[n] = object;
            // SAFETY: the pointer is null, or of a waiter that stays until the word is set, which happens below.
            if let Some(done) = unsafe { body.done.as_ref() } {
                done.0.store(if result.is_ok() { 1 } else { 2 }, Ordering::Release);
            }
            io.writing.fetch_sub(written(record), Ordering::Relaxed);
            io.finished.fetch_add(1, Ordering::AcqRel);
            io.in_flight.fetch_sub(1, Ordering::AcqRel);
            io.give(record);
            n += 1;
        }
        n
    }

    /// Sleeps until `ready`, and finishes completed I/O meanwhile where no daemon does.
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

    /// Waits until `page` is not being written any more.
    #[cold]
    pub(crate) fn wait_laundered(&'static self, page: &Page, may: &mut MaySleep) {
        self.wait_for_io(may, || (!page.state().laundering()).then_some(()));
    }

    /// A record; waits for one.
    pub(crate) fn take_record(&'static self, may: &mut MaySleep) -> Taken<'static> {
        self.wait_for_io(may, || self.io().try_take())
    }

    /// As [`Objects::take_record`](crate::object::Objects::take_record), and leaves some for reads, so that a large
    /// page-out does not keep faults from paging in.
    pub(crate) fn take_record_for_writing(&'static self, may: &mut MaySleep) -> Taken<'static> {
        self.wait_for_io(may, || (self.io().free() > RECORDS / 4).then(|| self.io().try_take()).flatten())
    }
}
