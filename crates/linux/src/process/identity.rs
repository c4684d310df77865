//! The calls that return the caller's ids.

use crate::errno::Errno;
use crate::{Ctx, Machine};
use quire_sync::atomic::Ordering;

/// `getpid`
pub fn sys_getpid<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    Ok(ctx.pid() as usize)
}

/// `gettid`
pub fn sys_gettid<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    Ok(ctx.thread.tid() as usize)
}

/// `getppid`
pub fn sys_getppid<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    Ok(ctx.process().parent_pid() as usize)
}

/// `set_tid_address`
pub fn sys_set_tid_address<M: Machine>(ctx: &mut Ctx<'_, M>, at: u64) -> Result<usize, Errno> {
    ctx.thread.clear_tid.store(at, Ordering::Release);
    Ok(ctx.thread.tid() as usize)
}

/// `personality`: stored. Exec looks at `ADDR_NO_RANDOMIZE`, and `select` and its like at `STICKY_TIMEOUTS`.
pub fn sys_personality<M: Machine>(ctx: &mut Ctx<'_, M>, wanted: u32) -> Result<usize, Errno> {
    let personality = &ctx.process().personality;
    let before = personality.load(Ordering::Relaxed);
    if wanted != u32::MAX {
        personality.store(wanted, Ordering::Relaxed);
    }
    Ok(before as usize)
}

/// `unshare`: open files and file system state; there are no namespaces.
pub fn sys_unshare<M: Machine>(ctx: &mut Ctx<'_, M>, flags: u64) -> Result<usize, Errno> {
    use linux_raw_sys::general as raw;
    let known = u64::from(raw::CLONE_FILES | raw::CLONE_FS | raw::CLONE_SYSVSEM);
    if flags & !known != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & u64::from(raw::CLONE_SYSVSEM) != 0 {
        ctx.leave_undos()?;
    }
    if flags & u64::from(raw::CLONE_FILES) != 0 && quire_heap::Arc::strong_count(ctx.files()?) > 1 {
        let own = ctx.files()?.fork()?;
        ctx.replace_files(own);
    }
    if flags & u64::from(raw::CLONE_FS) != 0 && quire_heap::Arc::strong_count(ctx.fs()?) > 1 {
        let own = ctx.fs()?.fork()?;
        ctx.replace_fs(own);
    }
    Ok(0)
}
