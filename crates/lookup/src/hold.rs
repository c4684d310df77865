//! A value that many CPUs hold and let go of at the same time, without a count that all of them write.
//!
//! # The rule
//! A crowd counts its holds in shards, one for each few CPUs. Who holds counts one more in the shard of its CPU, who lets go
//! one less in the shard of the CPU that it is on then; only their sum means something, and nobody asks for it while the
//! crowd is open. The crowd has one reference to the value for all of them.
//!
//! Closing it makes one count out of the shards: each is swapped for a number so small that no count is, and what was there is
//! summed up. From then on nobody holds any more (a lookup goes on where it began), and who lets go finds its shard closed and
//! counts in the sum. Until all shards are in it the sum is too large by more than all holds there can be: so it comes to nothing
//! exactly when the last hold is gone, and whoever brings it there gives the value's reference up.
//!
//! The crowd's own memory goes with the last hold and with its maker, whichever is later.

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

/// What a closed shard says, and what the sum is too large by until all are closed: more than there can be holds or changes of
/// a shard that is closed.
const CLOSED: i64 = i64::MIN / 2;

/// A signed count on a line of its own.
#[repr(align(64))]
struct Shard(AtomicU64);

impl Shard {
    fn new(count: i64) -> Self {
        Shard(AtomicU64::new(count as u64))
    }

    /// Returns what it was before.
    fn add(&self, n: i64, order: Ordering) -> i64 {
        self.0.fetch_add(n as u64, order) as i64
    }
}

/// The holds of one value; see the module.
pub(crate) struct Crowd<V> {
    /// The reference of all holds. Taken out by who brings the sum to nothing.
    value: UnsafeCell<ManuallyDrop<Arc<V>>>,
    /// Those who need this memory: the maker, and all holds together.
    needed: AtomicU32,
    shards: [Shard; SHARDS],
    /// The holds, once all shards are closed.
    sum: Shard,
}

impl<V> Crowd<V> {
    /// A crowd that nobody is in yet; `None` where there is no memory. Its maker gives it up by [`leave`](Self::leave).
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
        // SAFETY: the hold counts, so the value is there.
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
            // SAFETY: the hold that the caller gives up keeps the crowd's memory until it is added to the sum.
            unsafe { Self::add_up(this, -1) };
        }
    }

    /// Nobody may hold any more.
    ///
    /// # Safety
    /// `this` is a crowd; it is closed once, by its maker, who has not left it.
    pub(crate) unsafe fn close(this: NonNull<Self>) {
        // SAFETY: the maker has not left the crowd, so its memory stays during the call.
        let crowd = unsafe { this.as_ref() };
        // Acquire: what a holder did, who let go before this, is over.
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
            // SAFETY: it comes to nothing once, when nobody holds and nobody can hold any more.
            unsafe {
                drop(ManuallyDrop::take(&mut *crowd.value.get()));
                Self::leave(this);
            }
        }
    }

    /// The memory is not needed any more, on the part of the maker or of all holds.
    ///
    /// # Safety
    /// Called once for either.
    pub(crate) unsafe fn leave(this: NonNull<Self>) {
        // SAFETY: by this function's contract the memory was needed until now.
        if unsafe { this.as_ref() }.needed.fetch_sub(1, Ordering::AcqRel) == 1 {
            // SAFETY: made by `new` of a box; nobody else has it any more.
            drop(unsafe { Box::from_raw(this.as_ptr()) });
        }
    }
}

fn is_closed(counted: i64) -> bool {
    counted < CLOSED / 2
}

/// A value that is held: it stays until this is dropped.
pub struct Hold<V> {
    value: ManuallyDrop<Arc<V>>,
    /// Where it is counted; else by the value's own count.
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
            // SAFETY: the hold is given up once, and not used again.
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
