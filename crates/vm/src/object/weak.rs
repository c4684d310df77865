//! A reference that does not keep its object alive.

use super::{Object, ObjectRef, Objects};
use crate::machine::Machine;
use core::fmt;
use core::ptr;
use quire_sync::atomic::{AtomicPtr, Ordering};

/// A reference to an object with a pager, which does not keep the object alive. It is created empty, and set once. The
/// object's pager clears it in [`released`](crate::paging::pager::Pager::released).
pub struct WeakRef<M: Machine> {
    vm: &'static Objects<M>,
    object: AtomicPtr<Object<M>>,
}

impl<M: Machine> WeakRef<M> {
    /// An empty reference, for an object of `vm`.
    pub fn empty(vm: &'static Objects<M>) -> Self {
        WeakRef { vm, object: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Sets the reference to `object`.
    ///
    /// # Safety
    /// The object belongs to the system of the reference, and its pager calls [`clear`](Self::clear) when it is
    /// released.
    pub unsafe fn set(&self, object: &ObjectRef<M>) {
        self.object.store(object.object.as_ptr(), Ordering::Release);
    }

    /// Clears the reference, because the object is being torn down.
    pub fn clear(&self) {
        self.object.store(ptr::null_mut(), Ordering::Release);
    }

    /// Returns a handle on the object, or `None` if it is torn down or not set.
    pub fn upgrade(&self) -> Option<ObjectRef<M>> {
        let pin = self.vm.epoch().pin();
        // SAFETY: the pager clears the pointer before its object is retired, by the contract of `set`. So an object
        // that is read here is not freed under the pin.
        let object = unsafe { self.object.load(Ordering::Acquire).as_ref() }?;
        ObjectRef::of(object, &pin)
    }
}

impl<M: Machine> fmt::Debug for WeakRef<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WeakRef({:p})", self.object.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
