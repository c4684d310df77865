//! The fault path, from the address to the installed leaf (Contracts C2, C3).
//!
//! # What a fault does
//! Pin the epoch. Find the entry that covers the address. Walk its chain of backings, front to back, asking each object's
//! index. Then one of four things: *map* the page that was found; *zero-fill* a new page into the front; *copy* the page that
//! was found into the front ([`copy`](crate::copy)); *page in* what a pager has. Everything that the decision rests on is
//! checked again under the lock of the one table page that covers the address, and only then is the leaf installed. Nothing
//! is installed first and backed out: another CPU could cache a translation that a remover never sees.
//!
//! A fault writes, outside its own table page and its CPU's own memory, only what it changes: the slot and the descriptor of
//! a page that it makes, the dirty bit of one that it is the first to store into. It takes no lock of the map, no count on an
//! object, no lock of a queue.
//!
//! # What is checked under the table page's lock, and against whom
//! | another CPU | what it does first | what the fault sees under the lock |
//! |---|---|---|
//! | removes the page | sets busy, fences, scans the leaves | busy, or another generation: again; or the scan finds the leaf |
//! | replaces the entry (unmap, protect, fork, clip) | marks it stale, fences, passes over the table pages | stale: waits for that writer; or the pass finds the leaf |
//! | copies the page into the front (our space) | fills the front's slot, then clears our leaf | the front's slot is not empty: again; or the leaf is cleared after us |
//! | moves the page to another layer | holds it busy; the generation rises | busy, or another generation: again |
//! | shares the layer that we write in place (fork) | marks our entry stale first | stale |
//! | takes the table page out | marks it dead under its lock | the pmap returns live table pages only |
//! | truncates below a page that we insert | writes the size, fences, looks for pages | we read the size after a fence that follows the insert: one of us takes the page back |
//! | tears the object down | marks it dead, fences, looks for pages | as with truncation |
//!
//! # Waiting
//! Everything above happens under one pin and never sleeps; where something is in the way, the attempt ends and says what to
//! wait for. A busy page: on its wait queue. A stale entry: on the map's lock, which its writer holds. A pager: with nothing
//! held but a busy placeholder. After [`DEFEATS`] defeats the fault keeps the map's writers out and tries under that.

use crate::backing::Backing;
use crate::error::{FaultError, OutOfMemory};
use crate::flush::Obligation;
use crate::frames::{Fill, For};
use crate::index::{FillError, Slot};
use crate::machine::{Enter, Machine, Pmap, Table};
use crate::map::{Entry, Space, USER};
use crate::mutant::{Mutant, mutant};
use crate::object::Object;
use crate::page::{Page, State};
use crate::page_in::{PageIn, WriteHook};
use crate::sleep::MaySleep;
use crate::stats::Event;
use crate::types::{Access, PAGE_SIZE, Prot, VirtRange};
use crate::vm::Vm;
use quire_sync::atomic::fence_full;
use quire_sync::epoch::Pinned;

/// Attempts that something else may spoil before the fault keeps the map's writers out.
const DEFEATS: u32 = 8;

/// Pages that a read fault on a file maps at once where they are resident, the faulting one included: an aligned window, as
/// large as Linux's `fault_around_bytes`.
const AROUND: u64 = 16;

/// How a fault was served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FaultKind {
    /// The translation was there already: a stale negative or weaker entry in this CPU's TLB.
    Spurious,
    /// The page was there, and was mapped.
    Resident,
    /// A new page, of zeroes.
    ZeroFill,
    /// A new page, copied.
    Copy,
    /// A pager was waited for.
    PagedIn,
}

/// Why an attempt ended without a leaf.
pub(crate) enum Stop<M: Machine> {
    /// Something changed; look again at once.
    Again,
    /// As `Again`, and not because anybody else was in the way.
    Progress,
    /// The entry is being replaced.
    Stale,
    /// The page is busy.
    Busy(&'static Page),
    /// A pager has to be asked.
    PageIn(PageIn<M>),
    /// A pager has to be told that the page is about to become dirty.
    Hook(WriteHook<M>),
    /// The access cannot be served.
    Fail(FaultError),
}

impl<M: Machine> From<OutOfMemory> for Stop<M> {
    fn from(_: OutOfMemory) -> Self {
        Stop::Fail(FaultError::OutOfMemory)
    }
}

/// One fault's surroundings.
pub(crate) struct At<'e, M: Machine> {
    pub vm: &'static Vm<M>,
    pub pmap: &'e M::Pmap,
    pub entry: &'e Entry<M>,
    /// Page-aligned.
    pub va: u64,
    pub access: Access,
}

/// A page that a walk found.
pub(crate) struct Found<'e, M: Machine> {
    pub page: &'static Page,
    /// As it was when found: not busy, valid.
    pub state: State,
    pub object: &'e Object<M>,
    pub key: u64,
    /// Layers in front of it.
    pub depth: usize,
}

/// What a walk along a chain found.
pub(crate) enum Walk<'e, M: Machine> {
    /// A page.
    Page(Found<'e, M>),
    /// Nothing; the page is to be made in this object, which is a file's or shared.
    Hole(&'e Object<M>, u64),
    /// Nothing at all: zeroes, in the front.
    Zero,
}

/// Serves an access of `space` at `va`. May sleep; the caller holds nothing.
pub fn fault<M: Machine>(space: &Space<M>, va: u64, access: Access) -> Result<FaultKind, FaultError> {
    let vm = space.vm();
    let va = va & !(PAGE_SIZE - 1);
    if !USER.contains(va) {
        return Err(FaultError::NotMapped);
    }
    let mut may = MaySleep::here();
    let mut defeats = 0;
    let mut paged_in = false;
    let mut writers_out = None;
    loop {
        let pin = may.pin(vm.epoch());
        let stop = match attempt(vm, space, va, access, &pin) {
            Ok(kind) => {
                drop(pin);
                return Ok(count(vm, if paged_in { FaultKind::PagedIn } else { kind }));
            }
            Err(stop) => stop,
        };
        drop(pin);
        match stop {
            Stop::Fail(e) => return Err(e),
            Stop::Progress => continue,
            Stop::Again => {}
            Stop::Stale => drop((writers_out.is_none()).then(|| space.keep_writers_out(va))),
            Stop::Busy(page) => vm.wait_unbusy(page, &mut may),
            Stop::PageIn(what) => {
                writers_out = None;
                what.run(&mut may)?;
                paged_in = true;
                continue;
            }
            Stop::Hook(what) => {
                writers_out = None;
                what.run(&mut may)?;
                continue;
            }
        }
        vm.stats().count(Event::FaultRetry);
        defeats += 1;
        if defeats == DEFEATS {
            writers_out = Some(space.keep_writers_out(va));
        }
    }
}

fn count<M: Machine>(vm: &Vm<M>, kind: FaultKind) -> FaultKind {
    vm.stats().count(Event::Fault);
    match kind {
        FaultKind::ZeroFill => vm.stats().count(Event::FaultZero),
        FaultKind::Copy => vm.stats().count(Event::FaultCopy),
        FaultKind::Spurious => vm.stats().count(Event::FaultSpurious),
        FaultKind::PagedIn => vm.stats().count(Event::FaultMajor),
        FaultKind::Resident => {}
    }
    kind
}

/// One attempt, under one pin.
fn attempt<'e, M: Machine>(
    vm: &'static Vm<M>,
    space: &'e Space<M>,
    va: u64,
    access: Access,
    pin: &'e Pinned<'_>,
) -> Result<FaultKind, Stop<M>> {
    let sequence = space.sequence(va);
    let Some(entry) = space.lookup(va, pin) else {
        // Contract C3: a miss counts only where the arena did not change around it.
        return Err(if space.unchanged_since(va, sequence) { Stop::Fail(FaultError::NotMapped) } else { Stop::Again });
    };
    if !entry.prot().contains(access.needs()) {
        return Err(if entry.is_stale() { Stop::Stale } else { Stop::Fail(FaultError::Protection) });
    }
    At { vm, pmap: space.pmap(), entry, va, access }.serve(pin)
}

impl<'e, M: Machine> At<'e, M> {
    /// Serves the access from the entry's chain.
    #[inline]
    pub fn serve(&self, pin: &'e Pinned<'_>) -> Result<FaultKind, Stop<M>> {
        let front = self.entry.front();
        match self.walk(Some(front), false, pin)? {
            Walk::Page(found) => self.map_or_copy(found, pin),
            Walk::Zero => self.zero_fill(front, pin),
            Walk::Hole(object, key) if object.holes_are_zero() => self.fill_hole(object, key, pin),
            Walk::Hole(object, key) => Err(PageIn::new(object, key, pin).map_or(Stop::Again, Stop::PageIn)),
        }
    }

    /// Walks the chain from `layer` on. A cut (one in front of it, or one that is met) hides the anonymous layers behind it,
    /// not a file at the end.
    #[inline]
    fn walk(&self, mut layer: Option<&'e Backing<M>>, mut cut: bool, pin: &Pinned<'_>) -> Result<Walk<'e, M>, Stop<M>> {
        let mut depth = 0;
        while let Some(b) = layer {
            if let Some((object, key)) = b.layer(self.va)
                && !(cut && object.is_private())
            {
                match object.index().get(key, pin) {
                    Slot::Page(pfn) => {
                        let page = self.vm.page(pfn);
                        let state = page.state();
                        if state.busy() {
                            return Err(Stop::Busy(page));
                        }
                        // A slot that was read before the page got another identity.
                        if !state.valid() || page.object() != object.address() || page.index() != key {
                            return Err(Stop::Again);
                        }
                        return Ok(Walk::Page(Found { page, state, object, key, depth }));
                    }
                    Slot::Reserved => return Err(Stop::Again),
                    Slot::Cut => cut = true,
                    Slot::Empty | Slot::Cover(_) | Slot::Swap(_) => {}
                }
                if !object.is_private() {
                    if key >= object.end() {
                        return Err(match self.entry.is_stale() {
                            true => Stop::Stale,
                            false => Stop::Fail(FaultError::BeyondEnd),
                        });
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
    fn map_or_copy(&self, found: Found<'e, M>, pin: &Pinned<'_>) -> Result<FaultKind, Stop<M>> {
        let store = self.access == Access::Write;
        // Stores go to the page itself in a shared mapping, in the front, and in a layer behind that only this chain shows.
        let in_place = if self.entry.shared() {
            true
        } else {
            found.object.is_private() && (found.depth == 0 || found.object.is_exclusive())
        };
        if store && !in_place {
            return self.copy(found, pin);
        }
        if store && !found.state.dirty() {
            // Contract C2, *dirty before writable*.
            if let Some(hook) = WriteHook::needed(&found, pin) {
                return Err(Stop::Hook(hook));
            }
            found.page.set(State::DIRTY);
            found.object.index().tag_dirty(found.key, pin);
        }
        let mut table = self.pmap.table(self.vm, self.va)?;
        self.check_entry()?;
        let now = self.check_page(&found, pin)?;
        let mut prot = self.entry.prot();
        // Exclusive still: a fork that shares the layer has marked the entry stale before.
        if !in_place || !now.dirty() || (found.depth > 0 && !self.entry.shared() && !found.object.is_exclusive()) {
            if store {
                return Err(Stop::Again);
            }
            prot -= Prot::WRITE;
        }
        let pfn = self.vm.pfn_of_page(found.page);
        let kind = match table.get(self.va) {
            None => FaultKind::Resident,
            Some(leaf) if leaf.pfn != pfn => {
                // Whoever gave the address another page has not come to the old one's leaf yet.
                let mut owed = Obligation::new(self.vm, self.pmap);
                let _gone = table.remove(self.va, &mut owed);
                drop(table);
                let _flushed = owed.discharge();
                return Err(Stop::Again);
            }
            Some(leaf) if leaf.prot.contains(self.access.needs()) => FaultKind::Spurious,
            Some(_) => FaultKind::Resident,
        };
        table.enter(self.va, Enter { pfn, prot });
        if kind == FaultKind::Resident && !store && !found.object.is_private() {
            self.map_around(&mut table, found.object, pin);
        }
        Ok(kind)
    }

    /// Maps resident neighbours of a file's page, for loads only where a store would have to do more first. Each is checked
    /// as the faulting page is, under the same lock.
    fn map_around(&self, table: &mut impl Table<M>, object: &Object<M>, pin: &Pinned<'_>) {
        let start = self.va & !(AROUND * PAGE_SIZE - 1);
        let window = VirtRange { start, end: start + AROUND * PAGE_SIZE };
        let Some(window) = window.intersect(&self.entry.range()).and_then(|w| w.intersect(&table.span())) else {
            return;
        };
        for va in (window.start..window.end).step_by(PAGE_SIZE as usize) {
            if va == self.va || table.get(va).is_some() {
                continue;
            }
            let near = At { va, ..*self };
            if let Ok(Walk::Page(found)) = near.walk(Some(self.entry.front()), false, pin)
                && core::ptr::eq(found.object, object)
            {
                let mut prot = self.entry.prot();
                if !self.entry.shared() || !found.state.dirty() {
                    prot -= Prot::WRITE;
                }
                table.enter(va, Enter { pfn: self.vm.pfn_of_page(found.page), prot });
            }
        }
    }

    /// Nothing anywhere in a private chain: a new page of zeroes in the front.
    fn zero_fill(&self, front: &'e Backing<M>, pin: &Pinned<'_>) -> Result<FaultKind, Stop<M>> {
        let Some(object) = front.touch(pin)? else { return Err(Stop::Stale) };
        let key = front.key(self.va);
        let writable = self.entry.prot().contains(Prot::WRITE);
        let new = self.insert(object, key, Fill::Zeroed, writable, pin)?;
        self.install(new, front, None, pin)?;
        Ok(FaultKind::ZeroFill)
    }

    /// A hole in a file in memory or in shared memory: a new page of zeroes there. A store through a private mapping copies
    /// it in the next attempt.
    fn fill_hole(&self, object: &'e Object<M>, key: u64, pin: &Pinned<'_>) -> Result<FaultKind, Stop<M>> {
        let shared = self.entry.shared();
        let new = self.insert(object, key, Fill::Zeroed, shared && self.entry.prot().contains(Prot::WRITE), pin)?;
        if !shared {
            new.keep();
            return Err(Stop::Progress);
        }
        // A shared mapping has one layer.
        self.install(new, self.entry.front(), None, pin)?;
        Ok(FaultKind::ZeroFill)
    }

    /// Makes a busy, valid page in `object`'s empty slot `key`. Its content is the caller's to complete.
    pub fn insert<'o>(
        &self,
        object: &'o Object<M>,
        key: u64,
        fill: Fill,
        dirty: bool,
        pin: &'o Pinned<'_>,
    ) -> Result<NewPage<'o, M>, Stop<M>> {
        let frame = self.vm.alloc_frame(fill, For::User)?;
        let page = self.vm.page(frame.pfn());
        let bits = if dirty { State::VALID | State::DIRTY } else { State::VALID };
        self.vm.assume_page(page, object.address(), key, bits);
        let slot = Slot::Page(frame.into_pfn());
        let mut cut = false;
        let mut filled = object.index().fill(key, slot, self.vm, pin);
        if filled == Err(FillError::Taken(Slot::Cut)) && object.index().replace(key, Slot::Cut, slot, pin) {
            cut = true;
            filled = Ok(());
        }
        let new = NewPage { vm: self.vm, object, key, page, slot, cut, pin, listed: filled.is_ok() };
        match filled {
            Ok(()) => {}
            Err(FillError::OutOfMemory) => return Err(Stop::Fail(FaultError::OutOfMemory)),
            Err(FillError::BeyondKeys) => return Err(Stop::Fail(FaultError::BeyondEnd)),
            Err(FillError::Taken(_) | FillError::Gone) => return Err(Stop::Again),
        }
        // Contract C2, *insert*: whoever shortens or ends the object after this sees the page; whoever did before is seen.
        if !mutant(Mutant::NoFenceAfterInsert) {
            fence_full();
        }
        if !mutant(Mutant::NoEndCheck) && (object.is_dead() || key >= object.end()) {
            return Err(Stop::Again);
        }
        if dirty && !object.is_private() {
            object.index().tag_dirty(key, pin);
        }
        self.vm.enqueue_new(page);
        Ok(new)
    }

    /// Installs a new page, whose content is complete, and lets go of it. `source`: the page that it was copied from.
    pub fn install(
        &self,
        new: NewPage<'_, M>,
        front: &'e Backing<M>,
        source: Option<&Found<'e, M>>,
        pin: &Pinned<'_>,
    ) -> Result<(), Stop<M>> {
        let mut table = self.pmap.table(self.vm, self.va)?;
        self.check_entry()?;
        // What lies behind must still be what the content was made of: a source that was removed may have been overwritten
        // before it was copied. A page that moved forward meanwhile is found here, since whoever moves it fills the new slot
        // before emptying the old one.
        if !mutant(Mutant::NoSourceCheck)
            && let Some(behind) = front.behind()
        {
            match (self.walk(Some(behind), new.cut, pin)?, source) {
                (Walk::Page(now), Some(source))
                    if core::ptr::eq(now.page, source.page) && now.state.generation() == source.state.generation() => {}
                (Walk::Zero, None) => {}
                _ => return Err(Stop::Again),
            }
        }
        let mut prot = self.entry.prot();
        if !new.page.state().dirty() {
            prot -= Prot::WRITE;
        }
        let pfn = self.vm.pfn_of_page(new.page);
        if table.get(self.va).is_some_and(|leaf| leaf.pfn != pfn) {
            let mut owed = Obligation::new(self.vm, self.pmap);
            let _gone = table.remove(self.va, &mut owed);
            drop(table);
            let _flushed = owed.discharge();
            return Err(Stop::Again);
        }
        table.enter(self.va, Enter { pfn, prot });
        drop(table);
        new.keep();
        Ok(())
    }

    /// Contract C3, under the table page's lock: the entry is not being replaced.
    #[inline(always)]
    pub fn check_entry(&self) -> Result<(), Stop<M>> {
        if !mutant(Mutant::NoStaleCheck) && self.entry.is_stale() { Err(Stop::Stale) } else { Ok(()) }
    }

    /// Contract C2, under the table page's lock: the page is what it was, and nothing has come in front of it.
    #[inline]
    fn check_page(&self, found: &Found<'e, M>, pin: &Pinned<'_>) -> Result<State, Stop<M>> {
        let now = found.page.state();
        if !mutant(Mutant::NoBusyCheck) {
            if now.busy() {
                return Err(Stop::Busy(found.page));
            }
            if now.generation() != found.state.generation() || !now.valid() {
                return Err(Stop::Again);
            }
        }
        if found.depth > 0 && !mutant(Mutant::NoFrontCheck) {
            match self.walk(Some(self.entry.front()), false, pin)? {
                Walk::Page(again) if core::ptr::eq(again.page, found.page) => {}
                _ => return Err(Stop::Again),
            }
        }
        Ok(now)
    }
}

/// A page that this fault made: busy. Dropped without [`NewPage::keep`], it is taken back, and nobody has seen its content.
pub(crate) struct NewPage<'o, M: Machine> {
    vm: &'static Vm<M>,
    object: &'o Object<M>,
    key: u64,
    pub page: &'static Page,
    slot: Slot,
    /// A cut stood in the slot before.
    cut: bool,
    pin: &'o Pinned<'o>,
    /// It is in the index.
    listed: bool,
}

impl<M: Machine> NewPage<'_, M> {
    /// The page stays, and is not busy any more.
    pub fn keep(self) {
        self.vm.unbusy(self.page);
        core::mem::forget(self);
    }
}

impl<M: Machine> Drop for NewPage<'_, M> {
    fn drop(&mut self) {
        if self.listed {
            // Where the index was dismantled meanwhile, the slot is gone already.
            let _gone = if self.cut {
                self.object.index().replace(self.key, self.slot, Slot::Cut, self.pin)
            } else {
                self.object.index().clear(self.key, self.slot, self.pin)
            };
        }
        self.vm.release_page(self.page);
    }
}
