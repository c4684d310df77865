//! `mseal`.

use crate::memory::map::range;
use quire_linux_state::Ctx;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::memory::page_up;
use quire_vm::{MapError, PAGE_SIZE};

/// `mseal`
pub fn sys_mseal<M: Machine>(ctx: &mut Ctx<'_, M>, address: u64, len: u64, flags: u64) -> Result<usize, Errno> {
    if flags != 0 || !address.is_multiple_of(PAGE_SIZE) {
        return Err(Errno::EINVAL);
    }
    let end = page_up(len).and_then(|len| address.checked_add(len)).ok_or(Errno::EINVAL)?;
    if end == address {
        return Ok(0);
    }
    // A range outside user space has a hole.
    let range = range(address, len).map_err(|_| Errno::ENOMEM)?;
    match ctx.space()?.seal(range) {
        Ok(()) => Ok(0),
        Err(MapError::Invalid) => Err(Errno::ENOMEM),
        Err(error) => Err(error.into()),
    }
}
