//! Swap: the slots of the system's swap store. It records which slots are in use. The owner of a slot records its
//! number.
//!
//! # Owner of a slot
//! Each slot in use has exactly one owner:
//! - an index slot with [`Slot::Swap`](crate::object::index::Slot::Swap): the page is only in swap;
//! - a resident page, whose descriptor names the slot (`Page::swap_slot`). If the page is clean, the slot holds its
//!   content, so a page that was only read is evicted without a write. A dirty page keeps its stale slot too, until it
//!   is written again or freed. Freeing the slot at the first store would put a shared lock on the fault path;
//! - a write in progress, which gives the slot to the page when it is done, or frees it.
//!
//! The change of an index slot from page to Swap and back is one compare-and-swap, by the thread that holds the page
//! busy. Ownership of the swap slot changes with it. A Swap slot in an index is also emptied by compare-and-swap, and
//! the CPU that succeeds frees the swap slot. So each swap slot is freed once.
//!
//! # Full swap
//! While slots are scarce, no page keeps a slot beside its frame for long. A page that is read in frees its slot at
//! once and becomes dirty. A page that pageout finds in use also frees its slot and becomes dirty. So memory and swap
//! together hold as many pages as there are frames and slots, and an unused page gets the slot of a used one. A read
//! that finds no free frame borrows one from the reserve, because the slot that it frees lets another page be evicted.
//!
//! # Clusters
//! Neighbouring pages of an object that are written together get neighbouring slots, so that they can be read together
//! again. The search continues round the bitmap, from the place of the last cluster.

use crate::check::Broken;
use crate::paging::io::CLUSTER;
use crate::paging::pager::SwapStore;
use core::cell::UnsafeCell;
use quire_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quire_sync::{Rank, SpinLock};

/// The reason why a swap store was not added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SwapError {
    /// The system has a swap store already.
    Exists,
    /// There is no memory for the bitmap, which is one run of at most 4 MiB.
    OutOfMemory,
}

/// Consecutive slots of a swap store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwapSlots {
    /// The first slot.
    pub first: u64,
    /// The number of slots.
    pub len: u64,
}

pub(super) struct Bitmap {
    /// One bit for each slot, set if the slot is in use. The bits after the last slot are set too.
    pub(super) words: &'static mut [u64],
    /// The word of the bitmap at which the next search begins.
    at: usize,
}

/// The swap store and its slots.
pub struct Swap {
    pub(super) store: UnsafeCell<Option<&'static dyn SwapStore>>,
    /// Whether `store` is set. Once set, it stays set.
    pub(super) ready: AtomicBool,
    pub(super) total: AtomicU64,
    pub(super) free: AtomicU64,
    pub(super) bitmap: SpinLock<Bitmap>,
}

// SAFETY: `store` is written once, before `ready`, under the bitmap's lock.
unsafe impl Send for Swap {}
// SAFETY: readers read `store` only after they have seen `ready`, and it is not written after that.
unsafe impl Sync for Swap {}

/// The longest run of zero bits in `word`, of at most `n` bits: (bit, length).
fn run(word: u64, n: u32) -> Option<(u32, u32)> {
    let mut found = None;
    let mut starts = !word;
    for len in 1..=n.min(64) {
        if len > 1 {
            starts &= !word >> (len - 1);
        }
        if starts == 0 {
            break;
        }
        found = Some((starts.trailing_zeros(), len));
    }
    found
}

impl Swap {
    pub(crate) fn new() -> Swap {
        Swap {
            store: UnsafeCell::new(None),
            ready: AtomicBool::new(false),
            total: AtomicU64::new(0),
            free: AtomicU64::new(0),
            bitmap: SpinLock::new(Rank::SWAP, Bitmap { words: &mut [], at: 0 }),
        }
    }

    /// The swap store, if the system has one.
    pub(crate) fn store(&self) -> Option<&'static dyn SwapStore> {
        if !self.ready.load(Ordering::Acquire) {
            return None;
        }
        // SAFETY: `ready` was seen. The word was written before `ready`, and is not written again.
        unsafe { *self.store.get() }
    }
    /// The number of all slots.
    pub fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }
    /// The number of free slots. Written under the bitmap's lock.
    pub fn free(&self) -> u64 {
        self.free.load(Ordering::Relaxed)
    }

    /// Whether free slots are so few that resident pages must not keep their slots.
    pub(crate) fn is_scarce(&self) -> bool {
        self.free() < self.total() / 4
    }

    /// Whether hardly any slot is free: at most one in 64. Pages that are just being read in free about this number of
    /// slots even if swap is full. Also true without swap.
    pub(crate) fn is_as_good_as_full(&self) -> bool {
        self.free() <= self.total() / 64
    }

    /// Counts the bitmap again, and compares the counts. Takes O(slots / 64) time.
    pub(crate) fn check(&self) -> Result<(), Broken> {
        let map = self.bitmap.lock();
        let total = self.total.load(Ordering::Relaxed);
        let set: u64 = map.words.iter().map(|w| u64::from(w.count_ones())).sum();
        let behind = map.words.len() as u64 * 64 - total;
        let free = self.free.load(Ordering::Relaxed);
        if set.checked_sub(behind).and_then(|used| used.checked_add(free)) != Some(total) {
            return Err(Broken::SwapCount(free));
        }
        Ok(())
    }

    /// Whether `slot` is in use.
    pub(crate) fn in_use(&self, slot: u64) -> bool {
        let map = self.bitmap.lock();
        slot < self.total.load(Ordering::Relaxed) && map.words[(slot / 64) as usize] & 1 << (slot % 64) != 0
    }

    /// Allocates up to `n` adjacent slots. If no word of the bitmap has `n` adjacent free slots, allocates the longest
    /// run.
    pub(crate) fn allocate(&self, n: usize) -> Option<SwapSlots> {
        let mut map = self.bitmap.lock();
        let free = self.free.load(Ordering::Relaxed);
        if free == 0 {
            return None;
        }
        let n = n.clamp(1, CLUSTER) as u32;
        let words = map.words.len();
        let start = map.at;
        let mut best: Option<(usize, u32, u32)> = None;
        for i in 0..words {
            let w = (start + i) % words;
            if let Some((bit, len)) = run(map.words[w], n)
                && best.is_none_or(|b| len > b.2)
            {
                best = Some((w, bit, len));
                if len == n {
                    break;
                }
            }
        }
        let (w, bit, len) = best?;
        map.words[w] |= (u64::MAX >> (64 - len)) << bit;
        map.at = w;
        self.free.store(free - len as u64, Ordering::Relaxed);
        Some(SwapSlots { first: w as u64 * 64 + bit as u64, len: len as u64 })
    }

    /// Frees slots.
    ///
    /// # Panics
    /// Panics if one of the slots is already free, which is a bug of the core.
    pub(crate) fn release(&self, slots: SwapSlots) {
        if slots.len == 0 {
            return;
        }
        let mut map = self.bitmap.lock();
        for slot in slots.first..slots.first + slots.len {
            let (w, bit) = ((slot / 64) as usize, 1u64 << (slot % 64));
            assert!(map.words[w] & bit != 0, "swap slot {slot} is freed twice");
            map.words[w] &= !bit;
        }
        let free = self.free.load(Ordering::Relaxed);
        self.free.store(free + slots.len, Ordering::Relaxed);
    }
}

/// Access to private parts for tests of the checker.
#[cfg(all(test, not(any(loom, shuttle))))]
impl Swap {
    /// Flips the bit of a slot that another owner has.
    pub(crate) fn corrupt_bit(&self, slot: u64) {
        self.bitmap.lock().words[(slot / 64) as usize] ^= 1 << (slot % 64);
    }
    /// Makes the count of free slots one too small.
    pub(crate) fn corrupt_count(&self) {
        let _map = self.bitmap.lock();
        self.free.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A batch of swap slots that are being freed. Adjacent slots are freed together.
pub(crate) struct Returned<'s> {
    swap: &'s Swap,
    slots: SwapSlots,
}

impl<'s> Returned<'s> {
    pub fn new(swap: &'s Swap) -> Self {
        Returned { swap, slots: SwapSlots { first: 0, len: 0 } }
    }
    pub fn add(&mut self, slot: u64) {
        if self.slots.len != 0 && self.slots.first + self.slots.len == slot {
            self.slots.len += 1;
            return;
        }
        self.swap.release(self.slots);
        self.slots = SwapSlots { first: slot, len: 1 };
    }
}

impl Drop for Returned<'_> {
    fn drop(&mut self) {
        self.swap.release(self.slots);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
