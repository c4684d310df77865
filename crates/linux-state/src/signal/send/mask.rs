//! Signal masks that hold for one system call.

use crate::Ctx;
use crate::machine::Machine;
use crate::process::thread::{SavedMask, Thread, work};
use crate::signal::set::SigSet;
use quire_sync::atomic::Ordering;

impl<M: Machine> Ctx<'_, M> {
    /// Blocks `mask` until the call has returned and its signals are delivered: for `sigsuspend`, `ppoll`, `pselect`,
    /// `epoll_pwait`. The thread restores the old mask on its way to user mode. If a handler interrupts the call, the
    /// old mask is saved in the handler's frame.
    pub fn set_temporary_mask(&mut self, mask: SigSet) {
        let before = self.thread.blocked();
        // SAFETY: the thread of a context runs this, and the view ends with this statement.
        let saved = unsafe { self.thread.saved_mask.get() }.is_some();
        if !saved {
            // SAFETY: the thread of a context runs this, and the view above has ended.
            unsafe { self.thread.saved_mask.replace(Some(SavedMask::new(before))) };
        }
        self.thread.work.fetch_or(work::RESTORE_MASK, Ordering::AcqRel);
        self.thread.set_blocked(mask);
    }
}

impl<M: Machine> Thread<M> {
    /// Restores the mask from before a temporary mask. False if there is no temporary mask. Called by the thread
    /// itself.
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
