//! `mremap`.

use crate::memory::commit::{self, Add};
use linux_raw_sys::general as raw;
use quire_linux_state::Ctx;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::memory::page_up;
use quire_linux_state::user::USER_END;
use quire_vm::map::Move;
use quire_vm::{MapError, PAGE_SIZE, VirtRange};

const MAYMOVE: u32 = raw::MREMAP_MAYMOVE;
const FIXED: u32 = raw::MREMAP_FIXED;
const DONTUNMAP: u32 = raw::MREMAP_DONTUNMAP;

/// `mremap`
pub fn sys_mremap<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    old: u64,
    old_len: u64,
    new_len: u64,
    flags: u32,
    new: u64,
) -> Result<usize, Errno> {
    if flags & !(MAYMOVE | FIXED | DONTUNMAP) != 0 || (flags & (FIXED | DONTUNMAP) != 0 && flags & MAYMOVE == 0) {
        return Err(Errno::EINVAL);
    }
    if !old.is_multiple_of(PAGE_SIZE) || new_len == 0 || (flags & DONTUNMAP != 0 && old_len != new_len) {
        return Err(Errno::EINVAL);
    }
    let old_len = page_up(old_len).ok_or(Errno::EINVAL)?;
    let new_len = page_up(new_len).filter(|len| *len <= USER_END).ok_or(Errno::EINVAL)?;
    let old_end = old.checked_add(old_len).filter(|end| *end <= USER_END).ok_or(Errno::EFAULT)?;
    let how = if flags & FIXED != 0 {
        let fits = new.checked_add(new_len).is_some_and(|end| end <= USER_END);
        if !new.is_multiple_of(PAGE_SIZE) || !fits || (new < old_end && old < new.wrapping_add(new_len)) {
            return Err(Errno::EINVAL);
        }
        crate::memory::map::may_map_at(ctx, new)?;
        Move::To(new)
    } else if flags & MAYMOVE != 0 {
        Move::May
    } else {
        Move::No
    };
    if new_len > old_len {
        if commit::may_add(ctx.linux, new_len - old_len, Add::Private).is_err() {
            let mut counted = false;
            ctx.space()?.entries(old, &mut |entry| {
                counted = commit::is_counted(&entry.attributes);
                false
            });
            if counted {
                return Err(Errno::ENOMEM);
            }
        }
        if ctx.space()?.wired_in(VirtRange { start: old, end: old_end.max(old + PAGE_SIZE) }) != 0 {
            crate::memory::lock::may_add(ctx, new_len - old_len)?;
        }
    }
    match ctx.space()?.remap(VirtRange { start: old, end: old_end }, new_len, how, flags & DONTUNMAP != 0) {
        Ok(at) => Ok(at as usize),
        // The old range has a hole, or spans more than one mapping.
        Err(MapError::NotMapped) => Err(Errno::EFAULT),
        Err(error) => Err(error.into()),
    }
}
