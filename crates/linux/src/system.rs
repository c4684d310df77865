//! About the machine as a whole: `uname`, `sysinfo`, `reboot`.

use crate::errno::Errno;
use crate::machine::{End, Machine};
use crate::plain::Plain;
use crate::process::capabilities::cap;
use crate::{Ctx, Linux};
use quire_sync::{Rank, Sequenced};
use quire_vm::PAGE_SIZE;

/// The version of Linux whose interface this is: programs compare it with what they need.
pub const RELEASE: &str = "6.12.0-quire";
/// What `uname -v` says.
pub const VERSION: &str = concat!("#1 SMP Quire ", env!("CARGO_PKG_VERSION"));

/// Bytes of a name in `struct utsname`, its zero byte included.
const NAME_LEN: usize = 65;

/// `struct utsname`: system, node, release, version, machine, domain.
#[repr(C)]
#[derive(Clone, Copy)]
struct Names([[u8; NAME_LEN]; 6]);

// SAFETY: arrays of bytes have no padding, and every byte is a value.
unsafe impl Plain for Names {}

/// Words that both names take.
const NAME_WORDS: usize = (2 * NAME_LEN).div_ceil(8);

/// Node and domain names, which can be set. Read without a lock.
pub struct HostName {
    names: Sequenced<NAME_WORDS>,
}

fn name(text: &[u8]) -> [u8; NAME_LEN] {
    let mut out = [0; NAME_LEN];
    let len = text.len().min(NAME_LEN - 1);
    out[..len].copy_from_slice(&text[..len]);
    out
}

fn byte(words: &[u64; NAME_WORDS], at: usize) -> u8 {
    (words[at / 8] >> (at % 8 * 8)) as u8
}

impl Default for HostName {
    fn default() -> Self {
        Self::new()
    }
}

impl HostName {
    /// "quire", and no domain.
    pub fn new() -> Self {
        let names = HostName { names: Sequenced::new(Rank::OWNED, [0; NAME_WORDS]) };
        names.set(0, name(b"quire"));
        names.set(1, name(b"(none)"));
        names
    }

    /// Both, as they are at one moment.
    fn get(&self) -> [[u8; NAME_LEN]; 2] {
        let words = self.names.read();
        core::array::from_fn(|which| core::array::from_fn(|at| byte(&words, which * NAME_LEN + at)))
    }

    fn set(&self, which: usize, new: [u8; NAME_LEN]) {
        self.names.update(|words| {
            for (at, new) in new.into_iter().enumerate() {
                let at = which * NAME_LEN + at;
                let shift = at % 8 * 8;
                words[at / 8] = words[at / 8] & !(0xff << shift) | u64::from(new) << shift;
            }
        });
    }

    /// The node's name, without zeroes.
    pub fn node(&self) -> Result<quire_heap::Vec<u8>, quire_heap::OutOfMemory> {
        let [node, _] = self.get();
        quire_heap::Vec::try_from_iter(node.into_iter().take_while(|b| *b != 0))
    }
}

/// `uname`
pub fn sys_uname<M: Machine>(ctx: &mut Ctx<'_, M>, to: u64) -> Result<usize, Errno> {
    let [node, domain] = ctx.linux.host_name.get();
    let all = [name(b"Linux"), node, name(RELEASE.as_bytes()), name(VERSION.as_bytes()), name(b"x86_64"), domain];
    ctx.write(to, &Names(all))?;
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

// SAFETY: its padding is made of fields.
unsafe impl Plain for Info {}
const _: () = assert!(core::mem::size_of::<Info>() == 112);

impl<M: Machine> Linux<M> {
    /// Number of processes.
    pub fn process_count(&self) -> usize {
        self.ids.processes().count()
    }
}

/// `sysinfo`
pub fn sys_sysinfo<M: Machine>(ctx: &mut Ctx<'_, M>, to: u64) -> Result<usize, Errno> {
    let linux = ctx.linux;
    let frames = linux.vm.frames();
    let info = Info {
        uptime: (ctx.now() / crate::time::SECOND) as i64,
        loads: linux.load.averages(),
        total: frames.total() * PAGE_SIZE,
        free: frames.free() * PAGE_SIZE,
        processes: linux.process_count().min(usize::from(u16::MAX)) as u16,
        unit: 1,
        ..Info::default()
    };
    ctx.write(to, &info)?;
    Ok(0)
}

/// `reboot`: every command that ends the machine ends it.
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
        // Ctrl-Alt-Del on and off: there is none.
        0 | 0x89ab_cdef => Ok(0),
        0x0123_4567 | 0xcdef_0123 | 0x4321_fedc | 0xa1b2_c3d4 => ctx.linux.machine.power_off(End::PowerOff),
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_set_leaves_the_other_one_as_it_is() {
        let names = HostName::new();
        names.set(0, name(b"longer than it was"));
        assert_eq!(
            (&names.node().expect("memory")[..], names.get()[1]),
            (b"longer than it was".as_slice(), name(b"(none)"))
        );
        names.set(1, [b'x'; NAME_LEN]);
        names.set(0, name(b"q"));
        assert_eq!((&names.node().expect("memory")[..], names.get()[1]), (b"q".as_slice(), [b'x'; NAME_LEN]));
    }
}
