//! References that keep an object alive while a thread sleeps.

use super::Object;
use crate::machine::Machine;
use crate::sleep::MaySleep;
use core::ptr::NonNull;
use quire_sync::WaitQueue;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::epoch::Pinned;

/// The number of objects that threads and requests keep beside their handles and mappings. The last handle may go while
/// pageout keeps an object, and then pageout tears the object down.
pub(crate) struct Keepers {
    count: AtomicU64,
    /// The number of threads that wait until the count is zero.
    waiting: AtomicU64,
    waits: WaitQueue,
}

impl Keepers {
    pub fn new() -> Keepers {
        Keepers { count: AtomicU64::new(0), waiting: AtomicU64::new(0), waits: WaitQueue::new() }
    }

    /// Counts a reference until the result is dropped, which must happen after the reference is given up.
    pub fn count(&self) -> Keeping<'_> {
        // The models of pageout do not wait for keepers. The counts would multiply their runs.
        if cfg!(not(any(loom, shuttle))) {
            self.count.fetch_add(1, Ordering::SeqCst);
        }
        Keeping(self)
    }

    /// Waits until no object is kept. The keeper lowers the count, then reads the number of waiting threads. The waiting
    /// thread raises its number, then reads the count. So one of the two sees the other.
    pub fn wait(&self, may: &mut MaySleep) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        may.sleep_on(&self.waits, || self.count.load(Ordering::SeqCst) == 0);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A counted reference.
pub(crate) struct Keeping<'k>(&'k Keepers);

impl Drop for Keeping<'_> {
    fn drop(&mut self) {
        if cfg!(not(any(loom, shuttle)))
            && self.0.count.fetch_sub(1, Ordering::SeqCst) == 1
            && self.0.waiting.load(Ordering::SeqCst) != 0
        {
            self.0.waits.wake_all();
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
            core::mem::forget(object.vm().keepers.count());
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
        let _counted = Keeping(&vm.keepers);
        // SAFETY: this value has one reference of its own, and nothing uses the object through it after `drop`.
        unsafe { Object::unref(vm, self.0) }
    }
}
