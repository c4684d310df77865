//! Commit charge (`Committed_AS`): writable private bytes, over all spaces.
//!
//! An arena is a part of a map with its own lock. When an arena's writer is released, it posts the change of the
//! arena's bytes to a count of its CPU. So a change writes no shared cache line, and a query needs no walk over the
//! spaces. If there is a limit, a writer posts the bytes before it maps them, and then sums the counts of all CPUs. Of
//! two writers that would exceed the limit together, at least one sees the other's bytes.

use crate::mutant::{Mutant, mutant};
use quire_sync::atomic::{AtomicU64, Ordering, fence_full};
use quire_sync::{PerCpu, preempt_off};

/// The commit charge of a system.
pub struct CommitCharge {
    /// The limit in bytes, or [`CommitCharge::UNLIMITED`].
    limit: AtomicU64,
    posts: PerCpu<Posts>,
}

/// The posts of a CPU, in bytes. Additions and subtractions have separate counts, because a thread may add on one CPU
/// and subtract on another. A sum that reads all subtractions before all additions is never too low.
pub(in crate::map) struct Posts {
    came: AtomicU64,
    gone: AtomicU64,
}

impl Posts {
    pub fn new() -> Self {
        Posts { came: AtomicU64::new(0), gone: AtomicU64::new(0) }
    }

    /// Adds `by` modulo 2^64.
    ///
    /// # Requires
    /// The caller runs on this CPU, and is not preempted.
    #[inline]
    fn add(&self, by: u64) {
        let (count, by) = if by as i64 >= 0 { (&self.came, by) } else { (&self.gone, by.wrapping_neg()) };
        count.store(count.load(Ordering::Relaxed).wrapping_add(by), Ordering::Release);
    }
}

impl CommitCharge {
    /// The value of the limit that means no limit.
    pub const UNLIMITED: u64 = u64::MAX;

    pub(in crate::map) fn new(posts: PerCpu<Posts>) -> Self {
        CommitCharge { limit: AtomicU64::new(Self::UNLIMITED), posts }
    }

    /// The limit, in bytes, of the sum of the commit charge and the resident pages of files and shared memory.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. Spaces keep their memory, even if it exceeds the limit.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    #[inline(always)]
    pub(in crate::map) fn is_limited(&self) -> bool {
        self.limit() != Self::UNLIMITED
    }

    /// The commit charge in bytes, over all spaces. Bytes that are posted during the call may or may not count. The
    /// call is not preempted, so that few bytes are posted while it sums.
    pub fn bytes(&self) -> u64 {
        let _here = preempt_off();
        let sum = |of: fn(&Posts) -> &AtomicU64| {
            self.posts.iter().map(|posts| of(posts).load(Ordering::Acquire)).fold(0, u64::wrapping_add)
        };
        let gone = sum(|posts| &posts.gone);
        sum(|posts| &posts.came).wrapping_sub(gone)
    }

    /// Adds `by` modulo 2^64 to this CPU's posts.
    #[inline]
    pub(in crate::map) fn post(&self, by: u64) {
        let cpu = preempt_off();
        self.posts.mine(&cpu).add(by);
    }

    /// Posts `more` bytes, unless the commit charge and `others` bytes would exceed the limit. Returns whether the
    /// bytes were posted.
    #[cold]
    pub(crate) fn charge_commit(&self, more: u64, others: u64) -> bool {
        // A request above the limit is refused before the post, because its post could make other requests fail.
        if more > self.limit() {
            return false;
        }
        self.post(more);
        if !mutant(Mutant::NoFenceAfterCharge) {
            fence_full();
        }
        let fits = self.bytes().saturating_add(others) <= self.limit();
        if !fits {
            self.post(more.wrapping_neg());
        }
        fits
    }
}
