//! Faults of private mappings on holes of files in memory. [`holes`](crate::content::holes) describes the protocol.

use super::{Attempt, FaultContext, Walk};
use crate::machine::{Enter, Machine, Table};
use crate::mutant::{Mutant, mutant};
use crate::object::Object;
use crate::phys::frames::Fill;
use crate::stats::FaultKind;
use crate::tlb::flush::Obligation;
use crate::types::{Access, Prot};
use quire_sync::epoch::Pinned;

impl<'e, M: Machine> FaultContext<'e, M> {
    /// Serves a fault on page `key` of `object`, a hole of a file in memory, through a private mapping. A load maps the
    /// shared frame of zeroes, read-only. A store makes a new page of zeroes in the front.
    pub(crate) fn private_hole(
        &self,
        object: &Object<M>,
        key: u64,
        pin: &'e Pinned<'_>,
    ) -> Result<FaultKind, Attempt<M>> {
        let front = self.entry.front();
        if self.access == Access::Write {
            // The order of steps is that of a copy: fill the front's slot, clear the old leaf and flush, install the
            // new one.
            let Some(own) = front.touch(pin)? else { return Err(Attempt::Stale) };
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
            _ => return Err(Attempt::Again),
        }
        let zero = self.vm.zero_frame();
        let kind = match table.get(self.va) {
            Some(leaf) if leaf.pfn != zero => {
                // Another CPU has removed that page from its slot, and has not cleared this leaf yet.
                let mut owed = Obligation::new(self.vm, self.pmap);
                let _gone = table.remove(self.va, &mut owed);
                drop(table);
                let _flushed = owed.discharge();
                return Err(Attempt::Again);
            }
            Some(leaf) if leaf.prot.contains(self.access.needs()) => FaultKind::Spurious,
            Some(_) => FaultKind::Reuse,
            None => FaultKind::Resident,
        };
        table.enter(self.va, Enter::new(zero, self.entry.prot() - Prot::WRITE));
        Ok(kind)
    }
}
