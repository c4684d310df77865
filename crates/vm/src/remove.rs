//! The remover: takes pages away from an object, and from everybody who maps them (Contract C2).
//!
//! # The protocol
//! 1. Set the page exclusively busy.
//! 2. Fence.
//! 3. For each backing that shows it, under the lock of the backing's part: lock the table page over it, exchange the leaf if
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

use crate::backing::Backing;
use crate::flush::Obligation;
use crate::frames::Frame;
use crate::index::{Cursor, KEYS, Slot};
use crate::interval::Interval;
use crate::machine::{Machine, Pmap, Table};
use crate::mutant::{Mutant, mutant};
use crate::object::Object;
use crate::page::{Page, State};
use crate::sleep::MaySleep;
use crate::types::{PAGE_SIZE, Pfn, VirtRange};
use crate::vm::Vm;
use core::ops::Range;
use quire_sync::atomic::fence_full;
use quire_sync::epoch::Pinned;

/// Pages taken at once: enough that a scan and a flush are amortised, few enough for the stack.
#[cfg(not(any(loom, shuttle)))]
const BATCH: usize = 32;
#[cfg(any(loom, shuttle))]
const BATCH: usize = 2;

/// Pages of one object, ascending, each held busy by the batch.
pub(crate) struct Batch {
    pages: [(u64, Pfn); BATCH],
    len: usize,
}

impl Batch {
    pub fn new() -> Batch {
        Batch { pages: [(0, Pfn(0)); BATCH], len: 0 }
    }
    pub fn push(&mut self, key: u64, pfn: Pfn) {
        self.pages[self.len] = (key, pfn);
        self.len += 1;
    }
    fn is_full(&self) -> bool {
        self.len == BATCH
    }
    fn as_slice(&self) -> &[(u64, Pfn)] {
        &self.pages[..self.len]
    }
}

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
        // Most are busy for a few hundred instructions of another CPU: copied, zeroed, on their way out.
        for _ in 0..SPINS {
            if !page.state().busy() {
                return;
            }
            quire_sync::hooks::relax();
        }
        may.sleep_on(self.page_waits(page), || !page.announce_waiter());
    }

    /// Takes the identity of a busy page that no index and no leaf has any more; frees the frame, at once or with its last
    /// hold. Contract C1.
    pub(crate) fn release_page(&self, page: &Page) {
        let before = page.disown();
        self.leave_queue(page, before);
        if before.waiters() {
            self.page_waits(page).wake_all();
        }
        self.unhold_page(page);
    }

    /// Undoes one hold; frees the frame where it was the last.
    pub(crate) fn unhold_page(&self, page: &Page) {
        if page.unhold() {
            // SAFETY: no identity and no hold is left, so nobody else frees it or looks at it.
            self.free_frame(unsafe { Frame::from_pfn(self.pfn_of_page(page)) });
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
const SPINS: u32 = 64;

/// What stopped a collection.
enum Stop {
    /// The range is done.
    Done,
    /// The batch is full.
    Full,
    /// This page is busy; the cursor stands before it.
    Busy(&'static Page),
    /// A slot is being filled or emptied; the cursor stands before it.
    Reserved,
}

/// Takes pages from the cursor on, each busy, into an empty batch; drops cuts.
fn collect<M: Machine>(object: &Object<M>, cursor: &mut Cursor, batch: &mut Batch, pin: &Pinned<'_>) -> Stop {
    let vm = object.vm();
    let mut visit = cursor.resume(object.index(), pin);
    let (key, stop) = loop {
        if batch.is_full() {
            return Stop::Full;
        }
        let Some((key, slot)) = visit.next() else { return Stop::Done };
        match slot {
            Slot::Page(pfn) => {
                let page = vm.page(pfn);
                match vm.try_busy_page(object, key, page) {
                    Some(_) => batch.push(key, pfn),
                    None => break (key, Stop::Busy(page)),
                }
            }
            Slot::Reserved => break (key, Stop::Reserved),
            Slot::Cut | Slot::Cover(_) => {
                object.index().clear(key, slot, pin);
            }
            Slot::Empty | Slot::Swap(_) => {}
        }
    };
    cursor.rewind(key);
    stop
}

/// Frees the batch's pages, which no leaf maps any more.
fn finish<M: Machine>(object: &Object<M>, batch: &Batch, pin: &Pinned<'_>) {
    let vm = object.vm();
    for (key, pfn) in batch.as_slice() {
        let cleared = object.index().clear(*key, Slot::Page(*pfn), pin);
        debug_assert!(cleared, "a busy page stays in its slot");
        vm.release_page(vm.page(*pfn));
    }
}

/// Takes the pages of `keys` (and cuts) away from `object` and from everybody who maps them.
pub(crate) fn evict<M: Machine>(object: &Object<M>, keys: Range<u64>, may: &mut MaySleep) {
    let vm = object.vm();
    let mut cursor = Cursor::over(keys.clone());
    loop {
        let mut batch = Batch::new();
        let stop = {
            let pin = may.pin(vm.epoch());
            collect(object, &mut cursor, &mut batch, &pin)
        };
        if batch.len != 0 {
            unmap(object, &batch);
            let pin = may.pin(vm.epoch());
            finish(object, &batch, &pin);
        }
        match stop {
            Stop::Done => break,
            Stop::Full => {}
            Stop::Busy(page) => vm.wait_unbusy(page, may),
            Stop::Reserved => quire_sync::hooks::relax(),
        }
    }
    let pin = may.pin(vm.epoch());
    object.index().prune(keys, &pin);
}

/// Frees pages (and cuts) of `keys` that no leaf maps nor will: those of private memory whose leaves are gone and flushed and
/// whose faults give up. Waits for busy pages by spinning: who holds one here is such a fault, which never sleeps.
pub(crate) fn free<M: Machine>(object: &Object<M>, keys: Range<u64>) {
    free_unmapped(object, keys.clone(), false);
    let pin = object.vm().epoch().pin();
    object.index().prune(keys, &pin);
}

/// As [`free`], and leaves empty nodes where they are. `whole`: the index goes next, so its slots need not be emptied.
fn free_unmapped<M: Machine>(object: &Object<M>, keys: Range<u64>, whole: bool) {
    let vm = object.vm();
    let mut cursor = Cursor::over(keys);
    loop {
        let pin = vm.epoch().pin();
        let mut batch = Batch::new();
        let stop = collect(object, &mut cursor, &mut batch, &pin);
        if whole {
            batch.as_slice().iter().for_each(|(_, pfn)| vm.release_page(vm.page(*pfn)));
        } else {
            finish(object, &batch, &pin);
        }
        drop(pin);
        match stop {
            Stop::Done => return,
            Stop::Full => {}
            Stop::Busy(_) | Stop::Reserved => quire_sync::hooks::relax(),
        }
    }
}

/// Frees all pages of a dead object: nobody shows it, every flush is done.
pub(crate) fn free_all<M: Machine>(object: &Object<M>) {
    free_unmapped(object, 0..KEYS, true);
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

/// Steps 2 and 3 of the protocol, for a batch of busy pages.
pub(crate) fn unmap<M: Machine>(object: &Object<M>, batch: &Batch) {
    let pages = batch.as_slice();
    let (Some(first), Some(last)) = (pages.first(), pages.last()) else { return };
    if !mutant(Mutant::NoFenceBeforeScan) {
        fence_full();
    }
    object.parts().scan(first.0, last.0 + 1, |b| unmap_from(object.vm(), b, pages));
}

/// Takes the leaves of `pages` out of the range of one backing, and flushes.
fn unmap_from<M: Machine>(vm: &'static Vm<M>, b: &Backing<M>, pages: &[(u64, Pfn)]) {
    let pmap = b.pmap();
    let shown = Interval::start(b)..Interval::end(b);
    let from = pages.partition_point(|p| p.0 < shown.start);
    let to = pages.partition_point(|p| p.0 < shown.end);
    let mut rest = &pages[from..to];
    let mut owed = Obligation::new(vm, pmap);
    while let Some((key, _)) = rest.first() {
        let va = b.va(*key);
        match pmap.next_table(vm, VirtRange { start: va, end: va + PAGE_SIZE }) {
            None => {
                if !mutant(Mutant::NoUnflushedCheck) && pmap.unflushed_above(vm, va) {
                    owed.owe_again(va);
                }
                rest = &rest[1..];
            }
            Some(mut table) => {
                let end = table.span().end;
                while let Some((key, pfn)) = rest.first() {
                    let va = b.va(*key);
                    if va >= end {
                        break;
                    }
                    if table.get(va).is_some_and(|leaf| leaf.pfn == *pfn) {
                        if let Some(gone) = table.remove(va, &mut owed)
                            && gone.dirty
                        {
                            vm.page(*pfn).set(State::DIRTY);
                        }
                    } else if !mutant(Mutant::NoUnflushedCheck) && table.unflushed() {
                        owed.owe_again(va);
                    }
                    rest = &rest[1..];
                }
                drop(table);
                if owed.is_full() {
                    let _flushed = core::mem::replace(&mut owed, Obligation::new(vm, pmap)).discharge();
                }
            }
        }
    }
    let _flushed = owed.discharge();
}
