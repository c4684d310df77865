//! A double-ended queue in a ring that grows only in methods whose names begin with `try_`.

use crate::OutOfMemory;
use core::fmt;
use core::mem::MaybeUninit;

/// A double-ended queue, as `alloc::collections::VecDeque`.
pub struct Deque<T> {
    /// The ring; its length is its capacity.
    ring: alloc::vec::Vec<MaybeUninit<T>>,
    /// The index of the first element in the ring.
    first: usize,
    len: usize,
}

impl<T> Deque<T> {
    /// An empty queue, which has no memory.
    pub const fn new() -> Self {
        // A vector of elements without a size has an unlimited capacity, so the ring would have no end.
        const { assert!(size_of::<T>() != 0, "elements have a size") };
        Deque { ring: alloc::vec::Vec::new(), first: 0, len: 0 }
    }

    /// An empty queue with room for `capacity` elements.
    pub fn try_with_capacity(capacity: usize) -> Result<Self, OutOfMemory> {
        let mut new = Self::new();
        new.try_reserve(capacity)?;
        Ok(new)
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no element.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The index of element `at` in the ring. `at` may be the number of elements.
    fn place(&self, at: usize) -> usize {
        let place = self.first + at;
        if place >= self.ring.len() { place - self.ring.len() } else { place }
    }

    /// Makes room for `more` elements beyond the existing ones, and for some later elements.
    pub fn try_reserve(&mut self, more: usize) -> Result<(), OutOfMemory> {
        let need = self.len.checked_add(more).ok_or(OutOfMemory)?;
        let old = self.ring.len();
        if need <= old {
            return Ok(());
        }
        let mut new = alloc::vec::Vec::<MaybeUninit<T>>::new();
        new.try_reserve_exact(need.max(old.saturating_mul(2)))?;
        let capacity = new.capacity();
        // SAFETY: elements of a ring need not be initialised.
        unsafe { new.set_len(capacity) };
        let straight = (old - self.first).min(self.len);
        new[..straight].swap_with_slice(&mut self.ring[self.first..][..straight]);
        new[straight..self.len].swap_with_slice(&mut self.ring[..self.len - straight]);
        self.ring = new;
        self.first = 0;
        Ok(())
    }

    /// Adds an element behind the last. If there is no memory, the element is dropped.
    pub fn try_push_back(&mut self, value: T) -> Result<(), OutOfMemory> {
        self.try_reserve(1)?;
        self.push_back_reserved(value);
        Ok(())
    }

    /// Adds an element behind the last. The caller has reserved room for it.
    ///
    /// # Panics
    /// Panics if no room was reserved.
    pub fn push_back_reserved(&mut self, value: T) {
        assert!(self.len < self.ring.len(), "room was reserved");
        let place = self.place(self.len);
        self.ring[place].write(value);
        self.len += 1;
    }

    /// Adds an element before the first. The caller has reserved room for it.
    ///
    /// # Panics
    /// Panics if no room was reserved.
    pub fn push_front_reserved(&mut self, value: T) {
        assert!(self.len < self.ring.len(), "room was reserved");
        self.first = if self.first == 0 { self.ring.len() - 1 } else { self.first - 1 };
        self.ring[self.first].write(value);
        self.len += 1;
    }

    /// Removes and returns the first element.
    pub fn pop_front(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        let place = self.first;
        self.first = if place + 1 == self.ring.len() { 0 } else { place + 1 };
        // SAFETY: an element of the queue is initialised, and it is moved out once.
        Some(unsafe { self.ring[place].assume_init_read() })
    }

    /// Removes and returns the last element.
    pub fn pop_back(&mut self) -> Option<T> {
        self.len = self.len.checked_sub(1)?;
        let place = self.place(self.len);
        // SAFETY: an element of the queue is initialised, and it is moved out once.
        Some(unsafe { self.ring[place].assume_init_read() })
    }

    /// Removes and returns element `at`. The elements behind it move forward by one.
    pub fn remove(&mut self, at: usize) -> Option<T> {
        if at == 0 {
            return self.pop_front();
        }
        if at >= self.len {
            return None;
        }
        // SAFETY: an element of the queue is initialised. Each element behind `at` moves to the place before its own.
        // The last place is then outside of the queue.
        unsafe {
            let taken = self.ring[self.place(at)].assume_init_read();
            for next in at + 1..self.len {
                let value = self.ring[self.place(next)].assume_init_read();
                let place = self.place(next - 1);
                self.ring[place].write(value);
            }
            self.len -= 1;
            Some(taken)
        }
    }

    /// Drops the elements for which `keep` returns false.
    pub fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        // Each element is removed from the front and put back at the end. So if `keep` or a drop panics, no other
        // element is lost.
        for _ in 0..self.len {
            if let Some(value) = self.pop_front()
                && keep(&value)
            {
                self.push_back_reserved(value);
            }
        }
    }

    /// Element `at`.
    pub fn get(&self, at: usize) -> Option<&T> {
        // SAFETY: an element of the queue is initialised.
        (at < self.len).then(|| unsafe { self.ring[self.place(at)].assume_init_ref() })
    }

    /// Element `at`, mutable.
    pub fn get_mut(&mut self, at: usize) -> Option<&mut T> {
        if at >= self.len {
            return None;
        }
        let place = self.place(at);
        // SAFETY: an element of the queue is initialised.
        Some(unsafe { self.ring[place].assume_init_mut() })
    }

    /// The first element.
    pub fn front(&self) -> Option<&T> {
        self.get(0)
    }

    /// The last element.
    pub fn back(&self) -> Option<&T> {
        self.get(self.len.checked_sub(1)?)
    }

    /// All elements, from the first.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &T> + ExactSizeIterator {
        // SAFETY: the elements of the queue are initialised.
        (0..self.len).map(|at| unsafe { self.ring[self.place(at)].assume_init_ref() })
    }

    /// All elements, from the first, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        let (front, back) = self.ring.split_at_mut(self.first);
        let straight = back.len().min(self.len);
        let wrapped = self.len - straight;
        // SAFETY: the elements of the queue are initialised.
        back[..straight].iter_mut().chain(&mut front[..wrapped]).map(|e| unsafe { e.assume_init_mut() })
    }

    /// Drops all elements behind the first `len`.
    pub fn truncate(&mut self, len: usize) {
        while self.len > len {
            self.pop_back();
        }
    }

    /// Drops all elements, and keeps the memory.
    pub fn clear(&mut self) {
        self.truncate(0);
        self.first = 0;
    }

    /// Removes the first `most` elements (or all if there are fewer) as the iterator returns them.
    pub fn drain_front(&mut self, most: usize) -> impl Iterator<Item = T> + '_ {
        let count = most.min(self.len);
        (0..count).map_while(|_| self.pop_front())
    }

    /// The number of elements for which there is memory.
    pub fn capacity(&self) -> usize {
        self.ring.len()
    }
}

impl<T> Drop for Deque<T> {
    fn drop(&mut self) {
        if core::mem::needs_drop::<T>() {
            self.clear();
        }
    }
}

impl<T> Default for Deque<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T: fmt::Debug> fmt::Debug for Deque<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusal;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::string::{String, ToString};

    #[derive(Clone, Debug)]
    enum Op {
        PushBack,
        PushFront,
        PopBack,
        PopFront,
        Remove(usize),
        Truncate(usize),
        Change,
        Retain,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => Just(Op::PushBack),
            2 => Just(Op::PushFront),
            2 => Just(Op::PopBack),
            3 => Just(Op::PopFront),
            2 => (0..12usize).prop_map(Op::Remove),
            1 => (0..12usize).prop_map(Op::Truncate),
            1 => Just(Op::Change),
            1 => Just(Op::Retain),
        ]
    }

    /// The most operations of a test case. Under an interpreter (miri) the usual number would take seconds.
    const MOST: usize = if cfg!(miri) { 12 } else { 300 };

    proptest! {
        #[test]
        fn it_is_a_queue_with_two_ends(ops in prop::collection::vec(op(), 0..MOST)) {
            let (mut ours, mut model) = (Deque::<String>::new(), VecDeque::<String>::new());
            for (i, op) in ops.into_iter().enumerate() {
                match op {
                    Op::PushBack => {
                        ours.try_push_back(i.to_string()).unwrap();
                        model.push_back(i.to_string());
                    }
                    Op::PushFront => {
                        ours.try_reserve(1).unwrap();
                        ours.push_front_reserved(i.to_string());
                        model.push_front(i.to_string());
                    }
                    Op::PopBack => prop_assert_eq!(ours.pop_back(), model.pop_back()),
                    Op::PopFront => prop_assert_eq!(ours.pop_front(), model.pop_front()),
                    Op::Remove(at) => prop_assert_eq!(ours.remove(at), model.remove(at)),
                    Op::Truncate(len) => {
                        ours.truncate(len);
                        model.truncate(len);
                    }
                    Op::Retain => {
                        ours.retain(|e| e.len() != 2);
                        model.retain(|e| e.len() != 2);
                    }
                    Op::Change => {
                        ours.iter_mut().for_each(|e| e.push('x'));
                        model.iter_mut().for_each(|e| e.push('x'));
                    }
                }
                prop_assert!(ours.iter().eq(model.iter()));
                prop_assert_eq!((ours.len(), ours.front(), ours.back()), (model.len(), model.front(), model.back()));
                prop_assert_eq!(ours.get(3), model.get(3));
            }
        }
    }

    #[test]
    fn a_refused_push_changes_nothing_and_reserved_room_suffices() {
        let mut q = Deque::try_with_capacity(2).unwrap();
        (0..q.capacity()).for_each(|n| q.push_back_reserved(n));
        let before: std::vec::Vec<_> = q.iter().copied().collect();
        assert!(refusal::at(1, || q.try_push_back(7).is_err()).0);
        assert!(q.iter().eq(&before));
        assert!(q.try_reserve(usize::MAX).is_err() && q.try_reserve(usize::MAX / 16).is_err());
        assert_eq!(q.drain_front(1).collect::<std::vec::Vec<_>>(), [0]);
        assert_eq!(refusal::allocations(|| q.push_front_reserved(5)), 0);
        assert_eq!(q.pop_front(), Some(5));
    }
}
