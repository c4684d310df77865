//! A process's state for its limit on CPU time. [`cpu_limit`](crate::time::cpu_limit) uses it.

use super::Process;
use super::thread::work;
use super::timers::Timers;
use crate::Linux;
use crate::machine::Machine;
use quire_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quire_task::Thread as Task;

/// A process's state for its limit on CPU time.
pub struct CpuLimit<M: Machine> {
    pub(crate) timers: Timers<M>,
    /// The other threads were interrupted, and are counted next.
    pub(crate) interrupted: AtomicBool,
    /// The CPU time at the last count, and the timer's length set then. Both are hints, written by each count.
    pub(crate) used: AtomicU64,
    pub(crate) wait: AtomicU64,
}

impl<M: Machine> Default for CpuLimit<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Machine> CpuLimit<M> {
    /// No limit.
    pub fn new() -> Self {
        CpuLimit {
            timers: Timers::new(),
            interrupted: AtomicBool::new(false),
            used: AtomicU64::new(0),
            wait: AtomicU64::new(0),
        }
    }

    /// Makes `me`, the calling thread, count the CPU time of its process before it goes to user mode.
    pub(crate) fn count_soon(&self, me: &Task<M>) {
        self.wait.store(0, Ordering::Relaxed);
        self.timers.fire();
        if let Some(thread) = me.payload() {
            thread.work.fetch_or(work::TIMER, Ordering::AcqRel);
        }
    }

    /// Makes `process` count its CPU time: the first thread that sees it does. For callers of other processes, because
    /// only its own threads set the process's timer, which an ending process cancels once.
    pub(crate) fn count_in_all_threads(&self, linux: &Linux<M>, process: &Process<M>) {
        self.timers.fire();
        for task in process.threads.lock().iter() {
            if let Some(thread) = task.payload() {
                thread.work.fetch_or(work::TIMER, Ordering::AcqRel);
                linux.poke(task);
            }
        }
    }
}
