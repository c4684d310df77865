//! Extended attributes: no file system of this kernel has any. As Linux does for such file systems, the calls check
//! their arguments first. Programs tell "no such file" and "bad name" from "not supported".

use super::path::{AT_FDCWD, find, only};
use super::{Dentry, View};
use crate::{Ctx, Errno, Machine};
use linux_raw_sys::general as raw;
use quire_fs::Want;
use quire_heap::Vec;
use quire_lookup::Hold;

/// Longest name of an attribute.
const NAME_MAX: usize = 255;
/// Largest value of an attribute.
const SIZE_MAX: u64 = 65536;

type FoundDentry<M> = (View<M>, Hold<Dentry<M>>);

/// The dentry of a path; a link at its end itself, if `flags` say so.
fn at<M: Machine>(ctx: &Ctx<'_, M>, path: u64, flags: u32) -> Result<FoundDentry<M>, Errno> {
    find(ctx, AT_FDCWD, path, flags)
}

/// The dentry of a descriptor.
fn of<M: Machine>(ctx: &Ctx<'_, M>, fd: i32) -> Result<FoundDentry<M>, Errno> {
    Ok((ctx.view()?, ctx.file(fd)?.dentry.clone().into()))
}

/// Checks a name: it is readable, has a byte, and not too many.
fn name<M: Machine>(ctx: &Ctx<'_, M>, at: u64) -> Result<Vec<u8>, Errno> {
    let name = ctx.user().read_string(at, NAME_MAX, Errno::ERANGE)?;
    if name.is_empty() { Err(Errno::ERANGE) } else { Ok(name) }
}

/// The error for a request of one attribute: the caller's rights are checked before the file system's abilities.
fn refuse<M: Machine>((view, dentry): FoundDentry<M>, name: &[u8], want: Want) -> Result<usize, Errno> {
    let own = [&b"security."[..], b"system."].iter().any(|prefix| name.starts_with(prefix));
    let trusted = name.starts_with(b"trusted.");
    if trusted && view.credentials.uid != 0 {
        return Err(if want == Want::WRITE { Errno::EPERM } else { Errno::ENODATA });
    }
    if !own && !trusted {
        let kind = dentry.inode.kind();
        if name.starts_with(b"user.") && !matches!(kind, quire_fs::FileKind::Regular | quire_fs::FileKind::Directory) {
            return Err(if want == Want::WRITE { Errno::EPERM } else { Errno::ENODATA });
        }
        view.credentials.may(&dentry.inode, want)?;
    }
    Err(Errno::EOPNOTSUPP)
}

fn set<M: Machine>(
    ctx: &Ctx<'_, M>,
    found: FoundDentry<M>,
    [attribute, value, size]: [u64; 3],
    flags: u32,
) -> Result<usize, Errno> {
    only(flags, raw::XATTR_CREATE | raw::XATTR_REPLACE)?;
    let attribute = name(ctx, attribute)?;
    if size > SIZE_MAX {
        return Err(Errno::E2BIG);
    }
    // An unreadable value is reported before the lack of support.
    let mut piece = [0; 256];
    let mut read = 0;
    while read < size {
        let n = (size - read).min(piece.len() as u64);
        let from = value.checked_add(read).ok_or(Errno::EFAULT)?;
        ctx.user().read_bytes(from, &mut piece[..n as usize])?;
        read += n;
    }
    refuse(found, &attribute, Want::WRITE)
}

fn get<M: Machine>(ctx: &Ctx<'_, M>, found: FoundDentry<M>, attribute: u64) -> Result<usize, Errno> {
    let attribute = name(ctx, attribute)?;
    refuse(found, &attribute, Want::READ)
}

fn remove<M: Machine>(ctx: &Ctx<'_, M>, found: FoundDentry<M>, attribute: u64) -> Result<usize, Errno> {
    let attribute = name(ctx, attribute)?;
    refuse(found, &attribute, Want::WRITE)
}

const LINK_ITSELF: u32 = raw::AT_SYMLINK_NOFOLLOW;

/// `setxattr`
pub fn sys_setxattr<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    path: u64,
    name: u64,
    value: u64,
    size: u64,
    flags: u32,
) -> Result<usize, Errno> {
    let found = at(ctx, path, 0)?;
    set(ctx, found, [name, value, size], flags)
}
/// `lsetxattr`
pub fn sys_lsetxattr<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    path: u64,
    name: u64,
    value: u64,
    size: u64,
    flags: u32,
) -> Result<usize, Errno> {
    let found = at(ctx, path, LINK_ITSELF)?;
    set(ctx, found, [name, value, size], flags)
}
/// `fsetxattr`
pub fn sys_fsetxattr<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    name: u64,
    value: u64,
    size: u64,
    flags: u32,
) -> Result<usize, Errno> {
    let found = of(ctx, fd)?;
    set(ctx, found, [name, value, size], flags)
}
/// `getxattr`
pub fn sys_getxattr<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, name: u64) -> Result<usize, Errno> {
    let found = at(ctx, path, 0)?;
    get(ctx, found, name)
}
/// `lgetxattr`
pub fn sys_lgetxattr<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, name: u64) -> Result<usize, Errno> {
    let found = at(ctx, path, LINK_ITSELF)?;
    get(ctx, found, name)
}
/// `fgetxattr`
pub fn sys_fgetxattr<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, name: u64) -> Result<usize, Errno> {
    let found = of(ctx, fd)?;
    get(ctx, found, name)
}
/// `listxattr`: the list has no bytes.
pub fn sys_listxattr<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64) -> Result<usize, Errno> {
    at(ctx, path, 0).map(|_| 0)
}
/// `llistxattr`
pub fn sys_llistxattr<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64) -> Result<usize, Errno> {
    at(ctx, path, LINK_ITSELF).map(|_| 0)
}
/// `flistxattr`
pub fn sys_flistxattr<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32) -> Result<usize, Errno> {
    of(ctx, fd).map(|_| 0)
}
/// `removexattr`
pub fn sys_removexattr<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, name: u64) -> Result<usize, Errno> {
    let found = at(ctx, path, 0)?;
    remove(ctx, found, name)
}
/// `lremovexattr`
pub fn sys_lremovexattr<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, name: u64) -> Result<usize, Errno> {
    let found = at(ctx, path, LINK_ITSELF)?;
    remove(ctx, found, name)
}
/// `fremovexattr`
pub fn sys_fremovexattr<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, name: u64) -> Result<usize, Errno> {
    let found = of(ctx, fd)?;
    remove(ctx, found, name)
}
