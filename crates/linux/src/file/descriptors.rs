//! Calls that close and duplicate descriptors.

use crate::file::path::only;
use linux_raw_sys::general as raw;
use quire_linux_state::{Ctx, Errno, Machine};

const CLOSE_RANGE_UNSHARE: u32 = 2;
const CLOSE_RANGE_CLOEXEC: u32 = 4;

/// `close`
pub fn sys_close<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32) -> Result<usize, Errno> {
    let files = ctx.files()?;
    let file = files.remove(u32::try_from(fd).map_err(|_| Errno::EBADF)?)?;
    files.closed(&file);
    Ok(0)
}

/// `dup`
pub fn sys_dup<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32) -> Result<usize, Errno> {
    let file = ctx.any_file(fd)?;
    ctx.install(file, false)
}

/// `dup2`
pub fn sys_dup2<M: Machine>(ctx: &mut Ctx<'_, M>, old: i32, new: i32) -> Result<usize, Errno> {
    if old == new {
        ctx.any_file(old)?;
        return Ok(new as usize);
    }
    sys_dup3(ctx, old, new, 0)
}

/// `dup3`
pub fn sys_dup3<M: Machine>(ctx: &mut Ctx<'_, M>, old: i32, new: i32, flags: u32) -> Result<usize, Errno> {
    only(flags, raw::O_CLOEXEC)?;
    if old == new {
        return Err(Errno::EINVAL);
    }
    let to = u32::try_from(new).map_err(|_| Errno::EBADF)?;
    let file = ctx.any_file(old)?;
    let files = ctx.files()?;
    if let Some(closed) =
        files.replace(file, flags != 0, to, quire_linux_state::file::view::descriptor_limit(ctx.thread))?
    {
        files.closed(&closed);
    }
    Ok(new as usize)
}

/// `close_range`
pub fn sys_close_range<M: Machine>(ctx: &mut Ctx<'_, M>, first: u32, last: u32, flags: u32) -> Result<usize, Errno> {
    only(flags, CLOSE_RANGE_UNSHARE | CLOSE_RANGE_CLOEXEC)?;
    if first > last {
        return Err(Errno::EINVAL);
    }
    if flags & CLOSE_RANGE_UNSHARE != 0 {
        let own = ctx.files()?.fork()?;
        ctx.replace_files(own);
    }
    let files = ctx.files()?;
    if flags & CLOSE_RANGE_CLOEXEC != 0 {
        files.mark_range(first, last);
    } else {
        files.close_range(first, last);
    }
    Ok(0)
}
