//! Access to the bytes of frames that other CPUs may use at the same time. A program may store into a frame that is
//! being copied. A copy that is discarded later may have read a frame that already had another owner. Each byte that is
//! read has its old or its new value.
//!
//! Under ThreadSanitizer (`--cfg sanitized`) these accesses are relaxed atomics, so that it does not report these
//! intended races.

/// Copies `len` bytes.
///
/// # Safety
/// `from` and `to` are valid for `len` bytes, and do not overlap.
#[inline(always)]
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    #[cfg(not(sanitized))]
    // SAFETY: by this function's contract.
    unsafe {
        core::ptr::copy_nonoverlapping(from, to, len)
    }
    #[cfg(sanitized)]
    each(from.cast_mut(), to, len, |from, to| to.store(from.load(RELAXED), RELAXED));
}

/// Fills `len` bytes with `byte`.
///
/// # Safety
/// `to` is valid for `len` bytes.
#[inline(always)]
pub unsafe fn fill(to: *mut u8, byte: u8, len: usize) {
    #[cfg(not(sanitized))]
    // SAFETY: by this function's contract.
    unsafe {
        core::ptr::write_bytes(to, byte, len)
    }
    #[cfg(sanitized)]
    each(to, to, len, |_, to| to.store(u64::from_ne_bytes([byte; 8]), RELAXED));
}

use core::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed as RELAXED};

/// The number of bytes at `at` before the first aligned word, at most `len`.
fn before_words(at: *const u8, len: usize) -> usize {
    at.align_offset(size_of::<u64>()).min(len)
}

/// Copies shared bytes to `to`, by relaxed atomic loads of words, and of bytes at both ends.
///
/// # Safety
/// `from` is valid for reads of the length of `to`, and does not overlap it. Other threads access the bytes only as
/// atomics, or as hardware and programs do.
pub unsafe fn load(from: *const u8, to: &mut [u8]) {
    // SAFETY: `at` is below the length, so the byte is valid by this function's contract.
    let byte = |at: usize| unsafe { AtomicU8::from_ptr(from.add(at).cast_mut()) }.load(RELAXED);
    let first = before_words(from, to.len());
    let (head, rest) = to.split_at_mut(first);
    head.iter_mut().enumerate().for_each(|(at, to)| *to = byte(at));
    let mut words = rest.chunks_exact_mut(size_of::<u64>());
    let mut at = first;
    for to in &mut words {
        // SAFETY: the word is aligned, and within the bytes that are valid by this function's contract.
        let word = unsafe { AtomicU64::from_ptr(from.add(at).cast_mut().cast()) };
        to.copy_from_slice(&word.load(RELAXED).to_ne_bytes());
        at += to.len();
    }
    words.into_remainder().iter_mut().enumerate().for_each(|(i, to)| *to = byte(at + i));
}

/// Copies `from` to shared bytes, by relaxed atomic stores of words, and of bytes at both ends.
///
/// # Safety
/// `to` is valid for writes of the length of `from`, and does not overlap it. Other threads access the bytes only as
/// atomics, or as hardware and programs do.
pub unsafe fn store(to: *mut u8, from: &[u8]) {
    // SAFETY: `at` is below the length, so the byte is valid by this function's contract.
    let put = |at: usize, byte: u8| unsafe { AtomicU8::from_ptr(to.add(at)) }.store(byte, RELAXED);
    let (head, rest) = from.split_at(before_words(to, from.len()));
    head.iter().enumerate().for_each(|(at, byte)| put(at, *byte));
    let (words, tail) = rest.as_chunks();
    let mut at = head.len();
    for from in words {
        // SAFETY: the word is aligned, and within the bytes that are valid by this function's contract.
        unsafe { AtomicU64::from_ptr(to.add(at).cast()) }.store(u64::from_ne_bytes(*from), RELAXED);
        at += from.len();
    }
    tail.iter().enumerate().for_each(|(i, byte)| put(at + i, *byte));
}

/// Calls `f` with each pair of words. Fills and copies of a part of a page may begin and end inside a word; such bytes
/// use plain accesses.
#[cfg(sanitized)]
fn each(from: *mut u8, to: *mut u8, len: usize, f: impl Fn(&AtomicU64, &AtomicU64)) {
    let words = from.cast::<u64>().is_aligned() && to.cast::<u64>().is_aligned();
    let whole = if words { len / 8 } else { 0 };
    for i in 0..whole {
        // SAFETY: within both, aligned; by the callers' contracts.
        unsafe { f(AtomicU64::from_ptr(from.cast::<u64>().add(i)), AtomicU64::from_ptr(to.cast::<u64>().add(i))) }
    }
    let mut rest = [0u64; 2];
    for at in whole * 8..len {
        // SAFETY: `at` is below `len`, so both bytes are valid, by the callers' contracts; the words are locals, hence
        // aligned.
        unsafe {
            rest[0] = u64::from(from.add(at).read());
            let [one, other] = &mut rest;
            f(AtomicU64::from_ptr(one), AtomicU64::from_ptr(other));
            to.add(at).write(*other as u8);
        }
    }
}
