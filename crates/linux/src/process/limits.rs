//! Calls that read and change resource limits.

use quire_linux_state::Ctx;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::process::limits::{COUNT, Limit, which};
use quire_linux_state::process::timers::cpu_limit::CpuLimit;

/// `getrlimit`
pub fn sys_getrlimit<M: Machine>(ctx: &mut Ctx<'_, M>, number: u32, to: u64) -> Result<usize, Errno> {
    if number as usize >= COUNT {
        return Err(Errno::EINVAL);
    }
    let limit = ctx.process().limit(number as usize);
    ctx.write(to, &limit)?;
    Ok(0)
}

/// `setrlimit`
pub fn sys_setrlimit<M: Machine>(ctx: &mut Ctx<'_, M>, number: u32, from: u64) -> Result<usize, Errno> {
    sys_prlimit64(ctx, 0, number, from, 0)
}

/// `prlimit64`
pub fn sys_prlimit64<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    pid: i32,
    number: u32,
    new: u64,
    old: u64,
) -> Result<usize, Errno> {
    /// The most descriptors of a process. This bounds the kernel memory of the process's descriptor table.
    const MOST_FILES: u64 = 1 << 20;
    let number = number as usize;
    let wanted = if new == 0 { None } else { Some(ctx.read::<Limit>(new)?) };
    let process = match pid {
        0 => ctx.process().clone(),
        pid => ctx.linux.ids.process_of_thread(pid as u32).ok_or(Errno::ESRCH)?,
    };
    let me = ctx.credentials();
    let own = pid == 0 || pid as u32 == ctx.thread.tid();
    let may = || process.credentials_of(pid as u32).is_all_of(me.real_user, me.real_group) || me.may(cap::SYS_RESOURCE);
    if !own && !may() {
        return Err(Errno::EPERM);
    }
    if number >= COUNT {
        return Err(Errno::EINVAL);
    }
    let before = if let Some(limit) = wanted {
        if limit.soft > limit.hard {
            return Err(Errno::EINVAL);
        }
        if number == which::NOFILE && limit.hard > MOST_FILES {
            return Err(Errno::EPERM);
        }
        if number == which::CPU {
            process.cpu_limit.get_or_make(CpuLimit::new)?;
        }
        let before = process.limits.update(|words| {
            let (soft, hard) = (words[2 * number], words[2 * number + 1]);
            if limit.hard > hard && !me.may(cap::SYS_RESOURCE) {
                return Err(Errno::EPERM);
            }
            (words[2 * number], words[2 * number + 1]) = (limit.soft, limit.hard);
            Ok(Limit { soft, hard })
        })??;
        process.limits_changed(number);
        before
    } else {
        process.limit(number)
    };
    if old != 0 {
        ctx.write(old, &before)?;
    }
    Ok(0)
}
