//! The size of pipes: F_GETPIPE_SZ and F_SETPIPE_SZ, and the limits in `/proc/sys/fs`.
//!
//! The real user of the thread that makes a pipe is charged with the pages of its ring, used or not, until the pipe goes. A thread that
//! has neither CAP_SYS_RESOURCE nor CAP_SYS_ADMIN is limited: beyond `pipe-user-pages-soft` its new pipes are small and none grows,
//! beyond `pipe-user-pages-hard` it makes none.

use super::{File, FileHost};
use crate::process::capabilities::cap;
use crate::process::credentials::Credentials;
use crate::process::users::{Account, Charge};
use crate::{Ctx, Errno, Linux, Machine};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_fs::PAGE_SIZE;
use quire_fs::pipe::{DEFAULT, PipeEnd};

/// Pages of a new pipe beyond the soft limit: two, since programs that expect a pipe to take more than PIPE_BUF bytes would wait for ever
/// with one.
const SMALL: usize = 2;

/// The limits in `/proc/sys/fs`.
pub struct PipeLimits {
    /// `pipe-max-size`: bytes up to which a thread without CAP_SYS_RESOURCE may enlarge a pipe. As [`round`] gives them.
    largest: AtomicU32,
    /// `pipe-user-pages-soft` and `pipe-user-pages-hard`: pages, or 0 for no limit.
    soft: AtomicU64,
    hard: AtomicU64,
}

impl PipeLimits {
    /// Those of a machine that has just started.
    pub(crate) const fn new() -> Self {
        PipeLimits { largest: AtomicU32::new(1 << 20), soft: AtomicU64::new(16_384), hard: AtomicU64::new(0) }
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

impl PipeLimits {
    /// `pipe-user-pages-soft`
    pub fn soft(&self) -> &AtomicU64 {
        &self.soft
    }

    /// `pipe-user-pages-hard`
    pub fn hard(&self) -> &AtomicU64 {
        &self.hard
    }

    /// The most pages beside which a user's pipes may have their full size, and the most at all, for a thread that has `own`.
    fn of(&self, own: &Credentials) -> (u64, u64) {
        let free = own.may(cap::SYS_RESOURCE) || own.may(cap::SYS_ADMIN);
        let limit = |limit: &AtomicU64| match limit.load(Ordering::Relaxed) {
            pages if pages == 0 || free => u64::MAX,
            pages => pages,
        };
        (limit(&self.soft), limit(&self.hard))
    }
}

/// What the maker of a pipe is charged with.
pub struct PipeCharge(Option<Charge>);

impl PipeCharge {
    /// Of a new pipe, with its pages. `None` where the calling thread's user has as many as it may. Before there are threads, nothing is
    /// charged.
    pub(super) fn new<M: Machine>(linux: Option<&Linux<M>>) -> Option<(usize, Self)> {
        let Some(linux) = linux else { return Some((DEFAULT, PipeCharge(None))) };
        let thread = linux.current();
        // SAFETY: the calling thread's own.
        let (permit, own) = unsafe { (thread.permit.get(), thread.credentials.get()) };
        let charge = |pages: usize, most| linux.users.charge(permit, Account::PipePages, pages as u64, most);
        let pages = match own.may(cap::SYS_RESOURCE) {
            true => DEFAULT,
            false => DEFAULT.min(linux.pipes.largest() as usize / PAGE_SIZE),
        };
        let (soft, hard) = linux.pipes.of(own);
        if let Some(charge) = charge(pages, soft.min(hard)) {
            return Some((pages, PipeCharge(Some(charge))));
        }
        // Only what the soft limit refuses becomes smaller.
        if hard < soft && charge(pages, soft).is_some() {
            return None;
        }
        Some((SMALL, PipeCharge(Some(charge(SMALL, hard)?))))
    }

    /// Makes it one of `pages`; `false` where these are more than the calling thread may let the user have.
    pub(super) fn resize<M: Machine>(&mut self, linux: Option<&Linux<M>>, pages: usize) -> bool {
        let (Some(charge), Some(linux)) = (&mut self.0, linux) else { return true };
        // SAFETY: the calling thread's own.
        let (soft, hard) = linux.pipes.of(unsafe { linux.current().credentials.get() });
        charge.resize(pages as u64, soft.min(hard))
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
