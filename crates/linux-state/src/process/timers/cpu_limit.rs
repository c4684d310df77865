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
use quire_sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use quire_task::{Thread as Task, ThreadRef};

/// The state of a process for its limit on CPU time and its timers on CPU time.
pub struct CpuLimit<M: Machine> {
    pub timers: Timers<M>,
    /// The CPUs of the other threads were interrupted, so the next expiry sums up the CPU time.
    pub interrupted: AtomicBool,
    /// The number of signals that were sent. Consecutive signals go to different threads that run.
    turn: AtomicU32,
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
            turn: AtomicU32::new(0),
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
    pub fn see_to(&self, linux: &'static Linux<M>, process: &Process<M>, seen: Seen) {
        if self.timers.take_fired() {
            self.count(linux, process, seen);
        }
    }

    /// A thread of `process` that runs or waits for a CPU, and may receive `signal`. So the signal interrupts a thread
    /// that uses the CPU time, as profilers expect. If there are several, they are chosen in turn. A calling thread
    /// that was only woken for the timer counts as asleep.
    fn runner(&self, process: &Process<M>, seen: Seen, signal: Signal) -> Option<ThreadRef<M>> {
        let me = process.linux.scheduler.current();
        let threads = process.threads.lock();
        let wants = |task: &&ThreadRef<M>| {
            let runs = match core::ptr::eq(&***task, &*me) {
                true => seen == Seen::Running,
                false => task.is_runnable(),
            };
            runs && task.payload().as_ref().is_some_and(|thread| !thread.blocked().has(signal))
        };
        let count = threads.iter().filter(wants).count();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) as usize;
        // The number of runnable threads may change between the two walks.
        let chosen = threads.iter().filter(wants).nth(turn.checked_rem(count)?);
        chosen.or_else(|| threads.iter().find(wants)).cloned()
    }

    /// Sums up the CPU time if `process` has a limit, because the limit can be reached sooner with one more thread.
    /// Called by each new thread.
    #[inline]
    pub fn thread_begins(&self, linux: &'static Linux<M>, process: &Process<M>) {
        if process.soft_limit(which::CPU) != INFINITY || counting(process).is_some() {
            self.count(linux, process, Seen::Running);
        }
    }

    /// Called when the limit of `process` has changed. If the caller is in another process, a thread of `process` does
    /// the work.
    pub fn changed(&self, linux: &'static Linux<M>, process: &Process<M>) {
        if process.is_callers() {
            self.count(linux, process, Seen::Running);
            return;
        }
        self.count_in_all_threads(linux, process);
    }

    /// Sums up the CPU time of `process`, which is the caller's. Sends the signals that are due, and sets the timer.
    #[cold]
    fn count(&self, linux: &'static Linux<M>, process: &Process<M>, seen: Seen) {
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
            let wait = self.due(process, seen, limit, threads as u64);
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
    fn due(&self, process: &Process<M>, seen: Seen, limit: Limit, threads: u64) -> u64 {
        let timers = counting(process);
        if limit.soft == INFINITY && timers.is_none() {
            return 0;
        }
        let usage = process.usage();
        let used = usage.user + usage.system;
        let mut left = Left { of_process: u64::MAX, of_thread: u64::MAX };
        if limit.soft != INFINITY {
            match self.limit_left(process, seen, limit, used) {
                Some(rest) => left.of_process = rest,
                None => return 0,
            }
        }
        if let Some(timers) = timers {
            self.look(&mut left, process, seen, timers, &usage);
        }
        if left.of_process == u64::MAX && left.of_thread == u64::MAX {
            return 0;
        }
        let before = self.used.swap(used, Ordering::Relaxed);
        let waited = self.wait.load(Ordering::Relaxed);
        let most = if timers.is_some() { MOST_IDLE_WITH_TIMERS } else { MOST_IDLE };
        let idle = used.saturating_sub(before).saturating_mul(IDLE) < waited;
        let least = if idle { (2 * waited).clamp(LEAST, most) } else { LEAST };
        let at_once = threads.clamp(1, process.linux.scheduler.cpus() as u64);
        let wait = (left.of_process / at_once).min(left.of_thread).max((least / at_once).max(LEAST));
        self.wait.store(wait.min(most), Ordering::Relaxed);
        wait
    }
}

/// The POSIX timers of `process`; `None` if none is armed on CPU time.
fn counting<M: Machine>(process: &Process<M>) -> Option<&PosixTimers<M>> {
    process.posix_timers.get().filter(|timers| timers.counts_cpu_time())
}

/// The place where a thread has found that a timer expired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// The thread runs: it is on its way to user mode.
    Running,
    /// The thread waits. It was woken for the timer, or is about to sleep.
    Asleep,
}

/// The CPU time, in nanoseconds, until the next timer expires.
struct Left {
    /// For timers on the CPU time of all threads together.
    of_process: u64,
    /// For timers on the CPU time of one thread.
    of_thread: u64,
}

impl<M: Machine> CpuLimit<M> {
    /// Sends `signal` to a thread that runs, or to any thread if none runs.
    fn send(&self, process: &Process<M>, seen: Seen, signal: Signal) {
        let runner = self.runner(process, seen, signal);
        let _merged = process.linux.signal_process_at(process, runner.as_deref(), SigInfo::kernel(signal));
    }

    /// Sends the signals of the limit if `used` has reached it. Returns the remaining CPU time in nanoseconds; `None`
    /// if the process is killed.
    fn limit_left(&self, process: &Process<M>, seen: Seen, limit: Limit, used: u64) -> Option<u64> {
        let Limit { soft, hard } = limit;
        let reached = |limit: u64| limit != INFINITY && used >= limit.saturating_mul(SECOND);
        if reached(hard) {
            process.linux.kill_process(process, Signal::KILL);
            return None;
        }
        let mut next = soft;
        if reached(soft) {
            self.send(process, seen, Signal::XCPU);
            next = soft + 1;
            // As on Linux, the next signal follows a second later, and the soft limit shows the raised value.
            process.raise_cpu_limit(soft);
        }
        Some(next.min(hard).saturating_mul(SECOND).saturating_sub(used))
    }

    /// Sends the signals of expired timers, and lowers the remaining times in `left` to the next expiries.
    fn look(&self, left: &mut Left, process: &Process<M>, seen: Seen, timers: &PosixTimers<M>, usage: &Usage) {
        let linux = process.linux;
        let used = usage.user + usage.system;
        for (which, used, signal) in [(0, usage.user, Signal::VTALRM), (1, used, Signal::PROF)] {
            let (passes, rest) = timers.interval_passes(which, used);
            if passes {
                self.send(process, seen, signal);
            }
            left.of_process = left.of_process.min(rest.unwrap_or(u64::MAX));
        }
        let mut clock = 0;
        // Visits each clock once: the process's clock, then the clocks of the threads.
        while let Some((thread, _)) = timers.first_expiry(clock) {
            let used = if thread == 0 { Some(used) } else { process.cpu_time_of(thread) };
            if let Some(used) = used {
                while let Some((timer, signal)) = timers.next_on(thread, used) {
                    let first = match thread {
                        0 => self.runner(process, seen, signal.signal),
                        thread => process.threads.lock().get(thread).cloned(),
                    };
                    send_signal(linux, process, &timer, first.as_deref(), signal);
                }
                let next = timers.first_expiry(thread).filter(|(of, _)| *of == thread);
                let rest = next.map_or(u64::MAX, |(_, expires)| expires.saturating_sub(used));
                let least = if thread == 0 { &mut left.of_process } else { &mut left.of_thread };
                *least = rest.min(*least);
            }
            clock = thread + 1;
        }
    }
}
