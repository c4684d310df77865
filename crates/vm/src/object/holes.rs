//! Holes of files in memory that private mappings only read: they are shown as the one frame of zeroes, and stay holes.
//!
//! # Against who fills the hole (relies on C2)
//! A private mapping shows what is in the file until it is stored into. So whoever makes the page takes the frame of zeroes out
//! of the mappings that show it, before anybody sees the page's content:
//!
//! | load of a hole | fill |
//! |---|---|
//! | mark the object, fence | slot filled, page busy |
//! | lock the table page | fence, look at the mark |
//! | look at the slot: empty still | marked: take the frame of zeroes away wherever a backing shows the slot, flush |
//! | enter the frame of zeroes | let go of the page |
//!
//! Either the fill sees the mark, or the load sees the slot; where the fill sees the mark, its pass finds the leaf, or the load
//! comes to the table page after it and finds the slot. (Mutants [`Mutant::NoHoleScan`] and [`Mutant::NoHoleCheck`].)

use super::{HOLES_SHOWN, Object};
use crate::fault::{At, FaultKind, Stop, Walk};
use crate::machine::{Enter, Machine, Table};
use crate::mutant::{Mutant, mutant};
use crate::phys::frames::Fill;
use crate::rmap::{self, Batch};
use crate::tlb::flush::Obligation;
use crate::types::{Access, Prot};
use quire_sync::atomic::{Ordering, fence_full};
use quire_sync::epoch::Pinned;

impl<M: Machine> Object<M> {
    /// From the fence in this on, who fills a hole asks whether it is shown.
    fn show_holes(&self) {
        if self.flags.load(Ordering::Relaxed) & HOLES_SHOWN == 0 {
            self.flags.fetch_or(HOLES_SHOWN, Ordering::AcqRel);
        }
        fence_full();
    }

    /// Page `key` is in its slot, busy, and the caller has fenced after that: when this returns no CPU reads zeroes there any
    /// more.
    #[inline(always)]
    pub(crate) fn hole_is_filled(&self, key: u64) {
        if self.flags.load(Ordering::Relaxed) & HOLES_SHOWN != 0 && !mutant(Mutant::NoHoleScan) {
            self.hide_zeroes(key);
        }
    }

    #[cold]
    fn hide_zeroes(&self, key: u64) {
        let mut batch = Batch::new();
        batch.push(key, self.vm.zero_frame());
        let _flushed = rmap::unmap(self, &batch);
    }
}

impl<'e, M: Machine> At<'e, M> {
    /// Page `key` of `object`, a file in memory, is a hole, which a private mapping shows: a load maps the frame of zeroes, a
    /// store makes a page of the mapping's own.
    pub(crate) fn private_hole(&self, object: &Object<M>, key: u64, pin: &'e Pinned<'_>) -> Result<FaultKind, Stop<M>> {
        let front = self.entry.front();
        if self.access == Access::Write {
            // As a copy is made of a page: the front's slot, then the old leaf, then the new one.
            let Some(own) = front.touch(pin)? else { return Err(Stop::Stale) };
            let new = self.insert(own, front.key(self.va), Fill::Zeroed, true, pin)?;
            let mut owed = Obligation::new(self.vm, self.pmap);
            self.take_away(&mut owed, pin)?;
            let _flushed = owed.discharge();
            new.complete();
            self.install(new, front, None, pin, |_| ())?;
            return Ok(FaultKind::ZeroFill);
        }
        object.show_holes();
        let mut table = self.table(pin)?;
        match self.walk(Some(front), false, pin)? {
            _ if mutant(Mutant::NoHoleCheck) => {}
            Walk::Hole(now, at) if core::ptr::eq(now, object) && at == key => {}
            _ => return Err(Stop::Again),
        }
        let zero = self.vm.zero_frame();
        let kind = match table.get(self.va) {
            Some(leaf) if leaf.pfn != zero => {
                // Whoever took that page away has not come to its leaf yet.
                let mut owed = Obligation::new(self.vm, self.pmap);
                let _gone = table.remove(self.va, &mut owed);
                drop(table);
                let _flushed = owed.discharge();
                return Err(Stop::Again);
            }
            Some(leaf) if leaf.prot.contains(self.access.needs()) => FaultKind::Spurious,
            Some(_) => FaultKind::Reuse,
            None => FaultKind::Resident,
        };
        table.enter(self.va, Enter::new(zero, self.entry.prot() - Prot::WRITE));
        Ok(kind)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
