//! `splice`, `tee` and `vmsplice`, which move bytes between files and pipes.
//!
//! Linux moves pages, and this kernel copies bytes. Programs see the difference only if they change a page after the
//! call: the pipe here keeps the old bytes.

use crate::file::io::{readable, refused_write, writable, writing};
use crate::file::path::only;
use quire_fs::open_file::Body;
use quire_fs::pipe::PipeEnd;
use quire_fs::{FileKind, FsError, Io, OpenFlags, Ready, SliceSink, SliceSource, Stream};
use quire_heap::Vec;
use quire_linux_state::file::host::{File, FileHost};
use quire_linux_state::socket::host::Socket;
use quire_linux_state::user::transfer::{MOST, Vectors};
use quire_linux_state::{Ctx, Errno, Machine};
use quire_net::ReceiveFlags;

/// SPLICE_F_MOVE, _NONBLOCK, _MORE and _GIFT.
const FLAGS: u32 = 0xf;
const NONBLOCK: u32 = 2;
/// The most bytes that are moved in one step.
const STEP: usize = 64 << 10;
/// The most bytes that one `tee` copies, which is the largest pipe that any user may make.
const MOST_TEE: usize = 1 << 20;

type End<M> = PipeEnd<FileHost<M>>;

fn end<M: Machine>(file: &File<M>) -> Option<&End<M>> {
    file.stream_as()
}

fn buffer(len: usize) -> Result<Vec<u8>, Errno> {
    let mut buffer = Vec::new();
    buffer.try_resize(len.min(STEP), 0u8)?;
    Ok(buffer)
}

/// Whether the call must not wait, by its own flags or by the flags of one of its files.
fn nonblock<M: Machine>(files: &[&File<M>], flags: u32) -> bool {
    flags & NONBLOCK != 0 || files.iter().any(|file| file.flags().contains(OpenFlags::NONBLOCK))
}

/// The result of a transfer that a step ended with the error `result`. If `done` bytes were moved before, the call
/// succeeds.
fn ends(done: usize, result: FsError) -> Result<usize, FsError> {
    if done > 0 { Ok(done) } else { Err(result) }
}

/// Waits until `stream` is ready for `what`, or has an error.
fn wait_for(stream: &dyn Stream, io: &Io<'_>, what: Ready) -> Result<(), FsError> {
    let Some(readiness) = stream.readiness() else { return Ok(()) };
    // A hang-up ends only a wait for bytes. A stream that was hung up may still be full, such as the master of a
    // pseudo-terminal. If a hang-up ended a wait for room, the caller would write in vain and wait again, and never
    // sleep.
    let end = if what == Ready::READ { Ready::HANGUP | Ready::ERROR } else { Ready::ERROR };
    readiness.wait(io, || stream.ready().intersects(what | end).then_some(()))
}

/// Moves bytes from a pipe to another pipe. With `keep`, the bytes stay in the first pipe too.
fn between<M: Machine>(
    from: &End<M>,
    to: &End<M>,
    io: &Io<'_>,
    buffer: &mut [u8],
    len: usize,
    keep: bool,
) -> Result<usize, FsError> {
    let mut done = 0;
    while done < len {
        if done == 0 {
            if !from.wait_for_bytes(io)? {
                return Ok(0);
            }
            to.wait_for_room(io)?;
        }
        let part = buffer.len().min(len - done);
        match from.move_to_pipe(to, &mut buffer[..part], keep) {
            Ok(0) if done == 0 => {} // another thread was faster
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) => return ends(done, e),
        }
        if keep {
            break;
        }
    }
    Ok(done)
}

/// Moves bytes from a pipe to a file that is no pipe, at offset `at` or at the file's position.
fn out_of<M: Machine>(
    from: &End<M>,
    to: &File<M>,
    mut at: Option<u64>,
    io: &Io<'_>,
    buffer: &mut [u8],
    len: usize,
) -> Result<usize, FsError> {
    let waits = Io { nonblock: false, ..*io }.of(to.flags());
    let now = Io { nonblock: true, ..*io };
    let mut done = 0;
    while done < len {
        if done == 0 {
            if !from.wait_for_bytes(io)? {
                return Ok(0);
            }
        } else if (io.interrupted)() {
            break;
        }
        let part = buffer.len().min(len - done);
        let moved = from.give(&mut buffer[..part], &mut |bytes| {
            let mut source = SliceSource::new(bytes);
            match (to.stream(), at) {
                (Some(stream), _) => stream.write(&now, &mut source),
                (None, Some(at)) => to.write_at(io, at, &mut source),
                (None, None) => to.write(io, &mut source),
            }
        });
        match (moved, to.stream()) {
            (Ok(0), _) if done > 0 => break,
            (Ok(n), _) => {
                done += n;
                at = at.map(|at| at + n as u64);
            }
            (Err(FsError::WouldBlock), Some(stream)) => {
                if let Err(e) = wait_for(&**stream, &waits, Ready::WRITE) {
                    return ends(done, e);
                }
                // A stream may be ready each time and still refuse the bytes. The loop would then never end, so a
                // signal ends it too.
                if (io.interrupted)() {
                    return ends(done, FsError::Interrupted);
                }
            }
            (Err(e), _) => return ends(done, e),
        }
    }
    Ok(done)
}

/// Moves bytes to a pipe from a file that is no pipe, at offset `at` or at the file's position.
fn into<M: Machine>(
    from: &File<M>,
    mut at: Option<u64>,
    to: &End<M>,
    io: &Io<'_>,
    buffer: &mut [u8],
    len: usize,
) -> Result<usize, FsError> {
    let waits = Io { nonblock: false, ..*io }.of(from.flags());
    let now = Io { nonblock: true, ..*io };
    let socket = from.stream_as::<Socket<M>>();
    let mut done = 0;
    while done < len {
        if done == 0 {
            to.wait_for_room(io)?;
            if let Some(stream) = from.stream() {
                wait_for(&**stream, &waits, Ready::READ)?;
            }
        } else if (io.interrupted)() {
            break;
        }
        let part = buffer.len().min(len - done);
        // Files that come with the bytes are closed after the pipe's lock is released, because a close may lock other
        // pipes.
        let mut unwanted = None;
        let moved = to.receive(&mut buffer[..part], &mut |bytes| {
            let mut sink = SliceSink::new(bytes);
            if let Some(socket) = socket {
                let received = socket.receive(&now, &mut sink, ReceiveFlags::empty())?;
                unwanted = Some(received.ancillary);
                return Ok(received.bytes);
            }
            match (from.stream(), at) {
                (Some(stream), _) => stream.read(&now, &mut sink),
                (None, Some(at)) => from.read_at(io, at, &mut sink),
                (None, None) => from.read(io, &mut sink),
            }
        });
        drop(unwanted);
        match moved {
            Ok(None) if done == 0 => {} // another writer was faster
            Ok(None | Some(0)) => break,
            Ok(Some(n)) => {
                done += n;
                at = at.map(|at| at + n as u64);
            }
            // Another reader has taken the bytes.
            Err(FsError::WouldBlock) if done == 0 && !waits.nonblock && !(io.interrupted)() => {}
            Err(FsError::WouldBlock) if done == 0 && !waits.nonblock => return Err(FsError::Interrupted),
            Err(e) => return ends(done, e),
        }
    }
    Ok(done)
}

/// Whether the file supports transfers to or from pipes. Event counters, epoll sets and other nameless files do not.
fn takes_part<M: Machine>(file: &File<M>, written: bool) -> bool {
    match file.body() {
        Body::File => true,
        Body::Text(text, _) => !written || text.takes_from_pipes(),
        Body::Stream(_) => file.dentry.inode.kind() != FileKind::Anonymous,
        Body::Directory | Body::Names(_) | Body::Path => false,
    }
}

/// Does a `sendfile` from a stream without positions to a pipe. `None` if the files are of other kinds.
pub(super) fn stream_to_pipe<M: Machine>(
    ctx: &Ctx<'_, M>,
    from: &File<M>,
    to: &File<M>,
    len: u64,
) -> Option<Result<usize, Errno>> {
    let output = end(to)?;
    if end(from).is_some() || from.stream()?.seekable() || !takes_part(from, false) {
        return None;
    }
    let thread = ctx.thread;
    let interrupted = || thread.interrupted();
    let io = Io { nonblock: nonblock(&[to], 0), ..writing(ctx, &interrupted) };
    let len = len.min(MOST as u64) as usize;
    let sent = buffer(len)
        .and_then(|mut buffer| into(from, None, output, &io, &mut buffer, len).map_err(|e| refused_write(ctx, e)));
    Some(sent)
}

/// `splice`
pub fn sys_splice<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    from: i32,
    from_at: u64,
    to: i32,
    to_at: u64,
    len: usize,
    flags: u32,
) -> Result<usize, Errno> {
    if len == 0 {
        return Ok(0);
    }
    only(flags, FLAGS)?;
    let (from, to) = (ctx.file(from)?, ctx.file(to)?);
    let (input, output) = (end(&from), end(&to));
    if (input.is_some() && from_at != 0) || (output.is_some() && to_at != 0) {
        return Err(Errno::ESPIPE);
    }
    let offset = |at: u64| -> Result<Option<i64>, Errno> { if at == 0 { Ok(None) } else { ctx.read(at).map(Some) } };
    let (write_at, read_at) = (offset(to_at)?, offset(from_at)?);
    readable(&from)?;
    writable(&to)?;
    let len = len.min(MOST);
    let thread = ctx.thread;
    let interrupted = || thread.interrupted();
    let io = writing(ctx, &interrupted);
    let checked = |at: Option<i64>, file: &File<M>| -> Result<Option<u64>, Errno> {
        match at {
            None => Ok(None),
            Some(_) if file.has_positions().is_err() => Err(Errno::EINVAL),
            Some(at) => u64::try_from(at).map(Some).map_err(|_| Errno::EINVAL),
        }
    };
    let (moved, at, stored) = match (input, output) {
        (Some(input), Some(output)) => {
            if input.is_of_same_pipe(output) {
                return Err(Errno::EINVAL);
            }
            let io = Io { nonblock: nonblock(&[&from, &to], flags), ..io };
            (between(input, output, &io, &mut buffer(len)?, len, false), None, 0)
        }
        (Some(input), None) => {
            let at = checked(write_at, &to)?;
            if to.flags().contains(OpenFlags::APPEND) || !takes_part(&to, true) {
                return Err(Errno::EINVAL);
            }
            let io = Io { nonblock: nonblock(&[&from], flags), ..io };
            (out_of(input, &to, at, &io, &mut buffer(len)?, len), at, to_at)
        }
        (None, Some(output)) => {
            let at = checked(read_at, &from)?;
            if !takes_part(&from, false) {
                return Err(Errno::EINVAL);
            }
            let io = Io { nonblock: nonblock(&[&to], flags), ..io };
            (into(&from, at, output, &io, &mut buffer(len)?, len), at, from_at)
        }
        (None, None) => return Err(Errno::EINVAL),
    };
    let n = moved.map_err(|e| refused_write(ctx, e))?;
    if let Some(at) = at {
        ctx.write(stored, &(at + n as u64))?;
    }
    Ok(n)
}

/// `tee`
pub fn sys_tee<M: Machine>(ctx: &mut Ctx<'_, M>, from: i32, to: i32, len: usize, flags: u32) -> Result<usize, Errno> {
    only(flags, FLAGS)?;
    if len == 0 {
        return Ok(0);
    }
    let (from, to) = (ctx.file(from)?, ctx.file(to)?);
    readable(&from)?;
    writable(&to)?;
    let (Some(input), Some(output)) = (end(&from), end(&to)) else { return Err(Errno::EINVAL) };
    if input.is_of_same_pipe(output) {
        return Err(Errno::EINVAL);
    }
    let thread = ctx.thread;
    let interrupted = || thread.interrupted();
    let io = Io { nonblock: nonblock(&[&from, &to], flags), ..writing(ctx, &interrupted) };
    let len = len.min(output.capacity()).min(MOST_TEE);
    let mut buffer = Vec::new();
    buffer.try_resize(len, 0u8)?;
    between(input, output, &io, &mut buffer, len, true).map_err(|e| refused_write(ctx, e))
}

/// `vmsplice`
pub fn sys_vmsplice<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    vectors: u64,
    count: u64,
    flags: u32,
) -> Result<usize, Errno> {
    only(flags, FLAGS)?;
    let file = ctx.file(fd)?;
    // As on Linux, a file that is no pipe gives EBADF.
    let pipe = end(&file).ok_or(Errno::EBADF)?;
    let vectors = Vectors::many(&ctx.user(), vectors, count)?;
    let thread = ctx.thread;
    let interrupted = || thread.interrupted();
    let io = Io { nonblock: nonblock(&[&file], flags), ..writing(ctx, &interrupted) };
    let mut memory = vectors.transfer(ctx.user());
    if quire_fs::Source::left(&memory) == 0 {
        return Ok(0);
    }
    if !pipe.writes() {
        return Ok(pipe.read(&io, &mut memory)?);
    }
    // The call waits for room for one byte. Then it moves the bytes that fit, without another wait.
    let mut buffer = buffer(quire_fs::Source::left(&memory))?;
    let mut done = 0;
    let moved = loop {
        if done == 0
            && let Err(e) = pipe.wait_for_room(&io)
        {
            break Err(e);
        }
        match pipe.receive(&mut buffer, &mut |bytes| quire_fs::Source::take(&mut memory, bytes)) {
            Ok(None) if done == 0 => {} // another writer was faster
            Ok(None | Some(0)) => break Ok(done),
            Ok(Some(n)) => done += n,
            Err(e) => break ends(done, e),
        }
    };
    moved.map_err(|e| refused_write(ctx, e))
}
