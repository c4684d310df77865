//! Sends an event to every thread of a table, including threads that are being made.
//!
//! A caller (a *call*) goes through the table. A new thread that enters the table behind the caller's position would
//! miss the event. So its maker checks for calls twice. The first check comes before the making begins, and before the
//! maker looks for events of its own. The second comes when the new thread can be found in the table. If there was a
//! call between, the maker takes the new thread back and begins anew. Only callers take a lock or write a shared line
//! for that.
//!
//! A call is counted before its first look at the table; the new thread can be found before its maker's last look at
//! the count. One of the two sees the other.

use crate::mutant::{Mutant, mutant};
use quire_sync::atomic::{AtomicU64, Ordering, fence_after_rmw};

/// The count of calls that makers compare; see the module.
pub struct RollCall {
    /// How many calls are under way and, above that, how many were ever begun.
    calls: AtomicU64,
}

const BEGUN: u64 = 1 << 32;

/// A moment at which there was no call, to be compared with a later one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Quiet(u64);

/// A call, until it is dropped.
pub struct Call<'a>(&'a RollCall);

impl RollCall {
    /// Without a call.
    #[cfg(not(any(loom, shuttle)))]
    pub const fn new() -> Self {
        RollCall { calls: AtomicU64::new(0) }
    }
    /// Without a call.
    #[cfg(any(loom, shuttle))]
    pub fn new() -> Self {
        RollCall { calls: AtomicU64::new(0) }
    }

    /// Begins a call. A caller that goes through the table from now on meets every thread, or its maker begins anew.
    pub fn begin(&self) -> Call<'_> {
        self.calls.fetch_add(BEGUN + 1, Ordering::AcqRel);
        if !mutant(Mutant::CallNoFence) {
            fence_after_rmw();
        }
        Call(self)
    }

    /// The first check of a maker, before it looks for events of its own. `None` while there is a call.
    pub fn quiet(&self) -> Option<Quiet> {
        let calls = self.calls.load(Ordering::Acquire);
        (calls.is_multiple_of(BEGUN) || mutant(Mutant::MadeDuringCall)).then_some(Quiet(calls))
    }

    /// The second check: whether there was a call since, which the new thread may have missed.
    ///
    /// # Requires
    /// The new thread is in the table, and its maker has taken a lock since.
    pub fn called_since(&self, quiet: Quiet) -> bool {
        if !mutant(Mutant::MadeNoFence) {
            fence_after_rmw();
        }
        self.calls.load(Ordering::Acquire) != quiet.0 && !mutant(Mutant::MadeUnasked)
    }
}

impl Default for RollCall {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Release);
    }
}
