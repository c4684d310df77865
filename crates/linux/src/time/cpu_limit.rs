//! The limit on CPU time, `RLIMIT_CPU`.
//!
//! No tick checks it. A process with the limit has a timer, set to the earliest moment at which the limit can be
//! reached. That is the remaining time, divided by the threads that can run at once. When the timer expires, a thread
//! of the process counts, and sets it anew. The count of a thread in user mode ends at its last entry to the kernel. So
//! if there are several threads, the CPUs that run the others are interrupted first, and the count follows a little
//! later.

use super::SECOND;
use crate::machine::Machine;
use crate::process::cpu_limit::CpuLimit;
use crate::process::limits::{INFINITY, which};
use crate::process::thread::work;
use crate::signal::{SigInfo, Signal};
use crate::{Linux, Process};
use core::sync::atomic::Ordering;

/// The shortest setting of the timer: a count costs little against it.
const LEAST: u64 = 1_000_000;
/// The longest setting while the process was nearly idle since the last count: it could begin to run at once.
const MOST_IDLE: u64 = 100_000_000;
/// Nearly idle: it used less than this part of the time that passed.
const IDLE: u64 = 16;

impl<M: Machine> CpuLimit<M> {
    /// Called by a thread of `process`: counts if the timer expired.
    pub(crate) fn see_to(&self, linux: &'static Linux<M>, process: &Process<M>) {
        if self.timers.take_fired() {
            self.count(linux, process);
        }
    }

    /// Called by each new thread: counts if `process` has the limit, since with one more thread it can be reached
    /// sooner.
    #[inline]
    pub(crate) fn thread_begins(&self, linux: &'static Linux<M>, process: &Process<M>) {
        if process.soft_limit(which::CPU) != INFINITY {
            self.count(linux, process);
        }
    }

    /// Called when the limit of `process` was changed. If it is not the caller's, the process counts for itself.
    pub(crate) fn changed(&self, linux: &'static Linux<M>, process: &Process<M>) {
        if process.is_callers() {
            self.count(linux, process);
            return;
        }
        // Only its own threads set its timer, because an ending process cancels it once.
        self.timers.fire();
        for task in process.threads.lock().iter() {
            if let Some(thread) = task.payload() {
                thread.work.fetch_or(work::TIMER, Ordering::AcqRel);
                linux.poke(task);
            }
        }
    }

    /// Counts the CPU time of `process`, the caller's. Sends due signals, and sets the timer.
    #[cold]
    fn count(&self, linux: &'static Linux<M>, process: &Process<M>) {
        let me = linux.scheduler.current();
        let mut threads = {
            let threads = process.threads.lock();
            let count = threads.len();
            if count > 1 && !self.interrupted.swap(true, Ordering::Relaxed) {
                for task in threads.iter().filter(|task| task.is_running()) {
                    let home = task.home();
                    if home != quire_sync::current_cpu() {
                        quire_task::Machine::kick(linux.machine, home);
                    }
                }
                drop(threads);
                self.timers.set(linux, me.to_ref(), LEAST, 0);
                return;
            }
            count
        };
        self.interrupted.store(false, Ordering::Relaxed);
        loop {
            let limit = process.limit(which::CPU);
            let wait = self.due(linux, process, limit.soft, limit.hard, threads as u64);
            self.timers.set(linux, me.to_ref(), wait, 0);
            let now = process.limit(which::CPU);
            // Otherwise the limit was changed meanwhile, or a thread began, and this setting may have replaced its
            // timer.
            let threads_now = process.threads.lock().len();
            if (now == limit && threads_now <= threads) || process.is_exiting() {
                return;
            }
            threads = threads_now;
        }
    }

    /// Sends due signals. Returns the time until the limit can be reached, or 0 if there is no limit any more.
    fn due(&self, linux: &'static Linux<M>, process: &Process<M>, soft: u64, hard: u64, threads: u64) -> u64 {
        if soft == INFINITY {
            return 0;
        }
        let usage = process.usage();
        let used = usage.user + usage.system;
        let reached = |limit: u64| limit != INFINITY && used >= limit.saturating_mul(SECOND);
        if reached(hard) {
            linux.kill_process(process, Signal::KILL);
            return 0;
        }
        let mut next = soft;
        if reached(soft) {
            let _merged = linux.signal_process(process, SigInfo::kernel(Signal::XCPU));
            next = soft + 1;
            // As on Linux, the next signal comes a second later, and the limit shows it.
            process.raise_cpu_limit(soft);
        }
        let left = next.min(hard).saturating_mul(SECOND).saturating_sub(used);
        let before = self.used.swap(used, Ordering::Relaxed);
        let waited = self.wait.load(Ordering::Relaxed);
        let idle = used.saturating_sub(before).saturating_mul(IDLE) < waited;
        let least = if idle { (2 * waited).clamp(LEAST, MOST_IDLE) } else { LEAST };
        let at_once = threads.clamp(1, linux.scheduler.cpus() as u64);
        let wait = (left / at_once).max((least / at_once).max(LEAST));
        self.wait.store(wait.min(MOST_IDLE), Ordering::Relaxed);
        wait
    }
}
