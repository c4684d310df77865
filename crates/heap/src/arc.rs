//! Reference-counted pointers. The counts and their memory orders are those of the standard library's `Arc`. Each
//! release of a reference happens before the drop of the value. Each release of a weak reference happens before the
//! memory is freed.

use crate::OutOfMemory;
use core::alloc::Layout;
use core::borrow::Borrow;
use core::cmp::Ordering as Order;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;
use core::mem::{self, ManuallyDrop};
use core::ops::Deref;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicUsize, Ordering, fence};

/// The most references that a count allows. More references than this do not fit into memory, so a larger count is a
/// bug. Such a count panics before it overflows.
const MOST: usize = isize::MAX as usize;

/// The value of a locked weak count: [`Arc::get_mut`] locks that count while it reads the strong count.
const LOCKED: usize = usize::MAX;

/// The allocation on the heap. Its layout is fixed, so that the counts can be found from a pointer to the value.
#[repr(C)]
#[doc(hidden)]
pub struct Inner<T: ?Sized> {
    strong: AtomicUsize,
    /// The number of weak references. All strong references together count as one.
    weak: AtomicUsize,
    value: T,
}

/// The offset in bytes, from the start of the allocation, of a value with this layout. The counts come before the
/// value.
fn offset(value: Layout) -> usize {
    let counts = Layout::new::<[AtomicUsize; 2]>();
    (counts.size() + value.align() - 1) & !(value.align() - 1)
}

/// Orders earlier accesses of other owners before the code that follows. These are the accesses before the owners
/// released their references. ThreadSanitizer does not know fences, so its builds use a load instead of the fence.
#[inline(always)]
fn acquire(count: &AtomicUsize) {
    if cfg!(sanitized) {
        count.load(Ordering::Acquire);
    } else {
        fence(Ordering::Acquire);
    }
}

/// The layout of the allocation of an [`Arc`] of `T`.
pub const fn allocation<T>() -> Layout {
    Layout::new::<Inner<T>>()
}

/// A reference to a value that all its owners share, as `alloc::sync::Arc`.
pub struct Arc<T: ?Sized>(NonNull<Inner<T>>, PhantomData<Inner<T>>);

/// A reference that does not keep the value alive, as `alloc::sync::Weak`. It is dangling if it never had a value.
pub struct Weak<T: ?Sized>(NonNull<Inner<T>>);

// SAFETY: any thread may access the value through a reference, and may drop the value with the last reference. `T` is
// `Sync` and `Send`.
unsafe impl<T: ?Sized + Sync + Send> Send for Arc<T> {}
// SAFETY: a thread that shares an `Arc` can clone it, access the value, and drop the value with the last reference.
// This needs that `T` is `Sync` and `Send`.
unsafe impl<T: ?Sized + Sync + Send> Sync for Arc<T> {}
// SAFETY: any thread may upgrade a weak reference, access the value, and drop the value. `T` is `Sync` and `Send`.
unsafe impl<T: ?Sized + Sync + Send> Send for Weak<T> {}
// SAFETY: a thread that shares a weak reference can clone and upgrade it, access the value, and drop the value. This
// needs that `T` is `Sync` and `Send`.
unsafe impl<T: ?Sized + Sync + Send> Sync for Weak<T> {}

/// Converts an [`Arc`] of a type into one of a trait object or a slice.
///
/// ```
/// use quire_heap::{Arc, unsize};
/// let text: Arc<dyn std::fmt::Display> = unsize!(Arc::try_new(7)?);
/// assert_eq!(text.to_string(), "7");
/// # Ok::<(), quire_heap::OutOfMemory>(())
/// ```
///
/// No other conversion compiles:
/// ```compile_fail
/// use quire_heap::{Arc, unsize};
/// let other: Arc<u64> = unsize!(Arc::try_new(7u8)?);
/// # Ok::<(), quire_heap::OutOfMemory>(())
/// ```
#[macro_export]
macro_rules! unsize {
    ($arc:expr) => {{
        let inner = $crate::into_inner($arc);
        // SAFETY: the pointer is that of the reference that `into_inner` consumed. Unsizing adds only the metadata (the
        // length or the methods).
        unsafe { $crate::from_inner(inner, inner as *mut _) }
    }};
}

#[doc(hidden)]
pub fn into_inner<T>(arc: Arc<T>) -> *mut Inner<T> {
    ManuallyDrop::new(arc).0.as_ptr()
}

/// # Safety
/// `inner` came from [`into_inner`], the caller owns that reference, and `as` made `wide` from `inner`.
#[doc(hidden)]
pub unsafe fn from_inner<T, U: ?Sized>(inner: *mut Inner<T>, wide: *mut Inner<U>) -> Arc<U> {
    // `as` could also make a pointer to another type of the same width. A wider pointer comes only from unsizing.
    const { assert!(size_of::<*mut U>() > size_of::<*mut T>(), "only unsizing") };
    debug_assert!(ptr::addr_eq(inner, wide));
    // SAFETY: `into_inner` returns no null pointer.
    Arc(unsafe { NonNull::new_unchecked(wide) }, PhantomData)
}

/// The memory of an [`Arc`] whose value is written later.
pub struct Room<T>(NonNull<Inner<T>>);

// SAFETY: a room owns memory without a value, and any thread may free that memory.
unsafe impl<T> Send for Room<T> {}
// SAFETY: a shared room has no method that does anything.
unsafe impl<T> Sync for Room<T> {}

impl<T> Room<T> {
    /// Allocates the memory.
    pub fn try_new() -> Result<Self, OutOfMemory> {
        let at = crate::allocate(Layout::new::<Inner<T>>())?.cast::<Inner<T>>();
        // SAFETY: the memory has the layout of `Inner<T>`, and no other code uses it.
        unsafe {
            (&raw mut (*at.as_ptr()).strong).write(AtomicUsize::new(0));
            (&raw mut (*at.as_ptr()).weak).write(AtomicUsize::new(1));
        }
        Ok(Room(at))
    }

    /// Moves `value` into the memory, and returns the first reference to it.
    pub fn fill(self, value: T) -> Arc<T> {
        let this = ManuallyDrop::new(self);
        // SAFETY: the memory belongs to this room, and the value is written before any reference to it exists.
        unsafe {
            (&raw mut (*this.0.as_ptr()).value).write(value);
            (*this.0.as_ptr()).strong.store(1, Ordering::Release);
        }
        Arc(this.0, PhantomData)
    }
}

impl<T> Drop for Room<T> {
    fn drop(&mut self) {
        // SAFETY: the memory came from `allocate` with this layout.
        unsafe { crate::deallocate(self.0.cast(), Layout::new::<Inner<T>>()) };
    }
}

impl<T> Arc<T> {
    /// Moves `value` to the heap. If there is no memory, the value is dropped.
    pub fn try_new(value: T) -> Result<Self, OutOfMemory> {
        Ok(Room::try_new()?.fill(value))
    }

    /// Makes a value that has a weak reference to itself. `make` gets that reference, which cannot be upgraded until
    /// `make` has returned.
    pub fn try_new_cyclic(make: impl FnOnce(&Weak<T>) -> T) -> Result<Self, OutOfMemory> {
        let room = ManuallyDrop::new(Room::<T>::try_new()?);
        // This is the weak reference that all strong references hold together. If `make` panics, the drop of `itself`
        // frees the memory.
        let itself = Weak(room.0);
        let value = make(&itself);
        // SAFETY: the memory stays as long as `itself`, and a reference whose strong count is zero is never upgraded.
        unsafe {
            (&raw mut (*room.0.as_ptr()).value).write(value);
            (*room.0.as_ptr()).strong.store(1, Ordering::Release);
        }
        mem::forget(itself);
        Ok(Arc(room.0, PhantomData))
    }

    /// Returns the value if this is the last reference to it, and `None` otherwise.
    pub fn into_inner(this: Self) -> Option<T> {
        let this = ManuallyDrop::new(this);
        if this.inner().strong.fetch_sub(1, Ordering::Release) != 1 {
            return None;
        }
        acquire(&this.inner().strong);
        // SAFETY: this was the last reference, so no other thread uses the value, and the value is moved out once.
        let value = unsafe { ptr::read(&raw const (*this.0.as_ptr()).value) };
        drop(Weak(this.0));
        Some(value)
    }

    /// Converts the reference into a pointer to the value, which owns the reference from now on.
    pub fn into_raw(this: Self) -> *const T {
        Self::as_ptr(&ManuallyDrop::new(this))
    }

    /// Converts `raw` back into the reference that it owns.
    ///
    /// # Safety
    /// `raw` came from [`into_raw`](Self::into_raw), and the caller owns that reference.
    pub unsafe fn from_raw(raw: *const T) -> Self {
        // SAFETY: by this function's contract the counts lie before the value.
        let inner = unsafe { raw.byte_sub(mem::offset_of!(Inner<T>, value)) };
        // SAFETY: `inner` lies before a value in the middle of an allocation, so it is not null.
        Arc(unsafe { NonNull::new_unchecked(inner.cast::<Inner<T>>().cast_mut()) }, PhantomData)
    }

    /// Adds one reference to the value at `raw`.
    ///
    /// # Safety
    /// `raw` came from [`into_raw`](Self::into_raw), and a reference exists during the whole call.
    pub unsafe fn increment_strong_count(raw: *const T) {
        // SAFETY: by this function's contract `raw` is valid. `ManuallyDrop` keeps the existing reference.
        let this = ManuallyDrop::new(unsafe { Self::from_raw(raw) });
        mem::forget(Arc::clone(&this));
    }
}

impl<T: Copy> Arc<[T]> {
    /// Returns a new value with a copy of `all`.
    pub fn try_copy(all: &[T]) -> Result<Self, OutOfMemory> {
        let values = Layout::for_value(all);
        let (layout, at) = Layout::new::<[AtomicUsize; 2]>().extend(values).map_err(|_| OutOfMemory)?;
        debug_assert_eq!(at, offset(values));
        let memory = crate::allocate(layout.pad_to_align())?;
        let inner = ptr::slice_from_raw_parts_mut(memory.as_ptr(), all.len()) as *mut Inner<[T]>;
        // SAFETY: the memory has the layout of `Inner<[T]>` for this length, and no other code has it.
        unsafe {
            (&raw mut (*inner).strong).write(AtomicUsize::new(1));
            (&raw mut (*inner).weak).write(AtomicUsize::new(1));
            ptr::copy_nonoverlapping(all.as_ptr(), (&raw mut (*inner).value).cast::<T>(), all.len());
            Ok(Arc(NonNull::new_unchecked(inner), PhantomData))
        }
    }
}

impl<T: ?Sized> Arc<T> {
    #[inline]
    fn inner(&self) -> &Inner<T> {
        // SAFETY: the memory stays while there is a reference.
        unsafe { self.0.as_ref() }
    }

    /// Whether both references lead to the same value.
    pub fn ptr_eq(this: &Self, other: &Self) -> bool {
        ptr::addr_eq(this.0.as_ptr(), other.0.as_ptr())
    }

    /// The address of the value.
    pub fn as_ptr(this: &Self) -> *const T {
        // SAFETY: the memory exists while there is a reference, and no Rust reference to the value is made.
        unsafe { &raw const (*this.0.as_ptr()).value }
    }

    /// The number of strong references at this moment.
    pub fn strong_count(this: &Self) -> usize {
        this.inner().strong.load(Ordering::Relaxed)
    }

    /// Returns a weak reference to the value.
    pub fn downgrade(this: &Self) -> Weak<T> {
        let weak = &this.inner().weak;
        let mut seen = weak.load(Ordering::Relaxed);
        loop {
            if seen == LOCKED {
                core::hint::spin_loop();
                seen = weak.load(Ordering::Relaxed);
                continue;
            }
            assert!(seen <= MOST, "too many weak references");
            // Acquire: this exchange is ordered after the release store by which another thread has unlocked the count.
            match weak.compare_exchange_weak(seen, seen + 1, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Weak(this.0),
                Err(now) => seen = now,
            }
        }
    }

    /// Returns the value if there is no other strong or weak reference, and `None` otherwise.
    pub fn get_mut(this: &mut Self) -> Option<&mut T> {
        let inner = this.inner();
        // While the weak count is locked, no thread can make a weak reference from a strong one.
        inner.weak.compare_exchange(1, LOCKED, Ordering::Acquire, Ordering::Relaxed).ok()?;
        // Acquire: this load is ordered after all accesses of owners that have dropped their references.
        let alone = inner.strong.load(Ordering::Acquire) == 1;
        inner.weak.store(1, Ordering::Release);
        // SAFETY: this is the only reference, and it stays borrowed as long as the value is borrowed.
        alone.then(|| unsafe { &mut (*this.0.as_ptr()).value })
    }

    #[cold]
    #[inline(never)]
    fn drop_value(&mut self) {
        // All strong references together hold one weak reference. The drop of `_memory` releases that reference, also
        // if the drop of the value panics.
        let _memory = Weak(self.0);
        // SAFETY: the last strong reference is gone, so no code uses the value any more.
        unsafe { ptr::drop_in_place(&raw mut (*self.0.as_ptr()).value) };
    }
}

impl<T: ?Sized> Clone for Arc<T> {
    #[inline]
    fn clone(&self) -> Self {
        // Relaxed: the new reference is made from an existing one, so the value stays alive.
        let before = self.inner().strong.fetch_add(1, Ordering::Relaxed);
        assert!(before <= MOST, "too many references");
        Arc(self.0, PhantomData)
    }
}

impl<T: ?Sized> Drop for Arc<T> {
    #[inline]
    fn drop(&mut self) {
        // Release: this owner's accesses happen before the drop of the value.
        if self.inner().strong.fetch_sub(1, Ordering::Release) == 1 {
            acquire(&self.inner().strong);
            self.drop_value();
        }
    }
}

impl<T: ?Sized> Deref for Arc<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        &self.inner().value
    }
}

impl<T: ?Sized> AsRef<T> for Arc<T> {
    fn as_ref(&self) -> &T {
        self
    }
}

impl<T: ?Sized> Borrow<T> for Arc<T> {
    fn borrow(&self) -> &T {
        self
    }
}

impl<T: ?Sized + fmt::Debug> fmt::Debug for Arc<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: ?Sized + PartialEq> PartialEq for Arc<T> {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl<T: ?Sized + Eq> Eq for Arc<T> {}

impl<T: ?Sized + PartialOrd> PartialOrd for Arc<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Order> {
        (**self).partial_cmp(&**other)
    }
}

impl<T: ?Sized + Ord> Ord for Arc<T> {
    fn cmp(&self, other: &Self) -> Order {
        (**self).cmp(&**other)
    }
}

impl<T: ?Sized + Hash> Hash for Arc<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<T> Weak<T> {
    /// A reference that never had a value, and needs no memory.
    pub const fn new() -> Self {
        Weak(NonNull::without_provenance(core::num::NonZeroUsize::MAX))
    }
}

impl<T> Default for Weak<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: ?Sized> Weak<T> {
    fn is_dangling(&self) -> bool {
        self.0.cast::<u8>().addr().get() == usize::MAX
    }

    /// The strong and the weak count, or `None` if there never was a value. The value may be dropped already, so no
    /// Rust reference to the whole allocation is made.
    fn counts(&self) -> Option<(&AtomicUsize, &AtomicUsize)> {
        if self.is_dangling() {
            return None;
        }
        // SAFETY: the memory exists while there is a weak reference.
        Some(unsafe { (&(*self.0.as_ptr()).strong, &(*self.0.as_ptr()).weak) })
    }

    /// Returns a strong reference, or `None` if the value is dropped.
    pub fn upgrade(&self) -> Option<Arc<T>> {
        let (strong, _) = self.counts()?;
        let more = |n: usize| {
            assert!(n <= MOST, "too many references");
            (n != 0).then(|| n + 1)
        };
        // Acquire: `try_new_cyclic` writes the value before it sets the count.
        strong.fetch_update(Ordering::Acquire, Ordering::Relaxed, more).ok()?;
        Some(Arc(self.0, PhantomData))
    }

    /// The number of strong references at this moment.
    pub fn strong_count(&self) -> usize {
        self.counts().map_or(0, |(strong, _)| strong.load(Ordering::Relaxed))
    }

    /// Whether both lead to the same value, or neither ever had a value.
    pub fn ptr_eq(&self, other: &Self) -> bool {
        ptr::addr_eq(self.0.as_ptr(), other.0.as_ptr())
    }
}

impl<T> Weak<T> {
    /// Converts `raw` into the weak reference that it owns.
    ///
    /// # Safety
    /// `raw` came from [`Arc::into_raw`], and the caller owns one weak reference to its memory. If the caller owns no
    /// such reference, the result must never be dropped, and the memory must stay as long as the result is used.
    pub unsafe fn from_raw(raw: *const T) -> Self {
        // SAFETY: by this function's contract the counts lie before the value.
        let inner = unsafe { raw.byte_sub(mem::offset_of!(Inner<T>, value)) };
        // SAFETY: `inner` lies before a value in the middle of an allocation, so it is not null.
        Weak(unsafe { NonNull::new_unchecked(inner.cast::<Inner<T>>().cast_mut()) })
    }

    /// The address of the value, which may be dropped already.
    pub fn as_ptr(&self) -> *const T {
        if self.is_dangling() {
            return self.0.as_ptr().cast::<T>().cast_const();
        }
        // SAFETY: the memory exists while there is a weak reference, and no Rust reference to the value is made.
        unsafe { &raw const (*self.0.as_ptr()).value }
    }
}

impl<T: ?Sized> Clone for Weak<T> {
    fn clone(&self) -> Self {
        if let Some((_, weak)) = self.counts() {
            // Relaxed: the new reference is made from an existing one. A weak reference exists, so the weak count is
            // not locked.
            let before = weak.fetch_add(1, Ordering::Relaxed);
            assert!(before <= MOST, "too many weak references");
        }
        Weak(self.0)
    }
}

impl<T: ?Sized> Drop for Weak<T> {
    fn drop(&mut self) {
        let Some((_, weak)) = self.counts() else { return };
        // Release: this owner's uses of the memory happen before the memory is freed.
        if weak.fetch_sub(1, Ordering::Release) == 1 {
            acquire(weak);
            // SAFETY: the value is dropped and no reference is left. The layout depends only on the size and alignment
            // of the value's type, which the pointer's metadata gives.
            unsafe {
                let layout = Layout::for_value(&*(self.0.as_ptr() as *const Inner<ManuallyDrop<T>>));
                crate::deallocate(self.0.cast(), layout);
            }
        }
    }
}

impl<T: ?Sized> fmt::Debug for Weak<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(Weak)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal;
    use core::cell::Cell;
    use std::string::{String, ToString};

    /// A value that counts its drops.
    struct CountsDrops<'a>(&'a Cell<u32>);

    impl Drop for CountsDrops<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }

    #[test]
    fn the_last_reference_drops_the_value_and_weak_keep_memory() {
        let dropped = Cell::new(0);
        let one = Arc::try_new(CountsDrops(&dropped)).unwrap();
        let (two, weak) = (one.clone(), Arc::downgrade(&one));
        assert_eq!((Arc::strong_count(&one), weak.strong_count()), (2, 2));
        drop(one);
        assert!(Arc::ptr_eq(&two, &weak.upgrade().unwrap()));
        assert_eq!(dropped.get(), 0);
        drop(two);
        assert_eq!(dropped.get(), 1);
        assert!(weak.clone().upgrade().is_none());
        assert_eq!(weak.strong_count(), 0);
    }

    #[test]
    fn a_refused_reference_drops_its_value() {
        let dropped = Cell::new(0);
        assert!(refusal::at(1, || Arc::try_new(CountsDrops(&dropped)).is_err()).0);
        assert_eq!(dropped.get(), 1);
        assert!(refusal::at(1, || Arc::try_new_cyclic(|_| CountsDrops(&dropped)).is_err()).0);
        assert!(refusal::at(1, || Arc::try_copy(b"abc").is_err()).0);
        assert_eq!(dropped.get(), 1);
        let (filled, made) = refusal::at(2, || Room::try_new().map(|room| room.fill(CountsDrops(&dropped))).is_ok());
        assert!(filled && made == 1);
        drop(Room::<String>::try_new().unwrap());
    }

    #[test]
    fn a_cyclic_value_knows_itself_once_it_is_made() {
        struct Node(Weak<Node>, u32);
        let node = Arc::try_new_cyclic(|itself| {
            assert!(itself.upgrade().is_none());
            Node(itself.clone(), 7)
        });
        let node = node.unwrap();
        assert_eq!((*(*node).0.upgrade().unwrap()).1, 7);
        assert_eq!(Arc::strong_count(&node), 1);
    }

    #[test]
    fn a_panic_while_a_cyclic_value_is_made_frees_the_memory() {
        let thrown = std::panic::catch_unwind(|| {
            let _never = Arc::<String>::try_new_cyclic(|_| panic!("on purpose"));
        });
        assert!(thrown.is_err());
    }

    #[test]
    fn unsized_values_keep_their_size_alignment_and_drop() {
        #[repr(align(64))]
        struct Wide(#[allow(dead_code)] u8, String);
        impl core::fmt::Display for Wide {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.1)
            }
        }
        let wide = Arc::try_new(Wide(1, "wide".to_string())).unwrap();
        assert_eq!(Arc::as_ptr(&wide).addr() % 64, 0);
        let shown: Arc<dyn core::fmt::Display> = unsize!(wide);
        let weak = Arc::downgrade(&shown);
        assert_eq!(weak.upgrade().unwrap().to_string(), "wide");
        drop(shown);
        assert!(weak.upgrade().is_none());
        for len in [0, 1, 7, 1000] {
            let bytes = std::vec![3u8; len];
            let copy = Arc::try_copy(&bytes[..]).unwrap();
            let again: &[u8] = copy.borrow();
            assert_eq!(*again, bytes[..]);
        }
        assert_eq!(&*Arc::try_copy(&[1u64, 2]).unwrap(), &[1, 2]);
    }

    #[test]
    fn raw_pointers_lead_back_and_count() {
        let raw = Arc::into_raw(Arc::try_new("x".to_string()).unwrap());
        // SAFETY: the pointer owns a reference, and the call adds another. Both are converted back below.
        let (one, two) = unsafe {
            Arc::increment_strong_count(raw);
            (Arc::from_raw(raw), Arc::from_raw(raw))
        };
        assert_eq!((Arc::strong_count(&one), one.as_str()), (2, "x"));
        assert_eq!(Arc::into_inner(one), None);
        assert_eq!(Arc::into_inner(two), Some("x".to_string()));
    }

    #[test]
    fn a_value_is_mutable_only_with_a_single_reference() {
        let mut one = Arc::try_new(1).unwrap();
        *Arc::get_mut(&mut one).unwrap() = 2;
        let weak = Arc::downgrade(&one);
        assert!(Arc::get_mut(&mut one).is_none());
        drop(weak);
        let two = one.clone();
        assert!(Arc::get_mut(&mut one).is_none());
        drop(two);
        assert_eq!(Arc::get_mut(&mut one), Some(&mut 2));
    }

    #[test]
    fn a_weak_reference_to_nothing_needs_no_memory() {
        let (weak, allocations) = refusal::at(1, Weak::<String>::new);
        assert_eq!(allocations, 0);
        assert!(weak.clone().upgrade().is_none() && weak.ptr_eq(&Weak::new()) && weak.strong_count() == 0);
    }

    #[test]
    fn threads_that_clone_upgrade_and_drop_lose_nothing() {
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        let shared = Arc::try_new("x".to_string()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let (strong, weak) = (shared.clone(), Arc::downgrade(&shared));
                scope.spawn(move || {
                    for _ in 0..rounds {
                        let mut mine = strong.clone();
                        assert!(Arc::get_mut(&mut mine).is_none());
                        drop(Arc::downgrade(&mine));
                        assert_eq!(weak.upgrade().unwrap().as_str(), "x");
                    }
                    drop(strong);
                    // The last owner drops the value. Another thread may free the memory.
                    while weak.upgrade().is_some_and(|s| s.len() > 1) {}
                });
            }
        });
        assert_eq!((Arc::strong_count(&shared), Arc::into_inner(shared)), (1, Some("x".to_string())));
    }
}
