//! Path arguments: directory descriptors, flags, and the way to dentries.

use super::{Dentry, File, FileHost, View};
use crate::{Ctx, Errno, Machine};
use linux_raw_sys::general as raw;
use quire_fs::{Final, Found, FsError, OpenFlags, Vfs};
use quire_heap::{Arc, Vec};
use quire_lookup::Hold;

/// "The working directory", where a directory descriptor is asked for.
pub const AT_FDCWD: i32 = raw::AT_FDCWD;

impl<M: Machine> Ctx<'_, M> {
    /// All files.
    pub fn vfs(&self) -> &'static Arc<Vfs<FileHost<M>>> {
        self.linux.files.vfs()
    }

    /// The open file of a descriptor argument; not one that only names something.
    #[inline]
    pub fn file(&self, fd: i32) -> Result<Arc<File<M>>, Errno> {
        let file = self.any_file(fd)?;
        if file.flags().contains(OpenFlags::PATH) { Err(Errno::EBADF) } else { Ok(file) }
    }

    /// The open file of a descriptor argument, also one that only names something.
    #[inline]
    pub fn any_file(&self, fd: i32) -> Result<Arc<File<M>>, Errno> {
        // SAFETY: a context is the calling thread's.
        unsafe { self.files()?.get(u32::try_from(fd).map_err(|_| Errno::EBADF)?) }
    }
}

/// Where relative path `path` starts, for directory descriptor `fd`.
pub fn base<M: Machine>(ctx: &Ctx<'_, M>, fd: i32, path: &[u8]) -> Result<Base<M>, Errno> {
    if fd == AT_FDCWD || path.first() == Some(&b'/') {
        return Ok(Base::WorkingDirectory);
    }
    Ok(Base::File(ctx.any_file(fd)?))
}

/// Where a relative path starts; see [`base`].
pub enum Base<M: Machine> {
    /// In the view's working directory.
    WorkingDirectory,
    /// At an open file.
    File(Arc<File<M>>),
}

impl<M: Machine> Base<M> {
    /// The directory, for who has `view`.
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
) -> Result<(View<M>, Found<FileHost<M>>), Errno> {
    let path = ctx.path(at)?;
    let view = ctx.view()?;
    let base = base(ctx, fd, &path)?;
    let found = ctx.vfs().walk(&view, base.of(&view), &path, end)?;
    Ok((view, found))
}

/// What the path at user address `at` leads to. With AT_SYMLINK_NOFOLLOW a link at its end is not followed; with
/// AT_EMPTY_PATH an empty path means what the descriptor names.
pub fn find<M: Machine>(ctx: &Ctx<'_, M>, fd: i32, at: u64, flags: u32) -> Result<(View<M>, Hold<Dentry<M>>), Errno> {
    let path = ctx.path(at)?;
    find_path(ctx, fd, &path, flags)
}

/// As [`find`], for a path that was read already.
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

/// The absolute path of a dentry as the caller sees it; `(deleted)` where the name is gone.
pub fn absolute<M: Machine>(root: &Arc<Dentry<M>>, dentry: &Arc<Dentry<M>>) -> Result<Vec<u8>, FsError> {
    let (mut path, exists) = Dentry::path(dentry, root)?;
    if !exists {
        path.try_extend_from_slice(b" (deleted)")?;
    }
    Ok(path)
}

/// Refuses flags that a call does not know.
pub fn only(flags: u32, known: u32) -> Result<(), Errno> {
    if flags & !known == 0 { Ok(()) } else { Err(Errno::EINVAL) }
}
