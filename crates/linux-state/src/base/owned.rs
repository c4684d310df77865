//! Values that one thread owns. The owner reads an [`Owned`] value without a lock, and changes it under one. Other
//! threads read it under that lock. Other threads do not reach a [`Private`] value.

use core::cell::UnsafeCell;
use quire_sync::atomic::AtomicBool;
use quire_sync::{Rank, SpinLock};

/// Part of a value that a method with `&self` frees. Without a cell, the compiler may take such memory for constant
/// until the method returns, and leave out the stores by which the heap links it.
pub(crate) type FreesItself = [AtomicBool; 0];

/// See the module. The owner is the thread whose structure contains the value.
pub struct Owned<T> {
    /// Held by the owner while it changes the value, and by other threads while they read it.
    guard: SpinLock<()>,
    value: UnsafeCell<T>,
}

// SAFETY: other threads only read, under the guard, which the owner holds to write; so `T` is shared and sent between
// threads.
unsafe impl<T: Send + Sync> Sync for Owned<T> {}

impl<T> Owned<T> {
    /// The value.
    pub fn new(value: T) -> Self {
        Owned { guard: SpinLock::new(Rank::OWNED, ()), value: UnsafeCell::new(value) }
    }

    /// The owner's view, without a lock.
    ///
    /// # Safety
    /// The caller is the owner (or runs in its place: a context switch to it), and does not use the reference across
    /// its own [`replace`](Owned::replace).
    #[inline(always)]
    pub unsafe fn get(&self) -> &T {
        // SAFETY: only the owner writes, and it is here.
        unsafe { &*self.value.get() }
    }

    /// Changes the value, returning the old one (which the caller drops outside the guard, because that may take long).
    ///
    /// # Safety
    /// The caller is the owner and holds no reference from [`get`](Owned::get).
    pub unsafe fn replace(&self, new: T) -> T {
        let _guard = self.guard.lock();
        // SAFETY: the guard keeps readers out; the owner is here.
        unsafe { core::mem::replace(&mut *self.value.get(), new) }
    }

    /// Another thread's view: a short read under the guard. `f` does not sleep, and takes no lock of this layer.
    pub fn look<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        let _guard = self.guard.lock();
        // SAFETY: the guard keeps the owner from writing.
        f(unsafe { &*self.value.get() })
    }
}

/// A value that only its owner uses, the thread whose structure contains it.
pub struct Private<T>(UnsafeCell<T>);

// SAFETY: only the owner reaches the value, by the contract of the methods, so it is sent between threads at most.
unsafe impl<T: Send> Sync for Private<T> {}

impl<T> Private<T> {
    /// The value.
    pub const fn new(value: T) -> Self {
        Private(UnsafeCell::new(value))
    }

    /// The value.
    ///
    /// # Safety
    /// The caller is the owner, and does not use the reference across its own [`replace`](Private::replace).
    #[inline(always)]
    pub unsafe fn get(&self) -> &T {
        // SAFETY: only the owner reaches the value, and it is here.
        unsafe { &*self.0.get() }
    }

    /// Changes the value, and returns the old one.
    ///
    /// # Safety
    /// The caller is the owner, and holds no reference from [`get`](Private::get).
    #[inline(always)]
    pub unsafe fn replace(&self, new: T) -> T {
        // SAFETY: only the owner reaches the value; it is here, and holds no reference.
        unsafe { core::mem::replace(&mut *self.0.get(), new) }
    }
}

impl<T> Private<Option<T>> {
    /// Stores a value where there is none, as a rule. Unlike [`replace`](Private::replace) it moves no old value. Of
    /// the new value it writes only the parts in use.
    ///
    /// # Safety
    /// The caller is the owner, and holds no reference from [`get`](Private::get).
    #[inline(always)]
    pub unsafe fn put(&self, new: T) {
        // SAFETY: only the owner reaches the value; it is here, and holds no reference. The write covers `None`, which
        // needs no drop.
        unsafe {
            if (*self.0.get()).is_some() {
                self.replace(None);
            }
            self.0.get().write(Some(new));
        }
    }
}
