//! Stopping and continuing: job control.

use crate::machine::Machine;
use crate::process::Report;
use crate::process::thread::{Thread, work};
use crate::signal::action::flag;
use crate::signal::info::{Detail, SigInfo, code};
use crate::signal::set::Signal;
use crate::{Linux, Process};
use quire_heap::Arc;
use quire_sync::atomic::Ordering;

/// Begins to stop all threads of the process of `thread`, the caller, which removed `signal` from a queue. Every thread
/// stops on its way to user mode, and the last one notifies the parent. Does nothing if a SIGCONT was sent since the
/// removal.
pub fn begin<M: Machine>(linux: &Linux<M>, thread: &Thread<M>, signal: Signal) {
    let process = &thread.process;
    let threads = process.threads.lock();
    if !thread.stop_taken.swap(false, Ordering::Relaxed) {
        return;
    }
    {
        let mut job = process.job.lock();
        if job.stopping.is_some() || process.is_exiting() {
            return;
        }
        job.stopping = Some(signal.number());
    }
    for task in threads.iter() {
        if let Some(thread) = task.payload() {
            thread.work.fetch_or(work::STOP, Ordering::AcqRel);
            linux.poke(task);
        }
    }
}

/// Stops the calling thread until its process continues or ends.
pub fn stop_here<M: Machine>(thread: &Thread<M>) {
    let process = &thread.process;
    thread.work.fetch_and(!work::STOP, Ordering::AcqRel);
    // The count is incremented before the parent is notified. If the parent then ends, it reads this count to find
    // orphaned groups with stopped members.
    thread.linux.stopped.fetch_add(1, Ordering::Relaxed);
    let all_stopped = {
        let threads = process.threads.lock();
        let mut job = process.job.lock();
        if job.stopping.is_none() {
            thread.linux.stopped.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        job.stopped_threads += 1;
        (job.stopped_threads == threads.len()).then_some(job.stopping).flatten()
    };
    if let Some(signal) = all_stopped {
        report_to_parent(process, Report::Stopped(signal));
    }
    let _ended =
        process.continued.wait_until(None, || thread.killed(), || process.job.lock().stopping.is_none().then_some(()));
    thread.linux.stopped.fetch_sub(1, Ordering::Relaxed);
    let mut job = process.job.lock();
    job.stopped_threads = job.stopped_threads.saturating_sub(1);
}

/// Called when a thread ends. If all remaining threads are stopped, the process is now stopped, and the parent is
/// notified.
pub fn thread_left<M: Machine>(process: &Arc<Process<M>>, remaining: usize) {
    let all_stopped = {
        let job = process.job.lock();
        (remaining > 0 && job.stopped_threads == remaining).then_some(job.stopping).flatten()
    };
    if let Some(signal) = all_stopped {
        report_to_parent(process, Report::Stopped(signal));
    }
}

/// Continues a process that is stopped or about to stop, for SIGCONT.
pub fn go_on<M: Machine>(process: &Process<M>) {
    let was_stopped = {
        let mut job = process.job.lock();
        job.stopping.take().is_some() && job.stopped_threads > 0
    };
    process.continued.wake_all();
    if was_stopped {
        report_to_parent(process, Report::Continued);
    }
}

/// Stores a report for the parent's `wait4`, and sends SIGCHLD if the parent wants it.
fn report_to_parent<M: Machine>(process: &Process<M>, report: Report) {
    let Some(parent) = process.parent() else { return };
    {
        let mut family = parent.family.lock();
        if !family.children.has(process) {
            return;
        }
        // The process may have continued or stopped again since the change that `report` describes. Then this report is
        // dropped. The thread that made the later change reports that change, with the parent's `family` lock held.
        if process.job.lock().stopping.is_some() != matches!(report, Report::Stopped(_)) {
            return;
        }
        family.reports.retain(|(pid, _)| *pid != process.pid);
        // Without memory the parent misses this report. The parent also misses a report that a later report replaces
        // before the parent waits.
        let _reported = family.reports.try_push((process.pid, report));
    }
    let wanted = parent.with_actions(|actions| actions.get(Signal::CHLD)).flags & flag::NOCLDSTOP == 0;
    if wanted {
        let (code, status) = match report {
            Report::Stopped(signal) => (code::CLD_STOPPED, i32::from(signal)),
            Report::Continued => (code::CLD_CONTINUED, i32::from(Signal::CONT.number())),
        };
        let usage = process.usage();
        let info = SigInfo {
            signal: Signal::CHLD,
            code,
            errno: 0,
            detail: Detail::Child {
                pid: process.pid,
                uid: process.credentials().real_user,
                status,
                user: crate::time::ticks(usage.user),
                system: crate::time::ticks(usage.system),
            },
        };
        let _merged = process.linux.signal_process(&parent, info);
    }
    parent.child_events.wake_all();
}
