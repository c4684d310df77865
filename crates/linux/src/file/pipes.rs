//! The size of pipes: F_GETPIPE_SZ and F_SETPIPE_SZ, and the limits in `/proc/sys/fs`.

use super::{File, FileHost};
use crate::process::capabilities::cap;
use crate::{Ctx, Errno, Machine};
use core::sync::atomic::{AtomicU32, Ordering};
use quire_fs::PAGE_SIZE;
use quire_fs::pipe::PipeEnd;

/// The limits in `/proc/sys/fs`.
pub struct PipeLimits {
    /// `pipe-max-size`: bytes up to which a thread without CAP_SYS_RESOURCE may enlarge a pipe. As [`round`] gives them.
    largest: AtomicU32,
}

impl PipeLimits {
    /// Those of a machine that has just started.
    pub const fn new() -> Self {
        PipeLimits { largest: AtomicU32::new(1 << 20) }
    }

    /// `pipe-max-size`, in bytes.
    pub fn largest(&self) -> u32 {
        self.largest.load(Ordering::Relaxed)
    }

    /// Changes it; it is rounded as a pipe's size is.
    pub fn set_largest(&self, bytes: u32) -> Result<(), Errno> {
        self.largest.store(round(bytes)?, Ordering::Relaxed);
        Ok(())
    }
}

/// The size that a pipe gets where `bytes` are wanted: a power of two, a page at least.
fn round(bytes: u32) -> Result<u32, Errno> {
    bytes.max(PAGE_SIZE as u32).checked_next_power_of_two().ok_or(Errno::EINVAL)
}

fn end<M: Machine>(file: &File<M>) -> Result<&PipeEnd<FileHost<M>>, Errno> {
    file.stream_as().ok_or(Errno::EBADF)
}

/// F_GETPIPE_SZ
pub fn size<M: Machine>(file: &File<M>) -> Result<usize, Errno> {
    Ok(end(file)?.capacity())
}

/// F_SETPIPE_SZ
pub fn set_size<M: Machine>(ctx: &Ctx<'_, M>, file: &File<M>, bytes: u32) -> Result<usize, Errno> {
    let end = end(file)?;
    let bytes = round(bytes)? as usize;
    let most = if ctx.credentials().may(cap::SYS_RESOURCE) { u32::MAX } else { ctx.linux.pipes.largest() };
    end.resize(bytes / PAGE_SIZE, most as usize / PAGE_SIZE)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_powers_of_two_from_a_page_on() {
        let most = 1 << 31;
        for (wanted, given) in [(0, 4096), (1, 4096), (4096, 4096), (4097, 8192), (65_537, 131_072), (most, most)] {
            assert_eq!(round(wanted), Ok(given));
        }
        assert_eq!((round(most + 1), round(u32::MAX)), (Err(Errno::EINVAL), Err(Errno::EINVAL)));
    }
}
