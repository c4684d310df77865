//! Daemons: loops that threads of the machine run for the core.
//!
//! The machine makes a thread for each [`Daemon`], which calls
//! [`Reclaimer::daemon_run`](crate::reclaim::Reclaimer::daemon_run). On the hosted machine this thread is a CPU of its
//! own. In the kernel it is a kernel thread. Without daemons, the threads that need the work do it themselves.

use crate::machine::Machine;
use crate::object::reap_list::MANY;
use crate::reclaim::Reclaimer;
use crate::sleep::MaySleep;
use quire_sync::atomic::{AtomicBool, Ordering, fence_full};
use quire_sync::hooks::{current_thread, now, park};

/// Nanoseconds between two polls of pagers. This is shorter than the response time of a disk, and longer than a poll.
const POLL_EVERY: u64 = 50_000;

/// The number of pages that the reaper visits in one call.
const PASS: u64 = 4096;

/// A loop that a thread of the machine runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Daemon {
    /// Finishes reads and writes that pagers have completed. Run by one thread.
    Completion,
    /// Pages out when memory is short. Run by one thread.
    Pageout,
    /// Frees pages that no mapping shows any more, after one of several mappings that shared an object was removed. Run
    /// by one thread.
    Reaper,
}

/// Runs its closure when the loop of a daemon ends, also by a panic. After a panic the waiting threads then take over
/// the daemon's work. So the panic is reported, and the threads do not sleep for ever.
pub(crate) struct OnEnd<F: FnMut()>(pub F);

impl<F: FnMut()> Drop for OnEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// The state that the daemons share.
pub struct Daemons {
    stop: AtomicBool,
}

impl Daemons {
    pub(crate) fn new() -> Daemons {
        Daemons { stop: AtomicBool::new(false) }
    }
    pub(crate) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

impl<M: Machine> Reclaimer<M> {
    /// Runs a daemon's loop on the calling thread until
    /// [`Reclaimer::stop_daemons`](crate::reclaim::Reclaimer::stop_daemons).
    pub fn daemon_run(&'static self, daemon: Daemon) {
        match daemon {
            Daemon::Completion => self.run_completion(),
            Daemon::Pageout => self.run_pageout(),
            Daemon::Reaper => self.run_reaper(),
        }
    }

    /// Ends the loops of all daemons. From then on, the threads that need the work do it themselves.
    pub fn stop_daemons(&self) {
        self.daemons().stop.store(true, Ordering::Release);
        // A daemon stores its thread, fences, then reads `stop`. This thread stores `stop`, fences, then reads the
        // daemon's thread. So one of the two sees the other's store.
        fence_full();
        self.io().wake_completer();
        self.pageout().wake_daemon();
        self.wake_reaper();
    }

    fn run_completion(&'static self) {
        let mut may = MaySleep::here();
        self.io().set_completer(Some(current_thread()));
        let _withdraws = OnEnd(|| self.io().set_completer(None));
        while !self.daemons().stopping() {
            self.poll_pagers();
            if self.finish_completed(&mut may) != 0 || self.io().has_completed() {
                continue;
            }
            // This thread is unparked when a request is completed, or when a request of a polled pager is started.
            let polled = self.io().in_flight() != 0 && self.io().has_polled();
            park(polled.then(|| now() + POLL_EVERY));
        }
    }

    /// Reaps when many objects are listed or a thread requests it, until the daemons are stopped.
    fn run_reaper(&'static self) {
        let mut may = MaySleep::here();
        while !self.daemons().stopping() {
            let reaper = self.reaper();
            may.wait_for_work(&reaper.waits, || {
                reaper.asked.swap(false, Ordering::AcqRel) || reaper.lists.iter().any(|l| l.lock().len >= MANY)
            });
            while self.reap(PASS, &mut may) >= PASS && !self.daemons().stopping() {}
        }
    }
}
