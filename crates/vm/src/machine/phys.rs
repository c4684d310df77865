//! Reaching RAM.

use crate::types::{PAGE_SIZE, Pfn};

/// RAM as the kernel reaches it.
///
/// # Safety
/// `frame_ptr` must return the same pointer for the same frame at all times, valid for reads and writes of
/// [`PAGE_SIZE`] bytes for every frame that the machine reported as RAM; consecutive frames of one range must be
/// consecutive in memory.
pub unsafe trait Phys {
    /// Where the kernel reaches frame `pfn` (a direct map, an arena).
    fn frame_ptr(&self, pfn: Pfn) -> *mut u8;

    /// The frame that holds the byte at `ptr`, which came from [`Phys::frame_ptr`].
    fn pfn_of(&self, ptr: *const u8) -> Pfn;

    /// Fills a frame with zeroes.
    ///
    /// # Safety
    /// The caller owns the frame, or holds its page exclusively busy with no writable translation.
    unsafe fn zero_frame(&self, pfn: Pfn) {
        // SAFETY: by the trait's contract the pointer is valid; by this function's, nobody else uses the frame.
        unsafe { core::ptr::write_bytes(self.frame_ptr(pfn), 0, PAGE_SIZE as usize) }
    }

    /// Copies one frame to another.
    ///
    /// # Safety
    /// As [`Phys::zero_frame`] for `to`; `from` must not be freed meanwhile. Racing stores into `from` are the caller's
    /// business (a copy-on-write copy is taken only after the flush).
    unsafe fn copy_frame(&self, from: Pfn, to: Pfn) {
        // SAFETY: both pointers are valid by the trait's contract, and distinct frames do not overlap.
        unsafe { core::ptr::copy_nonoverlapping(self.frame_ptr(from), self.frame_ptr(to), PAGE_SIZE as usize) }
    }

    /// Frame `pfn` goes back to the free lists: a machine that watches for the use of stale translations counts the frame's
    /// lives here. Others have nothing to do.
    #[inline(always)]
    fn frame_freed(&self, _pfn: Pfn) {}
}
