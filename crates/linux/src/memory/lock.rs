//! `mlock`, `mlock2`, `munlock`, `mlockall`, `munlockall`, and the limit on locked memory.

use linux_raw_sys::general as raw;
use quire_linux_state::Ctx;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::memory::{AddressSpace, page_up};
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::process::limits::which;
use quire_linux_state::process::thread::Thread;
use quire_linux_state::user::USER_END;
use quire_vm::map::{Flags, Wire};
use quire_vm::{MapError, PAGE_SIZE, VirtRange};

/// The most bytes that the caller may lock. `None` means no limit, for privileged callers.
fn limit<M: Machine>(ctx: &Ctx<'_, M>) -> Option<u64> {
    (!ctx.credentials().may(cap::IPC_LOCK)).then(|| ctx.process().soft_limit(which::MEMLOCK))
}

/// Fails with EPERM if the caller's limit is 0.
pub(super) fn may_lock<M: Machine>(ctx: &Ctx<'_, M>) -> Result<(), Errno> {
    if limit(ctx) == Some(0) { Err(Errno::EPERM) } else { Ok(()) }
}

/// Whether the limit of locked memory allows that a locked stack grows down to `address`.
#[cold]
pub(crate) fn stack_may_grow<M: Machine>(thread: &Thread<M>, memory: &AddressSpace<M>, address: u64) -> bool {
    let limit = thread.process.soft_limit(which::MEMLOCK);
    let mut more = 0;
    memory.entries(address, &mut |entry| {
        let flags = entry.attributes.flags;
        if flags.contains(Flags::GROWS_DOWN | Flags::WIRED) {
            more = entry.range.start.saturating_sub(address & !(PAGE_SIZE - 1));
        }
        false
    });
    // SAFETY: the value belongs to the calling thread, which does not replace it during the access.
    let free = || unsafe { thread.credentials.get() }.may(cap::IPC_LOCK);
    more == 0 || memory.wired_bytes().saturating_add(more) <= limit || free()
}

/// Fails with EAGAIN if `more` further locked bytes would exceed the limit.
pub(crate) fn may_add<M: Machine>(ctx: &Ctx<'_, M>, more: u64) -> Result<(), Errno> {
    match limit(ctx) {
        Some(limit) if ctx.space()?.wired_bytes().saturating_add(more) > limit => Err(Errno::EAGAIN),
        _ => Ok(()),
    }
}

/// The pages that contain the `len` bytes at `address`. `None` for an empty range. ENOMEM for a range outside user
/// space.
fn pages(address: u64, len: u64) -> Result<Option<VirtRange>, Errno> {
    let start = address & !(PAGE_SIZE - 1);
    let end = len.checked_add(address - start).and_then(page_up).and_then(|len| start.checked_add(len));
    let end = end.ok_or(Errno::EINVAL)?;
    if end == start {
        return Ok(None);
    }
    if end > USER_END { Err(Errno::ENOMEM) } else { Ok(Some(VirtRange { start, end })) }
}

/// The number of bytes that are faulted in between two checks for a fatal signal.
const STEP: u64 = 1 << 20;

fn wire<M: Machine>(ctx: &Ctx<'_, M>, range: VirtRange, how: Wire) -> Result<usize, Errno> {
    let space = ctx.space()?;
    let mut result = space.wire(range, how);
    let mut at = range.start;
    while how == Wire::Now && result.is_ok() && at < range.end {
        if ctx.thread.killed() {
            return Err(Errno::EINTR);
        }
        let end = range.end.min(at + STEP);
        result = match space.make_resident(VirtRange { start: at, end }) {
            // The whole range was mapped when it was wired. Another thread may have unmapped pages since then, which is
            // no error.
            Err(MapError::NotMapped) => Ok(()),
            done => done,
        };
        at = end;
    }
    match result {
        Ok(()) => Ok(0),
        Err(MapError::OutOfMemory) => Err(Errno::EAGAIN),
        // The range has a hole, or a page that cannot be made resident.
        Err(MapError::NotMapped | MapError::Protection) => Err(Errno::ENOMEM),
        Err(error) => Err(error.into()),
    }
}

fn lock<M: Machine>(ctx: &Ctx<'_, M>, address: u64, len: u64, how: Wire) -> Result<usize, Errno> {
    may_lock(ctx)?;
    let Some(range) = pages(address, len)? else { return Ok(0) };
    if let Some(limit) = limit(ctx) {
        let memory = ctx.space()?;
        // Pages that are locked already are not counted twice.
        let after = memory.wired_bytes().saturating_add(range.len()).saturating_sub(memory.wired_in(range));
        if after > limit {
            return Err(Errno::ENOMEM);
        }
    }
    wire(ctx, range, how)
}

/// `mlock`
pub fn sys_mlock<M: Machine>(ctx: &mut Ctx<'_, M>, address: u64, len: u64) -> Result<usize, Errno> {
    lock(ctx, address, len, Wire::Now)
}

/// `mlock2`
pub fn sys_mlock2<M: Machine>(ctx: &mut Ctx<'_, M>, address: u64, len: u64, flags: u32) -> Result<usize, Errno> {
    match flags {
        0 => lock(ctx, address, len, Wire::Now),
        raw::MLOCK_ONFAULT => lock(ctx, address, len, Wire::OnFault),
        _ => Err(Errno::EINVAL),
    }
}

/// `munlock`
pub fn sys_munlock<M: Machine>(ctx: &mut Ctx<'_, M>, address: u64, len: u64) -> Result<usize, Errno> {
    match pages(address, len)? {
        Some(range) => wire(ctx, range, Wire::No),
        None => Ok(0),
    }
}

/// `mlockall`
pub fn sys_mlockall<M: Machine>(ctx: &mut Ctx<'_, M>, flags: u32) -> Result<usize, Errno> {
    let known = raw::MCL_CURRENT | raw::MCL_FUTURE | raw::MCL_ONFAULT;
    if flags == 0 || flags & !known != 0 || flags == raw::MCL_ONFAULT {
        return Err(Errno::EINVAL);
    }
    may_lock(ctx)?;
    let memory = ctx.space()?;
    let current = flags & raw::MCL_CURRENT != 0;
    if current && limit(ctx).is_some_and(|limit| memory.stats().mapped_bytes > limit) {
        return Err(Errno::ENOMEM);
    }
    let how = if flags & raw::MCL_ONFAULT != 0 { Wire::OnFault } else { Wire::Now };
    memory.wire_future(if flags & raw::MCL_FUTURE != 0 { how } else { Wire::No });
    if current {
        memory.wire_all(how)?;
        if how == Wire::Now {
            let mut at = PAGE_SIZE;
            while let Some(range) = next_mapped(memory, at) {
                if ctx.thread.killed() {
                    return Err(Errno::EINTR);
                }
                // For `mlockall`, a page that cannot be made resident is no error.
                let _as_far_as_it_goes = crate::memory::advise::populate(ctx, range);
                at = range.end;
            }
        }
    }
    Ok(0)
}

fn next_mapped<M: Machine>(memory: &AddressSpace<M>, from: u64) -> Option<VirtRange> {
    let mut found = None;
    memory.entries(from, &mut |entry| {
        found = Some(entry.range);
        false
    });
    found
}

/// `munlockall`
pub fn sys_munlockall<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    let memory = ctx.space()?;
    memory.wire_future(Wire::No);
    memory.wire_all(Wire::No)?;
    Ok(0)
}
