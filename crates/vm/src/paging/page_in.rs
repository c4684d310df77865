//! Page-in: reading a page for a fault, from the object's pager or from swap.
//!
//! # Rules
//! - While a page is read, a *placeholder* is in the index. It is a busy page that is not valid, with the identity of
//!   the page that is read. Other threads that need the page wait for it instead of reading it again. A remover waits
//!   too.
//! - The change from swap slot to placeholder is one compare-and-swap of the index slot. From then on the page owns the
//!   swap slot. A read that fails restores the swap slot by the reverse step.
//! - While the reader waits, it holds only the read's reference to the object, which finishing drops. So the object
//!   cannot be torn down while it has a placeholder.
//! - Neighbours are read too if their swap slots are adjacent. In files they are read if they are not resident either.
//!   They are optional: a neighbour without a frame makes the read shorter. If a read of several pages fails, the
//!   fault's page is read again alone.

use crate::cow::found::FoundPage;
use crate::error::{FaultError, OutOfMemory};
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::object::Objects;
use crate::object::index::{FillError, Slot};
use crate::object::kept::KeptObject;
use crate::object::{Object, SlotFilter};
use crate::paging::io::{Body, CLUSTER, Direction, Share};
use crate::paging::laundry;
use crate::paging::pager::PagerError;
use crate::phys::frames::{Fill, For};
use crate::phys::page::{Page, State};
use crate::sleep::MaySleep;
use crate::stats::Event;
use crate::types::Pfn;
use core::ops::Range;
use core::ptr;
use quire_sync::atomic::fence_full;
use quire_sync::epoch::Pinned;
use quire_sync::hooks::is_panicking;
use quire_sync::trace::{EventKind, Span};

/// A page that must be read.
pub(crate) struct PageIn<M: Machine> {
    object: KeptObject<M>,
    key: u64,
    /// The swap slot of the page, or `None` if the pager has the page.
    slot: Option<u64>,
}

/// The result of a read.
enum Read {
    /// The page is in memory, or another thread has changed its slot first.
    Done,
    /// A read of this number of pages failed for this reason. All of these pages are on their pager or in swap again, as
    /// before.
    Failed(usize, PagerError),
}

impl Read {
    fn result(self) -> Result<(), FaultError> {
        match self {
            Read::Done => Ok(()),
            Read::Failed(_, error) => Err(error.into()),
        }
    }
}

/// Wakes the threads that wait for a read's pages, if the reader unwinds: one of them finishes the read then.
struct Reader<'a, M: Machine> {
    vm: &'static Objects<M>,
    pages: &'a [Pfn],
}

impl<M: Machine> Drop for Reader<'_, M> {
    fn drop(&mut self) {
        if is_panicking() {
            self.pages.iter().for_each(|pfn| _ = self.vm.page_waits(self.vm.page(*pfn)).wake_all());
        }
    }
}

/// The placeholders of one read, which have consecutive keys.
struct Run {
    /// The fault's page is in the middle, later pages after it and earlier pages before it.
    pfns: [Pfn; 2 * CLUSTER],
    start: usize,
    end: usize,
}

impl<M: Machine> PageIn<M> {
    /// A page that only the pager has. Returns `None` if the object is being torn down.
    pub fn new(object: &Object<M>, key: u64, pin: &Pinned<'_>) -> Option<Self> {
        Some(PageIn { object: KeptObject::new(object, pin)?, key, slot: None })
    }

    /// A page in swap. Returns `None` if the object is being torn down.
    pub fn swapped(object: &Object<M>, key: u64, slot: u64, pin: &Pinned<'_>) -> Option<Self> {
        Some(PageIn { object: KeptObject::new(object, pin)?, key, slot: Some(slot) })
    }

    /// Reads the page, and neighbours. Returns an error only if the page itself cannot be read. Returns success if
    /// another thread reads the page first.
    pub fn run(self, may: &mut MaySleep) -> Result<(), FaultError> {
        match self.read(self.most(), may)? {
            // A thread that must end does not read again, and does not wait for the request that goes on.
            Read::Failed(_, PagerError::Cancelled) => Err(PagerError::Cancelled.into()),
            // The pager does not report which page failed, so the page is read again alone.
            Read::Failed(pages, _) if pages > 1 => self.read(1, may)?.result(),
            read => read.result(),
        }
    }

    /// The most pages of one read.
    fn most(&self) -> usize {
        match self.slot {
            // A swap read has half the pages of a write's cluster. The other half may not be needed, and memory is
            // short when pages are in swap.
            Some(_) => CLUSTER / 2,
            None => self.object.object().pager().map_or(1, |p| p.cluster()).clamp(1, CLUSTER),
        }
    }

    /// Reads the page, with up to `most` - 1 neighbours.
    fn read(&self, most: usize, may: &mut MaySleep) -> Result<Read, OutOfMemory> {
        let mut span = Span::begin(EventKind::PageIn, 0, 0);
        let vm = self.object.object().vm();
        // The record is taken first. From here on this thread waits only for the pager.
        let share = match self.slot {
            Some(_) => Share::SWAP,
            None => self.object.object().pager().map_or(Share::SWAP, |pager| Share::of(pager.share())),
        };
        let mut taken = vm.take_record(share, may);
        let (run, first) = {
            let pin = may.pin(vm.epoch());
            match self.place_run(most, &pin)? {
                Some(found) => found,
                None => return Ok(Read::Done),
            }
        };
        let body = taken.body();
        body.direction = Direction::Read;
        body.swap = self.slot.is_some();
        body.first = self.slot.map_or(first, |s| s - (self.key - first));
        for (i, pfn) in run.pfns[run.start..run.end].iter().enumerate() {
            body.push(vm, first + i as u64, *pfn);
        }
        // This is a second reference, which `finish` drops. The first reference keeps the pager while it starts the
        // request, even if the read is already finished by then.
        let theirs = KeptObject::new(self.object.object(), &may.pin(vm.epoch()));
        body.object = theirs.map_or(ptr::null(), KeptObject::into_raw);
        // Dropped after the wait is given up.
        let _reader = Reader { vm, pages: &run.pfns[run.start..run.end] };
        // A pager that panics ends this thread's wait. The request then goes on without it, or its drop fails it.
        let (request, awaited) = taken.start_awaited();
        let pages = request.len();
        span.count(pages as u64, self.key);
        if self.slot.is_some() {
            vm.stats().add(Event::SwapIn, pages as u64);
            match vm.swap().store() {
                Some(store) => store.start(request),
                None => drop(request),
            }
        } else {
            vm.stats().add(Event::PageIn, pages as u64);
            match self.object.object().pager() {
                Some(pager) => pager.start(request),
                None => drop(request),
            }
        }
        let is_ending = || vm.machine().is_ending().then_some(Err(PagerError::Cancelled));
        let result = vm.wait_for_io(may, || awaited.get().or_else(is_ending));
        Ok(result.map_or_else(|error| Read::Failed(pages, error), |()| Read::Done))
    }

    /// Makes placeholders for the page and for the neighbours to read with it. Also returns the key of the first one.
    /// `None` if another thread changes the page's index slot first.
    fn place_run(&self, most: usize, pin: &Pinned<'_>) -> Result<Option<(Run, u64)>, OutOfMemory> {
        let Some(pfn) = self.place(self.key, self.slot, true, pin)? else { return Ok(None) };
        let mut run = Run { pfns: [Pfn(0); 2 * CLUSTER], start: CLUSTER, end: CLUSTER + 1 };
        run.pfns[CLUSTER] = pfn;
        while run.end - run.start < most
            && let Some(pfn) = self.beside((run.end - CLUSTER) as i64, pin)
        {
            run.pfns[run.end] = pfn;
            run.end += 1;
        }
        while self.slot.is_some()
            && run.end - run.start < most
            && let Some(pfn) = self.beside(run.start as i64 - 1 - CLUSTER as i64, pin)
        {
            run.start -= 1;
            run.pfns[run.start] = pfn;
        }
        let first = self.key - (CLUSTER - run.start) as u64;
        Ok(Some((run, first)))
    }

    /// Makes a placeholder for the page that is `by` pages from this one. Returns `None` if that page cannot be part of
    /// the same read.
    fn beside(&self, by: i64, pin: &Pinned<'_>) -> Option<Pfn> {
        let object = self.object.object();
        let key = self.key.checked_add_signed(by).filter(|k| *k < object.end())?;
        let slot = match self.slot {
            Some(slot) => Some(slot.checked_add_signed(by)?),
            None => None,
        };
        let there = object.index().get(key, pin);
        if there != slot.map_or(Slot::Empty, Slot::Swap) {
            return None;
        }
        self.place(key, slot, false, pin).ok().flatten()
    }

    /// Puts a placeholder at `key` if the index still has `slot` (or an empty slot) there. Otherwise returns `None`.
    /// `wanted`: it is the fault's own page, not a neighbour.
    fn place(&self, key: u64, slot: Option<u64>, wanted: bool, pin: &Pinned<'_>) -> Result<Option<Pfn>, OutOfMemory> {
        let object = self.object.object();
        let vm = object.vm();
        // Swap always fills whole pages.
        let fills_whole = slot.is_some() || object.pager().is_some_and(|pager| pager.fills_whole());
        let fill = if fills_whole { Fill::Any } else { Fill::Zeroed };
        let frames = vm.frames();
        let frame = match vm.alloc_frame(fill, For::User) {
            // The frame is borrowed from the reserve, of which at most half is used this way. The read frees a swap
            // slot, so another page can be written to it and gives its frame back.
            Err(_) if wanted && slot.is_some() && vm.swap().is_scarce() && frames.free() > frames.reserve() / 2 => {
                vm.alloc_frame(fill, For::System)?
            }
            other => other?,
        };
        let pfn = frame.into_pfn();
        let page = vm.page(pfn);
        vm.assume_page(page, object.address(), key, object.page_bits());
        page.set_swap_slot(slot);
        if slot.is_some() {
            page.suspect();
        }
        let placed = match slot {
            Some(slot) => Ok(object.index().replace(key, Slot::Swap(slot), Slot::Page(pfn), pin)),
            None => match object.index().fill(key, Slot::Page(pfn), vm, pin) {
                Ok(()) => Ok(true),
                Err(FillError::OutOfMemory) => Err(OutOfMemory),
                Err(_) => Ok(false),
            },
        };
        if placed == Ok(true) {
            if vm.ghosts.comes_back(object.address(), key) {
                vm.stats().count(Event::NearRefault);
            }
            return Ok(Some(pfn));
        }
        page.set_swap_slot(None);
        vm.release_page(page);
        placed.map(|_| None)
    }
}

/// Reads those pages of `keys` that only the pager or swap has, cluster by cluster, while memory is not low. The first
/// page that cannot be read ends the reading, and a fault that needs that page reports the error. Maps no page.
pub(crate) fn read_ahead<M: Machine>(object: &Object<M>, keys: Range<u64>, may: &mut MaySleep) {
    let vm = object.vm();
    let (in_memory, mut at) = (object.holes_are_zero(), keys.start);
    // The loop ends if the thread is ending, memory is low, or a read fails.
    while at < keys.end.min(object.end()) && !vm.frames().is_low() && !vm.machine().is_ending() {
        let read = {
            let pin = may.pin(vm.epoch());
            // A hole of an object in memory has nothing to read, so only pages in swap are visited.
            if in_memory {
                let mut swapped = object.range(at..keys.end, SlotFilter::SWAP);
                let Some(found) = swapped.walk(&pin).next() else { return };
                at = found.key();
            }
            match object.index().get(at, &pin) {
                Slot::Swap(slot) => PageIn::swapped(object, at, slot, &pin),
                Slot::Empty if !in_memory => PageIn::new(object, at, &pin),
                _ => None,
            }
        };
        if read.is_some_and(|read| read.run(may).is_err()) {
            return;
        }
        at += 1;
    }
}

/// Finishes a completed read: its placeholders become valid pages, or are removed.
pub(crate) fn finish<M: Machine>(
    vm: &'static Objects<M>,
    object: &Object<M>,
    body: &Body,
    result: Result<(), PagerError>,
    may: &mut MaySleep,
) {
    for i in 0..body.len {
        let (key, pfn) = (body.keys[i], body.pfn(i));
        let page = vm.page(pfn);
        fence_full();
        // Relies on C2: the page was inserted before this fence, and the check comes after it. A later truncation waits
        // for this page, and this check sees the size that an earlier truncation wrote.
        if result.is_ok() && (body.swap || key < object.end()) {
            page.set(State::VALID);
            if body.swap && vm.swap().is_scarce() {
                vm.release_slot(object, key, page, &may.pin(vm.epoch()));
            }
            vm.enqueue_new(page);
            vm.unbusy(page);
            continue;
        }
        let pin = may.pin(vm.epoch());
        let back = match page.take_swap_slot() {
            Some(slot) => object.index().replace(key, Slot::Page(pfn), Slot::Swap(slot), &pin),
            None => object.index().clear(key, Slot::Page(pfn), &pin),
        };
        debug_assert!(back, "a placeholder stays in its slot");
        vm.release_page(page);
    }
}

/// A page that is about to become dirty, and whose pager must first reserve room for it.
pub(crate) struct WriteHook<M: Machine> {
    object: KeptObject<M>,
    key: u64,
    page: &'static Page,
    generation: u64,
}

impl<M: Machine> WriteHook<M> {
    /// Returns `None` if no pager needs the call.
    pub fn needed(found: &FoundPage<'_, M>, pin: &Pinned<'_>) -> Option<Self> {
        if found.object.holes_are_zero() {
            return None;
        }
        let object = KeptObject::new(found.object, pin)?;
        Some(WriteHook { object, key: found.key, page: found.page, generation: found.state.generation() })
    }

    /// The object of the page.
    pub fn object(&self) -> &Object<M> {
        self.object.object()
    }

    /// Calls the pager, then marks the page dirty if it still has the same identity.
    pub fn run(self, may: &mut MaySleep) -> Result<(), FaultError> {
        let object = self.object.object();
        if let Some(pager) = object.pager() {
            pager.make_writable(self.key)?;
        }
        if self.page.try_busy(self.generation) {
            let vm = object.vm();
            if !self.page.state().dirty() {
                object.count_dirty();
            }
            if mutant(Mutant::HookTagsLate) {
                self.page.set(State::DIRTY);
            }
            laundry::mark_dirty(object, self.key, self.page, &may.pin(vm.epoch()));
            vm.unbusy(self.page);
        }
        Ok(())
    }
}
