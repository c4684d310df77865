//! A value that many CPUs hold and release at the same time, without a count that all of them write.
//!
//! # The rule
//! A crowd counts its holds in shards, one for each few CPUs. A holder adds one in the shard of its CPU, and subtracts
//! one in the shard of the CPU that it releases on. Only the sum of the shards has a meaning, and no CPU reads it while
//! the crowd is open. The crowd has one reference to the value for all holds.
//!
//! Closing makes one count of the shards. Each is swapped for a number below all real counts, and the old counts are
//! summed up. From then on no CPU can take a hold (a lookup starts over). A CPU that releases a hold finds its shard
//! closed and subtracts from the sum. The sum starts at an offset larger than any number of holds, which the
//! closer takes away when it adds the old counts. So it reaches zero exactly when the last hold is released, and the
//! CPU that lowers it to zero drops the value's reference.
//!
//! The crowd's own memory is freed once both the last hold and the maker have dropped it.

use crate::mutant::{Mutant, mutant};
use core::cell::UnsafeCell;
use core::mem::{ManuallyDrop, MaybeUninit};
use core::ops::Deref;
use core::ptr::NonNull;
use quire_heap::{Arc, Box};
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_sync::hooks::current_cpu;

/// CPUs with the same number modulo this share a line.
#[cfg(not(any(loom, shuttle)))]
const SHARDS: usize = 16;
#[cfg(any(loom, shuttle))]
const SHARDS: usize = 2;

/// The value of a closed shard, and the excess of the sum until all are closed. It is larger than any number of holds
/// or of changes of a closed shard.
const CLOSED: i64 = i64::MIN / 2;

/// A signed count on a line of its own.
#[repr(align(64))]
struct Shard(AtomicU64);

impl Shard {
    fn new(count: i64) -> Self {
        Shard(AtomicU64::new(count as u64))
    }

    /// Adds `n`; returns the value before.
    fn add(&self, n: i64, order: Ordering) -> i64 {
        self.0.fetch_add(n as u64, order) as i64
    }
}

/// The holds of one value; see the module.
pub(crate) struct Crowd<V> {
    /// The reference of all holds. Taken out by the CPU that lowers the sum to zero.
    value: UnsafeCell<ManuallyDrop<Arc<V>>>,
    /// References to this memory: one of the maker, one of all holds together.
    needed: AtomicU32,
    shards: [Shard; SHARDS],
    /// The holds, once all shards are closed.
    sum: Shard,
}

impl<V> Crowd<V> {
    /// A crowd without holds; `None` where there is no memory. Its maker drops its reference by [`leave`](Self::leave).
    pub(crate) fn new(value: &Arc<V>) -> Option<NonNull<Self>> {
        // Before the value is counted: a refusal must leave its count as it was.
        let memory = Box::into_raw(Box::try_new(MaybeUninit::<Self>::uninit()).ok()?).cast::<Self>();
        let crowd = Crowd {
            value: UnsafeCell::new(ManuallyDrop::new(value.clone())),
            needed: AtomicU32::new(2),
            shards: core::array::from_fn(|_| Shard::new(0)),
            sum: Shard::new(-CLOSED),
        };
        // SAFETY: the box's own memory, for a crowd.
        unsafe { memory.write(crowd) };
        NonNull::new(memory)
    }

    fn shard(&self) -> &Shard {
        &self.shards[current_cpu() % SHARDS]
    }

    /// One more hold; `None` where the crowd is closed.
    ///
    /// # Safety
    /// `this` is a crowd whose memory stays during the call.
    pub(crate) unsafe fn join(this: NonNull<Self>) -> Option<Hold<V>> {
        // SAFETY: the caller vouches that the crowd's memory stays during the call.
        let crowd = unsafe { this.as_ref() };
        if is_closed(crowd.shard().add(1, Ordering::Relaxed)) && !mutant(Mutant::HoldOfClosed) {
            return None;
        }
        // SAFETY: the hold counts, so the value is alive.
        let value = unsafe { core::ptr::read(crowd.value.get()) };
        Some(Hold { value, crowd: Some(this) })
    }

    /// One hold less.
    ///
    /// # Safety
    /// `this` is a crowd that the caller has a hold of, which it uses no more.
    unsafe fn part(this: NonNull<Self>) {
        // SAFETY: the memory stays while there are holds.
        let crowd = unsafe { this.as_ref() };
        if is_closed(crowd.shard().add(-1, Ordering::Release)) && !mutant(Mutant::LetGoUncounted) {
            // SAFETY: the hold that the caller releases keeps the crowd's memory until it is added to the sum.
            unsafe { Self::add_up(this, -1) };
        }
    }

    /// Ends the taking of holds.
    ///
    /// # Safety
    /// `this` is a crowd; it is closed once, by its maker, who has not left it.
    pub(crate) unsafe fn close(this: NonNull<Self>) {
        // SAFETY: the maker has not left the crowd, so its memory stays during the call.
        let crowd = unsafe { this.as_ref() };
        // Acquire: all accesses of holders that released before this are over.
        let counted = |shard: &Shard| shard.0.swap(CLOSED as u64, Ordering::AcqRel) as i64;
        let holds = CLOSED + crowd.shards.iter().map(counted).sum::<i64>();
        // SAFETY: the maker has not left, so the memory stays, and its part is added once.
        unsafe { Self::add_up(this, holds) };
    }

    /// # Safety
    /// `this` is a crowd of which a hold or the maker's part is the caller's.
    unsafe fn add_up(this: NonNull<Self>, holds: i64) {
        // SAFETY: a hold or the maker's part is the caller's, and either keeps the crowd's memory.
        let crowd = unsafe { this.as_ref() };
        if crowd.sum.add(holds, Ordering::AcqRel) + holds == 0 {
            // SAFETY: the sum reaches zero once, when there is no hold and no CPU can take one any more.
            unsafe {
                drop(ManuallyDrop::take(&mut *crowd.value.get()));
                Self::leave(this);
            }
        }
    }

    /// Drops the reference to the memory of the maker or of all holds.
    ///
    /// # Safety
    /// Called once for either.
    pub(crate) unsafe fn leave(this: NonNull<Self>) {
        // SAFETY: by this function's contract the memory was needed until now.
        if unsafe { this.as_ref() }.needed.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: made by `new` of a box; no other reference is left.
            drop(unsafe { Box::from_raw(this.as_ptr()) });
        }
    }
}

fn is_closed(counted: i64) -> bool {
    counted < CLOSED / 2
}

/// A held value: it stays until this is dropped.
pub struct Hold<V> {
    value: ManuallyDrop<Arc<V>>,
    /// The crowd that counts it; else the value's own count does.
    crowd: Option<NonNull<Crowd<V>>>,
}

// SAFETY: it stands for a reference to the value, whose counts are atomics.
unsafe impl<V: Send + Sync> Send for Hold<V> {}
// SAFETY: a shared hold gives a shared reference to the value, and its counts are atomics.
unsafe impl<V: Send + Sync> Sync for Hold<V> {}

impl<V> Hold<V> {
    /// A reference that the value itself counts.
    pub fn counted(self) -> Arc<V> {
        match self.crowd {
            Some(_) => Arc::clone(&self),
            None => {
                let mut this = ManuallyDrop::new(self);
                // SAFETY: the handle is not used again.
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
            // SAFETY: the reference is this handle's, which is not used again.
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
