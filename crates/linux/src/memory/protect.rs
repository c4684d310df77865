//! `mprotect`.

use crate::memory::map::prot_of;
use linux_raw_sys::general as raw;
use quire_linux_state::Ctx;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::memory::page_up;
use quire_linux_state::user::USER_END;
use quire_vm::map::Flags;
use quire_vm::{MapError, PAGE_SIZE, VirtRange};

/// `mprotect`
pub fn sys_mprotect<M: Machine>(ctx: &mut Ctx<'_, M>, address: u64, len: u64, prot: u32) -> Result<usize, Errno> {
    let known = raw::PROT_READ | raw::PROT_WRITE | raw::PROT_EXEC | raw::PROT_SEM;
    if prot & !(known | raw::PROT_GROWSDOWN | raw::PROT_GROWSUP) != 0 || !address.is_multiple_of(PAGE_SIZE) {
        return Err(Errno::EINVAL);
    }
    if prot & raw::PROT_GROWSDOWN != 0 && prot & raw::PROT_GROWSUP != 0 {
        return Err(Errno::EINVAL);
    }
    if len == 0 {
        return Ok(0);
    }
    let end = page_up(len).and_then(|len| address.checked_add(len)).ok_or(Errno::ENOMEM)?;
    if end > USER_END || address < PAGE_SIZE {
        return Err(Errno::ENOMEM);
    }
    let mut start = address;
    if prot & (raw::PROT_GROWSDOWN | raw::PROT_GROWSUP) != 0 {
        // PROT_GROWSDOWN extends the range down to the start of the stack. Dynamic loaders use the flag to make stacks
        // executable.
        let mut below = None;
        ctx.space()?.entries(address, &mut |entry| {
            below = (entry.range.contains(address) && entry.attributes.flags.contains(Flags::GROWS_DOWN))
                .then_some(entry.range.start);
            false
        });
        start = below.filter(|_| prot & raw::PROT_GROWSDOWN != 0).ok_or(Errno::EINVAL)?;
    }
    match ctx.space()?.protect(VirtRange { start, end }, prot_of(prot)) {
        Ok(()) => Ok(0),
        Err(MapError::Protection) => Err(Errno::EACCES),
        Err(error) => Err(error.into()),
    }
}
