//! The protocol between threads that wait for memory and the pageout daemon. The protocol prevents that one side sleeps
//! for ever while the other side waits for it.
//!
//! - **A thread waits.** It counts itself in `waiting`, then sets `wanted`. The daemon clears `wanted`, then reads the
//!   count. The clearing is a read-modify-write, so the daemon sees the count of each thread that set `wanted` before
//!   (mutant [`Mutant::WantedForgotten`]). A thread that waits later leaves `wanted` set, and the daemon reads it
//!   before it sleeps.
//! - **A pass does not help.** Other threads may have taken the freed memory before a waiter checks. Memory may be free
//!   again when the daemon checks. So a waiter that still has no memory after a pass sets `wanted` again (mutant
//!   [`Mutant::AskedOnce`]).

use crate::mutant::{Mutant, mutant};
use crate::sleep::MaySleep;
use quire_sync::WaitQueue;
use quire_sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The state that waiting threads and the daemon share.
pub(crate) struct Asking {
    /// The wait queue of threads that wait for memory.
    waits: WaitQueue,
    /// The wait queue of those among them that may use a part of the reserve, and their number.
    urgent_waits: WaitQueue,
    urgent: AtomicU64,
    /// The wait queue of the daemon.
    daemon_waits: WaitQueue,
    /// The number of threads that wait for memory.
    waiting: AtomicU64,
    /// Set by a thread that found memory short.
    wanted: AtomicBool,
    /// The number of passes that are over. It may wrap.
    over: AtomicU64,
}

impl Asking {
    pub fn new() -> Asking {
        Asking {
            waits: WaitQueue::new(),
            urgent_waits: WaitQueue::new(),
            urgent: AtomicU64::new(0),
            daemon_waits: WaitQueue::new(),
            waiting: AtomicU64::new(0),
            wanted: AtomicBool::new(false),
            over: AtomicU64::new(0),
        }
    }

    /// Whether a thread waits for memory.
    pub fn is_waited_for(&self) -> bool {
        self.waiting.load(Ordering::Acquire) != 0
    }

    pub fn wake_daemon(&self) {
        self.wanted.swap(true, Ordering::AcqRel);
        self.daemon_waits.wake_all();
    }

    /// Wakes the waiting threads, so that they check again.
    pub fn wake(&self) {
        self.waits.wake_all();
        self.wake_urgent();
    }

    /// Whether a thread waits that may use a part of the reserve.
    pub fn is_urgent(&self) -> bool {
        self.urgent.load(Ordering::Relaxed) != 0
    }

    /// Wakes the waiting threads that may use a part of the reserve, so that they check again.
    pub fn wake_urgent(&self) {
        self.urgent_waits.wake_all();
    }

    /// Ends a pass: waiting threads check again, and request another pass if they still have no memory.
    pub fn pass_is_over(&self) {
        self.over.fetch_add(1, Ordering::AcqRel);
        self.wake();
    }

    /// Wakes the daemon, and sleeps until `ready` returns true. `urgent` says that the thread may use a part of the
    /// reserve. A pass that frees nothing may be long, so it wakes such threads [in between](Self::wake_urgent).
    pub fn wait(&self, may: &mut MaySleep, urgent: bool, mut ready: impl FnMut() -> bool) {
        self.waiting.fetch_add(1, Ordering::AcqRel);
        self.urgent.fetch_add(urgent.into(), Ordering::AcqRel);
        let waits = if urgent { &self.urgent_waits } else { &self.waits };
        let mut done = false;
        while !done {
            // The count is read before the daemon is woken, because only a later pass serves this request.
            let over = self.over.load(Ordering::Acquire);
            self.wake_daemon();
            may.sleep_on(waits, || {
                done = ready();
                done || self.over.load(Ordering::Acquire) != over && !mutant(Mutant::AskedOnce)
            });
        }
        self.urgent.fetch_sub(urgent.into(), Ordering::AcqRel);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }

    /// The loop of the daemon, until `stopped` returns true. It runs `work` at first, and whenever the daemon is wanted
    /// or `woken` returns true. It repeats `work` while that returns true. The first argument of `work` is whether a
    /// thread waits.
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
