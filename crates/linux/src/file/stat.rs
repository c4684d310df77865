//! The `stat` family of calls.

use crate::file::path::{AT_FDCWD, find, only};
use linux_raw_sys::general as raw;
use quire_fs::Want;
use quire_fs::{FileKind, PAGE_SIZE, Restrictions, Status, Timestamp};
use quire_linux_state::file::host::{Dentry, View};
use quire_linux_state::{Ctx, Errno, Machine};
use quire_lookup::Hold;

/// The file type bits of `st_mode`.
pub fn type_bits(kind: FileKind) -> u32 {
    match kind {
        FileKind::Regular => raw::S_IFREG,
        FileKind::Directory => raw::S_IFDIR,
        FileKind::Symlink => raw::S_IFLNK,
        FileKind::Fifo => raw::S_IFIFO,
        FileKind::CharDevice => raw::S_IFCHR,
        FileKind::BlockDevice => raw::S_IFBLK,
        FileKind::Socket => raw::S_IFSOCK,
        FileKind::Anonymous => 0,
    }
}

/// `st_mode`.
fn mode(s: &Status) -> u32 {
    type_bits(s.kind) | u32::from(s.attr.mode)
}

/// The device number of a special file, in the format of `st_rdev`.
fn device(s: &Status) -> u64 {
    let (major, minor) = (u64::from(s.device.major), u64::from(s.device.minor));
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & !0xff) << 12)
}

/// A `struct stat` of x86-64, as 64-bit words.
fn stat_words(s: &Status) -> [u64; 18] {
    let time = |t: Timestamp| [t.seconds as u64, u64::from(t.nanos)];
    let [a, m, c] = [s.attr.accessed, s.attr.modified, s.attr.changed].map(time);
    [
        s.ident.device,
        s.ident.number,
        u64::from(s.attr.links),
        u64::from(mode(s)) | u64::from(s.attr.uid) << 32,
        u64::from(s.attr.gid),
        device(s),
        s.size,
        PAGE_SIZE as u64,
        s.allocated / 512,
        a[0],
        a[1],
        m[0],
        m[1],
        c[0],
        c[1],
        0,
        0,
        0,
    ]
}

/// Does the work of [`find`]. If AT_EMPTY_PATH is the only flag, a null pointer means an empty path.
fn find_or_open<M: Machine>(
    ctx: &Ctx<'_, M>,
    dir: i32,
    path: u64,
    flags: u32,
) -> Result<(View<M>, Hold<Dentry<M>>), Errno> {
    if path == 0 && flags == raw::AT_EMPTY_PATH && dir >= 0 {
        return Ok((ctx.view()?, ctx.any_file(dir)?.dentry.clone().into()));
    }
    find(ctx, dir, path, flags)
}

/// `newfstatat`
pub fn sys_newfstatat<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    dir: i32,
    path: u64,
    to: u64,
    flags: u32,
) -> Result<usize, Errno> {
    only(flags, raw::AT_SYMLINK_NOFOLLOW | raw::AT_EMPTY_PATH | raw::AT_NO_AUTOMOUNT | raw::AT_STATX_SYNC_TYPE)?;
    let (_, dentry) = find_or_open(ctx, dir, path, flags)?;
    ctx.write(to, &stat_words(&dentry.inode.status()))?;
    Ok(0)
}

/// `stat`
pub fn sys_stat<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, to: u64) -> Result<usize, Errno> {
    sys_newfstatat(ctx, AT_FDCWD, path, to, 0)
}

/// `lstat`
pub fn sys_lstat<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, to: u64) -> Result<usize, Errno> {
    sys_newfstatat(ctx, AT_FDCWD, path, to, raw::AT_SYMLINK_NOFOLLOW)
}

/// `fstat`
pub fn sys_fstat<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, to: u64) -> Result<usize, Errno> {
    let file = ctx.any_file(fd)?;
    ctx.write(to, &stat_words(&file.dentry.inode.status()))?;
    Ok(0)
}

/// A `struct statx`, as 64-bit words.
fn statx_words(s: &Status) -> [u64; 32] {
    let mut out = [0; 32];
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    out[0] = pair(raw::STATX_BASIC_STATS | raw::STATX_BTIME, PAGE_SIZE as u32);
    out[2] = pair(s.attr.links, s.attr.uid);
    out[3] = pair(s.attr.gid, mode(s) & 0xffff);
    out[4] = s.ident.number;
    out[5] = s.size;
    out[6] = s.allocated / 512;
    let times = [s.attr.accessed, s.attr.born, s.attr.changed, s.attr.modified];
    for (slot, t) in out[8..16].chunks_exact_mut(2).zip(times) {
        slot.copy_from_slice(&[t.seconds as u64, u64::from(t.nanos)]);
    }
    out[16] = pair(s.device.major, s.device.minor);
    out[17] = pair((s.ident.device >> 8) as u32, (s.ident.device & 0xff) as u32);
    out
}

/// `statx`
pub fn sys_statx<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    dir: i32,
    path: u64,
    flags: u32,
    mask: u32,
    to: u64,
) -> Result<usize, Errno> {
    only(flags, raw::AT_SYMLINK_NOFOLLOW | raw::AT_EMPTY_PATH | raw::AT_NO_AUTOMOUNT | raw::AT_STATX_SYNC_TYPE)?;
    if mask & raw::STATX__RESERVED != 0 || flags & raw::AT_STATX_SYNC_TYPE == raw::AT_STATX_SYNC_TYPE {
        return Err(Errno::EINVAL);
    }
    let (_, dentry) = find_or_open(ctx, dir, path, flags)?;
    ctx.write(to, &statx_words(&dentry.inode.status()))?;
    Ok(0)
}

fn check_access<M: Machine>(ctx: &Ctx<'_, M>, dir: i32, path: u64, mode: u32, flags: u32) -> Result<usize, Errno> {
    if mode & !7 != 0 {
        return Err(Errno::EINVAL);
    }
    only(flags, raw::AT_EACCESS | raw::AT_SYMLINK_NOFOLLOW | raw::AT_EMPTY_PATH)?;
    let (view, dentry) = find(ctx, dir, path, flags)?;
    let caller = if flags & raw::AT_EACCESS != 0 { view.credentials } else { ctx.real_file_credentials() };
    if mode != 0 {
        let want = Want::from_bits_truncate(mode as u16);
        let program = want.contains(Want::EXECUTE) && dentry.inode.kind() == FileKind::Regular;
        if program && dentry.refuses(Restrictions::NO_EXECUTION) {
            return Err(Errno::EACCES);
        }
        caller.may_at(&dentry, want)?;
    }
    Ok(0)
}

/// `faccessat`
pub fn sys_faccessat<M: Machine>(ctx: &mut Ctx<'_, M>, dir: i32, path: u64, mode: u32) -> Result<usize, Errno> {
    check_access(ctx, dir, path, mode, 0)
}

/// `faccessat2`
pub fn sys_faccessat2<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    dir: i32,
    path: u64,
    mode: u32,
    flags: u32,
) -> Result<usize, Errno> {
    check_access(ctx, dir, path, mode, flags)
}

/// `access`
pub fn sys_access<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, mode: u32) -> Result<usize, Errno> {
    check_access(ctx, AT_FDCWD, path, mode, 0)
}

/// `ST_VALID` in the flags of a `struct statfs`.
const FLAGS_ARE_VALID: u32 = 0x20;

/// A `struct statfs`, as 64-bit words.
fn statfs_words<M: Machine>(ctx: &Ctx<'_, M>, dentry: &Dentry<M>) -> [u64; 15] {
    let s = ctx.vfs().space(&dentry.inode);
    let mut restrictions = dentry.restrictions();
    restrictions.set(Restrictions::READ_ONLY, dentry.refuses(Restrictions::READ_ONLY));
    let kind = match s.kind {
        "proc" => 0x9fa0,
        "sysfs" => 0x6265_6572,
        "devpts" => 0x1cd1,
        "mqueue" => 0x1980_0202,
        "pipefs" => 0x5049_5045,
        _ => 0x0102_1994,
    };
    let page = PAGE_SIZE as u64;
    let (pages, inodes) = (s.pages, s.inodes);
    [
        kind,
        page,
        pages.total,
        pages.free,
        pages.free,
        inodes.total,
        inodes.free,
        s.device,
        255,
        page,
        (raw::MS_NOATIME | FLAGS_ARE_VALID) as u64 | u64::from(restrictions.bits()),
        0,
        0,
        0,
        0,
    ]
}

/// `statfs`
pub fn sys_statfs<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, to: u64) -> Result<usize, Errno> {
    let (_, dentry) = find(ctx, AT_FDCWD, path, 0)?;
    ctx.write(to, &statfs_words(ctx, &dentry))?;
    Ok(0)
}

/// `fstatfs`
pub fn sys_fstatfs<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, to: u64) -> Result<usize, Errno> {
    let file = ctx.any_file(fd)?;
    ctx.write(to, &statfs_words(ctx, &file.dentry))?;
    Ok(0)
}
