//! `mmap` and `munmap`, and the limit on a program's mappings.

use crate::file;
use crate::memory::commit::Add;
use linux_raw_sys::general as raw;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::memory::page_up;
use quire_linux_state::user::USER_END;
use quire_linux_state::{Ctx, Linux};
use quire_sync::atomic::Ordering;
use quire_vm::map::{MapRequest, Placement, Wire};
use quire_vm::object::ObjectRef;
use quire_vm::{MapError, PAGE_SIZE, Prot, VirtRange};

const SHARED: u32 = raw::MAP_SHARED;
const PRIVATE: u32 = raw::MAP_PRIVATE;
const SHARED_VALIDATE: u32 = raw::MAP_SHARED_VALIDATE;
const TYPE: u32 = raw::MAP_TYPE;
const FIXED: u32 = raw::MAP_FIXED;
const FIXED_NOREPLACE: u32 = raw::MAP_FIXED_NOREPLACE;
const ANONYMOUS: u32 = raw::MAP_ANONYMOUS;
const GROWSDOWN: u32 = raw::MAP_GROWSDOWN;
const NORESERVE: u32 = raw::MAP_NORESERVE;
const POPULATE: u32 = raw::MAP_POPULATE;
const NONBLOCK: u32 = raw::MAP_NONBLOCK;
const LOCKED: u32 = raw::MAP_LOCKED;
const HUGETLB: u32 = raw::MAP_HUGETLB;
const SYNC: u32 = raw::MAP_SYNC;
const BELOW_4_GIB: u32 = raw::MAP_32BIT;
/// The flags that MAP_SHARED_VALIDATE accepts. Mappings of other types ignore unknown bits.
const KNOWN: u32 = TYPE
    | FIXED
    | FIXED_NOREPLACE
    | ANONYMOUS
    | GROWSDOWN
    | NORESERVE
    | POPULATE
    | NONBLOCK
    | LOCKED
    | HUGETLB
    | BELOW_4_GIB
    | raw::MAP_DENYWRITE
    | raw::MAP_EXECUTABLE
    | raw::MAP_STACK;

/// Converts `PROT_*` bits to a protection.
pub(super) fn prot_of(bits: u32) -> Prot {
    let mut prot = Prot::empty();
    prot.set(Prot::READ, bits & raw::PROT_READ != 0);
    prot.set(Prot::WRITE, bits & raw::PROT_WRITE != 0);
    prot.set(Prot::EXEC, bits & raw::PROT_EXEC != 0);
    prot
}

/// The start and end of the address window for MAP_32BIT, as on Linux: the second GiB.
const LOW: (u64, u64) = (0x4000_0000, 0x8000_0000);

fn placement(address: u64, flags: u32) -> Result<Placement, Errno> {
    if flags & (FIXED | FIXED_NOREPLACE) == 0 {
        let hint = if flags & BELOW_4_GIB != 0 && address == 0 { LOW.0 } else { address & !(PAGE_SIZE - 1) };
        return Ok(Placement::Any { hint });
    }
    if !address.is_multiple_of(PAGE_SIZE) {
        return Err(Errno::EINVAL);
    }
    if address < PAGE_SIZE {
        // The first page is never mapped, because that would help attacks by null pointers.
        return Err(Errno::EPERM);
    }
    Ok(if flags & FIXED_NOREPLACE != 0 { Placement::FixedNoReplace(address) } else { Placement::Fixed(address) })
}

/// Fails with EEXIST if a MAP_FIXED_NOREPLACE mapping would overlap another. This only decides which error is returned;
/// the map itself checks again.
fn refuse_to_replace<M: Machine>(ctx: &Ctx<'_, M>, at: Placement, len: u64) -> Result<(), Errno> {
    let Placement::FixedNoReplace(at) = at else { return Ok(()) };
    let mut next = None;
    ctx.space()?.entries(at, &mut |entry| {
        next = Some(entry.range.start);
        false
    });
    if next.is_some_and(|start| start < at + len) { Err(Errno::EEXIST) } else { Ok(()) }
}

/// Changes the limit on mappings, for running and for new programs. A program that a concurrent fork or exec makes may
/// keep the old limit.
pub fn set_max_map_count<M: Machine>(linux: &Linux<M>, count: u64) {
    linux.map_count.store(count, Ordering::SeqCst);
    for process in linux.ids.processes() {
        if let Some(memory) = process.memory() {
            memory.change_limits(|limits| quire_vm::map::Limits { entries: count, ..limits });
        }
    }
}

/// The checked arguments of `mmap`, without the file.
struct Wanted {
    at: Placement,
    len: u64,
    prot: Prot,
    shared: bool,
    flags: u32,
    offset: u64,
}

impl Wanted {
    /// Checks the arguments. `len` must not be 0.
    fn new(address: u64, len: u64, prot: u32, flags: u32, offset: u64) -> Result<Self, Errno> {
        let shared = match flags & TYPE {
            PRIVATE => false,
            SHARED => true,
            SHARED_VALIDATE if flags & ANONYMOUS != 0 => return Err(Errno::EINVAL),
            SHARED_VALIDATE if flags & SYNC != 0 || flags & !KNOWN != 0 => return Err(Errno::EOPNOTSUPP),
            SHARED_VALIDATE => true,
            _ => return Err(Errno::EINVAL),
        };
        let len = page_up(len).filter(|len| *len <= USER_END).ok_or(Errno::ENOMEM)?;
        if offset.checked_add(len).is_none_or(|end| end > i64::MAX as u64) {
            return Err(Errno::EOVERFLOW);
        }
        if flags & HUGETLB != 0 {
            // There is no pool of huge pages.
            return Err(Errno::ENOMEM);
        }
        let at = placement(address, flags)?;
        if let Placement::Fixed(at) | Placement::FixedNoReplace(at) = at
            && at.checked_add(len).is_none_or(|end| end > USER_END)
        {
            return Err(Errno::ENOMEM);
        }
        Ok(Wanted { at, len, prot: prot_of(prot), shared, flags, offset })
    }

    fn has(&self, flag: u32) -> bool {
        self.flags & flag != 0
    }

    /// Checks the limit of locked memory.
    fn check_lock<M: Machine>(&self, ctx: &Ctx<'_, M>) -> Result<(), Errno> {
        if self.has(LOCKED) {
            crate::memory::lock::may_lock(ctx)?;
        }
        if self.has(LOCKED) || ctx.space()?.future() != Wire::No {
            crate::memory::lock::may_add(ctx, self.len)?;
        }
        Ok(())
    }

    /// The mapped file, or `None` for an anonymous mapping. Only a private anonymous mapping may grow down.
    fn file<M: Machine>(&self, ctx: &Ctx<'_, M>, fd: i32) -> Result<Option<file::Mappable<M>>, Errno> {
        if self.has(ANONYMOUS) {
            return if self.has(GROWSDOWN) && self.shared { Err(Errno::EINVAL) } else { Ok(None) };
        }
        let found = file::mappable(ctx, fd, self.prot.contains(Prot::WRITE), self.shared);
        // As on Linux, EEXIST takes precedence over errors of the file's permissions.
        if !matches!(found, Err(Errno::EBADF)) {
            refuse_to_replace(ctx, self.at, self.len)?;
        }
        let file = found?;
        if self.has(GROWSDOWN) {
            return Err(Errno::EINVAL);
        }
        if !file.max_prot.contains(self.prot) {
            return Err(if file.max_prot.contains(self.prot & Prot::EXEC) { Errno::EACCES } else { Errno::EPERM });
        }
        Ok(Some(file))
    }

    /// Checks that the commit limit allows the anonymous memory of this request.
    fn check_commit<M: Machine>(&self, ctx: &Ctx<'_, M>) -> Result<(), Errno> {
        let add = match (self.shared, !self.has(NORESERVE)) {
            (false, true) => Add::Private,
            (false, false) => Add::PrivateUnreserved,
            (true, true) => Add::Shared,
            (true, false) => Add::SharedUnreserved,
        };
        crate::memory::commit::may_add(ctx.linux, self.len, add)
    }
}

/// `mmap`
pub fn sys_mmap<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    address: u64,
    len: u64,
    prot: u32,
    flags: u32,
    fd: i32,
    offset: u64,
) -> Result<usize, Errno> {
    if !offset.is_multiple_of(PAGE_SIZE) {
        return Err(Errno::EINVAL);
    }
    if len == 0 {
        // As on Linux, an invalid descriptor takes precedence over the invalid length.
        let file = if flags & ANONYMOUS == 0 { ctx.file(fd).err() } else { None };
        return Err(file.unwrap_or(Errno::EINVAL));
    }
    let wanted = Wanted::new(address, len, prot, flags, offset)?;
    wanted.check_lock(ctx)?;
    let (at, len, prot, shared) = (wanted.at, wanted.len, wanted.prot, wanted.shared);
    let (file, fresh, to_store);
    let mut request = MapRequest { prot, shared, ..MapRequest::private(at, len) };
    request.populate = wanted.has(POPULATE) && !wanted.has(NONBLOCK);
    if wanted.has(LOCKED) {
        request.wire = Wire::Now;
    }
    file = wanted.file(ctx, fd)?;
    if let Some(file) = &file {
        request.max_prot = file.max_prot;
        // The announcement is kept until the writable mapping exists. So a concurrent seal against writing finds either
        // the announcement or the mapping.
        to_store = if shared && file.max_prot.contains(Prot::WRITE) { file.to_store() } else { Ok(None) };
        if let Err(sealed) = &to_store {
            if prot.contains(Prot::WRITE) {
                return Err(*sealed);
            }
            request.max_prot -= Prot::WRITE;
        }
        // Without an object (`/dev/zero`), the mapping is anonymous memory.
        request.object = file.object().map(|object| (object, wanted.offset));
    } else {
        request.grows_down = wanted.has(GROWSDOWN);
    }
    if request.object.is_none() {
        if shared || prot.contains(Prot::WRITE) {
            wanted.check_commit(ctx)?;
        }
        if shared {
            fresh = ObjectRef::anonymous(ctx.linux.vm, len / PAGE_SIZE)?;
            request.object = Some((&fresh, 0));
        }
    }
    let space = ctx.space()?;
    let at = space.map(&request)?;
    if wanted.has(BELOW_4_GIB) && matches!(request.at, Placement::Any { .. }) && at + len > LOW.1 {
        space.unmap(VirtRange { start: at, end: at + len })?;
        return Err(Errno::ENOMEM);
    }
    Ok(at as usize)
}

/// `munmap`
pub fn sys_munmap<M: Machine>(ctx: &mut Ctx<'_, M>, address: u64, len: u64) -> Result<usize, Errno> {
    let range = range(address, len)?;
    match ctx.space()?.unmap(range) {
        Err(MapError::Invalid) if range.start < PAGE_SIZE => {
            // Page 0 is never mapped, so only the rest of the range is unmapped.
            if range.end > PAGE_SIZE {
                ctx.space()?.unmap(VirtRange { start: PAGE_SIZE, ..range })?;
            }
        }
        other => other?,
    }
    Ok(0)
}

/// Checks a range and rounds `len` up to pages. EINVAL if `address` is not aligned, or if the range is empty or outside
/// user space.
pub(super) fn range(address: u64, len: u64) -> Result<VirtRange, Errno> {
    let range = page_up(len).and_then(|len| VirtRange::checked(address, len)).ok_or(Errno::EINVAL)?;
    if range.end > USER_END { Err(Errno::EINVAL) } else { Ok(range) }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
