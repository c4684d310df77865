//! Extended attributes of in-memory files. The prefixes `user.`, `trusted.` and `security.` are supported, as on
//! Linux's tmpfs.
//!
//! Other file systems have no extended attributes. Calls on them still check their arguments, so that programs can
//! distinguish "no such file" and "bad name" from "not supported".

use crate::file::path::{AT_FDCWD, find, only};
use linux_raw_sys::general as raw;
use quire_fs::xattr::{Before, NAME_MAX, SIZE_MAX};
use quire_fs::{FileKind, Happening, OpenFlags, Want};
use quire_heap::Vec;
use quire_linux_state::file::host::{Dentry, View};
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::{Ctx, Errno, Machine};
use quire_lookup::Hold;

/// The most bytes of a list of names.
const LIST_MAX: usize = 65536;

type FoundDentry<M> = (View<M>, Hold<Dentry<M>>);

/// The dentry of a path. `flags` say whether a symbolic link as the last component is followed.
fn at<M: Machine>(ctx: &Ctx<'_, M>, path: u64, flags: u32) -> Result<FoundDentry<M>, Errno> {
    find(ctx, AT_FDCWD, path, flags)
}

/// The dentry of a descriptor.
fn of<M: Machine>(ctx: &Ctx<'_, M>, fd: i32) -> Result<FoundDentry<M>, Errno> {
    let file = ctx.file(fd)?;
    if file.flags().contains(OpenFlags::PATH) {
        return Err(Errno::EBADF);
    }
    Ok((ctx.view()?, file.dentry.clone().into()))
}

/// Reads the name of an attribute. ERANGE if it is empty or too long.
fn name<M: Machine>(ctx: &Ctx<'_, M>, at: u64) -> Result<Vec<u8>, Errno> {
    let name = ctx.user().read_string(at, NAME_MAX, Errno::ERANGE)?;
    if name.is_empty() { Err(Errno::ERANGE) } else { Ok(name) }
}

/// Checks a request for one attribute: first the caller's rights, then whether the file system supports the attribute.
fn check<M: Machine>(ctx: &Ctx<'_, M>, (view, dentry): &FoundDentry<M>, name: &[u8], want: Want) -> Result<(), Errno> {
    let refused = |writing| Err(if want == Want::WRITE { writing } else { Errno::ENODATA });
    if want == Want::WRITE && dentry.changeable().is_err() {
        return Err(Errno::EROFS);
    }
    let admin = ctx.credentials().may(cap::SYS_ADMIN);
    let security = name.starts_with(b"security.");
    if name.starts_with(b"trusted.") {
        if !admin {
            return refused(Errno::EPERM);
        }
    } else if !security && !name.starts_with(b"system.") {
        let kind = dentry.inode.kind();
        if name.starts_with(b"user.") {
            if !matches!(kind, FileKind::Regular | FileKind::Directory) {
                return refused(Errno::EPERM);
            }
            // In a sticky directory, only the owner may change attributes.
            let attr = dentry.inode.fixed_attr();
            let shared = kind == FileKind::Directory && attr.mode & 0o1000 != 0;
            if shared && want == Want::WRITE && !view.credentials.owns(&attr) {
                return Err(Errno::EPERM);
            }
        }
        view.credentials.may(&dentry.inode, want)?;
    }
    let prefix = [&b"user."[..], b"trusted.", b"security."].into_iter().find(|prefix| name.starts_with(prefix));
    let stored = matches!(dentry.inode.system().kind, "tmpfs" | "devtmpfs");
    // `security.capability` is refused, because programs get no capabilities from files.
    let (Some(prefix), true) = (prefix.filter(|_| name != b"security.capability"), stored) else {
        return Err(Errno::EOPNOTSUPP);
    };
    if name.len() == prefix.len() {
        return Err(Errno::EINVAL);
    }
    if security && want == Want::WRITE && !admin {
        return Err(Errno::EPERM);
    }
    Ok(())
}

fn changed<M: Machine>(ctx: &Ctx<'_, M>, dentry: &Dentry<M>) {
    use quire_fs::Host;
    dentry.inode.change(ctx.vfs().host().realtime(), |_| ());
    dentry.happened(Happening::ATTRIBUTES);
}

fn set<M: Machine>(
    ctx: &Ctx<'_, M>,
    found: FoundDentry<M>,
    [attribute, value, size]: [u64; 3],
    flags: u32,
) -> Result<usize, Errno> {
    only(flags, raw::XATTR_CREATE | raw::XATTR_REPLACE)?;
    let attribute = name(ctx, attribute)?;
    if size > SIZE_MAX as u64 {
        return Err(Errno::E2BIG);
    }
    let value: Vec<u8> = ctx.user().read_many(value, size as usize, SIZE_MAX)?;
    check(ctx, &found, &attribute, Want::WRITE)?;
    let before = match flags {
        0 => Before::Either,
        raw::XATTR_CREATE => Before::Absent,
        raw::XATTR_REPLACE => Before::Present,
        // Both flags together always fail. An existing attribute violates XATTR_CREATE, and a missing one violates
        // XATTR_REPLACE.
        _ if found.1.inode.xattr(&attribute).is_some() => Before::Absent,
        _ => Before::Present,
    };
    found.1.inode.set_xattr(&attribute, value, before)?;
    changed(ctx, &found.1);
    Ok(0)
}

fn get<M: Machine>(ctx: &Ctx<'_, M>, found: FoundDentry<M>, [attribute, to, size]: [u64; 3]) -> Result<usize, Errno> {
    let attribute = name(ctx, attribute)?;
    check(ctx, &found, &attribute, Want::READ)?;
    let there = found.1.inode.xattr(&attribute).ok_or(Errno::ENODATA)?;
    if size != 0 {
        if there.value.len() as u64 > size {
            return Err(Errno::ERANGE);
        }
        ctx.user().write_bytes(to, &there.value)?;
    }
    Ok(there.value.len())
}

fn list<M: Machine>(ctx: &Ctx<'_, M>, (_, dentry): FoundDentry<M>, to: u64, size: u64) -> Result<usize, Errno> {
    let Some(all) = dentry.inode.xattrs() else { return Ok(0) };
    let admin = ctx.credentials().may(cap::SYS_ADMIN);
    let mut names: Vec<u8> = Vec::new();
    for one in all.iter().filter(|one| admin || !one.name.starts_with(b"trusted.")) {
        names.try_extend_from_slice(&one.name)?;
        names.try_push(0)?;
    }
    if size != 0 {
        if names.len() as u64 > size {
            return Err(if size >= LIST_MAX as u64 { Errno::E2BIG } else { Errno::ERANGE });
        }
        ctx.user().write_bytes(to, &names)?;
    }
    if names.len() > LIST_MAX { Err(Errno::E2BIG) } else { Ok(names.len()) }
}

fn remove<M: Machine>(ctx: &Ctx<'_, M>, found: FoundDentry<M>, attribute: u64) -> Result<usize, Errno> {
    let attribute = name(ctx, attribute)?;
    check(ctx, &found, &attribute, Want::WRITE)?;
    found.1.inode.remove_xattr(&attribute)?;
    changed(ctx, &found.1);
    Ok(0)
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
pub fn sys_getxattr<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    path: u64,
    name: u64,
    to: u64,
    size: u64,
) -> Result<usize, Errno> {
    let found = at(ctx, path, 0)?;
    get(ctx, found, [name, to, size])
}
/// `lgetxattr`
pub fn sys_lgetxattr<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    path: u64,
    name: u64,
    to: u64,
    size: u64,
) -> Result<usize, Errno> {
    let found = at(ctx, path, LINK_ITSELF)?;
    get(ctx, found, [name, to, size])
}
/// `fgetxattr`
pub fn sys_fgetxattr<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, name: u64, to: u64, size: u64) -> Result<usize, Errno> {
    let found = of(ctx, fd)?;
    get(ctx, found, [name, to, size])
}
/// `listxattr`
pub fn sys_listxattr<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, to: u64, size: u64) -> Result<usize, Errno> {
    let found = at(ctx, path, 0)?;
    list(ctx, found, to, size)
}
/// `llistxattr`
pub fn sys_llistxattr<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, to: u64, size: u64) -> Result<usize, Errno> {
    let found = at(ctx, path, LINK_ITSELF)?;
    list(ctx, found, to, size)
}
/// `flistxattr`
pub fn sys_flistxattr<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, to: u64, size: u64) -> Result<usize, Errno> {
    let found = of(ctx, fd)?;
    list(ctx, found, to, size)
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
