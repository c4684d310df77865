//! The size of pipes: F_GETPIPE_SZ and F_SETPIPE_SZ, within the [limits](crate::file::pipe_limits).
//!
//! The real user of the thread that makes a pipe is charged with the pages of its ring, used or not, until the pipe
//! goes. A thread with neither CAP_SYS_RESOURCE nor CAP_SYS_ADMIN is limited. Beyond `pipe-user-pages-soft` its new
//! pipes are small and none grows. Beyond `pipe-user-pages-hard` it makes none.

use crate::file::host::{File, FileHost};
use crate::file::pipe_limits::round;
use crate::process::credentials::capabilities::cap;
use crate::process::users::{Account, Charge};
use crate::{Ctx, Errno, Linux, Machine};
use quire_fs::PAGE_SIZE;
use quire_fs::pipe::{DEFAULT, PipeEnd};

/// Pages of a new pipe beyond the soft limit. With one page, programs that expect a pipe to take more than PIPE_BUF
/// bytes would wait for ever.
const SMALL: usize = 2;

/// The charge to the user who made a pipe.
pub struct PipeCharge(Option<Charge>);

impl PipeCharge {
    /// The pages of a new pipe, and their charge. `None` if the calling thread's user has reached its limit. Before
    /// there are threads, nothing is charged.
    pub fn new<M: Machine>(linux: Option<&Linux<M>>) -> Option<(usize, Self)> {
        let Some(linux) = linux else { return Some((DEFAULT, PipeCharge(None))) };
        let thread = linux.current();
        // SAFETY: the calling thread's own.
        let (user_charge, own) = unsafe { (thread.user_charge.get(), thread.credentials.get()) };
        let charge = |pages: usize, most| linux.users.charge(user_charge, Account::PipePages, pages as u64, most);
        let pages = match own.may(cap::SYS_RESOURCE) {
            true => DEFAULT,
            false => DEFAULT.min(linux.pipes.largest() as usize / PAGE_SIZE),
        };
        let (soft, hard) = linux.pipes.of(own);
        if let Some(charge) = charge(pages, soft.min(hard)) {
            return Some((pages, PipeCharge(Some(charge))));
        }
        // Only a pipe that the soft limit refuses becomes smaller.
        if hard < soft && charge(pages, soft).is_some() {
            return None;
        }
        Some((SMALL, PipeCharge(Some(charge(SMALL, hard)?))))
    }

    /// Changes the charge to `pages`; `false` if the calling thread's limits forbid so many.
    pub fn resize<M: Machine>(&mut self, linux: Option<&Linux<M>>, pages: usize) -> bool {
        let (Some(charge), Some(linux)) = (&mut self.0, linux) else { return true };
        // SAFETY: the calling thread's own.
        let (soft, hard) = linux.pipes.of(unsafe { linux.current().credentials.get() });
        charge.resize(pages as u64, soft.min(hard))
    }
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
