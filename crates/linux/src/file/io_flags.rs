//! `preadv2` and `pwritev2`: reads and writes with flags for the single call.

use crate::file::inotify::Notifier;
use crate::file::io::{offset, read_with, readable, writable, write_with};
use crate::file::ptys::Master;
use linux_raw_sys::general as raw;
use quire_fs::Io;
use quire_fs::open_file::Body;
use quire_fs::terminal::Terminal;
use quire_linux_state::file::host::File;
use quire_linux_state::user::transfer::Vectors;
use quire_linux_state::{Ctx, Errno, Machine};

/// Linux's RWF_NOAPPEND, which the generated constants leave out.
const NOAPPEND: u32 = 0x20;
/// The flags without effect, because in-memory files are always synchronous.
const NO_EFFECT: u32 = raw::RWF_HIPRI | raw::RWF_DSYNC | raw::RWF_SYNC;

/// The checked flags of a call.
struct Flags {
    no_wait: bool,
    appends: Option<bool>,
}

impl Flags {
    fn check<M: Machine>(file: &File<M>, flags: u32) -> Result<Self, Errno> {
        if flags & !(NO_EFFECT | raw::RWF_NOWAIT | raw::RWF_APPEND | NOAPPEND) != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let (appends, keeps) = (flags & raw::RWF_APPEND != 0, flags & NOAPPEND != 0);
        if appends && keeps {
            return Err(Errno::EINVAL);
        }
        let no_wait = flags & raw::RWF_NOWAIT != 0;
        if no_wait && !may_not_wait(file) {
            return Err(Errno::EOPNOTSUPP);
        }
        Ok(Flags { no_wait, appends: (appends || keeps).then_some(appends) })
    }

    fn apply<'a>(&self, io: &Io<'a>) -> Io<'a> {
        Io { nonblock: io.nonblock || self.no_wait, appends: self.appends, ..*io }
    }
}

/// Whether calls on the file may use RWF_NOWAIT. As on Linux, in-memory files, terminals and inotify instances refuse
/// it.
fn may_not_wait<M: Machine>(file: &File<M>) -> bool {
    let waits = file.stream_as::<Terminal>().is_some()
        || file.stream_as::<Master<M>>().is_some()
        || file.stream_as::<Notifier>().is_some();
    matches!(file.body(), Body::Stream(_)) && !waits
}

/// The offset of a call. `None` (given as -1) means the file's position.
fn position(at: i64) -> Result<Option<u64>, Errno> {
    if at == -1 { Ok(None) } else { offset(at).map(Some) }
}

/// `preadv2`
pub fn sys_preadv2<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    at: u64,
    count: u64,
    from: i64,
    _high: u64,
    flags: u32,
) -> Result<usize, Errno> {
    let from = position(from)?;
    let file = ctx.file(fd)?;
    if from.is_some() {
        file.has_positions()?;
    }
    readable(&file)?;
    let to = Vectors::many(&ctx.user(), at, count)?;
    if to.is_empty() {
        return Ok(0);
    }
    let flags = Flags::check(&file, flags)?;
    read_with(ctx, &to, |io, sink| match from {
        None => file.read(&flags.apply(io), sink),
        Some(from) => file.read_at(&flags.apply(io), from, sink),
    })
}

/// `pwritev2`
pub fn sys_pwritev2<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    at: u64,
    count: u64,
    to: i64,
    _high: u64,
    flags: u32,
) -> Result<usize, Errno> {
    let to = position(to)?;
    let file = ctx.file(fd)?;
    if to.is_some() {
        file.has_positions()?;
    }
    writable(&file)?;
    let from = Vectors::many(&ctx.user(), at, count)?;
    if from.is_empty() {
        return Ok(0);
    }
    let flags = Flags::check(&file, flags)?;
    write_with(ctx, &file, &from, |io, source| match to {
        None => file.write(&flags.apply(io), source),
        Some(to) => file.write_at(&flags.apply(io), to, source),
    })
}
