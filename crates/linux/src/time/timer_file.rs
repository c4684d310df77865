//! Timer files: `timerfd_create`, `timerfd_settime` and `timerfd_gettime`. The state of such a file is in
//! [`timer_file`](quire_linux_state::time::timer_file).

use crate::file::path::only;
use linux_raw_sys::general as raw;
use quire_fs::{FileCredentials, OpenFlags};
use quire_heap::unsize;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::time::TimerSpec;
use quire_linux_state::time::timer_file::TimerFile;
use quire_linux_state::{Ctx, Errno, Machine};

/// `timerfd_create`
pub fn sys_timerfd_create<M: Machine>(ctx: &mut Ctx<'_, M>, clock: u32, flags: u32) -> Result<usize, Errno> {
    only(flags, raw::TFD_CLOEXEC | raw::TFD_NONBLOCK)?;
    let (day, alarm) = match clock {
        raw::CLOCK_REALTIME => (true, false),
        raw::CLOCK_REALTIME_ALARM => (true, true),
        raw::CLOCK_MONOTONIC | raw::CLOCK_BOOTTIME => (false, false),
        raw::CLOCK_BOOTTIME_ALARM => (false, true),
        _ => return Err(Errno::EINVAL),
    };
    may_set(ctx, alarm)?;
    let timer = TimerFile::new(&ctx.linux.timer_files, ctx.linux.scheduler, day, alarm)?;
    let mut ours = OpenFlags::READ | OpenFlags::WRITE;
    ours.set(OpenFlags::NONBLOCK, flags & raw::TFD_NONBLOCK != 0);
    let file = ctx.vfs().nameless_stream(&FileCredentials::ROOT, "[timerfd]", unsize!(timer), ours, false)?;
    ctx.install(file, flags & raw::TFD_CLOEXEC != 0)
}

fn may_set<M: Machine>(ctx: &Ctx<'_, M>, alarm: bool) -> Result<(), Errno> {
    if alarm && !ctx.credentials().may(cap::WAKE_ALARM) { Err(Errno::EPERM) } else { Ok(()) }
}

/// `timerfd_settime`
pub fn sys_timerfd_settime<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    flags: u32,
    new: u64,
    old: u64,
) -> Result<usize, Errno> {
    let new: TimerSpec = ctx.read(new)?;
    only(flags, raw::TFD_TIMER_ABSTIME | raw::TFD_TIMER_CANCEL_ON_SET)?;
    let new = new.setting()?;
    let file = ctx.file(fd)?;
    let timer = file.stream_as::<TimerFile<M>>().ok_or(Errno::EINVAL)?;
    may_set(ctx, timer.alarm)?;
    let (absolute, reports) = (flags & raw::TFD_TIMER_ABSTIME != 0, flags & raw::TFD_TIMER_CANCEL_ON_SET != 0);
    let (before, changed) = timer.set(absolute, reports, new);
    if changed {
        return Err(Errno::ECANCELED);
    }
    ctx.write_optional(old, &TimerSpec::from(before))?;
    Ok(0)
}

/// `timerfd_gettime`
pub fn sys_timerfd_gettime<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, to: u64) -> Result<usize, Errno> {
    let file = ctx.file(fd)?;
    let rest = file.stream_as::<TimerFile<M>>().ok_or(Errno::EINVAL)?.get();
    ctx.write(to, &TimerSpec::from(rest))?;
    Ok(0)
}
