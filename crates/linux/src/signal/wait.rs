//! The system calls that wait for a signal.

use super::SigSet;
use super::calls::check_len;
use crate::Ctx;
use crate::errno::Errno;
use crate::machine::Machine;
use crate::process::sleep::{SignalWait, Sleep};
use crate::process::thread::work;
use crate::time::Timespec;
use quire_sync::atomic::{Ordering, fence};

/// `pause`
pub fn sys_pause<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    if ctx.interrupted() { Err(Errno::ERESTARTNOHAND) } else { Err(ctx.sleep(Sleep::Signal)) }
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
    wait(ctx, SignalWait { wanted, info, deadline })
}

/// Ends the wait, or sleeps on.
pub(crate) fn go_on<M: Machine>(ctx: &mut Ctx<'_, M>, sleep: SignalWait) -> Result<usize, Errno> {
    wait(ctx, sleep)
}

/// Takes an awaited signal. If there is none, the thread sleeps without a kernel stack until one may have come.
fn wait<M: Machine>(ctx: &mut Ctx<'_, M>, sleep: SignalWait) -> Result<usize, Errno> {
    let SignalWait { wanted, info, deadline } = sleep;
    let thread = ctx.thread;
    let take = || thread.take_pending(wanted);
    thread.awaited.store(wanted.0, Ordering::Release);
    fence(Ordering::SeqCst);
    // Senders set the signal flag for awaited signals too, so it is cleared before the check.
    thread.work.fetch_and(!work::SIGNAL, Ordering::AcqRel);
    let result = take().ok_or_else(|| {
        thread.look_for_signals();
        if thread.interrupted() {
            Some(Errno::EINTR)
        } else if deadline.is_some_and(|deadline| ctx.now() >= deadline) {
            Some(Errno::EAGAIN)
        } else {
            None
        }
    });
    let result = match result {
        Ok(info) => Ok(info),
        Err(Some(why)) => Err(why),
        // The signals stay awaited.
        Err(None) => return Err(ctx.sleep(Sleep::Awaited(sleep))),
    };
    thread.awaited.store(0, Ordering::Release);
    fence(Ordering::SeqCst);
    // A sender that saw the signal awaited has notified no other thread.
    let result = result.or_else(|why| take().ok_or(why));
    // Sets the flag for other signals that came while it was clear.
    thread.look_for_signals();
    let found = result?;
    if info != 0 {
        ctx.write(info, &found.encode())?;
    }
    Ok(usize::from(found.signal.number()))
}
