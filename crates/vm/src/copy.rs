//! Copy-on-write (Contract C2): insert busy, take the old translation away, flush, copy, look at the source again, install.
//!
//! The flush comes before the copy: a thread of this space on another CPU that still read the source through its TLB, after
//! this one has stored into the copy, would see memory go backwards. The look at the source comes after the copy: a source
//! that was removed meanwhile may have been overwritten, and then so is what was copied.

use crate::error::OutOfMemory;
use crate::fault::{At, FaultKind, Found, Stop};
use crate::flush::Obligation;
use crate::frames::Fill;
use crate::machine::{Machine, Pmap, Table};
use crate::mutant::{Mutant, mutant};
use quire_sync::atomic::{Ordering, fence};
use quire_sync::epoch::Pinned;

impl<'e, M: Machine> At<'e, M> {
    /// Copies the page that was found behind the front into the front, and maps the copy.
    pub fn copy(&self, source: Found<'e, M>, pin: &Pinned<'_>) -> Result<FaultKind, Stop<M>> {
        let front = self.entry.front();
        let Some(object) = front.touch(pin)? else { return Err(Stop::Stale) };
        let new = self.insert(object, front.key(self.va), Fill::Any, true, pin)?;
        let (from, to) = (self.vm.pfn_of_page(source.page), self.vm.pfn_of_page(new.page));
        if !mutant(Mutant::CopyBeforeFlush) {
            self.take_away()?;
        }
        // SAFETY: the new frame is ours, busy and mapped by nobody. The source may be stored into or reused meanwhile; then
        // its state says so below, and what was copied is thrown away.
        unsafe { self.vm.machine().copy_frame(from, to) };
        if mutant(Mutant::CopyBeforeFlush) {
            self.take_away()?;
        }
        fence(Ordering::Acquire);
        if !mutant(Mutant::NoSourceCheck) && source.page.state().generation() != source.state.generation() {
            return Err(Stop::Again);
        }
        self.install(new, front, Some(&source), pin)?;
        Ok(FaultKind::Copy)
    }

    /// Takes the leaf at the address away, and waits until no CPU translates by it.
    fn take_away(&self) -> Result<(), OutOfMemory> {
        let pmap = self.pmap;
        let mut owed = Obligation::new(self.vm, pmap);
        let mut table = pmap.table(self.vm, self.va)?;
        if table.remove(self.va, &mut owed).is_none() && table.unflushed() {
            owed.owe_again(self.va);
        }
        drop(table);
        let _flushed = owed.discharge();
        Ok(())
    }
}
