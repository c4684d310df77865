//! The pre-zeroed stock: frames that idle CPUs have zeroed, so that a first touch need not.
//!
//! Each CPU keeps a few ([`Config::zero_stock`](crate::Config)) in its magazine, under its lock. The stock is taken
//! from the programs' frames, and goes back to the buddy lists with the rest of a magazine. No stock is made while
//! memory is low.

use crate::machine::Machine;
use crate::phys::Physical;
use crate::phys::page::FrameKind;
use crate::types::{PAGE_SIZE, Pfn};
use quire_sync::preempt_off;

impl<M: Machine> Physical<M> {
    /// Work that an idle CPU does before it halts: zeroes up to `budget` frames for later. Where the stock is full, it
    /// joins free frames into larger blocks. Returns whether it did anything; if so, there may be more.
    ///
    /// Preemption is off for one frame at a time.
    pub fn idle_zero(&self, budget: u32) -> bool {
        let mut done = 0;
        while done < budget && self.zero_one() {
            done += 1;
        }
        // Chains that lie in the depots while CPUs are idle will not be needed soon.
        done != 0 || (budget != 0 && self.frames().break_one())
    }

    /// Zeroed frames in this CPU's stock.
    pub fn zero_stock(&self) -> u32 {
        let cpu = preempt_off();
        self.frames().magazines.mine(&cpu).local.lock().zeroed.len
    }

    fn zero_one(&self) -> bool {
        let f = self.frames();
        let cpu = preempt_off();
        let local = &f.magazines.mine(&cpu).local;
        if f.is_low() || local.lock().zeroed.len >= f.stock {
            return false;
        }
        let Some((pfn, zeroed)) = self.pop_frame(super::Fill::Any, super::For::User) else { return false };
        if zeroed {
            // The frame came from the stock, so no other is left.
            local.lock().zeroed.push(&f.pages, pfn);
            return false;
        }
        // A frame that is on no list has an owner.
        self.page(pfn).set_kind(FrameKind::Unowned);
        // SAFETY: the frame was just taken off the free lists, so this CPU alone uses it.
        unsafe { self.machine().zero_frame(pfn) };
        self.page(pfn).set_kind(FrameKind::Cached);
        local.lock().zeroed.push(&f.pages, pfn);
        true
    }

    /// Where frees are poisoned, checks that no CPU has stored into a frame of the stock since it was zeroed.
    #[inline]
    pub(super) fn check_zeroed(&self, pfn: Pfn) {
        if self.poisons() {
            // SAFETY: the frame was just taken off the free lists, so nothing stores into it, and frames are aligned to
            // a page.
            let words = unsafe { &*self.machine().frame_ptr(pfn).cast::<[u64; PAGE_SIZE as usize / 8]>() };
            assert!(words.iter().all(|w| *w == 0), "a store was made into free frame {pfn:?}");
        }
    }
}
