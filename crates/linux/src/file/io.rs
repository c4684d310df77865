//! Calls that read, write and seek, and calls that copy data between files.

use crate::file::park::{attempt, sleep};
use crate::file::path::{AT_FDCWD, find, only};
use crate::file::splice;
use linux_raw_sys::general as raw;
use quire_fs::Want;
use quire_fs::open_file::{Body, OFFSET_MAX};
use quire_fs::transfer::Limited;
use quire_fs::{FileKind, FsError, Happening, Io, OpenFlags, Sink, SliceSink, SliceSource, Source, Whence};
use quire_heap::{Arc, Vec};
use quire_linux_state::file::host::File;
use quire_linux_state::process::limits::which;
use quire_linux_state::process::sleep::StreamCall;
use quire_linux_state::signal::Signal;
use quire_linux_state::socket::host::Socket;
use quire_linux_state::user::transfer::{MOST, Vectors};
use quire_linux_state::{Ctx, Errno, Machine};

pub(super) fn read_with<M: Machine>(
    ctx: &Ctx<'_, M>,
    to: &Vectors,
    read: impl FnOnce(&Io<'_>, &mut dyn Sink) -> Result<usize, FsError>,
) -> Result<usize, Errno> {
    let thread = ctx.thread;
    let interrupted = || thread.interrupted();
    let io = Io { interrupted: &interrupted, ..Io::WAIT };
    Ok(read(&io, &mut to.transfer(ctx.user()))?)
}

pub(super) fn write_with<M: Machine>(
    ctx: &Ctx<'_, M>,
    file: &File<M>,
    from: &Vectors,
    write: impl FnOnce(&Io<'_>, &mut dyn Source) -> Result<usize, FsError>,
) -> Result<usize, Errno> {
    let thread = ctx.thread;
    let interrupted = || thread.interrupted();
    // `writing` adds the size limit and the right to keep set-id bits. Both matter only for regular files.
    let io = match file.stream() {
        Some(_) => Io { interrupted: &interrupted, ..Io::WAIT },
        None => writing(ctx, &interrupted),
    };
    write(&io, &mut from.transfer(ctx.user())).map_err(|e| failed_write(ctx, file, e))
}

/// The errno of a failed write. The thread may also get a signal (SIGPIPE or SIGXFSZ).
#[cold]
fn failed_write<M: Machine>(ctx: &Ctx<'_, M>, file: &File<M>, e: FsError) -> Errno {
    match e {
        FsError::BrokenPipe if is_silent(file) => e.into(),
        e => refused_write(ctx, e),
    }
}

/// Whether writes to the file raise no SIGPIPE: the file is a socket for datagrams or packets.
#[cold]
fn is_silent<M: Machine>(file: &File<M>) -> bool {
    file.stream_as::<Socket<M>>().is_some_and(|socket| socket.kind() != quire_net::Kind::Stream)
}

/// The caller's options for writes to files.
pub(super) fn writing<'a, M: Machine>(ctx: &Ctx<'_, M>, interrupted: &'a dyn Fn() -> bool) -> Io<'a> {
    let most = ctx.process().soft_limit(which::FSIZE);
    Io { interrupted, keeps_set_ids: ctx.keeps_set_ids(), most, ..Io::WAIT }
}

/// The errno of a failed write, after its signal: SIGPIPE for a broken pipe, SIGXFSZ for a write beyond the size limit.
pub(super) fn refused_write<M: Machine>(ctx: &Ctx<'_, M>, e: FsError) -> Errno {
    let signal = match e {
        FsError::BrokenPipe => Signal::PIPE,
        FsError::OverLimit => Signal::XFSZ,
        e => return e.into(),
    };
    ctx.refused_write(signal);
    e.into()
}

pub(super) fn offset(at: i64) -> Result<u64, Errno> {
    u64::try_from(at).map_err(|_| Errno::EINVAL)
}

pub(super) fn readable<M: Machine>(file: &File<M>) -> Result<(), Errno> {
    if file.flags().contains(OpenFlags::READ) { Ok(()) } else { Err(Errno::EBADF) }
}

pub(super) fn writable<M: Machine>(file: &File<M>) -> Result<(), Errno> {
    if file.flags().contains(OpenFlags::WRITE) { Ok(()) } else { Err(Errno::EBADF) }
}

/// `read`
pub fn sys_read<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, at: u64, len: u64) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    readable(&file)?;
    let to = Vectors::one(at, len)?;
    read(ctx, file, to)
}

/// Makes an attempt to read from `file`. If the file has no data, the thread sleeps without a kernel stack.
#[inline(always)]
pub(crate) fn read<M: Machine>(ctx: &mut Ctx<'_, M>, file: Arc<File<M>>, to: Vectors) -> Result<usize, Errno> {
    match attempt(ctx, false, |io| Ok(file.read(io, &mut to.transfer(ctx.user()))?)) {
        Err(Errno::WOULD_SLEEP) => Err(sleep(ctx, file, StreamCall::Read(to))),
        done => done,
    }
}

/// `write`
pub fn sys_write<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, at: u64, len: u64) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    writable(&file)?;
    let from = Vectors::one(at, len)?;
    write(ctx, file, from)
}

/// Makes an attempt to write to `file`. If a stream has no room, the thread sleeps without a kernel stack.
#[inline(always)]
pub(crate) fn write<M: Machine>(ctx: &mut Ctx<'_, M>, file: Arc<File<M>>, from: Vectors) -> Result<usize, Errno> {
    if file.stream().is_none() {
        return write_with(ctx, &file, &from, |io, source| file.write(io, source));
    }
    let put = |io: &Io<'_>| file.write(io, &mut from.transfer(ctx.user())).map_err(|e| failed_write(ctx, &file, e));
    match attempt(ctx, false, put) {
        Err(Errno::WOULD_SLEEP) => Err(sleep(ctx, file, StreamCall::Write(from))),
        done => done,
    }
}

/// `pread64`
pub fn sys_pread64<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, at: u64, len: u64, from: i64) -> Result<usize, Errno> {
    let from = offset(from)?;
    let file = ctx.file(fd)?;
    file.has_positions()?;
    readable(&file)?;
    let to = Vectors::one(at, len)?;
    read_with(ctx, &to, |io, sink| file.read_at(io, from, sink))
}

/// `pwrite64`
pub fn sys_pwrite64<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, at: u64, len: u64, to: i64) -> Result<usize, Errno> {
    let to = offset(to)?;
    let file = ctx.file(fd)?;
    file.has_positions()?;
    writable(&file)?;
    let from = Vectors::one(at, len)?;
    write_with(ctx, &file, &from, |io, source| file.write_at(io, to, source))
}

/// `readv`
pub fn sys_readv<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, at: u64, count: u64) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    readable(&file)?;
    let to = Vectors::many(&ctx.user(), at, count)?;
    if to.is_empty() {
        return Ok(0);
    }
    read(ctx, file, to)
}

/// `writev`
pub fn sys_writev<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, at: u64, count: u64) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    writable(&file)?;
    let from = Vectors::many(&ctx.user(), at, count)?;
    if from.is_empty() {
        return Ok(0);
    }
    write(ctx, file, from)
}

/// `preadv`
pub fn sys_preadv<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, at: u64, count: u64, from: i64) -> Result<usize, Errno> {
    let from = offset(from)?;
    let file = ctx.file(fd)?;
    file.has_positions()?;
    readable(&file)?;
    let to = Vectors::many(&ctx.user(), at, count)?;
    if to.is_empty() {
        return Ok(0);
    }
    read_with(ctx, &to, |io, sink| file.read_at(io, from, sink))
}

/// `pwritev`
pub fn sys_pwritev<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, at: u64, count: u64, to: i64) -> Result<usize, Errno> {
    let to = offset(to)?;
    let file = ctx.file(fd)?;
    file.has_positions()?;
    writable(&file)?;
    let from = Vectors::many(&ctx.user(), at, count)?;
    if from.is_empty() {
        return Ok(0);
    }
    write_with(ctx, &file, &from, |io, source| file.write_at(io, to, source))
}

/// `lseek`
pub fn sys_lseek<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, to: i64, whence: u32) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    let whence = match whence {
        raw::SEEK_SET => Whence::Start,
        raw::SEEK_CUR => Whence::Current,
        raw::SEEK_END => Whence::End,
        raw::SEEK_DATA => Whence::Data,
        raw::SEEK_HOLE => Whence::Hole,
        _ => return Err(Errno::EINVAL),
    };
    Ok(file.seek(to, whence)? as usize)
}

/// The most bytes that [`copy_apart`] reads before it writes them.
const APART: usize = 64 << 10;

/// A sink that writes the bytes read from one file directly to another file.
struct IntoFile<'a, M: Machine> {
    file: &'a File<M>,
    io: Io<'a>,
    /// The offset at which to write. `None`: the file's position.
    at: Option<u64>,
    left: usize,
    /// The error that ended the writing.
    failed: Option<FsError>,
}

impl<M: Machine> Sink for IntoFile<'_, M> {
    fn put(&mut self, bytes: &[u8]) -> Result<usize, FsError> {
        let bytes = &bytes[..bytes.len().min(self.left)];
        let mut source = SliceSource::new(bytes);
        let mut done = 0;
        // After a partial write, the next write reports the reason.
        while done < bytes.len() && self.left > 0 {
            let written = match self.at {
                Some(at) => self.file.write_at(&self.io, at, &mut source),
                None => self.file.write(&self.io, &mut source),
            };
            match written {
                Ok(0) => break,
                Ok(n) => {
                    done += n;
                    self.left -= n;
                    self.at = self.at.map(|at| at + n as u64);
                    // A long transfer ends at a signal.
                    if (self.io.interrupted)() {
                        self.left = 0;
                    }
                }
                Err(e) => {
                    self.failed = Some(e);
                    if done == 0 {
                        return Err(e);
                    }
                    break;
                }
            }
        }
        Ok(done)
    }
    fn room(&self) -> usize {
        self.left
    }
}

/// Copies from `input` at offset `from` to `output` at offset `to`. An offset of `None` means the file's position.
/// Returns the number of bytes and the offset after the last byte read.
fn copy<M: Machine>(
    ctx: &Ctx<'_, M>,
    input: &File<M>,
    from: Option<u64>,
    output: &File<M>,
    to: Option<u64>,
    len: usize,
) -> Result<(usize, u64), Errno> {
    let thread = ctx.thread;
    let interrupted = || thread.interrupted();
    let io = writing(ctx, &interrupted);
    // The input is not read by `read`, which locks the position, because input and output may share the position.
    let start = from.unwrap_or_else(|| input.position());
    let same = input.dentry.inode.ident == output.dentry.inode.ident;
    let mut failed = None;
    let copied = if same || matches!(input.body(), Body::Text(..)) {
        copy_apart(&io, (input, start), (output, to), len, &mut failed)
    } else {
        let mut sink = IntoFile { file: output, io, at: to, left: len, failed: None };
        let copied = input.read_at(&io, start, &mut Limited::new(&mut sink, len));
        failed = sink.failed;
        copied
    };
    let n = copied.map_err(|e| refused_write(ctx, e))?;
    if failed == Some(FsError::OverLimit) {
        // As on Linux, the bytes up to the size limit are written, and the caller gets the signal for the rest.
        refused_write(ctx, FsError::OverLimit);
    }
    let end = start + n as u64;
    if from.is_none() {
        input.seek(end as i64, Whence::Start)?;
    }
    Ok((n, end))
}

/// Copies through a buffer. A copy within one file needs the buffer, because the source bytes must not be read while
/// the same file is written. Generated text needs the buffer because the copy must not hold the text's lock while it
/// waits for the output's lock. An error after the first bytes ends the copy and is stored in `failed`.
fn copy_apart<M: Machine>(
    io: &Io<'_>,
    (input, start): (&File<M>, u64),
    (output, to): (&File<M>, Option<u64>),
    len: usize,
    failed: &mut Option<FsError>,
) -> Result<usize, FsError> {
    let mut buffer = Vec::new();
    buffer.try_resize(len.min(APART), 0u8)?;
    let mut done = 0;
    while done < len && !(done > 0 && (io.interrupted)()) {
        let part = buffer.len().min(len - done);
        let mut one = || -> Result<usize, FsError> {
            let read = input.read_at(io, start + done as u64, &mut SliceSink::new(&mut buffer[..part]))?;
            let mut source = SliceSource::new(&buffer[..read]);
            match to {
                _ if read == 0 => Ok(0),
                Some(to) => output.write_at(io, to + done as u64, &mut source),
                None => output.write(io, &mut source),
            }
        };
        match one() {
            Ok(0) => break,
            Ok(written) => done += written,
            Err(e) if done == 0 => return Err(e),
            Err(e) => {
                *failed = Some(e);
                break;
            }
        }
    }
    Ok(done)
}

/// `sendfile`
pub fn sys_sendfile<M: Machine>(ctx: &mut Ctx<'_, M>, out: i32, from: i32, at: u64, len: u64) -> Result<usize, Errno> {
    let start = match at {
        0 => None,
        at => Some(ctx.read::<i64>(at)?),
    };
    let input = ctx.file(from)?;
    readable(&input)?;
    if start.is_some() {
        input.has_positions()?;
    }
    let start = start.map(offset).transpose()?;
    let output = ctx.file(out)?;
    writable(&output)?;
    if let Some(sent) = splice::stream_to_pipe(ctx, &input, &output, len) {
        return sent;
    }
    // As on Linux, the input must have positions, because bytes read from other files could be lost.
    let fits = match input.body() {
        Body::File | Body::Text(..) => true,
        Body::Stream(stream) => stream.seekable(),
        _ => false,
    };
    if output.flags().contains(OpenFlags::APPEND) || !fits {
        return Err(Errno::EINVAL);
    }
    let (n, end) = copy(ctx, &input, start, &output, None, len.min(MOST as u64) as usize)?;
    ctx.write_optional(at, &(end as i64))?;
    Ok(n)
}

/// `copy_file_range`
pub fn sys_copy_file_range<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    from: i32,
    from_at: u64,
    to: i32,
    to_at: u64,
    len: u64,
    flags: u32,
) -> Result<usize, Errno> {
    let (input, output) = (ctx.file(from)?, ctx.file(to)?);
    only(flags, 0)?;
    // The kind of the files is checked before their open modes, as on Linux.
    for file in [&input, &output] {
        match file.body() {
            Body::File => {}
            Body::Directory | Body::Names(_) => return Err(Errno::EISDIR),
            _ => return Err(Errno::EINVAL),
        }
    }
    readable(&input)?;
    writable(&output)?;
    if output.flags().contains(OpenFlags::APPEND) {
        return Err(Errno::EBADF);
    }
    let read_offset = |at: u64| match at {
        0 => Ok(None),
        at => offset(ctx.read::<i64>(at)?).map(Some),
    };
    let (source, target) = (read_offset(from_at)?, read_offset(to_at)?);
    let (a, b) = (source.unwrap_or_else(|| input.position()), target.unwrap_or_else(|| output.position()));
    if a.checked_add(len).is_none() || b.checked_add(len).is_none() {
        return Err(Errno::EOVERFLOW);
    }
    // The length is limited by the present size of the input, because a copy within one file may make the file longer.
    let len = len.min(MOST as u64).min(input.dentry.inode.status().size.saturating_sub(a));
    let most = ctx.process().soft_limit(which::FSIZE);
    if b >= most {
        return Err(refused_write(ctx, FsError::OverLimit));
    }
    let len = len.min(most - b);
    let same = input.dentry.inode.ident == output.dentry.inode.ident;
    if same && a < b.saturating_add(len) && b < a.saturating_add(len) {
        return Err(Errno::EINVAL);
    }
    let (n, end) = copy(ctx, &input, source, &output, target, len as usize)?;
    ctx.write_optional(from_at, &(end as i64))?;
    if let Some(target) = target {
        ctx.write(to_at, &((target + n as u64) as i64))?;
    }
    Ok(n)
}

/// `fsync`. Dirty pages are written back, and in-memory files need no work. A failed write is reported once to each
/// open file.
pub fn sys_fsync<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    if let Body::Stream(_) = file.body() {
        return Err(Errno::EINVAL);
    }
    file.write_back(0, OFFSET_MAX);
    file.write_error()?;
    Ok(0)
}

/// `fdatasync`
pub fn sys_fdatasync<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32) -> Result<usize, Errno> {
    sys_fsync(ctx, fd)
}

/// `sync`
pub fn sys_sync<M: Machine>(_ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    Ok(0)
}

/// `syncfs`
pub fn sys_syncfs<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32) -> Result<usize, Errno> {
    ctx.file(fd).map(|_| 0)
}

/// `sync_file_range`
pub fn sys_sync_file_range<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    at: i64,
    len: i64,
    flags: u32,
) -> Result<usize, Errno> {
    const WAIT_BEFORE: u32 = 1;
    const WRITE: u32 = 2;
    const WAIT_AFTER: u32 = 4;
    only(flags, WAIT_BEFORE | WRITE | WAIT_AFTER)?;
    let (Ok(start), Ok(bytes)) = (u64::try_from(at), u64::try_from(len)) else { return Err(Errno::EINVAL) };
    let end = start.checked_add(bytes).filter(|end| *end <= OFFSET_MAX).ok_or(Errno::EINVAL)?;
    let file = ctx.file(fd)?;
    if let Body::Stream(_) = file.body() {
        return Err(Errno::ESPIPE);
    }
    if flags & WRITE != 0 {
        file.write_back(start, if bytes == 0 { OFFSET_MAX } else { end });
    }
    if flags & (WAIT_BEFORE | WAIT_AFTER) != 0 {
        file.write_error()?;
    }
    Ok(0)
}

/// `fadvise64`. The advice has no effect, because the contents of files are in memory already.
pub fn sys_fadvise64<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    _at: i64,
    len: i64,
    advice: u32,
) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    match file.dentry.inode.kind() {
        FileKind::Fifo => Err(Errno::ESPIPE),
        _ if len < 0 || advice > raw::POSIX_FADV_NOREUSE => Err(Errno::EINVAL),
        _ => Ok(0),
    }
}

/// `readahead`
pub fn sys_readahead<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, _at: i64, len: i64) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    readable(&file)?;
    if matches!(file.body(), Body::File) && len >= 0 { Ok(0) } else { Err(Errno::EINVAL) }
}

/// `ftruncate`
pub fn sys_ftruncate<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, size: i64) -> Result<usize, Errno> {
    let size = offset(size)?;
    ctx.file(fd)?.truncate(&writing(ctx, &|| false), size).map_err(|e| refused_write(ctx, e))?;
    Ok(0)
}

/// `truncate`
pub fn sys_truncate<M: Machine>(ctx: &mut Ctx<'_, M>, path: u64, size: i64) -> Result<usize, Errno> {
    let size = offset(size)?;
    let (view, dentry) = find(ctx, AT_FDCWD, path, 0)?;
    if dentry.inode.is_directory() {
        return Err(Errno::EISDIR);
    }
    view.credentials.may_at(&dentry, Want::WRITE)?;
    // The call may wait until a lease of the file ends.
    let interrupted = || ctx.thread.interrupted();
    let truncated = dentry.inode.truncate_by_name(ctx.vfs().host(), size, &writing(ctx, &interrupted));
    truncated.map_err(|e| refused_write(ctx, e))?;
    dentry.happened(Happening::MODIFY);
    Ok(0)
}

/// `fallocate`
pub fn sys_fallocate<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, mode: u32, at: i64, len: i64) -> Result<usize, Errno> {
    const PUNCH: u32 = raw::FALLOC_FL_PUNCH_HOLE | raw::FALLOC_FL_KEEP_SIZE;
    let file = ctx.file(fd)?;
    if at < 0 || len <= 0 {
        return Err(Errno::EINVAL);
    }
    if !matches!(mode, 0 | raw::FALLOC_FL_KEEP_SIZE | PUNCH) {
        return Err(Errno::EOPNOTSUPP);
    }
    writable(&file)?;
    match file.dentry.inode.kind() {
        FileKind::Fifo => return Err(Errno::ESPIPE),
        FileKind::Directory => return Err(Errno::EISDIR),
        FileKind::Regular => {}
        _ => return Err(Errno::ENODEV),
    }
    let (at, len) = (at as u64, len as u64);
    if at.checked_add(len).is_none_or(|end| end > OFFSET_MAX) {
        return Err(Errno::EFBIG);
    }
    if file.regular().is_none() {
        return Err(Errno::EOPNOTSUPP);
    }
    let io = writing(ctx, &|| false);
    let done = match mode {
        0 => file.allocate(&io, at, len, false),
        raw::FALLOC_FL_KEEP_SIZE => file.allocate(&io, at, len, true),
        _ => file.punch(&io, at, len),
    };
    done.map_err(|e| refused_write(ctx, e))?;
    Ok(0)
}
