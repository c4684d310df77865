//! The process that ends because memory is out, and the threads that wait for its memory
//! ([`victim`](super) chooses it).

use crate::machine::Machine;
use crate::process::Process;
use quire_heap::Arc;
use quire_sync::atomic::Ordering;
use quire_sync::{Mutex, Rank, SpinLock, WaitQueue};

/// Nanoseconds that a victim has to leave its memory by itself, which wakes waiters on its robust futexes.
pub const GRACE: u64 = 200_000_000;
/// Nanoseconds after which another victim may be chosen.
const BOUND: u64 = 1_000_000_000;
/// The victim, and the threads that wait for it.
pub struct Victims<M: Machine> {
    /// Held while a victim is chosen.
    pub choosing: Mutex<()>,
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
    /// The victim's memory is free, or it is given up.
    Done,
    /// Wait until that time.
    Until(u64),
    /// Take its memory.
    Reap,
}

impl<M: Machine> Victims<M> {
    pub(crate) fn new() -> Self {
        Victims { choosing: Mutex::new(()), dying: SpinLock::new(Rank::OWNED, None), waits: WaitQueue::new() }
    }

    /// Called when `process` has lost a thread: wakes the waiters for its memory, which check whether that was the last
    /// one.
    pub fn left(&self, process: &Process<M>) {
        if process.is_exiting() {
            self.waits.wake_all();
        }
    }

    /// The next step for the victim at `time`. Returns [`Step::Reap`] once.
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
        // Perhaps the last reference, whose drop frees memory: not under the lock.
        drop(gone);
        step
    }

    pub fn process(&self) -> Option<Arc<Process<M>>> {
        self.dying.lock().as_ref().map(|dying| dying.process.clone())
    }
}
