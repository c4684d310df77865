//! Hints in front of a search for room: where it may begin, for four sizes and alignments.
//!
//! # Invariant
//! Below a hint, down to where its search began, lies no hole that has room for its size at its alignment. So a search
//! for as much or more, at the same alignment or a larger one, may begin there. A search that found something raises or
//! makes a hint, a hole that appears lowers all that it may lie below ([`Hints::freed`]); what is mapped changes none.

/// Room for `len` bytes at multiples of `align` is nowhere in `from..at`.
#[derive(Clone, Copy, Default, Debug)]
pub struct Hint {
    /// Bytes; 0: no hint.
    pub len: u64,
    /// Of the addresses.
    pub align: u64,
    /// Where the search began.
    pub from: u64,
    /// The lowest address from which there may be room.
    pub at: u64,
}

/// Four hints, the oldest of which gives way.
#[derive(Clone, Copy, Default, Debug)]
pub struct Hints {
    hints: [Hint; 4],
    oldest: usize,
}

impl Hints {
    /// Where a search from `lo` on may begin.
    pub fn begin(&self, len: u64, align: u64, lo: u64) -> u64 {
        let serves = |h: &&Hint| h.len != 0 && h.len <= len && h.align <= align && h.from <= lo;
        self.hints.iter().filter(serves).map(|h| h.at).fold(lo, u64::max)
    }

    /// A search from `lo` on, or from what [`Hints::begin`] said of it, has found that nothing lies below `at`.
    pub fn found(&mut self, len: u64, align: u64, lo: u64, at: u64) {
        let same = self.hints.iter().position(|h| (h.len, h.align, h.from) == (len, align, lo));
        let slot = same.unwrap_or_else(|| {
            self.oldest = (self.oldest + 1) % self.hints.len();
            self.oldest
        });
        self.hints[slot] = Hint { len, align, from: lo, at };
    }

    /// What lies from `from` on may be free now: the hole that something was unmapped in begins there.
    pub fn freed(&mut self, from: u64) {
        for hint in &mut self.hints {
            hint.at = hint.at.min(from);
        }
    }

    /// Those that say something.
    pub fn all(&self) -> impl Iterator<Item = &Hint> {
        self.hints.iter().filter(|h| h.len != 0)
    }
}
