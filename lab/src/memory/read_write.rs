//! A spinning reader-writer lock, like the locks of maps in earlier kernels. Each reader writes the count of readers.

use quire_sync::atomic::{AtomicU32, Ordering};
use quire_sync::hooks::relax;
use quire_sync::record;
use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};

const WRITER: u32 = 1 << 31;

/// The lock with its value.
pub struct ReadWrite<T> {
    /// The number of readers, and [`WRITER`] while a writer holds the lock.
    state: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: readers only share the value, and a writer has exclusive access.
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

/// The guard of a reader: shared access to the value.
pub struct Read<'a, T>(&'a ReadWrite<T>);

impl<T> Deref for Read<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: this guard is counted as a reader, so no writer has the lock while the guard exists.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> Drop for Read<'_, T> {
    fn drop(&mut self) {
        record::released(self.0, None);
        self.0.state.fetch_sub(1, Ordering::Release);
    }
}

/// The guard of a writer: exclusive access to the value.
pub struct Write<'a, T>(&'a ReadWrite<T>);

impl<T> Deref for Write<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: a `Write` exists only while its thread holds the lock exclusively.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Write<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: a `Write` exists only while its thread holds the lock exclusively, and `&mut self` makes this
        // reference unique.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Write<'_, T> {
    fn drop(&mut self) {
        record::released(self.0, None);
        // Only the writer's bit is cleared. Readers that tried while the writer held the lock may have incremented the
        // count. Each of them sees the bit and decrements the count again itself.
        self.0.state.fetch_and(!WRITER, Ordering::Release);
    }
}
