//! A spin lock that is stored beside other fields until several threads need it.
//!
//! A structure that only one thread uses keeps the lock and its value [near](Apart::new), because this needs little
//! memory. After threads share the structure, each change of the lock would take the cache line of the other fields
//! from their readers. So before a second thread gets the structure, the first thread [moves](Apart::move_apart) the
//! lock and the value to cache lines of their own.

use core::ops::{Deref, DerefMut};
use core::ptr;
use quire_heap::{Box, OutOfMemory};
use quire_sync::atomic::{AtomicPtr, Ordering};
use quire_sync::per_cpu::CachePadded;
use quire_sync::rank::Rank;
use quire_sync::spin::{SpinGuard, SpinLock};

/// A lock with its value inside, which share their cache lines with no other data.
type Far<T> = CachePadded<SpinLock<Option<T>>>;

/// A spin lock and its value. Both are *near* (in this struct), or *apart* (in an allocation of their own, a `Far`).
pub struct Apart<T> {
    /// The separate lock, which has the value; null while the value is near. A thread that holds `near` sets the
    /// pointer once.
    far: AtomicPtr<Far<T>>,
    /// The lock in this struct. It has the value until the value has moved to `far`, and none afterwards.
    near: SpinLock<Option<T>>,
}

// SAFETY: the pointer leads to a lock that this value owns, so sending it sends the value.
unsafe impl<T: Send> Send for Apart<T> {}
// SAFETY: both locks give the value to one holder at a time.
unsafe impl<T: Send> Sync for Apart<T> {}

/// The guard of the lock, which gives access to the value.
pub struct Held<'a, T>(SpinGuard<'a, Option<T>>);

impl<T> Apart<T> {
    /// A lock of `rank`, which is stored with its value in this struct (near).
    pub fn new(rank: Rank, value: T) -> Self {
        Apart { far: AtomicPtr::new(ptr::null_mut()), near: SpinLock::new(rank, Some(value)) }
    }

    /// The layout of the allocation to which [`move_apart`](Self::move_apart) moves the lock and the value.
    pub const FAR: core::alloc::Layout = core::alloc::Layout::new::<Far<T>>();

    fn far(&self) -> Option<&SpinLock<Option<T>>> {
        // SAFETY: the pointer is null, or leads to a leaked box that is freed with `self`.
        unsafe { self.far.load(Ordering::Acquire).as_ref() }.map(|far| &far.0)
    }

    /// Whether lock and value have moved apart.
    #[inline]
    pub fn is_apart(&self) -> bool {
        !self.far.load(Ordering::Relaxed).is_null()
    }

    /// Moves the lock and the value to cache lines that no other data uses, if they are near. If two threads call this
    /// at once, only one of them moves the value.
    pub fn move_apart(&self) -> Result<(), OutOfMemory> {
        if self.is_apart() {
            return Ok(());
        }
        let mut far = Box::try_new(CachePadded(SpinLock::new(self.near.rank(), None)))?;
        let mut near = self.near.lock();
        if near.is_some() {
            *far.0.get_mut() = near.take();
            self.far.store(Box::into_raw(far), Ordering::Release);
        }
        Ok(())
    }

    fn hold<'a>(&'a self, lock: impl Fn(&'a SpinLock<Option<T>>) -> SpinGuard<'a, Option<T>>) -> Held<'a, T> {
        if let Some(far) = self.far() {
            return Held(lock(far));
        }
        let near = lock(&self.near);
        if near.is_some() {
            return Held(near);
        }
        drop(near);
        // The value moved after this thread read `far` above. The thread that moved the value stored `far` while it
        // held `near`. This thread acquired `near` after that, so it reads the stored pointer now.
        self.far().map_or_else(|| unreachable!("a value moved nowhere"), |far| Held(lock(far)))
    }

    /// Acquires the lock, as [`SpinLock::lock`] does.
    #[inline]
    pub fn lock(&self) -> Held<'_, T> {
        self.hold(SpinLock::lock)
    }

    /// Acquires the lock, as [`SpinLock::lock_nested`] does.
    pub fn lock_nested(&self) -> Held<'_, T> {
        self.hold(SpinLock::lock_nested)
    }
}

impl<T> Deref for Held<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        self.0.as_ref().unwrap_or_else(|| unreachable!("the lock that has the value is held"))
    }
}

impl<T> DerefMut for Held<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().unwrap_or_else(|| unreachable!("the lock that has the value is held"))
    }
}

impl<T> Drop for Apart<T> {
    fn drop(&mut self) {
        let far = self.far.load(Ordering::Relaxed);
        if !far.is_null() {
            // SAFETY: `move_apart` leaked the box, and no reference to it outlives `self`.
            drop(unsafe { Box::from_raw(far) });
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_changed_in_turn_while_it_moves() {
        let value = &Apart::new(Rank::FILE, 0u64);
        std::thread::scope(|s| {
            for mover in [false, true, true] {
                s.spawn(move || {
                    for n in 0..1000 {
                        if mover && n == 500 {
                            value.move_apart().unwrap();
                        }
                        *value.lock() += 1;
                    }
                });
            }
        });
        assert_eq!((*value.lock(), value.is_apart()), (3000, true));
    }

    #[test]
    fn a_refused_move_leaves_the_value_near() {
        let value = Apart::new(Rank::FILE, 7);
        assert!(quire_heap::refusal::at(1, || value.move_apart().is_err()).0);
        assert_eq!((*value.lock(), value.is_apart()), (7, false));
    }
}
