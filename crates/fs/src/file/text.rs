//! Exclusion of writers and programs: an executed file cannot be opened for writing, and a file open for writing cannot
//! be executed.
//!
//! One count serves both, so if an open for writing and an exec race, one of them is refused. Above zero, the count is
//! the number of open files that may write. Below zero, it is the negative number of programs that run the file or are
//! being loaded from it. Only [`TextUse`] changes the count, by one atomic operation.
//!
//! As on Linux, the file that a process executes counts. A script or an ELF interpreter counts only while an exec reads
//! it. A forked process shares its parent's loaded program, and so its count.

use crate::FsError;
use quire_sync::atomic::{AtomicU64, Ordering};

/// A writer adds `WRITES` to the count, a program adds `RUNS`.
const WRITES: i64 = 1;
pub(super) const RUNS: i64 = -1;

/// The use of a regular file by writers and programs, as one count; see the module.
#[repr(align(64))]
pub struct TextUse(AtomicU64);

impl TextUse {
    pub(crate) fn new() -> Self {
        TextUse(AtomicU64::new(0))
    }

    /// Adds `by` to the count. Fails if the count is on the other side of zero.
    pub(super) fn enter(&self, by: i64) -> Result<(), FsError> {
        let more = |n: u64| {
            let n = n as i64;
            (n.signum() != -by).then_some((n + by) as u64)
        };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).map(drop).map_err(|_| FsError::TextBusy)
    }

    /// Subtracts the number that `enter` added.
    pub(super) fn leave(&self, by: i64) {
        let before = self.0.fetch_sub(by as u64, Ordering::AcqRel) as i64;
        debug_assert!(before.signum() == by, "a count was removed that was not added");
    }

    /// The number of open files that may write.
    pub(crate) fn writers(&self) -> u64 {
        // Sequentially consistent: an opener for writing raises this count, and then checks for leases. The holder of a
        // new lease counts the lease, and then reads this count. So at least one of the two sees the other.
        (self.0.load(Ordering::SeqCst) as i64).max(0) as u64
    }

    /// Counts an open file that may write, until the result is dropped.
    pub(crate) fn write(&self) -> Result<Writer<'_>, FsError> {
        self.enter(WRITES)?;
        Ok(Writer(self))
    }

    /// Ends the count of a [kept](Writer::keep) writer.
    pub(crate) fn end_write(&self) {
        self.leave(WRITES);
    }
}

/// The count of an open file that may write, until it is dropped.
#[must_use]
pub(crate) struct Writer<'a>(&'a TextUse);

impl Writer<'_> {
    /// Keeps the open file counted until [`TextUse::end_write`].
    pub fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.0.end_write();
    }
}
