//! Whose process it is.

use crate::errno::Errno;
use crate::{Ctx, Machine, Thread};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// Users, groups. A thread has its own, which it reads without a lock; others see those of a process's first thread
/// ([`Process::credentials`](crate::Process::credentials)).
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[allow(missing_docs)]
pub struct Credentials {
    pub real_user: u32,
    pub effective_user: u32,
    pub saved_user: u32,
    pub file_user: u32,
    pub real_group: u32,
    pub effective_group: u32,
    pub saved_group: u32,
    pub file_group: u32,
    /// Supplementary groups, where there are any: shared by those who inherit them.
    pub groups: Option<Arc<Vec<u32>>>,
}

/// Linux's NGROUPS_MAX.
const MOST_GROUPS: usize = 65_536;
/// "Leave as it is" in the calls that set several ids.
const KEEP: u32 = u32::MAX;

impl Credentials {
    /// User 0: may do what others may not.
    pub fn is_root(&self) -> bool {
        self.effective_user == 0
    }

    /// Whether this user may signal a process of `other`.
    pub fn may_signal(&self, other: &Credentials) -> bool {
        self.is_root()
            || [self.effective_user, self.real_user].iter().any(|u| *u == other.real_user || *u == other.saved_user)
    }

    fn has_user(&self, id: u32) -> bool {
        self.is_root() || [self.real_user, self.effective_user, self.saved_user].contains(&id)
    }

    fn has_group(&self, id: u32) -> bool {
        self.is_root() || [self.real_group, self.effective_group, self.saved_group].contains(&id)
    }
}

impl<M: Machine> Ctx<'_, M> {
    /// Whose thread the caller is.
    pub fn credentials(&self) -> &Credentials {
        // SAFETY: a context is the owner's; `change` alone replaces them, by `&mut`.
        unsafe { self.thread.credentials.get() }
    }
}

impl<M: Machine> Thread<M> {
    /// Shows others the thread's credentials as its process's. The thread itself calls it.
    pub(crate) fn show_credentials(&self) {
        // SAFETY: the thread itself runs this, and replaces nothing meanwhile.
        let own = unsafe { self.credentials.get() }.clone();
        let old = core::mem::replace(&mut *self.process.credentials.lock(), own);
        drop(old);
    }
}

/// Changes the calling thread's credentials: as in Linux, a library makes all threads of a program do so.
fn change<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    edit: impl FnOnce(&mut Credentials) -> Result<(), Errno>,
) -> Result<usize, Errno> {
    let mut new = ctx.credentials().clone();
    edit(&mut new)?;
    // SAFETY: the owner is here, and `&mut` means that nothing of the old ones is borrowed.
    drop(unsafe { ctx.thread.credentials.replace(new) });
    if ctx.thread.tid() == ctx.pid() {
        ctx.thread.show_credentials();
    }
    Ok(0)
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
    change(ctx, |c| {
        if c.is_root() {
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
        if c.is_root() {
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
    change(ctx, |c| {
        let old = c.clone();
        if real != KEEP {
            if !old.is_root() && real != old.real_user && real != old.effective_user {
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
            if !old.is_root() && real != old.real_group && real != old.effective_group {
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
    change(ctx, |c| {
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

/// `setfsuid`: returns the old one, whether it changed or not.
pub fn sys_setfsuid<M: Machine>(ctx: &mut Ctx<'_, M>, id: u32) -> Result<usize, Errno> {
    let old = ctx.credentials().file_user;
    change(ctx, |c| {
        if c.has_user(id) {
            c.file_user = id;
        }
        Ok(())
    })?;
    Ok(old as usize)
}
/// `setfsgid`: as `setfsuid`.
pub fn sys_setfsgid<M: Machine>(ctx: &mut Ctx<'_, M>, id: u32) -> Result<usize, Errno> {
    let old = ctx.credentials().file_group;
    change(ctx, |c| {
        if c.has_group(id) {
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
    let groups = c.groups.as_ref().map_or(&[][..], |groups| groups.as_slice());
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
    if !ctx.credentials().is_root() {
        return Err(Errno::EPERM);
    }
    let mut groups: Vec<u32> = ctx.user().read_many(list, size, MOST_GROUPS)?;
    groups.sort_unstable();
    change(ctx, |c| {
        c.groups = (!groups.is_empty()).then(|| Arc::new(groups));
        Ok(())
    })
}

/// `capget`: all capabilities for user 0, none for others.
pub fn sys_capget<M: Machine>(ctx: &mut Ctx<'_, M>, header: u64, data: u64) -> Result<usize, Errno> {
    const VERSION_3: u32 = 0x2008_0522;
    let [version, pid] = ctx.read::<[u32; 2]>(header)?;
    let words = match version {
        0x1998_0330 => 1,
        0x2007_1026 | VERSION_3 => 2,
        _ => {
            ctx.write(header, &VERSION_3)?;
            return if data == 0 { Ok(0) } else { Err(Errno::EINVAL) };
        }
    };
    if data == 0 {
        return Ok(0);
    }
    let all = match pid {
        0 => ctx.credentials().is_root(),
        pid => ctx.linux.ids.process(pid).ok_or(Errno::ESRCH)?.credentials().is_root(),
    };
    // CAP_LAST_CAP is 40.
    for (word, bits) in [u32::MAX, 0x1ff].into_iter().take(words).enumerate() {
        let have = if all { bits } else { 0 };
        ctx.write(data + 12 * word as u64, &[have, have, 0])?;
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_oneself_may_be_signalled_from() {
        let root = Credentials::default();
        let user = Credentials { real_user: 5, effective_user: 5, saved_user: 5, ..Credentials::default() };
        let other = Credentials { real_user: 6, effective_user: 6, saved_user: 6, ..Credentials::default() };
        assert!(root.may_signal(&user) && user.may_signal(&user.clone()));
        assert!(!user.may_signal(&other) && !user.may_signal(&root));
    }
}
