//! Hints in front of a search for space. A hint is the lowest possible result of a search of one size and alignment.
//! There are four hints.
//!
//! # Invariant
//! No hole between the start of a hint's search and the hint has enough space for its size at its alignment. So a
//! search for that size or more, at that alignment or a larger one, may begin at the hint. A successful search raises a
//! hint or makes a new one. A new hole lowers all hints above its start ([`Hints::freed`]). New mappings change no
//! hint.

/// A fact about the map: no hole in `from..at` has space for `len` bytes at a multiple of `align`.
#[derive(Clone, Copy, Default, Debug)]
pub struct Hint {
    /// The size in bytes; 0 if the hint is not set.
    pub len: u64,
    /// The alignment of the addresses.
    pub align: u64,
    /// The start of the search.
    pub from: u64,
    /// The lowest address that may be the result of the search.
    pub at: u64,
}

/// The four hints of a map. A new hint replaces the oldest.
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

    /// Notes that a search found no space below `at`. The search began at `lo`, or at the result of [`Hints::begin`]
    /// for it.
    pub fn found(&mut self, len: u64, align: u64, lo: u64, at: u64) {
        let same = self.hints.iter().position(|h| (h.len, h.align, h.from) == (len, align, lo));
        let slot = same.unwrap_or_else(|| {
            self.oldest = (self.oldest + 1) % self.hints.len();
            self.oldest
        });
        self.hints[slot] = Hint { len, align, from: lo, at };
    }

    /// Notes that the addresses from `from` on may be free now, because an unmap made a hole that begins there.
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
