//! Holes of files in memory that private mappings only read: the frame of zeroes is mapped there, and they stay holes.
//!
//! # Against a CPU that fills the hole (relies on C2)
//! A private mapping shows the file's content until it is stored into. So the CPU that fills a hole removes the frame
//! of zeroes from the mappings that show it, before any CPU sees the new page's content:
//!
//! | load of a hole | fill |
//! |---|---|
//! | mark the object, fence | slot filled, page busy |
//! | lock the table page | fence, look at the mark |
//! | look at the slot: empty still | marked: remove the frame of zeroes wherever a backing shows the slot, flush |
//! | enter the frame of zeroes | unbusy the page |
//!
//! Either the fill sees the mark, or the load sees the slot. If the fill sees the mark, its pass finds the leaf, or the
//! load comes to the table page after it and finds the slot. (Mutants [`Mutant::NoHoleScan`] and
//! [`Mutant::NoHoleCheck`].)

use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use crate::object::batch::Batch;
use crate::object::{HOLES_SHOWN, Object};
use crate::rmap;
use quire_sync::atomic::{Ordering, fence_full};

impl<M: Machine> Object<M> {
    /// From this fence on, a CPU that fills a hole checks whether it is shown.
    pub(crate) fn show_holes(&self) {
        if self.flags.load(Ordering::Relaxed) & HOLES_SHOWN == 0 {
            self.flags.fetch_or(HOLES_SHOWN, Ordering::AcqRel);
        }
        fence_full();
    }

    /// The caller has put page `key` into its slot, busy, and has fenced after that. When this returns, no CPU reads
    /// zeroes there any more.
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
