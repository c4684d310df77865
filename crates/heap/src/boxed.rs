//! A single value on the heap.

use crate::OutOfMemory;
use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::ptr::{self, NonNull};

/// A value on the heap that has one owner, as `alloc::boxed::Box`.
pub struct Box<T: ?Sized>(NonNull<T>, PhantomData<T>);

// SAFETY: a box is the only owner of its value, so sending the box is sending the value.
unsafe impl<T: ?Sized + Send> Send for Box<T> {}
// SAFETY: a shared box gives only shared references to the value.
unsafe impl<T: ?Sized + Sync> Sync for Box<T> {}

impl<T> Box<T> {
    /// Moves `value` to the heap. If there is no memory, the value is dropped.
    pub fn try_new(value: T) -> Result<Self, OutOfMemory> {
        let at = crate::allocate(Layout::new::<T>())?.cast::<T>();
        // SAFETY: the memory has the layout of `T`, and no other code uses it.
        unsafe { at.write(value) };
        Ok(Box(at, PhantomData))
    }

    /// Moves the value out, and frees its memory.
    pub fn into_inner(self) -> T {
        let at = Self::into_raw(self);
        // SAFETY: the value is moved out once, and its memory came from `allocate` with this layout.
        unsafe {
            let value = at.read();
            crate::deallocate(NonNull::new_unchecked(at.cast()), Layout::new::<T>());
            value
        }
    }
}

impl<T: ?Sized> Box<T> {
    /// Converts the box into a pointer, which the caller owns.
    pub fn into_raw(this: Self) -> *mut T {
        core::mem::ManuallyDrop::new(this).0.as_ptr()
    }

    /// Converts a pointer from [`into_raw`](Self::into_raw) back into its box.
    ///
    /// # Safety
    /// `raw` came from [`into_raw`](Self::into_raw) of the same type, or was unsized from that pointer, and the caller
    /// owns it.
    pub unsafe fn from_raw(raw: *mut T) -> Self {
        // SAFETY: `into_raw` returns no null pointer.
        Box(unsafe { NonNull::new_unchecked(raw) }, PhantomData)
    }

    /// Returns the value, which is never freed.
    pub fn leak<'a>(this: Self) -> &'a mut T
    where
        T: 'a,
    {
        // SAFETY: the memory is never freed, and only the caller has the reference.
        unsafe { &mut *Self::into_raw(this) }
    }
}

/// Moves `value` to the heap and never frees it. If there is no memory, the value is dropped.
pub fn try_leak<T>(value: T) -> Result<&'static mut T, OutOfMemory> {
    Box::try_new(value).map(Box::leak)
}

impl<T: ?Sized> Drop for Box<T> {
    fn drop(&mut self) {
        // SAFETY: the value is alive, the box is its owner, and it was allocated with this layout.
        unsafe {
            let layout = Layout::for_value(self.0.as_ref());
            ptr::drop_in_place(self.0.as_ptr());
            crate::deallocate(self.0.cast(), layout);
        }
    }
}

impl<T: ?Sized> Deref for Box<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the value is alive while the box is.
        unsafe { self.0.as_ref() }
    }
}

impl<T: ?Sized> DerefMut for Box<T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: the value is alive while the box is, and the box is its only owner.
        unsafe { self.0.as_mut() }
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Box<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal;

    #[test]
    fn a_box_owns_its_value_or_none_is_made() {
        let dropped = core::cell::Cell::new(0);
        struct Counts<'a>(&'a core::cell::Cell<u32>);
        impl Drop for Counts<'_> {
            fn drop(&mut self) {
                self.0.set(self.0.get() + 1);
            }
        }
        drop(Box::try_new(Counts(&dropped)).unwrap());
        assert_eq!(dropped.get(), 1);
        let inner = Box::try_new(Counts(&dropped)).unwrap().into_inner();
        assert_eq!(dropped.get(), 1);
        drop(inner);
        assert!(refusal::at(1, || Box::try_new(Counts(&dropped)).is_err()).0);
        assert_eq!(dropped.get(), 3);
        // A value without a size needs no memory.
        assert!(refusal::at(1, || Box::try_new(()).is_ok()).0);
        let mut number = Box::try_new(5).unwrap();
        *number += 1;
        assert_eq!(*number, 6);
    }
}
