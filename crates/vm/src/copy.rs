//! Copy-on-write (Contract C2): insert busy, take the old translation away, flush, copy, look at the source again, install.
//!
//! The flush comes before the copy can be seen: a thread of this space on another CPU that still read the source through its
//! TLB, after another one has stored into the copy, would see memory go backwards. The look at the source comes after the
//! copy ([`At::install`]): a source that was removed meanwhile may have been overwritten, and then so is what was copied.

use crate::error::OutOfMemory;
use crate::fault::{At, FaultKind, Found, Stop};
use crate::flush::Obligation;
use crate::frames::Fill;
use crate::machine::{Machine, Pmap, Table};
use crate::mutant::{Mutant, mutant};
use quire_sync::epoch::Pinned;

impl<'e, M: Machine> At<'e, M> {
    /// Copies the page that was found behind the front into the front, and maps the copy.
    pub fn copy(&self, source: Found<'e, M>, pin: &Pinned<'_>) -> Result<FaultKind, Stop<M>> {
        let front = self.entry.front();
        let Some(object) = front.touch(pin)? else { return Err(Stop::Stale) };
        let new = self.insert(object, front.key(self.va), Fill::Any, true, pin)?;
        let (from, to) = (self.vm.pfn_of_page(source.page), self.vm.pfn_of_page(new.page));
        let owed = self.take_away()?;
        let late = if mutant(Mutant::FlushAfterInstall) {
            Some(owed)
        } else {
            let _flushed = owed.discharge();
            None
        };
        // SAFETY: the new frame is ours, busy and mapped by nobody. The source may be stored into or reused meanwhile; then
        // its state says so when it is looked at again, and what was copied is thrown away.
        unsafe { self.vm.machine().copy_frame(from, to) };
        self.install(new, front, Some(&source), pin)?;
        drop(late);
        Ok(FaultKind::Copy)
    }

    /// Takes the leaf at the address away; what is owed is the flush after which no CPU translates by it.
    fn take_away(&self) -> Result<Obligation<'e, M>, OutOfMemory> {
        let mut owed = Obligation::new(self.vm, self.pmap);
        let mut table = self.pmap.table(self.vm, self.va)?;
        if table.remove(self.va, &mut owed).is_none() && table.unflushed() {
            owed.owe_again(self.va);
        }
        Ok(owed)
    }
}
