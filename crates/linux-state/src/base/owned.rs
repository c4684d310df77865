//! Values that one thread owns. The owner reads an [`Owned`] value without a lock, and changes it with a lock held.
//! Other threads hold the lock while they read the value. A [`Private`] value is accessed by its owner alone.

use core::cell::UnsafeCell;
use quire_sync::atomic::AtomicBool;
use quire_sync::{Rank, SpinLock};

/// A marker field for a value that a method with `&self` frees. Without an `UnsafeCell`, the compiler may treat the
/// value's memory as constant until the method returns. It could then omit the stores with which the heap links the
/// freed memory.
pub(crate) type FreesItself = [AtomicBool; 0];

/// A value that its owner reads without a lock, and that other threads may read. The owner is the thread whose
/// structure contains the value.
pub struct Owned<T> {
    /// The owner holds this lock while it changes the value. Other threads hold it while they read the value.
    guard: SpinLock<()>,
    value: UnsafeCell<T>,
}

// SAFETY: other threads only read the value, with the guard held. The owner holds the guard to write. So `T` must be
// `Sync` and `Send`.
unsafe impl<T: Send + Sync> Sync for Owned<T> {}

impl<T> Owned<T> {
    /// An owned value with the content `value`.
    pub fn new(value: T) -> Self {
        Owned { guard: SpinLock::new(Rank::OWNED, ()), value: UnsafeCell::new(value) }
    }

    /// The owner's view, without a lock.
    ///
    /// # Safety
    /// The caller is the owner, or a context switch to the owner. The caller does not use the reference after it calls
    /// [`replace`](Owned::replace).
    #[inline(always)]
    pub unsafe fn get(&self) -> &T {
        // SAFETY: only the owner writes, and the caller is the owner.
        unsafe { &*self.value.get() }
    }

    /// Changes the value, and returns the old one. The caller drops the old value after this call, without the guard,
    /// because the drop may take long.
    ///
    /// # Safety
    /// The caller is the owner and holds no reference from [`get`](Owned::get).
    pub unsafe fn replace(&self, new: T) -> T {
        let _guard = self.guard.lock();
        // SAFETY: the guard excludes readers, and the caller is the owner.
        unsafe { core::mem::replace(&mut *self.value.get(), new) }
    }

    /// Calls `f` with the value, for another thread. The guard is held while `f` runs. So `f` is short, does not sleep
    /// and acquires no lock of this layer.
    pub fn look<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        let _guard = self.guard.lock();
        // SAFETY: the guard excludes writes by the owner.
        f(unsafe { &*self.value.get() })
    }
}

/// A value that only its owner uses. The owner is the thread whose structure contains the value.
pub struct Private<T>(UnsafeCell<T>);

// SAFETY: by the contract of the methods, only the owner accesses the value. So it is only sent between threads.
unsafe impl<T: Send> Sync for Private<T> {}

impl<T> Private<T> {
    /// A private value with the content `value`.
    pub const fn new(value: T) -> Self {
        Private(UnsafeCell::new(value))
    }

    /// The owner's view of the value.
    ///
    /// # Safety
    /// The caller is the owner, and does not use the reference after it calls [`replace`](Private::replace).
    #[inline(always)]
    pub unsafe fn get(&self) -> &T {
        // SAFETY: only the owner accesses the value, and the caller is the owner.
        unsafe { &*self.0.get() }
    }

    /// Changes the value, and returns the old one.
    ///
    /// # Safety
    /// The caller is the owner, and holds no reference from [`get`](Private::get).
    #[inline(always)]
    pub unsafe fn replace(&self, new: T) -> T {
        // SAFETY: only the owner accesses the value. The caller is the owner, and holds no reference.
        unsafe { core::mem::replace(&mut *self.0.get(), new) }
    }
}

impl<T> Private<Option<T>> {
    /// Stores a value, usually into an empty place. Unlike [`replace`](Private::replace), it moves no old value. It
    /// writes only those bytes of the new value that its variant uses.
    ///
    /// # Safety
    /// The caller is the owner, and holds no reference from [`get`](Private::get).
    #[inline(always)]
    pub unsafe fn put(&self, new: T) {
        // SAFETY: only the owner accesses the value. The caller is the owner, and holds no reference. The write
        // overwrites `None`, which needs no drop.
        unsafe {
            if (*self.0.get()).is_some() {
                self.replace(None);
            }
            self.0.get().write(Some(new));
        }
    }
}
