//! Writes that failed after whoever stored the data had gone on: remembered until everybody who asks has been told once.
//!
//! A page is written by a flush, by pageout, by anybody; who has the file open learns of a failure when it asks whether its
//! data is safe. Each asker remembers up to where it has been told. (Linux: `lib/errseq.c`.)

use quire_sync::atomic::{AtomicU32, Ordering};

/// Somebody has been told of the last failure: the next one is another.
const TOLD: u32 = 1;
/// One failure.
const ONE: u32 = 2;

/// Failures of an object's writes. Many of which nobody has been told count as one.
#[derive(Debug)]
pub struct WriteErrors(AtomicU32);

/// Up to where an asker has been told. Zero, with which it begins: nothing.
#[derive(Debug)]
pub struct Told(AtomicU32);

/// Writes have failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WritesFailed;

impl WriteErrors {
    /// None.
    pub(crate) fn new() -> Self {
        WriteErrors(AtomicU32::new(TOLD))
    }

    /// A write has failed.
    pub fn raise(&self) {
        let next = |now: u32| (now & TOLD != 0).then(|| now.wrapping_add(ONE) & !TOLD);
        let _told_already = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
    }

    /// A new asker, who need not be told of what somebody has been told of before.
    pub fn follow(&self) -> Told {
        let now = self.0.load(Ordering::Acquire);
        // What nobody knows of yet is told to the next who asks.
        Told(AtomicU32::new(if now & TOLD != 0 { now } else { 0 }))
    }

    /// Tells `asker` whether writes have failed since it was told last.
    pub fn tell(&self, asker: &Told) -> Result<(), WritesFailed> {
        let now = self.0.load(Ordering::Acquire);
        if now == asker.0.load(Ordering::Acquire) {
            return Ok(());
        }
        let now = self.0.fetch_or(TOLD, Ordering::AcqRel) | TOLD;
        // Of two who ask at once in the same name, one is told.
        if asker.0.swap(now, Ordering::AcqRel) == now { Ok(()) } else { Err(WritesFailed) }
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
    fn everybody_who_follows_is_told_once_and_who_comes_late_of_what_nobody_knows() {
        let errors = WriteErrors::new();
        let (a, b) = (errors.follow(), errors.follow());
        assert_eq!((errors.tell(&a), errors.tell(&b)), (Ok(()), Ok(())));
        errors.raise();
        errors.raise();
        let unknown = errors.follow();
        assert_eq!((errors.tell(&a), errors.tell(&a)), (Err(WritesFailed), Ok(())));
        let late = errors.follow();
        assert_eq!((errors.tell(&late), errors.tell(&late)), (Ok(()), Ok(())));
        assert_eq!((errors.tell(&unknown), errors.tell(&unknown)), (Err(WritesFailed), Ok(())));
        errors.raise();
        for who in [&a, &late, &unknown] {
            assert_eq!((errors.tell(who), errors.tell(who)), (Err(WritesFailed), Ok(())));
        }
        // Two failures, and one answer: it was not asked between them.
        assert_eq!((errors.tell(&b), errors.tell(&b)), (Err(WritesFailed), Ok(())));
    }
}
