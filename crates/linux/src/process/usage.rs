//! Calls that return resource usage: `getrusage` and `times`.

use quire_linux_state::Ctx;
use quire_linux_state::base::plain::Plain;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::process::usage::{Usage, of_thread};
use quire_linux_state::time::Timeval;

/// Linux's `struct rusage`.
#[repr(C)]
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct RawUsage {
    user: Timeval,
    system: Timeval,
    max_rss_kib: i64,
    unused: [i64; 3],
    minor_faults: i64,
    major_faults: i64,
    swaps: i64,
    blocks: [i64; 2],
    messages: [i64; 2],
    signals: i64,
    voluntary: i64,
    involuntary: i64,
}

// SAFETY: words of eight bytes leave no padding (the size is asserted below), and every bit pattern is a value.
unsafe impl Plain for RawUsage {}
const _: () = assert!(core::mem::size_of::<RawUsage>() == 144);

impl From<&Usage> for RawUsage {
    fn from(u: &Usage) -> RawUsage {
        RawUsage {
            user: Timeval::from_nanos(u.user),
            system: Timeval::from_nanos(u.system),
            max_rss_kib: (u.peak_pages * 4) as i64,
            minor_faults: u.minor_faults as i64,
            major_faults: u.major_faults as i64,
            voluntary: u.voluntary as i64,
            involuntary: u.involuntary as i64,
            ..RawUsage::default()
        }
    }
}

/// `getrusage`
pub fn sys_getrusage<M: Machine>(ctx: &mut Ctx<'_, M>, who: i32, to: u64) -> Result<usize, Errno> {
    let usage = match who {
        0 => {
            let mut sum = ctx.process().usage();
            sum.peak_pages = sum.peak_pages.max(ctx.space()?.peak_resident());
            sum
        }
        -1 => ctx.process().accounts.lock().children,
        1 => {
            let peak_pages = ctx.space()?.peak_resident();
            Usage { peak_pages, ..of_thread(ctx.linux, &ctx.linux.scheduler.current()) }
        }
        _ => return Err(Errno::EINVAL),
    };
    ctx.write(to, &RawUsage::from(&usage))?;
    Ok(0)
}

/// `times`
pub fn sys_times<M: Machine>(ctx: &mut Ctx<'_, M>, to: u64) -> Result<usize, Errno> {
    if to != 0 {
        let own = ctx.process().usage();
        let children = ctx.process().accounts.lock().children;
        let ticks = [own.user, own.system, children.user, children.system].map(quire_linux_state::time::ticks);
        ctx.write(to, &ticks)?;
    }
    Ok(quire_linux_state::time::ticks(ctx.now()) as usize)
}
