//! Calls that make, move, remove and list names, and calls for a process's working and root directories.

use crate::file::path::{AT_FDCWD, find, find_path, only, walk};
use crate::file::stat::type_bits;
use linux_raw_sys::general as raw;
use quire_fs::Want;
use quire_fs::rename::Rename;
use quire_fs::{Create, DeviceNumber, Final, FsError, Powers};
use quire_linux_state::file::host::Dentry;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::{Ctx, Errno, Machine};

/// `mkdirat`
pub fn sys_mkdirat<M: Machine>(ctx: &mut Ctx<'_, M>, dir: i32, path: u64, mode: u32) -> Result<usize, Errno> {
    let (view, found) = walk(ctx, dir, path, Final::Name)?;
    ctx.vfs().make(&view, &found, Create::Directory, (mode & 0o1777) as u16)?;
    Ok(0)
}
/// `mkdir`
pub fn sys_mkdir<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, mode: u32) -> Result<usize, Errno> {
    sys_mkdirat(ctx, AT_FDCWD, path, mode)
}

/// `mknodat`
pub fn sys_mknodat<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    dir: i32,
    path: u64,
    mode: u32,
    device: u32,
) -> Result<usize, Errno> {
    let number = DeviceNumber { major: (device >> 8) & 0xfff, minor: (device & 0xff) | ((device >> 12) & 0xf_ff00) };
    let content = match mode & raw::S_IFMT {
        0 | raw::S_IFREG => Create::File,
        raw::S_IFIFO => Create::Fifo,
        raw::S_IFSOCK => Create::Socket,
        raw::S_IFCHR => Create::CharDevice(number),
        raw::S_IFBLK => Create::BlockDevice(number),
        raw::S_IFDIR => return Err(Errno::EPERM),
        _ => return Err(Errno::EINVAL),
    };
    let (view, found) = walk(ctx, dir, path, Final::Name)?;
    // Any user may make a white-out, which is a node for character device 0:0. No such device exists.
    let is_device = match content {
        Create::CharDevice(number) => number != DeviceNumber { major: 0, minor: 0 },
        Create::BlockDevice(_) => true,
        _ => false,
    };
    if is_device && !view.credentials.has(Powers::DEVICES) {
        return Err(Errno::EPERM);
    }
    ctx.vfs().make(&view, &found, content, (mode & 0o7777) as u16)?;
    Ok(0)
}
/// `mknod`
pub fn sys_mknod<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, mode: u32, device: u32) -> Result<usize, Errno> {
    sys_mknodat(ctx, AT_FDCWD, path, mode, device)
}

/// `unlinkat`
pub fn sys_unlinkat<M: Machine>(ctx: &mut Ctx<'_, M>, dir: i32, path: u64, flags: u32) -> Result<usize, Errno> {
    only(flags, raw::AT_REMOVEDIR)?;
    let (view, found) = walk(ctx, dir, path, Final::Name)?;
    if flags & raw::AT_REMOVEDIR != 0 {
        ctx.vfs().rmdir(&view, &found)?;
    } else {
        ctx.vfs().unlink(&view, &found)?;
    }
    Ok(0)
}
/// `unlink`
pub fn sys_unlink<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64) -> Result<usize, Errno> {
    sys_unlinkat(ctx, AT_FDCWD, path, 0)
}
/// `rmdir`
pub fn sys_rmdir<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64) -> Result<usize, Errno> {
    sys_unlinkat(ctx, AT_FDCWD, path, raw::AT_REMOVEDIR)
}

/// `renameat2`
pub fn sys_renameat2<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    old_dir: i32,
    old: u64,
    new_dir: i32,
    new: u64,
    flags: u32,
) -> Result<usize, Errno> {
    let how = match flags {
        0 => Rename::Replace,
        raw::RENAME_NOREPLACE => Rename::NoReplace,
        raw::RENAME_EXCHANGE => Rename::Exchange,
        _ => return Err(Errno::EINVAL),
    };
    let (view, from) = walk(ctx, old_dir, old, Final::Name)?;
    let (_, to) = walk(ctx, new_dir, new, Final::Name)?;
    ctx.vfs().rename(&view, &from, &to, how)?;
    Ok(0)
}
/// `renameat`
pub fn sys_renameat<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    old_dir: i32,
    old: u64,
    new_dir: i32,
    new: u64,
) -> Result<usize, Errno> {
    sys_renameat2(ctx, old_dir, old, new_dir, new, 0)
}
/// `rename`
pub fn sys_rename<M: Machine>(ctx: &mut Ctx<'_, M>, old: u64, new: u64) -> Result<usize, Errno> {
    sys_renameat2(ctx, AT_FDCWD, old, AT_FDCWD, new, 0)
}

/// `linkat`
pub fn sys_linkat<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    old_dir: i32,
    old: u64,
    new_dir: i32,
    new: u64,
    flags: u32,
) -> Result<usize, Errno> {
    only(flags, raw::AT_SYMLINK_FOLLOW | raw::AT_EMPTY_PATH)?;
    // `find` follows links by default, `linkat` does not.
    let nofollow = if flags & raw::AT_SYMLINK_FOLLOW == 0 { raw::AT_SYMLINK_NOFOLLOW } else { 0 };
    let path = ctx.path(old)?;
    let (_, target) = find_path(ctx, old_dir, &path, (flags & raw::AT_EMPTY_PATH) | nofollow)?;
    if path.is_empty() && !ctx.file_credentials().has(Powers::READ_SEARCH) {
        // A process may have received the descriptor from another user. The descriptor alone does not entitle the
        // process to link the file under a name.
        return Err(Errno::ENOENT);
    }
    let (view, found) = walk(ctx, new_dir, new, Final::Name)?;
    ctx.vfs().link(&view, &target, &found)?;
    Ok(0)
}
/// `link`
pub fn sys_link<M: Machine>(ctx: &mut Ctx<'_, M>, old: u64, new: u64) -> Result<usize, Errno> {
    sys_linkat(ctx, AT_FDCWD, old, AT_FDCWD, new, 0)
}

/// `symlinkat`
pub fn sys_symlinkat<M: Machine>(ctx: &mut Ctx<'_, M>, target: u64, dir: i32, path: u64) -> Result<usize, Errno> {
    let target = ctx.path(target)?;
    if target.is_empty() {
        return Err(Errno::ENOENT);
    }
    let (view, found) = walk(ctx, dir, path, Final::Name)?;
    ctx.vfs().make(&view, &found, Create::Symlink(&target), 0o777)?;
    Ok(0)
}
/// `symlink`
pub fn sys_symlink<M: Machine>(ctx: &mut Ctx<'_, M>, target: u64, path: u64) -> Result<usize, Errno> {
    sys_symlinkat(ctx, target, AT_FDCWD, path)
}

/// `readlinkat`
pub fn sys_readlinkat<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    dir: i32,
    path: u64,
    to: u64,
    size: i32,
) -> Result<usize, Errno> {
    if size <= 0 {
        return Err(Errno::EINVAL);
    }
    let path = ctx.path(path)?;
    let (_, link) = find_path(ctx, dir, &path, raw::AT_SYMLINK_NOFOLLOW | raw::AT_EMPTY_PATH)?;
    let target = ctx.vfs().link_target(&link).map_err(|e| match e {
        FsError::Invalid if path.is_empty() => Errno::ENOENT,
        e => e.into(),
    })?;
    let n = target.len().min(size as usize);
    ctx.user().write_bytes(to, &target[..n])?;
    Ok(n)
}
/// `readlink`
pub fn sys_readlink<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, to: u64, size: i32) -> Result<usize, Errno> {
    sys_readlinkat(ctx, AT_FDCWD, path, to, size)
}

/// `getdents64`
pub fn sys_getdents64<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, to: u64, size: u32) -> Result<usize, Errno> {
    /// The size of a record without its name, in bytes.
    const HEAD: usize = 19;
    let file = ctx.file(fd)?;
    let (user, thread) = (ctx.user(), ctx.thread);
    let (mut done, mut failed) = (0usize, None);
    let mut record = [0u8; (HEAD + 256).next_multiple_of(8)];
    let listed = file.list(&mut |entry| {
        let len = (HEAD + entry.name.len() + 1).next_multiple_of(8);
        if done + len > size as usize {
            failed = Some(Errno::EINVAL);
            return false;
        }
        record[..8].copy_from_slice(&entry.number.to_le_bytes());
        record[8..16].copy_from_slice(&entry.next.to_le_bytes());
        record[16..18].copy_from_slice(&(len as u16).to_le_bytes());
        record[18] = (type_bits(entry.kind) >> 12) as u8;
        let Some(name) = record.get_mut(HEAD..HEAD + entry.name.len()) else { return true };
        name.copy_from_slice(entry.name);
        // Clears the terminating zero byte and the padding, because an earlier record may have been longer.
        record[HEAD + entry.name.len()..len].fill(0);
        match user.write_bytes(to + done as u64, &record[..len]) {
            Ok(()) => {
                done += len;
                !thread.killed()
            }
            Err(_) => {
                failed = Some(Errno::EFAULT);
                false
            }
        }
    });
    match (listed, failed) {
        // Entries that were returned are not returned again. If memory was exhausted after some entries, the call
        // succeeds, and the next one fails.
        (Err(e), _) if e != FsError::OutOfMemory || done == 0 => Err(e.into()),
        (_, Some(e)) if done == 0 => Err(e),
        _ => Ok(done),
    }
}

/// `getcwd`
pub fn sys_getcwd<M: Machine>(ctx: &mut Ctx<'_, M>, to: u64, size: u64) -> Result<usize, Errno> {
    let view = ctx.view()?;
    let (mut path, exists, inside) = Dentry::path_within(view.cwd(), view.root())?;
    if !exists {
        return Err(Errno::ENOENT);
    }
    // As on Linux, a path outside the root gets a prefix.
    if !inside {
        let mut outside = quire_heap::Vec::try_copy(b"(unreachable)")?;
        outside.try_extend_from_slice(&path)?;
        path = outside;
    }
    path.try_push(0)?;
    if path.len() as u64 > size {
        return Err(Errno::ERANGE);
    }
    ctx.user().write_bytes(to, &path)?;
    Ok(path.len())
}

/// `chdir`
pub fn sys_chdir<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64) -> Result<usize, Errno> {
    let (view, dentry) = find(ctx, AT_FDCWD, path, 0)?;
    if !dentry.inode.is_directory() {
        return Err(Errno::ENOTDIR);
    }
    view.credentials.may(&dentry.inode, Want::EXECUTE)?;
    ctx.set_cwd(dentry.counted())?;
    Ok(0)
}

/// `fchdir`
pub fn sys_fchdir<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32) -> Result<usize, Errno> {
    let dentry = ctx.any_file(fd)?.dentry.clone();
    if !dentry.inode.is_directory() {
        return Err(Errno::ENOTDIR);
    }
    ctx.view()?.credentials.may(&dentry.inode, Want::EXECUTE)?;
    ctx.set_cwd(dentry)?;
    Ok(0)
}

/// `chroot`
pub fn sys_chroot<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64) -> Result<usize, Errno> {
    let (view, dentry) = find(ctx, AT_FDCWD, path, 0)?;
    if !dentry.inode.is_directory() {
        return Err(Errno::ENOTDIR);
    }
    view.credentials.may(&dentry.inode, Want::EXECUTE)?;
    if !ctx.credentials().may(cap::SYS_CHROOT) {
        return Err(Errno::EPERM);
    }
    ctx.set_root(dentry.counted())?;
    Ok(0)
}
