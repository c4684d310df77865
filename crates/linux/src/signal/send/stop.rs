//! Stopping and going on: job control.

use crate::machine::Machine;
use crate::process::Report;
use crate::process::thread::{Thread, work};
use crate::signal::action::flag;
use crate::signal::info::{Detail, SigInfo, code};
use crate::signal::set::Signal;
use crate::{Linux, Process};
use core::sync::atomic::Ordering;
use quire_heap::Arc;

/// Begins to stop the whole process of `thread`, the caller, which took `signal`: every thread stops on its way to user mode, the
/// last one tells the parent. Nothing happens where a SIGCONT came after that signal was taken: it has found nothing to take back.
pub(crate) fn begin<M: Machine>(linux: &Linux<M>, thread: &Thread<M>, signal: Signal) {
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

/// Stops the calling thread until its process goes on or ends.
pub(crate) fn stop_here<M: Machine>(thread: &Thread<M>) {
    let process = &thread.process;
    thread.work.fetch_and(!work::STOP, Ordering::AcqRel);
    // Before anybody is told: a parent that ends at that looks whether there are any.
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
        tell_parent(process, Report::Stopped(signal));
    }
    let _ended =
        process.continued.wait_until(None, || thread.killed(), || process.job.lock().stopping.is_none().then_some(()));
    thread.linux.stopped.fetch_sub(1, Ordering::Relaxed);
    let mut job = process.job.lock();
    job.stopped_threads = job.stopped_threads.saturating_sub(1);
}

/// A thread that ends may be the last one that the others' stop was waiting for.
pub(crate) fn thread_left<M: Machine>(process: &Arc<Process<M>>, remaining: usize) {
    let all_stopped = {
        let job = process.job.lock();
        (remaining > 0 && job.stopped_threads == remaining).then_some(job.stopping).flatten()
    };
    if let Some(signal) = all_stopped {
        tell_parent(process, Report::Stopped(signal));
    }
}

/// SIGCONT: a process that is stopped, or about to, goes on.
pub(crate) fn go_on<M: Machine>(process: &Process<M>) {
    let was_stopped = {
        let mut job = process.job.lock();
        job.stopping.take().is_some() && job.stopped_threads > 0
    };
    process.continued.wake_all();
    if was_stopped {
        tell_parent(process, Report::Continued);
    }
}

/// Leaves a report for `wait4` with the parent, and sends SIGCHLD where the parent wants that.
fn tell_parent<M: Machine>(process: &Process<M>, report: Report) {
    let Some(parent) = process.parent() else { return };
    {
        let mut family = parent.family.lock();
        if !family.children.has(process) {
            return;
        }
        // It may have gone on, or stopped again, since: what came later was told under this lock, or will be.
        if process.job.lock().stopping.is_some() != matches!(report, Report::Stopped(_)) {
            return;
        }
        family.reports.retain(|(pid, _)| *pid != process.pid);
        // Without memory the parent misses it, as it does where reports follow each other before it looks.
        let _told = family.reports.try_push((process.pid, report));
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
