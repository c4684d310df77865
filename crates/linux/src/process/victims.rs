//! The process that ends because memory is out, and the threads that wait for its memory ([`victim`](crate::memory::victim) chooses it).

use super::Process;
use crate::machine::Machine;
use core::sync::atomic::Ordering;
use quire_heap::Arc;
use quire_sync::{Mutex, Rank, SpinLock, WaitQueue};

/// Nanoseconds that a victim has for leaving its memory by itself, which wakes those who wait for its robust futexes.
pub(crate) const GRACE: u64 = 200_000_000;
/// Nanoseconds after which another victim may be chosen.
const BOUND: u64 = 1_000_000_000;
/// The victim, and those who wait for it.
pub(crate) struct Victims<M: Machine> {
    /// Held while a victim is chosen.
    pub choosing: Mutex<()>,
    pub dying: SpinLock<Option<Dying<M>>>,
    pub waits: WaitQueue,
}

pub(crate) struct Dying<M: Machine> {
    pub process: Arc<Process<M>>,
    pub since: u64,
    pub reaped: bool,
}

/// What a waiter for the victim has to do.
pub(crate) enum Step {
    /// The victim's memory is back, or it is given up.
    Done,
    /// Wait until then.
    Until(u64),
    /// Take its memory.
    Reap,
}

impl<M: Machine> Victims<M> {
    pub fn new() -> Self {
        Victims { choosing: Mutex::new(()), dying: SpinLock::new(Rank::OWNED, None), waits: WaitQueue::new() }
    }

    /// `process` has lost a thread. Those who wait for its memory look whether that was the last one.
    pub fn left(&self, process: &Process<M>) {
        if process.is_exiting() {
            self.waits.wake_all();
        }
    }

    /// What there is to do for the victim at `time`. Says [`Step::Reap`] once.
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
        // Perhaps the last count, which frees: not under the lock.
        drop(gone);
        step
    }

    pub fn process(&self) -> Option<Arc<Process<M>>> {
        self.dying.lock().as_ref().map(|dying| dying.process.clone())
    }
}
