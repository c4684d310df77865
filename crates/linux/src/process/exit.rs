//! The end of a thread, and of a process with its last thread.

use crate::futex;
use crate::process::wait;
use quire_heap::Arc;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::{End, Machine};
use quire_linux_state::process::stage::Stage;
use quire_linux_state::process::thread::{Thread, work};
use quire_linux_state::process::users::UserCharge;
use quire_linux_state::process::{DUMPED, Process, usage};
use quire_linux_state::signal::action::{Action, flag};
use quire_linux_state::signal::info::code;
use quire_linux_state::signal::send::{notify_signal_files, stop};
use quire_linux_state::signal::{Detail, SigInfo, SigSet, Signal};
use quire_linux_state::{Ctx, Linux};
use quire_sync::atomic::Ordering;

/// `exit`: ends the calling thread.
pub fn sys_exit<M: Machine>(ctx: &mut Ctx<'_, M>, status: i32) -> Result<usize, Errno> {
    let process = ctx.process();
    // The process reports the status of its first thread, unless `exit_group` sets another.
    if ctx.thread.tid() == process.pid {
        // `exit_group` sets the status under the lock `threads` too, so the two stores do not mix.
        let _threads = process.threads.lock();
        if !process.is_exiting() {
            process.status.store((status & 0xff) << 8, Ordering::Release);
        }
    }
    ctx.thread.work.fetch_or(work::KILL, Ordering::AcqRel);
    Ok(0)
}

/// `exit_group`: ends the process.
pub fn sys_exit_group<M: Machine>(ctx: &mut Ctx<'_, M>, status: i32) -> Result<usize, Errno> {
    ctx.process().begin_exit((status & 0xff) << 8);
    Ok(0)
}

/// Ends the calling thread. The function does not return, so its callers must own nothing that has to be dropped.
pub(crate) fn exit_thread<M: Machine>(linux: &'static Linux<M>) -> ! {
    finish(linux, linux.current());
    linux.scheduler.exit()
}

/// Does all the work of a thread's end, except leaving the CPU. This is a separate function, so that its local
/// references are dropped before the thread leaves the CPU.
fn finish<M: Machine>(linux: &'static Linux<M>, thread: &Thread<M>) {
    let process = &thread.process;
    let tid = thread.tid();
    linux.scheduler.leave_crowd();
    let mut used = usage::of_thread(linux, &linux.scheduler.current());
    if process.threads.lock().last_leaves(thread) {
        // The peak must be read now, because the last thread leaves the address space below.
        // SAFETY: the value belongs to the calling thread.
        used.peak_pages = unsafe { thread.space.get() }.map_or(0, |space| space.peak_resident());
    }
    leave_memory(linux, thread);
    // SAFETY: the thread itself runs this, and holds no view of its undos.
    drop(unsafe { thread.undos.replace(None) });
    // SAFETY: the thread itself runs this, and holds no view of its tables.
    let (files, fs, seen) = unsafe { (thread.files.replace(None), thread.fs.replace(None), thread.seen.replace(None)) };
    drop((files, fs, seen));
    process.accounts.lock().ended_threads.add(&used);
    if tid == process.pid {
        let name = *thread.name.lock();
        *process.last_name.lock() = name;
    }
    if let Some(timers) = process.timers.get() {
        timers.thread_ends(linux, process, thread);
    }
    if let Some(limit) = process.cpu_limit.get() {
        limit.timers.thread_ends(linux, process, thread);
    }
    if let Some(timers) = process.posix_timers.get() {
        timers.thread_ends(process, thread);
    }
    let (gone, remaining) = {
        let mut threads = process.threads.lock();
        (threads.leave(tid), threads.len())
    };
    // This is not the last reference, because the scheduler and the caller's stack still have references.
    drop(gone);
    linux.victims.left(process, linux.vm.frames().is_low());
    if remaining == 0 {
        end_process(linux, thread);
    } else {
        leave_user(linux, thread);
        hand_over_signals(linux, thread);
        stop::thread_left(process, remaining);
        process.thread_events.wake_all();
    }
    if tid != process.pid {
        linux.ids.forget_process(tid);
        linux.ids.release(tid);
    }
}

/// Leaves the address space, and releases a vfork parent.
fn leave_memory<M: Machine>(linux: &'static Linux<M>, thread: &Thread<M>) {
    notify_memory_waiters(linux, thread, true);
    // SAFETY: the value belongs to the calling thread.
    let space = unsafe { thread.space.get() }.map(|space| &**space);
    // SAFETY: the thread itself runs this. `leave_memory` does not use the view `space` after it has recorded the
    // space, and the space is dropped after the call.
    drop(thread.process.leave_memory(space, || unsafe { thread.space.enter(linux.machine, None) }));
    release_parent(thread);
}

/// Notifies waiters on futexes in the address space that the thread is about to leave. If `ends` is false, the thread
/// executes a program instead.
pub(crate) fn notify_memory_waiters<M: Machine>(linux: &'static Linux<M>, thread: &Thread<M>, ends: bool) {
    futex::robust::walk(linux, thread, ends);
    let clear = thread.clear_tid.swap(0, Ordering::AcqRel);
    // SAFETY: the value belongs to the calling thread.
    let shared = unsafe { thread.space.get() }.is_some_and(|space| Arc::strong_count(space) > 1);
    if clear != 0 && shared {
        // As on Linux, an invalid address is ignored.
        if quire_linux_state::user::UserMemory(linux.machine).write(clear, &0u32).is_ok() {
            let _none_waits = futex::wake_address(linux, thread, clear, 1);
        }
    }
}

/// Releases the parent that waits in vfork.
pub(crate) fn release_parent<M: Machine>(thread: &Thread<M>) {
    thread.released.store(true, Ordering::Release);
    thread.releases.wake_all();
}

/// Notifies another thread of pending signals of the process, because the senders may have notified only the ending
/// thread.
fn hand_over_signals<M: Machine>(linux: &'static Linux<M>, thread: &Thread<M>) {
    linux.notify_of_all(&thread.process, thread.process.pending.set().without(thread.blocked()));
}

/// Returns the thread's charge to its user. The charge of a process's first thread moves to the process, which becomes
/// a zombie. The thread's remaining CPU time counts for the kernel, because the user's record may be freed when the
/// charge is returned.
fn leave_user<M: Machine>(linux: &'static Linux<M>, thread: &Thread<M>) {
    // SAFETY: the thread itself runs this, and keeps the charge until it has left the user.
    let user_charge = unsafe {
        linux.scheduler.become_user(None);
        thread.user_charge.replace(UserCharge::root())
    };
    if thread.tid() == thread.process.pid {
        let none = core::mem::replace(&mut *thread.process.user_charge.lock(), user_charge);
        drop(none);
    }
}

/// Ends the process of `thread`, which is its last thread.
fn end_process<M: Machine>(linux: &'static Linux<M>, thread: &Thread<M>) {
    let process = &thread.process;
    process.exiting.store(true, Ordering::Release);
    if let Some(timers) = process.timers.get() {
        timers.end(linux);
    }
    if let Some(limit) = process.cpu_limit.get() {
        limit.timers.end(linux);
    }
    if let Some(timers) = process.posix_timers.get() {
        timers.process_ends();
    }
    if process.pid == 1 {
        let status = process.status.load(Ordering::Acquire);
        let end = match status & 0x7f {
            0 => End::Exit((status >> 8) as u8),
            signal => End::Signal(signal as u8),
        };
        linux.finish(end);
    }
    crate::ipc::revert_undos(process);
    let group = process.group();
    if group.session.id == process.pid {
        crate::file::session_ends(linux, &group.session);
    }
    give_children_away(linux, process);
    if linux.stopped.load(Ordering::Relaxed) != 0
        && let Some(parent) = process.parent()
    {
        group.hang_up_if_orphaned(&parent.group());
    }
    drop(group);
    // Charges for queued signals are returned before the parent is notified. So the charges are gone when the parent's
    // wait returns. SIGKILL stays queued, because a pending SIGKILL ends the thread's waits.
    let queued = SigSet(!SigSet::UNBLOCKABLE.0);
    thread.pending.discard(queued);
    process.pending.discard(queued);
    leave_user(linux, thread);
    report_to_parent(linux, process);
}

/// The process that adopts the children of `process`: the nearest ancestor that is a subreaper, or process 1.
pub(super) fn reaper_of<M: Machine>(process: &Process<M>) -> Option<Arc<Process<M>>> {
    let mut at = process.parent();
    while let Some(ancestor) = at {
        if ancestor.subreaper.load(Ordering::Relaxed) && !ancestor.is_exiting() {
            return Some(ancestor);
        }
        at = ancestor.parent();
    }
    process.linux.first.lock().clone()
}

/// Whether a process with this action for SIGCHLD gets no zombies, because the kernel reaps its children.
fn reaps_at_once(action: Action) -> bool {
    action.handler == 1 || action.flags & flag::NOCLDWAIT != 0
}

fn give_children_away<M: Machine>(linux: &'static Linux<M>, process: &Arc<Process<M>>) {
    {
        let mut family = process.family.lock();
        family.closed = true;
        family.reports = quire_heap::Vec::new();
        if family.children.is_empty() && family.zombies.is_empty() {
            return;
        }
    }
    let Some(mut reaper) = reaper_of(process) else { return };
    // The action is read while no family is locked.
    let reaps = |reaper: &Process<M>| reaps_at_once(reaper.with_actions(|all| all.get(Signal::CHLD)));
    let mut unwanted = reaps(&reaper);
    let mut zombies = false;
    loop {
        let mut mine = process.family.lock();
        let (child, zombie) = match mine.children.pop() {
            Some(child) => (child, false),
            None => match mine.zombies.pop() {
                Some(child) => (child, true),
                None => break,
            },
        };
        // Families are locked from descendants to ancestors, so two reparentings cannot wait for each other.
        let mut theirs = reaper.family.lock_nested();
        if theirs.closed && reaper.pid != 1 {
            // The reaper has ended too, so process 1 adopts the children. Process 1 exists until the machine stops.
            drop(theirs);
            let back = if zombie { &mut mine.zombies } else { &mut mine.children };
            let pushed = back.push(child);
            debug_assert!(pushed.is_ok());
            drop(mine);
            let first = linux.first.lock().clone();
            let Some(first) = first else { break };
            unwanted = reaps(&first);
            reaper = first;
            continue;
        }
        let old = child.replace_parent(Some(reaper.clone()));
        let reaped = zombie && unwanted;
        if !reaped {
            let place = if zombie { &mut theirs.zombies } else { &mut theirs.children };
            let pushed = place.push(child.clone());
            debug_assert!(pushed.is_ok());
        }
        // The end of an adopted child is reported by SIGCHLD. The signal is set under the new parent's family lock,
        // because `report_to_parent` reads it under that lock.
        child.exit_signal.store(Signal::CHLD.number(), Ordering::Relaxed);
        drop(theirs);
        drop(mine);
        drop(old);
        zombies |= zombie;
        let group = child.group();
        if reaped {
            wait::release(linux, &child);
        } else if let Ok(signal) = Signal::new(u64::from(child.parent_death_signal.load(Ordering::Relaxed))) {
            let _ignored = linux.signal_process(&child, process.as_sender(signal, process.credentials().real_user));
        }
        if linux.stopped.load(Ordering::Relaxed) != 0 {
            group.hang_up_if_orphaned(&process.group());
        }
    }
    if zombies {
        let _merged = linux.signal_process(&reaper, SigInfo::kernel(Signal::CHLD));
        reaper.child_events.wake_all();
    }
}

/// Reports the end of `process` to its parent. The process becomes a zombie, or is freed at once if the parent ignores
/// the end.
fn report_to_parent<M: Machine>(linux: &'static Linux<M>, process: &Arc<Process<M>>) {
    let own = process.usage();
    let status = process.status.load(Ordering::Acquire);
    let uid = process.credentials().real_user;
    loop {
        let Some(parent) = process.parent() else { return };
        let number = process.exit_signal.load(Ordering::Relaxed);
        let signal = Signal::new(u64::from(number));
        let action = parent.with_actions(|all| all.get(Signal::CHLD));
        let unwanted = signal == Ok(Signal::CHLD) && reaps_at_once(action);
        let info = |signal| {
            let (code, value) = match status & 0x7f {
                0 => (code::CLD_EXITED, status >> 8 & 0xff),
                by if status & DUMPED != 0 => (code::CLD_DUMPED, by),
                by => (code::CLD_KILLED, by),
            };
            let detail = Detail::Child {
                pid: process.pid,
                uid,
                status: value,
                user: quire_linux_state::time::ticks(own.user),
                system: quire_linux_state::time::ticks(own.system),
            };
            SigInfo { signal, code, errno: 0, detail }
        };
        let gone = {
            let mut family = parent.family.lock();
            // The process may have another parent now, or the signal may have changed since it was read. In both cases
            // the loop begins again.
            if process.exit_signal.load(Ordering::Relaxed) != number {
                continue;
            }
            let Some(node) = family.children.remove(process) else { continue };
            family.reports.retain(|(pid, _)| *pid != process.pid);
            if unwanted {
                Some(node)
            } else {
                process.comes_to(Stage::Ended);
                let pushed = family.zombies.push(node);
                debug_assert!(pushed.is_ok());
                // The signal is sent under the family lock under which the zombie is added. So as on Linux, SIGCHLD is
                // pending for the parent when its wait returns.
                if signal == Ok(Signal::CHLD) {
                    let _merged = linux.signal_process_locked(&parent, info(Signal::CHLD));
                }
                None
            }
        };
        notify_signal_files(&parent);
        process.notify_its_files();
        let ignored = gone.is_some();
        if let Some(gone) = gone {
            wait::release(linux, &gone);
        }
        // From here on, the parent may have reaped the process, so only values that were read before are used. A signal
        // other than SIGCHLD may stop or continue the parent, which locks the family of the parent's parent. So such a
        // signal is sent here, without a lock.
        if let Ok(signal) = signal
            && (ignored || signal != Signal::CHLD)
            && !(ignored && action.handler == 1)
        {
            let _merged = linux.signal_process(&parent, info(signal));
        }
        parent.child_events.wake_all();
        return;
    }
}
