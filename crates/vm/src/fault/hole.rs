//! Faults on memory without a page that a private mapping shows: loads map the frame of zeroes.
//!
//! For holes of files in memory, [`holes`](crate::content::holes) has the protocol. Private memory that was never
//! stored into needs less, because only stores through the mapping itself make its pages. Such a store puts the page
//! into its slot before it locks the table page. A load looks at the slots under that lock. So either the load finds
//! the page, or the store finds the frame of zeroes in the leaf, and removes it ([`FaultContext::install`]).
//!
//! The frame of zeroes has no record of its mappings, and no cache line of it is written. A load also maps it at
//! neighbours, because a program that reads untouched memory mostly reads more of it.

use super::{Attempt, FaultContext, Walk};
use crate::machine::{Count, Enter, Machine, Table};
use crate::map::entry::Flags;
use crate::mutant::{Mutant, mutant};
use crate::object::Object;
use crate::object::backing::Backing;
use crate::phys::frames::Fill;
use crate::stats::{Event, FaultKind};
use crate::tlb::flush::Obligation;
use crate::types::{Access, PAGE_SHIFT, PAGE_SIZE, VirtRange};
use quire_sync::epoch::Pinned;

/// Pages of the aligned window in which a load maps the frame of zeroes.
const AROUND: u64 = 16;
/// The most layers of a chain with which a load maps the frame of zeroes at neighbours.
const DEEPEST: usize = 16;
/// Pages from the address on that a load maps if the page before the address shows the frame of zeroes too.
const IN_A_ROW: u64 = 64;

impl<'e, M: Machine> FaultContext<'e, M> {
    /// Serves a fault on page `key` of `object`, a hole of a file in memory, through a private mapping. A load maps the
    /// frame of zeroes; a store makes a page of the mapping's own.
    pub(crate) fn private_hole(
        &self,
        object: &Object<M>,
        key: u64,
        pin: &'e Pinned<'_>,
    ) -> Result<FaultKind, Attempt<M>> {
        let front = self.entry.front();
        if self.access == Access::Write {
            // The steps have the order of a copy: fill the front's slot, clear the old leaf, enter the new leaf.
            let Some(own) = front.touch(pin)? else { return Err(Attempt::Stale) };
            let new = self.insert(own, front.key(self.va), Fill::Zeroed, true, pin)?;
            let mut owed = Obligation::new(self.vm, self.pmap);
            self.take_away(&mut owed, pin)?;
            let _flushed = owed.discharge();
            new.complete();
            self.install(new, front, None, Count::More, pin, |_| ())?;
            return Ok(FaultKind::ZeroFill);
        }
        object.show_holes();
        let mut table = self.table(pin)?;
        match self.walk(Some(front), false, pin)? {
            _ if mutant(Mutant::NoHoleCheck) => {}
            Walk::Hole(now, at) if core::ptr::eq(now, object) && at == key => {}
            _ => return Err(Attempt::Again),
        }
        match self.enter_zeroes(&mut table) {
            Some(kind) => Ok(kind),
            None => Err(self.clear_old(table)),
        }
    }

    /// Serves a load of private memory that has no page in any layer: maps the frame of zeroes, also at neighbours.
    #[inline(never)] // first stores need no room for its stack frame
    pub(crate) fn load_zeroes(&self, front: &'e Backing<M>, pin: &'e Pinned<'_>) -> Result<FaultKind, Attempt<M>> {
        let mut table = self.table(pin)?;
        if !mutant(Mutant::NoZeroCheck) && !matches!(self.walk(Some(front), false, pin)?, Walk::Zero) {
            return Err(Attempt::Again);
        }
        let Some(kind) = self.enter_zeroes(&mut table) else { return Err(self.clear_old(table)) };
        if kind == FaultKind::Resident {
            self.map_zeroes(&mut table, pin);
        }
        Ok(kind)
    }

    /// Enters the frame of zeroes at the address. Enters nothing where the leaf shows another frame.
    fn enter_zeroes(&self, table: &mut impl Table<M>) -> Option<FaultKind> {
        let zero = self.vm.zero_frame();
        let kind = match table.get(self.va) {
            Some(leaf) if leaf.pfn != zero => return None,
            Some(leaf) if leaf.prot.contains(self.access.needs()) => FaultKind::Spurious,
            Some(_) => FaultKind::Reuse,
            None => FaultKind::Resident,
        };
        table.enter(self.va, Enter::zeroes(zero, self.entry.prot()));
        table.note_zeroes();
        Some(kind)
    }

    /// Clears an outdated leaf, in place of the CPU that has removed its page but has not cleared the leaf yet.
    fn clear_old(&self, mut table: impl Table<M>) -> Attempt<M> {
        let mut owed = Obligation::new(self.vm, self.pmap);
        let _gone = table.remove(self.va, &mut owed);
        drop(table);
        let _flushed = owed.discharge();
        Attempt::Again
    }

    /// Enters the frame of zeroes at the neighbours that have no leaf, and no page in any layer.
    ///
    /// # Requires
    /// The table page that covers the address is locked, and the entry was checked under its lock.
    fn map_zeroes(&self, table: &mut impl Table<M>, pin: &Pinned<'_>) {
        let zero = self.vm.zero_frame();
        let before = self.va.checked_sub(PAGE_SIZE).filter(|before| table.span().contains(*before));
        let in_a_row = before.and_then(|before| table.get(before)).is_some_and(|leaf| leaf.pfn == zero);
        let (start, pages) = match in_a_row {
            true => (self.va, IN_A_ROW),
            false => (self.va & !(AROUND * PAGE_SIZE - 1), AROUND),
        };
        let window = VirtRange { start, end: start.saturating_add(pages * PAGE_SIZE) };
        let window = window.intersect(&self.entry.range()).and_then(|w| w.intersect(&table.span()));
        let Some(window) = window else { return };
        let place = |va: u64| (va - window.start) >> PAGE_SHIFT;
        let all = u64::MAX >> (64 - place(window.end));
        let mut empty = all & !(1 << place(self.va));
        let (mut layers, mut depth) = ([None; DEEPEST], 0);
        for layer in core::iter::successors(Some(self.entry.front()), |b| b.behind()) {
            let (Some(object), Some(shown)) = (layer.object(), layer.range().intersect(&window)) else { continue };
            if !object.is_private() || depth == DEEPEST {
                return;
            }
            layers[depth] = Some((layer, object, shown));
            depth += 1;
        }
        let look = |(layer, object, shown): (&Backing<M>, &Object<M>, VirtRange), empty: &mut u64| {
            let skipped = place(shown.start);
            let wanted = (*empty >> skipped) & (u64::MAX >> (64 - (shown.bytes() >> PAGE_SHIFT)));
            let found = |n: u32, _| *empty &= !(1 << (u64::from(n) + skipped));
            object.index().each_of(layer.key(shown.start), wanted, pin, found);
        };
        layers.iter().flatten().for_each(|layer| look(*layer, &mut empty));
        // The look from front to back misses no page that moves back, because a mover fills the new slot before it
        // empties the old one. A page that moves towards the front may be missed in both slots. The look from back to
        // front misses none of these.
        if depth > 1 && !mutant(Mutant::OneLookAtLayers) {
            layers.iter().rev().flatten().for_each(|layer| look(*layer, &mut empty));
        }
        // Relies on C3: the stale mark is checked under the table page's lock.
        if empty == 0 || self.check_entry().is_err() {
            return;
        }
        let mut mapped = 0;
        table.enter_absent(window.start, empty, |_| {
            mapped += 1;
            Enter::zeroes(zero, self.entry.prot())
        });
        self.vm.stats().add(Event::FaultAround, mapped);
    }

    /// Whether a load may map the frame of zeroes. A load of a wired mapping may not, because wiring keeps real pages
    /// resident.
    #[inline(always)]
    pub(crate) fn shows_zeroes(&self, front: &Backing<M>) -> bool {
        self.access != Access::Write && !front.is_wired() && !self.entry.flags().contains(Flags::WIRED)
    }
}
