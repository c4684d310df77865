//! `inotify`: files from which programs read the events of watched inodes.
//!
//! A notifier (an inotify instance) has a queue of events, and watches by number. The file layer calls it for each
//! event, with no lock held. A new event that equals the last event of the queue is dropped. An event is lost if the
//! queue is full or memory is exhausted. A reader gets an overflow record after it has emptied the queue.

use crate::file::path::{AT_FDCWD, find, only};
use core::any::Any;
use linux_raw_sys::general as raw;
use quire_fs::{FileCredentials, FsError, Happening, Io, OpenFlags, Readiness, Ready, Sink, Source, Stream, Want};
use quire_fs::{Watch, Watcher};
use quire_heap::{Arc, Deque, Map, SpareEntry, Vec, Weak, unsize};
use quire_linux_state::file::host::{Dentry, View};
use quire_linux_state::process::users::{Account, Charge, Payer};
use quire_linux_state::{Ctx, Errno, Machine};
use quire_lookup::Hold;
use quire_sync::atomic::Ordering;
use quire_sync::{Mutex, Rank, SpinLock};

/// The size of `struct inotify_event` without the name, in bytes.
const HEADER: usize = 16;
const OVERFLOW: u32 = 0x4000;
const IGNORED: u32 = 0x8000;
const ONLYDIR: u32 = 0x0100_0000;
const DONT_FOLLOW: u32 = 0x0200_0000;
const EXCL_UNLINK: u32 = 0x0400_0000;
const MASK_CREATE: u32 = 0x1000_0000;
const MASK_ADD: u32 = 0x2000_0000;
const ISDIR: u32 = 0x4000_0000;
const ONESHOT: u32 = 0x8000_0000;
const EVENTS: u32 = Happening::EVENTS.bits();
/// The bits that a mask may have. At least one of them must be set.
const ALL: u32 = EVENTS
    | OVERFLOW
    | IGNORED
    | ONLYDIR
    | DONT_FOLLOW
    | EXCL_UNLINK
    | MASK_CREATE
    | MASK_ADD
    | ISDIR
    | ONESHOT
    | 0x2000;

struct Event {
    watch: i32,
    mask: u32,
    cookie: u32,
    name: Vec<u8>,
}

impl Event {
    /// The length of the name in the record, in bytes, with the zero bytes after it.
    fn name_room(&self) -> usize {
        if self.name.is_empty() { 0 } else { (self.name.len() + 1).next_multiple_of(HEADER) }
    }
}

struct Queue {
    events: Deque<Event>,
    /// The size in bytes of the records of all events, in the format that a reader gets.
    bytes: usize,
    /// Events were lost.
    overflowed: bool,
}

/// The watches by number, each with its charge.
type Watches = Map<i32, (Arc<Watch>, Charge)>;

/// An inotify instance.
pub struct Notifier {
    itself: Weak<Notifier>,
    queue: SpinLock<Queue>,
    /// A spin lock, because the end of an inode may be reported from a callback that must not sleep.
    watches: SpinLock<Watches>,
    /// A thread holds this lock while it makes or changes a watch. The value is the number of the next watch.
    making: Mutex<i32>,
    most: usize,
    readiness: Readiness,
    payer: Payer,
    _charge: Charge,
}

impl Notifier {
    fn queue(&self, watch: i32, mask: u32, cookie: u32, name: &[u8]) {
        let copy = Vec::try_copy(name);
        {
            let mut queue = self.queue.lock();
            let is_last = |last: &Event| (last.watch, last.mask, &*last.name) == (watch, mask, name);
            if queue.events.back().is_some_and(is_last) {
                return;
            }
            let room = queue.events.len() < self.most && queue.events.try_reserve(1).is_ok();
            match copy {
                Ok(name) if room => {
                    let event = Event { watch, mask, cookie, name };
                    queue.bytes += HEADER + event.name_room();
                    queue.events.push_back_reserved(event);
                }
                _ if queue.overflowed => return,
                _ => queue.overflowed = true,
            }
        }
        self.readiness.notify();
    }

    /// Takes the next event off the queue. Fails if the event's record does not fit into `room` bytes. `None` if the
    /// queue is empty.
    fn take(&self, room: usize) -> Option<Result<Event, FsError>> {
        let mut queue = self.queue.lock();
        let Some(first) = queue.events.front() else {
            if !queue.overflowed {
                return None;
            }
            queue.overflowed = false;
            return Some(Ok(Event { watch: -1, mask: OVERFLOW, cookie: 0, name: Vec::new() }));
        };
        let len = HEADER + first.name_room();
        if len > room {
            return Some(Err(FsError::Invalid));
        }
        queue.bytes -= len;
        queue.events.pop_front().map(Ok)
    }
}

impl Notifier {
    /// A copy of the watches, the newest first. The copy is made in steps, so it may mix several states.
    pub fn watches(&self) -> Result<Vec<Arc<Watch>>, FsError> {
        /// The most watches that are copied while the lock is held.
        const BATCH: usize = 64;
        let (mut all, mut from) = (Vec::<Arc<Watch>>::new(), 0);
        loop {
            all.try_reserve(BATCH)?;
            let before = all.len();
            {
                let watches = self.watches.lock();
                let batch = watches.iter_from(&from).take(BATCH);
                batch.for_each(|(_, (watch, _))| all.push_reserved(watch.clone()));
            }
            let next = all.last().and_then(|watch| watch.id.checked_add(1));
            match next {
                Some(next) if all.len() == before + BATCH => from = next,
                _ => break,
            }
        }
        all.reverse();
        Ok(all)
    }
}

/// The mask of `watch` as the program set it.
pub fn mask_of(watch: &Watch) -> u32 {
    let wanted = watch.wanted();
    let how = [(Happening::ONCE, ONESHOT), (Happening::LISTED_ONLY, EXCL_UNLINK)];
    how.iter().filter(|(of, _)| wanted.contains(*of)).fold(wanted.bits() & EVENTS, |mask, (_, bit)| mask | bit)
}

impl Watcher for Notifier {
    fn happened(&self, watch: &Watch, what: Happening, cookie: u32, name: &[u8]) {
        let mut mask = what.bits() & EVENTS;
        let own = Happening::DELETE_SELF | Happening::MOVE_SELF;
        if what.contains(Happening::DIRECTORY) && !what.intersects(own) {
            mask |= ISDIR;
        }
        self.queue(watch.id, mask, cookie, name);
    }

    fn ended(&self, watch: &Watch) {
        let old = self.watches.lock().take(&watch.id);
        drop(old);
        self.queue(watch.id, IGNORED, 0, b"");
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        while let Some((_, (watch, _))) = self.watches.get_mut().pop_first() {
            watch.end();
        }
    }
}

impl Stream for Notifier {
    fn read(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        let mut done = 0;
        loop {
            let room = sink.room();
            let event = match done {
                // The buffer must have room for the shortest record, which has no name (such as the overflow record).
                0 if room < HEADER => return Err(FsError::Invalid),
                0 => self.readiness.wait(io, || self.take(room))??,
                _ if room < HEADER => return Ok(done),
                _ => match self.take(room) {
                    Some(Ok(event)) => event,
                    _ => return Ok(done),
                },
            };
            let mut record = [0; HEADER + 256];
            let len = event.name_room();
            for (at, word) in [event.watch as u32, event.mask, event.cookie, len as u32].iter().enumerate() {
                record[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
            }
            let name = &event.name[..event.name.len().min(255)];
            record[HEADER..HEADER + name.len()].copy_from_slice(name);
            match sink.put(&record[..HEADER + len]) {
                Ok(n) if n == HEADER + len => done += n,
                // As on Linux, an event that could not be copied is lost.
                _ if done > 0 => return Ok(done),
                _ => return Err(FsError::Fault),
            }
        }
    }

    fn write(&self, _io: &Io<'_>, _source: &mut dyn Source) -> Result<usize, FsError> {
        Err(FsError::BadFile)
    }

    fn ready(&self) -> Ready {
        let queue = self.queue.lock();
        if queue.events.is_empty() && !queue.overflowed { Ready::empty() } else { Ready::READ }
    }

    fn readiness(&self) -> Option<&Readiness> {
        Some(&self.readiness)
    }

    fn queued(&self) -> Result<usize, FsError> {
        let queue = self.queue.lock();
        Ok(queue.bytes + if queue.overflowed { HEADER } else { 0 })
    }

    fn held(&self) -> usize {
        let events = {
            let queue = self.queue.lock();
            queue.events.len() * size_of::<Event>() + queue.bytes
        };
        events + self.watches.lock().len() * (size_of::<Watch>() + size_of::<(Arc<Watch>, Charge)>())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// `inotify_init1`
pub fn sys_inotify_init1<M: Machine>(ctx: &mut Ctx<'_, M>, flags: u32) -> Result<usize, Errno> {
    only(flags, raw::O_CLOEXEC | raw::O_NONBLOCK)?;
    // SAFETY: the value belongs to the calling thread, which does not replace it during the access.
    let payer = ctx.linux.users.payer(unsafe { ctx.thread.user_charge.get() });
    let limits = &ctx.linux.files.notify_limits;
    let most = limits.instances.load(Ordering::Relaxed);
    let charge = payer.charge(Account::Notifiers, 1, most).ok_or(Errno::EMFILE)?;
    let notifier = Arc::try_new_cyclic(|itself| Notifier {
        itself: itself.clone(),
        queue: SpinLock::new(Rank::NOTIFIER, Queue { events: Deque::new(), bytes: 0, overflowed: false }),
        watches: SpinLock::new(Rank::NOTIFIER, Map::new()),
        making: Mutex::new(0),
        most: usize::try_from(limits.queued.load(Ordering::Relaxed)).unwrap_or(usize::MAX),
        readiness: Readiness::new(),
        payer,
        _charge: charge,
    })?;
    let mut ours = OpenFlags::READ;
    ours.set(OpenFlags::NONBLOCK, flags & raw::O_NONBLOCK != 0);
    let file = ctx.vfs().nameless_stream(&FileCredentials::ROOT, "inotify", unsize!(notifier), ours, false)?;
    ctx.install(file, flags & raw::O_CLOEXEC != 0)
}

/// `inotify_init`
pub fn sys_inotify_init<M: Machine>(ctx: &mut Ctx<'_, M>) -> Result<usize, Errno> {
    sys_inotify_init1(ctx, 0)
}

/// The notifier of descriptor `fd`. EINVAL for other files.
fn notifier<M: Machine>(ctx: &Ctx<'_, M>, fd: i32) -> Result<Arc<Notifier>, Errno> {
    let file = ctx.file(fd)?;
    let stream = file.stream().ok_or(Errno::EINVAL)?;
    stream.as_any().downcast_ref::<Notifier>().and_then(|notifier| notifier.itself.upgrade()).ok_or(Errno::EINVAL)
}

/// `inotify_add_watch`
pub fn sys_inotify_add_watch<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, path: u64, mask: u32) -> Result<usize, Errno> {
    if mask & ALL == 0 {
        return Err(Errno::EINVAL);
    }
    let file = ctx.file(fd)?;
    if mask & MASK_ADD != 0 && mask & MASK_CREATE != 0 {
        return Err(Errno::EINVAL);
    }
    drop(file);
    let notifier = notifier(ctx, fd)?;
    let follow = if mask & DONT_FOLLOW != 0 { raw::AT_SYMLINK_NOFOLLOW } else { 0 };
    let (view, dentry): (View<M>, Hold<Dentry<M>>) = find(ctx, AT_FDCWD, path, follow)?;
    if mask & ONLYDIR != 0 && !dentry.inode.is_directory() {
        return Err(Errno::ENOTDIR);
    }
    view.credentials.may(&dentry.inode, Want::READ)?;
    let mut wanted = Happening::from_bits_truncate(mask & EVENTS);
    wanted.set(Happening::ONCE, mask & ONESHOT != 0);
    wanted.set(Happening::LISTED_ONLY, mask & EXCL_UNLINK != 0);
    let mut last = notifier.making.lock();
    let watcher: Arc<dyn Watcher> = unsize!(notifier.clone());
    if let Some(there) = dentry.inode.watch_of(&watcher) {
        if mask & MASK_CREATE != 0 {
            return Err(Errno::EEXIST);
        }
        there.set_wanted(if mask & MASK_ADD != 0 { there.wanted() | wanted } else { wanted });
        return Ok(there.id as usize);
    }
    let most = ctx.linux.files.notify_limits.watches.load(Ordering::Relaxed);
    let charge = notifier.payer.charge(Account::Notices, 1, most).ok_or(Errno::ENOSPC)?;
    let entry = SpareEntry::try_new()?;
    let id = last.checked_add(1).ok_or(Errno::ENOSPC)?;
    let watch = dentry.inode.watch(&watcher, id, wanted)?;
    *last = id;
    let mut watches = notifier.watches.lock();
    let old = watches.insert(entry, id, (watch.clone(), charge));
    // The watch may have ended before it was in `watches`.
    let ended = if watch.is_gone() { watches.take(&id) } else { None };
    drop(watches);
    drop((old, ended));
    Ok(id as usize)
}

/// `inotify_rm_watch`
pub fn sys_inotify_rm_watch<M: Machine>(ctx: &mut Ctx<'_, M>, fd: i32, watch: i32) -> Result<usize, Errno> {
    let notifier = notifier(ctx, fd)?;
    // The entry's memory is freed after the lock is released.
    let (_memory, _, (ended, _charge)) = notifier.watches.lock().take(&watch).ok_or(Errno::EINVAL)?;
    if ended.end() {
        notifier.queue(watch, IGNORED, 0, b"");
    }
    Ok(0)
}
