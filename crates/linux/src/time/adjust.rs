//! `adjtimex` and `clock_adjtime`.

use crate::time::clock::{REALTIME, check_day, is_other_clock};
use quire_linux_state::Ctx;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::time::SECOND;
use quire_linux_state::time::discipline::{Timex, at, check, mode, stepped};

/// Applies a request, and writes the answer to the address `to`.
fn change<M: Machine>(ctx: &Ctx<'_, M>, request: &mut Timex, to: u64) -> Result<usize, Errno> {
    let linux = ctx.linux;
    check(request, ctx.credentials().may(cap::SYS_TIME))?;
    if request[at::MODES] as u32 & mode::SET_OFFSET != 0 {
        linux.vdso.change_realtime(linux.machine, |now| {
            let new = stepped(request, now)?;
            check_day(new, true, || ctx.now())?;
            Ok(new)
        })?;
        linux.discipline.clear();
        linux.day_changed();
    }
    let values = linux.discipline.change(request, ctx.now() / SECOND);
    let state = values.tell(request, linux.machine.realtime());
    ctx.write(to, request)?;
    Ok(state)
}

/// `adjtimex`
pub fn sys_adjtimex<M: Machine>(ctx: &mut Ctx<'_, M>, from: u64) -> Result<usize, Errno> {
    let mut request: Timex = ctx.read(from)?;
    change(ctx, &mut request, from)
}

/// `clock_adjtime`
pub fn sys_clock_adjtime<M: Machine>(ctx: &mut Ctx<'_, M>, clock: i32, from: u64) -> Result<usize, Errno> {
    let mut request: Timex = ctx.read(from)?;
    match clock {
        REALTIME => change(ctx, &mut request, from),
        other if is_other_clock(other) => Err(Errno::EOPNOTSUPP),
        _ => Err(Errno::EINVAL),
    }
}
