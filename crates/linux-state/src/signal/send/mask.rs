//! Signal masks for one call.

use crate::Ctx;
use crate::machine::Machine;
use crate::process::thread::{SavedMask, Thread, work};
use crate::signal::set::SigSet;
use quire_sync::atomic::Ordering;

impl<M: Machine> Ctx<'_, M> {
    /// Blocks `mask` until the call returns and its signals are delivered: for `sigsuspend`, `ppoll`, `pselect`,
    /// `epoll_pwait`. The old mask is restored on the way to user mode; a handler that interrupts the call saves it in
    /// its frame.
    pub fn set_temporary_mask(&mut self, mask: SigSet) {
        let before = self.thread.blocked();
        // SAFETY: a context is the owner's, and the view ends in this statement.
        let saved = unsafe { self.thread.saved_mask.get() }.is_some();
        if !saved {
            // SAFETY: the owner is here, and the view above has ended.
            unsafe { self.thread.saved_mask.replace(Some(SavedMask::new(before))) };
        }
        self.thread.work.fetch_or(work::RESTORE_MASK, Ordering::AcqRel);
        self.thread.set_blocked(mask);
    }
}

impl<M: Machine> Thread<M> {
    /// Ends a temporary mask: restores the old one. False if there is none. The thread itself calls it.
    pub fn restore_mask(&self) -> bool {
        if self.work.load(Ordering::Acquire) & work::RESTORE_MASK == 0 {
            return false;
        }
        self.work.fetch_and(!work::RESTORE_MASK, Ordering::AcqRel);
        // SAFETY: the thread itself calls this, and holds no view of the mask.
        let saved = unsafe { self.saved_mask.replace(None) };
        if let Some(mask) = saved {
            self.set_blocked(mask.get());
        }
        saved.is_some()
    }
}
