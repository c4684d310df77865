//! `openat2`: `openat` with restrictions on the path walk, which refuses unknown flags.

use crate::file::open::{open_at, open_flags};
use crate::file::path::{Base, base};
use linux_raw_sys::general as raw;
use quire_fs::{Places, Resolve, StartDirectory};
use quire_heap::Arc;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::{Ctx, Errno, Machine};

/// The size in bytes of the first version of `open_how` (`SIZE`), and the largest size that programs may pass (`MOST`).
const SIZE: u64 = 24;
const MOST: u64 = 4096;
/// The flags that `open` supports. `openat2` refuses all others.
const FLAGS: u64 = (raw::O_ACCMODE
    | raw::O_CREAT
    | raw::O_EXCL
    | raw::O_NOCTTY
    | raw::O_TRUNC
    | raw::O_APPEND
    | raw::O_NONBLOCK
    | raw::O_DSYNC
    | raw::O_SYNC
    | raw::FASYNC
    | raw::O_DIRECT
    | 0o100_000
    | raw::O_DIRECTORY
    | raw::O_NOFOLLOW
    | raw::O_NOATIME
    | raw::O_CLOEXEC
    | raw::O_PATH
    | raw::O_TMPFILE) as u64;
/// The flags that may be combined with O_PATH.
const BESIDE_PATH: u64 = (raw::O_DIRECTORY | raw::O_NOFOLLOW | raw::O_PATH | raw::O_CLOEXEC) as u64;
/// The bit of O_TMPFILE that is not part of O_DIRECTORY.
const TMPFILE_BIT: u64 = (raw::O_TMPFILE & !raw::O_DIRECTORY) as u64;

const NO_CROSSING: u64 = 1;
const NO_MAGIC_LINKS: u64 = 2;
const NO_LINKS: u64 = 4;
const BENEATH: u64 = 8;
const IN_ROOT: u64 = 0x10;
const CACHED: u64 = 0x20;

/// Checks the arguments, and returns the flags, the mode, and the restrictions of the walk.
fn checked(flags: u64, mode: u64, resolve: u64) -> Result<(u32, u32, Resolve), Errno> {
    let makes = flags & (u64::from(raw::O_CREAT) | TMPFILE_BIT) != 0;
    let known = NO_CROSSING | NO_MAGIC_LINKS | NO_LINKS | BENEATH | IN_ROOT | CACHED;
    let both = BENEATH | IN_ROOT;
    if flags & !FLAGS != 0 || resolve & !known != 0 || resolve & both == both {
        return Err(Errno::EINVAL);
    }
    if mode & !0o7777 != 0 || mode != 0 && !makes {
        return Err(Errno::EINVAL);
    }
    if flags & u64::from(raw::O_PATH) != 0 && flags & !BESIDE_PATH != 0 {
        return Err(Errno::EINVAL);
    }
    // RESOLVE_CACHED asks for a walk without I/O. No walk of this kernel does I/O, so only calls that change the tree
    // are refused.
    if resolve & CACHED != 0 && (makes || flags & u64::from(raw::O_TRUNC) != 0) {
        return Err(Errno::EAGAIN);
    }
    let mut limits = Resolve::empty();
    limits.set(Resolve::NO_CROSSING, resolve & NO_CROSSING != 0);
    limits.set(Resolve::NO_JUMPS, resolve & NO_MAGIC_LINKS != 0);
    limits.set(Resolve::NO_LINKS, resolve & NO_LINKS != 0);
    limits.set(Resolve::BENEATH, resolve & BENEATH != 0);
    limits.set(Resolve::IN_ROOT, resolve & IN_ROOT != 0);
    Ok((flags as u32, mode as u32, limits))
}

/// `openat2`
pub fn sys_openat2<M: Machine>(ctx: &mut Ctx<'_, M>, dir: i32, path: u64, how: u64, size: u64) -> Result<usize, Errno> {
    if size < SIZE {
        return Err(Errno::EINVAL);
    }
    if size > MOST {
        return Err(Errno::E2BIG);
    }
    let [flags, mode, resolve] = ctx.read::<[u64; 3]>(how)?;
    // A longer structure of a later version must have only zeroes after the first version.
    let rest = how.checked_add(SIZE).ok_or(Errno::EFAULT)?;
    if !ctx.user().is_zero(rest, (size - SIZE) as usize)? {
        return Err(Errno::E2BIG);
    }
    let (flags, mode, limits) = checked(flags, mode, resolve)?;
    let ours = open_flags(flags)?;
    let path = ctx.path(path)?;
    let mut view = ctx.view()?;
    if limits.contains(Resolve::IN_ROOT) {
        // An absolute path also begins at the directory, so the directory is the root of the view.
        let base = match dir {
            crate::file::path::AT_FDCWD => view.cwd().clone(),
            fd => ctx.any_file(fd)?.dentry.clone(),
        };
        let start = StartDirectory::Counted(base);
        view.places = Arc::try_new(Places { root: start.clone(), cwd: start })?;
        view.resolve = limits;
        return open_at(ctx, &view, Ok(Base::WorkingDirectory), &path, (flags, ours), mode);
    }
    view.resolve = limits;
    let base = base(ctx, dir, &path);
    open_at(ctx, &view, base, &path, (flags, ours), mode)
}

/// `name_to_handle_at`. No file system supports handles, so the call fails after the checks.
pub fn sys_name_to_handle_at<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    dir: i32,
    path: u64,
    _handle: u64,
    _mount: u64,
    flags: u32,
) -> Result<usize, Errno> {
    crate::file::path::only(flags, raw::AT_EMPTY_PATH | raw::AT_SYMLINK_FOLLOW | AT_HANDLE_FLAGS)?;
    let follow = if flags & raw::AT_SYMLINK_FOLLOW != 0 { 0 } else { raw::AT_SYMLINK_NOFOLLOW };
    crate::file::path::find(ctx, dir, path, flags & raw::AT_EMPTY_PATH | follow)?;
    Err(Errno::EOPNOTSUPP)
}

/// Linux's AT_HANDLE_FID and AT_HANDLE_MNT_ID_UNIQUE.
const AT_HANDLE_FLAGS: u32 = 0x201;

/// `open_by_handle_at`. No file system supports handles, so no handle is valid.
pub fn sys_open_by_handle_at<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    mount: i32,
    handle: u64,
    _flags: u32,
) -> Result<usize, Errno> {
    if mount != crate::file::path::AT_FDCWD {
        ctx.file(mount)?;
    }
    if !ctx.credentials().may(cap::DAC_READ_SEARCH) {
        return Err(Errno::EPERM);
    }
    let [bytes, _kind] = ctx.read::<[u32; 2]>(handle)?;
    if bytes == 0 || bytes > MAX_HANDLE_BYTES {
        return Err(Errno::EINVAL);
    }
    Err(Errno::ESTALE)
}

/// Linux's MAX_HANDLE_SZ.
const MAX_HANDLE_BYTES: u32 = 128;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn unknown_bits_are_refused() {
        let of = |flags: u32, mode, resolve| checked(u64::from(flags), mode, resolve).map(|(.., limits)| limits);
        assert_eq!(of(raw::O_RDWR, 0, BENEATH), Ok(Resolve::BENEATH));
        assert_eq!(of(raw::O_RDWR | raw::O_CREAT, 0o644, 0), Ok(Resolve::empty()));
        assert_eq!(of(raw::O_RDWR, 0o644, 0), Err(Errno::EINVAL));
        assert_eq!(of(raw::O_CREAT, 0o10_000, 0), Err(Errno::EINVAL));
        assert_eq!(of(raw::O_RDWR, 0, BENEATH | IN_ROOT), Err(Errno::EINVAL));
        assert_eq!(of(raw::O_RDWR, 0, 0x40), Err(Errno::EINVAL));
        assert_eq!(of(raw::O_PATH | raw::O_RDWR, 0, 0), Err(Errno::EINVAL));
        assert_eq!(of(raw::O_TRUNC, 0, CACHED), Err(Errno::EAGAIN));
        assert_eq!(checked(1 << 32, 0, 0).err(), Some(Errno::EINVAL));
    }
}
