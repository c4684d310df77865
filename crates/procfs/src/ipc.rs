//! `/proc/sysvipc`, and the limits of IPC in `/proc/sys/kernel` and `/proc/sys/fs/mqueue`.

use crate::about::System;
use crate::node::Directory;
use crate::node::{Item, ItemKind, Table, directory, put};
use crate::setting::number;
use core::ops::RangeInclusive;
use quire_fs::FsError;
use quire_fs::generated::Text;
use quire_ipc::posix::{MESSAGES_MOST, SIZE_MOST};
use quire_ipc::registry::MOST;
use quire_linux_state::machine::Machine;
use quire_sync::atomic::{AtomicI32, AtomicU64, AtomicUsize, Ordering};

/// The first inode numbers of the two directories' files.
const NUMBERS: u64 = 1400;
const POSIX_NUMBERS: u64 = 1410;

struct Lists<M>(core::marker::PhantomData<M>);

impl<M: Machine> Lists<M> {
    const POSIX: &'static [Item<M, System<M>>] = &[
        writable("msg_default", limit::<M, 7>, set_limit::<M, 7>),
        writable("msg_max", limit::<M, 5>, set_limit::<M, 5>),
        writable("msgsize_default", limit::<M, 8>, set_limit::<M, 8>),
        writable("msgsize_max", limit::<M, 6>, set_limit::<M, 6>),
        writable("queues_max", limit::<M, 4>, set_limit::<M, 4>),
    ];
    const ITEMS: &'static [Item<M, System<M>>] =
        &[Item::file("msg", queues), Item::file("sem", arrays), Item::file("shm", segments)];
}

/// The directory `/proc/sysvipc`.
pub(super) fn lists<M: Machine>(about: &System<M>) -> Directory<M> {
    let items = Lists::<M>::ITEMS;
    directory(Table::of_root(*about, items, NUMBERS))
}

/// The directory `/proc/sys/fs/mqueue`.
pub(super) fn posix_limits<M: Machine>(about: &System<M>) -> Directory<M> {
    let items = Lists::<M>::POSIX;
    directory(Table { takes_from_pipes: true, ..Table::of_root(*about, items, POSIX_NUMBERS) })
}

/// An error of a listing: from the lookup of an object, or from writing the text.
struct Failed(FsError);

impl From<quire_ipc::Error> for Failed {
    fn from(_: quire_ipc::Error) -> Self {
        Failed(FsError::OutOfMemory)
    }
}

impl From<FsError> for Failed {
    fn from(e: FsError) -> Self {
        Failed(e)
    }
}

/// The bits in a segment's mode that mark a removed segment and a locked segment.
const DEST: u32 = 0o1000;
const LOCKED: u32 = 0o2000;

fn segments<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(
        out,
        "       key      shmid perms                  size  cpid  lpid nattch   uid   gid  cuid  cgid      \
         atime      dtime      ctime                   rss                  swap\n"
    )?;
    let done = about.0.ipc.segments.registry().each(|segment| {
        let Ok(s) = segment.status(None) else { return Ok(()) };
        let o = s.owner;
        let mode = o.mode | if s.removed { DEST } else { 0 } | if s.locked { LOCKED } else { 0 };
        put!(out, "{:10} {:10}  {mode:4o} {:21} {:5} {:5}  ", s.key, s.id, s.size, s.creator, s.last_pid)?;
        put!(out, "{:5} {:5} {:5} {:5} {:5} ", s.attaches, o.user, o.group, o.creator, o.creator_group)?;
        put!(out, "{:10} {:10} {:10} ", s.attached, s.detached, s.changed)?;
        Ok::<(), Failed>(put!(out, "{:21} {:21}\n", s.resident * quire_vm::PAGE_SIZE, 0)?)
    });
    done.map_err(|e| e.0)
}

fn arrays<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "       key      semid perms      nsems   uid   gid  cuid  cgid      otime      ctime\n")?;
    let done = about.0.ipc.arrays.registry().each(|array| {
        let Ok(s) = array.status(None) else { return Ok(()) };
        let o = s.owner;
        put!(out, "{:10} {:10}  {:4o} {:10} ", s.key, s.id, o.mode, s.len)?;
        put!(out, "{:5} {:5} {:5} {:5} ", o.user, o.group, o.creator, o.creator_group)?;
        Ok::<(), Failed>(put!(out, "{:10} {:10}\n", s.operated, s.changed)?)
    });
    done.map_err(|e| e.0)
}

fn queues<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(
        out,
        "       key      msqid perms      cbytes       qnum lspid lrpid   uid   gid  cuid  cgid      \
         stime      rtime      ctime\n"
    )?;
    let done = about.0.ipc.queues.registry().each(|queue| {
        let Ok(s) = queue.status(None) else { return Ok(()) };
        let o = s.owner;
        put!(out, "{:10} {:10}  {:4o}  {:10} {:10} ", s.key, s.id, o.mode, s.bytes, s.messages)?;
        put!(out, "{:5} {:5} ", s.last_sender, s.last_receiver)?;
        put!(out, "{:5} {:5} {:5} {:5} ", o.user, o.group, o.creator, o.creator_group)?;
        Ok::<(), Failed>(put!(out, "{:10} {:10} {:10}\n", s.sent, s.received, s.changed)?)
    });
    done.map_err(|e| e.0)
}

/// The allowed values, in bytes, for the limits on messages of POSIX queues.
const SIZES: RangeInclusive<usize> = 128..=SIZE_MOST;

/// The limits that are a single number.
#[derive(Clone, Copy)]
enum Limit {
    Message,
    Queue,
    Queues,
    Segments,
    PosixQueues,
    PosixMessages,
    PosixSize,
    PosixDefaultMessages,
    PosixDefaultSize,
}

impl Limit {
    const ALL: [Limit; 9] = [
        Limit::Message,
        Limit::Queue,
        Limit::Queues,
        Limit::Segments,
        Limit::PosixQueues,
        Limit::PosixMessages,
        Limit::PosixSize,
        Limit::PosixDefaultMessages,
        Limit::PosixDefaultSize,
    ];

    /// The stored limit, and the range of its allowed values.
    fn of<M: Machine>(self, about: &System<M>) -> (&'static AtomicUsize, RangeInclusive<usize>) {
        let ipc = &about.0.ipc;
        let (queues, posix) = (ipc.queues.limits(), ipc.posix.limits());
        let any = 0..=i32::MAX as usize;
        match self {
            Limit::Message => (&queues.message, any),
            Limit::Queue => (&queues.queue, any),
            Limit::Queues => (&queues.count, 0..=MOST),
            Limit::Segments => (&ipc.segments.limits().count, 0..=MOST),
            Limit::PosixQueues => (&posix.count, any),
            Limit::PosixMessages => (&posix.messages, 1..=MESSAGES_MOST),
            Limit::PosixSize => (&posix.size, SIZES),
            Limit::PosixDefaultMessages => (&posix.default_messages, 1..=MESSAGES_MOST),
            Limit::PosixDefaultSize => (&posix.default_size, SIZES),
        }
    }
}

fn limit<M: Machine, const AT: usize>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{}\n", Limit::ALL[AT].of(about).0.load(Ordering::Relaxed))
}

fn set_limit<M: Machine, const AT: usize>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    let (limit, allowed) = Limit::ALL[AT].of(about);
    let value = usize::try_from(number(bytes)?).ok().filter(|value| allowed.contains(value)).ok_or(FsError::Invalid)?;
    limit.store(value, Ordering::Relaxed);
    Ok(bytes.len())
}

/// The limit on the bytes of one segment, or on the pages of all segments (`ALL`).
fn size<M: Machine, const ALL: bool>(about: &System<M>) -> &'static AtomicU64 {
    let limits = about.0.ipc.segments.limits();
    if ALL { &limits.pages } else { &limits.size }
}

fn show_size<M: Machine, const ALL: bool>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{}\n", size::<M, ALL>(about).load(Ordering::Relaxed))
}

fn set_size<M: Machine, const ALL: bool>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    size::<M, ALL>(about).store(number(bytes)?, Ordering::Relaxed);
    Ok(bytes.len())
}

/// The four limits on semaphores, each with its highest allowed value.
fn semaphores<M: Machine>(about: &System<M>) -> [(&'static AtomicUsize, usize); 4] {
    let limits = about.0.ipc.arrays.limits();
    let most = i32::MAX as usize;
    [(&limits.of_array, most), (&limits.of_all, most), (&limits.operations, most), (&limits.count, MOST)]
}

fn show_semaphores<M: Machine>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    let [of_array, of_all, operations, count] = semaphores(about).map(|(limit, _)| limit.load(Ordering::Relaxed));
    put!(out, "{of_array}\t{of_all}\t{operations}\t{count}\n")
}

/// Sets the first of the four limits, and each further limit for which `bytes` has a number.
fn set_semaphores<M: Machine>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    let limits = semaphores(about);
    let mut values = [0; 4];
    let mut n = 0;
    for word in bytes.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
        let (value, (_, most)) = (values.get_mut(n), limits.get(n).ok_or(FsError::Invalid)?);
        let given = usize::try_from(number(word)?).ok().filter(|given| given <= most).ok_or(FsError::Invalid)?;
        *value.ok_or(FsError::Invalid)? = given;
        n += 1;
    }
    for (value, (limit, _)) in values.iter().zip(limits).take(n) {
        limit.store(*value, Ordering::Relaxed);
    }
    Ok(bytes.len())
}

/// The id that the next object of a kind gets. `KIND` is 0 for message queues, 1 for semaphore arrays, 2 for segments.
fn wanted<M: Machine, const KIND: usize>(about: &System<M>) -> &'static AtomicI32 {
    let ipc = &about.0.ipc;
    match KIND {
        0 => ipc.queues.registry().wanted(),
        1 => ipc.arrays.registry().wanted(),
        _ => ipc.segments.registry().wanted(),
    }
}

fn show_wanted<M: Machine, const KIND: usize>(about: &System<M>, out: &mut Text) -> Result<(), FsError> {
    put!(out, "{}\n", wanted::<M, KIND>(about).load(Ordering::Relaxed))
}

fn set_wanted<M: Machine, const KIND: usize>(about: &System<M>, bytes: &[u8]) -> Result<usize, FsError> {
    let id = i32::try_from(number(bytes)?).map_err(|_| FsError::Invalid)?;
    wanted::<M, KIND>(about).store(id, Ordering::Relaxed);
    Ok(bytes.len())
}

/// The entries of `/proc/sys/kernel`.
pub(super) struct Settings<M>(core::marker::PhantomData<M>);

impl<M: Machine> Settings<M> {
    pub const MSGMAX: Item<M, System<M>> = writable("msgmax", limit::<M, 0>, set_limit::<M, 0>);
    pub const MSGMNB: Item<M, System<M>> = writable("msgmnb", limit::<M, 1>, set_limit::<M, 1>);
    pub const MSGMNI: Item<M, System<M>> = writable("msgmni", limit::<M, 2>, set_limit::<M, 2>);
    pub const MSG_NEXT: Item<M, System<M>> = writable("msg_next_id", show_wanted::<M, 0>, set_wanted::<M, 0>);
    pub const SEM: Item<M, System<M>> = writable("sem", show_semaphores, set_semaphores);
    pub const SEM_NEXT: Item<M, System<M>> = writable("sem_next_id", show_wanted::<M, 1>, set_wanted::<M, 1>);
    pub const SHMALL: Item<M, System<M>> = writable("shmall", show_size::<M, true>, set_size::<M, true>);
    pub const SHMMAX: Item<M, System<M>> = writable("shmmax", show_size::<M, false>, set_size::<M, false>);
    pub const SHMMNI: Item<M, System<M>> = writable("shmmni", limit::<M, 3>, set_limit::<M, 3>);
    pub const SHM_NEXT: Item<M, System<M>> = writable("shm_next_id", show_wanted::<M, 2>, set_wanted::<M, 2>);
}

/// A file that shows a setting, and sets it when it is written.
const fn writable<M: Machine>(
    name: &'static str,
    show: fn(&System<M>, &mut Text) -> Result<(), FsError>,
    set: fn(&System<M>, &[u8]) -> Result<usize, FsError>,
) -> Item<M, System<M>> {
    Item { name, kind: ItemKind::Writable(show, set) }
}
