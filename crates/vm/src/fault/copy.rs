//! Copy-on-write (relies on C2): insert busy, take the old translation away, flush, copy, look at the source again, install.
//!
//! The flush comes before the copy can be seen: a thread of this space on another CPU that still read the source through its
//! TLB, after another one has stored into the copy, would see memory go backwards. The look at the source comes after the
//! copy ([`At::install`]): a source that was removed meanwhile may have been overwritten, and then so is what was copied.

use crate::cow::found::Found;
use crate::cow::last_sharer;
use crate::error::OutOfMemory;
use crate::fault::{At, Stop};
use crate::machine::{Machine, Pmap, Table};
use crate::mutant::{Mutant, mutant};
use crate::phys::frames::Fill;
use crate::rmap::dirty::credit;
use crate::stats::FaultKind;
use crate::tlb::flush::Obligation;
use crate::types::{PAGE_SIZE, VirtRange};
use quire_sync::atomic::fence_full;
use quire_sync::epoch::Pinned;

impl<'e, M: Machine> At<'e, M> {
    /// Copies the page that was found behind the front into the front, and maps the copy; or moves it there, where nobody else
    /// sees it any more ([`cow_move`](crate::fault::cow_move)).
    pub fn copy(&self, source: Found<'e, M>, pin: &Pinned<'_>) -> Result<FaultKind, Stop<M>> {
        if self.claim(&source, pin)? {
            return Ok(FaultKind::Move);
        }
        let front = self.entry.front();
        let Some(object) = front.touch(pin)? else { return Err(Stop::Stale) };
        if mutant(Mutant::LookBeforeFill) {
            last_sharer::hid(&source, pin);
        }
        let new = self.insert(object, front.key(self.va), Fill::Any, true, pin)?;
        let (from, to) = (self.vm.pfn_of_page(source.page), self.vm.pfn_of_page(new.page));
        if from == to {
            // The source was freed since it was found, and its frame is the new page's.
            return Err(Stop::Again);
        }
        let mut owed = Obligation::new(self.vm, self.pmap);
        self.take_away(&mut owed, pin)?;
        if !mutant(Mutant::FlushAfterInstall) {
            let _flushed = owed.discharge_so_far();
        }
        // SAFETY: the new frame is busy and mapped by no leaf. The source may be stored into or reused meanwhile; the look at it
        // afterwards throws the copy away then.
        unsafe { self.vm.machine().copy_frame(from, to) };
        self.install(new, front, Some(&source), pin, |_| ())?;
        if !mutant(Mutant::LookBeforeFill) {
            last_sharer::hid(&source, pin);
        }
        Ok(FaultKind::Copy)
    }

    /// Copies the page that was found behind the front into the front though no store asks for it; maps the copy only where
    /// the page was mapped. Elsewhere no table page is locked for it: who is about to map the page finds the front's slot filled
    /// (the insert fenced), and a writer who does not find it filled has marked the entry before (it fenced too).
    pub fn copy_up(&self, source: &Found<'e, M>, pin: &Pinned<'_>) -> Result<(), Stop<M>> {
        let front = self.entry.front();
        let Some(object) = front.touch(pin)? else { return Err(Stop::Stale) };
        let new = self.insert(object, front.key(self.va), Fill::Any, true, pin)?;
        let (from, to) = (self.vm.pfn_of_page(source.page), self.vm.pfn_of_page(new.page));
        if from == to {
            // The source was freed since it was found, and its frame is the new page's.
            return Err(Stop::Again);
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
        // SAFETY: the new frame is busy and mapped by no leaf. The source may be reused meanwhile; the look at it below throws the
        // copy away then.
        unsafe { self.vm.machine().copy_frame(from, to) };
        if mapped {
            return self.install(new, front, Some(source), pin, |_| ());
        }
        // What was read, before whether it was still the source: no lock lies between.
        fence_full();
        self.check_entry()?;
        self.check_source(&new, front, Some(source), pin)?;
        new.keep();
        Ok(())
    }

    /// Takes the leaf at the address away, and owes the flush after which no CPU translates by it.
    #[inline]
    pub fn take_away(&self, owed: &mut Obligation<'e, M>, pin: &Pinned<'_>) -> Result<(), OutOfMemory> {
        let mut table = self.pmap.table(self.vm, self.va, pin)?;
        match table.remove(self.va, owed) {
            None if table.unflushed() => owed.owe_again(self.va),
            gone => credit(self.vm, gone),
        }
        Ok(())
    }
}
