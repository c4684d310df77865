//! `remap_file_pages`.

use crate::memory::map::range;
use linux_raw_sys::general as raw;
use quire_linux_state::Ctx;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_vm::PAGE_SIZE;

/// `remap_file_pages`. As on Linux since 4.0, each changed part becomes a separate mapping.
pub fn sys_remap_file_pages<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    address: u64,
    len: u64,
    prot: u64,
    page: u64,
    flags: u64,
) -> Result<usize, Errno> {
    let (address, len) = (address & !(PAGE_SIZE - 1), len & !(PAGE_SIZE - 1));
    if prot != 0 {
        return Err(Errno::EINVAL);
    }
    let range = range(address, len)?;
    let end = page.checked_add(len / PAGE_SIZE).ok_or(Errno::EINVAL)?;
    if end > i64::MAX as u64 / PAGE_SIZE {
        return Err(Errno::EOVERFLOW);
    }
    ctx.space()?.show_from(range, page, flags & u64::from(raw::MAP_NONBLOCK) == 0)?;
    Ok(0)
}
