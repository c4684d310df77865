//! Reads and writes of a space that the calling thread does not run in: one process accesses the memory of another.
//!
//! The kernel copies the bytes from and to the frames, through its own mapping of RAM. It does not switch page tables.
//! So the caller's thread never runs in the other space, and its faults, futexes and limits are not affected.
//!
//! A read installs no leaf. A write first serves a fault in the other space, which installs a writable leaf. Then it
//! copies under the lock of the table page that has the leaf, so it acts as a store through that leaf. A fork or a
//! removal changes the leaf under the same lock, so it comes before or after the store.

use crate::cow::found::FoundPage;
use crate::error::{FaultError, PagerError};
use crate::fault::{Attempt, FaultContext, Walk};
use crate::machine::{Machine, Pmap, Table, bytes};
use crate::map::arena::arenas::Changed;
use crate::map::entry::Entry;
use crate::map::space::Space;
use crate::mutant::{Mutant, mutant};
use crate::paging::page_in::PageIn;
use crate::paging::waiting::Patience;
use crate::sleep::MaySleep;
use crate::types::{Access, PAGE_SIZE};
use quire_sync::atomic::fence_full;
use quire_sync::epoch::Pinned;

impl<M: Machine> Space<M> {
    /// Fills `to` with the bytes from `va` on, and returns how many it filled. It fills fewer if the next byte is not
    /// readable, or its page cannot be read in. If that is the first byte, it returns an error. Holes of objects are
    /// read as zeroes and stay holes. May sleep.
    pub fn read(&self, va: u64, to: &mut [u8]) -> Result<usize, FaultError> {
        self.read_by(va, to, |entry| entry.prot().allows(Access::Read))
    }

    /// As [`Space::read`], also of memory that the program may not read, but could give itself the right to.
    pub fn force_read(&self, va: u64, to: &mut [u8]) -> Result<usize, FaultError> {
        self.read_by(va, to, |entry| entry.attributes().max_prot.allows(Access::Read))
    }

    /// Reads entries that `may_read` accepts.
    fn read_by(&self, va: u64, to: &mut [u8], may_read: impl Fn(&Entry<M>) -> bool) -> Result<usize, FaultError> {
        let mut may = MaySleep::here();
        let mut done = 0;
        while done < to.len() {
            let Some(at) = va.checked_add(done as u64).filter(|at| M::Pmap::USER.contains(*at)) else {
                return if done > 0 { Ok(done) } else { Err(FaultError::NotMapped) };
            };
            let n = ((PAGE_SIZE - at % PAGE_SIZE) as usize).min(to.len() - done);
            match self.read_in_page(at, &mut to[done..done + n], &may_read, &mut may) {
                Ok(()) => done += n,
                Err(_) if done > 0 => return Ok(done),
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Stores the bytes of `from` from `va` on, and returns how many it stored. It stores fewer if the next byte is not
    /// writable, or its page cannot be made. If that is the first byte, it returns an error. May sleep.
    pub fn store(&self, va: u64, from: &[u8]) -> Result<usize, FaultError> {
        let mut done = 0;
        while done < from.len() {
            let Some(at) = va.checked_add(done as u64).filter(|at| M::Pmap::USER.contains(*at)) else {
                return if done > 0 { Ok(done) } else { Err(FaultError::NotMapped) };
            };
            let n = ((PAGE_SIZE - at % PAGE_SIZE) as usize).min(from.len() - done);
            match self.store_in_page(at, &from[done..done + n]) {
                Ok(()) => done += n,
                Err(_) if done > 0 => return Ok(done),
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Stores like [`store`](Space::store), within one page.
    fn store_in_page(&self, at: u64, from: &[u8]) -> Result<(), FaultError> {
        loop {
            // Another thread may remove the leaf before `try_store` uses it, so try until a store succeeds. The fault
            // waits for writers of the map, and for memory.
            self.fault(at, Access::Write)?;
            let may = MaySleep::here();
            let pin = may.pin(self.vm().epoch());
            if self.try_store(at, from, &pin)? {
                return Ok(());
            }
        }
    }

    /// One attempt, under one pin of the epoch (an RCU read section): stores through the leaf that a fault has
    /// installed. Returns false if no leaf allows the store. Returns [`PagerError::Device`] for a device, because this
    /// function does not store into device registers.
    fn try_store(&self, at: u64, from: &[u8], pin: &Pinned<'_>) -> Result<bool, FaultError> {
        let vm = self.vm();
        let (va, within) = (at & !(PAGE_SIZE - 1), (at % PAGE_SIZE) as usize);
        let Ok(Some(entry)) = self.look(va, pin) else { return Ok(false) };
        let context =
            FaultContext { vm, pmap: self.pmap(), entry, condemned: self.condemned(), va, access: Access::Write };
        let Ok(table) = context.table(pin) else { return Ok(false) };
        let Some(leaf) = table.get(va).filter(|leaf| leaf.prot.contains(Access::Write.needs())) else {
            return Ok(false);
        };
        if entry.front().object().is_some_and(|object| object.device().is_some()) {
            return Err(FaultError::Pager(PagerError::Device));
        }
        // SAFETY: the copy stays within the frame and within the buffer. The leaf keeps the frame while this thread
        // holds the table page's lock. A frame is no part of a kernel buffer.
        unsafe {
            let to = vm.machine().frame_ptr(leaf.pfn).add(within);
            bytes::copy(from.as_ptr(), to, from.len());
        }
        Ok(true)
    }

    /// Stores into the frame of a dirty page, from byte `within` on. False if the page changed meanwhile, and the store
    /// may be lost: pageout may have taken the page, or begun to. The caller has seen that the page is this space's
    /// own, and keeps writers of the map out.
    pub(super) fn store_in_frame(&self, found: &FoundPage<'_, M>, within: usize, from: &[u8]) -> bool {
        let (vm, page, generation) = (self.vm(), found.page, found.state.generation());
        assert!(within + from.len() <= PAGE_SIZE as usize, "a store within a page");
        if !page.try_hold() {
            return false;
        }
        let same = || {
            let now = page.state();
            !now.busy() && now.valid() && now.dirty() && now.generation() == generation
        };
        let mine = same();
        if mine {
            // SAFETY: within the frame, which is held, and within the buffer; a frame is no part of a kernel buffer.
            unsafe {
                let to = vm.machine().frame_ptr(vm.pfn_of_page(page)).add(within);
                bytes::copy(from.as_ptr(), to, from.len());
            }
            // A thread that takes or cleans the page sets a bit, fences, and reads the frame later.
            fence_full();
        }
        let stored = mine && same();
        vm.unhold_page(page);
        stored
    }

    /// As [`read`](Space::read), within a page.
    fn read_in_page(
        &self,
        at: u64,
        to: &mut [u8],
        may_read: &impl Fn(&Entry<M>) -> bool,
        may: &mut MaySleep,
    ) -> Result<(), FaultError> {
        let mut patience = Patience::new();
        loop {
            let pin = may.pin(self.vm().epoch());
            let attempt = self.try_read(at, to, may_read, &pin);
            drop(pin);
            match attempt {
                Ok(()) => return Ok(()),
                Err(Attempt::Fail(FaultError::OutOfMemory)) => self.vm().memory_or_error(&mut patience, may)?,
                Err(Attempt::Fail(e)) => return Err(e),
                Err(Attempt::Again | Attempt::Progress) => quire_sync::hooks::relax(),
                Err(Attempt::Stale) => drop(self.keep_writers_out(at)),
                Err(Attempt::Busy(page)) => self.vm().wait_unbusy(page, may),
                Err(Attempt::PageIn(read)) => match read.run(may) {
                    Err(FaultError::OutOfMemory) => self.vm().memory_or_error(&mut patience, may)?,
                    done => done.map(|()| patience.served())?,
                },
                // Only a store calls a pager's hook, so this read does not get this result.
                Err(Attempt::Hook(_)) => return Err(FaultError::Pager(PagerError::Failed)),
            }
        }
    }

    /// One attempt, under one pin: copies the bytes that a fault would map.
    fn try_read(
        &self,
        at: u64,
        to: &mut [u8],
        may_read: &impl Fn(&Entry<M>) -> bool,
        pin: &Pinned<'_>,
    ) -> Result<(), Attempt<M>> {
        let vm = self.vm();
        let (va, within) = (at & !(PAGE_SIZE - 1), (at % PAGE_SIZE) as usize);
        let entry = match self.look(va, pin) {
            Ok(Some(entry)) => entry,
            Ok(None) => return Err(Attempt::Fail(FaultError::NotMapped)),
            Err(Changed) => return Err(Attempt::Again),
        };
        if !may_read(entry) {
            return Err(if entry.is_stale() { Attempt::Stale } else { Attempt::Fail(FaultError::Protection) });
        }
        let at = FaultContext { vm, pmap: self.pmap(), entry, condemned: self.condemned(), va, access: Access::Read };
        let found = at.walk(Some(entry.front()), false, pin)?;
        let zeroes = match found {
            Walk::Page(found) => {
                if !found.page.try_hold() {
                    return Err(Attempt::Again);
                }
                // The frame is not reused while it is held. It has the right content if the page's identity is
                // unchanged since the walk.
                let now = found.page.state();
                let same = !now.busy() && now.valid() && now.generation() == found.state.generation();
                if same {
                    // SAFETY: the copy stays within the frame, which is held, and within the buffer. A frame is no part
                    // of a kernel buffer.
                    unsafe {
                        let from = vm.machine().frame_ptr(vm.pfn_of_page(found.page)).add(within);
                        bytes::copy(from, to.as_mut_ptr(), to.len());
                    }
                }
                // The chain may have another page at this address now. A fork may have moved a page to a layer nearer
                // to the front, so that the walk missed it. Or the fork left this page to another space, which then
                // stored into it. So the copied bytes are valid only if a second walk finds the same page.
                let shows_again = || {
                    fence_full();
                    if entry.is_stale() {
                        return false;
                    }
                    let Ok(Walk::Page(again)) = at.walk(Some(entry.front()), false, pin) else { return false };
                    core::ptr::eq(again.page, found.page) && again.state.generation() == found.state.generation()
                };
                let shown = same && (mutant(Mutant::OneForeignLook) || shows_again());
                vm.unhold_page(found.page);
                return match shown {
                    true => Ok(()),
                    false if entry.is_stale() => Err(Attempt::Stale),
                    false => Err(Attempt::Again),
                };
            }
            Walk::Swapped(object, key, slot) => {
                return Err(PageIn::swapped(object, key, slot, pin).map_or(Attempt::Again, Attempt::PageIn));
            }
            Walk::Hole(object, key) if object.device().is_none() && !object.holes_are_zero() => {
                return Err(PageIn::new(object, key, pin).map_or(Attempt::Again, Attempt::PageIn));
            }
            // A device is not read, because a read may have side effects.
            Walk::Hole(object, _) => object.device().is_none(),
            Walk::Zero => true,
        };
        if !zeroes {
            return Err(Attempt::Fail(FaultError::Pager(PagerError::Device)));
        }
        // The hole is real only if no writer is replacing the entry (marked it stale). Such a writer may have moved the
        // pages.
        if entry.is_stale() {
            return Err(Attempt::Stale);
        }
        // `Space::reap` may have freed the pages of a condemned space, so the walk may find a hole where the program
        // had data.
        if self.is_condemned() {
            return Err(Attempt::Fail(FaultError::NotMapped));
        }
        to.fill(0);
        Ok(())
    }
}
