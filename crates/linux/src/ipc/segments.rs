//! `shmget`, `shmat`, `shmdt`, `shmctl`.

use crate::ipc::command::{INFO, RMID, SET, STAT};
use crate::ipc::permission::{Permission, open};
use crate::memory;
use crate::memory::commit::{Add, may_add};
use quire_ipc::owner::{EXECUTE, READ, WRITE};
use quire_ipc::shm::Status;
use quire_linux_state::base::plain::Plain;
use quire_linux_state::ipc::host::Segment;
use quire_linux_state::ipc::memory::{DEVICE, SegmentMemory};
use quire_linux_state::process::limits::which;
use quire_linux_state::user::USER_END;
use quire_linux_state::{Ctx, Errno, Machine};
use quire_sync::atomic::Ordering;
use quire_vm::map::{MapRequest, Placement, Wire};
use quire_vm::object::ObjectRef;
use quire_vm::{MapError, PAGE_SIZE, Prot};

/// Flags of `shmget`.
const HUGETLB: i32 = 0o4000;
const NORESERVE: i32 = 0o10000;
/// Flags of `shmat`.
const RDONLY: i32 = 0o10000;
const RND: i32 = 0o20000;
const REMAP: i32 = 0o40000;
const EXEC: i32 = 0o100_000;
/// Commands of `shmctl`, in addition to the common ones.
const LOCK: i32 = 11;
const UNLOCK: i32 = 12;
const SHM_STAT: i32 = 13;
const SHM_INFO: i32 = 14;
const SHM_STAT_ANY: i32 = 15;
/// Flags in a segment's mode.
const DEST: u32 = 0o1000;
const LOCKED: u32 = 0o2000;

/// `struct shmid64_ds`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Described {
    permission: Permission,
    size: u64,
    attached: i64,
    detached: i64,
    changed: i64,
    creator: u32,
    last: u32,
    attaches: u64,
    unused: [u64; 2],
}

// SAFETY: neither the fields nor the gaps between them have padding, and every bit pattern is a value.
unsafe impl Plain for Described {}
const _: () = assert!(size_of::<Described>() == 112);

/// `struct shminfo64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Limits {
    most_bytes: u64,
    least_bytes: u64,
    most: u64,
    most_of_process: u64,
    pages: u64,
    unused: [u64; 4],
}

// SAFETY: all fields are integers of one size, so there is no padding and every bit pattern is a value.
unsafe impl Plain for Limits {}

/// `struct shm_info`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Sums {
    used: i32,
    padding: u32,
    pages: u64,
    resident: u64,
    swapped: u64,
    swap_attempts: u64,
    swap_successes: u64,
}

// SAFETY: all fields are integers, and all padding is declared as a field.
unsafe impl Plain for Sums {}
const _: () = assert!(size_of::<Sums>() == 48);

/// `shmget`
pub fn sys_shmget<M: Machine>(ctx: &mut Ctx<'_, M>, key: i32, size: u64, flags: i32) -> Result<usize, Errno> {
    let linux = ctx.linux;
    let id = ctx.as_caller(|caller| {
        linux.ipc.segments.open(caller, key, size, open(flags), |name, attaches| {
            if flags & HUGETLB != 0 {
                // As on a Linux without huge pages, the call fails.
                return Err(quire_ipc::Error::NotFound);
            }
            let bytes = quire_linux_state::memory::page_up(size).ok_or(quire_ipc::Error::OutOfMemory)?;
            let add = if flags & NORESERVE == 0 { Add::Shared } else { Add::SharedUnreserved };
            may_add(linux, bytes, add).map_err(|_| quire_ipc::Error::OutOfMemory)?;
            SegmentMemory::new(linux, name, attaches, bytes)
        })
    })?;
    Ok(id as usize)
}

/// The address at which a segment is attached. `None` means any free address.
fn place(address: u64, flags: i32) -> Result<Option<u64>, Errno> {
    if address == 0 {
        return if flags & REMAP != 0 { Err(Errno::EINVAL) } else { Ok(None) };
    }
    let down = address & !(PAGE_SIZE - 1);
    if down != address && (flags & RND == 0 || (down == 0 && flags & REMAP != 0)) {
        return Err(Errno::EINVAL);
    }
    Ok(Some(down))
}

/// `shmat`
pub fn sys_shmat<M: Machine>(ctx: &mut Ctx<'_, M>, id: i32, address: u64, flags: i32) -> Result<usize, Errno> {
    let at = place(address, flags)?;
    let (mut prot, mut wanted) = (Prot::READ | Prot::WRITE, READ | WRITE);
    let mut max_prot = Prot::READ | Prot::WRITE | Prot::EXEC;
    if flags & RDONLY != 0 {
        (prot, wanted) = (Prot::READ, READ);
        max_prot -= Prot::WRITE;
    }
    if flags & EXEC != 0 {
        prot |= Prot::EXEC;
        wanted |= EXECUTE;
    }
    let segment = ctx.linux.ipc.segments.find(id)?;
    let object: ObjectRef<M> = ctx.as_caller(|caller| segment.attach(caller, wanted))?;
    let len = quire_linux_state::memory::page_up(segment.size()).filter(|len| *len <= USER_END).ok_or(Errno::ENOMEM)?;
    let at = match at {
        None => Placement::Any { hint: 0 },
        Some(at) => {
            let end = at.checked_add(len).ok_or(Errno::EINVAL)?;
            if end > USER_END {
                return Err(Errno::ENOMEM);
            }
            if at < PAGE_SIZE {
                // The first page is never mapped, because that would help attacks by null pointers.
                return Err(Errno::EPERM);
            }
            if flags & REMAP != 0 { Placement::Fixed(at) } else { Placement::FixedNoReplace(at) }
        }
    };
    let space = ctx.space()?;
    if space.future() != Wire::No {
        memory::lock::may_add(ctx, len)?;
    }
    let request =
        MapRequest { prot, max_prot, shared: true, object: Some((&object, 0)), ..MapRequest::private(at, len) };
    match space.map(&request) {
        Ok(at) => Ok(at as usize),
        // Another mapping overlaps the range.
        Err(MapError::Exists) => Err(Errno::EINVAL),
        Err(e) => Err(e.into()),
    }
}

/// `shmdt`
pub fn sys_shmdt<M: Machine>(ctx: &mut Ctx<'_, M>, address: u64) -> Result<usize, Errno> {
    if !address.is_multiple_of(PAGE_SIZE) {
        return Err(Errno::EINVAL);
    }
    let space = ctx.space()?;
    // Finds the segment that was attached at `address`. Each of its mappings has the address `address` plus the offset
    // in the segment.
    let mut found: Option<ObjectRef<M>> = None;
    let mut done = Ok(());
    space.entries(address, &mut |entry| {
        if found.as_ref().is_some_and(|object| entry.range.end - address > object.size()) {
            return false;
        }
        let Some(object) = entry.object.as_ref().filter(|_| entry.ident().0 == DEVICE) else { return true };
        let in_place = entry.range.start.checked_sub(address) == Some(entry.offset);
        if in_place && found.as_ref().is_none_or(|first| first == object) {
            found = Some(object.clone());
            done = space.unmap(entry.range);
        }
        done.is_ok()
    });
    done?;
    if found.is_some() { Ok(0) } else { Err(Errno::EINVAL) }
}

impl Described {
    fn new(status: &Status) -> Self {
        let flags = if status.removed { DEST } else { 0 } | if status.locked { LOCKED } else { 0 };
        Described {
            permission: Permission::new(status.key, status.sequence, &status.owner, flags),
            size: status.size,
            attached: status.attached,
            detached: status.detached,
            changed: status.changed,
            creator: status.creator,
            last: status.last_pid,
            attaches: status.attaches,
            unused: [0; 2],
        }
    }
}

/// `shmctl`
pub fn sys_shmctl<M: Machine>(ctx: &mut Ctx<'_, M>, id: i32, command: i32, at: u64) -> Result<usize, Errno> {
    if command < 0 || id < 0 {
        return Err(Errno::EINVAL);
    }
    let segments = &ctx.linux.ipc.segments;
    let describe = |ctx: &Ctx<'_, M>, segment: &Segment<M>, any: bool| -> Result<Status, Errno> {
        let status = ctx.as_caller(|caller| segment.status((!any).then_some(caller)))?;
        ctx.write(at, &Described::new(&status))?;
        Ok(status)
    };
    match command {
        INFO => {
            let limits = segments.limits();
            let most = limits.count.load(Ordering::Relaxed) as u64;
            ctx.write(
                at,
                &Limits {
                    most_bytes: limits.size.load(Ordering::Relaxed),
                    least_bytes: 1,
                    most,
                    most_of_process: most,
                    pages: limits.pages.load(Ordering::Relaxed),
                    unused: [0; 4],
                },
            )?;
            Ok(segments.registry().highest()?)
        }
        SHM_INFO => {
            let sums = segments.sums()?;
            let (pages, resident, used) = (sums.pages, sums.resident, sums.count as i32);
            ctx.write(
                at,
                &Sums { used, padding: 0, pages, resident, swapped: 0, swap_attempts: 0, swap_successes: 0 },
            )?;
            Ok(segments.registry().highest()?)
        }
        STAT => describe(ctx, &*segments.find(id)?, false).map(|_| 0),
        SHM_STAT => describe(ctx, &*segments.at(id)?, false).map(|status| status.id as usize),
        SHM_STAT_ANY => describe(ctx, &*segments.at(id)?, true).map(|status| status.id as usize),
        SET => {
            let new: Described = ctx.read(at)?;
            ctx.as_caller(|caller| segments.change(caller, id, new.permission.change()))?;
            Ok(0)
        }
        RMID => {
            ctx.as_caller(|caller| segments.remove(caller, id))?;
            Ok(0)
        }
        LOCK | UNLOCK => {
            if command == LOCK && ctx.process().soft_limit(which::MEMLOCK) == 0 {
                // With a limit of 0, only a privileged caller may lock.
                ctx.as_caller(|caller| if caller.locks { Ok(()) } else { Err(Errno::EPERM) })?;
            }
            ctx.as_caller(|caller| segments.lock(caller, id, command == LOCK))?;
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}
