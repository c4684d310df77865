//! Hints in front of a search for room: its lowest possible start, for four sizes and alignments.
//!
//! # Invariant
//! No hole between a hint and the start of its search has room for its size at its alignment. So a search for as much
//! or more, at the same alignment or a larger one, may begin there. A successful search raises or makes a hint. A new
//! hole lowers all hints above it ([`Hints::freed`]). New mappings change none.

/// No room for `len` bytes at multiples of `align` lies in `from..at`.
#[derive(Clone, Copy, Default, Debug)]
pub struct Hint {
    /// Bytes; 0: no hint.
    pub len: u64,
    /// Of the addresses.
    pub align: u64,
    /// The start of the search.
    pub from: u64,
    /// The lowest address from which there may be room.
    pub at: u64,
}

/// Four hints; a new one replaces the oldest.
#[derive(Clone, Copy, Default, Debug)]
pub struct Hints {
    hints: [Hint; 4],
    oldest: usize,
}

impl Hints {
    /// The address at which a search from `lo` may begin.
    pub fn begin(&self, len: u64, align: u64, lo: u64) -> u64 {
        let serves = |h: &&Hint| h.len != 0 && h.len <= len && h.align <= align && h.from <= lo;
        self.hints.iter().filter(serves).map(|h| h.at).fold(lo, u64::max)
    }

    /// A search from `lo`, or from the result of [`Hints::begin`] for it, has found no room below `at`.
    pub fn found(&mut self, len: u64, align: u64, lo: u64, at: u64) {
        let same = self.hints.iter().position(|h| (h.len, h.align, h.from) == (len, align, lo));
        let slot = same.unwrap_or_else(|| {
            self.oldest = (self.oldest + 1) % self.hints.len();
            self.oldest
        });
        self.hints[slot] = Hint { len, align, from: lo, at };
    }

    /// The addresses from `from` on may be free now: a hole that an unmap made begins there.
    pub fn freed(&mut self, from: u64) {
        for hint in &mut self.hints {
            hint.at = hint.at.min(from);
        }
    }

    /// The hints that are set.
    pub fn all(&self) -> impl Iterator<Item = &Hint> {
        self.hints.iter().filter(|h| h.len != 0)
    }
}
