//! Waiting without a stack: a stream that has to wait lists the calling thread and returns.
//!
//! A call that can give up its stack passes its thread's [`Park`]. Where the stream would sleep at its own readiness,
//! it returns [`FsError::WouldSleep`](crate::FsError::WouldSleep) instead, and has moved nothing. The thread leaves the
//! call, sleeps, and repeats the same call by [`Park::again`]. All other waits keep the stack.

use quire_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use quire_sync::{Listing, WaitQueue};

/// The state that a call keeps for its next attempt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Kept {
    /// The time at which the wait ends at the latest, on the monotonic clock in nanoseconds.
    pub deadline: Option<u64>,
    /// The number of the socket's connection when the call began. The stream numbers its connections.
    pub generation: u32,
}

/// No deadline.
const NEVER: u64 = u64::MAX;

/// The state with which a thread's calls wait without a stack. Only that thread uses it, so its stores need no order.
pub struct Park {
    listing: Listing,
    /// Whether the thread is repeating a call.
    repeats: AtomicBool,
    deadline: AtomicU64,
    generation: AtomicU32,
}

impl Park {
    /// The park of a thread that is listed by `listing`.
    pub fn new(listing: Listing) -> Self {
        Park {
            listing,
            repeats: AtomicBool::new(false),
            deadline: AtomicU64::new(NEVER),
            generation: AtomicU32::new(0),
        }
    }

    /// The thread's place on a stream's queue.
    #[inline]
    pub fn listing(&self) -> &Listing {
        &self.listing
    }

    /// Whether the thread is listed on `queue`.
    pub fn is_on(&self, queue: &WaitQueue) -> bool {
        core::ptr::eq(self.listing.queue(), queue)
    }

    /// The state that the stream kept when it listed the thread.
    fn kept(&self) -> Kept {
        Kept { deadline: self.deadline(), generation: self.generation.load(Ordering::Relaxed) }
    }

    /// Takes the thread off the queue, and repeats its call with `call`.
    pub fn again<R>(&self, call: impl FnOnce() -> R) -> R {
        self.listing.unlist();
        self.repeats.store(true, Ordering::Relaxed);
        let done = call();
        self.repeats.store(false, Ordering::Relaxed);
        done
    }

    /// The state that the previous attempt kept, if the thread is repeating its call.
    #[inline]
    pub fn earlier(&self) -> Option<Kept> {
        self.repeats.load(Ordering::Relaxed).then(|| self.kept())
    }

    /// The time at which the thread's present sleep ends at the latest, on the monotonic clock in nanoseconds.
    #[inline]
    pub fn deadline(&self) -> Option<u64> {
        Some(self.deadline.load(Ordering::Relaxed)).filter(|at| *at != NEVER)
    }

    /// Sets [`deadline`](Self::deadline).
    #[inline]
    pub fn sleeps_until(&self, deadline: Option<u64>) {
        self.deadline.store(deadline.unwrap_or(NEVER), Ordering::Relaxed);
    }

    pub(super) fn keep(&self, kept: Kept) {
        self.sleeps_until(kept.deadline);
        self.generation.store(kept.generation, Ordering::Relaxed);
    }
}
