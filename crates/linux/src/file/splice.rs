//! Moving pages between files and pipes: `splice`, `tee` and `vmsplice`. This kernel moves none. Linux returns EINVAL
//! where the given files cannot take part, and programs then copy. Arguments that Linux refuses before it checks the
//! files are refused here with the same errors.

use super::path::only;
use crate::{Ctx, Errno, Machine};
use quire_fs::{FileKind, OpenFlags};

/// SPLICE_F_MOVE, _NONBLOCK, _MORE and _GIFT.
const FLAGS: u32 = 0xf;

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
    for (file, offset) in [(&from, from_at), (&to, to_at)] {
        if offset != 0 {
            if file.dentry.inode.kind() == FileKind::Fifo {
                return Err(Errno::ESPIPE);
            }
            ctx.read::<i64>(offset)?;
        }
    }
    if !from.flags().contains(OpenFlags::READ) || !to.flags().contains(OpenFlags::WRITE) {
        return Err(Errno::EBADF);
    }
    Err(Errno::EINVAL)
}

/// `tee`
pub fn sys_tee<M: Machine>(ctx: &mut Ctx<'_, M>, from: i32, to: i32, len: usize, flags: u32) -> Result<usize, Errno> {
    only(flags, FLAGS)?;
    if len == 0 {
        return Ok(0);
    }
    let (from, to) = (ctx.file(from)?, ctx.file(to)?);
    if !from.flags().contains(OpenFlags::READ) || !to.flags().contains(OpenFlags::WRITE) {
        return Err(Errno::EBADF);
    }
    Err(Errno::EINVAL)
}

/// `vmsplice`
pub fn sys_vmsplice<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    _vectors: u64,
    _count: u64,
    flags: u32,
) -> Result<usize, Errno> {
    only(flags, FLAGS)?;
    let file = ctx.file(fd)?;
    // Linux has no other error for a file that is no pipe.
    if file.dentry.inode.kind() != FileKind::Fifo {
        return Err(Errno::EBADF);
    }
    Err(Errno::EINVAL)
}
