//! The fault path, from the address to the installed leaf.
//!
//! # Contract C2: enter versus remove
//! A fault checks everything under the lock of its page-table page and only then installs. A remover first sets the
//! page busy, then fences, then scans the backings. So the fault sees the busy page, or the scan finds the leaf. A
//! removal that is not flushed yet is visible to every other remover.
//!
//! # What a fault does
//! 1. Pin the epoch.
//! 2. Find the map entry that covers the address.
//! 3. Walk its chain of backings, front to back, and look the page up in each object's index.
//! 4. *Map* the page that the walk found, *zero-fill* a new page into the front, *copy* the found page into the front
//!    (`copy`), move it there (`cow_move`), or *page in* from a pager. After first touches in a row a zero-fill
//!    makes more pages ahead (`zero_ahead`).
//!
//! The fault locks the one table page that covers the address. Under the lock it checks again everything on which its
//! decision relies. Only then does it install the leaf. A fault never installs a leaf first, to remove it if a check
//! fails. Another CPU could meanwhile cache the leaf's translation, and no remover would flush it, because none sees
//! the leaf.
//!
//! Apart from its table page and its CPU's own memory, a fault writes only these:
//! - the slot and the descriptor of a page that it makes,
//! - the dirty bit of a clean page that it makes writable for a store,
//! - the time of a store into a file, in a leaf node of the file's index, at most once a millisecond
//!   ([`store_times`](crate::object)),
//! - the mark that the entry may have writable leaves, at the first fault in the entry after a fork.
//!
//! An attempt acquires no lock of the map, no reference to an object, and no lock of a page queue.
//!
//! # Checks under the table page's lock, by the operation that they exclude
//! - another CPU removes the page:
//!   - the remover: sets the page busy, fences, scans the leaves
//!   - the fault: finds the page busy or with another generation, and tries again; or the scan finds the fault's leaf.
//!     (A page's generation rises when its identity changes.)
//! - another CPU replaces the entry (unmap, protect, fork, or clip: the split of an entry):
//!   - the writer: marks the entry stale, fences, visits the table pages
//!   - the fault: finds the entry stale, and waits for that writer; or the writer finds the fault's leaf
//! - another CPU copies the page into the front of the same space:
//!   - the other fault: fills the front's slot, then clears the leaf
//!   - the fault: finds the front's slot filled, and tries again; or the other fault clears the leaf afterwards
//! - another CPU moves the page to another layer:
//!   - the mover: holds the page busy, and raises its generation
//!   - the fault: finds the page busy or with another generation, and tries again
//! - another CPU write-protects the table page as a whole (fork, protect):
//!   - the writer: marks the entry stale first
//!   - the fault: finds the entry stale; or the writer visits the table page afterwards
//! - another CPU shares the layer that the fault writes in place (fork):
//!   - the fork: marks the entry stale first
//!   - the fault: finds the entry stale
//! - another CPU skips the table pages of an entry that has no writable leaf (fork):
//!   - the fork: marks the entry stale, and then reads the mark for no writable leaf, which no fault can change any
//!     more
//!   - the fault: finds the entry stale; or the fork visits the table pages, because the fault noted a writable leaf
//!     before
//! - another CPU frees the table page:
//!   - the remover: marks the table page dead under its lock
//!   - the fault: gets live table pages only, because the pmap checks the mark
//! - another CPU truncates the object below a page that the fault inserts:
//!   - the truncation: writes the size, fences, looks for pages
//!   - the fault: inserts the page, fences, reads the size. So the truncation finds the page, or the fault sees the new
//!     size and removes the page
//! - another CPU destroys the object:
//!   - the destroyer: marks the object dead, fences, looks for pages
//!   - the fault: as for a truncation
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
//! # Dependencies
//! The fault may use maps, chains, content and paging, which are below it. The operations on maps are above it, because
//! some of them fault pages in.

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
use crate::machine::{Count, Enter, Machine, PREFETCHED, PREFETCHED_BEFORE, Pmap, Table};
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

/// Number of failed attempts after which the fault acquires the arena's lock, to keep writers out.
const DEFEATS: u32 = 8;

/// The names of a fault's outcomes, indexed by the number in its trace event.
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
        // The first numbers in `OUTCOMES` are those of [`FaultKind`].
        Ok(kind) => *kind as u32,
        Err(FaultError::NotMapped) => 7,
        Err(FaultError::Protection) => 8,
        Err(FaultError::BeyondEnd) => 9,
        Err(FaultError::Pager(_)) => 10,
        Err(FaultError::OutOfMemory) => 11,
        Err(FaultError::NoRoom) => 12,
        Err(FaultError::Foreign) => 13,
    }
}

const _: () = assert!(FaultKind::ALL.len() == 7 && OUTCOMES.len() == 14);

/// Why an attempt ended without a leaf.
pub(crate) enum Attempt<M: Machine> {
    /// Another thread changed something; the fault tries again at once.
    Again,
    /// This thread itself changed something; the fault tries again at once. The attempt does not count as failed.
    Progress,
    /// A writer is replacing the entry.
    Stale,
    /// The page is busy.
    Busy(&'static Page),
    /// A pager must read the page.
    PageIn(PageIn<M>),
    /// A pager must first allow that the page becomes dirty.
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
    /// Set if no fault may enter a translation in the space any more ([`Space::condemn`]).
    pub condemned: &'e AtomicBool,
    /// The address, rounded down to a page.
    pub va: u64,
    pub access: Access,
}

/// The result of a walk along a chain.
pub(crate) enum Walk<'e, M: Machine> {
    /// A resident page.
    Page(FoundPage<'e, M>),
    /// No page, and the chain ends at this file or shared object: the page with this key must be made or read there.
    Hole(&'e Object<M>, u64),
    /// The page of this object and key is in this swap slot.
    Swapped(&'e Object<M>, u64, u64),
    /// No layer has a page: the content is zeroes, and a new page belongs in the front.
    Zero,
}

impl<M: Machine> Space<M> {
    /// Serves an access at `va`, for the page fault handler and for kernel code on a program's behalf. May sleep; the
    /// caller holds no lock and no pin. If this returns [`FaultError::NotMapped`], the caller may try
    /// [`Space::grow_stack`] and then call this again.
    pub fn fault(&self, va: u64, access: Access) -> Result<FaultKind, FaultError> {
        fault(self, va, access)
    }
}

/// Serves an access of `space` at `va`, and records it in the trace. May sleep; the caller holds no lock and no pin.
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
                // Pairs with the fence in `Space::note_dropped`. This fault enters its leaf, then reads the note of a
                // drop. A drop writes its note, then looks for tables. So the drop sees this fault's table, or this
                // fault sees the note. (The leaf was entered by an atomic read-modify-write. No model drops tables.)
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
                // Wait for memory without a lock, then try again.
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
                hook.object().wait_to_dirty(&mut may)?;
                hook.run(&mut may)?;
                continue;
            }
        }
        vm.stats().count(Event::FaultRetry);
        defeats += 1;
        if defeats >= DEFEATS && writers_out.is_none() {
            // A wait for memory may have released the arena's lock, so this may acquire it again.
            writers_out = Some(space.keep_writers_out(va));
        }
    }
}

/// Makes one attempt to serve the access, under one pin. Sets `deep` if it copied or moved a page in a chain with more
/// layers than the limit.
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
    /// Serves the access from the entry's chain, in one attempt.
    #[inline]
    pub fn serve(&self, pin: &'e Pinned<'_>) -> Result<FaultKind, Attempt<M>> {
        let front = self.entry.front();
        match self.walk(Some(front), false, pin)? {
            Walk::Page(found) => self.map_or_copy(found, pin),
            // The page is read into the layer that has it, however deep, so that all chains with this layer share one
            // page. The next attempt maps or copies it.
            Walk::Swapped(object, key, slot) => {
                Err(PageIn::swapped(object, key, slot, pin).map_or(Attempt::Again, Attempt::PageIn))
            }
            Walk::Zero if self.shows_zeroes(front) => self.load_zeroes(front, pin),
            Walk::Zero => self.zero_fill(front, pin),
            Walk::Hole(object, key) => match object.device() {
                Some(device) => self.map_device(object, device, pin),
                // A wired mapping fills the hole instead, because its leaves must stay. A leaf of the frame of zeroes
                // would be cleared when the hole is filled later.
                None if object.holes_are_zero() && !self.entry.shared() && !front.is_wired() => {
                    self.private_hole(object, key, pin)
                }
                None if object.holes_are_zero() => self.fill_hole(object, key, pin),
                None => Err(PageIn::new(object, key, pin).map_or(Attempt::Again, Attempt::PageIn)),
            },
        }
    }

    /// Walks the chain from `layer` on, to the first page, swap slot or hole. A zero marker in an index slot says that
    /// the content is zeroes. It hides the anonymous layers behind it, but not a file at the end. `zero_marker` says
    /// that a layer before `layer` has a zero marker.
    #[inline]
    pub fn walk(
        &self,
        mut layer: Option<&'e Backing<M>>,
        mut zero_marker: bool,
        pin: &'e Pinned<'_>,
    ) -> Result<Walk<'e, M>, Attempt<M>> {
        let mut depth = 0;
        // A private copy beyond the file's end must not be reached. For a page of the file itself the size is not read,
        // because appends write its cache line. Such a page is below the size, or it is being removed.
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
                        // The page has got another identity since the slot was read.
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

    /// Serves the access with the page that the walk found: maps it, or copies it first.
    fn map_or_copy(&self, found: FoundPage<'e, M>, pin: &Pinned<'_>) -> Result<FaultKind, Attempt<M>> {
        let store = self.access == Access::Write;
        if mutant(Mutant::CountsReferences) {
            drop(ObjectRef::of(found.object, pin));
        }
        // Stores go to the page itself in three cases: in a shared mapping, in the front, and in a layer that only this
        // chain has.
        let in_place = if self.entry.shared() {
            true
        } else {
            found.object.is_private() && (found.depth == 0 || found.object.is_exclusive())
        };
        if store && !in_place {
            return self.copy(found, pin);
        }
        if store && !found.state.dirty() {
            // Relies on C2: a page is marked dirty before a leaf allows stores into it.
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
        // The layer must still belong to this chain alone when the lock is held. A fork that shares the layer after
        // that marks the entry stale first.
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
                // Another CPU has put another page at this address and has not cleared the old leaf yet.
                let mut owed = Obligation::new(self.vm, self.pmap);
                credit(self.vm, table.remove(self.va, &mut owed));
                drop(table);
                let _flushed = owed.discharge();
                return Err(Attempt::Again);
            }
            Some(leaf) if leaf.prot.contains(self.access.needs()) => FaultKind::Spurious,
            Some(_) => FaultKind::Reuse,
        };
        table.enter(self.va, Enter::existing(pfn, prot, found.object.is_private()));
        if kind == FaultKind::Resident && !store {
            self.map_around(&mut table, &found, pin);
        }
        Ok(kind)
    }

    /// Maps the page that the chain has at the address, for `refill` and `Space::fault_range`. Maps it only if the page
    /// is resident, `wanted` returns true for its object, and the address has no leaf. The checks are those of
    /// [`FaultContext::map_around`]. Returns the rights of the new leaf, or `None` if no leaf was entered.
    ///
    /// # Requires
    /// The caller holds the lock of `table`, the table page that covers the address.
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
        let pfn = self.vm.pfn_of_page(found.page);
        table.enter(self.va, Enter::existing(pfn, prot, found.object.is_private()));
        Ok(Some(prot))
    }

    /// Locks the table page that covers the address, and checks the entry under that lock. If the entry is being
    /// replaced, this returns [`Attempt::Stale`]. Then it also frees the table page if that is empty, because this
    /// fault may have linked it after the writer visited the range.
    #[inline(always)]
    pub fn table(&self, pin: &Pinned<'_>) -> Result<<M::Pmap as Pmap<M>>::Table<'e>, Attempt<M>> {
        let mut table = self.pmap.table(self.vm, self.va, pin)?;
        if self.check_entry().is_ok() {
            if table.is_store_protected() {
                self.restore_stores(&mut table);
            }
            return Ok(table);
        }
        // `table` is dropped here and not passed to a function. Otherwise the compiler would keep it in memory instead
        // of registers on every path.
        let empty = (table.live() == 0).then(|| table.span());
        drop(table);
        if let Some(span) = empty {
            self.pmap.prune(self.vm, span);
        }
        Err(Attempt::Stale)
    }

    /// Lets a store-protected table page allow stores again ([`Table::is_store_protected`]). The leaves keep the right
    /// to store if the entry covers the whole table page, and no other space has a layer of its chain. Then the spaces
    /// for which a fork write-protected the table page have ended. Otherwise the leaves lose the right to store. The
    /// caller makes its checks of the page after this call.
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

    /// Makes a new page of zeroes in the front, because no layer of the private chain has a page.
    fn zero_fill(&self, front: &'e Backing<M>, pin: &Pinned<'_>) -> Result<FaultKind, Attempt<M>> {
        let Some(object) = front.touch(pin)? else { return Err(Attempt::Stale) };
        let key = front.key(self.va);
        let writable = self.entry.prot().contains(Prot::WRITE);
        let new = self.insert(object, key, Fill::Zeroed, writable, pin)?;
        new.complete();
        let ahead = self.install(new, front, None, Count::More, pin, |table| self.room_ahead(table))?;
        if ahead != 0 {
            self.fill_ahead(object, front, ahead, pin);
        }
        Ok(FaultKind::ZeroFill)
    }

    /// Fills a hole of a file in memory, or of shared memory, with a new page of zeroes, if the file system has room. A
    /// private mapping gets here only if it is wired (else [`FaultContext::private_hole`]). Its next attempt maps the
    /// page or copies it.
    fn fill_hole(&self, object: &'e Object<M>, key: u64, pin: &Pinned<'_>) -> Result<FaultKind, Attempt<M>> {
        let shared = self.entry.shared();
        // On an error `charge` is dropped after `new`, so that the page leaves its slot before its charge is returned.
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
        self.install(new, self.entry.front(), None, Count::More, pin, |_| ())?;
        charge.keep();
        Ok(FaultKind::ZeroFill)
    }

    /// Makes a busy, valid page in slot `key` of `object`. The slot is empty or has a zero marker. The caller then
    /// writes the content; for zeroes it calls [`NewPage::complete`]. This call prefetches the frame's cache lines.
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
            // The frame's descriptor still names the next frame of the magazine (this CPU's free frames), which the
            // next fault will probably allocate.
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
        // A truncation or teardown that looks for pages after this fence sees this page. The check below sees a
        // truncation or teardown that began before (relies on C2: insert, fence, then check).
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

    /// Installs the leaf of a new page, whose content is complete, and unbusies the page. `source` is the page from
    /// which it was copied, if any, and `count` is that of the leaf. Returns the result of `look`, which is called
    /// under the table page's lock.
    #[inline(always)]
    pub fn install<R>(
        &self,
        new: NewPage<'_, M>,
        front: &'e Backing<M>,
        source: Option<&FoundPage<'e, M>>,
        count: Count,
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
        // Only for the frame of zeroes may a removal be unflushed: a page stays busy in its slot until the flush.
        let is_old = match table.get(self.va) {
            Some(leaf) => leaf.pfn != pfn,
            None => table.unflushed() && table.shows_zeroes(),
        };
        if is_old {
            table = self.without_old(table, &new, front, source, pin)?;
        }
        table.enter(self.va, Enter { count, ..Enter::new(pfn, prot) });
        let seen = look(&table);
        drop(table);
        new.keep();
        Ok(seen)
    }

    /// Removes the leaf of another frame at the address, and flushes it. Returns the table page, locked again, with the
    /// source checked again. That leaf shows the frame of zeroes, or the page that another CPU has removed without
    /// clearing the leaf yet.
    #[cold]
    #[inline(never)]
    fn without_old(
        &self,
        mut table: <M::Pmap as Pmap<M>>::Table<'e>,
        new: &NewPage<'_, M>,
        front: &'e Backing<M>,
        source: Option<&FoundPage<'e, M>>,
        pin: &Pinned<'_>,
    ) -> Result<<M::Pmap as Pmap<M>>::Table<'e>, Attempt<M>> {
        let mut owed = Obligation::new(self.vm, self.pmap);
        match table.remove(self.va, &mut owed) {
            // Another CPU has cleared the leaf and not flushed it yet (relies on C2).
            None => owed.owe_again(self.va),
            gone => credit(self.vm, gone),
        }
        drop(table);
        // The new page is busy, so no other CPU enters a leaf of it. Loads find the busy page in its slot, and wait.
        let _flushed = owed.discharge();
        let table = self.table(pin)?;
        self.check_source(new, front, source, pin)?;
        if table.get(self.va).is_some() { Err(Attempt::Again) } else { Ok(table) }
    }

    /// Checks that the chain behind the front still has the page from which the content was copied (or still none). A
    /// source that was removed after the first walk may have been overwritten before the copy. The check's walk also
    /// finds a page that moved to a layer nearer to the front. The mover fills the new slot before it empties the old
    /// one.
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
            // No layer is behind the front. If the content was copied, the layer of its source was removed from the
            // chain.
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

    /// Checks, under the table page's lock, that the entry is not being replaced and the space is not condemned (relies
    /// on C3).
    #[inline(always)]
    pub fn check_entry(&self) -> Result<(), Attempt<M>> {
        let condemned = || self.condemned.load(Ordering::Relaxed) && !mutant(Mutant::CondemnedUnlooked);
        let admits = || self.entry.admits() && !condemned();
        if mutant(Mutant::NoStaleCheck) || admits() { Ok(()) } else { Err(Attempt::Stale) }
    }

    /// Checks, under the table page's lock, that the page is unchanged and no layer in front of it has a page (relies
    /// on C2). Returns the page's present state.
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

/// A busy page that this fault made and put into its object's index. A drop without [`NewPage::keep`] removes and frees
/// the page. No other thread has read its content then.
pub(crate) struct NewPage<'o, M: Machine> {
    object: &'o Object<M>,
    key: u64,
    pub page: &'static Page,
    pin: &'o Pinned<'o>,
    /// Whether the slot had a zero marker before.
    zero_marker: bool,
    /// Whether the page's content must still be zeroed.
    zero: bool,
    /// The frame that the next fault will probably allocate.
    next: Option<Pfn>,
}

impl<M: Machine> NewPage<'_, M> {
    /// Zeroes the content if the caller wanted zeroes and the frame was not cleared yet. No other CPU reads the content
    /// before this call, because the page is busy.
    #[inline(always)]
    pub fn complete(&self) {
        if self.zero {
            let vm = self.object.vm();
            // The CPU loads the next frame's translation while it zeroes this frame.
            if let Some(next) = self.next {
                vm.machine().prefetch_frame::<PREFETCHED_BEFORE>(next);
            }
            // SAFETY: this fault holds the page busy and has not mapped it, so no other CPU uses the frame.
            unsafe { vm.machine().zero_frame(vm.pfn_of_page(self.page)) };
        }
    }

    /// Keeps the page, and unbusies it.
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
        // If the index was torn down since the insert, the slot is empty already.
        let _gone = match self.zero_marker {
            true => index.replace(self.key, slot, Slot::ZeroMarker, self.pin),
            false => index.clear(self.key, slot, self.pin),
        };
        vm.release_page(self.page);
    }
}
