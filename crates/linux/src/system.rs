//! Calls about the whole machine: `uname` and its names, `sysinfo`, `getrandom`, `reboot`.

use linux_raw_sys::general as raw;
use quire_linux_state::Ctx;
use quire_linux_state::base::plain::Plain;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::{End, Machine};
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::system::host_name::{NAME_LEN, name};
use quire_linux_state::system::random::STEP;
use quire_vm::PAGE_SIZE;

/// The version of Linux whose interface Quire implements. Programs compare it with the version that they need.
pub const RELEASE: &str = "6.12.0-quire";
/// The version of `uname -v`.
pub const VERSION: &str = concat!("#1 SMP Quire ", env!("CARGO_PKG_VERSION"));

/// `struct utsname`: system, node, release, version, machine, domain.
#[repr(C)]
#[derive(Clone, Copy)]
struct Names([[u8; NAME_LEN]; 6]);

// SAFETY: arrays of bytes have no padding, and every byte is a value.
unsafe impl Plain for Names {}

/// The names of `uname` that cannot be set. The names of the node and the domain are empty here.
static FIXED: Names = {
    const EMPTY: [u8; NAME_LEN] = [0; NAME_LEN];
    Names([name(b"Linux"), EMPTY, name(RELEASE.as_bytes()), name(VERSION.as_bytes()), name(b"x86_64"), EMPTY])
};

/// `uname`
pub fn sys_uname<M: Machine>(ctx: &mut Ctx<'_, M>, to: u64) -> Result<usize, Errno> {
    let mut all = FIXED;
    [all.0[1], all.0[5]] = ctx.linux.host_name.get();
    ctx.write(to, &all)?;
    Ok(0)
}

fn set_name<M: Machine>(ctx: &Ctx<'_, M>, which: usize, from: u64, len: usize) -> Result<usize, Errno> {
    if !ctx.credentials().may(cap::SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    if len >= NAME_LEN {
        return Err(Errno::EINVAL);
    }
    let mut new = [0; NAME_LEN];
    ctx.user().read_bytes(from, &mut new[..len])?;
    ctx.linux.host_name.set(which, new);
    Ok(0)
}

/// `sethostname`
pub fn sys_sethostname<M: Machine>(ctx: &mut Ctx<'_, M>, from: u64, len: usize) -> Result<usize, Errno> {
    set_name(ctx, 0, from, len)
}

/// `setdomainname`
pub fn sys_setdomainname<M: Machine>(ctx: &mut Ctx<'_, M>, from: u64, len: usize) -> Result<usize, Errno> {
    set_name(ctx, 1, from, len)
}

/// `struct sysinfo`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Info {
    uptime: i64,
    loads: [u64; 3],
    total: u64,
    free: u64,
    shared: u64,
    buffers: u64,
    swap: u64,
    free_swap: u64,
    processes: u16,
    padding: [u16; 3],
    high: u64,
    free_high: u64,
    unit: u32,
    tail: u32,
}

// SAFETY: all padding is declared as fields, and every bit pattern is a value.
unsafe impl Plain for Info {}
const _: () = assert!(core::mem::size_of::<Info>() == 112);

/// `sysinfo`
pub fn sys_sysinfo<M: Machine>(ctx: &mut Ctx<'_, M>, to: u64) -> Result<usize, Errno> {
    let linux = ctx.linux;
    let (frames, swap) = (linux.vm.frames(), linux.vm.swap());
    let info = Info {
        uptime: (ctx.now() / quire_linux_state::time::SECOND) as i64,
        loads: linux.load.averages(),
        total: frames.total() * PAGE_SIZE,
        free: frames.free() * PAGE_SIZE,
        shared: linux.vm.stats().shared_pages() * PAGE_SIZE,
        swap: swap.total() * PAGE_SIZE,
        free_swap: swap.free() * PAGE_SIZE,
        // As on Linux, this is the number of threads, including kernel threads.
        processes: linux.scheduler.threads().min(u64::from(u16::MAX)) as u16,
        unit: 1,
        ..Info::default()
    };
    ctx.write(to, &info)?;
    Ok(0)
}

/// `reboot`. Every command that halts, restarts or powers off the machine powers it off.
pub fn sys_reboot<M: Machine>(ctx: &mut Ctx<'_, M>, magic: u32, second: u32, command: u32) -> Result<usize, Errno> {
    const MAGIC: u32 = 0xfee1_dead;
    const SECOND_MAGICS: [u32; 4] = [672_274_793, 85_072_278, 369_367_448, 537_993_216];
    if !ctx.credentials().may(cap::SYS_BOOT) {
        return Err(Errno::EPERM);
    }
    if magic != MAGIC || !SECOND_MAGICS.contains(&second) {
        return Err(Errno::EINVAL);
    }
    match command {
        // These commands switch Ctrl-Alt-Del on and off. This machine has no Ctrl-Alt-Del, so they have no effect.
        0 | 0x89ab_cdef => Ok(0),
        0x0123_4567 | 0xcdef_0123 | 0x4321_fedc | 0xa1b2_c3d4 => ctx.linux.finish(End::PowerOff),
        _ => Err(Errno::EINVAL),
    }
}

/// Bits of entropy in the kernel's pool, which is always full.
pub const POOL_BITS: i32 = 256;

/// A request to `/dev/random` or `/dev/urandom`. Bytes that a program adds are read but not used, because the kernel
/// has its own source.
pub fn random_ioctl<M: Machine>(ctx: &Ctx<'_, M>, request: u32, argument: u64) -> Result<usize, Errno> {
    // From Linux's random.h.
    const RNDZAPENTCNT: u32 = 0x5204;
    const RNDCLEARPOOL: u32 = 0x5206;
    const RNDRESEEDCRNG: u32 = 0x5207;
    const RNDADDTOENTCNT: u32 = 0x4004_5201;
    const RNDADDENTROPY: u32 = 0x4008_5203;
    const RNDGETENTCNT: u32 = 0x8004_5200;
    match request {
        RNDGETENTCNT => {
            ctx.write(argument, &POOL_BITS)?;
            return Ok(0);
        }
        RNDADDTOENTCNT | RNDADDENTROPY | RNDZAPENTCNT | RNDCLEARPOOL | RNDRESEEDCRNG => {}
        _ => return Err(Errno::EINVAL),
    }
    if !ctx.credentials().may(cap::SYS_ADMIN) {
        return Err(Errno::EPERM);
    }
    if matches!(request, RNDADDTOENTCNT | RNDADDENTROPY) && ctx.read::<i32>(argument)? < 0 {
        return Err(Errno::EINVAL);
    }
    if request == RNDADDENTROPY {
        let [_, len] = ctx.read::<[i32; 2]>(argument)?;
        let len = usize::try_from(len).map_err(|_| Errno::EFAULT)?;
        let from = argument.wrapping_add(8);
        let mut part = [0; STEP];
        for done in (0..len).step_by(STEP) {
            ctx.user().read_bytes(from.wrapping_add(done as u64), &mut part[..STEP.min(len - done)])?;
            if done + STEP < len && ctx.interrupted() {
                return Err(Errno::EFAULT); // as on Linux, where fewer bytes than the length were taken
            }
        }
    }
    Ok(0)
}

/// `getrandom`
pub fn sys_getrandom<M: Machine>(ctx: &mut Ctx<'_, M>, to: u64, len: usize, flags: u32) -> Result<usize, Errno> {
    /// The most bytes that one call returns, as on Linux.
    const MOST: usize = 0x7fff_f000;
    if flags & !(raw::GRND_NONBLOCK | raw::GRND_RANDOM | raw::GRND_INSECURE) != 0 {
        return Err(Errno::EINVAL);
    }
    if flags & raw::GRND_RANDOM != 0 && flags & raw::GRND_INSECURE != 0 {
        return Err(Errno::EINVAL);
    }
    let len = len.min(MOST);
    let mut done = 0;
    let mut part = [0u8; STEP];
    while done < len {
        let n = STEP.min(len - done);
        ctx.linux.random.fill(&mut part[..n]);
        if let Err(bad) = ctx.user().write_bytes(to.wrapping_add(done as u64), &part[..n]) {
            // The copy failed at the first address that is not mapped. The bytes before that address count as done.
            done += n - bad.left.min(n);
            return if done > 0 { Ok(done) } else { Err(Errno::EFAULT) };
        }
        done += n;
        if ctx.interrupted() && done < len {
            break;
        }
    }
    Ok(done)
}
