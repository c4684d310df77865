//! References on objects that a thread takes for the time of a sleep.

use super::Object;
use crate::machine::Machine;
use core::ptr::NonNull;
use quire_sync::epoch::Pinned;

/// A reference on an object, for the time of a sleep.
pub(crate) struct Kept<M: Machine>(NonNull<Object<M>>);

impl<M: Machine> Kept<M> {
    /// `None`: the object is going.
    pub fn new(object: &Object<M>, pin: &Pinned<'_>) -> Option<Self> {
        object.try_ref(pin).then(|| Kept(NonNull::from(object)))
    }
    pub fn object(&self) -> &Object<M> {
        // SAFETY: the reference keeps it.
        unsafe { self.0.as_ref() }
    }
    /// Gives the reference to whoever keeps the pointer.
    pub fn into_raw(self) -> *const () {
        let object = self.0.as_ptr();
        core::mem::forget(self);
        object.cast()
    }
    /// Takes it back.
    ///
    /// # Safety
    /// The pointer came from [`Kept::into_raw`] of the same machine's, once.
    pub unsafe fn from_raw(object: *const ()) -> Option<Self> {
        NonNull::new(object.cast_mut().cast()).map(Kept)
    }
}

impl<M: Machine> Drop for Kept<M> {
    fn drop(&mut self) {
        let vm = self.object().vm();
        // SAFETY: our own reference.
        unsafe { Object::unref(vm, self.0) }
    }
}
