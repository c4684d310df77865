//! The victim of an out-of-memory condition, and the threads that wait for its memory. The parent module chooses the
//! victim ([`victim`](super)).

use crate::machine::Machine;
use crate::process::Process;
use quire_heap::Arc;
use quire_sync::atomic::{AtomicBool, Ordering};
use quire_sync::{Mutex, Rank, SpinLock, WaitQueue};

/// Nanoseconds that a victim gets to leave its memory by itself. A victim that exits in this time also wakes the
/// waiters on its robust futexes.
pub const GRACE: u64 = 200_000_000;
/// Nanoseconds after which the kernel gives the victim up, so that another victim may be chosen.
const BOUND: u64 = 1_000_000_000;
/// The victim, and the threads that wait for it.
pub struct Victims<M: Machine> {
    /// A thread holds this lock while it chooses a victim.
    pub choosing: Mutex<()>,
    /// Whether the thread that holds `choosing` chooses a victim.
    pub is_choosing: AtomicBool,
    pub dying: SpinLock<Option<Dying<M>>>,
    pub waits: WaitQueue,
}

pub struct Dying<M: Machine> {
    pub process: Arc<Process<M>>,
    pub since: u64,
    pub reaped: bool,
}

/// The next step of a waiter for the victim.
pub enum Step {
    /// The wait is over: the victim's memory is free, or the victim was given up.
    Done,
    /// The waiter must wait until this time, in nanoseconds since boot.
    Until(u64),
    /// The waiter must free the victim's memory itself.
    Reap,
}

impl<M: Machine> Victims<M> {
    pub(crate) fn new() -> Self {
        Victims {
            choosing: Mutex::new(()),
            is_choosing: AtomicBool::new(false),
            dying: SpinLock::new(Rank::OWNED, None),
            waits: WaitQueue::new(),
        }
    }

    /// Wakes the threads that wait for the memory of `process`, or for any memory. Called after `process` has lost a
    /// thread. The waiters check whether that thread was the last one. An exit that leaves memory low wakes no thread,
    /// because thousands may wait.
    pub fn left(&self, process: &Process<M>, is_low: bool) {
        if process.is_exiting() && (!is_low || self.is_dying(process)) {
            self.waits.wake_all();
        }
    }

    fn is_dying(&self, process: &Process<M>) -> bool {
        self.dying.lock().as_ref().is_some_and(|dying| core::ptr::eq(&raw const *dying.process, process))
    }

    /// The next step for a waiter at `time`. Returns [`Step::Reap`] to only one waiter for each victim.
    pub fn step(&self, time: u64) -> Step {
        let gone;
        let step = {
            let mut dying = self.dying.lock();
            let Some(now) = dying.as_mut() else { return Step::Done };
            let age = time.saturating_sub(now.since);
            if now.process.has_left_memory() || age >= BOUND {
                now.process.given_up.store(true, Ordering::Release);
                gone = dying.take();
                Step::Done
            } else {
                gone = None;
                match now.reaped {
                    true => Step::Until(now.since + BOUND),
                    false if age >= GRACE => {
                        now.reaped = true;
                        Step::Reap
                    }
                    false => Step::Until(now.since + GRACE),
                }
            }
        };
        // The reference is dropped after the lock is released, because the last reference frees the process's memory.
        drop(gone);
        step
    }

    pub fn process(&self) -> Option<Arc<Process<M>>> {
        self.dying.lock().as_ref().map(|dying| dying.process.clone())
    }
}
