//! Memory for the tables that grow with the machine: the futex table, the directory of ids, random streams.
//!
//! Each table is contiguous and lives as long as the kernel. The frame allocator has no contiguous blocks beyond a
//! largest size. So boot reserves the memory of the tables before it gives the rest of RAM to the frame allocator.

use crate::errno::Errno;
use core::ptr::NonNull;

/// Memory that boot has reserved for tables. Its parts are allocated once and never freed.
pub struct TableMemory {
    next: NonNull<u8>,
    left: usize,
}

/// The largest alignment of a table.
pub const ALIGN: usize = 128;

impl TableMemory {
    /// The `len` bytes at `at`, as memory for tables.
    ///
    /// # Safety
    /// The bytes are writable, aligned to [`ALIGN`], never freed, and used by nothing else.
    pub unsafe fn new(at: NonNull<u8>, len: usize) -> TableMemory {
        TableMemory { next: at, left: len }
    }

    /// Allocates `bytes` uninitialised bytes, aligned to [`ALIGN`]. ENOMEM if fewer bytes are left.
    pub fn take(&mut self, bytes: usize) -> Result<NonNull<u8>, Errno> {
        let bytes = padded(bytes);
        self.left = self.left.checked_sub(bytes).ok_or(Errno::ENOMEM)?;
        let at = self.next;
        // SAFETY: the check above found that at least `bytes` were left.
        self.next = unsafe { at.add(bytes) };
        Ok(at)
    }
}

/// The number of bytes that [`TableMemory::take`] uses for a request of `bytes`.
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
        // SAFETY: the memory is leaked, and at least 512 of its bytes follow the aligned address.
        let mut tables = unsafe { TableMemory::new(at, 512) };
        assert_eq!(tables.take(1), Ok(at));
        assert_eq!(tables.take(256).map(|p| p.addr().get() - at.addr().get()), Ok(ALIGN));
        assert_eq!(tables.take(129), Err(Errno::ENOMEM));
        assert!(tables.take(128).is_ok());
        assert_eq!(tables.take(1), Err(Errno::ENOMEM));
    }
}
