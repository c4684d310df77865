//! References that keep an object alive while a thread sleeps.

use super::Object;
use crate::machine::Machine;
use crate::object::Objects;
use crate::sleep::MaySleep;
use crate::stats::Event;
use core::ptr::NonNull;
use quire_sync::atomic::{Ordering, fence};
use quire_sync::epoch::Pinned;

impl<M: Machine> Objects<M> {
    /// Counts a reference that a thread or a request keeps beside an object's handles and mappings, until the result is
    /// dropped. That must happen after the reference is given up. The counts are events of each CPU, so no line is
    /// shared.
    pub(crate) fn count_kept(&self) -> Keeping<'_, M> {
        // The models of pageout do not wait for such references. The counts would multiply their runs.
        if cfg!(not(any(loom, shuttle))) {
            self.stats().count(Event::ObjectKept);
        }
        Keeping(self)
    }

    /// Waits until no object is kept. The last handle of an object may go while pageout keeps the object, and then
    /// pageout tears it down.
    pub(crate) fn wait_for_kept(&self, may: &mut MaySleep) {
        // All ends are read before the beginnings. So equal sums mean that no object was kept in between.
        let none = || {
            let ended = self.stats().total(Event::ObjectReleased);
            fence(Ordering::Acquire);
            self.stats().total(Event::ObjectKept) == ended
        };
        may.sleep_until(none);
    }
}

/// A counted reference.
pub(crate) struct Keeping<'k, M: Machine>(&'k Objects<M>);

impl<M: Machine> Drop for Keeping<'_, M> {
    fn drop(&mut self) {
        if cfg!(not(any(loom, shuttle))) {
            // The work under the reference comes before its end.
            fence(Ordering::Release);
            self.0.stats().count(Event::ObjectReleased);
        }
    }
}

/// A reference that keeps an object alive while a thread sleeps.
pub(crate) struct KeptObject<M: Machine>(NonNull<Object<M>>);

impl<M: Machine> KeptObject<M> {
    /// Takes a reference. Returns `None` if the object is being torn down.
    pub fn new(object: &Object<M>, pin: &Pinned<'_>) -> Option<Self> {
        object.try_ref(pin).then(|| {
            // `drop` ends the count.
            core::mem::forget(object.vm().count_kept());
            KeptObject(NonNull::from(object))
        })
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
        let _counted = Keeping(vm);
        // SAFETY: this value has one reference of its own, and nothing uses the object through it after `drop`.
        unsafe { Object::unref(vm, self.0) }
    }
}
