//! Some pages of one object, which are checked or taken together.

use crate::types::Pfn;
use core::mem::MaybeUninit;

/// Pages of a batch: enough that a pass and its flushes are amortised, few enough for the stack, and for a word of
/// bits.
#[cfg(not(any(loom, shuttle)))]
pub(crate) const BATCH: usize = 64;
#[cfg(any(loom, shuttle))]
pub(crate) const BATCH: usize = 2;

/// Pages of one object, ascending by key.
pub(crate) struct Batch {
    /// Written below `len`: most batches are of few pages.
    pages: [MaybeUninit<(u64, Pfn)>; BATCH],
    len: usize,
}

impl Batch {
    /// No page yet.
    pub fn new() -> Batch {
        // Element by element: a constant would be written whole.
        Batch { pages: core::array::from_fn(|_| MaybeUninit::uninit()), len: 0 }
    }

    /// Adds a page at its place in the order, at no cost where it is the last. The batch is not [full](Batch::is_full).
    pub fn push(&mut self, key: u64, pfn: Pfn) {
        let mut at = self.len;
        while at > 0 && self.as_slice()[at - 1].0 > key {
            self.pages[at] = self.pages[at - 1];
            at -= 1;
        }
        self.pages[at].write((key, pfn));
        self.len += 1;
    }

    /// Whether no page fits any more.
    pub fn is_full(&self) -> bool {
        self.len == BATCH
    }
    /// Whether there is no page.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The pages, ascending: (key, frame).
    pub fn as_slice(&self) -> &[(u64, Pfn)] {
        let pages = &self.pages[..self.len];
        // SAFETY: the first `len` elements were written, and only written elements are moved up.
        unsafe { core::slice::from_raw_parts(pages.as_ptr().cast(), pages.len()) }
    }
}

/// Some of a batch's pages, by their number in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Subset(u64);

impl Subset {
    /// All pages of `batch`.
    pub fn of(batch: &Batch) -> Subset {
        Subset(batch.as_slice().iter().fold(0, |all, _| all << 1 | 1))
    }
    /// Whether page number `at` of the batch is among them.
    pub fn contains(self, at: usize) -> bool {
        self.0 >> at & 1 != 0
    }
    /// How many there are.
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }
    /// Adds page number `at`.
    pub fn add(&mut self, at: usize) {
        self.0 |= 1 << at;
    }
}
