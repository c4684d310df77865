//! The agreement of senders and a thread on the thread's signals.
//!
//! # Publish, fence, look
//! A sender makes a signal pending, fences, and reads the masks. A thread publishes its mask, fences, and reads the
//! pending signals. At least one of the two sees the other's store. So no signal is lost between a sender that finds
//! every thread blocking it, and a thread that unblocks it meanwhile. A thread that begins or ends a wait for signals
//! publishes the awaited ones in the same way.
//!
//! # One thread is notified
//! A sender notifies one thread of a signal that is pending for the process. So a thread that stops to want such a
//! signal gives back what it may have been notified of, and another thread is notified.

use crate::mutant::{Mutant, mutant};
use crate::process::thread::work;
use crate::signal::pending::PendingQueue;
use crate::signal::set::{SigSet, Signal};
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence_full};

/// The words of a thread that its senders read and write.
#[derive(Clone, Copy)]
pub struct Receiver<'a> {
    /// As [`Thread::work`](crate::Thread::work).
    pub work: &'a AtomicU32,
    /// As [`Thread::blocked`](crate::Thread::blocked).
    pub blocked: &'a AtomicU64,
    /// As [`Thread::awaited`](crate::Thread::awaited).
    pub awaited: &'a AtomicU64,
    /// The thread's queue.
    pub own: &'a PendingQueue,
    /// Its process's queue.
    pub process: &'a PendingQueue,
}

/// How a look for awaited signals ended.
pub enum Wait<T, E> {
    /// With a signal, or with the reason for an end without one.
    Over {
        /// The signal, or the reason.
        result: Result<T, E>,
        /// Signals of the process of which another thread has to be notified.
        left: SigSet,
    },
    /// The signals stay awaited: the thread sleeps.
    GoesOn,
}

impl Receiver<'_> {
    /// The blocked signals.
    #[inline]
    pub fn blocked(self) -> SigSet {
        SigSet(self.blocked.load(Ordering::Acquire))
    }

    /// Makes `set` the blocked signals (without the unblockable ones), and sets the signal flag if a signal can be
    /// delivered now. Returns the signals of the process of which another thread has to be notified. The thread itself
    /// calls it.
    #[inline]
    pub fn block(self, set: SigSet) -> SigSet {
        let (before, set) = (self.blocked(), set.without(SigSet::UNBLOCKABLE));
        self.blocked.store(set.0, Ordering::Release);
        if !mutant(Mutant::BlockNoFence) {
            fence_full();
        }
        if !mutant(Mutant::UnblockUnlooked) {
            self.look();
        }
        if mutant(Mutant::BlockKeepsNotified) {
            return SigSet::EMPTY;
        }
        self.process.set().and(set).without(before)
    }

    /// Sets the signal flag if an unblocked signal is pending.
    #[inline]
    pub fn look(self) {
        let pending = self.own.set().or(self.process.set());
        if !pending.without(self.blocked()).is_empty() {
            self.flag();
        }
    }

    /// Whether the thread takes `signal`: it does not block it, or waits for it.
    #[inline]
    pub fn wants(self, signal: Signal) -> bool {
        !self.blocked().has(signal) || SigSet(self.awaited.load(Ordering::Acquire)).has(signal)
    }

    /// Sets the signal flag.
    #[inline]
    pub fn flag(self) {
        self.work.fetch_or(work::SIGNAL, Ordering::AcqRel);
    }

    /// Clears the signal flag, and then takes a signal by `take`. A later signal sets the flag again.
    #[inline]
    pub fn take<T>(self, take: impl FnOnce() -> Option<T>) -> Option<T> {
        let clear = || self.work.fetch_and(!work::SIGNAL, Ordering::AcqRel);
        if mutant(Mutant::FlagClearedLate) {
            let taken = take();
            clear();
            return taken;
        }
        clear();
        take()
    }

    /// Waits for a signal of `wanted`, which `take` takes. `ends` gives the reason for an end without a signal; without
    /// one the thread sleeps, and calls this again. The thread itself calls it.
    #[inline]
    pub fn wait<T, E>(
        self,
        wanted: SigSet,
        take: impl Fn() -> Option<T>,
        ends: impl FnOnce() -> Option<E>,
    ) -> Wait<T, E> {
        self.awaited.store(wanted.0, Ordering::Release);
        if !mutant(Mutant::AwaitNoFence) {
            fence_full();
        }
        // Senders set the signal flag for awaited signals too, so it is cleared before the look.
        let result = match self.take(&take) {
            Some(taken) => Ok(taken),
            None => {
                self.look();
                match ends() {
                    Some(why) => Err(why),
                    None => return Wait::GoesOn,
                }
            }
        };
        self.awaited.store(0, Ordering::Release);
        if !mutant(Mutant::AwaitEndNoFence) {
            fence_full();
        }
        let result = result.or_else(|why| take().ok_or(why));
        // Sets the flag for other signals that came while it was clear.
        self.look();
        // A sender that saw a signal awaited has notified no other thread.
        let left = if mutant(Mutant::AwaitKeepsNotified) { SigSet::EMPTY } else { self.process.set().and(wanted) };
        Wait::Over { result, left: left.and(self.blocked()) }
    }
}

/// Orders a sender's signal before its reads of the masks.
#[inline]
pub(crate) fn published() {
    if !mutant(Mutant::SendNoFence) {
        fence_full();
    }
}

/// Notifies one of `threads` that `signal` is pending for their process. It chooses among those that want the signal,
/// and prefers a thread without another signal to handle. Returns the thread, which the caller wakes.
#[inline]
pub(crate) fn notify_one<'a, T>(threads: impl Iterator<Item = (T, Receiver<'a>)>, signal: Signal) -> Option<T> {
    let mut chosen = None;
    for (thread, receiver) in threads {
        if receiver.wants(signal) {
            let idle = receiver.work.load(Ordering::Relaxed) & work::SIGNAL == 0;
            chosen = Some((thread, receiver));
            if idle {
                break;
            }
        }
    }
    let (thread, receiver) = chosen?;
    receiver.flag();
    Some(thread)
}
