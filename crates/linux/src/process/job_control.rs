//! Calls that make and change process groups and sessions.

use quire_heap::Arc;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::Process;
use quire_linux_state::process::group::{Move, Session, found, move_to};
use quire_linux_state::{Ctx, Pid};
use quire_sync::atomic::Ordering;

/// `setpgid`
pub fn sys_setpgid<M: Machine>(ctx: &mut Ctx<'_, M>, pid: i32, group: i32) -> Result<usize, Errno> {
    // A negative group id is invalid. If `group` is 0, the requested group is `pid`.
    if group < 0 || group == 0 && pid < 0 {
        return Err(Errno::EINVAL);
    }
    let me = ctx.process();
    let target = match pid {
        0 => me.clone(),
        pid if pid < 0 => return Err(Errno::ESRCH),
        pid => ctx.linux.ids.process_of_thread(pid as Pid).ok_or(Errno::ESRCH)?,
    };
    if pid != 0 && target.pid != pid as Pid {
        return Err(Errno::EINVAL);
    }
    let is_me = Arc::ptr_eq(&target, me);
    if !is_me {
        if !target.parent().is_some_and(|parent| Arc::ptr_eq(&parent, me)) {
            return Err(Errno::ESRCH);
        }
        if target.group().session.id != me.group().session.id {
            return Err(Errno::EPERM);
        }
        if target.execed.load(Ordering::Acquire) {
            return Err(Errno::EACCES);
        }
    }
    let session = target.group().session.clone();
    if session.id == target.pid {
        return Err(Errno::EPERM);
    }
    let id = if group == 0 { target.pid } else { group as Pid };
    loop {
        let moved = match ctx.linux.ids.group(id) {
            Some(existing) if existing.session.id == session.id => move_to(&target, &existing),
            None if id == target.pid => found(&target, session.clone())?,
            _ => return Err(Errno::EPERM),
        };
        match moved {
            Move::Done => return Ok(0),
            Move::Changed => {}
            Move::NoProcess => return Err(Errno::ESRCH),
        }
    }
}

/// `getpgid`
pub fn sys_getpgid<M: Machine>(ctx: &mut Ctx<'_, M>, pid: i32) -> Result<usize, Errno> {
    Ok(process_or_self(ctx, pid)?.group().id as usize)
}

/// `getpgrp`
pub fn sys_getpgrp<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    Ok(ctx.process().group().id as usize)
}

/// `getsid`
pub fn sys_getsid<M: Machine>(ctx: &mut Ctx<'_, M>, pid: i32) -> Result<usize, Errno> {
    Ok(process_or_self(ctx, pid)?.group().session.id as usize)
}

fn process_or_self<M: Machine>(ctx: &Ctx<'_, M>, pid: i32) -> Result<Arc<Process<M>>, Errno> {
    match pid {
        0 => Ok(ctx.process().clone()),
        pid => ctx.linux.ids.process_of_thread(pid as Pid).ok_or(Errno::ESRCH),
    }
}

/// `setsid`
pub fn sys_setsid<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    let me = ctx.process();
    let session = Arc::try_new(Session::new(me.pid))?;
    match found(me, session)? {
        Move::Done => Ok(me.pid as usize),
        Move::Changed | Move::NoProcess => Err(Errno::EPERM),
    }
}
