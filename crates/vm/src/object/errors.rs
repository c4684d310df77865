//! Failed writes of an object's pages, kept until each open file has reported them once.
//!
//! Flushes, pageout and other threads write a page. A program that has the file open learns of a failure when it syncs.
//! So each open file records the last failure that it has reported. (Linux: `lib/errseq.c`.)

use quire_sync::atomic::{AtomicU32, Ordering};

/// The last failure was reported, so the next one counts anew.
const REPORTED: u32 = 1;
/// One failure.
const ONE: u32 = 2;

/// Failures of an object's writes. Unreported failures count as one.
#[derive(Debug)]
pub struct WriteErrors(AtomicU32);

/// The last failure that one open file has reported; zero at first.
#[derive(Debug)]
pub struct ErrorCursor(AtomicU32);

/// Writes have failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WritesFailed;

impl WriteErrors {
    /// None.
    pub(crate) fn new() -> Self {
        WriteErrors(AtomicU32::new(REPORTED))
    }

    /// A write has failed.
    pub fn raise(&self) {
        let next = |now: u32| (now & REPORTED != 0).then(|| now.wrapping_add(ONE) & !REPORTED);
        let _reported_already = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }

    /// The record of a new open file, which does not report failures that another has already reported.
    pub fn follow(&self) -> ErrorCursor {
        let now = self.0.load(Ordering::Acquire);
        // A failure that was never reported goes to the next caller.
        ErrorCursor(AtomicU32::new(if now & REPORTED != 0 { now } else { 0 }))
    }

    /// Whether writes have failed since the last report to the open file of `cursor`.
    pub fn report(&self, cursor: &ErrorCursor) -> Result<(), WritesFailed> {
        let now = self.0.load(Ordering::Acquire);
        if now == cursor.0.load(Ordering::Acquire) {
            return Ok(());
        }
        let now = self.0.fetch_or(REPORTED, Ordering::AcqRel) | REPORTED;
        // Where two threads check the same file at once, one of them reports.
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
        errors.raise();
        errors.raise();
        let unknown = errors.follow();
        assert_eq!((errors.report(&a), errors.report(&a)), (Err(WritesFailed), Ok(())));
        let late = errors.follow();
        assert_eq!((errors.report(&late), errors.report(&late)), (Ok(()), Ok(())));
        assert_eq!((errors.report(&unknown), errors.report(&unknown)), (Err(WritesFailed), Ok(())));
        errors.raise();
        for reader in [&a, &late, &unknown] {
            assert_eq!((errors.report(reader), errors.report(reader)), (Err(WritesFailed), Ok(())));
        }
        // Two failures and one report, because there was no check between them.
        assert_eq!((errors.report(&b), errors.report(&b)), (Err(WritesFailed), Ok(())));
    }
}
