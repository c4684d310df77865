//! `semget`, `semop`, `semtimedop`, `semctl`.

use crate::ipc::command::{INFO, RMID, SET, STAT};
use crate::ipc::permission::{Permission, open};
use quire_heap::Vec;
use quire_ipc::owner::WRITE;
use quire_ipc::sem::{Array, Operation, Status, VALUE_MAX, Wait};
use quire_linux_state::base::plain::Plain;
use quire_linux_state::ipc::host::{IpcHost, Undos};
use quire_linux_state::time::Timespec;
use quire_linux_state::{Ctx, Errno, Machine, Process};
use quire_sync::atomic::Ordering;
use quire_sync::{Rank, SpinLock};

/// Commands of `semctl`, in addition to the common ones.
const GETPID: i32 = 11;
const GETVAL: i32 = 12;
const GETALL: i32 = 13;
const GETNCNT: i32 = 14;
const GETZCNT: i32 = 15;
const SETVAL: i32 = 16;
const SETALL: i32 = 17;
const SEM_STAT: i32 = 18;
const SEM_INFO: i32 = 19;
const SEM_STAT_ANY: i32 = 20;
/// Flags of an operation.
const NOWAIT: i16 = 0o4000;
const UNDO: i16 = 0x1000;
/// The most operations of a call that are read to the stack.
const FEW: usize = 4;

/// `struct sembuf`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Buffer {
    number: u16,
    change: i16,
    flags: i16,
}

// SAFETY: all fields are integers of one size, so there is no padding and every bit pattern is a value.
unsafe impl Plain for Buffer {}

/// `struct semid64_ds`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Described {
    permission: Permission,
    operated: i64,
    unused: u64,
    changed: i64,
    unused_too: u64,
    len: u64,
    rest: [u64; 2],
}

// SAFETY: neither the fields nor the gaps between them have padding, and every bit pattern is a value.
unsafe impl Plain for Described {}
const _: () = assert!(size_of::<Described>() == 104);

impl Described {
    fn new(status: &Status) -> Self {
        Described {
            permission: Permission::new(status.key, status.sequence, &status.owner, 0),
            operated: status.operated,
            unused: 0,
            changed: status.changed,
            unused_too: 0,
            len: status.len as u64,
            rest: [0; 2],
        }
    }
}

/// `semget`
pub fn sys_semget<M: Machine>(ctx: &mut Ctx<'_, M>, key: i32, n: i32, flags: i32) -> Result<usize, Errno> {
    let n = usize::try_from(n).map_err(|_| Errno::EINVAL)?;
    let id = ctx.as_caller(|caller| ctx.linux.ipc.arrays.open(caller, key, n, open(flags)))?;
    Ok(id as usize)
}

/// A reference to the undo list of the caller's process. The list is made at its first use.
fn of_process<M: Machine>(ctx: &Ctx<'_, M>) -> Result<Undos<M>, Errno> {
    let place = ctx.process().undos.get_or_make(|| SpinLock::new(Rank::OWNED, None))?;
    if let Some(list) = place.lock().as_ref() {
        return Ok(list.share());
    }
    let mut new = Some(ctx.linux.ipc.arrays.undos()?);
    let share = {
        let mut there = place.lock();
        if there.is_none() {
            *there = new.take();
        }
        there.as_ref().map(Undos::share)
    };
    // If another thread has made the list since the check, the new list is dropped after the lock is released.
    drop(new);
    share.ok_or(Errno::ENOMEM)
}

/// The undo list that the calling thread uses: its own list, or the list of its process.
fn own_undos<'a, M: Machine>(ctx: &'a Ctx<'_, M>) -> Result<&'a Undos<M>, Errno> {
    let undos = &ctx.thread.undos;
    // SAFETY: only the owning thread has a context, and nothing borrows the list while it is `None`.
    unsafe {
        if undos.get().is_none() {
            undos.replace(Some(of_process(ctx)?));
        }
        undos.get().as_ref().ok_or(Errno::ENOMEM)
    }
}

/// The undo list of a new thread, in the caller's process or in a new one. `None` means the list of the thread's
/// process. The process's list is made at its first use and not at the fork, because few programs use undos.
pub(crate) fn undos_of_new<M: Machine>(
    ctx: &Ctx<'_, M>,
    shared: bool,
    same_process: bool,
) -> Result<Option<Undos<M>>, Errno> {
    // SAFETY: only the owning thread has a context, and the view ends in this statement.
    let has_own = unsafe { ctx.thread.undos.get() }.is_some();
    match (shared, same_process) {
        (true, true) if !has_own => Ok(None),
        (true, _) => Ok(Some(own_undos(ctx)?.share())),
        (false, true) => Ok(Some(ctx.linux.ipc.arrays.undos()?)),
        (false, false) => Ok(None),
    }
}

/// Gives the calling thread its own undo list instead of the shared one (`unshare`). If it is the last thread of its
/// process, the changes in the process's list are undone.
pub(crate) fn leave_undos<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<(), Errno> {
    let own = ctx.linux.ipc.arrays.undos()?;
    // SAFETY: the owning thread runs this. `ctx` is borrowed by `&mut`, so no view of the list is borrowed from the
    // context.
    drop(unsafe { ctx.thread.undos.replace(Some(own)) });
    if ctx.process().threads.lock().len() == 1 {
        revert_undos(ctx.process());
    }
    Ok(())
}

/// Drops the process's reference to its undo list. The last reference undoes the changes.
pub(crate) fn revert_undos<M: Machine>(process: &Process<M>) {
    if let Some(place) = process.undos.get() {
        let list = place.lock().take();
        drop(list);
    }
}

fn operate<M: Machine>(
    ctx: &Ctx<'_, M>,
    id: i32,
    at: u64,
    n: usize,
    deadline: impl FnOnce() -> Result<Option<u64>, Errno>,
) -> Result<usize, Errno> {
    let arrays = &ctx.linux.ipc.arrays;
    let most = arrays.limits().operations.load(Ordering::Relaxed);
    if n > most {
        return Err(Errno::E2BIG);
    }
    if n == 0 || id < 0 {
        return Err(Errno::EINVAL);
    }
    // Most calls have one operation, which needs no heap memory.
    let mut few = [Buffer { number: 0, change: 0, flags: 0 }; FEW];
    let many: Vec<Buffer>;
    let asked = if n <= FEW {
        ctx.user().read_slice(at, &mut few[..n])?;
        &few[..n]
    } else {
        many = ctx.user().read_many(at, n, most)?;
        &many[..]
    };
    let deadline = deadline()?;
    let operation = |asked: &Buffer| Operation {
        number: asked.number,
        change: asked.change,
        no_wait: asked.flags & NOWAIT != 0,
        undo: asked.flags & UNDO != 0,
    };
    let operations = Vec::try_from_iter(asked.iter().map(operation))?;
    let array = arrays.find(id)?;
    let undos = if operations.iter().any(|o| o.undo) { Some(own_undos(ctx)?) } else { None };
    let interrupted = || ctx.thread.interrupted();
    let wait = Wait { deadline, interrupted: &interrupted };
    ctx.as_caller(|caller| Array::operate(&array, caller, operations, undos, &wait))?;
    Ok(0)
}

/// `semop`
pub fn sys_semop<M: Machine>(ctx: &mut Ctx<'_, M>, id: i32, at: u64, n: u32) -> Result<usize, Errno> {
    operate(ctx, id, at, n as usize, || Ok(None))
}

/// `semtimedop`
pub fn sys_semtimedop<M: Machine>(ctx: &mut Ctx<'_, M>, id: i32, at: u64, n: u32, time: u64) -> Result<usize, Errno> {
    if time == 0 {
        return operate(ctx, id, at, n as usize, || Ok(None));
    }
    let time: Timespec = ctx.read(time)?;
    operate(ctx, id, at, n as usize, || Ok(Some(ctx.now().saturating_add(time.nanos()?))))
}

/// `semctl`. The fourth argument is a number or an address.
pub fn sys_semctl<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    id: i32,
    number: i32,
    command: i32,
    argument: u64,
) -> Result<usize, Errno> {
    if id < 0 {
        return Err(Errno::EINVAL);
    }
    let arrays = &ctx.linux.ipc.arrays;
    let describe = |array: &Array<IpcHost<M>>, any: bool| -> Result<Status, Errno> {
        let status = ctx.as_caller(|caller| array.status((!any).then_some(caller)))?;
        ctx.write(argument, &Described::new(&status))?;
        Ok(status)
    };
    match command {
        INFO | SEM_INFO => info(ctx, command == SEM_INFO, argument),
        STAT => describe(&*arrays.find(id)?, false).map(|_| 0),
        SEM_STAT => describe(&*arrays.at(id)?, false).map(|status| status.id as usize),
        SEM_STAT_ANY => describe(&*arrays.at(id)?, true).map(|status| status.id as usize),
        GETVAL => Ok(ctx.as_caller(|caller| arrays.find(id)?.value(caller, number))? as usize),
        GETPID => Ok(ctx.as_caller(|caller| arrays.find(id)?.pid(caller, number))? as usize),
        GETNCNT | GETZCNT => Ok(ctx.as_caller(|caller| arrays.find(id)?.waiting(caller, number, command == GETZCNT))?),
        GETALL => {
            let values = ctx.as_caller(|caller| arrays.find(id)?.values(caller))?;
            write_values(ctx, argument, &values)?;
            Ok(0)
        }
        SETVAL => {
            // The value is the low half of the fourth argument, which is a union.
            ctx.as_caller(|caller| {
                let value = argument as i32;
                if !(0..=VALUE_MAX).contains(&value) {
                    return Err(quire_ipc::Error::Range);
                }
                arrays.find(id)?.set(caller, number, value)
            })?;
            Ok(0)
        }
        SETALL => {
            let array = arrays.find(id)?;
            ctx.as_caller(|caller| array.allow(caller, WRITE))?;
            let values: Vec<u16> = ctx.user().read_many(argument, array.len(), array.len())?;
            ctx.as_caller(|caller| array.set_all(caller, &values))?;
            Ok(0)
        }
        SET => {
            let new: Described = ctx.read(argument)?;
            ctx.as_caller(|caller| arrays.find(id)?.change(caller, new.permission.change()))?;
            Ok(0)
        }
        RMID => {
            ctx.as_caller(|caller| arrays.remove(caller, id))?;
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Stores values at user address `to`.
fn write_values<M: Machine>(ctx: &Ctx<'_, M>, mut to: u64, values: &[u16]) -> Result<(), Errno> {
    let mut bytes = [0u8; 512];
    for some in values.chunks(bytes.len() / 2) {
        for (bytes, value) in bytes.chunks_exact_mut(2).zip(some) {
            bytes.copy_from_slice(&value.to_le_bytes());
        }
        ctx.user().write_bytes(to, &bytes[..2 * some.len()])?;
        to = to.wrapping_add(2 * some.len() as u64);
    }
    Ok(())
}

/// Writes a `struct seminfo`: the limits, and with `used` (SEM_INFO) the numbers of arrays and semaphores.
fn info<M: Machine>(ctx: &Ctx<'_, M>, used: bool, to: u64) -> Result<usize, Errno> {
    /// Linux's size of its `struct sem_undo`.
    const UNDO_BYTES: i32 = 20;
    /// Constants of Linux for limits of tables that Linux no longer has.
    const ALL: i32 = 32000 * 32000;
    const OPERATIONS: i32 = 500;
    let arrays = &ctx.linux.ipc.arrays;
    let limits = arrays.limits();
    let get = |limit: &quire_sync::atomic::AtomicUsize| limit.load(Ordering::Relaxed) as i32;
    let (of_all, operations) = (get(&limits.of_all), get(&limits.operations));
    let last_two = match used {
        true => [arrays.registry().used() as i32, arrays.semaphores() as i32],
        false => [UNDO_BYTES, VALUE_MAX],
    };
    let info: [i32; 10] = [
        ALL,
        get(&limits.count),
        of_all,
        ALL,
        get(&limits.of_array),
        operations,
        OPERATIONS,
        last_two[0],
        VALUE_MAX,
        last_two[1],
    ];
    ctx.write(to, &info)?;
    Ok(arrays.registry().highest()?)
}
