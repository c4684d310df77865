//! The protocol between threads that wait for memory and the pageout daemon. Neither sleeps for good while the other
//! waits for it.
//!
//! - **A thread waits.** It counts itself, then sets `wanted`. The daemon clears `wanted`, then reads the count, in a
//!   step that sees earlier waiters (mutant [`Mutant::WantedForgotten`]). A later waiter leaves `wanted` set, which the
//!   daemon reads before it sleeps.
//! - **A pass did not help.** Other threads may have taken the freed memory when the waiters check, and it may be free
//!   again when the daemon checks. So a waiter that still has none after a pass sets `wanted` again (mutant
//!   [`Mutant::AskedOnce`]).

use crate::mutant::{Mutant, mutant};
use crate::sleep::MaySleep;
use quire_sync::WaitQueue;
use quire_sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// State shared by waiting threads and the daemon.
pub(crate) struct Asking {
    /// Where faults sleep for memory.
    waits: WaitQueue,
    /// Where the daemon sleeps.
    daemon_waits: WaitQueue,
    /// Threads that sleep for memory.
    waiting: AtomicU64,
    /// A thread found that memory is short.
    wanted: AtomicBool,
    /// Passes that are over. It may wrap round.
    over: AtomicU64,
}

impl Asking {
    pub fn new() -> Asking {
        Asking {
            waits: WaitQueue::new(),
            daemon_waits: WaitQueue::new(),
            waiting: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
            over: AtomicU64::new(0),
        }
    }

    /// Whether a thread waits.
    pub fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Acquire) != 0
    }

    pub fn wake_daemon(&self) {
        self.wanted.swap(true, Ordering::AcqRel);
        self.daemon_waits.wake_all();
    }

    /// Wakes the waiting threads, which check again.
    pub fn wake(&self) {
        self.waits.wake_all();
    }

    /// Ends a pass: waiting threads check again, and request another pass.
    pub fn pass_is_over(&self) {
        self.over.fetch_add(1, Ordering::AcqRel);
        self.wake();
    }

    /// Wakes the daemon, and sleeps until `ready`.
    pub fn wait(&self, may: &mut MaySleep, mut ready: impl FnMut() -> bool) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        let mut done = false;
        while !done {
            // Read before the daemon is woken, because only a later pass serves this request.
            let over = self.over.load(Ordering::Acquire);
            self.wake_daemon();
            may.sleep_on(&self.waits, || {
                done = ready();
                done || self.over.load(Ordering::Acquire) != over && !mutant(Mutant::AskedOnce)
            });
        }
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    /// The daemon's loop, until `stopped`. It runs `work` at first, and whenever the daemon is wanted or `woken`. It
    /// repeats `work` while that returns true. The argument of `work` says whether a thread waits.
    pub fn serve(
        &self,
        may: &mut MaySleep,
        stopped: impl Fn() -> bool,
        woken: impl Fn() -> bool,
        mut work: impl FnMut(bool, &mut MaySleep) -> bool,
    ) {
        while !stopped() {
            if mutant(Mutant::WantedForgotten) {
                self.wanted.store(false, Ordering::Release);
            } else {
                self.wanted.swap(false, Ordering::AcqRel);
            }
            if !work(self.is_waited_for(), may) {
                may.wait_for_work(&self.daemon_waits, || self.wanted.load(Ordering::Acquire) || woken() || stopped());
            }
        }
    }
}
