//! Access by force: a debugger reads and stores where the program itself may not.
//!
//! A forced store needs no right of the mapping, but the right that `protect` could give it ([`max_prot`]), and private
//! memory, so that no other program sees the store. It copies the page into the front first, as a copy-on-write fault
//! does. No leaf is installed, because a leaf of an inaccessible mapping would let the program read it.
//!
//! The store goes to the frame of the mapping's own page, whose hold keeps the frame. The arena's writer is held, so no
//! fork shares the page and no operation moves it. Pageout may take it: then its busy bit or its generation shows that,
//! and the store is done again. The page is dirty before the store (relies on C2).
//!
//! [`max_prot`]: crate::map::Attributes::max_prot

use crate::error::{FaultError, MapError, PagerError};
use crate::fault::{Attempt, FaultContext, Walk};
use crate::machine::{Machine, Pmap};
use crate::map::entry::{Entry, Flags};
use crate::map::space::Space;
use crate::map::update::Update;
use crate::map::update::pte_update::Work;
use crate::paging::page_in::PageIn;
use crate::paging::waiting::Patience;
use crate::phys::frames::Fill;
use crate::sleep::MaySleep;
use crate::tlb::flush::Obligation;
use crate::types::{Access, PAGE_SIZE, Prot, VirtRange};
use quire_sync::atomic::fence_full;
use quire_sync::epoch::Pinned;

/// The state of a forced store's attempt.
enum Step {
    /// The bytes are stored.
    Stored,
    /// The entry needs a front of its own first.
    NeedsFront,
}

impl<M: Machine> Space<M> {
    /// As [`Space::store`], also into private memory that the program may not store into.
    pub fn force_store(&self, va: u64, from: &[u8]) -> Result<usize, FaultError> {
        let mut done = 0;
        while done < from.len() {
            let Some(at) = va.checked_add(done as u64).filter(|at| M::Pmap::USER.contains(*at)) else {
                return if done > 0 { Ok(done) } else { Err(FaultError::NotMapped) };
            };
            let n = ((PAGE_SIZE - at % PAGE_SIZE) as usize).min(from.len() - done);
            let part = &from[done..done + n];
            let stored = match self.store(at, part) {
                Err(FaultError::Protection) => self.force_in_page(at, part),
                stored => stored.map(drop),
            };
            match stored {
                Ok(()) => done += n,
                Err(_) if done > 0 => return Ok(done),
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }

    /// Stores within a page of private memory that the program may not store into.
    fn force_in_page(&self, at: u64, from: &[u8]) -> Result<(), FaultError> {
        let (mut patience, mut may) = (Patience::new(), MaySleep::here());
        loop {
            let writer = self.keep_writers_out(at);
            let pin = may.pin(self.vm().epoch());
            let attempt = self.try_force(at, from, &pin);
            drop(pin);
            drop(writer);
            match attempt {
                Ok(Step::Stored) => return Ok(()),
                Ok(Step::NeedsFront) => match self.give_front(at) {
                    Err(MapError::OutOfMemory) => self.vm().memory_or_error(&mut patience, &mut may)?,
                    Err(_) => return Err(FaultError::OutOfMemory),
                    Ok(()) => {}
                },
                Err(Attempt::Fail(FaultError::OutOfMemory)) => self.vm().memory_or_error(&mut patience, &mut may)?,
                Err(Attempt::Fail(e)) => return Err(e),
                // No writer will replace the entry of a condemned space.
                Err(Attempt::Stale) if self.is_condemned() => return Err(FaultError::OutOfMemory),
                Err(Attempt::Again | Attempt::Progress | Attempt::Stale) => quire_sync::hooks::relax(),
                Err(Attempt::Busy(page)) => self.vm().wait_unbusy(page, &mut may),
                Err(Attempt::PageIn(read)) => match read.run(&mut may) {
                    Err(FaultError::OutOfMemory) => self.vm().memory_or_error(&mut patience, &mut may)?,
                    done => done.map(|()| patience.served())?,
                },
                // Of shared memory only.
                Err(Attempt::Hook(_)) => return Err(FaultError::Pager(PagerError::Failed)),
            }
        }
    }

    /// One attempt, under one pin.
    ///
    /// # Requires
    /// The arena's writers are kept out.
    fn try_force(&self, at: u64, from: &[u8], pin: &Pinned<'_>) -> Result<Step, Attempt<M>> {
        let vm = self.vm();
        let (va, within) = (at & !(PAGE_SIZE - 1), (at % PAGE_SIZE) as usize);
        let Some(entry) = self.lookup(va, pin) else { return Err(Attempt::Fail(FaultError::NotMapped)) };
        let a = entry.attributes();
        if entry.shared() || !a.max_prot.contains(Prot::WRITE) {
            return Err(Attempt::Fail(FaultError::Protection));
        }
        if entry.flags().contains(Flags::NEEDS_FRONT) {
            return Ok(Step::NeedsFront);
        }
        let context =
            FaultContext { vm, pmap: self.pmap(), entry, condemned: self.condemned(), va, access: Access::Write };
        context.check_entry()?;
        let found = match context.walk(Some(entry.front()), false, pin)? {
            Walk::Page(found) => found,
            Walk::Swapped(object, key, slot) => {
                return Err(PageIn::swapped(object, key, slot, pin).map_or(Attempt::Again, Attempt::PageIn));
            }
            Walk::Hole(object, _) if object.device().is_some() => {
                return Err(Attempt::Fail(FaultError::Pager(PagerError::Device)));
            }
            Walk::Hole(object, key) if !object.holes_are_zero() => {
                return Err(PageIn::new(object, key, pin).map_or(Attempt::Again, Attempt::PageIn));
            }
            Walk::Hole(..) | Walk::Zero => return context.zeroes_to_front(pin).and(Err(Attempt::Progress)),
        };
        if !(found.object.is_private() && (found.depth == 0 || found.object.is_exclusive())) {
            return context.copy_up_page(&found, pin).and(Err(Attempt::Progress));
        }
        // Dirty before the store (relies on C2).
        found.page.set_dirty(found.state.generation());
        if self.store_in_frame(&found, within, from) { Ok(Step::Stored) } else { Err(Attempt::Again) }
    }

    /// Gives the entry at `va` a front of its own, as a change of its protection that allows stores would.
    fn give_front(&self, va: u64) -> Result<(), MapError> {
        let (writer, _) = self.write_at(va);
        let Some(entry) = writer.get(va).filter(|e| e.flags().contains(Flags::NEEDS_FRONT)) else { return Ok(()) };
        let range = entry.range();
        let mut update = Update::new(self, writer, range);
        update.change(range, |e: &Entry<M>| {
            let mut a = e.attributes();
            a.flags -= Flags::NEEDS_FRONT;
            a
        })?;
        // Leaves of the layers behind stay as they are: they allow no stores.
        update.apply(Work::None)
    }
}

impl<'e, M: Machine> FaultContext<'e, M> {
    /// Puts a page of zeroes into the front, where no layer has one, and takes the leaf of a hole away.
    fn zeroes_to_front(&self, pin: &'e Pinned<'_>) -> Result<(), Attempt<M>> {
        let front = self.entry.front();
        let Some(own) = front.touch(pin)? else { return Err(Attempt::Stale) };
        let new = self.insert(own, front.key(self.va), Fill::Zeroed, true, pin)?;
        let range = VirtRange { start: self.va, end: self.va + PAGE_SIZE };
        let mut owed = Obligation::new(self.vm, self.pmap);
        let is_linked = self.pmap.next_table(self.vm, range).is_some();
        match is_linked {
            true => _ = self.take_away(&mut owed, pin)?,
            // The table page was unlinked, and the removal of its leaves may be unflushed.
            false if self.pmap.unflushed_above(self.vm, self.va) => owed.owe_again(self.va),
            false => {}
        }
        let _flushed = owed.discharge();
        new.complete();
        fence_full();
        self.check_entry()?;
        self.check_source(&new, front, None, pin)?;
        new.keep();
        Ok(())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::machine::FrameBytes;
    use crate::map::{MapRequest, Placement};
    use crate::object::ObjectRef;
    use crate::testing::page;
    use crate::tests::{anonymous, load, range, show, store, system};

    fn byte(space: &Space<crate::testing::TestMachine>, n: u64) -> u8 {
        let mut one = [0];
        space.force_read(page(n), &mut one).unwrap();
        one[0]
    }

    #[test]
    fn a_forced_store_changes_private_memory_without_the_right() {
        let m = system();
        let space = Space::new(m.vm).unwrap();
        anonymous(&space, 0, 4);
        store(&space, page(0), 7);
        for prot in [Prot::READ, Prot::empty()] {
            space.protect(range(0, 4), prot).unwrap();
            // A present page, and an absent one.
            assert_eq!(space.force_store(page(0) + 5, &[1, 2, 3]), Ok(3));
            assert_eq!(space.force_store(page(2) - 2, &[4; 4]), Ok(4));
            assert_eq!(space.store(page(0), &[1]), Err(FaultError::Protection));
            assert_eq!(byte(&space, 2), 4);
            let refused = if prot.is_empty() { Err(FaultError::Protection) } else { Ok(crate::FaultKind::Resident) };
            assert_eq!(space.fault(page(2), Access::Read), refused, "no leaf");
            space.check(true).unwrap();
        }
        space.protect(range(0, 4), Prot::READ | Prot::WRITE).unwrap();
        assert_eq!(
            [load(&space, page(0)), load(&space, page(0) + 5), load(&space, page(1)), load(&space, page(2))],
            [7, 1, 0, 4]
        );
        space.check(true).unwrap();
    }

    #[test]
    fn a_forced_store_into_a_private_file_mapping_leaves_the_file() {
        let m = system();
        let file = ObjectRef::anonymous(m.vm, 4).unwrap();
        file.write(0, PAGE_SIZE as usize, &mut |b| -> Result<_, ()> {
            b.fill(3);
            Ok(b.len())
        })
        .unwrap();
        let space = Space::new(m.vm).unwrap();
        let r = MapRequest {
            prot: Prot::READ,
            object: Some((&file, 0)),
            ..MapRequest::private(Placement::Fixed(page(0)), 4 * PAGE_SIZE)
        };
        space.map(&r).unwrap();
        // A leaf of the file's page, and one of its hole.
        assert_eq!([load(&space, page(0)), load(&space, page(1))], [3, 0]);
        assert_eq!(space.force_store(page(0), &[9]), Ok(1));
        assert_eq!(space.force_store(page(1), &[8]), Ok(1));
        assert_eq!(space.force_store(page(2), &[6]), Ok(1));
        assert_eq!([0, 1, 2, 3].map(|n| load(&space, page(n))), [9, 8, 6, 0]);
        assert_eq!(load(&space, page(0) + 1), 3, "the rest of the page was copied");
        let mut first = [0];
        file.read(0, 1, &mut |b: FrameBytes<'_>| -> Result<_, ()> { Ok(b.copy_to(&mut first)) }).unwrap();
        assert_eq!(first, [3]);
        space.check(true).unwrap();
    }

    #[test]
    fn a_forced_store_after_a_fork_is_not_seen_by_the_other_side() {
        let m = system();
        let space = Space::new(m.vm).unwrap();
        anonymous(&space, 0, 2);
        store(&space, page(0), 7);
        space.protect(range(0, 2), Prot::READ).unwrap();
        let child = space.fork().unwrap();
        assert_eq!(space.force_store(page(0), &[1]), Ok(1));
        assert_eq!(child.force_store(page(1), &[2]), Ok(1));
        assert_eq!([load(&space, page(0)), load(&space, page(1))], [1, 0]);
        assert_eq!([load(&child, page(0)), load(&child, page(1))], [7, 2]);
        space.check(true).unwrap();
        child.check(true).unwrap();
    }

    #[test]
    fn shared_memory_refuses_a_forced_store() {
        let m = system();
        let space = Space::new(m.vm).unwrap();
        let file = ObjectRef::anonymous(m.vm, 4).unwrap();
        show(&space, 0, 4, &file, true);
        space.protect(range(0, 4), Prot::READ).unwrap();
        assert_eq!(space.force_store(page(0), &[1]), Err(FaultError::Protection));
        assert_eq!(space.force_store(page(9), &[1]), Err(FaultError::NotMapped));
    }
}
