//! The bytes of a page that other threads and programs may store into at the same time.
//!
//! A reference (`&[u8]`, `&mut [u8]`) to such bytes would be undefined behaviour: a shared slice must not change, and a
//! mutable slice must be the only one. These types lend the bytes by copies instead. Each copy is made of relaxed
//! atomic accesses, so a race gives old or new bytes and nothing else.

use super::bytes;
use core::marker::PhantomData;

/// Bytes of a page to read. Copies are taken out of it; see the module.
#[derive(Clone, Copy)]
pub struct FrameBytes<'a> {
    start: *const u8,
    len: usize,
    lent: PhantomData<&'a ()>,
}

/// Bytes of a page to write. Copies are put into it; see the module.
pub struct FrameBytesMut<'a> {
    start: *mut u8,
    len: usize,
    lent: PhantomData<&'a ()>,
}

impl<'a> FrameBytes<'a> {
    /// # Safety
    /// The `len` bytes at `start` are valid for reads during `'a`. Other threads access them only as atomics, or as
    /// hardware and programs do.
    pub(crate) unsafe fn new(start: *const u8, len: usize) -> Self {
        FrameBytes { start, len, lent: PhantomData }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Copies the first bytes into `to`. Returns their number, which is the smaller of the two lengths.
    pub fn copy_to(&self, to: &mut [u8]) -> usize {
        self.copy_to_from(0, to)
    }

    /// As [`copy_to`](Self::copy_to), for the bytes from number `at` on.
    pub fn copy_to_from(&self, at: usize, to: &mut [u8]) -> usize {
        let n = self.len.saturating_sub(at).min(to.len());
        if n != 0 {
            // SAFETY: `at + n` is at most `len`, and the bytes are valid for reads by the contract of `new`.
            unsafe { bytes::load(self.start.add(at), &mut to[..n]) };
        }
        n
    }

    /// Byte number `at`, or `None` if there are fewer.
    pub fn get(&self, at: usize) -> Option<u8> {
        let mut byte = [0];
        (self.copy_to_from(at, &mut byte) == 1).then_some(byte[0])
    }

    /// The address of the first byte, for a machine that copies by its own instructions. Valid for reads during `'a`.
    pub fn as_ptr(&self) -> *const u8 {
        self.start
    }
}

impl<'a> FrameBytesMut<'a> {
    /// # Safety
    /// The `len` bytes at `start` are valid for reads and writes during `'a`. Other threads access them only as
    /// atomics, or as hardware and programs do.
    pub(crate) unsafe fn new(start: *mut u8, len: usize) -> Self {
        FrameBytesMut { start, len, lent: PhantomData }
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Stores `from` into the first bytes. Returns how many were stored, which is the smaller of the two lengths.
    pub fn copy_from(&self, from: &[u8]) -> usize {
        self.copy_from_to(0, from)
    }

    /// As [`copy_from`](Self::copy_from), for the bytes from number `at` on.
    pub fn copy_from_to(&self, at: usize, from: &[u8]) -> usize {
        let n = self.len.saturating_sub(at).min(from.len());
        if n != 0 {
            // SAFETY: `at + n` is at most `len`, and the bytes are valid for writes by the contract of `new`.
            unsafe { bytes::store(self.start.add(at), &from[..n]) };
        }
        n
    }

    /// Stores `byte` into all bytes.
    pub fn fill(&self, byte: u8) {
        let piece = [byte; 64];
        let mut at = 0;
        while at < self.len {
            at += self.copy_from_to(at, &piece);
        }
    }

    /// The same bytes, to read.
    pub fn read(&self) -> FrameBytes<'a> {
        FrameBytes { start: self.start, len: self.len, lent: PhantomData }
    }

    /// The address of the first byte, for a machine that copies by its own instructions. Valid for reads and writes
    /// during `'a`.
    pub fn as_mut_ptr(&self) -> *mut u8 {
        self.start
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn copies_begin_and_end_anywhere_in_a_word() {
        for first in 0..10 {
            for n in 0..30 {
                let mut memory = [0xee_u8; 48];
                let from: Vec<u8> = (1..=n as u8).collect();
                // SAFETY: the bytes lie within the array, which only this test uses.
                let lent = unsafe { FrameBytesMut::new(memory.as_mut_ptr().add(first), n) };
                assert_eq!(lent.copy_from(&[&from[..], &[99]].concat()), n, "what does not fit stays out");
                let mut back = vec![0; n + 1];
                assert_eq!(lent.read().copy_to(&mut back), n);
                assert_eq!(back[..n], from);
                assert_eq!((lent.read().get(n), lent.copy_from_to(n, &[1])), (None, 0));
                assert!(memory[..first].iter().chain(&memory[first + n..]).all(|b| *b == 0xee), "{first} {n}");
            }
        }
    }

    #[test]
    fn two_writers_of_the_same_bytes_leave_bytes_of_both() {
        let memory = [const { quire_sync::atomic::AtomicU64::new(0) }; 16];
        std::thread::scope(|s| {
            for byte in [1, 2] {
                let start = memory.as_ptr() as usize;
                let memory = &memory;
                s.spawn(move || {
                    let _borrowed = memory;
                    // SAFETY: the scope keeps the words, which both threads access only as atomics.
                    let lent = unsafe { FrameBytesMut::new(core::ptr::with_exposed_provenance_mut(start), 128) };
                    for _ in 0..50 {
                        lent.fill(byte);
                        assert!((0..128).all(|at| matches!(lent.read().get(at), Some(1 | 2))));
                    }
                });
            }
        });
    }
}
