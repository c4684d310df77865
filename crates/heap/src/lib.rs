//! Containers in which every allocation can be refused.
//!
//! # The rule
//! An operation that allocates returns [`OutOfMemory`] if there is no memory, and has then changed nothing. An
//! operation without that error allocates nothing. No operation aborts the program for lack of memory.
//!
//! # Order
//! A caller allocates first and publishes afterwards. [`Room`], [`SpareEntry`] and `try_reserve` allocate the memory
//! for a later step that must not fail: under a lock, or after a point of no return.
#![cfg_attr(not(any(test, feature = "refusal")), no_std)]
#![deny(missing_docs)]

extern crate alloc;

mod arc;
mod boxed;
mod deque;
mod map;
#[cfg(any(test, feature = "refusal"))]
pub mod refusal;
mod text;
mod vec;

pub use arc::{Arc, Room, Weak, allocation};
#[doc(hidden)]
pub use arc::{from_inner, into_inner};
pub use boxed::{Box, try_leak};
pub use deque::Deque;
pub use map::{Iter, Map, SpareEntry};
pub use text::try_format;
pub use vec::Vec;

use core::alloc::Layout;
use core::fmt;
use core::ptr::NonNull;

/// The error of a request for which there is no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfMemory;

impl fmt::Display for OutOfMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("out of memory")
    }
}

impl core::error::Error for OutOfMemory {}

/// Formatting into growing text can fail only for lack of memory.
impl From<fmt::Error> for OutOfMemory {
    fn from(_: fmt::Error) -> Self {
        OutOfMemory
    }
}

impl From<alloc::collections::TryReserveError> for OutOfMemory {
    fn from(_: alloc::collections::TryReserveError) -> Self {
        OutOfMemory
    }
}

/// Allocates uninitialised memory from the global allocator. A layout of size zero needs no memory. The caller frees
/// the result with [`deallocate`].
pub fn allocate(layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
    if layout.size() == 0 {
        return Ok(NonNull::without_provenance(
            // The alignment is a power of two, so it is not zero.
            core::num::NonZeroUsize::new(layout.align()).ok_or(OutOfMemory)?,
        ));
    }
    // SAFETY: the layout's size is not zero: that case has returned.
    NonNull::new(unsafe { alloc::alloc::alloc(layout) }).ok_or(OutOfMemory)
}

/// Allocates memory that is all zero; otherwise as [`allocate`].
pub fn allocate_zeroed(layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
    let memory = allocate(layout)?;
    // SAFETY: the memory has the size of the layout, and no other code uses it.
    unsafe { memory.write_bytes(0, layout.size()) };
    Ok(memory)
}

/// Frees memory that [`allocate`] returned.
///
/// # Safety
/// `memory` came from [`allocate`] with this layout, and is not used any more.
pub unsafe fn deallocate(memory: NonNull<u8>, layout: Layout) {
    if layout.size() > 0 {
        // SAFETY: by this function's contract it came from the global allocator with this layout.
        unsafe { alloc::alloc::dealloc(memory.as_ptr(), layout) };
    }
}
