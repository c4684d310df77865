//! A value that is allocated at its first use. Most processes never use most of these values. An unused value costs one
//! word.

use core::ptr;
use quire_heap::{Box, OutOfMemory};
use quire_sync::atomic::{AtomicPtr, Ordering};

/// A pointer to a value that is allocated at its first use. The value then stays in place until this pointer is
/// dropped.
pub struct FirstUse<T>(AtomicPtr<T>);

impl<T> Default for FirstUse<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> FirstUse<T> {
    /// A place without a value.
    pub fn new() -> Self {
        FirstUse(AtomicPtr::new(ptr::null_mut()))
    }

    /// The value, if it was allocated.
    #[inline]
    pub fn get(&self) -> Option<&T> {
        // SAFETY: the pointer is null, or points to a leaked box. Only the drop of `self` frees the box.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }

    /// The value. `make` makes it if there is none. If two threads make one at the same time, one of the two values is
    /// dropped.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> Result<&T, OutOfMemory> {
        if let Some(there) = self.get() {
            return Ok(there);
        }
        let new = Box::into_raw(Box::try_new(make())?);
        match self.0.compare_exchange(ptr::null_mut(), new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: the box was just leaked, and only the drop of `self` frees it.
            Ok(_) => Ok(unsafe { &*new }),
            Err(there) => {
                // SAFETY: the box was leaked above, and no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: another thread's call stored the pointer, and only the drop of `self` frees it.
                Ok(unsafe { &*there })
            }
        }
    }
}

impl<T> Drop for FirstUse<T> {
    fn drop(&mut self) {
        let made = self.0.load(Ordering::Relaxed);
        if !made.is_null() {
            // SAFETY: `get_or_make` leaked the box, and no reference outlives `self`.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_heap::Arc;

    #[test]
    fn a_value_is_made_once_and_dropped_with_its_place() {
        let counted = Arc::try_new(7).expect("memory");
        let place = FirstUse::new();
        assert!(place.get().is_none());
        let first: *const Arc<i32> = place.get_or_make(|| counted.clone()).expect("memory");
        let second: *const Arc<i32> = place.get_or_make(|| unreachable!("it is there")).expect("memory");
        assert_eq!((first, Arc::strong_count(&counted)), (second, 2));
        drop(place);
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn threads_that_make_it_at_once_get_one_value() {
        let place = &FirstUse::new();
        let all: Vec<usize> = std::thread::scope(|s| {
            let make = |n: usize| s.spawn(move || place.get_or_make(|| n).copied().expect("memory"));
            (0..8).map(make).collect::<Vec<_>>().into_iter().map(|t| t.join().expect("no panic")).collect()
        });
        assert!(all.iter().all(|n| Some(n) == place.get()));
    }

    #[test]
    fn without_memory_there_is_no_value() {
        let place = FirstUse::new();
        let (refused, requests) = quire_heap::refusal::at(1, || place.get_or_make(|| 1).is_err());
        assert_eq!((refused, requests), (true, 1));
        assert!(place.get().is_none());
    }
}
