//! The classes of scheduling: `SCHED_NORMAL`, `SCHED_BATCH` and `SCHED_IDLE`. Real-time ones are refused with EPERM, as
//! by a Linux whose limits forbid them.

use super::credentials::capabilities::cap;
use super::limits::which;
use super::scheduling::{schedulable, thread_or_self};
use crate::Ctx;
use crate::errno::Errno;
use crate::machine::Machine;
use crate::plain::Plain;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as raw;
use quire_task::{Class, ThreadRef};

/// Bytes of the first version of `sched_attr`, and the most that a program may pass.
const FIRST: u32 = 48;
const MOST: u32 = 4096;
/// The flags of `sched_attr`. Limits on a CPU's speed are refused, as by a Linux without them.
const RESET: u64 = 1;
const KEEP_POLICY: u64 = 8;
const KEEP_PARAMETERS: u64 = 0x10;
const LIMITS: u64 = 0x60;
const ALL_FLAGS: u64 = 0x7f;
/// The nominal turn, in nanoseconds.
const TURN: u64 = 4_000_000;
const NO_POLICY: u32 = u32::MAX;

/// `struct sched_attr`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime: u64,
    deadline: u64,
    period: u64,
    least: u32,
    most: u32,
}

// SAFETY: every field is aligned behind the one before, so there is no padding, and every pattern is a value.
unsafe impl Plain for Attributes {}
const _: () = assert!(size_of::<Attributes>() == 56);

fn number(class: Class) -> u32 {
    match class {
        Class::Normal => raw::SCHED_NORMAL,
        Class::Batch => raw::SCHED_BATCH,
        Class::Background => raw::SCHED_IDLE,
    }
}

/// The class that `policy` means; the priority of a class must fit.
fn class(policy: u32, priority: u32) -> Result<Class, Errno> {
    match policy {
        raw::SCHED_NORMAL if priority == 0 => Ok(Class::Normal),
        raw::SCHED_BATCH if priority == 0 => Ok(Class::Batch),
        raw::SCHED_IDLE if priority == 0 => Ok(Class::Background),
        raw::SCHED_FIFO | raw::SCHED_RR if (1..=99).contains(&priority) => Err(Errno::EPERM),
        raw::SCHED_DEADLINE if priority == 0 => Err(Errno::EPERM),
        _ => Err(Errno::EINVAL),
    }
}

/// Changes a thread's class, and its nice value if there is a new one.
fn change<M: Machine>(
    ctx: &Ctx<'_, M>,
    tid: i32,
    policy: u32,
    priority: u32,
    resets: bool,
    nice: Option<i32>,
) -> Result<(), Errno> {
    let thread = thread_or_self(ctx, tid)?;
    let (old, reset_before) = thread.class();
    let new = if policy == NO_POLICY { old } else { class(policy, priority)? };
    let mighty = ctx.credentials().may(cap::SYS_NICE);
    let limit = thread.payload().as_ref().map_or(u64::MAX, |t| t.process.soft_limit(which::NICE));
    let allowed = |nice: i32| mighty || (20 - nice) as u64 <= limit;
    let now = i32::from(thread.nice());
    let nice = nice.map(|nice| nice.clamp(-20, 19));
    // A more favoured place needs a right to that nice value.
    if nice.is_some_and(|nice| nice < now && !allowed(nice)) {
        return Err(Errno::EPERM);
    }
    if old == Class::Background && new != Class::Background && !allowed(now) {
        return Err(Errno::EPERM);
    }
    let thread = schedulable(ctx, tid).map(|_| thread)?;
    if reset_before && !resets && !mighty {
        return Err(Errno::EPERM);
    }
    thread.set_class(new, resets);
    if let Some(nice) = nice {
        set_nice(ctx, &thread, nice);
    }
    crate::futex::pi::renice(ctx.linux, &thread);
    Ok(())
}

fn set_nice<M: Machine>(_ctx: &Ctx<'_, M>, thread: &ThreadRef<M>, nice: i32) {
    thread.set_nice(nice as i8);
    if let Some(of) = thread.payload().as_ref().filter(|of| of.tid() == of.process.pid) {
        of.process.priority.store((20 - nice) as u32, Ordering::Relaxed);
    }
}

/// A policy with its flag, as the older calls show and take it.
fn flagged<M: Machine>(thread: &ThreadRef<M>) -> u32 {
    let (class, resets) = thread.class();
    number(class) | if resets { raw::SCHED_RESET_ON_FORK } else { 0 }
}

/// `sched_getscheduler`
pub fn sys_sched_getscheduler<M: Machine>(ctx: &mut Ctx<'_, M>, tid: i32) -> Result<usize, Errno> {
    Ok(flagged(&thread_or_self(ctx, tid)?) as usize)
}

/// `sched_setscheduler`
pub fn sys_sched_setscheduler<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    tid: i32,
    policy: u32,
    parameter: u64,
) -> Result<usize, Errno> {
    if parameter == 0 || tid < 0 || policy > i32::MAX as u32 {
        return Err(Errno::EINVAL);
    }
    let priority: u32 = ctx.read(parameter)?;
    let resets = policy & raw::SCHED_RESET_ON_FORK != 0;
    change(ctx, tid, policy & !raw::SCHED_RESET_ON_FORK, priority, resets, None)?;
    Ok(0)
}

/// `sched_getparam`
pub fn sys_sched_getparam<M: Machine>(ctx: &mut Ctx<'_, M>, tid: i32, to: u64) -> Result<usize, Errno> {
    if to == 0 {
        return Err(Errno::EINVAL);
    }
    thread_or_self(ctx, tid)?;
    ctx.write(to, &0i32)?;
    Ok(0)
}

/// `sched_setparam`
pub fn sys_sched_setparam<M: Machine>(ctx: &mut Ctx<'_, M>, tid: i32, from: u64) -> Result<usize, Errno> {
    if from == 0 || tid < 0 {
        return Err(Errno::EINVAL);
    }
    let priority: u32 = ctx.read(from)?;
    let thread = thread_or_self(ctx, tid)?;
    if priority != 0 {
        return Err(Errno::EINVAL);
    }
    change(ctx, tid, NO_POLICY, 0, thread.class().1, None)?;
    Ok(0)
}

/// `sched_setattr`
pub fn sys_sched_setattr<M: Machine>(ctx: &mut Ctx<'_, M>, tid: i32, from: u64, flags: u32) -> Result<usize, Errno> {
    if from == 0 || tid < 0 || flags != 0 {
        return Err(Errno::EINVAL);
    }
    let size = match ctx.read::<u32>(from)? {
        0 => FIRST,
        size if (FIRST..=MOST).contains(&size) => size,
        _ => {
            ctx.write(from, &(size_of::<Attributes>() as u32))?;
            return Err(Errno::E2BIG);
        }
    };
    const KNOWN: usize = size_of::<Attributes>();
    let mut bytes = [0u8; KNOWN];
    let known = KNOWN.min(size as usize);
    ctx.user().read_bytes(from, &mut bytes[..known])?;
    let rest = from.checked_add(known as u64).ok_or(Errno::EFAULT)?;
    if !ctx.user().is_zero(rest, size as usize - known)? {
        ctx.write(from, &(KNOWN as u32))?;
        return Err(Errno::E2BIG);
    }
    let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
    let (policy, how, nice, priority) = (word(4), u64::from(word(8)) | u64::from(word(12)) << 32, word(16), word(20));
    if policy > i32::MAX as u32 || how & !ALL_FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    if how & LIMITS != 0 {
        return Err(Errno::EOPNOTSUPP);
    }
    let policy = if how & KEEP_POLICY != 0 { NO_POLICY } else { policy };
    let nice = (how & KEEP_PARAMETERS == 0).then_some(nice as i32);
    change(ctx, tid, policy, priority, how & RESET != 0, nice)?;
    Ok(0)
}

/// `sched_getattr`
pub fn sys_sched_getattr<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    tid: i32,
    to: u64,
    size: u32,
    flags: u32,
) -> Result<usize, Errno> {
    if to == 0 || tid < 0 || !(FIRST..=MOST).contains(&size) || flags != 0 {
        return Err(Errno::EINVAL);
    }
    let thread = thread_or_self(ctx, tid)?;
    let (class, resets) = thread.class();
    let size = size.min(size_of::<Attributes>() as u32);
    let attributes = Attributes {
        size,
        policy: number(class),
        flags: if resets { RESET } else { 0 },
        nice: thread.nice().into(),
        runtime: TURN,
        ..Attributes::default()
    };
    match size as usize == size_of::<Attributes>() {
        true => ctx.write(to, &attributes)?,
        // The first version ends before the limits on a CPU's speed.
        false => {
            let Attributes { size, policy, flags, nice, priority, runtime, .. } = attributes;
            let words = [
                u64::from(size) | u64::from(policy) << 32,
                flags,
                u64::from(nice as u32) | u64::from(priority) << 32,
                runtime,
                0,
                0,
            ];
            ctx.write(to, &words)?;
        }
    }
    Ok(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_and_its_priority_must_fit() {
        assert_eq!(class(raw::SCHED_IDLE, 0), Ok(Class::Background));
        assert_eq!(class(raw::SCHED_NORMAL, 1), Err(Errno::EINVAL));
        assert_eq!(class(raw::SCHED_FIFO, 0), Err(Errno::EINVAL));
        assert_eq!(class(raw::SCHED_RR, 99), Err(Errno::EPERM));
        assert_eq!(class(raw::SCHED_RR, 100), Err(Errno::EINVAL));
        assert_eq!(class(4711, 0), Err(Errno::EINVAL));
        for of in [Class::Normal, Class::Batch, Class::Background] {
            assert_eq!(class(number(of), 0), Ok(of));
        }
    }
}
