//! Process files: `pidfd_open` and the descriptors of `CLONE_PIDFD`.
//!
//! A file keeps its process structure alive, but not the process id. After the process was reaped, the id may belong to
//! another process. So every use of the id checks the stage of the process first.

use crate::file::path::only;
use core::any::Any;
use linux_raw_sys::general as raw;
use quire_fs::generated::Generated;
use quire_fs::{FileCredentials, FsError, InodeContent, Io, OpenFlags, Readiness, Ready, Sink, Source, Stream};
use quire_heap::{Arc, unsize};
use quire_linux_state::Pid;
use quire_linux_state::ctx::Ctx;
use quire_linux_state::errno::Errno;
use quire_linux_state::file::files::Reserved;
use quire_linux_state::file::host::File;
use quire_linux_state::file::view::descriptor_limit;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::Process;
use quire_linux_state::process::access::By;
use quire_linux_state::process::stage::Stage;

/// A file that refers to a process.
pub struct PidFile<M: Machine>(pub Arc<Process<M>>);

impl<M: Machine> Stream for PidFile<M> {
    fn read(&self, _io: &Io<'_>, _sink: &mut dyn Sink) -> Result<usize, FsError> {
        Err(FsError::Invalid)
    }
    fn write(&self, _io: &Io<'_>, _source: &mut dyn Source) -> Result<usize, FsError> {
        Err(FsError::Invalid)
    }
    fn ready(&self) -> Ready {
        match self.0.stage() {
            Stage::Alive => Ready::empty(),
            Stage::Ended => Ready::READ,
            Stage::Reaped => Ready::READ | Ready::HANGUP,
        }
    }
    fn readiness(&self) -> Option<&Readiness> {
        self.0.own_files.get()
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Makes a file for `process`. `flags` may have OpenFlags::NONBLOCK.
fn file_of<M: Machine>(ctx: &Ctx<'_, M>, process: &Arc<Process<M>>, flags: OpenFlags) -> Result<Arc<File<M>>, Errno> {
    process.own_files.get_or_make(Readiness::new)?;
    let stream = Arc::try_new(PidFile(process.clone()))?;
    let flags = flags | OpenFlags::READ | OpenFlags::WRITE;
    Ok(ctx.vfs().nameless_stream(&FileCredentials::ROOT, "[pidfd]", unsize!(stream), flags, false)?)
}

/// A reserved descriptor and the file for a new process, which no other thread can find yet.
pub(super) struct NewPidFile<'a, M: Machine>(Reserved<'a, M>, Arc<File<M>>);

impl<'a, M: Machine> NewPidFile<'a, M> {
    /// Makes the file, and stores its descriptor at the user address `to`.
    pub fn new(ctx: &'a Ctx<'_, M>, process: &Arc<Process<M>>, to: u64) -> Result<Self, Errno> {
        let place = ctx.files()?.reserve(true, descriptor_limit(ctx.thread))?;
        let file = file_of(ctx, process, OpenFlags::empty())?;
        ctx.write(to, &place.number())?;
        Ok(NewPidFile(place, file))
    }

    /// Installs the file. The caller has made the process visible.
    pub fn open(self) {
        self.0.fill(self.1);
    }
}

/// The process of descriptor `fd`, and whether the file is nonblocking. EBADF if the file is no process file.
pub(crate) fn process_of<M: Machine>(ctx: &Ctx<'_, M>, fd: i32) -> Result<(Arc<Process<M>>, bool), Errno> {
    let file = ctx.file(fd)?;
    let process = &file.stream_as::<PidFile<M>>().ok_or(Errno::EBADF)?.0;
    Ok((process.clone(), file.flags().contains(OpenFlags::NONBLOCK)))
}

/// Does the work of [`process_of`], but also accepts a process's directory in `/proc`.
pub(crate) fn process_or_directory_of<M: Machine>(ctx: &Ctx<'_, M>, fd: i32) -> Result<Arc<Process<M>>, Errno> {
    let file = ctx.file(fd)?;
    if let InodeContent::Generated(Generated::Directory(directory)) = &file.dentry.inode.node {
        let process = directory.subject().and_then(|subject| subject.downcast_ref::<Arc<Process<M>>>());
        return process.cloned().ok_or(Errno::EBADF);
    }
    Ok(process_of(ctx, fd)?.0)
}

/// `pidfd_open`
pub fn sys_pidfd_open<M: Machine>(ctx: &mut Ctx<'_, M>, pid: i32, flags: u32) -> Result<usize, Errno> {
    only(flags, raw::O_NONBLOCK)?;
    if pid <= 0 {
        return Err(Errno::EINVAL);
    }
    let process = ctx.linux.ids.process_of_thread(pid as Pid).ok_or(Errno::ESRCH)?;
    if process.pid != pid as Pid {
        return Err(Errno::EINVAL);
    }
    let mut ours = OpenFlags::empty();
    ours.set(OpenFlags::NONBLOCK, flags & raw::O_NONBLOCK != 0);
    let file = file_of(ctx, &process, ours)?;
    ctx.install(file, true)
}

/// `pidfd_getfd`
pub fn sys_pidfd_getfd<M: Machine>(ctx: &mut Ctx<'_, M>, pidfd: i32, fd: i32, flags: u32) -> Result<usize, Errno> {
    only(flags, 0)?;
    let (process, _) = process_of(ctx, pidfd)?;
    if process.stage() != Stage::Alive {
        return Err(Errno::ESRCH);
    }
    let before = process.look_at(process.pid, ctx.thread, By::Real)?;
    let files = {
        let threads = process.threads.lock();
        let task = threads.get(process.pid).or_else(|| threads.any()).cloned();
        drop(threads);
        let task = task.ok_or(Errno::ESRCH)?;
        task.payload().as_ref().and_then(|thread| thread.files.look(|files| files.clone())).ok_or(Errno::ESRCH)?
    };
    let file = u32::try_from(fd).ok().and_then(|fd| files.peek(fd)).ok_or(Errno::EBADF)?;
    // The first check was for the program that the process ran then. The check is repeated, because the process may
    // have executed another program since.
    let after = process.look_at(process.pid, ctx.thread, By::Real)?;
    if !before.is_of_same_program(&after) {
        return Err(Errno::EPERM);
    }
    ctx.install(file, true)
}
