//! The reference count of an object: its handles, and the non-empty shards of its mapping list.
//!
//! The own shard of a CPU counts from its first backing until the list's shards are closed, even while it is empty.
//! Otherwise a CPU that maps and unmaps repeatedly would write a shared cache line each time. So references of own
//! shards do not keep an object alive by themselves. A thread that is about to drop the last other reference closes the
//! shards first (mutant [`Mutant::OwnShardsKeep`]). This moves the backings of own shards to the first shard, which
//! counts.

use crate::mutant::{Mutant, mutant};
use quire_sync::atomic::{AtomicU64, Ordering};

/// The value that a reference of a handle adds, or of a shard that all CPUs use.
const ONE: u64 = 1;
/// The value that a reference of a CPU's own shard adds. Bit 32 also counts it separately: the upper 32 bits are the
/// number of such references.
const OWN: u64 = 1 << 32 | ONE;

/// The reference count. It never rises from zero.
pub(crate) struct References(AtomicU64);

/// The result of dropping a reference.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GivenUp {
    /// Other references keep the object.
    Kept,
    /// The reference was the last.
    Last,
    /// The call has not dropped the reference, because all other references belong to CPUs' own shards, which do not
    /// keep the object alive. The caller closes these shards first.
    OnlyOwn,
}

impl References {
    /// A count of one.
    pub fn one() -> References {
        References(AtomicU64::new(ONE))
    }

    /// The number of references of all kinds.
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire) as u32
    }

    /// The number of references of CPUs' own shards.
    pub fn own(&self) -> u32 {
        (self.0.load(Ordering::Acquire) >> 32) as u32
    }

    /// Adds a reference. The caller keeps the object alive.
    pub fn add(&self) {
        self.0.fetch_add(ONE, Ordering::AcqRel);
    }

    /// Drops a reference, which is not the last.
    pub fn subtract(&self) {
        self.0.fetch_sub(ONE, Ordering::AcqRel);
    }

    /// Adds the reference of a CPU's own shard. The caller keeps the object alive.
    pub fn add_own(&self) {
        self.0.fetch_add(OWN, Ordering::AcqRel);
    }

    /// Drops the reference of a CPU's own shard. The caller keeps the object alive.
    pub fn subtract_own(&self) {
        self.0.fetch_sub(OWN, Ordering::AcqRel);
    }

    /// Adds a reference. Returns false if the count is zero.
    pub fn try_add(&self) -> bool {
        let mut n = self.0.load(Ordering::Relaxed);
        while n as u32 != 0 {
            match self.0.compare_exchange_weak(n, n + ONE, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => n = now,
            }
        }
        false
    }

    /// Drops a reference of a handle or of a shard that all CPUs use.
    pub fn give_up(&self) -> GivenUp {
        let mut n = self.0.load(Ordering::Relaxed);
        loop {
            let (all, own) = (n as u32, n >> 32);
            debug_assert!(
                u64::from(all) > own || mutant(Mutant::OwnShardsKeep),
                "more references are dropped than the object has"
            );
            if own != 0 && u64::from(all) == own + 1 && !mutant(Mutant::OwnShardsKeep) {
                return GivenUp::OnlyOwn;
            }
            match self.0.compare_exchange_weak(n, n - ONE, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if all == 1 => return GivenUp::Last,
                Ok(_) => return GivenUp::Kept,
                Err(now) => n = now,
            }
        }
    }

    /// Sets the count to zero, for tests of the checker.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub fn corrupt(&self) {
        self.0.store(0, Ordering::Release);
    }
}
