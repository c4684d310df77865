//! The system calls for signal actions, masks and sending.

use crate::process::pidfd::process_or_directory_of;
use quire_heap::Arc;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::stage::Stage;
use quire_linux_state::signal::action::{Action, flag};
use quire_linux_state::signal::info::{SIGINFO_LEN, code};
use quire_linux_state::signal::send::discard_ignored;
use quire_linux_state::signal::{SigInfo, SigSet, Signal};
use quire_linux_state::{Ctx, Pid, Process};
use quire_task::ThreadRef;

/// The size of the kernel's `sigset_t` in bytes, which programs must pass.
pub(super) const SET_LEN: usize = 8;

pub(super) fn check_len(len: usize) -> Result<(), Errno> {
    if len == SET_LEN { Ok(()) } else { Err(Errno::EINVAL) }
}

/// `rt_sigaction`
pub fn sys_rt_sigaction<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    signal: u32,
    new: u64,
    old: u64,
    len: usize,
) -> Result<usize, Errno> {
    check_len(len)?;
    let signal = Signal::new(u64::from(signal))?;
    let wanted = if new == 0 { None } else { Some(ctx.read::<Action>(new)?) };
    if wanted.is_some() && SigSet::UNBLOCKABLE.has(signal) {
        return Err(Errno::EINVAL);
    }
    let process = ctx.process();
    let mut before = process.with_actions(|actions| actions.get(signal));
    if let Some(mut action) = wanted {
        action.flags &= flag::KNOWN;
        action.mask = action.mask.without(SigSet::UNBLOCKABLE);
        // An equal action is not stored. So a process that shares frozen actions after a fork needs no copy of them.
        if action != before {
            // SAFETY: a context is of a thread of its process, and this function holds no view of the actions.
            unsafe { process.own_actions() }?;
            before = process.with_actions(|actions| actions.put(signal, action))?;
        }
    }
    if wanted.is_some_and(|action| action.ignores(signal)) {
        discard_ignored(process, signal);
    }
    ctx.write_optional(old, &before)?;
    Ok(0)
}

/// `rt_sigprocmask`
pub fn sys_rt_sigprocmask<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    how: u32,
    new: u64,
    old: u64,
    len: usize,
) -> Result<usize, Errno> {
    check_len(len)?;
    let before = ctx.thread.blocked();
    if new != 0 {
        let set: SigSet = ctx.read(new)?;
        let after = match how {
            0 => before.or(set),
            1 => before.without(set),
            2 => set,
            _ => return Err(Errno::EINVAL),
        };
        ctx.thread.set_blocked(after);
    }
    ctx.write_optional(old, &before)?;
    Ok(0)
}

/// `rt_sigpending`
pub fn sys_rt_sigpending<M: Machine>(ctx: &mut Ctx<'_, M>, to: u64, len: usize) -> Result<usize, Errno> {
    if len > SET_LEN {
        return Err(Errno::EINVAL);
    }
    let pending = ctx.thread.pending.set().or(ctx.process().pending.set()).and(ctx.thread.blocked());
    ctx.user().write_bytes(to, &pending.0.to_le_bytes()[..len])?;
    Ok(0)
}

/// Whether the caller may send `signal` to `process`. `None` means a check without a signal.
fn may<M: Machine>(ctx: &Ctx<'_, M>, process: &Process<M>, signal: Option<Signal>) -> bool {
    // Any process may send SIGCONT to a process of its own session.
    let same_session = || process.group().session.id == ctx.process().group().session.id;
    core::ptr::eq(process, &**ctx.process())
        || ctx.credentials().may_signal(&process.credentials())
        || (signal == Some(Signal::CONT) && same_session())
}

/// `kill`
pub fn sys_kill<M: Machine>(ctx: &mut Ctx<'_, M>, pid: i32, signal: i32) -> Result<usize, Errno> {
    let signal = Signal::or_none(signal)?;
    let info = signal.map(|signal| ctx.process().as_sender(signal, ctx.credentials().real_user));
    match pid {
        1.. => {
            let process = ctx.linux.ids.process_of_thread(pid as Pid).ok_or(Errno::ESRCH)?;
            if !may(ctx, &process, signal) {
                return Err(Errno::EPERM);
            }
            if let Some(info) = info {
                ctx.linux.signal_process(&process, info)?;
            }
        }
        -1 => {
            // The signal goes to all processes except process 1 and the caller.
            let (mut found, mut allowed) = (false, false);
            let _broadcast = info.map(|_| ctx.linux.broadcasts.begin());
            for process in ctx.linux.ids.processes() {
                if process.pid == 1 || Arc::ptr_eq(&process, ctx.process()) {
                    continue;
                }
                found = true;
                if may(ctx, &process, signal) {
                    allowed = true;
                    if let Some(info) = info {
                        ctx.linux.signal_process(&process, info)?;
                    }
                }
            }
            match (found, allowed) {
                (false, _) => return Err(Errno::ESRCH),
                (true, false) => return Err(Errno::EPERM),
                _ => {}
            }
        }
        i32::MIN => return Err(Errno::ESRCH),
        _ => {
            let group =
                if pid == 0 { ctx.process().group() } else { ctx.linux.ids.group(-pid as Pid).ok_or(Errno::ESRCH)? };
            group.signal(info, |process| may(ctx, process, signal))?;
        }
    }
    Ok(0)
}

fn thread_of<M: Machine>(ctx: &Ctx<'_, M>, group: Option<i32>, tid: i32) -> Result<ThreadRef<M>, Errno> {
    if tid <= 0 || group.is_some_and(|group| group <= 0) {
        return Err(Errno::EINVAL);
    }
    let task = ctx.linux.ids.thread(tid as Pid).ok_or(Errno::ESRCH)?;
    let in_group =
        task.payload().as_ref().is_some_and(|thread| group.is_none_or(|group| thread.process.pid == group as Pid));
    if in_group { Ok(task) } else { Err(Errno::ESRCH) }
}

fn signal_thread<M: Machine>(
    ctx: &Ctx<'_, M>,
    group: Option<i32>,
    tid: i32,
    signal: Option<Signal>,
    info: Option<SigInfo>,
) -> Result<usize, Errno> {
    let own = tid == ctx.thread.tid() as i32 && group.is_none_or(|group| group == ctx.pid() as i32);
    if own && signal != Some(Signal::KILL) {
        // The target is the calling thread itself (`raise`), so no lookup by id is needed.
        if let Some(info) = info {
            ctx.linux.signal_thread(&ctx.linux.scheduler.current(), info)?;
        }
        return Ok(0);
    }
    let task = thread_of(ctx, group, tid)?;
    let Some(thread) = task.payload() else { return Err(Errno::ESRCH) };
    if !may(ctx, &thread.process, signal) {
        return Err(Errno::EPERM);
    }
    match info {
        // SIGKILL to any thread ends the whole process.
        Some(info) if info.signal == Signal::KILL => ctx.linux.signal_process(&thread.process, info)?,
        Some(info) => ctx.linux.signal_thread(&task, info)?,
        None => {}
    }
    Ok(0)
}

fn from_thread<M: Machine>(ctx: &Ctx<'_, M>, signal: Option<Signal>) -> Option<SigInfo> {
    signal.map(|signal| SigInfo { code: code::TKILL, ..ctx.process().as_sender(signal, ctx.credentials().real_user) })
}

/// `tkill`
pub fn sys_tkill<M: Machine>(ctx: &mut Ctx<'_, M>, tid: i32, signal: i32) -> Result<usize, Errno> {
    let signal = Signal::or_none(signal)?;
    signal_thread(ctx, None, tid, signal, from_thread(ctx, signal))
}

/// `tgkill`
pub fn sys_tgkill<M: Machine>(ctx: &mut Ctx<'_, M>, group: i32, tid: i32, signal: i32) -> Result<usize, Errno> {
    let signal = Signal::or_none(signal)?;
    signal_thread(ctx, Some(group), tid, signal, from_thread(ctx, signal))
}

/// Reads and checks the signal information that a program supplies. Codes of the kernel and of `tkill` are allowed only
/// if the program signals itself. `None` for signal 0, which only checks that the target exists.
fn made_up<M: Machine>(ctx: &Ctx<'_, M>, signal: i32, at: u64, to_self: bool) -> Result<Option<SigInfo>, Errno> {
    let signal = Signal::or_none(signal)?;
    let raw: [u8; SIGINFO_LEN] = ctx.read(at)?;
    // The check of the code does not depend on the signal. So SIGHUP stands for signal 0, which is no valid `Signal`.
    let info = SigInfo::decode(signal.unwrap_or(Signal::HUP), &raw);
    if (info.code >= 0 || info.code == code::TKILL) && !to_self {
        return Err(Errno::EPERM);
    }
    Ok(signal.map(|_| info))
}

/// `rt_sigqueueinfo`
pub fn sys_rt_sigqueueinfo<M: Machine>(ctx: &mut Ctx<'_, M>, pid: i32, signal: i32, info: u64) -> Result<usize, Errno> {
    let to_self = pid == ctx.pid() as i32;
    let info = made_up(ctx, signal, info, to_self)?;
    let process = ctx.linux.ids.process_of_thread(pid as Pid).ok_or(Errno::ESRCH)?;
    if !may(ctx, &process, info.as_ref().map(|info| info.signal)) {
        return Err(Errno::EPERM);
    }
    if let Some(info) = info {
        ctx.linux.signal_process(&process, info)?;
    }
    Ok(0)
}

/// `rt_tgsigqueueinfo`
pub fn sys_rt_tgsigqueueinfo<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    group: i32,
    tid: i32,
    signal: i32,
    info: u64,
) -> Result<usize, Errno> {
    let info = made_up(ctx, signal, info, group == ctx.pid() as i32)?;
    signal_thread(ctx, Some(group), tid, info.as_ref().map(|info| info.signal), info)
}

/// `pidfd_send_signal`
pub fn sys_pidfd_send_signal<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    pidfd: i32,
    signal: i32,
    info: u64,
    flags: u32,
) -> Result<usize, Errno> {
    const THREAD: u32 = 1;
    const PROCESS: u32 = 2;
    const GROUP: u32 = 4;
    if !matches!(flags, 0 | THREAD | PROCESS | GROUP) {
        return Err(Errno::EINVAL);
    }
    let process = process_or_directory_of(ctx, pidfd)?;
    let signal = Signal::or_none(signal)?;
    let info = match info {
        0 => signal.map(|signal| ctx.process().as_sender(signal, ctx.credentials().real_user)),
        at => {
            let raw: [u8; SIGINFO_LEN] = ctx.read(at)?;
            let number = signal.map_or(0, Signal::number);
            if raw[..4] != u32::from(number).to_le_bytes() {
                return Err(Errno::EINVAL);
            }
            let to_self = process.pid == ctx.thread.tid() && flags != GROUP;
            let info = SigInfo::decode(signal.unwrap_or(Signal::CONT), &raw);
            if (info.code >= 0 || info.code == code::TKILL) && !to_self {
                return Err(Errno::EPERM);
            }
            signal.map(|_| info)
        }
    };
    if process.stage() == Stage::Reaped {
        return Err(Errno::ESRCH);
    }
    if flags == GROUP {
        let group = ctx.linux.ids.group(process.pid).ok_or(Errno::ESRCH)?;
        group.signal(info, |process| may(ctx, process, signal))?;
        return Ok(0);
    }
    if flags == THREAD && process.stage() == Stage::Alive {
        return signal_thread(ctx, None, process.pid as i32, signal, info);
    }
    if !may(ctx, &process, signal) {
        return Err(Errno::EPERM);
    }
    if let Some(info) = info {
        ctx.linux.signal_process(&process, info)?;
    }
    Ok(0)
}
