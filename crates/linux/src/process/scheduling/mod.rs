//! Calls for scheduling: yielding, nice values, CPU affinity. [`class`] has the scheduling policies.

pub mod class;

use linux_raw_sys::general as raw;
use quire_heap::{Arc, Vec};
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::Process;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::{Ctx, Pid};
use quire_sync::atomic::Ordering;
use quire_sync::cpuset::{CpuMask, MAX_CPUS};
use quire_task::ThreadRef;

/// `sched_yield`
pub fn sys_sched_yield<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    ctx.linux.scheduler.yield_now();
    Ok(0)
}

pub(super) fn thread_or_self<M: Machine>(ctx: &Ctx<'_, M>, tid: i32) -> Result<ThreadRef<M>, Errno> {
    match tid {
        0 => Ok(ctx.linux.scheduler.current().to_ref()),
        tid if tid < 0 => Err(Errno::EINVAL),
        tid => ctx.linux.ids.thread(tid as Pid).ok_or(Errno::ESRCH),
    }
}

/// Does the work of [`thread_or_self`] for calls that change a thread's scheduling. EPERM if the caller may not change
/// that thread.
pub(super) fn schedulable<M: Machine>(ctx: &Ctx<'_, M>, tid: i32) -> Result<ThreadRef<M>, Errno> {
    let thread = thread_or_self(ctx, tid)?;
    let may = |other: &quire_linux_state::Thread<M>| {
        other.credentials.look(|theirs| ctx.credentials().may_reschedule(theirs))
    };
    if thread.payload().as_ref().is_none_or(may) { Ok(thread) } else { Err(Errno::EPERM) }
}

/// `sched_getaffinity`
pub fn sys_sched_getaffinity<M: Machine>(ctx: &mut Ctx<'_, M>, tid: i32, len: usize, to: u64) -> Result<usize, Errno> {
    let cpus = ctx.linux.scheduler.cpus();
    let words = cpus.div_ceil(64);
    if len < words * 8 || !len.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    let thread = if tid < 0 { return Err(Errno::ESRCH) } else { thread_or_self(ctx, tid)? };
    let allowed = thread.affinity().and(&CpuMask::first(cpus));
    for (at, word) in allowed.words()[..words].iter().enumerate() {
        ctx.write(to + 8 * at as u64, word)?;
    }
    Ok(words * 8)
}

/// `sched_setaffinity`. CPUs that the machine does not have are ignored.
pub fn sys_sched_setaffinity<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    tid: i32,
    len: usize,
    from: u64,
) -> Result<usize, Errno> {
    let mut allowed = CpuMask::default();
    for byte in 0..len.min(MAX_CPUS / 8) {
        let bits: u8 = ctx.read(from + byte as u64)?;
        (0..8).filter(|bit| bits & 1 << bit != 0).for_each(|bit| allowed.insert(8 * byte + bit));
    }
    let thread = if tid < 0 { return Err(Errno::ESRCH) } else { schedulable(ctx, tid)? };
    if ctx.linux.scheduler.set_affinity(&thread, &allowed) { Ok(0) } else { Err(Errno::EINVAL) }
}

/// `getcpu`
pub fn sys_getcpu<M: Machine>(ctx: &mut Ctx<'_, M>, cpu: u64, node: u64) -> Result<usize, Errno> {
    ctx.write_optional(cpu, &(quire_sync::current_cpu() as u32))?;
    ctx.write_optional(node, &0u32)?;
    Ok(0)
}

fn priorities(policy: u32) -> Result<(usize, usize), Errno> {
    match policy {
        raw::SCHED_FIFO | raw::SCHED_RR => Ok((1, 99)),
        raw::SCHED_NORMAL | raw::SCHED_BATCH | raw::SCHED_IDLE | raw::SCHED_DEADLINE | raw::SCHED_EXT => Ok((0, 0)),
        _ => Err(Errno::EINVAL),
    }
}

/// `sched_get_priority_min`
pub fn sys_sched_get_priority_min<M: Machine>(_ctx: &mut Ctx<'_, M>, policy: u32) -> Result<usize, Errno> {
    Ok(priorities(policy)?.0)
}

/// `sched_get_priority_max`
pub fn sys_sched_get_priority_max<M: Machine>(_ctx: &mut Ctx<'_, M>, policy: u32) -> Result<usize, Errno> {
    Ok(priorities(policy)?.1)
}

/// The processes that `getpriority` and `setpriority` select by `kind` and `who`. For [`raw::PRIO_PROCESS`] `who` is
/// the id of a thread, and its process is selected.
pub(super) fn named<M: Machine>(ctx: &Ctx<'_, M>, kind: u32, who: u32) -> Result<Vec<Arc<Process<M>>>, Errno> {
    let mut out = Vec::new();
    match kind {
        raw::PRIO_PROCESS => {
            let process = if who == 0 { Some(ctx.process().clone()) } else { ctx.linux.ids.process_of_thread(who) };
            if let Some(process) = process {
                out.try_push(process)?;
            }
        }
        raw::PRIO_PGRP => {
            let group = if who == 0 { Some(ctx.process().group()) } else { ctx.linux.ids.group(who) };
            if let Some(group) = group {
                out = group.members()?;
            }
        }
        raw::PRIO_USER => {
            out = of_user(ctx, if who == 0 { ctx.credentials().real_user } else { who })?;
        }
        _ => return Err(Errno::EINVAL),
    }
    if out.is_empty() { Err(Errno::ESRCH) } else { Ok(out) }
}

/// The processes whose real user is `user`.
pub(super) fn of_user<M: Machine>(ctx: &Ctx<'_, M>, user: u32) -> Result<Vec<Arc<Process<M>>>, Errno> {
    let mut out = Vec::new();
    for process in ctx.linux.ids.processes() {
        if process.credentials().real_user == user {
            out.try_push(process)?;
        }
    }
    Ok(out)
}

/// The threads of `process` that `kind` and `who` select. Threads are selected singly, because each thread has its own
/// nice value. A zombie has no threads.
pub(super) fn meant<M: Machine>(
    ctx: &Ctx<'_, M>,
    kind: u32,
    who: u32,
    process: &Process<M>,
) -> Result<Vec<ThreadRef<M>>, Errno> {
    if kind != raw::PRIO_PROCESS {
        return process.all_threads();
    }
    let one = if who == 0 { Some(ctx.linux.scheduler.current().to_ref()) } else { ctx.linux.ids.thread(who) };
    Ok(Vec::try_from_iter(one)?)
}

/// A thread's nice value as `getpriority` shows it.
fn shown<M: Machine>(task: &quire_task::Thread<M>) -> u32 {
    (20 - i32::from(task.nice())) as u32
}

/// `getpriority`. The result is 40 for nice value -20, down to 1 for nice value 19. Of several threads, the highest
/// result counts.
pub fn sys_getpriority<M: Machine>(ctx: &mut Ctx<'_, M>, kind: u32, who: u32) -> Result<usize, Errno> {
    let mut best = 0;
    for process in named(ctx, kind, who)? {
        let threads = meant(ctx, kind, who, &process)?;
        let most = threads.iter().map(|task| shown(task)).max();
        best = best.max(most.unwrap_or_else(|| process.priority.load(Ordering::Relaxed)));
    }
    Ok(best as usize)
}

/// `setpriority`
pub fn sys_setpriority<M: Machine>(ctx: &mut Ctx<'_, M>, kind: u32, who: u32, nice: i32) -> Result<usize, Errno> {
    let nice = nice.clamp(-20, 19);
    let value = (20 - nice) as u32;
    let me = ctx.credentials();
    // All permitted changes are made. The result is the error of the last refusal.
    let mut result = Ok(0);
    for process in named(ctx, kind, who)? {
        let theirs = process.credentials();
        let limit = process.soft_limit(quire_linux_state::process::limits::which::NICE);
        let threads = meant(ctx, kind, who, &process)?;
        let least = threads.iter().map(|task| shown(task)).min();
        let least = least.unwrap_or_else(|| process.priority.load(Ordering::Relaxed));
        if !me.may_schedule(&theirs) {
            result = Err(Errno::EPERM);
        } else if value > least && u64::from(value) > limit && !me.may(cap::SYS_NICE) {
            result = Err(Errno::EACCES);
        } else if !me.may_reschedule(&theirs) {
            result = Err(Errno::EPERM);
        } else {
            for task in &threads {
                task.set_nice(nice as i8);
                crate::futex::pi::renice(ctx.linux, task);
            }
            // The process stores the value of its first thread, for `getpriority` on a zombie.
            let is_first = |task: &ThreadRef<M>| task.payload().as_ref().is_none_or(|t| t.tid() == process.pid);
            if threads.is_empty() || threads.iter().any(is_first) {
                process.priority.store(value, Ordering::Relaxed);
            }
        }
    }
    result
}
