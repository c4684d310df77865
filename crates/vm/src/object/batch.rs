//! Batches: a few pages of one object that are checked or removed together.

use crate::types::Pfn;
use core::mem::MaybeUninit;

/// The number of pages in a batch. It is large enough to amortise a reverse-map pass and its flushes. It is small
/// enough for the stack, and for one bit per page in a word.
#[cfg(not(any(loom, shuttle)))]
pub(crate) const BATCH: usize = 64;
#[cfg(any(loom, shuttle))]
pub(crate) const BATCH: usize = 2;

/// A batch of pages of one object, in ascending order of keys.
pub(crate) struct Batch {
    /// Only the first `len` elements are initialised, because most batches have few pages.
    pages: [MaybeUninit<(u64, Pfn)>; BATCH],
    len: usize,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        // Each element is made by itself, because the compiler would copy a constant array as a whole.
        Batch { pages: core::array::from_fn(|_| MaybeUninit::uninit()), len: 0 }
    }

    /// Adds a page at its place in the order. This costs nothing if the page is the last. The batch is not
    /// [full](Batch::is_full).
    pub fn push(&mut self, key: u64, pfn: Pfn) {
        let mut at = self.len;
        while at > 0 && self.as_slice()[at - 1].0 > key {
            self.pages[at] = self.pages[at - 1];
            at -= 1;
        }
        self.pages[at].write((key, pfn));
        self.len += 1;
    }

    /// Whether the batch has no room for another page.
    pub fn is_full(&self) -> bool {
        self.len == BATCH
    }
    /// Whether the batch has no page.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
    /// The pages as pairs of key and frame, in ascending order of keys.
    pub fn as_slice(&self) -> &[(u64, Pfn)] {
        let pages = &self.pages[..self.len];
        // SAFETY: the first `len` elements were written, and only written elements are moved up.
        unsafe { core::slice::from_raw_parts(pages.as_ptr().cast(), pages.len()) }
    }
}

/// A set of pages of a batch, by their numbers in the batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Subset(u64);

impl Subset {
    /// The set of all pages of `batch`.
    pub fn of(batch: &Batch) -> Subset {
        Subset(batch.as_slice().iter().fold(0, |all, _| all << 1 | 1))
    }
    /// Whether page number `at` of the batch is in the set.
    pub fn contains(self, at: usize) -> bool {
        self.0 >> at & 1 != 0
    }
    /// The number of pages in the set.
    pub fn len(self) -> u32 {
        self.0.count_ones()
    }
    /// Adds page number `at` to the set.
    pub fn add(&mut self, at: usize) {
        self.0 |= 1 << at;
    }
}
