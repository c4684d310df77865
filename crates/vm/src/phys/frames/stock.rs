//! The stock of zeroed frames. Idle CPUs zero these frames, so that a first touch need not zero a frame.
//!
//! Each CPU keeps a few zeroed frames ([`Config::zero_stock`](crate::Config)) in its magazine (its list of free
//! frames), under the magazine's lock. They are taken from the programs' frames, and return to the buddy lists when the
//! magazine is drained. CPUs zero no frames while memory is low.

use crate::machine::Machine;
use crate::phys::Physical;
use crate::phys::page::FrameKind;
use crate::types::{PAGE_SIZE, Pfn};
use quire_sync::preempt_off;

impl<M: Machine> Physical<M> {
    /// Work for an idle CPU before it halts: zeroes up to `budget` frames for later. If the stock is full, it breaks up
    /// a depot's chain, so that free frames join into larger blocks. Returns whether it did anything; if so, more work
    /// may be left.
    ///
    /// Preemption is off for one frame at a time.
    pub fn idle_zero(&self, budget: u32) -> bool {
        let mut done = 0;
        while done < budget && self.zero_one() {
            done += 1;
        }
        // Full chains that are in the depots while CPUs are idle will not be needed soon. So one is broken up, and its
        // frames can join into larger blocks.
        done != 0 || (budget != 0 && self.frames().break_one())
    }

    /// The number of zeroed frames in this CPU's stock.
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
            // The frame came from the stock itself, so no frame without zeroes is left.
            local.lock().zeroed.push(&f.pages, pfn);
            return false;
        }
        // The frame is on no list now, so it gets the kind of an owned frame.
        self.page(pfn).set_kind(FrameKind::Unowned);
        // SAFETY: the frame was just taken off the free lists, so this CPU alone uses it.
        unsafe { self.machine().zero_frame(pfn) };
        self.page(pfn).set_kind(FrameKind::Cached);
        local.lock().zeroed.push(&f.pages, pfn);
        true
    }

    /// If freed frames are poisoned, checks that no CPU has stored into a frame of the stock since it was zeroed.
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
