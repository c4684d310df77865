//! Failed writes of an object's pages. A failure is kept until each open file has reported it once.
//!
//! Flushes, pageout and other threads write pages. A program that has the file open learns of a failed write when it
//! syncs the file. So each open file records the last failure that it has reported. (Linux: `lib/errseq.c`.)

use crate::error::PagerError;
use quire_sync::atomic::{AtomicU32, Ordering};

/// Bit: the last failure was reported, so the next failure is counted as a new one.
const REPORTED: u32 = 1;
/// The increment for one failure.
const ONE: u32 = 2;
/// The lowest bit of the code of the last failure, above the count.
const CODE: u32 = 28;

/// The count of failed writes of an object. Failures between two reports count as one.
#[derive(Debug)]
pub struct WriteErrors(AtomicU32);

/// The value of the count that one open file has reported last; 0 at first.
#[derive(Debug)]
pub struct ErrorCursor(AtomicU32);

/// A write of the object's pages has failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WritesFailed;

impl WriteErrors {
    /// No failure.
    pub(crate) fn new() -> Self {
        WriteErrors(AtomicU32::new(REPORTED))
    }

    /// Records that a write has failed.
    pub fn raise(&self, error: PagerError) {
        let code = u32::from(PagerError::to_code(Err(error))) << CODE;
        let count = |now: u32| now.wrapping_add(ONE) & ((1 << CODE) - 1) & !REPORTED;
        let next = |now: u32| (now & REPORTED != 0).then(|| count(now) | code);
        let _reported_already = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }

    /// The reason of the last failure, of those since the last report the first.
    pub(crate) fn last(&self) -> PagerError {
        let code = (self.0.load(Ordering::Acquire) >> CODE) as u8;
        PagerError::from_code(code).err().unwrap_or(PagerError::Failed)
    }

    /// The cursor of a new open file. The file does not report failures that another open file has already reported.
    pub fn follow(&self) -> ErrorCursor {
        let now = self.0.load(Ordering::Acquire);
        // A failure that no open file has reported yet is reported to this one, too.
        ErrorCursor(AtomicU32::new(if now & REPORTED != 0 { now } else { 0 }))
    }

    /// Returns an error if a write has failed since the last report to the open file of `cursor`.
    pub fn report(&self, cursor: &ErrorCursor) -> Result<(), WritesFailed> {
        let now = self.0.load(Ordering::Acquire);
        if now == cursor.0.load(Ordering::Acquire) {
            return Ok(());
        }
        let now = self.0.fetch_or(REPORTED, Ordering::AcqRel) | REPORTED;
        // If two threads check the same open file at once, only one of them reports the failure.
        if cursor.0.swap(now, Ordering::AcqRel) == now { Ok(()) } else { Err(WritesFailed) }
    }
}

impl Default for WriteErrors {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn followers_get_each_error_once_and_late_ones_unreported_ones() {
        let errors = WriteErrors::new();
        let (a, b) = (errors.follow(), errors.follow());
        assert_eq!((errors.report(&a), errors.report(&b)), (Ok(()), Ok(())));
        errors.raise(PagerError::NoRoom);
        errors.raise(PagerError::Failed);
        assert_eq!(errors.last(), PagerError::NoRoom);
        let unknown = errors.follow();
        assert_eq!((errors.report(&a), errors.report(&a)), (Err(WritesFailed), Ok(())));
        let late = errors.follow();
        assert_eq!((errors.report(&late), errors.report(&late)), (Ok(()), Ok(())));
        assert_eq!((errors.report(&unknown), errors.report(&unknown)), (Err(WritesFailed), Ok(())));
        errors.raise(PagerError::Gone);
        assert_eq!(errors.last(), PagerError::Gone);
        for reader in [&a, &late, &unknown] {
            assert_eq!((errors.report(reader), errors.report(reader)), (Err(WritesFailed), Ok(())));
        }
        // The two failures give one report, because there was no report between them.
        assert_eq!((errors.report(&b), errors.report(&b)), (Err(WritesFailed), Ok(())));
    }
}
