//! `madvise`, `msync`, `mincore`.

use linux_raw_sys::general as raw;
use quire_fs::Want;
use quire_linux_state::errno::Errno;
use quire_linux_state::file::objects;
use quire_linux_state::machine::Machine;
use quire_linux_state::memory::page_up;
use quire_linux_state::user::USER_END;
use quire_linux_state::{Ctx, user};
use quire_vm::map::{Advice, Content, Flags, Inherit};
use quire_vm::{Access, FaultError, MapError, PAGE_SIZE, Prot, VirtRange};

/// Checks a range and rounds `len` up to pages. EINVAL if `address` is not aligned. `None` for an empty range.
fn checked(address: u64, len: u64) -> Result<Option<VirtRange>, Errno> {
    let rounded = page_up(len).ok_or(Errno::EINVAL)?;
    let end = address.checked_add(rounded).ok_or(Errno::EINVAL)?;
    if !address.is_multiple_of(PAGE_SIZE) || (len != 0 && rounded == 0) {
        return Err(Errno::EINVAL);
    }
    Ok((rounded != 0).then_some(VirtRange { start: address, end }))
}

/// Faults in every page of `range`, for writing where that is allowed.
pub(super) fn populate<M: Machine>(ctx: &Ctx<'_, M>, range: VirtRange) -> Result<(), Errno> {
    fault_in(ctx, range, None).map_err(|(_, error)| error)
}

/// Faults in every page of `range` for the access `how`. `None` means the access of [`populate`]. A failure returns the
/// errno, and the error of the memory core if that error is the cause.
fn fault_in<M: Machine>(
    ctx: &Ctx<'_, M>,
    range: VirtRange,
    how: Option<Access>,
) -> Result<(), (Option<FaultError>, Errno)> {
    let space = ctx.space().map_err(|e| (None, e))?;
    let mut at = range.start;
    while at < range.end {
        let mut found = None;
        space.entries(at, &mut |entry| {
            let shared = entry.attributes.flags.contains(Flags::SHARED);
            found = entry.range.contains(at).then_some((entry.range.end, entry.attributes.prot, shared));
            false
        });
        let Some((end, prot, shared)) = found else { return Err((None, Errno::ENOMEM)) };
        let access = how.unwrap_or(match prot.contains(Prot::WRITE) && !shared {
            true => Access::Write,
            false => Access::Read,
        });
        if how.is_none() && !prot.contains(access.needs()) {
            at = end;
            continue;
        }
        while at < end.min(range.end) {
            if ctx.thread.killed() {
                return Err((None, Errno::EINTR));
            }
            match space.fault(at, access) {
                Ok(_) => {}
                // Another thread has unmapped the page since the lookup. The next lookup finds the hole.
                Err(FaultError::NotMapped) => break,
                Err(error @ FaultError::OutOfMemory) => return Err((Some(error), Errno::ENOMEM)),
                Err(error) if how.is_some() => return Err((Some(error), Errno::EFAULT)),
                Err(_) => {}
            }
            at += PAGE_SIZE;
        }
    }
    Ok(())
}

/// Serves advice for forks.
fn inherit<M: Machine>(ctx: &mut Ctx<'_, M>, address: u64, len: u64, how: Inherit) -> Result<usize, Errno> {
    let Some(range) = checked(address, len)? else { return Ok(0) };
    if range.end > USER_END {
        return Err(Errno::ENOMEM);
    }
    match ctx.space()?.inherit(range, how) {
        Err(MapError::Invalid) => inherit_up_to(ctx, range, how),
        done => Ok(done.map(|()| 0)?),
    }
}

/// Applies `how` mapping by mapping, up to the first mapping that refuses it, as Linux does.
fn inherit_up_to<M: Machine>(ctx: &mut Ctx<'_, M>, range: VirtRange, how: Inherit) -> Result<usize, Errno> {
    let space = ctx.space()?;
    let mut at = range.start;
    while at < range.end {
        let mut found = None;
        space.entries(at, &mut |entry| {
            found = Some(entry.range);
            false
        });
        let Some(next) = found.filter(|next| next.start < range.end) else { break };
        space.inherit(VirtRange { start: next.start.max(at), end: next.end.min(range.end) }, how)?;
        at = next.end;
    }
    Err(Errno::EINVAL)
}

/// `madvise`
pub fn sys_madvise<M: Machine>(ctx: &mut Ctx<'_, M>, address: u64, len: u64, number: u32) -> Result<usize, Errno> {
    let first = VirtRange { start: 0, end: PAGE_SIZE };
    if address == 0
        && let Some(range) = checked(address, len)?
        && !ctx.space()?.is_mapped(first)
    {
        // The first page is a hole, as mostly. As on Linux, the advice applies to the rest, except that a call that
        // populates ends at the hole.
        let ends = matches!(number, raw::MADV_POPULATE_READ | raw::MADV_POPULATE_WRITE);
        advise(ctx, PAGE_SIZE, if ends { 0 } else { range.end - PAGE_SIZE }, number)?;
        return Err(Errno::ENOMEM);
    }
    advise(ctx, address, len, number)
}

fn advise<M: Machine>(ctx: &mut Ctx<'_, M>, address: u64, len: u64, number: u32) -> Result<usize, Errno> {
    let advice = match number {
        raw::MADV_NORMAL | raw::MADV_RANDOM | raw::MADV_SEQUENTIAL => Advice::Normal,
        raw::MADV_WILLNEED => Advice::WillNeed,
        raw::MADV_DONTNEED | raw::MADV_DONTNEED_LOCKED => Advice::DontNeed,
        raw::MADV_FREE => Advice::Free,
        raw::MADV_REMOVE => Advice::Remove,
        raw::MADV_DONTFORK => return inherit(ctx, address, len, Inherit::NONE),
        raw::MADV_DOFORK => return inherit(ctx, address, len, Inherit { included: Some(true), content: None }),
        raw::MADV_WIPEONFORK => {
            return inherit(ctx, address, len, Inherit { included: None, content: Some(Content::Zero) });
        }
        raw::MADV_KEEPONFORK => {
            return inherit(ctx, address, len, Inherit { included: None, content: Some(Content::Copy) });
        }
        raw::MADV_DONTDUMP | raw::MADV_DODUMP => {
            let Some(range) = checked(address, len)? else { return Ok(0) };
            if range.end > USER_END {
                return Err(Errno::ENOMEM);
            }
            return Ok(ctx.space()?.leave_out_of_dumps(range, number == raw::MADV_DONTDUMP).map(|()| 0)?);
        }
        // Hints for huge pages and ageing have no effect, but the range must be valid. Hints for merging
        // (`MADV_MERGEABLE`) are refused, as on a Linux that cannot merge pages.
        raw::MADV_HUGEPAGE | raw::MADV_NOHUGEPAGE | raw::MADV_COLD | raw::MADV_PAGEOUT => Advice::Normal,
        raw::MADV_POPULATE_READ | raw::MADV_POPULATE_WRITE => {
            let Some(range) = checked(address, len)? else { return Ok(0) };
            let access = if number == raw::MADV_POPULATE_READ { Access::Read } else { Access::Write };
            return match fault_in(ctx, range, Some(access)) {
                Ok(()) => Ok(0),
                Err((Some(FaultError::Protection), _)) => Err(Errno::EINVAL),
                Err((_, error)) => Err(error),
            };
        }
        _ => return Err(Errno::EINVAL),
    };
    let Some(range) = checked(address, len)? else { return Ok(0) };
    if range.end > USER_END {
        return Err(Errno::ENOMEM);
    }
    let takes =
        matches!(number, raw::MADV_DONTNEED | raw::MADV_FREE | raw::MADV_REMOVE | raw::MADV_COLD | raw::MADV_PAGEOUT);
    if takes && ctx.space()?.wired_in(range) != 0 {
        return Err(Errno::EINVAL);
    }
    match ctx.space()?.advise(range, advice) {
        Ok(()) => Ok(0),
        Err(MapError::Protection) => Err(Errno::EACCES),
        Err(error) => Err(error.into()),
    }
}

/// `msync`
pub fn sys_msync<M: Machine>(ctx: &mut Ctx<'_, M>, address: u64, len: u64, flags: u32) -> Result<usize, Errno> {
    let known = raw::MS_ASYNC | raw::MS_INVALIDATE | raw::MS_SYNC;
    if flags & !known != 0
        || !address.is_multiple_of(PAGE_SIZE)
        || flags & (raw::MS_ASYNC | raw::MS_SYNC) == known & !raw::MS_INVALIDATE
    {
        return Err(Errno::EINVAL);
    }
    let end = page_up(len).and_then(|len| address.checked_add(len)).ok_or(Errno::ENOMEM)?;
    if end == address {
        return Ok(0);
    }
    if end > USER_END {
        return Err(Errno::ENOMEM);
    }
    let range = VirtRange { start: address, end };
    if flags & raw::MS_INVALIDATE != 0 && ctx.space()?.wired_in(range) != 0 {
        return Err(Errno::EBUSY);
    }
    match flags & raw::MS_SYNC {
        0 => ctx.space()?.start_sync(range)?,
        _ => ctx.space()?.sync(range)?,
    }
    Ok(0)
}

/// The number of pages that `mincore` reports in one step.
const BATCH: u64 = 512;

/// Shows all pages of files as resident that the caller neither owns nor may write. Otherwise it could watch which pages
/// other users touch. Memory without a file is its programs' own.
fn hide_residence<M: Machine>(ctx: &Ctx<'_, M>, range: VirtRange, resident: &mut [u8]) -> Result<(), Errno> {
    let credentials = ctx.file_credentials();
    ctx.space()?.entries(range.start, &mut |entry| {
        let Some(part) = entry.range.intersect(&range) else { return false };
        let hidden = objects::is_file(entry)
            && !objects::dentry_of(entry).is_some_and(|dentry| {
                credentials.owns(&dentry.inode.attr()) || credentials.may_at(&dentry, Want::WRITE).is_ok()
            });
        if hidden {
            let pages = |at: u64| ((at - range.start) / PAGE_SIZE) as usize;
            resident[pages(part.start)..pages(part.end)].fill(1);
        }
        true
    });
    Ok(())
}

/// `mincore`
pub fn sys_mincore<M: Machine>(ctx: &mut Ctx<'_, M>, address: u64, len: u64, vector: u64) -> Result<usize, Errno> {
    if !address.is_multiple_of(PAGE_SIZE) {
        return Err(Errno::EINVAL);
    }
    let end =
        page_up(len).and_then(|len| address.checked_add(len)).filter(|end| *end <= USER_END).ok_or(Errno::ENOMEM)?;
    let pages = (end - address) / PAGE_SIZE;
    if !user::in_user_space(vector, pages as usize) {
        return Err(Errno::EFAULT);
    }
    let mut at = address;
    while at < end {
        if ctx.thread.killed() {
            return Err(Errno::EINTR);
        }
        let to = end.min(at + BATCH * PAGE_SIZE);
        let mut resident = [0u8; BATCH as usize];
        let objects = ctx.space()?.resident(VirtRange { start: at, end: to }, &mut |page, is| {
            if let Some(byte) = resident.get_mut(page as usize) {
                *byte = u8::from(is);
            }
        })?;
        if objects {
            hide_residence(ctx, VirtRange { start: at, end: to }, &mut resident)?;
        }
        let count = ((to - at) / PAGE_SIZE) as usize;
        ctx.user().write_bytes(vector + (at - address) / PAGE_SIZE, &resident[..count])?;
        at = to;
    }
    Ok(0)
}
