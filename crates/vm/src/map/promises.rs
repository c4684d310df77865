//! Private memory that programs may store into, counted over all spaces: the promise that pages come with the stores.
//!
//! An arena's writer posts a change of its bytes when it ends, to a count of its CPU. So a change writes no shared line,
//! and no query walks spaces. With a limit, a writer posts the bytes before it maps them, and then sums the counts. Of
//! two writers that would exceed the limit together, at least one sees the other's bytes.

use crate::mutant::{Mutant, mutant};
use quire_sync::atomic::{AtomicU64, Ordering, fence_full};
use quire_sync::{PerCpu, preempt_off};

/// The promises of a system.
pub struct Promises {
    /// The most bytes; [`Promises::UNLIMITED`]: no limit.
    limit: AtomicU64,
    /// The changes that each CPU has posted, in bytes, by wrapping.
    posted: PerCpu<AtomicU64>,
}

impl Promises {
    /// The limit that refuses nothing.
    pub const UNLIMITED: u64 = u64::MAX;

    pub(super) fn new(posted: PerCpu<AtomicU64>) -> Self {
        Promises { limit: AtomicU64::new(Self::UNLIMITED), posted }
    }

    /// The most bytes that spaces may have together, with the pages of files and of shared memory.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. Spaces keep their memory, also above the limit.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(super) fn is_limited(&self) -> bool {
        self.limit() != Self::UNLIMITED
    }

    /// Bytes that all spaces have. Changes during the call may count or not.
    pub fn bytes(&self) -> u64 {
        let sum = self.posted.iter().map(|posted| posted.load(Ordering::Relaxed)).fold(0, u64::wrapping_add);
        // A CPU that was read early may have posted what another one took back.
        if sum > i64::MAX as u64 { 0 } else { sum }
    }

    /// Posts a change, by wrapping.
    #[inline]
    pub(super) fn post(&self, by: u64) {
        let cpu = preempt_off();
        let posted = self.posted.mine(&cpu);
        posted.store(posted.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
    }

    /// Posts `more` bytes, unless all promises and `others` would exceed the limit.
    #[cold]
    pub(crate) fn promise(&self, more: u64, others: u64) -> bool {
        self.post(more);
        if !mutant(Mutant::NoFenceAfterPromise) {
            fence_full();
        }
        let fits = self.bytes().saturating_add(others) <= self.limit();
        if !fits {
            self.post(more.wrapping_neg());
        }
        fits
    }
}
