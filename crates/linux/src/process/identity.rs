//! Calls that read and change the ids, the credentials and the personality of the caller.

use quire_heap::{Arc, Vec};
use quire_linux_state::Ctx;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::credentials::Credentials;
use quire_linux_state::process::credentials::capabilities::{Caps, LAST, cap};
use quire_sync::atomic::Ordering;

/// Linux's NGROUPS_MAX.
const MOST_GROUPS: usize = 65_536;
/// The value that leaves an id unchanged, in calls that set several ids.
const KEEP: u32 = u32::MAX;

/// Moves the calling thread to `user`: its charge, and its share of CPU time. As on Linux, EAGAIN if memory for a new
/// user is exhausted.
fn change_user<M: Machine>(ctx: &Ctx<'_, M>, user: u32) -> Result<(), Errno> {
    let user_charge = ctx.linux.users.charge_thread(user).map_err(|_| Errno::EAGAIN)?;
    let over =
        user != 0 && user_charge.exceeds(ctx.process().soft_limit(quire_linux_state::process::limits::which::NPROC));
    ctx.thread.over_limit.store(over, quire_sync::atomic::Ordering::Relaxed);
    // SAFETY: the thread itself runs this. The new charge keeps the new user's record alive. The old charge is returned
    // after the thread has left the old user.
    unsafe {
        ctx.linux.scheduler.become_user(user_charge.share());
        drop(ctx.thread.user_charge.replace(user_charge));
    }
    Ok(())
}

/// Changes the credentials of the calling thread only. As on Linux, libc repeats the call in each thread of the
/// program.
fn change<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    edit: impl FnOnce(&mut Credentials) -> Result<(), Errno>,
) -> Result<usize, Errno> {
    let mut new = ctx.credentials().clone();
    edit(&mut new)?;
    if new.real_user != ctx.credentials().real_user {
        change_user(ctx, new.real_user)?;
    }
    ctx.thread.become_user(new);
    Ok(0)
}

/// Does the work of [`change`] for user ids, and adapts the capabilities to them.
fn change_users<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    edit: impl FnOnce(&mut Credentials) -> Result<(), Errno>,
) -> Result<usize, Errno> {
    change(ctx, |c| {
        let old = c.clone();
        edit(c)?;
        let mut capabilities = old.capabilities;
        capabilities.users_changed(&old, c);
        c.capabilities = capabilities;
        Ok(())
    })
}

/// `getuid`
pub fn sys_getuid<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    Ok(ctx.credentials().real_user as usize)
}
/// `geteuid`
pub fn sys_geteuid<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    Ok(ctx.credentials().effective_user as usize)
}
/// `getgid`
pub fn sys_getgid<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    Ok(ctx.credentials().real_group as usize)
}
/// `getegid`
pub fn sys_getegid<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    Ok(ctx.credentials().effective_group as usize)
}

/// `getresuid`
pub fn sys_getresuid<M: Machine>(ctx: &mut Ctx<'_, M>, real: u64, effective: u64, saved: u64) -> Result<usize, Errno> {
    let c = ctx.credentials();
    ctx.write(real, &c.real_user)?;
    ctx.write(effective, &c.effective_user)?;
    ctx.write(saved, &c.saved_user)?;
    Ok(0)
}
/// `getresgid`
pub fn sys_getresgid<M: Machine>(ctx: &mut Ctx<'_, M>, real: u64, effective: u64, saved: u64) -> Result<usize, Errno> {
    let c = ctx.credentials();
    ctx.write(real, &c.real_group)?;
    ctx.write(effective, &c.effective_group)?;
    ctx.write(saved, &c.saved_group)?;
    Ok(0)
}

/// `setuid`
pub fn sys_setuid<M: Machine>(ctx: &mut Ctx<'_, M>, id: u32) -> Result<usize, Errno> {
    change_users(ctx, |c| {
        if c.may(cap::SETUID) {
            c.real_user = id;
            c.saved_user = id;
        } else if id != c.real_user && id != c.saved_user {
            return Err(Errno::EPERM);
        }
        c.effective_user = id;
        c.file_user = id;
        Ok(())
    })
}
/// `setgid`
pub fn sys_setgid<M: Machine>(ctx: &mut Ctx<'_, M>, id: u32) -> Result<usize, Errno> {
    change(ctx, |c| {
        if c.may(cap::SETGID) {
            c.real_group = id;
            c.saved_group = id;
        } else if id != c.real_group && id != c.saved_group {
            return Err(Errno::EPERM);
        }
        c.effective_group = id;
        c.file_group = id;
        Ok(())
    })
}

/// `setreuid`
pub fn sys_setreuid<M: Machine>(ctx: &mut Ctx<'_, M>, real: u32, effective: u32) -> Result<usize, Errno> {
    change_users(ctx, |c| {
        let old = c.clone();
        if real != KEEP {
            if !old.may(cap::SETUID) && real != old.real_user && real != old.effective_user {
                return Err(Errno::EPERM);
            }
            c.real_user = real;
        }
        if effective != KEEP {
            if !old.has_user(effective) {
                return Err(Errno::EPERM);
            }
            c.effective_user = effective;
        }
        if real != KEEP || (effective != KEEP && effective != old.real_user) {
            c.saved_user = c.effective_user;
        }
        c.file_user = c.effective_user;
        Ok(())
    })
}
/// `setregid`
pub fn sys_setregid<M: Machine>(ctx: &mut Ctx<'_, M>, real: u32, effective: u32) -> Result<usize, Errno> {
    change(ctx, |c| {
        let old = c.clone();
        if real != KEEP {
            if !old.may(cap::SETGID) && real != old.real_group && real != old.effective_group {
                return Err(Errno::EPERM);
            }
            c.real_group = real;
        }
        if effective != KEEP {
            if !old.has_group(effective) {
                return Err(Errno::EPERM);
            }
            c.effective_group = effective;
        }
        if real != KEEP || (effective != KEEP && effective != old.real_group) {
            c.saved_group = c.effective_group;
        }
        c.file_group = c.effective_group;
        Ok(())
    })
}

/// `setresuid`
pub fn sys_setresuid<M: Machine>(ctx: &mut Ctx<'_, M>, real: u32, effective: u32, saved: u32) -> Result<usize, Errno> {
    change_users(ctx, |c| {
        let old = c.clone();
        for (new, field) in [(real, &mut c.real_user), (effective, &mut c.effective_user), (saved, &mut c.saved_user)] {
            if new != KEEP {
                if !old.has_user(new) {
                    return Err(Errno::EPERM);
                }
                *field = new;
            }
        }
        c.file_user = c.effective_user;
        Ok(())
    })
}
/// `setresgid`
pub fn sys_setresgid<M: Machine>(ctx: &mut Ctx<'_, M>, real: u32, effective: u32, saved: u32) -> Result<usize, Errno> {
    change(ctx, |c| {
        let old = c.clone();
        for (new, field) in
            [(real, &mut c.real_group), (effective, &mut c.effective_group), (saved, &mut c.saved_group)]
        {
            if new != KEEP {
                if !old.has_group(new) {
                    return Err(Errno::EPERM);
                }
                *field = new;
            }
        }
        c.file_group = c.effective_group;
        Ok(())
    })
}

/// `setfsuid`. Returns the old id, also if it was not changed.
pub fn sys_setfsuid<M: Machine>(ctx: &mut Ctx<'_, M>, id: u32) -> Result<usize, Errno> {
    let old = ctx.credentials().file_user;
    change(ctx, |c| {
        if id != u32::MAX && c.has_user(id) {
            c.capabilities.file_user_changed(c.file_user, id);
            c.file_user = id;
        }
        Ok(())
    })?;
    Ok(old as usize)
}
/// `setfsgid`. Returns the old id, also if it was not changed.
pub fn sys_setfsgid<M: Machine>(ctx: &mut Ctx<'_, M>, id: u32) -> Result<usize, Errno> {
    let old = ctx.credentials().file_group;
    change(ctx, |c| {
        if id != u32::MAX && c.has_group(id) {
            c.file_group = id;
        }
        Ok(())
    })?;
    Ok(old as usize)
}

/// `getgroups`
pub fn sys_getgroups<M: Machine>(ctx: &mut Ctx<'_, M>, size: i32, list: u64) -> Result<usize, Errno> {
    let c = ctx.credentials();
    let size = usize::try_from(size).map_err(|_| Errno::EINVAL)?;
    let groups = c.groups.as_ref().map_or(&[][..], |groups| &groups[..]);
    if size == 0 {
        return Ok(groups.len());
    }
    if size < groups.len() {
        return Err(Errno::EINVAL);
    }
    for (i, group) in groups.iter().enumerate() {
        ctx.write(list + 4 * i as u64, group)?;
    }
    Ok(groups.len())
}
/// `setgroups`
pub fn sys_setgroups<M: Machine>(ctx: &mut Ctx<'_, M>, size: usize, list: u64) -> Result<usize, Errno> {
    if !ctx.credentials().may(cap::SETGID) {
        return Err(Errno::EPERM);
    }
    let mut groups: Vec<u32> = ctx.user().read_many(list, size, MOST_GROUPS)?;
    groups.sort_unstable();
    let groups = if groups.is_empty() { None } else { Some(Arc::try_new(groups)?) };
    change(ctx, |c| {
        c.groups = groups;
        Ok(())
    })
}

/// Reads the header of `capget` and `capset`. Returns the number of words that each capability set has in the header's
/// version, and the process id. For an unknown version, the newest version is written back. The call then fails, unless
/// it only asks for the version.
fn capability_words<M: Machine>(ctx: &Ctx<'_, M>, header: u64, asks: bool) -> Result<Option<(usize, u32)>, Errno> {
    const VERSION_3: u32 = 0x2008_0522;
    let [version, pid] = ctx.read::<[u32; 2]>(header)?;
    match version {
        0x1998_0330 => Ok(Some((1, pid))),
        0x2007_1026 | VERSION_3 => Ok(Some((2, pid))),
        _ => {
            ctx.write(header, &VERSION_3)?;
            if asks { Ok(None) } else { Err(Errno::EINVAL) }
        }
    }
}

/// `capget`
pub fn sys_capget<M: Machine>(ctx: &mut Ctx<'_, M>, header: u64, data: u64) -> Result<usize, Errno> {
    let Some((words, pid)) = capability_words(ctx, header, data == 0)? else { return Ok(0) };
    if (pid as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    let c = match pid {
        0 => ctx.credentials().capabilities,
        pid if pid == ctx.thread.tid() => ctx.credentials().capabilities,
        pid => {
            let task = ctx.linux.ids.thread(pid);
            let of_thread = task.as_ref().and_then(|task| task.payload().as_ref());
            match of_thread {
                Some(thread) => thread.credentials.look(|c| c.capabilities),
                // The thread has ended, but the id still leads to its process.
                None => ctx.linux.ids.process(pid).ok_or(Errno::ESRCH)?.credentials().capabilities,
            }
        }
    };
    if data == 0 {
        return Ok(0);
    }
    for word in 0..words {
        let half = |set: Caps| (set.0 >> (32 * word)) as u32;
        ctx.write(data + 12 * word as u64, &[half(c.effective), half(c.permitted), half(c.inheritable)])?;
    }
    Ok(0)
}

/// `capset`, which changes only the calling thread.
pub fn sys_capset<M: Machine>(ctx: &mut Ctx<'_, M>, header: u64, data: u64) -> Result<usize, Errno> {
    let Some((words, pid)) = capability_words(ctx, header, false)? else { return Err(Errno::EINVAL) };
    if pid != 0 && pid != ctx.thread.tid() {
        return Err(Errno::EPERM);
    }
    let mut sets = [0u64; 3];
    for word in 0..words {
        let part = ctx.read::<[u32; 3]>(data + 12 * word as u64)?;
        sets.iter_mut().zip(part).for_each(|(set, half)| *set |= u64::from(half) << (32 * word));
    }
    let [effective, permitted, inheritable] = sets.map(|set| Caps(set & Caps::ALL.0));
    change(ctx, |c| c.capabilities.set(effective, permitted, inheritable))
}

/// Serves the options of `prctl` for capabilities. `None` for another option.
pub(super) fn control<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    option: u32,
    second: u64,
    third: u64,
    rest_is_zero: bool,
) -> Option<Result<usize, Errno>> {
    use linux_raw_sys::prctl as raw;
    let now = ctx.credentials().capabilities;
    let number = u32::try_from(second).unwrap_or(u32::MAX);
    Some(match option {
        raw::PR_GET_KEEPCAPS => {
            Ok(usize::from(now.secure & quire_linux_state::process::credentials::capabilities::secure::KEEP_CAPS != 0))
        }
        raw::PR_SET_KEEPCAPS if second > 1 => Err(Errno::EINVAL),
        raw::PR_SET_KEEPCAPS => change(ctx, |c| c.capabilities.keep(second == 1)),
        raw::PR_CAPBSET_READ if number <= LAST => Ok(usize::from(now.bounding.has(number))),
        raw::PR_CAPBSET_READ => Err(Errno::EINVAL),
        raw::PR_CAPBSET_DROP => change(ctx, |c| c.capabilities.drop_bounding(number)),
        raw::PR_GET_SECUREBITS => Ok(now.secure as usize),
        raw::PR_SET_SECUREBITS => change(ctx, |c| c.capabilities.set_secure(number)),
        raw::PR_CAP_AMBIENT if !rest_is_zero => Err(Errno::EINVAL),
        raw::PR_CAP_AMBIENT => {
            let which = u32::try_from(third).unwrap_or(u32::MAX);
            match number {
                raw::PR_CAP_AMBIENT_CLEAR_ALL if third == 0 => change(ctx, |c| {
                    c.capabilities.lower_ambient(Caps::ALL);
                    Ok(())
                }),
                _ if which > LAST => Err(Errno::EINVAL),
                raw::PR_CAP_AMBIENT_IS_SET => Ok(usize::from(now.ambient.has(which))),
                raw::PR_CAP_AMBIENT_RAISE => change(ctx, |c| c.capabilities.raise_ambient(which)),
                raw::PR_CAP_AMBIENT_LOWER => change(ctx, |c| {
                    c.capabilities.lower_ambient(Caps::of(which));
                    Ok(())
                }),
                _ => Err(Errno::EINVAL),
            }
        }
        _ => return None,
    })
}

/// `getpid`
pub fn sys_getpid<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    Ok(ctx.pid() as usize)
}

/// `gettid`
pub fn sys_gettid<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    Ok(ctx.thread.tid() as usize)
}

/// `getppid`
pub fn sys_getppid<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    Ok(ctx.process().parent_pid() as usize)
}

/// `set_tid_address`
pub fn sys_set_tid_address<M: Machine>(ctx: &mut Ctx<'_, M>, at: u64) -> Result<usize, Errno> {
    ctx.thread.clear_tid.store(at, Ordering::Release);
    Ok(ctx.thread.tid() as usize)
}

/// `personality`. The value is stored. Exec uses `ADDR_NO_RANDOMIZE`, and calls with a timeout, such as `select`, use
/// `STICKY_TIMEOUTS`.
pub fn sys_personality<M: Machine>(ctx: &mut Ctx<'_, M>, wanted: u32) -> Result<usize, Errno> {
    let personality = &ctx.process().personality;
    let before = personality.load(Ordering::Relaxed);
    if wanted != u32::MAX {
        personality.store(wanted, Ordering::Relaxed);
    }
    Ok(before as usize)
}

/// `unshare`, for descriptor tables, file system state and semaphore undos. There are no namespaces.
pub fn sys_unshare<M: Machine>(ctx: &mut Ctx<'_, M>, flags: u64) -> Result<usize, Errno> {
    use linux_raw_sys::general as raw;
    let known = u64::from(raw::CLONE_FILES | raw::CLONE_FS | raw::CLONE_SYSVSEM);
    if flags & !known != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & u64::from(raw::CLONE_SYSVSEM) != 0 {
        crate::ipc::leave_undos(ctx)?;
    }
    if flags & u64::from(raw::CLONE_FILES) != 0 && quire_heap::Arc::strong_count(ctx.files()?) > 1 {
        let own = ctx.files()?.fork()?;
        ctx.replace_files(own);
    }
    if flags & u64::from(raw::CLONE_FS) != 0 && quire_heap::Arc::strong_count(ctx.fs()?) > 1 {
        let own = ctx.fs()?.fork()?;
        ctx.replace_fs(own);
    }
    Ok(0)
}
