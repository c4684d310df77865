//! I/O priorities: `ioprio_set` and `ioprio_get`. They are stored and inherited, but have no effect, as on a Linux
//! without an I/O scheduler that uses them.

use crate::process::scheduling::{meant, named, of_user};
use linux_raw_sys::general as raw;
use quire_heap::Vec;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::{Ctx, Thread};
use quire_sync::atomic::Ordering;
use quire_task::{Class, ThreadRef};

/// The lowest bit of the class.
const CLASS_SHIFT: u32 = 13;
/// A thread without a class, whose priority follows from its nice value.
const NONE: u32 = 0;
const REAL_TIME: u32 = 1;
const BEST_EFFORT: u32 = 2;
const IDLE: u32 = 3;
/// The bits of the level. All their values are valid. The bits between them and the class are hints for the device.
const LEVEL: u32 = 7;

/// The threads that `which` and `who` select. `getpriority` has the same selections, but numbers them from 0. User 0 is
/// root, not the caller.
fn threads<M: Machine>(ctx: &Ctx<'_, M>, which: u32, who: u32) -> Result<Vec<ThreadRef<M>>, Errno> {
    let kind = which.wrapping_sub(1);
    let processes = if kind == raw::PRIO_USER { of_user(ctx, who)? } else { named(ctx, kind, who)? };
    let mut out = Vec::new();
    for process in processes {
        for task in meant(ctx, kind, who, &process)? {
            out.try_push(task)?;
        }
    }
    if out.is_empty() { Err(Errno::ESRCH) } else { Ok(out) }
}

/// `ioprio_set`
pub fn sys_ioprio_set<M: Machine>(ctx: &mut Ctx<'_, M>, which: u32, who: u32, value: u32) -> Result<usize, Errno> {
    let me = ctx.credentials();
    match value >> CLASS_SHIFT & 7 {
        REAL_TIME if !me.may(cap::SYS_ADMIN) && !me.may(cap::SYS_NICE) => return Err(Errno::EPERM),
        REAL_TIME | BEST_EFFORT | IDLE => {}
        NONE if value & LEVEL == 0 => {}
        _ => return Err(Errno::EINVAL),
    }
    let may = |other: &Thread<M>| other.credentials.look(|theirs| me.may_change_io_priority(theirs));
    for task in threads(ctx, which, who)? {
        let Some(thread) = task.payload().as_ref() else { continue };
        if !may(thread) {
            return Err(Errno::EPERM);
        }
        thread.io_priority.store(value as u16, Ordering::Relaxed);
    }
    Ok(0)
}

/// The effective priority. If the thread has no class, the priority follows from its nice value.
fn effective<M: Machine>(task: &ThreadRef<M>, own: u32) -> u32 {
    if own >> CLASS_SHIFT != NONE {
        return own;
    }
    let class = match task.class().0 {
        Class::Fifo(_) | Class::RoundRobin(_) => REAL_TIME,
        Class::Background => IDLE,
        Class::Normal | Class::Batch => BEST_EFFORT,
    };
    (class << CLASS_SHIFT) | ((i32::from(task.nice()) + 20) as u32 / 5)
}

/// `ioprio_get`. Returns a thread's own value, or the best effective priority in a group or of a user.
pub fn sys_ioprio_get<M: Machine>(ctx: &mut Ctx<'_, M>, which: u32, who: u32) -> Result<usize, Errno> {
    let mut best = None;
    for task in threads(ctx, which, who)? {
        let Some(thread) = task.payload().as_ref() else { continue };
        let own = u32::from(thread.io_priority.load(Ordering::Relaxed));
        let value = if which.wrapping_sub(1) == raw::PRIO_PROCESS { own } else { effective(&task, own) };
        best = Some(best.map_or(value, |best: u32| best.min(value)));
    }
    best.map(|value| value as usize).ok_or(Errno::ESRCH)
}
