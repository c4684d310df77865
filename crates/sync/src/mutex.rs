//! A lock whose waiters sleep. For sections that may take long or sleep: map writers, directories, file tables.

use crate::atomic::{AtomicBool, Ordering};
use crate::held;
use crate::mutant::{Mutant, mutant};
use crate::record;
use crate::trace::{EventKind, Span};
use crate::wait_queue::WaitQueue;
use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

/// A value guarded by a sleeping lock. The lock must not be acquired while a spin lock is held or an epoch is pinned.
pub struct Mutex<T: ?Sized> {
    held: AtomicBool,
    waiters: WaitQueue,
    value: UnsafeCell<T>,
}

crate::assert_layout!(Mutex<()> { size: 40, align: 8 });

// SAFETY: the lock hands the value to one holder at a time.
unsafe impl<T: ?Sized + Send> Send for Mutex<T> {}
// SAFETY: a shared mutex gives the value to one holder at a time, so the value need not be `Sync`.
unsafe impl<T: ?Sized + Send> Sync for Mutex<T> {}

impl<T> Mutex<T> {
    /// A free lock around `value`.
    #[cfg(not(any(loom, shuttle)))]
    pub const fn new(value: T) -> Self {
        Mutex { held: AtomicBool::new(false), waiters: WaitQueue::new(), value: UnsafeCell::new(value) }
    }
    /// A free lock around `value`.
    #[cfg(any(loom, shuttle))]
    pub fn new(value: T) -> Self {
        Mutex { held: AtomicBool::new(false), waiters: WaitQueue::new(), value: UnsafeCell::new(value) }
    }
    /// Takes the value out of a lock that no other thread can reach any more.
    pub fn into_inner(self) -> T {
        // SAFETY: the value is read once, because `ManuallyDrop` keeps the lock from dropping it.
        unsafe { core::mem::ManuallyDrop::new(self).value.get().read() }
    }
}

#[cfg(all(debug_assertions, not(any(loom, shuttle))))]
impl<T: ?Sized> Drop for Mutex<T> {
    fn drop(&mut self) {
        held::forget(self.address());
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Sleeps until the lock is free, then holds it.
    ///
    /// The function is inlined, because some reports name the code that writes a cache line. They then name the caller,
    /// which owns the lock.
    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        crate::rank::assert_may_sleep();
        held::before_sleeping(core::any::type_name::<T>(), self.address());
        if !self.take() {
            let _span = Span::begin(EventKind::Lock, self.address() as u64, 0);
            self.wait();
        }
        record::taken(&self.held, None);
        held::sleeping_taken(core::any::type_name::<T>(), self.address());
        MutexGuard { lock: self, _not_send: core::marker::PhantomData }
    }

    #[cold]
    #[inline(never)]
    #[cfg_attr(recording, track_caller)]
    fn wait(&self) {
        self.waiters.wait(|| self.take());
    }

    /// Takes the lock if it is free.
    #[cfg_attr(recording, track_caller)]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        if !self.take() {
            return None;
        }
        record::taken(&self.held, None);
        held::sleeping_taken(core::any::type_name::<T>(), self.address());
        Some(MutexGuard { lock: self, _not_send: core::marker::PhantomData })
    }

    #[cfg_attr(recording, track_caller)]
    fn take(&self) -> bool {
        self.held.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    fn address(&self) -> usize {
        core::ptr::from_ref(&self.held).addr()
    }

    /// The value of a lock that the caller borrows exclusively.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// Holds a [`Mutex`]; released when dropped.
pub struct MutexGuard<'a, T: ?Sized> {
    lock: &'a Mutex<T>,
    _not_send: core::marker::PhantomData<*mut ()>,
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;
    #[cfg_attr(recording, track_caller)]
    fn deref(&self) -> &T {
        // SAFETY: the guard holds the lock.
        let value = unsafe { &*self.lock.value.get() };
        record::guarded(value, false);
        value
    }
}
impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    #[cfg_attr(recording, track_caller)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the guard holds the lock, and is borrowed exclusively.
        let value = unsafe { &mut *self.lock.value.get() };
        record::guarded(value, true);
        value
    }
}
impl<T: ?Sized> Drop for MutexGuard<'_, T> {
    fn drop(&mut self) {
        record::released(&self.lock.held, None);
        held::sleeping_released(self.lock.address());
        self.lock.held.store(false, Ordering::Release);
        if !mutant(Mutant::UnlockWithoutWakeUp) {
            self.lock.waiters.wake_one();
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn waiters_sleep_and_all_wake() {
        let m = Mutex::new(0u64);
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    for _ in 0..2_000 {
                        *m.lock() += 1;
                    }
                });
            }
        });
        assert_eq!(m.into_inner(), 16_000);
    }
}
