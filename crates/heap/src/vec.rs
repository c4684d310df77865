//! A vector that grows only in methods whose names begin with `try_`.

use crate::OutOfMemory;
use core::alloc::Layout;
use core::fmt;
use core::ops::{Deref, DerefMut, RangeBounds};
use core::slice;

/// A growing array, as `alloc::vec::Vec`.
#[derive(PartialOrd, Ord, Eq, Hash)]
pub struct Vec<T>(alloc::vec::Vec<T>);

impl<T> Vec<T> {
    /// The smallest capacity that a vector gets at its first allocation, as for `alloc::vec::Vec`.
    const FIRST: usize = match size_of::<T>() {
        0 | 1 => 8,
        2..=1024 => 4,
        _ => 1,
    };

    /// An empty vector, which has no memory.
    pub const fn new() -> Self {
        Vec(alloc::vec::Vec::new())
    }

    /// An empty vector with room for exactly `capacity` elements.
    pub fn try_with_capacity(capacity: usize) -> Result<Self, OutOfMemory> {
        let layout = Layout::array::<T>(capacity).map_err(|_| OutOfMemory)?;
        if layout.size() == 0 {
            return Ok(Self::new());
        }
        // This function uses no method of `alloc` that grows a vector, because such a method handles the vector's old
        // memory too.
        let memory = crate::allocate(layout)?.cast::<T>();
        // SAFETY: the memory is from the global allocator, with the layout of `capacity` elements, and holds no element
        // yet.
        Ok(Vec(unsafe { alloc::vec::Vec::from_raw_parts(memory.as_ptr(), 0, capacity) }))
    }

    /// A vector of the iterator's elements.
    pub fn try_from_iter(all: impl IntoIterator<Item = T>) -> Result<Self, OutOfMemory> {
        let mut new = Self::new();
        new.try_extend(all)?;
        Ok(new)
    }

    /// Makes room for `more` elements beyond the existing ones, and for some later elements.
    pub fn try_reserve(&mut self, more: usize) -> Result<(), OutOfMemory> {
        if self.0.capacity() == 0 && more > 0 {
            *self = Self::try_with_capacity(more.max(Self::FIRST))?;
            return Ok(());
        }
        Ok(self.0.try_reserve(more)?)
    }

    /// Makes room for exactly `more` elements beyond the existing ones.
    pub fn try_reserve_exact(&mut self, more: usize) -> Result<(), OutOfMemory> {
        if self.0.capacity() == 0 {
            *self = Self::try_with_capacity(more)?;
            return Ok(());
        }
        Ok(self.0.try_reserve_exact(more)?)
    }

    /// Adds an element. If there is no memory, the element is dropped.
    #[inline]
    pub fn try_push(&mut self, value: T) -> Result<(), OutOfMemory> {
        if self.0.len() == self.0.capacity() {
            self.try_reserve(1)?;
        }
        self.push_reserved(value);
        Ok(())
    }

    /// Adds an element. The caller has reserved room for it.
    ///
    /// # Panics
    /// Panics if no room was reserved.
    #[inline]
    pub fn push_reserved(&mut self, value: T) {
        let len = self.0.len();
        let room = self.0.spare_capacity_mut().first_mut().expect("room was reserved");
        room.write(value);
        // SAFETY: the length is within the capacity, and the element was written.
        unsafe { self.0.set_len(len + 1) };
    }

    /// Adds an element before the element at `at`. If there is no memory, the element is dropped.
    ///
    /// # Panics
    /// Panics if `at` is behind the end.
    pub fn try_insert(&mut self, at: usize, value: T) -> Result<(), OutOfMemory> {
        self.try_reserve(1)?;
        self.insert_reserved(at, value);
        Ok(())
    }

    /// Adds an element before the element at `at`. The caller has reserved room for it.
    ///
    /// # Panics
    /// Panics if no room was reserved, or `at` is behind the end.
    pub fn insert_reserved(&mut self, at: usize, value: T) {
        self.push_reserved(value);
        self.0[at..].rotate_right(1);
    }

    /// Adds the iterator's elements. If memory runs out, the elements added so far stay.
    pub fn try_extend(&mut self, all: impl IntoIterator<Item = T>) -> Result<(), OutOfMemory> {
        let all = all.into_iter();
        self.try_reserve(all.size_hint().0)?;
        for value in all {
            self.try_push(value)?;
        }
        Ok(())
    }

    /// Drops all elements behind the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Drops all elements, and keeps the memory.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Removes and returns the last element.
    pub fn pop(&mut self) -> Option<T> {
        self.0.pop()
    }

    /// Removes and returns the element at `at`. The elements behind it move forward by one.
    ///
    /// # Panics
    /// Panics if there is no such element.
    pub fn remove(&mut self, at: usize) -> T {
        self.0.remove(at)
    }

    /// Removes and returns the element at `at`. The last element moves to its place.
    ///
    /// # Panics
    /// Panics if there is no such element.
    pub fn swap_remove(&mut self, at: usize) -> T {
        self.0.swap_remove(at)
    }

    /// Removes the elements of a range, and returns them in an iterator.
    ///
    /// # Panics
    /// Panics if the range ends behind the last element.
    pub fn drain(
        &mut self,
        range: impl RangeBounds<usize>,
    ) -> impl DoubleEndedIterator<Item = T> + ExactSizeIterator + '_ {
        self.0.drain(range)
    }

    /// Drops the elements for which `keep` returns false.
    pub fn retain(&mut self, keep: impl FnMut(&T) -> bool) {
        self.0.retain(keep);
    }

    /// As [`retain`](Self::retain), but `keep` may change the elements.
    pub fn retain_mut(&mut self, keep: impl FnMut(&mut T) -> bool) {
        self.0.retain_mut(keep);
    }

    /// Sets the length to `len`.
    ///
    /// # Safety
    /// `len` is within the capacity, and all elements before it were written.
    pub unsafe fn set_len(&mut self, len: usize) {
        // SAFETY: the caller vouches that `len` is within the capacity and that the elements before it were written.
        unsafe { self.0.set_len(len) };
    }

    /// The number of elements for which there is memory.
    pub fn capacity(&self) -> usize {
        self.0.capacity()
    }
}

impl<T: Copy> Vec<T> {
    /// Returns a copy of `all`.
    pub fn try_copy(all: &[T]) -> Result<Self, OutOfMemory> {
        let mut new = Self::try_with_capacity(all.len())?;
        new.try_extend_from_slice(all)?;
        Ok(new)
    }

    /// Adds a copy of the elements `all`.
    pub fn try_extend_from_slice(&mut self, all: &[T]) -> Result<(), OutOfMemory> {
        self.try_reserve(all.len())?;
        self.extend_reserved(all);
        Ok(())
    }

    /// Adds a copy of the elements `all`. The caller has reserved room for them.
    ///
    /// # Panics
    /// Panics if not enough room was reserved.
    pub fn extend_reserved(&mut self, all: &[T]) {
        let len = self.0.len();
        let room = &mut self.0.spare_capacity_mut()[..all.len()];
        room.write_copy_of_slice(all);
        // SAFETY: the length is within the capacity, and the elements were written.
        unsafe { self.0.set_len(len + all.len()) };
    }

    /// Changes the length to `len`. New elements have the value `value`.
    pub fn try_resize(&mut self, len: usize, value: T) -> Result<(), OutOfMemory> {
        self.try_reserve(len.saturating_sub(self.0.len()))?;
        self.resize_reserved(len, value);
        Ok(())
    }

    /// As [`try_resize`](Self::try_resize), in room that the caller has reserved.
    ///
    /// # Panics
    /// Panics if not enough room was reserved.
    pub fn resize_reserved(&mut self, len: usize, value: T) {
        let more = len.saturating_sub(self.0.len());
        self.0.spare_capacity_mut()[..more].fill(core::mem::MaybeUninit::new(value));
        self.0.truncate(len);
        // SAFETY: `len` is within the capacity, and all elements up to `len` were written.
        unsafe { self.0.set_len(len) };
    }
}

impl<T> Default for Vec<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Deref for Vec<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for Vec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<T> AsRef<[T]> for Vec<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

impl<T: PartialEq, U: AsRef<[T]> + ?Sized> PartialEq<U> for Vec<T> {
    fn eq(&self, other: &U) -> bool {
        **self == *other.as_ref()
    }
}

impl<T: fmt::Debug> fmt::Debug for Vec<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

/// Writing fails if there is no memory. The part of the text that was written before stays.
impl fmt::Write for Vec<u8> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.try_extend_from_slice(s.as_bytes()).map_err(|OutOfMemory| fmt::Error)
    }
}

impl<T> IntoIterator for Vec<T> {
    type Item = T;
    type IntoIter = alloc::vec::IntoIter<T>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, T> IntoIterator for &'a Vec<T> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut Vec<T> {
    type Item = &'a mut T;
    type IntoIter = slice::IterMut<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal;
    use std::string::String;

    #[test]
    fn a_refused_push_changes_nothing() {
        let mut v = Vec::try_copy(&[1, 2]).unwrap();
        assert!(refusal::at(1, || v.try_extend_from_slice(&[3; 100]).is_err()).0);
        assert!(refusal::at(1, || v.try_insert(0, 9).is_err()).0);
        assert!(refusal::at(1, || v.try_resize(50, 7).is_err()).0);
        assert_eq!(v, [1, 2]);
        v.try_insert(0, 0).unwrap();
        v.try_resize(5, 7).unwrap();
        assert_eq!(v, [0, 1, 2, 7, 7]);
        v.try_resize(1, 7).unwrap();
        assert_eq!(v, [0]);
    }

    #[test]
    fn reserved_room_is_filled_without_allocating() {
        let mut v = Vec::new();
        v.try_reserve(3).unwrap();
        let allocations = refusal::allocations(|| {
            v.push_reserved(String::new());
            v.push_reserved(String::new());
            v.try_push(String::new()).unwrap();
        });
        assert_eq!((allocations, v.len()), (0, 3));
    }

    #[test]
    #[should_panic(expected = "room was reserved")]
    fn room_that_was_not_reserved_is_the_callers_mistake() {
        Vec::new().push_reserved(1);
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        assert!(Vec::<u64>::try_with_capacity(usize::MAX).is_err());
        assert!(Vec::<u64>::try_with_capacity(usize::MAX / 8).is_err());
        let mut v = Vec::try_copy(&[1u8]).unwrap();
        assert!(v.try_reserve(usize::MAX).is_err());
        assert_eq!(v, [1]);
    }
}
