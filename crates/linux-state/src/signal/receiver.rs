//! The protocol between the senders of signals and a thread that receives them.
//!
//! # Publish, fence, look
//! A sender makes a signal pending, executes a fence, and reads the masks. A thread publishes its mask, executes a
//! fence, and reads the pending signals. Because of the two fences, the sender sees the new mask, or the thread sees
//! the pending signal. So no signal is lost if a thread unblocks it while a sender finds that all threads block it. A
//! thread that begins or ends a wait for signals publishes the awaited signals in the same way.
//!
//! # One thread is notified
//! A sender notifies one thread of a signal that is pending for the process. If that thread then blocks the signal or
//! stops waiting for it, it makes the kernel notify another thread.

use crate::mutant::{Mutant, mutant};
use crate::process::thread::work;
use crate::signal::pending::PendingQueue;
use crate::signal::set::{SigSet, Signal};
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence_full};

/// The fields of a thread that the senders of its signals use.
#[derive(Clone, Copy)]
pub struct Receiver<'a> {
    /// The field [`Thread::work`](crate::Thread::work).
    pub work: &'a AtomicU32,
    /// The field [`Thread::blocked`](crate::Thread::blocked).
    pub blocked: &'a AtomicU64,
    /// The field [`Thread::awaited`](crate::Thread::awaited).
    pub awaited: &'a AtomicU64,
    /// The queue of the thread's own pending signals.
    pub own: &'a PendingQueue,
    /// The queue of its process's pending signals.
    pub process: &'a PendingQueue,
}

/// The result of a check for awaited signals.
pub enum Wait<T, E> {
    /// The wait is over: there is a signal, or a reason to end without one.
    Over {
        /// The signal, or the reason for an end without a signal.
        result: Result<T, E>,
        /// Pending signals of the process of which another thread must be notified.
        left: SigSet,
    },
    /// The wait continues: the thread sleeps, and its signals stay awaited.
    GoesOn,
}

impl Receiver<'_> {
    /// The blocked signals.
    #[inline]
    pub fn blocked(self) -> SigSet {
        SigSet(self.blocked.load(Ordering::Acquire))
    }

    /// Makes `set` (without SIGKILL and SIGSTOP) the blocked signals. Sets the signal flag if a pending signal is now
    /// unblocked. Returns the process's signals of which another thread must be notified. Called by the thread itself.
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

    /// Whether the thread may receive `signal`: it does not block the signal, or it waits for the signal.
    #[inline]
    pub fn wants(self, signal: Signal) -> bool {
        !self.blocked().has(signal) || SigSet(self.awaited.load(Ordering::Acquire)).has(signal)
    }

    /// Sets the signal flag.
    #[inline]
    pub fn flag(self) {
        self.work.fetch_or(work::SIGNAL, Ordering::AcqRel);
    }

    /// Clears the signal flag, and then removes a signal from a queue with `take`. A signal that is sent later sets the
    /// flag again.
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

    /// Checks for a signal of `wanted`, which `take` removes from a queue. `ends` returns a reason to end without a
    /// signal. If there is neither a signal nor a reason, the caller sleeps and then calls this method again. Called by
    /// the thread itself.
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
        // Senders also set the signal flag for awaited signals, so `take` clears it before the check.
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
        // Sets the flag again for other signals that were sent while it was clear.
        self.look();
        // A sender that found its signal awaited by this thread has notified no other thread. This thread no longer
        // waits, so the caller notifies another thread of the awaited signals that this thread blocks.
        let left = if mutant(Mutant::AwaitKeepsNotified) { SigSet::EMPTY } else { self.process.set().and(wanted) };
        Wait::Over { result, left: left.and(self.blocked()) }
    }
}

/// Orders the store of a sender's signal before its loads of the masks.
#[inline]
pub(crate) fn published() {
    if !mutant(Mutant::SendNoFence) {
        fence_full();
    }
}

/// Notifies one of `threads` that `signal` is pending for their process. Only threads that want the signal are
/// candidates. A thread without another signal to handle is preferred. Returns the chosen thread, which the caller
/// wakes.
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
