//! The size of pipes: F_GETPIPE_SZ and F_SETPIPE_SZ, within the [limits](crate::file::pipe_limits).
//!
//! The pages of a pipe's buffer, used or not, are charged to the real user of the thread that created the pipe. The
//! charge ends with the pipe. Limits apply to threads with neither CAP_SYS_RESOURCE nor CAP_SYS_ADMIN. Above
//! `pipe-user-pages-soft`, new pipes are small and no pipe can grow. Above `pipe-user-pages-hard`, no pipe can be
//! created.

use crate::file::host::{File, FileHost};
use crate::file::pipe_limits::round;
use crate::process::credentials::capabilities::cap;
use crate::process::users::{Account, Charge};
use crate::{Ctx, Errno, Linux, Machine};
use quire_fs::PAGE_SIZE;
use quire_fs::pipe::{DEFAULT, PipeEnd};

/// The pages of a new pipe above the soft limit. One page would not be enough: programs that expect a pipe to hold more
/// than PIPE_BUF bytes would block for ever.
const SMALL: usize = 2;

/// The charge to the user that created a pipe.
pub struct PipeCharge(Option<Charge>);

impl PipeCharge {
    /// The number of pages of a new pipe, and the charge for them. `None` if the calling thread's user is at its limit.
    /// Before the Linux layer exists, nothing is charged.
    pub fn new<M: Machine>(linux: Option<&Linux<M>>) -> Option<(usize, Self)> {
        let Some(linux) = linux else { return Some((DEFAULT, PipeCharge(None))) };
        let thread = linux.current();
        // SAFETY: the calling thread reads its own fields.
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
        // A pipe of the usual size was refused. If the hard limit refused it and the soft limit would not, the call
        // fails. If the soft limit refused it, the pipe is small.
        if hard < soft && charge(pages, soft).is_some() {
            return None;
        }
        Some((SMALL, PipeCharge(Some(charge(SMALL, hard)?))))
    }

    /// Changes the charge to `pages`. Returns `false` if the calling thread's limits do not allow that number.
    pub fn resize<M: Machine>(&mut self, linux: Option<&Linux<M>>, pages: usize) -> bool {
        let (Some(charge), Some(linux)) = (&mut self.0, linux) else { return true };
        // SAFETY: the calling thread reads its own field.
        let (soft, hard) = linux.pipes.of(unsafe { linux.current().credentials.get() });
        charge.resize(pages as u64, soft.min(hard))
    }
}

fn end<M: Machine>(file: &File<M>) -> Result<&PipeEnd<FileHost<M>>, Errno> {
    file.stream_as().ok_or(Errno::EBADF)
}

/// F_GETPIPE_SZ: the size of a pipe in bytes.
pub fn size<M: Machine>(file: &File<M>) -> Result<usize, Errno> {
    Ok(end(file)?.capacity())
}

/// F_SETPIPE_SZ: sets the size of a pipe. Returns the new size in bytes.
pub fn set_size<M: Machine>(ctx: &Ctx<'_, M>, file: &File<M>, bytes: u32) -> Result<usize, Errno> {
    let end = end(file)?;
    let bytes = round(bytes)? as usize;
    let most = if ctx.credentials().may(cap::SYS_RESOURCE) { u32::MAX } else { ctx.linux.pipes.largest() };
    end.resize(bytes / PAGE_SIZE, most as usize / PAGE_SIZE)?;
    Ok(bytes)
}
