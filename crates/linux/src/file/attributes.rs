//! Calls that change modes, owners and times of files.

use crate::file::path::{AT_FDCWD, find, only};
use linux_raw_sys::general as raw;
use quire_fs::{FileKind, Happening, Host, Timestamp};
use quire_linux_state::file::host::{Dentry, View};
use quire_linux_state::{Ctx, Errno, Machine};
use quire_lookup::Hold;

/// The dentry of a descriptor's file, for calls that change the inode. Fails for O_PATH files.
fn of_descriptor<M: Machine>(ctx: &Ctx<'_, M>, fd: i32) -> Result<(View<M>, Hold<Dentry<M>>), Errno> {
    Ok((ctx.view()?, ctx.file(fd)?.dentry.clone().into()))
}

fn change_mode<M: Machine>(
    ctx: &Ctx<'_, M>,
    (view, dentry): (View<M>, Hold<Dentry<M>>),
    mode: u32,
) -> Result<usize, Errno> {
    if dentry.inode.kind() == FileKind::Symlink {
        return Err(Errno::EOPNOTSUPP);
    }
    dentry.changeable()?;
    ctx.vfs().set_mode(&view.credentials, &dentry.inode, (mode & 0o7777) as u16)?;
    dentry.happened(Happening::ATTRIBUTES);
    Ok(0)
}

/// `fchmodat2`
pub fn sys_fchmodat2<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    dir: i32,
    path: u64,
    mode: u32,
    flags: u32,
) -> Result<usize, Errno> {
    only(flags, raw::AT_SYMLINK_NOFOLLOW | raw::AT_EMPTY_PATH)?;
    let found = find(ctx, dir, path, flags)?;
    change_mode(ctx, found, mode)
}
/// `fchmodat`
pub fn sys_fchmodat<M: Machine>(ctx: &mut Ctx<'_, M>, dir: i32, path: u64, mode: u32) -> Result<usize, Errno> {
    sys_fchmodat2(ctx, dir, path, mode, 0)
}
/// `chmod`
pub fn sys_chmod<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, mode: u32) -> Result<usize, Errno> {
    sys_fchmodat2(ctx, AT_FDCWD, path, mode, 0)
}
/// `fchmod`
pub fn sys_fchmod<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, mode: u32) -> Result<usize, Errno> {
    let found = of_descriptor(ctx, fd)?;
    change_mode(ctx, found, mode)
}

fn change_owner<M: Machine>(
    ctx: &Ctx<'_, M>,
    (view, dentry): (View<M>, Hold<Dentry<M>>),
    uid: u32,
    gid: u32,
) -> Result<usize, Errno> {
    let given = |id: u32| (id != u32::MAX).then_some(id);
    dentry.changeable()?;
    ctx.vfs().set_owner(&view.credentials, &dentry.inode, given(uid), given(gid))?;
    dentry.happened(Happening::ATTRIBUTES);
    Ok(0)
}

/// `fchownat`
pub fn sys_fchownat<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    dir: i32,
    path: u64,
    uid: u32,
    gid: u32,
    flags: u32,
) -> Result<usize, Errno> {
    only(flags, raw::AT_SYMLINK_NOFOLLOW | raw::AT_EMPTY_PATH)?;
    let found = find(ctx, dir, path, flags)?;
    change_owner(ctx, found, uid, gid)
}
/// `chown`
pub fn sys_chown<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, uid: u32, gid: u32) -> Result<usize, Errno> {
    sys_fchownat(ctx, AT_FDCWD, path, uid, gid, 0)
}
/// `lchown`
pub fn sys_lchown<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, uid: u32, gid: u32) -> Result<usize, Errno> {
    sys_fchownat(ctx, AT_FDCWD, path, uid, gid, raw::AT_SYMLINK_NOFOLLOW)
}
/// `fchown`
pub fn sys_fchown<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, uid: u32, gid: u32) -> Result<usize, Errno> {
    let found = of_descriptor(ctx, fd)?;
    change_owner(ctx, found, uid, gid)
}

/// A requested time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Time {
    Now,
    Keep,
    At(Timestamp),
}

fn set_times<M: Machine>(
    ctx: &Ctx<'_, M>,
    view: &View<M>,
    dentry: &Dentry<M>,
    times: [Time; 2],
) -> Result<usize, Errno> {
    if times == [Time::Keep; 2] {
        return Ok(0);
    }
    let now = ctx.vfs().host().realtime();
    let [a, m] = times.map(|t| match t {
        Time::Now => Some(now),
        Time::Keep => None,
        Time::At(t) => Some(t),
    });
    let explicit = times != [Time::Now; 2];
    dentry.changeable()?;
    ctx.vfs().set_times(&view.credentials, &dentry.inode, a, m, explicit)?;
    dentry.happened(Happening::ATTRIBUTES);
    Ok(0)
}

/// `utimensat`
pub fn sys_utimensat<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    dir: i32,
    path: u64,
    times: u64,
    flags: u32,
) -> Result<usize, Errno> {
    let times = if times == 0 {
        [Ok(Time::Now); 2]
    } else {
        let [a, an, m, mn] = ctx.read::<[i64; 4]>(times)?;
        let time = |seconds: i64, nanos: i64| match nanos {
            n if n == i64::from(raw::UTIME_NOW) => Ok(Time::Now),
            n if n == i64::from(raw::UTIME_OMIT) => Ok(Time::Keep),
            0..1_000_000_000 => Ok(Time::At(Timestamp { seconds, nanos: nanos as u32 })),
            _ => Err(Errno::EINVAL),
        };
        [time(a, an), time(m, mn)]
    };
    // As on Linux, a call that keeps both times does not check the path. Otherwise an invalid path is reported before
    // invalid times.
    if times == [Ok(Time::Keep); 2] {
        return Ok(0);
    }
    let (view, dentry) = if path == 0 && dir != AT_FDCWD {
        only(flags, 0)?;
        of_descriptor(ctx, dir)?
    } else {
        only(flags, raw::AT_SYMLINK_NOFOLLOW | raw::AT_EMPTY_PATH)?;
        find(ctx, dir, path, flags)?
    };
    let [accessed, modified] = times;
    set_times(ctx, &view, &dentry, [accessed?, modified?])
}

/// `futimesat`
pub fn sys_futimesat<M: Machine>(ctx: &mut Ctx<'_, M>, dir: i32, path: u64, times: u64) -> Result<usize, Errno> {
    let times = if times == 0 {
        [Time::Now; 2]
    } else {
        let [a, au, m, mu] = ctx.read::<[i64; 4]>(times)?;
        let time = |seconds: i64, micros: i64| match micros {
            0..1_000_000 => Ok(Time::At(Timestamp { seconds, nanos: micros as u32 * 1000 })),
            _ => Err(Errno::EINVAL),
        };
        [time(a, au)?, time(m, mu)?]
    };
    let (view, dentry) = if path == 0 && dir != AT_FDCWD { of_descriptor(ctx, dir)? } else { find(ctx, dir, path, 0)? };
    set_times(ctx, &view, &dentry, times)
}

/// `utimes`
pub fn sys_utimes<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, times: u64) -> Result<usize, Errno> {
    sys_futimesat(ctx, AT_FDCWD, path, times)
}

/// `utime`
pub fn sys_utime<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, times: u64) -> Result<usize, Errno> {
    let times = if times == 0 {
        [Time::Now; 2]
    } else {
        ctx.read::<[i64; 2]>(times)?.map(|seconds| Time::At(Timestamp { seconds, nanos: 0 }))
    };
    let (view, dentry) = find(ctx, AT_FDCWD, path, 0)?;
    set_times(ctx, &view, &dentry, times)
}

/// `umask`
pub fn sys_umask<M: Machine>(ctx: &mut Ctx<'_, M>, mask: u32) -> Result<usize, Errno> {
    Ok(usize::from(ctx.fs()?.set_umask(mask as u16)))
}
