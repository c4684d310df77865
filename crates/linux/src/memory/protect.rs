//! `mprotect`, and the calls of memory locking.

use super::map::{prot_of, range};
use super::page_up;
use crate::Ctx;
use crate::errno::Errno;
use crate::machine::Machine;
use crate::process::limits::which;
use crate::user::USER_END;
use linux_raw_sys::general as raw;
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
        // The whole stack that the range ends in: what dynamic loaders ask for to make stacks executable.
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

/// Nothing is paged out, so memory that is there is locked: locking makes it be there.
fn lock<M: Machine>(ctx: &Ctx<'_, M>, address: u64, len: u64, populate: bool) -> Result<usize, Errno> {
    let start = address & !(PAGE_SIZE - 1);
    let len = len.checked_add(address - start).and_then(page_up).ok_or(Errno::EINVAL)?;
    if len == 0 {
        return Ok(0);
    }
    if !ctx.process().credentials().is_root() && len > ctx.process().limits().soft(which::MEMLOCK) {
        return Err(Errno::ENOMEM);
    }
    let range = range(start, len)?;
    let mut mapped = range.start;
    ctx.space()?.entries(range.start, &mut |entry| {
        if entry.range.start > mapped || mapped >= range.end {
            return false;
        }
        mapped = entry.range.end;
        true
    });
    if mapped < range.end {
        return Err(Errno::ENOMEM);
    }
    if populate {
        super::advise::populate(ctx, range)?;
    }
    Ok(0)
}

/// `mlock`
pub fn sys_mlock<M: Machine>(ctx: &mut Ctx<'_, M>, address: u64, len: u64) -> Result<usize, Errno> {
    lock(ctx, address, len, true)
}

/// `mlock2`
pub fn sys_mlock2<M: Machine>(ctx: &mut Ctx<'_, M>, address: u64, len: u64, flags: u32) -> Result<usize, Errno> {
    if flags & !raw::MLOCK_ONFAULT != 0 {
        return Err(Errno::EINVAL);
    }
    lock(ctx, address, len, flags == 0)
}

/// `munlock`
pub fn sys_munlock<M: Machine>(ctx: &mut Ctx<'_, M>, address: u64, len: u64) -> Result<usize, Errno> {
    lock(ctx, address, len, false)
}

/// `mlockall`
pub fn sys_mlockall<M: Machine>(_ctx: &mut Ctx<'_, M>, flags: u32) -> Result<usize, Errno> {
    let known = raw::MCL_CURRENT | raw::MCL_FUTURE | raw::MCL_ONFAULT;
    if flags == 0 || flags & !known != 0 || flags == raw::MCL_ONFAULT { Err(Errno::EINVAL) } else { Ok(0) }
}

/// `munlockall`
pub fn sys_munlockall<M: Machine>(_ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    Ok(0)
}
