//! Telling everybody something, against those who are just being made.
//!
//! Who tells everybody goes through a table. Who is put into that table meanwhile, behind the place that has been reached, would miss
//! what its maker may be told later, or was told before: so whoever makes somebody asks twice whether there is such a *call*. Before it
//! begins, and before it looks what it was told itself; and once more when the new one can be found in the table. If there was a call
//! between, it takes the new one back and begins anew. Nobody takes a lock or writes a shared line for that but who calls.
//!
//! A call is counted before its first look at the table; a new one can be found before its maker's last look at the count. One of the
//! two sees the other.

use crate::mutant::{Mutant, mutant};
use quire_sync::atomic::{AtomicU64, Ordering, fence_after_rmw};

/// See the module.
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
    /// Nobody calls.
    #[cfg(not(any(loom, shuttle)))]
    pub const fn new() -> Self {
        RollCall { calls: AtomicU64::new(0) }
    }
    /// Nobody calls.
    #[cfg(any(loom, shuttle))]
    pub fn new() -> Self {
        RollCall { calls: AtomicU64::new(0) }
    }

    /// Begins a call: who goes through the table from now on meets everybody, or their makers begin anew.
    pub fn begin(&self) -> Call<'_> {
        self.calls.fetch_add(BEGUN + 1, Ordering::AcqRel);
        if !mutant(Mutant::CallNoFence) {
            fence_after_rmw();
        }
        Call(self)
    }

    /// For who is about to make somebody, before it looks what it was told itself. `None` while there is a call.
    pub fn quiet(&self) -> Option<Quiet> {
        let calls = self.calls.load(Ordering::Acquire);
        (calls.is_multiple_of(BEGUN) || mutant(Mutant::MadeDuringCall)).then_some(Quiet(calls))
    }

    /// Whether there was a call since: the new one may have missed it.
    ///
    /// # Requires
    /// The new one is in the table, and the caller has taken a lock since it put it there.
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
