//! The fault path, from the address to the installed leaf.
//!
//! # Contract C2: enter versus remove
//! A fault checks everything under the lock of its page-table page and only then installs. A remover first sets the
//! page busy, then fences, then scans the backings. So the fault sees the busy page, or the scan finds the leaf. A
//! removal that is not flushed yet is visible to every other remover.
//!
//! # What a fault does
//! 1. Pin the epoch.
//! 2. Find the entry that covers the address.
//! 3. Walk its chain of backings, front to back, and look the page up in each object's index.
//! 4. *Map* the page that the walk found, *zero-fill* a new page into the front, *copy* the found page into the front
//!    (`copy`), move it there (`cow_move`), or *page in* from a pager. After first touches in a row a zero-fill
//!    makes more pages ahead (`zero_ahead`).
//!
//! The fault locks the one table page that covers the address and checks again everything that the decision rests on.
//! Only then does it install the leaf. It never installs a leaf first and backs it out: another CPU could cache a
//! translation that a remover never sees.
//!
//! Outside its own table page and its CPU's own memory, a fault writes only what it changes:
//! - the slot and the descriptor of a page that it makes,
//! - the dirty bit of a page that it is the first to store into,
//! - the time of a store into a file, in the leaf of the file's index, at most once a millisecond
//!   ([`store_times`](crate::object)),
//! - the first time after a fork, the mark that the entry may have leaves with stores again.
//!
//! An attempt takes no lock of the map, no count on an object, no lock of a queue.
//!
//! # What is checked under the table page's lock, and against whom
//! - another CPU removes the page
//!   - first: sets busy, fences, scans the leaves
//!   - under the lock: busy, or another generation: tries again; or the scan finds the leaf
//! - another CPU replaces the entry (unmap, protect, fork, clip)
//!   - first: marks it stale, fences, passes over the table pages
//!   - under the lock: stale: waits for that writer; or the pass finds the leaf
//! - another CPU copies the page into the front (our space)
//!   - first: fills the front's slot, then clears our leaf
//!   - under the lock: the front's slot is not empty: tries again; or the leaf is cleared after us
//! - another CPU moves the page to another layer
//!   - first: holds it busy; the generation rises
//!   - under the lock: busy, or another generation: tries again
//! - another CPU store-protects the table page (fork, protect)
//!   - first: marks the entry stale first
//!   - under the lock: stale; or the pass comes by after us
//! - another CPU shares the layer that we write in place (fork)
//!   - first: marks our entry stale first
//!   - under the lock: stale
//! - another CPU leaves out the table pages of an entry without stores (fork)
//!   - first: marks it stale, by an exchange that returns whether the entry has none
//!   - under the lock: stale; or the fork visits them, because we set the mark for stores before
//! - another CPU takes the table page out
//!   - first: marks it dead under its lock
//!   - under the lock: the pmap returns live table pages only
//! - another CPU truncates below a page that we insert
//!   - first: writes the size, fences, looks for pages
//!   - under the lock: we read the size after a fence that follows the insert: one of us takes the
//!     page back
//! - another CPU tears the object down
//!   - first: marks it dead, fences, looks for pages
//!   - under the lock: as with truncation
//!
//! # Waiting
//! An attempt runs under one pin and never sleeps. Where something is in the way, the attempt ends and returns what to
//! wait for (`Attempt`):
//! - memory: until pageout has freed some or found nothing to free,
//! - a busy page: on its wait queue,
//! - a stale entry: on the map's lock, which its writer holds,
//! - a pager: with nothing held but a busy placeholder.
//!
//! After `DEFEATS` failed attempts the fault keeps the map's writers out and tries under that.
//!
//! # What the room knows
//! Maps, chains, content and paging below it. Operations on maps stand above: some of them fault pages in.

pub(crate) mod copy;
pub(crate) mod copy_up;
pub(crate) mod cow_move;
mod device;
pub(crate) mod fault_around;
mod hole;
pub(crate) mod refill;
pub(crate) mod zero_ahead;

use crate::cow::found::FoundPage;
use crate::error::{FaultError, OutOfMemory};
use crate::machine::{Enter, Machine, PREFETCHED, PREFETCHED_BEFORE, Pmap, Table};
use crate::map::arena::arenas::Changed;
use crate::map::entry::{Entry, Flags};
use crate::map::maps::Maps;
use crate::map::space::Space;
use crate::mutant::{Mutant, mutant};
use crate::object::backing::Backing;
use crate::object::index::{FillError, Slot};
use crate::object::{NoRoom, Object, ObjectRef};
use crate::paging::page_in::{PageIn, WriteHook};
use crate::paging::waiting::Patience;
use crate::phys::frames::{Fill, For};
use crate::phys::page::{Page, State};
use crate::rmap::dirty::credit;
use crate::sleep::MaySleep;
use crate::stats::{Event, FaultKind};
use crate::tlb::flush::Obligation;
use crate::types::{Access, PAGE_SIZE, Pfn, Prot};
use quire_sync::atomic::{AtomicBool, Ordering, fence_after_rmw, fence_full};
use quire_sync::epoch::Pinned;
use quire_sync::trace::{EventKind, Span};
use refill::refill;

/// Failed attempts after which the fault keeps the map's writers out.
const DEFEATS: u32 = 8;

/// The outcomes of a fault, by the number that its event in a trace has.
pub const OUTCOMES: [&str; 14] = [
    "spurious",
    "resident",
    "reuse",
    "zero-fill",
    "copy",
    "move",
    "paged in",
    "not mapped",
    "protection",
    "beyond the end",
    "pager failed",
    "out of memory",
    "no room",
    "foreign",
];

/// The outcome's number in [`OUTCOMES`].
fn outcome(result: &Result<FaultKind, FaultError>) -> u32 {
    match result {
        // The kinds come first, in their own order.
        Ok(kind) => *kind as u32,
        Err(FaultError::NotMapped) => 7,
        Err(FaultError::Protection) => 8,
        Err(FaultError::BeyondEnd) => 9,
        Err(FaultError::Pager) => 10,
        Err(FaultError::OutOfMemory) => 11,
        Err(FaultError::NoRoom) => 12,
        Err(FaultError::Foreign) => 13,
    }
}

const _: () = assert!(FaultKind::ALL.len() == 7 && OUTCOMES.len() == 14);

/// Why an attempt ended without a leaf.
pub(crate) enum Attempt<M: Machine> {
    /// Something changed; look again at once.
    Again,
    /// As `Again`, and no other thread was in the way.
    Progress,
    /// The entry is being replaced.
    Stale,
    /// The page is busy.
    Busy(&'static Page),
    /// A pager must read the page.
    PageIn(PageIn<M>),
    /// A pager must first admit that the page becomes dirty.
    Hook(WriteHook<M>),
    /// The access cannot be served.
    Fail(FaultError),
}

impl<M: Machine> From<OutOfMemory> for Attempt<M> {
    fn from(_: OutOfMemory) -> Self {
        Attempt::Fail(FaultError::OutOfMemory)
    }
}

/// The place and the access that one fault serves.
pub(crate) struct FaultContext<'e, M: Machine> {
    pub vm: &'static Maps<M>,
    pub pmap: &'e M::Pmap,
    pub entry: &'e Entry<M>,
    /// Whether the space admits no translation any more.
    pub condemned: &'e AtomicBool,
    /// Page-aligned.
    pub va: u64,
    pub access: Access,
}

/// What a walk along a chain found.
pub(crate) enum Walk<'e, M: Machine> {
    /// A page.
    Page(FoundPage<'e, M>),
    /// Nothing: the page must be made in this object, which is a file's or shared.
    Hole(&'e Object<M>, u64),
    /// The page is in this swap slot.
    Swapped(&'e Object<M>, u64, u64),
    /// Nothing in any layer: zeroes, in the front.
    Zero,
}

impl<M: Machine> Space<M> {
    /// Serves an access at `va`, for the page fault handler and for kernel code on a program's behalf. May sleep; the
    /// caller holds nothing. After a miss below a stack the caller tries [`Space::grow_stack`] and then this again.
    pub fn fault(&self, va: u64, access: Access) -> Result<FaultKind, FaultError> {
        fault(self, va, access)
    }
}

/// Serves an access of `space` at `va`. May sleep; the caller holds nothing.
fn fault<M: Machine>(space: &Space<M>, va: u64, access: Access) -> Result<FaultKind, FaultError> {
    let mut span = Span::begin(EventKind::Fault, va, 0);
    let result = serve(space, va, access);
    span.set(outcome(&result), access as u64);
    result
}

#[inline(always)]
fn serve<M: Machine>(space: &Space<M>, va: u64, access: Access) -> Result<FaultKind, FaultError> {
    let vm = space.vm();
    let va = va & !(PAGE_SIZE - 1);
    if !M::Pmap::USER.contains(va) {
        return Err(FaultError::NotMapped);
    }
    let mut may = MaySleep::here();
    let mut defeats = 0;
    let mut paged_in = false;
    let mut patience = Patience::new();
    let mut writers_out = None;
    let mut deep = false;
    loop {
        let pin = may.pin(vm.epoch());
        let stop = match attempt(vm, space, va, access, &mut deep, &pin) {
            Ok(kind) => {
                drop(pin);
                // The leaf was entered by a read-modify-write. A drop notes itself, then looks for tables again. So it
                // sees this fault's table, or this reads its note. No model drops tables.
                if !cfg!(any(loom, shuttle)) {
                    fence_after_rmw();
                }
                if space.were_tables_dropped() {
                    drop(writers_out.take());
                    refill(space, &mut may);
                }
                if deep {
                    drop(writers_out);
                    copy_up::copy_up(space, va, &mut may);
                }
                if mutant(Mutant::CountsFaults) {
                    vm.check_updates.fetch_add(1, Ordering::Relaxed);
                }
                let kind = if paged_in { FaultKind::PagedIn } else { kind };
                vm.stats().count_fault(kind);
                return Ok(kind);
            }
            Err(stop) => stop,
        };
        drop(pin);
        match stop {
            Attempt::Fail(FaultError::OutOfMemory) => {
                // Wait with nothing held, then begin again.
                drop(writers_out.take());
                space.note_tables_left();
                vm.memory_or_error(&mut patience, &mut may)?;
            }
            Attempt::Fail(e) => {
                vm.stats().count(Event::FaultRefused);
                return Err(e);
            }
            Attempt::Progress => continue,
            Attempt::Again => quire_sync::hooks::relax(),
            // No writer will replace the entry of a condemned space.
            Attempt::Stale if space.is_condemned() => return Err(FaultError::OutOfMemory),
            Attempt::Stale => drop((writers_out.is_none()).then(|| space.keep_writers_out(va))),
            Attempt::Busy(page) => vm.wait_unbusy(page, &mut may),
            Attempt::PageIn(page_in) => {
                writers_out = None;
                match page_in.run(&mut may) {
                    Err(FaultError::OutOfMemory) => vm.memory_or_error(&mut patience, &mut may)?,
                    done => done.map(|()| patience.served())?,
                }
                paged_in = true;
                continue;
            }
            Attempt::Hook(hook) => {
                writers_out = None;
                hook.run(&mut may)?;
                continue;
            }
        }
        vm.stats().count(Event::FaultRetry);
        defeats += 1;
        if defeats >= DEFEATS && writers_out.is_none() {
            // Also where a sleep has let them in again.
            writers_out = Some(space.keep_writers_out(va));
        }
    }
}

/// One attempt, under one pin.
fn attempt<'e, M: Machine>(
    vm: &'static Maps<M>,
    space: &'e Space<M>,
    va: u64,
    access: Access,
    deep: &mut bool,
    pin: &'e Pinned<'_>,
) -> Result<FaultKind, Attempt<M>> {
    let entry = match space.look(va, pin) {
        Ok(Some(entry)) => entry,
        Ok(None) => return Err(Attempt::Fail(FaultError::NotMapped)),
        Err(Changed) => return Err(Attempt::Again),
    };
    if !entry.prot().allows(access) {
        return Err(if entry.is_stale() { Attempt::Stale } else { Attempt::Fail(FaultError::Protection) });
    }
    let kind = FaultContext { vm, pmap: space.pmap(), entry, condemned: space.condemned(), va, access }.serve(pin)?;
    *deep = matches!(kind, FaultKind::Copy | FaultKind::Move) && entry.front().layers() > vm.layers();
    Ok(kind)
}

impl<'e, M: Machine> FaultContext<'e, M> {
    /// Serves the access from the entry's chain.
    #[inline]
    pub fn serve(&self, pin: &'e Pinned<'_>) -> Result<FaultKind, Attempt<M>> {
        let front = self.entry.front();
        match self.walk(Some(front), false, pin)? {
            Walk::Page(found) => self.map_or_copy(found, pin),
            // Paged in where it is, however deep: one page for all chains that show the layer. Then it is mapped, or
            // copied.
            Walk::Swapped(object, key, slot) => {
                Err(PageIn::swapped(object, key, slot, pin).map_or(Attempt::Again, Attempt::PageIn))
            }
            Walk::Zero => self.zero_fill(front, pin),
            Walk::Hole(object, key) => match object.device() {
                Some(device) => self.map_device(object, device, pin),
                // A wired mapping keeps the pages that it has, so it needs a page here.
                None if object.holes_are_zero() && !self.entry.shared() && !front.is_wired() => {
                    self.private_hole(object, key, pin)
                }
                None if object.holes_are_zero() => self.fill_hole(object, key, pin),
                None => Err(PageIn::new(object, key, pin).map_or(Attempt::Again, Attempt::PageIn)),
            },
        }
    }

    /// Walks the chain from `layer` on. A zero marker (met here, or in front as `zero_marker` says) hides the anonymous
    /// layers behind it, but not a file at the end.
    #[inline]
    pub fn walk(
        &self,
        mut layer: Option<&'e Backing<M>>,
        mut zero_marker: bool,
        pin: &'e Pinned<'_>,
    ) -> Result<Walk<'e, M>, Attempt<M>> {
        let mut depth = 0;
        // A file's own page is below its size, or is being removed. The size itself is not read: appending writes its
        // line.
        let of_file = self.entry.flags().contains(Flags::FILE);
        let beyond_end = |b: &Backing<M>, object: &Object<M>| of_file && object.is_private() && b.is_cut_off(self.va);
        let no_page = || if self.entry.is_stale() { Attempt::Stale } else { Attempt::Fail(FaultError::BeyondEnd) };
        while let Some(b) = layer {
            if let Some((object, key)) = b.layer(self.va)
                && !(zero_marker && object.is_private())
            {
                let (slot, stored) = object.index().get_timed(key, pin);
                match slot {
                    Slot::Page(pfn) => {
                        let page = self.vm.page(pfn);
                        let state = page.state();
                        if state.busy() {
                            return Err(Attempt::Busy(page));
                        }
                        // The slot was read before the page got another identity.
                        if !state.valid() || page.object() != object.address() || page.index() != key {
                            return Err(Attempt::Again);
                        }
                        if beyond_end(b, object) {
                            return Err(no_page());
                        }
                        return Ok(Walk::Page(FoundPage { page, state, object, key, stored, layer: b, depth }));
                    }
                    Slot::Reserved => return Err(Attempt::Again),
                    Slot::ZeroMarker => zero_marker = true,
                    Slot::Swap(_) if beyond_end(b, object) => return Err(no_page()),
                    Slot::Swap(slot) => return Ok(Walk::Swapped(object, key, slot)),
                    Slot::Empty => {}
                }
                if !object.is_private() {
                    if key >= object.end() {
                        return Err(no_page());
                    }
                    return Ok(Walk::Hole(object, key));
                }
            }
            depth += 1;
            layer = b.behind();
        }
        Ok(Walk::Zero)
    }

    /// A page is there: map it as it is, or copy it first.
    fn map_or_copy(&self, found: FoundPage<'e, M>, pin: &Pinned<'_>) -> Result<FaultKind, Attempt<M>> {
        let store = self.access == Access::Write;
        if mutant(Mutant::CountsReferences) {
            drop(ObjectRef::of(found.object, pin));
        }
        // Stores go to the page itself in a shared mapping, in the front, and in a layer behind that only this chain
        // shows.
        let in_place = if self.entry.shared() {
            true
        } else {
            found.object.is_private() && (found.depth == 0 || found.object.is_exclusive())
        };
        if store && !in_place {
            return self.copy(found, pin);
        }
        if store && !found.state.dirty() {
            // Relies on C2, *dirty before writable*.
            if let Some(hook) = WriteHook::needed(&found, pin) {
                return Err(Attempt::Hook(hook));
            }
            found.page.set_dirty(found.state.generation());
            found.object.index().tag_dirty(found.key, pin);
        }
        if store && self.entry.shared() {
            found.object.note_store_in(found.stored);
        }
        let mut table = self.table(pin)?;
        let now = self.check_page(&found, pin)?;
        let mut prot = self.entry.prot();
        // Still exclusive: a fork that shares the layer marks the entry stale first.
        let dirty = now.dirty() || (mutant(Mutant::DirtyAsFound) && (store || found.state.dirty()));
        if !in_place || !dirty || (found.depth > 0 && !self.entry.shared() && !found.object.is_exclusive()) {
            if store {
                return Err(Attempt::Again);
            }
            prot -= Prot::WRITE;
        }
        let pfn = self.vm.pfn_of_page(found.page);
        let kind = match table.get(self.va) {
            None => FaultKind::Resident,
            Some(leaf) if leaf.pfn != pfn => {
                // The CPU that gave the address another page has not cleared the old leaf yet.
                let mut owed = Obligation::new(self.vm, self.pmap);
                credit(self.vm, table.remove(self.va, &mut owed));
                drop(table);
                let _flushed = owed.discharge();
                return Err(Attempt::Again);
            }
            Some(leaf) if leaf.prot.contains(self.access.needs()) => FaultKind::Spurious,
            Some(_) => FaultKind::Reuse,
        };
        table.enter(self.va, Enter::new(pfn, prot));
        if kind == FaultKind::Resident && !store {
            self.map_around(&mut table, &found, pin);
        }
        Ok(kind)
    }

    /// Maps the page that the chain shows at the address, if it is resident, `wanted` accepts its object, and no leaf
    /// is there. For whole small spaces. Checks as [`FaultContext::map_around`] does. Returns the rights of the new
    /// leaf, if any.
    ///
    /// # Requires
    /// Runs under the table page's lock.
    pub fn map_if_resident(
        &self,
        table: &mut impl Table<M>,
        wanted: impl Fn(&Object<M>) -> bool,
        pin: &Pinned<'_>,
    ) -> Result<Option<Prot>, Attempt<M>> {
        if table.get(self.va).is_some() {
            return Ok(None);
        }
        let Ok(Walk::Page(found)) = self.walk(Some(self.entry.front()), false, pin) else { return Ok(None) };
        if !wanted(found.object) {
            return Ok(None);
        }
        self.check_entry()?;
        let mut prot = self.entry.prot();
        let in_place = self.entry.shared() || (found.depth == 0 && found.object.is_private());
        if !in_place || !found.state.dirty() {
            prot -= Prot::WRITE;
        }
        table.enter(self.va, Enter::new(self.vm.pfn_of_page(found.page), prot));
        Ok(Some(prot))
    }

    /// The table page over the address, locked, with the entry checked under its lock. Where the entry is being
    /// replaced, an empty table page is pruned: this fault may have linked it after the writer's pass.
    #[inline(always)]
    pub fn table(&self, pin: &Pinned<'_>) -> Result<<M::Pmap as Pmap<M>>::Table<'e>, Attempt<M>> {
        let mut table = self.pmap.table(self.vm, self.va, pin)?;
        if self.check_entry().is_ok() {
            if table.is_store_protected() {
                self.restore_stores(&mut table);
            }
            return Ok(table);
        }
        // `table` is dropped, not passed on: a value that one path keeps in memory, the compiler keeps there on every
        // path.
        let empty = (table.live() == 0).then(|| table.span());
        drop(table);
        if let Some(span) = empty {
            self.pmap.prune(self.vm, span);
        }
        Err(Attempt::Stale)
    }

    /// Lets a store-protected table page allow stores again ([`Table::is_store_protected`]). The leaves keep their
    /// rights if the entry covers the whole table page and no other space shows a layer of its chain any more. Then the
    /// relatives that the stores were taken away for have gone. The caller checks after this, not before.
    ///
    /// # Requires
    /// The caller has locked the table page over the address and checked the entry under its lock. A fork that would
    /// share a layer has marked the entry stale before.
    #[cold]
    #[inline(never)]
    fn restore_stores(&self, table: &mut impl Table<M>) {
        let (entry, span) = (self.entry, table.span());
        let whole = entry.range().intersect(&span).is_some_and(|both| both.len() == span.len());
        let stores =
            entry.prot().contains(Prot::WRITE) && !entry.flags().intersects(Flags::SHARED | Flags::NEEDS_FRONT);
        let own = |b: &Backing<M>| b.object().is_none_or(|o| !o.is_private() || o.is_exclusive());
        let behind = || core::iter::successors(entry.front().behind(), |b| b.behind());
        let keep = whole && stores && (behind().all(own) || mutant(Mutant::StoresRestoredUnlooked));
        table.restore_stores(keep, |leaf| credit(self.vm, Some(leaf)));
    }

    /// Nothing anywhere in a private chain: a new page of zeroes in the front.
    fn zero_fill(&self, front: &'e Backing<M>, pin: &Pinned<'_>) -> Result<FaultKind, Attempt<M>> {
        let Some(object) = front.touch(pin)? else { return Err(Attempt::Stale) };
        let key = front.key(self.va);
        let writable = self.entry.prot().contains(Prot::WRITE);
        let new = self.insert(object, key, Fill::Zeroed, writable, pin)?;
        new.complete();
        let ahead = self.install(new, front, None, pin, |table| self.room_ahead(table))?;
        if ahead != 0 {
            self.fill_ahead(object, front, ahead, pin);
        }
        Ok(FaultKind::ZeroFill)
    }

    /// A hole in a file in memory or in shared memory: a new page of zeroes there, where the file system has room. A
    /// store through a private mapping (a wired one; others: [`FaultContext::private_hole`]) copies it in the next
    /// attempt.
    fn fill_hole(&self, object: &'e Object<M>, key: u64, pin: &Pinned<'_>) -> Result<FaultKind, Attempt<M>> {
        let shared = self.entry.shared();
        // Dropped after the page, which leaves its slot first.
        let charge = match object.charge(1) {
            Ok(charge) => charge,
            Err(NoRoom) if object.index().get(key, pin) == Slot::Empty => {
                return Err(Attempt::Fail(FaultError::NoRoom));
            }
            // Another CPU has filled the hole.
            Err(NoRoom) => return Err(Attempt::Again),
        };
        let new = self.insert(object, key, Fill::Zeroed, shared && self.entry.prot().contains(Prot::WRITE), pin)?;
        new.complete();
        if !shared {
            new.keep();
            charge.keep();
            return Err(Attempt::Progress);
        }
        if self.access == Access::Write {
            object.note_store(key, pin);
        }
        // A shared mapping has one layer.
        self.install(new, self.entry.front(), None, pin, |_| ())?;
        charge.keep();
        Ok(FaultKind::ZeroFill)
    }

    /// Makes a busy, valid page in `object`'s empty slot `key`. The caller completes its content, zeroes too
    /// ([`NewPage::complete`]). The frame's lines are prefetched meanwhile.
    #[inline(always)]
    pub fn insert<'o>(
        &self,
        object: &'o Object<M>,
        key: u64,
        fill: Fill,
        dirty: bool,
        pin: &'o Pinned<'_>,
    ) -> Result<NewPage<'o, M>, Attempt<M>> {
        let (frame, zeroed) = self.vm.take_frame(fill, For::User)?;
        let page = self.vm.page(frame.pfn());
        let next = if zeroed { None } else { page.next() };
        if !zeroed {
            self.vm.machine().prefetch_frame::<PREFETCHED>(frame.pfn());
            // The frame's descriptor still names the next frame of the magazine: the next fault takes that.
            if let Some(next) = next {
                self.vm.machine().prefetch(core::ptr::from_ref(self.vm.page(next)).cast());
            }
        }
        let bits = if dirty { State::VALID | State::DIRTY } else { State::VALID };
        self.vm.assume_page(page, object.address(), key, object.page_bits() | bits);
        let slot = Slot::Page(frame.into_pfn());
        let mut zero_marker = false;
        let mut filled = object.index().fill(key, slot, self.vm, pin);
        if filled == Err(FillError::Taken(Slot::ZeroMarker)) && object.index().replace(key, Slot::ZeroMarker, slot, pin)
        {
            zero_marker = true;
            filled = Ok(());
        }
        if let Err(why) = filled {
            self.vm.release_page(page);
            return Err(match why {
                FillError::OutOfMemory => Attempt::Fail(FaultError::OutOfMemory),
                FillError::BeyondKeys => Attempt::Fail(FaultError::BeyondEnd),
                FillError::Taken(_) | FillError::Gone => Attempt::Again,
            });
        }
        let zero = fill == Fill::Zeroed && !zeroed;
        // Relies on C2, *insert*: a later truncation or teardown sees the page, and this fault sees an earlier one.
        if !mutant(Mutant::NoFenceAfterInsert) {
            fence_full();
        }
        if !mutant(Mutant::NoEndCheck) && (object.is_dead() || key >= object.end()) {
            drop(NewPage { object, key, page, pin, zero_marker, zero, next });
            return Err(Attempt::Again);
        }
        object.hole_is_filled(key);
        if dirty && !object.is_private() {
            object.index().tag_dirty(key, pin);
        }
        self.vm.enqueue_new(page);
        Ok(NewPage { object, key, page, pin, zero_marker, zero, next })
    }

    /// Installs a new page, whose content is complete, and unbusies it. `source`: the page that it was copied from.
    /// Returns the result of `look` on the table page, taken under its lock.
    #[inline(always)]
    pub fn install<R>(
        &self,
        new: NewPage<'_, M>,
        front: &'e Backing<M>,
        source: Option<&FoundPage<'e, M>>,
        pin: &Pinned<'_>,
        look: impl FnOnce(&<M::Pmap as Pmap<M>>::Table<'e>) -> R,
    ) -> Result<R, Attempt<M>> {
        let mut table = self.table(pin)?;
        self.check_source(&new, front, source, pin)?;
        let mut prot = self.entry.prot();
        if !new.page.state().dirty() {
            prot -= Prot::WRITE;
        }
        let pfn = self.vm.pfn_of_page(new.page);
        if table.get(self.va).is_some_and(|leaf| leaf.pfn != pfn) {
            let mut owed = Obligation::new(self.vm, self.pmap);
            credit(self.vm, table.remove(self.va, &mut owed));
            drop(table);
            let _flushed = owed.discharge();
            return Err(Attempt::Again);
        }
        table.enter(self.va, Enter::new(pfn, prot));
        let seen = look(&table);
        drop(table);
        new.keep();
        Ok(seen)
    }

    /// The chain behind the front must still show the page that the content came from. A source that was removed may
    /// have been overwritten before it was copied. A page that moved forward meanwhile is found here, because its mover
    /// fills the new slot before it empties the old one.
    #[inline]
    pub fn check_source(
        &self,
        new: &NewPage<'_, M>,
        front: &'e Backing<M>,
        source: Option<&FoundPage<'e, M>>,
        pin: &Pinned<'_>,
    ) -> Result<(), Attempt<M>> {
        if mutant(Mutant::NoSourceCheck) {
            return Ok(());
        }
        let Some(behind) = front.behind() else {
            // A source's layer may have been taken out.
            return if source.is_none() { Ok(()) } else { Err(Attempt::Again) };
        };
        match (self.walk(Some(behind), new.zero_marker, pin)?, source) {
            (Walk::Page(now), Some(source))
                if core::ptr::eq(now.page, source.page) && now.state.generation() == source.state.generation() => {}
            (Walk::Zero | Walk::Hole(..), None) => {}
            _ => return Err(Attempt::Again),
        }
        Ok(())
    }

    /// Relies on C3, under the table page's lock: the entry is not being replaced, nor the space reaped.
    #[inline(always)]
    pub fn check_entry(&self) -> Result<(), Attempt<M>> {
        let condemned = || self.condemned.load(Ordering::Relaxed) && !mutant(Mutant::CondemnedUnlooked);
        let admits = || self.entry.admits() && !condemned();
        if mutant(Mutant::NoStaleCheck) || admits() { Ok(()) } else { Err(Attempt::Stale) }
    }

    /// Relies on C2, under the table page's lock: the page is what it was, and nothing has come in front of it.
    #[inline]
    fn check_page(&self, found: &FoundPage<'e, M>, pin: &Pinned<'_>) -> Result<State, Attempt<M>> {
        let now = found.page.state();
        if !mutant(Mutant::NoBusyCheck) {
            if now.busy() {
                return Err(Attempt::Busy(found.page));
            }
            if now.generation() != found.state.generation() || !now.valid() {
                return Err(Attempt::Again);
            }
        }
        if found.depth == 0 && self.entry.flags().contains(Flags::FILE) && found.layer.is_cut_off(self.va) {
            return Err(Attempt::Again);
        }
        if found.depth > 0 && !mutant(Mutant::NoFrontCheck) {
            match self.walk(Some(self.entry.front()), false, pin)? {
                Walk::Page(again) if core::ptr::eq(again.page, found.page) => {}
                _ => return Err(Attempt::Again),
            }
        }
        Ok(now)
    }
}

/// A page that this fault made: busy, and in its object's index. Dropped without [`NewPage::keep`], it is taken back,
/// and no other thread has read its content.
pub(crate) struct NewPage<'o, M: Machine> {
    object: &'o Object<M>,
    key: u64,
    pub page: &'static Page,
    pin: &'o Pinned<'o>,
    /// A zero marker stood in the slot before.
    zero_marker: bool,
    /// The page's content is still to be zeroed.
    zero: bool,
    /// The frame that the next fault will probably take.
    next: Option<Pfn>,
}

impl<M: Machine> NewPage<'_, M> {
    /// Zeroes the content if the caller wanted zeroes and the frame has none. No other CPU reads it before: the page is
    /// busy.
    #[inline(always)]
    pub fn complete(&self) {
        if self.zero {
            let vm = self.object.vm();
            // The next frame's translation comes while this one is zeroed.
            if let Some(next) = self.next {
                vm.machine().prefetch_frame::<PREFETCHED_BEFORE>(next);
            }
            // SAFETY: this fault holds the page busy and has not mapped it, so no other CPU uses the frame.
            unsafe { vm.machine().zero_frame(vm.pfn_of_page(self.page)) };
        }
    }

    /// The page stays, and is not busy any more.
    #[inline(always)]
    pub fn keep(self) {
        self.object.vm().unbusy(self.page);
        core::mem::forget(self);
    }
}

impl<M: Machine> Drop for NewPage<'_, M> {
    #[inline(never)]
    fn drop(&mut self) {
        let (vm, index) = (self.object.vm(), self.object.index());
        let slot = Slot::Page(vm.pfn_of_page(self.page));
        // If the index was dismantled meanwhile, the slot is gone already.
        let _gone = match self.zero_marker {
            true => index.replace(self.key, slot, Slot::ZeroMarker, self.pin),
            false => index.clear(self.key, slot, self.pin),
        };
        vm.release_page(self.page);
    }
}
