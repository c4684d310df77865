//! Path arguments: directory descriptors, flags, and the walk to dentries.

use linux_raw_sys::general as raw;
use quire_fs::{Final, FoundPath, FsError};
use quire_heap::{Arc, Vec};
use quire_linux_state::file::host::{Dentry, File, FileHost, View};
use quire_linux_state::{Ctx, Errno, Machine};
use quire_lookup::Hold;

/// The value of a directory descriptor that means the working directory.
pub const AT_FDCWD: i32 = raw::AT_FDCWD;

/// The starting directory for `path`, given the directory descriptor `fd`.
pub fn base<M: Machine>(ctx: &Ctx<'_, M>, fd: i32, path: &[u8]) -> Result<Base<M>, Errno> {
    if fd == AT_FDCWD || path.first() == Some(&b'/') {
        return Ok(Base::WorkingDirectory);
    }
    Ok(Base::File(ctx.any_file(fd)?))
}

/// The starting directory of a relative path; see [`base`].
pub enum Base<M: Machine> {
    /// The view's working directory.
    WorkingDirectory,
    /// An open file.
    File(Arc<File<M>>),
}

impl<M: Machine> Base<M> {
    /// The directory's dentry. `view` supplies the working directory.
    pub fn of<'a>(&'a self, view: &'a View<M>) -> &'a Arc<Dentry<M>> {
        match self {
            Base::WorkingDirectory => view.cwd(),
            Base::File(file) => &file.dentry,
        }
    }
}

/// Walks the path at user address `at` to its last component, which may be missing.
pub fn walk<M: Machine>(
    ctx: &Ctx<'_, M>,
    fd: i32,
    at: u64,
    end: Final,
) -> Result<(View<M>, FoundPath<FileHost<M>>), Errno> {
    walk_path(ctx, fd, &ctx.path(at)?, end)
}

/// Does the work of [`walk`] for a path in kernel memory.
pub fn walk_path<M: Machine>(
    ctx: &Ctx<'_, M>,
    fd: i32,
    path: &[u8],
    end: Final,
) -> Result<(View<M>, FoundPath<FileHost<M>>), Errno> {
    let view = ctx.view()?;
    let base = base(ctx, fd, path)?;
    let found = ctx.vfs().walk(&view, base.of(&view), path, end)?;
    Ok((view, found))
}

/// Finds the dentry of the path at user address `at`. With AT_SYMLINK_NOFOLLOW, a symbolic link as the last component
/// is not followed. With AT_EMPTY_PATH, an empty path means the descriptor's file.
pub fn find<M: Machine>(ctx: &Ctx<'_, M>, fd: i32, at: u64, flags: u32) -> Result<(View<M>, Hold<Dentry<M>>), Errno> {
    let path = ctx.path(at)?;
    find_path(ctx, fd, &path, flags)
}

/// Does the work of [`find`] for a path in kernel memory.
pub fn find_path<M: Machine>(
    ctx: &Ctx<'_, M>,
    fd: i32,
    path: &[u8],
    flags: u32,
) -> Result<(View<M>, Hold<Dentry<M>>), Errno> {
    let view = ctx.view()?;
    if path.is_empty() && flags & raw::AT_EMPTY_PATH != 0 {
        let dentry = base(ctx, fd, path)?.of(&view).clone();
        return Ok((view, dentry.into()));
    }
    let base = base(ctx, fd, path)?;
    let dentry = ctx.vfs().find(&view, base.of(&view), path, flags & raw::AT_SYMLINK_NOFOLLOW == 0)?;
    Ok((view, dentry))
}

/// The absolute path of a dentry, from `root`. It has the suffix ` (deleted)` if the name was removed.
pub fn absolute<M: Machine>(root: &Arc<Dentry<M>>, dentry: &Arc<Dentry<M>>) -> Result<Vec<u8>, FsError> {
    let (mut path, exists) = Dentry::path(dentry, root)?;
    if !exists {
        path.try_extend_from_slice(b" (deleted)")?;
    }
    Ok(path)
}

/// Fails with EINVAL if `flags` has bits outside `known`.
pub fn only(flags: u32, known: u32) -> Result<(), Errno> {
    if flags & !known == 0 { Ok(()) } else { Err(Errno::EINVAL) }
}
