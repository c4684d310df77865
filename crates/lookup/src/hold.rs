//! Holds: many CPUs hold and release a value at the same time, without a shared count that all of them write.
//!
//! # Protocol
//! A `Crowd` counts the holds of a value in shards: counts on separate cache lines, each for a few CPUs. A holder adds
//! one in the shard of its CPU. When the holder releases its hold, it subtracts one in the shard of the CPU on which it
//! then runs. Only the sum of the shards has a meaning, and no CPU reads the sum while the crowd is open. The crowd has
//! one reference to the value, for all holds.
//!
//! Closing a crowd turns the shards into one count. The closer replaces each shard's count by a number below all real
//! counts, and adds up the old counts. From then on no CPU can take a hold (a lookup then starts again under the lock
//! of its table). A CPU that releases a hold finds its shard closed, and subtracts from the sum instead. The sum starts
//! at an offset that is larger than any number of holds. The closer subtracts this offset when it adds the old counts.
//! So the sum reaches zero exactly when the last hold is released. The CPU that lowers it to zero drops the crowd's
//! reference to the value.
//!
//! The memory of the crowd is freed after both the last hold and the maker have dropped their references to it.

use crate::mutant::{Mutant, mutant};
use core::cell::UnsafeCell;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::Deref;
use core::ptr::NonNull;
use quire_heap::{Arc, Box};
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_sync::hooks::current_cpu;

/// The number of shards. CPUs whose numbers are equal modulo this constant share a cache line.
#[cfg(not(any(loom, shuttle)))]
const SHARDS: usize = 16;
#[cfg(any(loom, shuttle))]
const SHARDS: usize = 2;

/// The value of a closed shard. The offset at which the sum starts is `-CLOSED`. That is larger than any number of
/// holds, and than any number of changes of a closed shard.
const CLOSED: i64 = i64::MIN / 2;

/// A signed count on its own cache line.
#[repr(align(64))]
struct Shard(AtomicU64);

impl Shard {
    fn new(count: i64) -> Self {
        Shard(AtomicU64::new(count as u64))
    }

    /// Adds `n`, and returns the value before the addition.
    fn add(&self, n: i64, order: Ordering) -> i64 {
        self.0.fetch_add(n as u64, order) as i64
    }
}

/// A count, in shards, of the holds of one value; see the module's comment.
pub(crate) struct Crowd<V> {
    /// The reference that all holds share. The CPU that lowers the sum to zero takes it out.
    value: UnsafeCell<ManuallyDrop<Arc<V>>>,
    /// The number of references to this memory: one of the maker, and one of all holds together.
    needed: AtomicU32,
    shards: [Shard; SHARDS],
    /// The number of holds, after all shards are closed.
    sum: Shard,
}

impl<V> Crowd<V> {
    /// Makes a crowd without holds. Returns `None` if there is no memory. The maker drops its reference by
    /// [`leave`](Self::leave).
    pub(crate) fn new(value: &Arc<V>) -> Option<NonNull<Self>> {
        // The memory is allocated before the reference to the value is counted, so that a failure leaves the count as
        // it was.
        let memory = Box::into_raw(Box::try_new(MaybeUninit::<Self>::uninit()).ok()?).cast::<Self>();
        let crowd = Crowd {
            value: UnsafeCell::new(ManuallyDrop::new(value.clone())),
            needed: AtomicU32::new(2),
            shards: core::array::from_fn(|_| Shard::new(0)),
            sum: Shard::new(-CLOSED),
        };
        // SAFETY: `memory` is the box's own memory, and has room for a crowd.
        unsafe { memory.write(crowd) };
        NonNull::new(memory)
    }

    fn shard(&self) -> &Shard {
        &self.shards[current_cpu() % SHARDS]
    }

    /// Takes a hold. Returns `None` if the crowd is closed.
    ///
    /// # Safety
    /// `this` is a crowd whose memory is not freed during the call.
    pub(crate) unsafe fn join(this: NonNull<Self>) -> Option<Hold<V>> {
        // SAFETY: the caller guarantees that the crowd's memory is not freed during the call.
        let crowd = unsafe { this.as_ref() };
        if is_closed(crowd.shard().add(1, Ordering::Relaxed)) && !mutant(Mutant::HoldOfClosed) {
            return None;
        }
        // SAFETY: the hold is counted, so the value is alive.
        let value = unsafe { core::ptr::read(crowd.value.get()) };
        Some(Hold { value, crowd: Some(this) })
    }

    /// Releases a hold.
    ///
    /// # Safety
    /// The caller has a hold of the crowd `this`, and does not use the hold afterwards.
    unsafe fn part(this: NonNull<Self>) {
        // SAFETY: the memory is not freed while there are holds.
        let crowd = unsafe { this.as_ref() };
        if is_closed(crowd.shard().add(-1, Ordering::Release)) && !mutant(Mutant::LetGoUncounted) {
            // SAFETY: the hold that the caller releases keeps the crowd's memory until it is added to the sum.
            unsafe { Self::add_up(this, -1) };
        }
    }

    /// Closes the crowd: no hold can be taken from now on.
    ///
    /// # Safety
    /// `this` is a crowd whose maker has not left it. Only the maker closes it, once.
    pub(crate) unsafe fn close(this: NonNull<Self>) {
        // SAFETY: the maker has not left the crowd, so its memory stays during the call.
        let crowd = unsafe { this.as_ref() };
        // Acquire: all accesses of holders that released earlier happen before this.
        let counted = |shard: &Shard| shard.0.swap(CLOSED as u64, Ordering::AcqRel) as i64;
        let holds = CLOSED + crowd.shards.iter().map(counted).sum::<i64>();
        // SAFETY: the maker has not left, so the memory is not freed. The old counts are added once.
        unsafe { Self::add_up(this, holds) };
    }

    /// # Safety
    /// The caller has a hold of the crowd `this`, or the maker's reference to it.
    unsafe fn add_up(this: NonNull<Self>, holds: i64) {
        // SAFETY: the caller has a hold or the maker's reference, and each of them keeps the crowd's memory.
        let crowd = unsafe { this.as_ref() };
        if crowd.sum.add(holds, Ordering::AcqRel) + holds == 0 {
            // SAFETY: the sum reaches zero once, when there is no hold and no CPU can take one any more.
            unsafe {
                drop(ManuallyDrop::take(&mut *crowd.value.get()));
                Self::leave(this);
            }
        }
    }

    /// Drops the maker's reference to the memory, or the reference that all holds share.
    ///
    /// # Safety
    /// Called once for the maker, and once for all holds.
    pub(crate) unsafe fn leave(this: NonNull<Self>) {
        // SAFETY: by this function's contract the memory was needed until now.
        if unsafe { this.as_ref() }.needed.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: `new` made the crowd from a box, and no other reference is left.
            drop(unsafe { Box::from_raw(this.as_ptr()) });
        }
    }
}

fn is_closed(counted: i64) -> bool {
    counted < CLOSED / 2
}

/// A hold of a value. The value is not freed until this is dropped.
pub struct Hold<V> {
    value: ManuallyDrop<Arc<V>>,
    /// The crowd that counts the hold. `None` if the value's own reference count does.
    crowd: Option<NonNull<Crowd<V>>>,
}

// SAFETY: a hold is a reference to the value, whose counts are atomics.
unsafe impl<V: Send + Sync> Send for Hold<V> {}
// SAFETY: a shared hold gives a shared reference to the value, and its counts are atomics.
unsafe impl<V: Send + Sync> Sync for Hold<V> {}

impl<V> Hold<V> {
    /// Changes the hold into a reference that the value's own count includes.
    pub fn counted(self) -> Arc<V> {
        match self.crowd {
            Some(_) => Arc::clone(&self),
            None => {
                let mut this = ManuallyDrop::new(self);
                // SAFETY: `this` is not used again.
                unsafe { ManuallyDrop::take(&mut this.value) }
            }
        }
    }
}

impl<V> From<Arc<V>> for Hold<V> {
    fn from(value: Arc<V>) -> Self {
        Hold { value: ManuallyDrop::new(value), crowd: None }
    }
}

impl<V> Deref for Hold<V> {
    type Target = Arc<V>;
    fn deref(&self) -> &Arc<V> {
        &self.value
    }
}

impl<V> Drop for Hold<V> {
    fn drop(&mut self) {
        match self.crowd {
            // SAFETY: the hold is released once, and not used again.
            Some(crowd) => unsafe { Crowd::part(crowd) },
            // SAFETY: the reference belongs to this handle, which is not used again.
            None => unsafe { ManuallyDrop::drop(&mut self.value) },
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_heap::refusal;

    #[test]
    fn a_crowd_that_is_refused_memory_leaves_the_value_uncounted() {
        let value = Arc::try_new(7).unwrap();
        assert!(refusal::at(1, || Crowd::new(&value).is_none()).0);
        assert_eq!(Arc::strong_count(&value), 1);
    }
}
