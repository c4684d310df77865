//! `prctl` and `arch_prctl`.

use crate::process::identity as identities;
use linux_raw_sys::prctl as raw;
use quire_linux_state::Ctx;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::process::thread::Name;
use quire_linux_state::process::timer_slack;
use quire_linux_state::signal::Signal;
use quire_linux_state::system::unsupported::Unsupported;
use quire_linux_state::user::USER_END;
use quire_sync::atomic::Ordering;

/// `prctl`
pub fn sys_prctl<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    option: u32,
    second: u64,
    third: u64,
    fourth: u64,
    fifth: u64,
) -> Result<usize, Errno> {
    if let Some(result) = identities::control(ctx, option, second, third, fourth == 0 && fifth == 0) {
        return result;
    }
    let process = ctx.process();
    match option {
        raw::PR_SET_NAME => {
            let name = match ctx.user().read_string(second, 15, Errno::E2BIG) {
                Ok(name) => Name::new(&name),
                // Longer names are cut off.
                Err(Errno::E2BIG) => Name::new(&ctx.read::<[u8; 15]>(second)?),
                Err(error) => return Err(error),
            };
            *ctx.thread.name.lock() = name;
            Ok(0)
        }
        raw::PR_GET_NAME => {
            let name = *ctx.thread.name.lock();
            ctx.write(second, &name.0)?;
            Ok(0)
        }
        raw::PR_SET_PDEATHSIG => {
            let signal = if second == 0 { 0 } else { Signal::new(second)?.number() };
            process.parent_death_signal.store(signal, Ordering::Relaxed);
            Ok(0)
        }
        raw::PR_GET_PDEATHSIG => {
            let signal = i32::from(process.parent_death_signal.load(Ordering::Relaxed));
            ctx.write(second, &signal)?;
            Ok(0)
        }
        // The flag decides whether other processes may access this one, and whether a core file is written.
        raw::PR_GET_DUMPABLE => Ok(usize::from(ctx.space()?.is_dumpable())),
        raw::PR_SET_DUMPABLE if second <= 1 => {
            ctx.space()?.dumpable().set(second == 1);
            Ok(0)
        }
        raw::PR_SET_CHILD_SUBREAPER => {
            process.subreaper.store(second != 0, Ordering::Relaxed);
            Ok(0)
        }
        raw::PR_GET_CHILD_SUBREAPER => {
            ctx.write(second, &i32::from(process.subreaper.load(Ordering::Relaxed)))?;
            Ok(0)
        }
        raw::PR_SET_NO_NEW_PRIVS if second == 1 && third == 0 && fourth == 0 && fifth == 0 => {
            process.no_new_privileges.store(true, Ordering::Relaxed);
            Ok(0)
        }
        raw::PR_GET_NO_NEW_PRIVS if [second, third, fourth, fifth] == [0; 4] => {
            Ok(usize::from(process.no_new_privileges.load(Ordering::Relaxed)))
        }
        raw::PR_GET_TID_ADDRESS => {
            ctx.write(second, &ctx.thread.clear_tid.load(Ordering::Relaxed))?;
            Ok(0)
        }
        // The option is only stored, because there are no large pages.
        raw::PR_SET_THP_DISABLE if third == 0 && fourth == 0 && fifth == 0 => {
            ctx.space()?.small_pages.store(second != 0, Ordering::Relaxed);
            Ok(0)
        }
        raw::PR_GET_THP_DISABLE if second == 0 && third == 0 && fourth == 0 && fifth == 0 => {
            Ok(usize::from(ctx.space()?.small_pages.load(Ordering::Relaxed)))
        }
        raw::PR_GET_TSC => {
            let forbidden = ctx.linux.machine.is_counter_forbidden();
            ctx.write(second, &if forbidden { raw::PR_TSC_SIGSEGV } else { raw::PR_TSC_ENABLE })?;
            Ok(0)
        }
        raw::PR_SET_TSC if [raw::PR_TSC_ENABLE, raw::PR_TSC_SIGSEGV].contains(&(second as u32)) => {
            ctx.linux.machine.forbid_counter(second as u32 == raw::PR_TSC_SIGSEGV);
            Ok(0)
        }
        // System call filters are not supported.
        raw::PR_GET_SECCOMP => Ok(0),
        raw::PR_SET_MM if !ctx.credentials().may(cap::SYS_RESOURCE) => Err(Errno::EPERM),
        raw::PR_GET_TIMERSLACK => Ok(timer_slack::of(&ctx.linux.scheduler.current()) as usize),
        raw::PR_SET_TIMERSLACK => {
            timer_slack::set(&ctx.linux.scheduler.current(), second)?;
            Ok(0)
        }
        // Wrong values of options that are supported.
        raw::PR_SET_DUMPABLE
        | raw::PR_SET_NO_NEW_PRIVS
        | raw::PR_GET_NO_NEW_PRIVS
        | raw::PR_SET_THP_DISABLE
        | raw::PR_GET_THP_DISABLE
        | raw::PR_SET_TSC => Err(Errno::EINVAL),
        // Other options are refused, as on a Linux that is built without them. Names of anonymous mappings are refused
        // too.
        _ => {
            ctx.linux.refuses_option(Unsupported::Prctl(option));
            Err(Errno::EINVAL)
        }
    }
}

/// `arch_prctl`
pub fn sys_arch_prctl<M: Machine>(ctx: &mut Ctx<'_, M>, option: u32, value: u64) -> Result<usize, Errno> {
    const SET_GS: u32 = 0x1001;
    const SET_FS: u32 = 0x1002;
    const GET_FS: u32 = 0x1003;
    const GET_GS: u32 = 0x1004;
    const GET_CPUID: u32 = 0x1011;
    const SET_CPUID: u32 = 0x1012;
    let machine = ctx.linux.machine;
    match option {
        SET_FS | SET_GS if value >= USER_END => Err(Errno::EPERM),
        SET_FS => {
            machine.set_fs_base(value);
            Ok(0)
        }
        SET_GS => {
            machine.set_gs_base(value);
            Ok(0)
        }
        GET_FS => {
            ctx.write(value, &machine.fs_base())?;
            Ok(0)
        }
        GET_GS => {
            ctx.write(value, &machine.gs_base())?;
            Ok(0)
        }
        // Programs may always execute CPUID, because the guest's CPUs cannot trap it.
        GET_CPUID => Ok(1),
        SET_CPUID => Err(Errno::ENODEV),
        _ => Err(Errno::EINVAL),
    }
}
