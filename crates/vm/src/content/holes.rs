//! Holes of files in memory under private mappings. A load maps the shared frame of zeroes, and the hole stays a hole.
//!
//! # Against a CPU that fills the hole (relies on C2)
//! A private mapping shows the file's content until a store makes a private page. So the CPU that fills a hole first
//! removes the frame of zeroes from all mappings of the hole. Only then can a CPU see the new page's content:
//!
//! | load of a hole (fault) | fill of the hole |
//! |---|---|
//! | mark the object, fence | fill the slot with a busy page |
//! | lock the table page | fence, read the mark |
//! | check that the slot is still empty | if marked: remove the frame of zeroes from all mappings of the slot, flush |
//! | enter the frame of zeroes | unbusy the page |
//!
//! Either the fill sees the mark, or the load sees the filled slot. If the fill sees the mark, its scan finds the
//! load's leaf. Or the load locks the table page after the scan, and sees the filled slot. (Mutants
//! [`Mutant::NoHoleScan`] and [`Mutant::NoHoleCheck`].)

use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::object::batch::Batch;
use crate::object::{HOLES_SHOWN, Object};
use crate::rmap;
use quire_sync::atomic::{Ordering, fence_full};

impl<M: Machine> Object<M> {
    /// Marks the object, and fences. From then on, a CPU that fills a hole removes the frame of zeroes from its
    /// mappings.
    pub(crate) fn show_holes(&self) {
        if self.flags.load(Ordering::Relaxed) & HOLES_SHOWN == 0 {
            self.flags.fetch_or(HOLES_SHOWN, Ordering::AcqRel);
        }
        fence_full();
    }

    /// Removes the frame of zeroes from all mappings of page `key`. The caller has put the busy page into its slot, and
    /// has issued a full fence after that. When this returns, no CPU reads the frame of zeroes there any more.
    #[inline(always)]
    pub(crate) fn hole_is_filled(&self, key: u64) {
        if self.flags.load(Ordering::Relaxed) & HOLES_SHOWN != 0 && !mutant(Mutant::NoHoleScan) {
            self.hide_zeroes(key);
        }
    }

    #[cold]
    fn hide_zeroes(&self, key: u64) {
        let mut batch = Batch::new();
        batch.push(key, self.vm().zero_frame());
        let _flushed = rmap::unmap(self, &batch);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
