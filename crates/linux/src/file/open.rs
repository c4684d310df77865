//! Calls that open files, and the opening of files for exec and mmap.

use crate::file::path::{AT_FDCWD, Base, base, find_path};
use crate::file::terminals;
use linux_raw_sys::general as raw;
use quire_fs::Want;
use quire_fs::open_file::Body;
use quire_fs::seal::ToStore;
use quire_fs::{FileCredentials, FsError, Io, OpenFlags, Program, Resolve, Restrictions};
use quire_heap::Arc;
use quire_linux_state::file::executable::Executable;
use quire_linux_state::file::host::{Dentry, File, View};
use quire_linux_state::file::state::FsState;
use quire_linux_state::file::view::descriptor_limit;
use quire_linux_state::{Ctx, Errno, Linux, Machine};
use quire_lookup::Hold;
use quire_vm::Prot;
use quire_vm::object::ObjectRef;

/// Linux's O_LARGEFILE. On x86-64 every `open` sets it, and F_GETFL shows it.
const LARGE: u32 = 0o100_000;
/// The bit of O_TMPFILE that is not part of O_DIRECTORY.
const TMPFILE_BIT: u32 = 0o20_000_000;

/// All bits of Linux in [`PAIRS`].
const IN_PAIRS: u32 = {
    let (mut all, mut at) = (0, 0);
    while at < PAIRS.len() {
        all |= PAIRS[at].0;
        at += 1;
    }
    all
};

/// Pairs of a Linux flag and this kernel's flag. The access mode and the flag for large files are left out, because
/// [`open_flags`] always sets both.
const PAIRS: [(u32, OpenFlags); 13] = [
    (raw::O_APPEND, OpenFlags::APPEND),
    (raw::O_NONBLOCK, OpenFlags::NONBLOCK),
    (raw::O_CREAT, OpenFlags::CREATE),
    (raw::O_EXCL, OpenFlags::EXCLUSIVE),
    (raw::O_TRUNC, OpenFlags::TRUNCATE),
    (raw::O_DIRECTORY, OpenFlags::DIRECTORY),
    (raw::O_NOFOLLOW, OpenFlags::NOFOLLOW),
    (raw::O_PATH, OpenFlags::PATH),
    (raw::O_NOCTTY, OpenFlags::NO_TERMINAL),
    (raw::O_DSYNC, OpenFlags::SYNC),
    (raw::O_DIRECT, OpenFlags::DIRECT),
    (raw::O_NOATIME, OpenFlags::NOATIME),
    (raw::FASYNC, OpenFlags::ASYNC),
];

/// Converts Linux's open flags to ours.
pub fn open_flags(flags: u32) -> Result<OpenFlags, Errno> {
    if flags & raw::O_PATH != 0 {
        let mut out = OpenFlags::PATH;
        out.set(OpenFlags::DIRECTORY, flags & raw::O_DIRECTORY != 0);
        out.set(OpenFlags::NOFOLLOW, flags & raw::O_NOFOLLOW != 0);
        return Ok(out);
    }
    let mut out = match flags & raw::O_ACCMODE {
        raw::O_RDONLY => OpenFlags::READ,
        raw::O_WRONLY => OpenFlags::WRITE,
        raw::O_RDWR => OpenFlags::READ | OpenFlags::WRITE,
        _ => OpenFlags::empty(),
    };
    // Most calls have none of these flags, so the loop is skipped.
    if flags & IN_PAIRS != 0 {
        for (bit, ours) in PAIRS {
            out.set(ours, flags & bit != 0);
        }
    }
    out |= OpenFlags::LARGE;
    if flags & TMPFILE_BIT != 0 {
        if !out.contains(OpenFlags::DIRECTORY | OpenFlags::WRITE) || out.contains(OpenFlags::CREATE) {
            return Err(Errno::EINVAL);
        }
        out = out.difference(OpenFlags::DIRECTORY) | OpenFlags::NAMELESS;
    }
    if out.contains(OpenFlags::CREATE | OpenFlags::DIRECTORY) {
        return Err(Errno::EINVAL);
    }
    Ok(out)
}

/// Converts our flags to Linux's, as F_GETFL shows them.
pub fn linux_flags(flags: OpenFlags) -> u32 {
    let access = match (flags.contains(OpenFlags::READ), flags.contains(OpenFlags::WRITE)) {
        (true, true) => raw::O_RDWR,
        (false, true) => raw::O_WRONLY,
        _ => raw::O_RDONLY,
    };
    let mut shown = access | if flags.contains(OpenFlags::LARGE) { LARGE } else { 0 };
    const MODES: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE).union(OpenFlags::LARGE);
    if !(flags - MODES).is_empty() {
        shown = PAIRS.iter().filter(|(_, ours)| flags.contains(*ours)).fold(shown, |all, (bit, _)| all | bit);
    }
    if flags.contains(OpenFlags::NAMELESS) { shown | raw::O_DIRECTORY | TMPFILE_BIT } else { shown }
}

/// `openat`
pub fn sys_openat<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    dir: i32,
    path: u64,
    flags: u32,
    mode: u32,
) -> Result<usize, Errno> {
    let ours = open_flags(flags)?;
    let path = ctx.path(path)?;
    let view = ctx.view()?;
    let base = base(ctx, dir, &path);
    open_at(ctx, &view, base, &path, (flags, ours), mode)
}

/// Opens `path` in `view`, and returns the descriptor. A relative path begins at `base`. An error in `base` is reported
/// after errors of the earlier checks, as on Linux.
pub(super) fn open_at<M: Machine>(
    ctx: &Ctx<'_, M>,
    view: &View<M>,
    base: Result<Base<M>, Errno>,
    path: &[u8],
    (flags, ours): (u32, OpenFlags),
    mode: u32,
) -> Result<usize, Errno> {
    if path.is_empty() {
        return Err(Errno::ENOENT);
    }
    // As on Linux, the descriptor is reserved before the path is walked. If no descriptor is free, the call does not
    // make, truncate or wait for a file.
    let files = ctx.files()?;
    let descriptor = files.reserve(flags & raw::O_CLOEXEC != 0, descriptor_limit(ctx.thread))?;
    let base = base?;
    let thread = ctx.thread;
    let interrupted = || thread.interrupted();
    let io = Io { interrupted: &interrupted, keeps_set_ids: ctx.keeps_set_ids(), ..Io::WAIT };
    let file = ctx.vfs().open(view, base.of(view), path, ours, (mode & 0o7777) as u16, &io)?;
    // `O_DIRECT` is supported only for open pipes, which then transfer packets.
    if ours.contains(OpenFlags::DIRECT) && file.regular().is_none() {
        return Err(Errno::EINVAL);
    }
    if !ours.contains(OpenFlags::NO_TERMINAL) {
        terminals::claim_at_open(ctx, &file);
    }
    Ok(descriptor.fill(file) as usize)
}

/// `open`
pub fn sys_open<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, flags: u32, mode: u32) -> Result<usize, Errno> {
    sys_openat(ctx, AT_FDCWD, path, flags, mode)
}

/// `creat`
pub fn sys_creat<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, mode: u32) -> Result<usize, Errno> {
    sys_openat(ctx, AT_FDCWD, path, raw::O_CREAT | raw::O_WRONLY | raw::O_TRUNC, mode)
}

/// The executable file at `path`. `flags` are those of `execveat`.
pub fn open_executable<M: Machine>(
    ctx: &Ctx<'_, M>,
    directory: i32,
    path: &[u8],
    flags: u32,
) -> Result<Executable<M>, Errno> {
    crate::file::path::only(flags, raw::AT_EMPTY_PATH | raw::AT_SYMLINK_NOFOLLOW)?;
    let (view, dentry) = find_path(ctx, directory, path, flags)?;
    executable(&view, dentry)
}

/// Does the work of [`open_executable`] for the first process. That process has all rights, and no process runs yet.
pub fn first_executable<M: Machine>(linux: &Linux<M>, cwd: &FsState<M>, path: &[u8]) -> Result<Executable<M>, Errno> {
    let places = Arc::try_new(cwd.places())?;
    let view = View { places, credentials: FileCredentials::ROOT, umask: cwd.umask(), resolve: Resolve::empty() };
    let dentry = linux.files.vfs().find(&view, view.cwd(), path, true)?;
    executable(&view, dentry)
}

fn executable<M: Machine>(view: &View<M>, dentry: Hold<Dentry<M>>) -> Result<Executable<M>, Errno> {
    match dentry.inode.kind() {
        quire_fs::FileKind::Regular => {}
        quire_fs::FileKind::Symlink => return Err(Errno::ELOOP),
        _ => return Err(Errno::EACCES),
    }
    if dentry.refuses(Restrictions::NO_EXECUTION) {
        return Err(Errno::EACCES);
    }
    view.credentials.may(&dentry.inode, Want::EXECUTE)?;
    let readable = view.credentials.may(&dentry.inode, Want::READ).is_ok();
    Ok(Executable { dentry: Program::new(dentry)?, root: view.places.root.clone(), readable })
}

/// An open file that a process maps.
pub struct Mappable<M: Machine> {
    file: Arc<File<M>>,
    /// The maximum protection of the mapping, also for later `mprotect`.
    pub max_prot: Prot,
}

impl<M: Machine> Mappable<M> {
    /// The file's memory object. `None` means anonymous memory, as for `/dev/zero`.
    pub fn object(&self) -> Option<&ObjectRef<M>> {
        self.file.regular().map(|f| &f.object.0)
    }

    /// Announces to the file that a writable shared mapping follows; see [`quire_fs::inode::RegularFile::to_store`].
    pub fn to_store(&self) -> Result<Option<ToStore<'_>>, Errno> {
        Ok(self.file.regular().map_or(Ok(None), |file| file.to_store())?)
    }
}

/// The file of descriptor `fd`, for a mapping. `write` and `shared` say whether the mapping is writable and shared.
pub fn mappable<M: Machine>(ctx: &Ctx<'_, M>, fd: i32, write: bool, shared: bool) -> Result<Mappable<M>, Errno> {
    let file = ctx.file(fd)?;
    let flags = file.flags();
    let writable = flags.contains(OpenFlags::WRITE);
    if !flags.contains(OpenFlags::READ) || (shared && write && !writable) {
        return Err(Errno::EACCES);
    }
    let mut max_prot = if shared && !writable { Prot::READ | Prot::EXEC } else { Prot::all() };
    if file.dentry.refuses(Restrictions::NO_EXECUTION) {
        max_prot -= Prot::EXEC;
    }
    match file.body() {
        Body::File if file.regular().is_some() => Ok(Mappable { file, max_prot }),
        Body::Stream(s) if s.maps_zeroes() => Ok(Mappable { file, max_prot }),
        _ => Err(Errno::ENODEV),
    }
}

/// The errno for calls that are not restarted after a signal.
pub fn no_restart(e: FsError) -> Errno {
    match e {
        FsError::Interrupted => Errno::EINTR,
        e => e.into(),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn flags_come_back_as_they_were_given() {
        for flags in [raw::O_RDONLY, raw::O_WRONLY | raw::O_APPEND, raw::O_RDWR | raw::O_NONBLOCK] {
            assert_eq!(linux_flags(open_flags(flags).unwrap()), flags | LARGE);
        }
        assert!(open_flags(raw::O_TMPFILE).is_err());
        assert!(open_flags(raw::O_TMPFILE | raw::O_RDWR).unwrap().contains(OpenFlags::NAMELESS));
    }
}
