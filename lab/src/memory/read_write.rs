//! A spinning lock that readers share: the lock of the maps of that time, with a count that each reader writes.

use quire_sync::atomic::{AtomicU32, Ordering};
use quire_sync::hooks::relax;
use quire_sync::record;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

const WRITER: u32 = 1 << 31;

/// The lock.
pub struct ReadWrite<T> {
    /// How many read, or [`WRITER`].
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: readers share the value, a writer has it alone.
unsafe impl<T: Send + Sync> Sync for ReadWrite<T> {}

impl<T> ReadWrite<T> {
    pub fn new(value: T) -> Self {
        ReadWrite { state: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    pub fn read(&self) -> Read<'_, T> {
        while self.state.fetch_add(1, Ordering::Acquire) & WRITER != 0 {
            self.state.fetch_sub(1, Ordering::Relaxed);
            while self.state.load(Ordering::Relaxed) & WRITER != 0 {
                relax();
            }
        }
        record::taken(self, None);
        Read(self)
    }

    pub fn write(&self) -> Write<'_, T> {
        while self.state.compare_exchange(0, WRITER, Ordering::Acquire, Ordering::Relaxed).is_err() {
            relax();
        }
        record::taken(self, None);
        Write(self)
    }
}

/// The value, shared with other readers.
pub struct Read<'a, T>(&'a ReadWrite<T>);

impl<T> Deref for Read<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: readers are counted, so no writer is there.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> Drop for Read<'_, T> {
    fn drop(&mut self) {
        record::released(self.0, None);
        self.0.state.fetch_sub(1, Ordering::Release);
    }
}

/// The value, exclusive to the caller.
pub struct Write<'a, T>(&'a ReadWrite<T>);

impl<T> Deref for Write<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: a `Write` exists while its thread alone has the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Write<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: a `Write` exists while its thread alone has the lock, and `&mut self` makes this reference the one.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Write<'_, T> {
    fn drop(&mut self) {
        record::released(self.0, None);
        // Readers that came meanwhile and will leave again are counted beside the mark.
        self.0.state.fetch_and(!WRITER, Ordering::Release);
    }
}
