//! The system calls that wait for a signal.

use crate::signal::calls::check_len;
use quire_linux_state::Ctx;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::sleep::{SignalWait, Sleep};
use quire_linux_state::signal::SigSet;
use quire_linux_state::signal::receiver::Wait;
use quire_linux_state::time::Timespec;

/// `pause`
pub fn sys_pause<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    if ctx.interrupted() { Err(Errno::ERESTARTNOHAND) } else { Err(ctx.sleep(Sleep::Signal, None)) }
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

/// Continues after a wake-up: returns a signal, or sleeps again.
pub(crate) fn go_on<M: Machine>(ctx: &mut Ctx<'_, M>, sleep: SignalWait) -> Result<usize, Errno> {
    wait(ctx, sleep)
}

/// Takes an awaited signal. If none is pending, the thread sleeps without a kernel stack until one may have arrived.
fn wait<M: Machine>(ctx: &mut Ctx<'_, M>, sleep: SignalWait) -> Result<usize, Errno> {
    let SignalWait { wanted, info, deadline } = sleep;
    let thread = ctx.thread;
    let ends = || {
        if thread.interrupted() {
            Some(Errno::EINTR)
        } else if deadline.is_some_and(|deadline| ctx.now() >= deadline) {
            Some(Errno::EAGAIN)
        } else {
            None
        }
    };
    let found = match thread.receiver().wait(wanted, || thread.take_pending(wanted), ends) {
        Wait::GoesOn => return Err(ctx.sleep(Sleep::Awaited(sleep), sleep.deadline)),
        Wait::Over { result, left } => {
            thread.hand_on(left);
            result?
        }
    };
    if info != 0 {
        ctx.write(info, &found.encode())?;
    }
    Ok(usize::from(found.signal.number()))
}
