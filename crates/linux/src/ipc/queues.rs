//! `msgget`, `msgsnd`, `msgrcv`, `msgctl`.

use crate::ipc::command::{INFO, RMID, SET, STAT};
use crate::ipc::permission::{Permission, open};
use quire_ipc::Error;
use quire_ipc::msg::{Queue, Receive, Status, Wanted};
use quire_linux_state::base::plain::Plain;
use quire_linux_state::ipc::host::IpcHost;
use quire_linux_state::{Ctx, Errno, Machine};
use quire_sync::atomic::Ordering;

/// Commands of `msgctl`, in addition to the common ones.
const MSG_STAT: i32 = 11;
const MSG_INFO: i32 = 12;
const MSG_STAT_ANY: i32 = 13;
/// Flags of `msgsnd` and `msgrcv`.
const NOWAIT: i32 = 0o4000;
const NOERROR: i32 = 0o10000;
const EXCEPT: i32 = 0o20000;
const COPY: i32 = 0o40000;

/// `struct msqid64_ds`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Described {
    permission: Permission,
    sent: i64,
    received: i64,
    changed: i64,
    bytes: u64,
    messages: u64,
    most: u64,
    last_sender: u32,
    last_receiver: u32,
    unused: [u64; 2],
}

// SAFETY: neither the fields nor the gaps between them have padding, and every bit pattern is a value.
unsafe impl Plain for Described {}
const _: () = assert!(size_of::<Described>() == 120);

impl Described {
    fn new(status: &Status) -> Self {
        Described {
            permission: Permission::new(status.key, status.sequence, &status.owner, 0),
            sent: status.sent,
            received: status.received,
            changed: status.changed,
            bytes: status.bytes as u64,
            messages: status.messages as u64,
            most: status.most as u64,
            last_sender: status.last_sender,
            last_receiver: status.last_receiver,
            unused: [0; 2],
        }
    }
}

/// Converts an error. An interrupted call is restarted only if no handler runs.
fn errno(e: Error) -> Errno {
    if e == Error::Interrupted { Errno::ERESTARTNOHAND } else { e.into() }
}

/// `msgget`
pub fn sys_msgget<M: Machine>(ctx: &mut Ctx<'_, M>, key: i32, flags: i32) -> Result<usize, Errno> {
    let id = ctx.as_caller(|caller| ctx.linux.ipc.queues.open(caller, key, open(flags)))?;
    Ok(id as usize)
}

/// `msgsnd`
pub fn sys_msgsnd<M: Machine>(ctx: &mut Ctx<'_, M>, id: i32, at: u64, len: u64, flags: i32) -> Result<usize, Errno> {
    let queues = &ctx.linux.ipc.queues;
    let kind: i64 = ctx.read(at)?;
    if id < 0 || len > queues.limits().message.load(Ordering::Relaxed) as u64 || kind < 1 {
        return Err(Errno::EINVAL);
    }
    let mut message = queues.message(kind, len as usize)?;
    let mut from = at.wrapping_add(8);
    for chunk in message.text.chunks_mut() {
        ctx.user().read_bytes(from, chunk)?;
        from = from.wrapping_add(chunk.len() as u64);
    }
    let queue = queues.find(id)?;
    let interrupted = || ctx.thread.interrupted();
    ctx.as_caller(|caller| queue.send(caller, message, flags & NOWAIT != 0, &interrupted)).map_err(errno)?;
    Ok(0)
}

/// The message that the type and the flags of `msgrcv` select.
fn wanted(kind: i64, flags: i32) -> Result<Wanted, Errno> {
    if flags & COPY != 0 {
        if flags & EXCEPT != 0 || flags & NOWAIT == 0 {
            return Err(Errno::EINVAL);
        }
        // A negative number selects no message.
        return Ok(Wanted::Copy(usize::try_from(kind).unwrap_or(usize::MAX)));
    }
    Ok(match kind {
        0 => Wanted::Any,
        ..0 => Wanted::Lowest(kind.checked_neg().unwrap_or(i64::MAX)),
        _ if flags & EXCEPT != 0 => Wanted::Except(kind),
        _ => Wanted::Of(kind),
    })
}

/// `msgrcv`
pub fn sys_msgrcv<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    id: i32,
    at: u64,
    len: u64,
    kind: i64,
    flags: i32,
) -> Result<usize, Errno> {
    let most = usize::try_from(len).ok().filter(|len| *len <= i64::MAX as usize).ok_or(Errno::EINVAL)?;
    if id < 0 {
        return Err(Errno::EINVAL);
    }
    let message = {
        let wanted = wanted(kind, flags)?;
        let how = Receive { wanted, most, cuts: flags & NOERROR != 0, no_wait: flags & NOWAIT != 0 };
        let queue = ctx.linux.ipc.queues.find(id)?;
        let interrupted = || ctx.thread.interrupted();
        ctx.as_caller(|caller| queue.receive(caller, how, &interrupted)).map_err(errno)?
    };
    ctx.write(at, &message.kind)?;
    let (mut to, mut left) = (at.wrapping_add(8), most);
    for chunk in message.text.chunks() {
        let part = &chunk[..chunk.len().min(left)];
        ctx.user().write_bytes(to, part)?;
        to = to.wrapping_add(part.len() as u64);
        left -= part.len();
    }
    Ok(most - left)
}

/// `struct msginfo`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    pool: i32,
    map: i32,
    most_bytes: i32,
    most_of_queue: i32,
    most: i32,
    segment_bytes: i32,
    messages: i32,
    segments: u16,
    padding: u16,
}

// SAFETY: all fields are integers, and all padding is declared as a field.
unsafe impl Plain for Info {}

/// Writes a `struct msginfo`: the limits, and with `used` (MSG_INFO) the numbers of queues, messages and bytes.
fn info<M: Machine>(ctx: &Ctx<'_, M>, used: bool, to: u64) -> Result<usize, Errno> {
    let queues = &ctx.linux.ipc.queues;
    let limits = queues.limits();
    let get = |limit: &quire_sync::atomic::AtomicUsize| limit.load(Ordering::Relaxed) as i32;
    // Constants of Linux for limits of tables that Linux no longer has.
    let (mut pool, mut map, mut messages) = (32000 * 16384 / 1024, 16384, 16384);
    if used {
        let sums = queues.sums()?;
        (pool, map, messages) = (sums.count as i32, sums.messages as i32, sums.bytes as i32);
    }
    let info = Info {
        pool,
        map,
        most_bytes: get(&limits.message),
        most_of_queue: get(&limits.queue),
        most: get(&limits.count),
        segment_bytes: 16,
        messages,
        segments: u16::MAX,
        padding: 0,
    };
    ctx.write(to, &info)?;
    Ok(queues.registry().highest()?)
}

/// `msgctl`
pub fn sys_msgctl<M: Machine>(ctx: &mut Ctx<'_, M>, id: i32, command: i32, at: u64) -> Result<usize, Errno> {
    if id < 0 || command < 0 {
        return Err(Errno::EINVAL);
    }
    let queues = &ctx.linux.ipc.queues;
    let describe = |queue: &Queue<IpcHost<M>>, any: bool| -> Result<Status, Errno> {
        let status = ctx.as_caller(|caller| queue.status((!any).then_some(caller)))?;
        ctx.write(at, &Described::new(&status))?;
        Ok(status)
    };
    match command {
        INFO | MSG_INFO => info(ctx, command == MSG_INFO, at),
        STAT => describe(&*queues.find(id)?, false).map(|_| 0),
        MSG_STAT => describe(&*queues.at(id)?, false).map(|status| status.id as usize),
        MSG_STAT_ANY => describe(&*queues.at(id)?, true).map(|status| status.id as usize),
        SET => {
            let new: Described = ctx.read(at)?;
            let most = usize::try_from(new.most).map_err(|_| Errno::EINVAL)?;
            ctx.as_caller(|caller| queues.change(caller, id, new.permission.change(), most))?;
            Ok(0)
        }
        RMID => {
            ctx.as_caller(|caller| queues.remove(caller, id))?;
            Ok(0)
        }
        _ => Err(Errno::EINVAL),
    }
}
