//! Plain memory that CPUs share under a lock elsewhere.

use crate::record;
use core::cell::UnsafeCell;

/// A value that several CPUs access under a guard that the type does not name: the lock of its list, or busy. Like an
/// [`UnsafeCell`], and of the same layout; the recording build records accesses.
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

    /// The value, to be read.
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

    /// The value, to be written.
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
