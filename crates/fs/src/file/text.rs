//! Writers and programs exclude each other: no writer opens a file that is executed, and no file that is open for writing is executed.
//!
//! One count says both, so that of an open for writing and an exec at the same moment one is refused: above zero it counts open files
//! that may write, below zero programs that run the file or are being loaded from it. [`TextUse`] alone changes it, in one step.
//!
//! As on Linux, the file that a process executes is one of these, and a script or an ELF interpreter only while an exec reads it.
//! A process that was forked shares what its parent has loaded, and so its count.

use crate::FsError;
use quire_sync::atomic::{AtomicU64, Ordering};

/// A writer adds the first number to the count, a program the second.
const WRITES: i64 = 1;
pub(super) const RUNS: i64 = -1;

/// How a regular file is used as a program; see the module.
#[repr(align(64))]
pub struct TextUse(AtomicU64);

impl TextUse {
    pub(crate) fn new() -> Self {
        TextUse(AtomicU64::new(0))
    }

    /// Adds `by` to the count, where that does not turn it to the other side of zero.
    pub(super) fn enter(&self, by: i64) -> Result<(), FsError> {
        let more = |n: u64| {
            let n = n as i64;
            (n.signum() != -by).then_some((n + by) as u64)
        };
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).map(drop).map_err(|_| FsError::TextBusy)
    }

    /// Takes back what `enter` added.
    pub(super) fn leave(&self, by: i64) {
        let before = self.0.fetch_sub(by as u64, Ordering::AcqRel) as i64;
        debug_assert!(before.signum() == by, "what leaves counts");
    }

    /// One more open file that may write.
    pub(crate) fn write(&self) -> Result<Writer<'_>, FsError> {
        self.enter(WRITES)?;
        Ok(Writer(self))
    }

    /// A writer that was [kept](Writer::keep) is gone.
    pub(crate) fn end_write(&self) {
        self.leave(WRITES);
    }
}

/// An open file that may write; it counts no more when this is dropped.
#[must_use]
pub(crate) struct Writer<'a>(&'a TextUse);

impl Writer<'_> {
    /// It counts until [`TextUse::end_write`].
    pub fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.0.end_write();
    }
}
