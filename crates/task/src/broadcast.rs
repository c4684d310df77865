//! Sends an event to every thread of a table, including threads that are being made.
//!
//! A *broadcast* goes through the table. A new thread that enters the table behind the broadcast's position would miss
//! the event. So its maker checks for broadcasts twice. The first check comes before the making begins, and before the
//! maker looks for events of its own. The second comes when the new thread can be found in the table. If there was a
//! broadcast between, the maker takes the new thread back and begins anew. Only broadcasts take a lock or write a
//! shared line for that.
//!
//! A broadcast is counted before its first look at the table; the new thread can be found before its maker's last look
//! at the count. One of the two sees the other.

use crate::mutant::{Mutant, mutant};
use quire_sync::atomic::{AtomicU64, Ordering, fence_after_rmw};

/// The count of broadcasts that makers compare; see the module.
pub struct Broadcasts {
    /// How many broadcasts are under way and, above that, how many were ever begun.
    count: AtomicU64,
}

const BEGUN: u64 = 1 << 32;

/// A moment at which there was no broadcast, to be compared with a later one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quiet(u64);

/// A broadcast, until it is dropped.
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

    /// Begins a broadcast. The caller then walks the table. The walk meets every thread, or the thread's maker
    /// begins anew.
    pub fn begin(&self) -> Broadcast<'_> {
        self.count.fetch_add(BEGUN + 1, Ordering::AcqRel);
        if !mutant(Mutant::BroadcastNoFence) {
            fence_after_rmw();
        }
        Broadcast(self)
    }

    /// The first check of a maker, before it looks for events of its own. `None` while there is a broadcast.
    pub fn quiet(&self) -> Option<Quiet> {
        let count = self.count.load(Ordering::Acquire);
        (count.is_multiple_of(BEGUN) || mutant(Mutant::MadeDuringBroadcast)).then_some(Quiet(count))
    }

    /// The second check: whether there was a broadcast since, which the new thread may have missed.
    ///
    /// # Requires
    /// The new thread is in the table, and its maker has taken a lock since.
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
