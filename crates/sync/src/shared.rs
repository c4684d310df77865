//! Plain memory that CPUs share under a lock that belongs to another structure.

use crate::record;
use core::cell::UnsafeCell;

/// A value that several CPUs access under a guard that the type does not name, such as the lock of a list or a page's
/// busy bit. The type has the layout of an [`UnsafeCell`]. The recording build records its accesses.
#[repr(transparent)]
pub struct Shared<T> {
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through unsafe functions, whose callers hold the guard.
unsafe impl<T: Send> Sync for Shared<T> {}

impl<T> Shared<T> {
    /// A cell that holds `value`.
    pub const fn new(value: T) -> Self {
        Shared { value: UnsafeCell::new(value) }
    }

    /// Returns the value for reading.
    ///
    /// # Safety
    /// The caller holds the guard, and no thread writes while the reference lives.
    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    pub unsafe fn get(&self) -> &T {
        record::read(self.value.get());
        // SAFETY: the caller holds the guard, and no thread writes while the reference lives.
        unsafe { &*self.value.get() }
    }

    /// Returns the value for writing.
    ///
    /// # Safety
    /// The caller holds the guard, and no other reference to the value lives.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    #[cfg_attr(recording, track_caller)]
    pub unsafe fn get_mut(&self) -> &mut T {
        record::wrote(self.value.get());
        // SAFETY: the caller holds the guard, and no other reference to the value lives.
        unsafe { &mut *self.value.get() }
    }
}
