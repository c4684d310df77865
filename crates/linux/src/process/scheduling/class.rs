//! Calls for scheduling policies: `SCHED_NORMAL`, `SCHED_BATCH`, `SCHED_IDLE`, `SCHED_FIFO` and `SCHED_RR`.
//! `SCHED_DEADLINE` is refused with EPERM.

use crate::process::scheduling::{schedulable, thread_or_self};
use linux_raw_sys::general as raw;
use quire_linux_state::base::plain::Plain;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::process::limits::which;
use quire_linux_state::process::timer_slack;
use quire_linux_state::system::settings::{Setting, Settings};
use quire_linux_state::time::Timespec;
use quire_linux_state::{Ctx, Linux, Pid};
use quire_sync::atomic::Ordering;
use quire_task::{Bound, Class, MOST_URGENT, ThreadRef};

/// The size in bytes of the first version of `sched_attr` (`FIRST`), and the largest size that a program may pass
/// (`MOST`).
const FIRST: u32 = 48;
const MOST: u32 = 4096;
/// The flags of `sched_attr`. Utilization clamps are refused, as on a Linux without them.
const RESET: u64 = 1;
const KEEP_POLICY: u64 = 8;
const KEEP_PARAMETERS: u64 = 0x10;
const LIMITS: u64 = 0x60;
const ALL_FLAGS: u64 = 0x7f;
/// The nominal time slice of a thread that is not real-time, in nanoseconds.
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

// SAFETY: each field begins where the field before it ends, so there is no padding, and every bit pattern is a value.
unsafe impl Plain for Attributes {}
const _: () = assert!(size_of::<Attributes>() == 56);

pub fn number(class: Class) -> u32 {
    match class {
        Class::Normal => raw::SCHED_NORMAL,
        Class::Batch => raw::SCHED_BATCH,
        Class::Background => raw::SCHED_IDLE,
        Class::Fifo(_) => raw::SCHED_FIFO,
        Class::RoundRobin(_) => raw::SCHED_RR,
    }
}

/// The real-time priority of a class, or 0 for classes that are not real-time.
pub fn priority(class: Class) -> u8 {
    match class {
        Class::Fifo(at) | Class::RoundRobin(at) => at,
        Class::Normal | Class::Batch | Class::Background => 0,
    }
}

/// The time slice of a thread of that class in nanoseconds, as `sched_rr_get_interval` shows it.
fn turn<M: Machine>(linux: &Linux<M>, class: Class) -> u64 {
    match class {
        Class::Fifo(_) => 0,
        Class::RoundRobin(_) => bound(&linux.settings).turn.into(),
        _ => TURN,
    }
}

/// The bound on the CPU time of real-time threads, by the settings. If there is no limit, the runtime equals the
/// period.
pub fn bound(settings: &Settings) -> Bound {
    let number = |of| settings.get(of);
    let period = number(Setting::RealTimePeriod).unsigned_abs() * 1000;
    let runtime = u64::try_from(number(Setting::RealTimeRuntime)).map_or(period, |us| us * 1000);
    let turn = match number(Setting::RoundRobin) {
        ms @ 1.. => (ms as u64 * 1_000_000).min(u32::MAX.into()) as u32,
        _ => Bound::USUAL.turn,
    };
    Bound { runtime, period, turn }
}

/// The class for `policy` and `priority`. EINVAL if the priority is not valid for the policy.
fn class(policy: u32, priority: u32) -> Result<Class, Errno> {
    let realtime = (1..=u32::from(MOST_URGENT)).contains(&priority);
    match policy {
        raw::SCHED_NORMAL if priority == 0 => Ok(Class::Normal),
        raw::SCHED_BATCH if priority == 0 => Ok(Class::Batch),
        raw::SCHED_IDLE if priority == 0 => Ok(Class::Background),
        raw::SCHED_FIFO if realtime => Ok(Class::Fifo(priority as u8)),
        raw::SCHED_RR if realtime => Ok(Class::RoundRobin(priority as u8)),
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
    let new = if policy == NO_POLICY { class(number(old), priority)? } else { class(policy, priority)? };
    let mighty = ctx.credentials().may(cap::SYS_NICE);
    let limit = thread.payload().as_ref().map_or(u64::MAX, |t| t.process.soft_limit(which::NICE));
    let allowed = |nice: i32| mighty || (20 - nice) as u64 <= limit;
    let now = i32::from(thread.nice());
    let nice = nice.map(|nice| nice.clamp(-20, 19));
    // A right is needed if a thread becomes real-time, or gets a higher real-time priority. Without the right, a
    // real-time thread may keep its class, and keep or lower its priority.
    let (urgent, was) = (self::priority(new), self::priority(old));
    if urgent > 0 && !mighty {
        let most = thread.payload().as_ref().map_or(u64::MAX, |t| t.process.soft_limit(which::RTPRIO));
        if number(new) != number(old) && most == 0 || urgent > was && u64::from(urgent) > most {
            return Err(Errno::EPERM);
        }
    }
    // A lower nice value needs a right.
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
    ctx.linux.scheduler.set_class(&thread, new, resets);
    timer_slack::class_changed(&thread);
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

/// The class of a thread, and whether the class is reset on fork. A zombie has no thread, and counts as `SCHED_NORMAL`.
fn class_of<M: Machine>(ctx: &Ctx<'_, M>, tid: i32) -> Result<(Class, bool), Errno> {
    match thread_or_self(ctx, tid) {
        Ok(thread) => Ok(thread.class()),
        Err(Errno::ESRCH) if ctx.linux.ids.process(tid as Pid).is_some() => Ok((Class::Normal, false)),
        Err(error) => Err(error),
    }
}

/// `sched_getscheduler`
pub fn sys_sched_getscheduler<M: Machine>(ctx: &mut Ctx<'_, M>, tid: i32) -> Result<usize, Errno> {
    // The older calls combine the policy with the reset flag.
    let (class, resets) = class_of(ctx, tid)?;
    Ok((number(class) | if resets { raw::SCHED_RESET_ON_FORK } else { 0 }) as usize)
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
    ctx.write(to, &i32::from(priority(class_of(ctx, tid)?.0)))?;
    Ok(0)
}

/// `sched_setparam`
pub fn sys_sched_setparam<M: Machine>(ctx: &mut Ctx<'_, M>, tid: i32, from: u64) -> Result<usize, Errno> {
    if from == 0 || tid < 0 {
        return Err(Errno::EINVAL);
    }
    let priority: u32 = ctx.read(from)?;
    let thread = thread_or_self(ctx, tid)?;
    change(ctx, tid, NO_POLICY, priority, thread.class().1, None)?;
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
    let keeps = how & KEEP_PARAMETERS != 0;
    let (old, _) = thread_or_self(ctx, tid)?.class();
    let priority = if keeps { self::priority(old).into() } else { priority };
    // The nice value of a real-time thread stays unchanged, for a later change to a normal class.
    let realtime = matches!(policy, raw::SCHED_FIFO | raw::SCHED_RR) || policy == NO_POLICY && self::priority(old) > 0;
    let nice = (!keeps && !realtime).then_some(nice as i32);
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
        // As on Linux, a real-time thread shows only its priority, and 0 as its nice value.
        nice: if priority(class) > 0 { 0 } else { thread.nice().into() },
        priority: priority(class).into(),
        runtime: if priority(class) > 0 { 0 } else { TURN },
        ..Attributes::default()
    };
    match size as usize == size_of::<Attributes>() {
        true => ctx.write(to, &attributes)?,
        // The first version of the structure has no fields for utilization clamps.
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

/// `sched_rr_get_interval`
pub fn sys_sched_rr_get_interval<M: Machine>(ctx: &mut Ctx<'_, M>, tid: i32, to: u64) -> Result<usize, Errno> {
    let (class, _) = class_of(ctx, tid)?;
    ctx.write(to, &Timespec::from_nanos(turn(ctx.linux, class)))?;
    Ok(0)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_policy_and_its_priority_must_fit() {
        assert_eq!(class(raw::SCHED_IDLE, 0), Ok(Class::Background));
        assert_eq!(class(raw::SCHED_NORMAL, 1), Err(Errno::EINVAL));
        assert_eq!(class(raw::SCHED_FIFO, 0), Err(Errno::EINVAL));
        assert_eq!(class(raw::SCHED_RR, 99), Ok(Class::RoundRobin(99)));
        assert_eq!(class(raw::SCHED_RR, 100), Err(Errno::EINVAL));
        assert_eq!(class(4711, 0), Err(Errno::EINVAL));
        for of in [Class::Normal, Class::Batch, Class::Background, Class::Fifo(1), Class::RoundRobin(99)] {
            assert_eq!(class(number(of), priority(of).into()), Ok(of));
        }
    }

    #[test]
    fn the_settings_bound_real_time_threads() {
        let settings = Settings::new();
        assert_eq!(bound(&settings), Bound::USUAL);
        assert_eq!(settings.set(Setting::RealTimeRuntime, -1), Ok(()));
        let unlimited = bound(&settings);
        assert!(unlimited.runtime >= unlimited.period);
    }
}
