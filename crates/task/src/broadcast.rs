//! Sends an event to every thread of a table, including threads that are being made.
//!
//! A *broadcast* walks the table. A new thread that is inserted behind the position of the walk would miss the event.
//! So its *maker*, the thread that creates it, checks for broadcasts twice. The first check is before the creation
//! begins, and before the maker checks for events to itself. The second check is after the new thread was inserted in
//! the table. If there was a broadcast in between, the maker removes the new thread and begins again. Makers only read
//! the count; only broadcasts write it.
//!
//! A broadcast raises the count before it reads the table. A maker inserts the new thread before it reads the count for
//! the last time. So the broadcast finds the thread, or the maker sees the broadcast.

use crate::mutant::{Mutant, mutant};
use quire_sync::atomic::{AtomicU64, Ordering, fence_after_rmw};

/// The count of broadcasts, which makers of threads compare; see the module's documentation.
pub struct Broadcasts {
    /// The low 32 bits count the broadcasts under way, and the high bits count all broadcasts that were begun.
    count: AtomicU64,
}

const BEGUN: u64 = 1 << 32;

/// The value of the count at a moment without a broadcast. [`was_sent_since`](Broadcasts::was_sent_since) compares it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quiet(u64);

/// A broadcast that is under way; its drop ends it.
pub struct Broadcast<'a>(&'a Broadcasts);

impl Broadcasts {
    /// A count without a broadcast.
    #[cfg(not(any(loom, shuttle)))]
    pub const fn new() -> Self {
        Broadcasts { count: AtomicU64::new(0) }
    }
    /// A count without a broadcast.
    #[cfg(any(loom, shuttle))]
    pub fn new() -> Self {
        Broadcasts { count: AtomicU64::new(0) }
    }

    /// Begins a broadcast. The caller then walks the table. The walk finds every new thread, or the thread's maker
    /// sees the broadcast and begins again.
    pub fn begin(&self) -> Broadcast<'_> {
        self.count.fetch_add(BEGUN + 1, Ordering::AcqRel);
        if !mutant(Mutant::BroadcastNoFence) {
            fence_after_rmw();
        }
        Broadcast(self)
    }

    /// The first check of a maker, before it checks for events to itself. `None` while a broadcast is under way.
    pub fn quiet(&self) -> Option<Quiet> {
        let count = self.count.load(Ordering::Acquire);
        (count.is_multiple_of(BEGUN) || mutant(Mutant::MadeDuringBroadcast)).then_some(Quiet(count))
    }

    /// The second check of a maker: whether a broadcast began since the first check, which the new thread may have
    /// missed.
    ///
    /// # Requires
    /// The new thread is in the table, and its maker has acquired a lock since the insertion.
    pub fn was_sent_since(&self, quiet: Quiet) -> bool {
        if !mutant(Mutant::MadeNoFence) {
            fence_after_rmw();
        }
        self.count.load(Ordering::Acquire) != quiet.0 && !mutant(Mutant::MadeUnchecked)
    }
}

impl Default for Broadcasts {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Broadcast<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Release);
    }
}
