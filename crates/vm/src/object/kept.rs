//! References that keep an object alive while a thread sleeps.

use super::Object;
use crate::machine::Machine;
use core::ptr::NonNull;
use quire_sync::epoch::Pinned;

/// A reference that keeps an object alive while a thread sleeps.
pub(crate) struct KeptObject<M: Machine>(NonNull<Object<M>>);

impl<M: Machine> KeptObject<M> {
    /// Takes a reference. Returns `None` if the object is being torn down.
    pub fn new(object: &Object<M>, pin: &Pinned<'_>) -> Option<Self> {
        object.try_ref(pin).then(|| KeptObject(NonNull::from(object)))
    }
    pub fn object(&self) -> &Object<M> {
        // SAFETY: `try_ref` counted a reference that only `drop` releases, and a counted object is not retired.
        unsafe { self.0.as_ref() }
    }
    /// Passes the reference to the owner of the returned pointer.
    pub fn into_raw(self) -> *const () {
        let object = self.0.as_ptr();
        core::mem::forget(self);
        object.cast()
    }
    /// Takes the reference back from a pointer.
    ///
    /// # Safety
    /// The pointer is null, or was returned by [`KeptObject::into_raw`] of the same `M`. It was not taken back before.
    pub unsafe fn from_raw(object: *const ()) -> Option<Self> {
        NonNull::new(object.cast_mut().cast()).map(KeptObject)
    }
}

impl<M: Machine> Drop for KeptObject<M> {
    fn drop(&mut self) {
        let vm = self.object().vm();
        // SAFETY: this value has one reference of its own, and nothing uses the object through it after `drop`.
        unsafe { Object::unref(vm, self.0) }
    }
}
