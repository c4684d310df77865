//! Files without names: pipes, event counters, memory files.

use crate::file::path::only;
use linux_raw_sys::general as raw;
use quire_fs::event::Event;
use quire_fs::{FileCredentials, OpenFlags, Seals};
use quire_heap::{Arc, unsize};
use quire_linux_state::file::host::File;
use quire_linux_state::{Ctx, Errno, Machine};

const BOTH: OpenFlags = OpenFlags::READ.union(OpenFlags::WRITE);

/// Installs two files and stores their descriptors at `to`. On failure, neither descriptor stays.
pub(crate) fn install_two<M: Machine>(
    ctx: &Ctx<'_, M>,
    files: (Arc<File<M>>, Arc<File<M>>),
    close_on_exec: bool,
    to: u64,
) -> Result<usize, Errno> {
    let first = ctx.install(files.0, close_on_exec)?;
    let undo = |fd: usize| {
        if let Ok(table) = ctx.files() {
            drop(table.remove(fd as u32));
        }
    };
    let second = ctx.install(files.1, close_on_exec).inspect_err(|_| undo(first))?;
    ctx.write(to, &[first as u32, second as u32]).inspect_err(|_| {
        undo(first);
        undo(second);
    })?;
    Ok(0)
}

/// `pipe2`
pub fn sys_pipe2<M: Machine>(ctx: &mut Ctx<'_, M>, to: u64, flags: u32) -> Result<usize, Errno> {
    only(flags, raw::O_CLOEXEC | raw::O_NONBLOCK | raw::O_DIRECT)?;
    let mut ours = OpenFlags::empty();
    ours.set(OpenFlags::NONBLOCK, flags & raw::O_NONBLOCK != 0);
    ours.set(OpenFlags::DIRECT, flags & raw::O_DIRECT != 0);
    let ends = ctx.vfs().pipe(&ctx.file_credentials(), ours)?;
    install_two(ctx, ends, flags & raw::O_CLOEXEC != 0, to)
}

/// `pipe`
pub fn sys_pipe<M: Machine>(ctx: &mut Ctx<'_, M>, to: u64) -> Result<usize, Errno> {
    sys_pipe2(ctx, to, 0)
}

/// `eventfd2`
pub fn sys_eventfd2<M: Machine>(ctx: &mut Ctx<'_, M>, count: u32, flags: u32) -> Result<usize, Errno> {
    only(flags, raw::EFD_SEMAPHORE | raw::EFD_CLOEXEC | raw::EFD_NONBLOCK)?;
    let event = Event::new(u64::from(count), flags & raw::EFD_SEMAPHORE != 0)?;
    let mut ours = BOTH;
    ours.set(OpenFlags::NONBLOCK, flags & raw::EFD_NONBLOCK != 0);
    let file = ctx.vfs().nameless_stream(&FileCredentials::ROOT, "[eventfd]", unsize!(event), ours, false)?;
    ctx.install(file, flags & raw::EFD_CLOEXEC != 0)
}

/// `eventfd`
pub fn sys_eventfd<M: Machine>(ctx: &mut Ctx<'_, M>, count: u32) -> Result<usize, Errno> {
    sys_eventfd2(ctx, count, 0)
}

/// `memfd_create`
pub fn sys_memfd_create<M: Machine>(ctx: &mut Ctx<'_, M>, name: u64, flags: u32) -> Result<usize, Errno> {
    /// The most bytes of a name: Linux's NAME_MAX without the prefix "memfd:".
    const NAME: usize = 249;
    const MFD_NOEXEC_SEAL: u32 = 8;
    const MFD_EXEC: u32 = 16;
    only(flags, raw::MFD_CLOEXEC | raw::MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL | MFD_EXEC)?;
    if flags & MFD_EXEC != 0 && flags & MFD_NOEXEC_SEAL != 0 {
        return Err(Errno::EINVAL);
    }
    let seals = match flags & (MFD_NOEXEC_SEAL | raw::MFD_ALLOW_SEALING) {
        0 => Seals::SEAL,
        raw::MFD_ALLOW_SEALING => Seals::empty(),
        _ => Seals::EXEC,
    };
    let name = ctx.user().read_string(name, NAME, Errno::EINVAL)?;
    let file = ctx.vfs().memory_file(&ctx.file_credentials(), &name, BOTH, seals)?;
    ctx.install(file, flags & raw::MFD_CLOEXEC != 0)
}
