//! The system calls that wait for a signal.

use super::calls::check_len;
use super::{SigInfo, SigSet};
use crate::Ctx;
use crate::errno::Errno;
use crate::machine::Machine;
use crate::process::thread::{Thread, work};
use crate::time::Timespec;
use core::sync::atomic::{Ordering, fence};

impl<M: Machine> Ctx<'_, M> {
    /// Blocks `mask` until the call returns and its signals are delivered: for `sigsuspend`, `ppoll`, `pselect`, `epoll_pwait`.
    /// The old mask comes back on the way to user mode, after a handler that interrupts the call has saved it.
    pub fn set_temporary_mask(&mut self, mask: SigSet) {
        let before = self.thread.blocked();
        // SAFETY: a context is the owner's, and the view ends in this statement.
        let saved = unsafe { self.thread.saved_mask.get() }.is_some();
        if !saved {
            // SAFETY: the owner is here, and the view above has ended.
            unsafe { self.thread.saved_mask.replace(Some(before)) };
        }
        self.thread.work.fetch_or(work::RESTORE_MASK, Ordering::AcqRel);
        self.thread.set_blocked(mask);
    }
}

impl<M: Machine> Thread<M> {
    /// Ends a temporary mask: what was blocked before is blocked again. False where there is none. The thread itself calls it.
    pub(crate) fn restore_mask(&self) -> bool {
        if self.work.load(Ordering::Acquire) & work::RESTORE_MASK == 0 {
            return false;
        }
        self.work.fetch_and(!work::RESTORE_MASK, Ordering::AcqRel);
        // SAFETY: the thread itself calls this, and holds no view of the mask.
        let saved = unsafe { self.saved_mask.replace(None) };
        if let Some(mask) = saved {
            self.set_blocked(mask);
        }
        saved.is_some()
    }
}

/// `pause`
pub fn sys_pause<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    while !ctx.interrupted() {
        quire_sync::hooks::park(None);
    }
    Err(Errno::ERESTARTNOHAND)
}

/// `rt_sigsuspend`
pub fn sys_rt_sigsuspend<M: Machine>(ctx: &mut Ctx<'_, M>, mask: u64, len: usize) -> Result<usize, Errno> {
    check_len(len)?;
    let mask: SigSet = ctx.read(mask)?;
    ctx.set_temporary_mask(mask);
    sys_pause(ctx)
}

/// `rt_sigtimedwait`
pub fn sys_rt_sigtimedwait<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    set: u64,
    info: u64,
    timeout: u64,
    len: usize,
) -> Result<usize, Errno> {
    check_len(len)?;
    let wanted = ctx.read::<SigSet>(set)?.without(SigSet::UNBLOCKABLE);
    let deadline = match timeout {
        0 => None,
        at => Some(ctx.now().saturating_add(ctx.read::<Timespec>(at)?.nanos()?)),
    };
    let found = wait(ctx, wanted, deadline)?;
    if info != 0 {
        ctx.write(info, &found.encode())?;
    }
    Ok(usize::from(found.signal.number()))
}

fn wait<M: Machine>(ctx: &Ctx<'_, M>, wanted: SigSet, deadline: Option<u64>) -> Result<SigInfo, Errno> {
    let thread = ctx.thread;
    let take = || thread.pending.take(wanted).or_else(|| thread.process.pending.take(wanted));
    thread.awaited.store(wanted.0, Ordering::Release);
    fence(Ordering::SeqCst);
    let result = loop {
        // Senders raise the signal flag for what is awaited too: it is lowered before looking.
        thread.work.fetch_and(!work::SIGNAL, Ordering::AcqRel);
        if let Some(info) = take() {
            break Ok(info);
        }
        thread.look_for_signals();
        if thread.interrupted() {
            break Err(Errno::EINTR);
        }
        if deadline.is_some_and(|deadline| ctx.now() >= deadline) {
            break Err(Errno::EAGAIN);
        }
        quire_sync::hooks::park(deadline);
    };
    thread.awaited.store(0, Ordering::Release);
    fence(Ordering::SeqCst);
    // Who saw that it was awaited has told nobody else.
    let result = result.or_else(|why| take().ok_or(why));
    // What came for another reason while the flag was lowered.
    thread.look_for_signals();
    result
}
