//! The limit on CPU time, `RLIMIT_CPU`, and timers on CPU time.
//!
//! No clock tick checks the limit or the timers. Instead, a process with the limit or with timers on CPU time has one
//! timer on real time. This timer is set to the earliest moment at which a limit can be reached. That is the remaining
//! CPU time, divided by the number of threads that can run at once. When the timer expires, a thread of the process
//! sums up the CPU time and sets the timer again.
//!
//! The accounted time of a thread in user mode ends at its last entry to the kernel. So if the process has several
//! threads, the CPUs that run the other threads are interrupted first. The CPU times are summed up a little later, when
//! the timer expires again.

use crate::machine::Machine;
use crate::process::limits::{INFINITY, Limit, which};
use crate::process::thread::work;
use crate::process::timers::interval::Timers;
use crate::process::timers::posix::{PosixTimers, send_signal};
use crate::process::usage::Usage;
use crate::signal::{SigInfo, Signal};
use crate::time::SECOND;
use crate::{Linux, Process};
use quire_sync::atomic::{AtomicBool, AtomicU64, Ordering};
use quire_task::Thread as Task;

/// The state of a process for its limit on CPU time and its timers on CPU time.
pub struct CpuLimit<M: Machine> {
    pub timers: Timers<M>,
    /// The CPUs of the other threads were interrupted, so the next expiry sums up the CPU time.
    pub interrupted: AtomicBool,
    /// The CPU time at the last sum, and the timer's length that was set then. Both are only hints for the next
    /// setting, and are stored after each sum.
    pub used: AtomicU64,
    pub wait: AtomicU64,
}

impl<M: Machine> Default for CpuLimit<M> {
    fn default() -> Self {
        Self::new()
    }
}

impl<M: Machine> CpuLimit<M> {
    /// The state of a process without a limit.
    pub fn new() -> Self {
        CpuLimit {
            timers: Timers::new(),
            interrupted: AtomicBool::new(false),
            used: AtomicU64::new(0),
            wait: AtomicU64::new(0),
        }
    }

    /// Makes `me`, the calling thread, sum up the CPU time of its process before it returns to user mode.
    pub fn count_soon(&self, me: &Task<M>) {
        self.wait.store(0, Ordering::Relaxed);
        self.timers.fire();
        if let Some(thread) = me.payload() {
            thread.work.fetch_or(work::TIMER, Ordering::AcqRel);
        }
    }

    /// Makes the first thread of `process` that notices the request sum up the CPU time. Callers in other processes use
    /// this method, because only a process's own threads set its timer. An ending process cancels the timer once, so no
    /// other process may set it.
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

/// The shortest setting of the timer, in nanoseconds. A sum costs little compared with this time.
const LEAST: u64 = 1_000_000;
/// The longest setting, in nanoseconds, if the process was nearly idle since the last sum. The limit is short, because
/// the process could begin to run at any time.
const MOST_IDLE: u64 = 100_000_000;
/// The longest setting, in nanoseconds, for a nearly idle process with armed timers on CPU time. It bounds how late
/// these timers may expire.
const MOST_IDLE_WITH_TIMERS: u64 = 10_000_000;
/// A process is nearly idle if it used less than 1/16 of the time that passed.
const IDLE: u64 = 16;

impl<M: Machine> CpuLimit<M> {
    /// Sums up the CPU time if the timer has expired. Called by a thread of `process`.
    pub fn see_to(&self, linux: &'static Linux<M>, process: &Process<M>) {
        if self.timers.take_fired() {
            self.count(linux, process);
        }
    }

    /// Sums up the CPU time if `process` has a limit, because the limit can be reached sooner with one more thread.
    /// Called by each new thread.
    #[inline]
    pub fn thread_begins(&self, linux: &'static Linux<M>, process: &Process<M>) {
        if process.soft_limit(which::CPU) != INFINITY || counting(process).is_some() {
            self.count(linux, process);
        }
    }

    /// Called when the limit of `process` has changed. If the caller is in another process, a thread of `process` does
    /// the work.
    pub fn changed(&self, linux: &'static Linux<M>, process: &Process<M>) {
        if process.is_callers() {
            self.count(linux, process);
            return;
        }
        self.count_in_all_threads(linux, process);
    }

    /// Sums up the CPU time of `process`, which is the caller's. Sends the signals that are due, and sets the timer.
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
            let changes = || process.posix_timers.get().map(|timers| timers.cpu_changes.load(Ordering::Acquire));
            let (limit, before) = (process.limit(which::CPU), changes());
            let wait = self.due(linux, process, limit, threads as u64);
            self.timers.set(linux, me.to_ref(), wait, 0);
            let now = process.limit(which::CPU);
            // If one of these values differs, another thread changed the limit or a timer, or began, since the loop
            // read them. The timer that it set may have been overwritten above, so the loop sets the timer again.
            let threads_now = process.threads.lock().len();
            if (now == limit && changes() == before && threads_now <= threads) || process.is_exiting() {
                return;
            }
            threads = threads_now;
        }
    }

    /// Sends the signals that are due. Returns the nanoseconds until a limit or timer can be reached; 0 if there is
    /// none.
    fn due(&self, linux: &'static Linux<M>, process: &Process<M>, limit: Limit, threads: u64) -> u64 {
        let timers = counting(process);
        if limit.soft == INFINITY && timers.is_none() {
            return 0;
        }
        let usage = process.usage();
        let used = usage.user + usage.system;
        let mut left = Left { of_process: u64::MAX, of_thread: u64::MAX };
        if limit.soft != INFINITY {
            match limit_left(linux, process, limit, used) {
                Some(rest) => left.of_process = rest,
                None => return 0,
            }
        }
        if let Some(timers) = timers {
            left.look(linux, process, timers, &usage);
        }
        if left.of_process == u64::MAX && left.of_thread == u64::MAX {
            return 0;
        }
        let before = self.used.swap(used, Ordering::Relaxed);
        let waited = self.wait.load(Ordering::Relaxed);
        let most = if timers.is_some() { MOST_IDLE_WITH_TIMERS } else { MOST_IDLE };
        let idle = used.saturating_sub(before).saturating_mul(IDLE) < waited;
        let least = if idle { (2 * waited).clamp(LEAST, most) } else { LEAST };
        let at_once = threads.clamp(1, linux.scheduler.cpus() as u64);
        let wait = (left.of_process / at_once).min(left.of_thread).max((least / at_once).max(LEAST));
        self.wait.store(wait.min(most), Ordering::Relaxed);
        wait
    }
}

/// The POSIX timers of `process`; `None` if none is armed on CPU time.
fn counting<M: Machine>(process: &Process<M>) -> Option<&PosixTimers<M>> {
    process.posix_timers.get().filter(|timers| timers.counts_cpu_time())
}

/// Sends the signals of the limit if `used` has reached it. Returns the remaining CPU time in nanoseconds; `None` if
/// the process is killed.
fn limit_left<M: Machine>(linux: &'static Linux<M>, process: &Process<M>, limit: Limit, used: u64) -> Option<u64> {
    let Limit { soft, hard } = limit;
    let reached = |limit: u64| limit != INFINITY && used >= limit.saturating_mul(SECOND);
    if reached(hard) {
        linux.kill_process(process, Signal::KILL);
        return None;
    }
    let mut next = soft;
    if reached(soft) {
        let _merged = linux.signal_process(process, SigInfo::kernel(Signal::XCPU));
        next = soft + 1;
        // As on Linux, the next signal follows after one more second of CPU time, and the soft limit shows the raised
        // value.
        process.raise_cpu_limit(soft);
    }
    Some(next.min(hard).saturating_mul(SECOND).saturating_sub(used))
}

/// The CPU time, in nanoseconds, until the next timer expires.
struct Left {
    /// For timers on the CPU time of all threads together.
    of_process: u64,
    /// For timers on the CPU time of one thread.
    of_thread: u64,
}

impl Left {
    /// Sends the signals of expired timers, and lowers the remaining times to the next expiries.
    fn look<M: Machine>(
        &mut self,
        linux: &'static Linux<M>,
        process: &Process<M>,
        timers: &PosixTimers<M>,
        usage: &Usage,
    ) {
        let used = usage.user + usage.system;
        for (which, used, signal) in [(0, usage.user, Signal::VTALRM), (1, used, Signal::PROF)] {
            let (passes, rest) = timers.interval_passes(which, used);
            if passes {
                let _merged = linux.signal_process(process, SigInfo::kernel(signal));
            }
            self.of_process = self.of_process.min(rest.unwrap_or(u64::MAX));
        }
        let mut clock = 0;
        // Visits each clock once: the process's clock, then the clocks of the threads.
        while let Some((thread, _)) = timers.first_expiry(clock) {
            let used = if thread == 0 { Some(used) } else { process.cpu_time_of(thread) };
            if let Some(used) = used {
                while let Some((timer, signal)) = timers.next_on(thread, used) {
                    send_signal(linux, process, &timer, signal);
                }
                let next = timers.first_expiry(thread).filter(|(of, _)| *of == thread);
                let rest = next.map_or(u64::MAX, |(_, expires)| expires.saturating_sub(used));
                let least = if thread == 0 { &mut self.of_process } else { &mut self.of_thread };
                *least = rest.min(*least);
            }
            clock = thread + 1;
        }
    }
}
