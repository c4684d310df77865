//! A hash table. Each bucket has its own lock and its own cache line.

use quire_heap::{OutOfMemory, Vec};
use quire_sync::{CachePadded, Rank, SpinGuard, SpinLock};

/// The number of buckets of a table, a power of two. A model has one bucket, because hashes of addresses differ between
/// its executions.
pub(crate) const BUCKETS: usize = if cfg!(any(loom, shuttle)) { 1 } else { 256 };

/// A table of entries by hash. An empty bucket has no heap memory.
pub(crate) struct Table<E> {
    buckets: Vec<CachePadded<SpinLock<Vec<E>>>>,
}

impl<E> Table<E> {
    pub(crate) fn new() -> Result<Self, OutOfMemory> {
        let bucket = |_| CachePadded(SpinLock::new(Rank::SOCKET_NAMES, Vec::new()));
        Ok(Table { buckets: Vec::try_from_iter((0..BUCKETS).map(bucket))? })
    }

    /// Locks the bucket of `hash`, which has all entries whose hashes have the same low bits as `hash`.
    pub(crate) fn bucket(&self, hash: u64) -> SpinGuard<'_, Vec<E>> {
        self.buckets[hash as usize & (BUCKETS - 1)].lock()
    }

    /// Removes the entry that `is` selects. The entry, and the memory of an empty bucket, are dropped after the lock is
    /// released.
    pub(crate) fn remove(&self, hash: u64, is: impl Fn(&E) -> bool) {
        let mut bucket = self.bucket(hash);
        let gone = bucket.iter().position(is).map(|at| bucket.swap_remove(at));
        let memory = if bucket.is_empty() { core::mem::take(&mut *bucket) } else { Vec::new() };
        drop(bucket);
        drop((gone, memory));
    }
}

/// A hash of bytes (FNV-1a, with its bits mixed).
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    let fnv = |h: u64, b: &u8| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3);
    mix(bytes.iter().fold(0xcbf2_9ce4_8422_2325, fnv))
}

/// Spreads the bits of a number (the finaliser of SplitMix64).
pub(crate) fn mix(mut h: u64) -> u64 {
    h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    h ^ (h >> 31)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn an_empty_bucket_has_no_memory() {
        let table = Table::new().unwrap();
        for i in 0..100 {
            table.bucket(7).try_push(i).unwrap();
        }
        assert_eq!(table.bucket(7 + BUCKETS as u64).len(), 100);
        assert_eq!(table.bucket(8).len(), 0);
        (0..100).for_each(|i| table.remove(7, |e| *e == i));
        table.remove(7, |_| true);
        assert_eq!(table.bucket(7).capacity(), 0);
    }
}
