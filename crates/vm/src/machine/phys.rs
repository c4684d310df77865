//! Access to RAM.

use super::bytes;
use crate::types::{PAGE_SIZE, Pfn};

/// Number of a frame's cache lines that are prefetched before the frame is zeroed. A CPU can have about this number of
/// misses at the same time. After these lines the hardware prefetcher has detected the stream.
pub const PREFETCHED: usize = 16;
/// Number of cache lines of the next frame that are prefetched while a frame is zeroed. Their prefetch also loads the
/// frame's translation. On one machine, the bench `zero_fill_share_of_limit` gave 0.72 with no line, 0.83 with one, and
/// 0.87 with eight.
pub const PREFETCHED_BEFORE: usize = 8;

/// The kernel's access to RAM.
///
/// # Safety
/// `frame_ptr` must always return the same pointer for the same frame. The pointer is valid for reads and writes of
/// [`PAGE_SIZE`] bytes for every frame that the machine reported as RAM. Consecutive frames of one range must be
/// consecutive in memory.
pub unsafe trait Phys {
    /// The kernel's address of frame `pfn`, for example in a direct map.
    fn frame_ptr(&self, pfn: Pfn) -> *mut u8;

    /// The frame that holds the byte at `ptr`, which came from [`Phys::frame_ptr`].
    fn pfn_of(&self, ptr: *const u8) -> Pfn;

    /// Fills a frame with zeroes.
    ///
    /// # Safety
    /// The caller owns the frame, or holds its page exclusively busy with no writable translation.
    unsafe fn zero_frame(&self, pfn: Pfn) {
        // SAFETY: the pointer is valid by the trait's contract, and the caller alone uses the frame by this function's
        // contract.
        unsafe { bytes::fill(self.frame_ptr(pfn), 0, PAGE_SIZE as usize) }
    }

    /// Prefetches the cache line at `at`, which will soon be written. This is a hint, and `at` may be any address. A
    /// machine without prefetch does nothing.
    #[inline(always)]
    fn prefetch(&self, _at: *const u8) {}

    /// Prefetches the translation of frame `pfn` and the frame's first `LINES` cache lines, because the whole frame
    /// will soon be overwritten.
    #[inline(always)]
    fn prefetch_frame<const LINES: usize>(&self, pfn: Pfn) {
        let first = self.frame_ptr(pfn);
        (0..LINES).for_each(|line| self.prefetch(first.wrapping_add(64 * line)));
    }

    /// Copies one frame to another.
    ///
    /// # Safety
    /// The caller owns `to`, or holds its page exclusively busy with no writable translation. `from` is another frame
    /// of RAM. If `from` is stored into or freed during the copy, the caller detects that afterwards and discards the
    /// copy.
    unsafe fn copy_frame(&self, from: Pfn, to: Pfn) {
        // SAFETY: both pointers are valid by the trait's contract, and distinct frames do not overlap.
        unsafe { bytes::copy(self.frame_ptr(from), self.frame_ptr(to), PAGE_SIZE as usize) }
    }

    /// Called when frame `pfn` returns to the free lists. A machine that checks for stale translations counts the
    /// frame's lifetimes here. Others do nothing.
    ///
    /// # Safety
    /// No CPU has a translation to the frame, and its owner does not use it any more.
    #[inline(always)]
    unsafe fn frame_freed(&self, _pfn: Pfn) {}
}
