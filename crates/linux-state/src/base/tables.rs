//! Memory for the tables that grow with the machine: the futex table, the directory of ids, random streams.
//!
//! Each lives as long as the kernel and is contiguous, which the frame allocator cannot give beyond its largest block.
//! So boot sets their memory aside before the frame allocator gets the rest.

use crate::errno::Errno;
use core::ptr::NonNull;

/// Memory set aside by boot. Its parts are handed out once and never freed.
pub struct TableMemory {
    next: NonNull<u8>,
    left: usize,
}

/// The largest alignment of a table.
pub const ALIGN: usize = 128;

impl TableMemory {
    /// Hands out the `len` bytes at `at`.
    ///
    /// # Safety
    /// They are writable, aligned to [`ALIGN`], never freed, and used by nothing else.
    pub unsafe fn new(at: NonNull<u8>, len: usize) -> TableMemory {
        TableMemory { next: at, left: len }
    }

    /// `bytes` bytes, aligned to [`ALIGN`], uninitialised. ENOMEM if less was set aside.
    pub fn take(&mut self, bytes: usize) -> Result<NonNull<u8>, Errno> {
        let bytes = padded(bytes);
        self.left = self.left.checked_sub(bytes).ok_or(Errno::ENOMEM)?;
        let at = self.next;
        // SAFETY: `bytes` more were left in the memory.
        self.next = unsafe { at.add(bytes) };
        Ok(at)
    }
}

/// The bytes that [`TableMemory::take`] uses for `bytes`.
pub const fn padded(bytes: usize) -> usize {
    bytes.next_multiple_of(ALIGN)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn tables_are_aligned_and_end_where_the_memory_does() {
        let memory: &'static mut [u128] = vec![0u128; 64].leak();
        let at = memory.as_mut_ptr().cast::<u8>();
        let at = NonNull::new(at.wrapping_add(at.align_offset(ALIGN))).expect("an address");
        // SAFETY: leaked; 512 of its bytes lie behind the alignment.
        let mut tables = unsafe { TableMemory::new(at, 512) };
        assert_eq!(tables.take(1), Ok(at));
        assert_eq!(tables.take(256).map(|p| p.addr().get() - at.addr().get()), Ok(ALIGN));
        assert_eq!(tables.take(129), Err(Errno::ENOMEM));
        assert!(tables.take(128).is_ok());
        assert_eq!(tables.take(1), Err(Errno::ENOMEM));
    }
}
