//! `fcntl` and `flock`.

use crate::file::inotify::Notifier;
use crate::file::leases;
use crate::file::open::{linux_flags, open_flags};
use linux_raw_sys::general as raw;
use quire_fs::lock::{Owner, Record};
use quire_fs::open_file::OFFSET_MAX;
use quire_fs::{FileKind, Host, Io, OpenFlags, Seals};
use quire_heap::Arc;
use quire_linux_state::file::host::File;
use quire_linux_state::file::notices::command;
use quire_linux_state::file::view::descriptor_limit;
use quire_linux_state::file::{notices, pipes};
use quire_linux_state::socket::host::Socket;
use quire_linux_state::{Ctx, Errno, Machine};

// Linux's numbers that are not in the generated constants.
const F_DUPFD_QUERY: u32 = 1024 + 3;
const F_CREATED_QUERY: u32 = 1024 + 4;

/// Whether the file sends signals when it becomes ready (`O_ASYNC`). As on Linux, nameless files other than inotify
/// instances only store the flag. A `signalfd` must not send signals: a signal makes the file ready, so each signal
/// would cause another signal.
fn signals_readiness<M: Machine>(file: &File<M>) -> bool {
    match file.dentry.inode.kind() {
        FileKind::Fifo | FileKind::Socket | FileKind::CharDevice => true,
        _ => file.stream_as::<Notifier>().is_some() || file.stream_as::<Socket<M>>().is_some(),
    }
}

/// Switches signals for the readiness of `file` on or off, for a change of `O_ASYNC`.
pub(super) fn set_async<M: Machine>(ctx: &Ctx<'_, M>, file: &Arc<File<M>>, fd: i32, on: bool) -> Result<(), Errno> {
    if signals_readiness(file) { notices::set_async(ctx, file, fd, on) } else { Ok(()) }
}

/// `fcntl`
pub fn sys_fcntl<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, command: u32, argument: u64) -> Result<usize, Errno> {
    let file = ctx.any_file(fd)?;
    let number = fd as u32;
    let duplicates = command == raw::F_DUPFD || command == raw::F_DUPFD_CLOEXEC;
    if file.flags().contains(OpenFlags::PATH)
        && !duplicates
        && !matches!(command, raw::F_GETFD | raw::F_SETFD | raw::F_GETFL | F_DUPFD_QUERY | F_CREATED_QUERY)
    {
        return Err(Errno::EBADF);
    }
    match command {
        raw::F_DUPFD | raw::F_DUPFD_CLOEXEC => {
            let limit = descriptor_limit(ctx.thread);
            if argument >= limit {
                return Err(Errno::EINVAL);
            }
            let close = command == raw::F_DUPFD_CLOEXEC;
            Ok(ctx.files()?.insert(file, close, argument as u32, limit)? as usize)
        }
        // Returns 1 if the other descriptor refers to the same open file.
        F_DUPFD_QUERY => Ok(usize::from(Arc::ptr_eq(&file, &ctx.any_file(argument as i32)?))),
        F_CREATED_QUERY => Ok(usize::from(file.flags().contains(OpenFlags::CREATED))),
        raw::F_GETFD => Ok(usize::from(ctx.files()?.closes_on_exec(number)?)),
        raw::F_SETFD => {
            ctx.files()?.set_close_on_exec(number, argument as u32 & raw::FD_CLOEXEC != 0)?;
            Ok(0)
        }
        raw::F_GETFL => Ok(linux_flags(file.flags()) as usize),
        raw::F_SETFL => {
            let changeable = raw::O_APPEND | raw::O_NONBLOCK | raw::O_DIRECT | raw::O_NOATIME | raw::FASYNC;
            let new = open_flags(argument as u32 & changeable)?;
            if new.contains(OpenFlags::DIRECT) && file.regular().is_none() && pipes::size(&file).is_err() {
                return Err(Errno::EINVAL);
            }
            if (new - file.flags()).contains(OpenFlags::NOATIME)
                && !ctx.file_credentials().owns(&file.dentry.inode.fixed_attr())
            {
                return Err(Errno::EPERM);
            }
            if (new ^ file.flags()).contains(OpenFlags::ASYNC) {
                set_async(ctx, &file, fd, new.contains(OpenFlags::ASYNC))?;
            }
            file.set_flags(new);
            Ok(0)
        }
        raw::F_GETLK | raw::F_OFD_GETLK => test_lock(ctx, &file, argument, command == raw::F_OFD_GETLK),
        raw::F_SETLK | raw::F_OFD_SETLK => set_lock(ctx, &file, argument, command == raw::F_OFD_SETLK, false),
        raw::F_SETLKW | raw::F_OFD_SETLKW => set_lock(ctx, &file, argument, command == raw::F_OFD_SETLKW, true),
        raw::F_SETOWN => notices::set_owner_by_number(ctx, &file, argument as i32).map(|()| 0),
        raw::F_GETOWN => Ok(notices::owner_as_number(&file) as isize as usize),
        raw::F_SETSIG => notices::set_signal(ctx, &file, argument).map(|()| 0),
        raw::F_GETSIG => Ok(notices::signal(&file).into()),
        command::SETOWN_EX => {
            let [kind, id] = ctx.read::<[i32; 2]>(argument)?;
            let id = u32::try_from(id).map_err(|_| Errno::ESRCH)?;
            notices::set_owner(ctx, &file, kind, id).map(|()| 0)
        }
        command::GETOWN_EX => {
            let (kind, id) = notices::owner(&file);
            ctx.write(argument, &[kind, id])?;
            Ok(0)
        }
        command::GETOWNER_UIDS => {
            ctx.write(argument, &notices::owner_users(&file))?;
            Ok(0)
        }
        command::NOTIFY => notices::notify(ctx, &file, fd, argument as u32).map(|()| 0),
        command::SETLEASE => leases::set(ctx, &file, fd, argument as u32).map(|()| 0),
        command::GETLEASE => Ok(leases::get(&file) as usize),
        raw::F_GETPIPE_SZ => pipes::size(&file),
        raw::F_SETPIPE_SZ => pipes::set_size(ctx, &file, argument as u32),
        raw::F_GET_SEALS => {
            let seals = file.regular().and_then(|_| file.dentry.inode.seals());
            seals.map(|seals| seals.bits() as usize).ok_or(Errno::EINVAL)
        }
        raw::F_ADD_SEALS => {
            if !file.flags().contains(OpenFlags::WRITE) {
                return Err(Errno::EPERM);
            }
            let seals = Seals::from_bits(argument as u32).ok_or(Errno::EINVAL)?;
            file.regular().ok_or(Errno::EINVAL)?;
            file.dentry.inode.add_seals(seals)?;
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// A checked `struct flock`: the kind of the lock, and the range of bytes.
struct Flock {
    kind: u32,
    start: u64,
    end: u64,
}

fn read_flock<M: Machine>(ctx: &Ctx<'_, M>, file: &File<M>, at: u64, by_file: bool) -> Result<Flock, Errno> {
    let [head, start, len, pid] = ctx.read::<[u64; 4]>(at)?;
    let (kind, whence) = (head as u16 as i16, (head >> 16) as u16 as i16);
    if by_file && pid as u32 != 0 {
        return Err(Errno::EINVAL);
    }
    let base = match whence as u32 {
        raw::SEEK_SET => 0,
        raw::SEEK_CUR => file.position(),
        raw::SEEK_END => file.dentry.inode.status().size,
        _ => return Err(Errno::EINVAL),
    };
    let fits = |v: u64, most: u64| if v <= most { Ok(v) } else { Err(Errno::EOVERFLOW) };
    let start = fits(base.checked_add_signed(start as i64).ok_or(Errno::EINVAL)?, OFFSET_MAX)?;
    let (start, end) = match len as i64 {
        0 => (start, OFFSET_MAX + 1),
        len if len > 0 => (start, start.checked_add(len as u64).ok_or(Errno::EOVERFLOW)?),
        len => (start.checked_add_signed(len).ok_or(Errno::EINVAL)?, start),
    };
    Ok(Flock { kind: kind as u32, start, end: fits(end, OFFSET_MAX + 1)? })
}

fn owner<M: Machine>(ctx: &Ctx<'_, M>, file: &File<M>, by_file: bool) -> Result<Owner, Errno> {
    Ok(if by_file { Owner::File(file.lock_owner()) } else { Owner::Process { id: ctx.files()?.id(), pid: ctx.pid() } })
}

fn test_lock<M: Machine>(ctx: &Ctx<'_, M>, file: &File<M>, at: u64, by_file: bool) -> Result<usize, Errno> {
    let lock = read_flock(ctx, file, at, by_file)?;
    let exclusive = match lock.kind {
        raw::F_RDLCK => false,
        raw::F_WRLCK => true,
        _ => return Err(Errno::EINVAL),
    };
    let wanted = Record { start: lock.start, end: lock.end, exclusive, owner: owner(ctx, file, by_file)? };
    match file.dentry.inode.locks.test(&wanted) {
        None => ctx.write(at, &(raw::F_UNLCK as u16))?,
        Some(r) => {
            let kind = if r.exclusive { raw::F_WRLCK } else { raw::F_RDLCK };
            let len = if r.end > OFFSET_MAX { 0 } else { r.end - r.start };
            let pid = match r.owner {
                Owner::Process { pid, .. } => u64::from(pid),
                Owner::File(_) => u64::from(u32::MAX),
            };
            ctx.write(at, &[u64::from(kind), r.start, len, pid])?;
        }
    }
    Ok(0)
}

fn set_lock<M: Machine>(ctx: &Ctx<'_, M>, file: &File<M>, at: u64, by_file: bool, wait: bool) -> Result<usize, Errno> {
    let lock = read_flock(ctx, file, at, by_file)?;
    let owner = owner(ctx, file, by_file)?;
    let locks = &file.dentry.inode.locks;
    let flags = file.flags();
    let exclusive = match lock.kind {
        raw::F_UNLCK => {
            locks.unlock(owner, lock.start, lock.end).map_err(|_| Errno::ENOLCK)?;
            return Ok(0);
        }
        raw::F_RDLCK if flags.contains(OpenFlags::READ) => false,
        raw::F_WRLCK if flags.contains(OpenFlags::WRITE) => true,
        raw::F_RDLCK | raw::F_WRLCK => return Err(Errno::EBADF),
        _ => return Err(Errno::EINVAL),
    };
    let thread = ctx.thread;
    let interrupted = || thread.interrupted();
    let io = Io { nonblock: !wait, interrupted: &interrupted, ..Io::WAIT };
    let wanted = Record { start: lock.start, end: lock.end, exclusive, owner };
    let host = ctx.vfs().host();
    locks.lock_charged(wanted, &io, &|n| host.charge_locks(n)).map_err(|e| match e {
        quire_fs::FsError::OutOfMemory => Errno::ENOLCK,
        e => e.into(),
    })?;
    Ok(0)
}

/// `flock`
pub fn sys_flock<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, operation: u32) -> Result<usize, Errno> {
    /// The flag for mandatory locks. Linux no longer supports such locks, and returns success.
    const LOCK_MAND: u32 = 32;
    if operation & LOCK_MAND != 0 {
        return Ok(0);
    }
    let operation_only = operation & !raw::LOCK_NB;
    if !matches!(operation_only, raw::LOCK_SH | raw::LOCK_EX | raw::LOCK_UN) {
        return Err(Errno::EINVAL);
    }
    let file = ctx.file(fd)?;
    let locks = &file.dentry.inode.locks;
    if operation_only == raw::LOCK_UN {
        locks.unlock_whole(file.lock_owner());
        return Ok(0);
    }
    let exclusive = operation_only == raw::LOCK_EX;
    let thread = ctx.thread;
    let interrupted = || thread.interrupted();
    let io = Io { nonblock: operation & raw::LOCK_NB != 0, interrupted: &interrupted, ..Io::WAIT };
    locks.lock_whole(file.lock_owner(), exclusive, &io)?;
    Ok(0)
}
