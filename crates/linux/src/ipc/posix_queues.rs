//! `mq_open`, `mq_unlink`, `mq_timedsend`, `mq_timedreceive`, `mq_notify`, `mq_getsetattr`.

use crate::socket::NoticeSocket;
use core::any::Any;
use linux_raw_sys::general as raw;
use quire_fs::readiness::Readiness;
use quire_fs::{FsError, Io, OpenFlags, Ready, Sink, Source, Stream};
use quire_heap::{Arc, Room, Vec, Weak, unsize};
use quire_ipc::owner::{MODE, READ, WRITE};
use quire_ipc::posix::{Attributes, Message, Notify, OpenQueue, Patience};
use quire_ipc::{Error, msg::Text};
use quire_linux_state::file::host::File;
use quire_linux_state::ipc::host::{IpcHost, PosixQueue};
use quire_linux_state::process::Process;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_linux_state::signal::info::code;
use quire_linux_state::signal::{Detail, SigInfo, Signal};
use quire_linux_state::time::Timespec;
use quire_linux_state::{Ctx, Errno, Linux, Machine};
use quire_sync::atomic::{AtomicUsize, Ordering};
use quire_sync::{Rank, SpinLock};

/// One more than the highest priority.
const PRIORITIES: u32 = 32768;
/// The most bytes of a name.
const NAME: usize = 255;
/// Kinds of `struct sigevent`.
const SIGEV_SIGNAL: u32 = 0;
const SIGEV_NONE: u32 = 1;
const SIGEV_THREAD: u32 = 2;
/// The size in bytes of the cookie that a C library gets back through its netlink socket. The last byte is the reason:
/// a message came (`WOKEN`), or the registration ended (`REMOVED`).
const COOKIE: usize = 32;
const WOKEN: u8 = 1;
const REMOVED: u8 = 2;

/// An open file of a queue.
struct QueueFile<M: Machine> {
    queue: Arc<PosixQueue<M>>,
    host: IpcHost<M>,
    /// The number of bytes of the queue's description that were read.
    read: AtomicUsize,
}

impl<M: Machine> Stream for QueueFile<M> {
    fn read(&self, _io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        let mut text = Vec::<u8>::new();
        crate::ipc::queue_tree::describe(&self.queue, &mut text).map_err(|_| FsError::OutOfMemory)?;
        let from = self.read.load(Ordering::Relaxed).min(text.len());
        let n = sink.put(&text[from..])?;
        self.read.store(from + n, Ordering::Relaxed);
        Ok(n)
    }

    fn write(&self, _io: &Io<'_>, _source: &mut dyn Source) -> Result<usize, FsError> {
        Err(FsError::Invalid)
    }

    fn ready(&self) -> Ready {
        let (count, _) = self.queue.filled();
        let mut ready = Ready::empty();
        ready.set(Ready::READ, count > 0);
        ready.set(Ready::WRITE, count < self.queue.attributes().messages);
        ready
    }

    fn readiness(&self) -> Option<&Readiness> {
        Some(&self.queue.watch().0)
    }

    fn descriptor_closed(&self) {
        // As on Linux, closing any descriptor of the queue ends the process's registration.
        let _never_fails = self.queue.set_notify(quire_ipc::Host::pid(&self.host), None);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// How a process is notified of a message.
enum By<M: Machine> {
    Nothing,
    Signal(Signal, u64),
    /// The process gets the cookie in the second field, through a netlink socket that a thread of the C library reads.
    Socket(NoticeSocket<M>, SpinLock<Vec<u8>>),
}

/// The registration of a process that is notified of a message.
struct Notification<M: Machine> {
    process: Weak<Process<M>>,
    linux: &'static Linux<M>,
    by: By<M>,
}

impl<M: Machine> Notification<M> {
    fn put_cookie(&self, why: u8) {
        let By::Socket(socket, cookie) = &self.by else { return };
        // The cookie was allocated at the registration, so this function allocates nothing and cannot fail. The cookie
        // is sent once, so it is taken out.
        let mut cookie = core::mem::take(&mut *cookie.lock());
        if let Some(last) = cookie.last_mut() {
            *last = why;
            socket.deliver(cookie);
        }
    }
}

impl<M: Machine> Notify for Notification<M> {
    fn arrived(&self) {
        self.put_cookie(WOKEN);
        if let (Some(process), By::Signal(signal, value)) = (self.process.upgrade(), &self.by) {
            let thread = self.linux.current();
            // SAFETY: these are the calling thread's own credentials, which only that thread replaces.
            let uid = unsafe { thread.credentials.get() }.real_user;
            let detail = Detail::Value { pid: thread.process.pid, uid, value: *value };
            let info = SigInfo { signal: *signal, code: code::MESGQ, errno: 0, detail };
            // As on Linux, the signal is lost if the user has too many queued signals.
            let _perhaps_lost = self.linux.signal_process(&process, info);
        }
    }

    fn removed(&self) {
        self.put_cookie(REMOVED);
    }

    fn is_alive(&self) -> bool {
        self.process.upgrade().is_some_and(|process| !process.is_exiting())
    }
}

/// Reads the name of a queue. EACCES if it has a slash.
fn name<M: Machine>(ctx: &Ctx<'_, M>, at: u64) -> Result<Vec<u8>, Errno> {
    let name = ctx.user().read_string(at, NAME, Errno::ENAMETOOLONG)?;
    match &name[..] {
        [] => Err(Errno::ENOENT),
        b"." | b".." => Err(Errno::EACCES),
        name if name.contains(&b'/') => Err(Errno::EACCES),
        _ => Ok(name),
    }
}

/// A `struct mq_attr`: flags, most messages, most bytes of a message, present messages.
type Described = [i64; 8];

/// `mq_open`
pub fn sys_mq_open<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    at: u64,
    flags: u32,
    mode: u32,
    attr: u64,
) -> Result<usize, Errno> {
    let attributes = if attr == 0 { None } else { Some(ctx.read::<Described>(attr)?) };
    let name = name(ctx, at)?;
    let (wanted, mut opened) = match flags & raw::O_ACCMODE {
        raw::O_RDONLY => (READ, OpenFlags::READ),
        raw::O_WRONLY => (WRITE, OpenFlags::WRITE),
        raw::O_RDWR => (READ | WRITE, OpenFlags::READ | OpenFlags::WRITE),
        _ => return Err(Errno::EINVAL),
    };
    opened.set(OpenFlags::NONBLOCK, flags & raw::O_NONBLOCK != 0);
    let size = |n: i64| usize::try_from(n).map_err(|_| Errno::EINVAL);
    let attributes = match attributes {
        Some(asked) if flags & raw::O_CREAT != 0 => {
            Some(Attributes { messages: size(asked[1])?, size: size(asked[2])? })
        }
        _ => None,
    };
    let how = OpenQueue {
        create: flags & raw::O_CREAT != 0,
        exclusive: flags & raw::O_EXCL != 0,
        wanted,
        mode: mode & MODE & !u32::from(ctx.fs()?.umask()),
        attributes,
    };
    // The descriptor and the file are allocated first, so that a failure leaves no new queue.
    let files = ctx.files()?.clone();
    let descriptor = files.reserve(true, quire_linux_state::file::view::descriptor_limit(ctx.thread))?;
    let new = ctx.vfs().nameless(&ctx.file_credentials(), "mqueue", false)?;
    let room = Room::try_new()?;
    let queue = ctx.as_file_caller(|caller| ctx.linux.ipc.posix.open(caller, &name, how))?;
    let host = IpcHost(*ctx.vfs().host());
    let stream = room.fill(QueueFile { queue, host, read: AtomicUsize::new(0) });
    let file: Arc<File<M>> = new.open(unsize!(stream), opened);
    Ok(descriptor.fill(file) as usize)
}

/// `mq_unlink`
pub fn sys_mq_unlink<M: Machine>(ctx: &mut Ctx<'_, M>, at: u64) -> Result<usize, Errno> {
    let name = name(ctx, at)?;
    let owns_all = ctx.credentials().may(cap::FOWNER);
    ctx.as_file_caller(|caller| ctx.linux.ipc.posix.unlink(caller, &name, owns_all))?;
    Ok(0)
}

/// The queue of an open file. EBADF if the file is no queue, or was opened without `right`.
fn queue<M: Machine>(file: &Arc<File<M>>, right: OpenFlags) -> Result<&QueueFile<M>, Errno> {
    let queue = file.stream_as::<QueueFile<M>>().ok_or(Errno::EBADF)?;
    if file.flags().contains(right) { Ok(queue) } else { Err(Errno::EBADF) }
}

/// Reads the deadline of a call, which is a time of day. `None` for a null pointer.
fn deadline<M: Machine>(ctx: &Ctx<'_, M>, time: u64) -> Result<Option<u64>, Errno> {
    if time == 0 {
        return Ok(None);
    }
    let time: Timespec = ctx.read(time)?;
    Ok(Some(ctx.until_day(time.nanos()?)))
}

/// Converts an error. An interrupted call is restarted if the signal's action has SA_RESTART.
fn errno(e: Error) -> Errno {
    match e {
        Error::Interrupted => Errno::ERESTARTSYS,
        Error::TooLarge => Errno::EMSGSIZE,
        e => e.into(),
    }
}

/// `mq_timedsend`
pub fn sys_mq_timedsend<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    at: u64,
    len: usize,
    priority: u32,
    time: u64,
) -> Result<usize, Errno> {
    let deadline = deadline(ctx, time)?;
    if priority >= PRIORITIES {
        return Err(Errno::EINVAL);
    }
    let file = ctx.file(fd)?;
    let queue = &queue(&file, OpenFlags::WRITE)?.queue;
    queue.fits(len).map_err(errno)?;
    let mut text = Text::new(len)?;
    let mut from = at;
    for chunk in text.chunks_mut() {
        ctx.user().read_bytes(from, chunk)?;
        from = from.wrapping_add(chunk.len() as u64);
    }
    let interrupted = || ctx.thread.interrupted();
    let no_wait = file.flags().contains(OpenFlags::NONBLOCK);
    queue
        .send(Message { priority, text }, &Patience { no_wait, deadline, interrupted: &interrupted })
        .map_err(errno)?;
    Ok(0)
}

/// `mq_timedreceive`
pub fn sys_mq_timedreceive<M: Machine>(
    ctx: &mut Ctx<'_, M>,
    fd: i32,
    at: u64,
    len: usize,
    priority_at: u64,
    time: u64,
) -> Result<usize, Errno> {
    let deadline = deadline(ctx, time)?;
    let file = ctx.file(fd)?;
    let queue = &queue(&file, OpenFlags::READ)?.queue;
    let interrupted = || ctx.thread.interrupted();
    let no_wait = file.flags().contains(OpenFlags::NONBLOCK);
    let message = queue.receive(len, &Patience { no_wait, deadline, interrupted: &interrupted }).map_err(errno)?;
    ctx.write_optional(priority_at, &message.priority)?;
    let mut to = at;
    for chunk in message.text.chunks() {
        ctx.user().write_bytes(to, chunk)?;
        to = to.wrapping_add(chunk.len() as u64);
    }
    Ok(message.text.len())
}

/// `mq_notify`
pub fn sys_mq_notify<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, event: u64) -> Result<usize, Errno> {
    let event = if event == 0 { None } else { Some(ctx.read::<[u64; 8]>(event)?) };
    let notify = match event {
        None => None,
        Some([value, kind, ..]) => {
            let by = match (kind >> 32) as u32 {
                SIGEV_NONE => By::Nothing,
                // Signal 0 means no signal.
                SIGEV_SIGNAL if kind as u32 == 0 => By::Nothing,
                SIGEV_SIGNAL => By::Signal(Signal::new(u64::from(kind as u32)).map_err(|_| Errno::EINVAL)?, value),
                SIGEV_THREAD => {
                    let bytes = ctx.read::<[u8; COOKIE]>(value)?;
                    let mut cookie = Vec::new();
                    cookie.try_extend_from_slice(&bytes)?;
                    let socket = NoticeSocket::new(ctx.file(kind as i32)?)?;
                    By::Socket(socket, SpinLock::new(Rank::INBOX, cookie))
                }
                _ => return Err(Errno::EINVAL),
            };
            let process = Arc::downgrade(ctx.process());
            let notification = Arc::try_new(Notification { process, linux: ctx.linux, by })?;
            let notification: Arc<dyn Notify> = unsize!(notification);
            Some(notification)
        }
    };
    let file = ctx.file(fd)?;
    queue(&file, OpenFlags::empty())?.queue.set_notify(ctx.pid(), notify)?;
    Ok(0)
}

/// `mq_getsetattr`
pub fn sys_mq_getsetattr<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, new: u64, old: u64) -> Result<usize, Errno> {
    let new = if new == 0 { None } else { Some(ctx.read::<Described>(new)?) };
    if new.is_some_and(|new| new[0] & !i64::from(raw::O_NONBLOCK) != 0) {
        return Err(Errno::EINVAL);
    }
    let file = ctx.file(fd)?;
    let queue = &queue(&file, OpenFlags::empty())?.queue;
    let (Attributes { messages, size }, (count, _)) = (queue.attributes(), queue.filled());
    let flags = file.flags();
    if let Some(new) = new {
        let mut changed = flags;
        changed.set(OpenFlags::NONBLOCK, new[0] != 0);
        file.set_flags(changed);
    }
    let shown = if flags.contains(OpenFlags::NONBLOCK) { i64::from(raw::O_NONBLOCK) } else { 0 };
    ctx.write_optional(old, &[shown, messages as i64, size as i64, count as i64, 0, 0, 0, 0])?;
    Ok(0)
}
