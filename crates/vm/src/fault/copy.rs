//! Copy-on-write (relies on C2). The steps: insert a busy page, remove the old leaf, flush, copy, check the source
//! again, install the new leaf.
//!
//! The flush comes before any thread can use the copy. Otherwise a thread of this space on another CPU could read the
//! source through its TLB after a store into the copy. That thread would read an older value. The source is checked
//! after the copy ([`FaultContext::install`]), because a source that was removed during the copy may have been
//! overwritten. Then the copy is discarded.

use crate::cow::found::FoundPage;
use crate::cow::last_sharer;
use crate::error::OutOfMemory;
use crate::fault::{Attempt, FaultContext};
use crate::machine::{Count, Machine, Pmap, Table};
use crate::mutant::{Mutant, mutant};
use crate::phys::frames::Fill;
use crate::rmap::dirty::credit;
use crate::stats::FaultKind;
use crate::tlb::flush::Obligation;
use crate::types::{PAGE_SIZE, VirtRange};
use quire_sync::atomic::fence_full;
use quire_sync::epoch::Pinned;

impl<'e, M: Machine> FaultContext<'e, M> {
    /// Copies `source`, which was found behind the front (the first backing of the chain), into the front, and maps the
    /// copy. If no other chain sees the page any more, moves the page to the front instead
    /// ([`cow_move`](crate::fault::cow_move)).
    pub fn copy(&self, source: FoundPage<'e, M>, pin: &Pinned<'_>) -> Result<FaultKind, Attempt<M>> {
        if self.claim(&source, pin)? {
            return Ok(FaultKind::Move);
        }
        let front = self.entry.front();
        let Some(object) = front.touch(pin)? else { return Err(Attempt::Stale) };
        if mutant(Mutant::LookBeforeFill) {
            last_sharer::hid(&source, pin);
        }
        let new = self.insert(object, front.key(self.va), Fill::Any, true, pin)?;
        let (from, to) = (self.vm.pfn_of_page(source.page), self.vm.pfn_of_page(new.page));
        if from == to {
            // The source was freed after the walk had found it, and its frame was allocated for the new page.
            return Err(Attempt::Again);
        }
        let mut owed = Obligation::new(self.vm, self.pmap);
        let was_mapped = self.take_away(&mut owed, pin)?;
        if !mutant(Mutant::FlushAfterInstall) {
            let _flushed = owed.discharge_so_far();
        }
        // SAFETY: the new frame is busy and mapped by no leaf. If the source is stored into or reused during the copy,
        // the later check of the source discards the copy.
        unsafe { self.vm.machine().copy_frame(from, to) };
        // A child's count includes a page that it has not mapped yet, and so its copy.
        let inherited = !was_mapped && source.object.is_private();
        let count = if inherited { Count::UnlessInherited } else { Count::More };
        self.install(new, front, Some(&source), count, pin, |_| ())?;
        if !mutant(Mutant::LookBeforeFill) {
            last_sharer::hid(&source, pin);
        }
        Ok(FaultKind::Copy)
    }

    /// Copies `source`, which was found behind the front, into the front, although no store needs it. Maps the copy
    /// only if the source was mapped at the address; otherwise the final checks need no lock. A CPU that is about to
    /// map the source finds the front's slot filled, because the insert issued a fence. A writer of the map marks the
    /// entry stale, fences, and then looks at the slots. If it does not see the slot filled, the final checks see its
    /// mark.
    pub fn copy_up_page(&self, source: &FoundPage<'e, M>, pin: &Pinned<'_>) -> Result<(), Attempt<M>> {
        let front = self.entry.front();
        let Some(object) = front.touch(pin)? else { return Err(Attempt::Stale) };
        let new = self.insert(object, front.key(self.va), Fill::Any, true, pin)?;
        let (from, to) = (self.vm.pfn_of_page(source.page), self.vm.pfn_of_page(new.page));
        if from == to {
            // The source was freed after the walk had found it, and its frame was allocated for the new page.
            return Err(Attempt::Again);
        }
        let mut owed = Obligation::new(self.vm, self.pmap);
        let mut mapped = false;
        match self.pmap.next_table(self.vm, VirtRange { start: self.va, end: self.va + PAGE_SIZE }) {
            Some(mut table) => match table.remove(self.va, &mut owed) {
                None if table.unflushed() => owed.owe_again(self.va),
                gone => {
                    mapped = gone.is_some();
                    credit(self.vm, gone);
                }
            },
            None if self.pmap.unflushed_above(self.vm, self.va) => owed.owe_again(self.va),
            None => {}
        }
        let _flushed = owed.discharge();
        // SAFETY: the new frame is busy and mapped by no leaf. If the source is reused during the copy, the check of
        // the source below discards the copy.
        unsafe { self.vm.machine().copy_frame(from, to) };
        if mapped {
            return self.install(new, front, Some(source), Count::More, pin, |_| ());
        }
        // Orders the read of the source's content before the check of the source, because no lock lies between.
        fence_full();
        self.check_entry()?;
        self.check_source(&new, front, Some(source), pin)?;
        new.keep();
        Ok(())
    }

    /// Clears the leaf at the address, and adds its flush to `owed`. After that flush no CPU has the translation.
    /// Returns whether there was a leaf.
    #[inline]
    pub fn take_away(&self, owed: &mut Obligation<'e, M>, pin: &Pinned<'_>) -> Result<bool, OutOfMemory> {
        let mut table = self.pmap.table(self.vm, self.va, pin)?;
        let gone = table.remove(self.va, owed);
        match gone {
            None if table.unflushed() => owed.owe_again(self.va),
            gone => credit(self.vm, gone),
        }
        Ok(gone.is_some())
    }
}
