//! Signals about open files: `F_SETOWN` and `F_SETSIG`, the readiness of streams (`O_ASYNC`), changes in directories
//! (`F_NOTIFY`), and broken leases (`F_SETLEASE`).
//!
//! An open file gets a [`Notices`] when a program first makes one of these requests on it. Listeners, watches and
//! leases hold a weak reference to the `Notices`, and end with the open file. So no signal is sent about a closed file.

use crate::errno::Errno;
use crate::file::host::File;
use crate::machine::Machine;
use crate::process::credentials::Credentials;
use crate::process::group::Group;
use crate::process::users::{Account, Charge};
use crate::signal::{Detail, SigInfo, Signal};
use crate::{Ctx, Linux, Pid, Process};
use linux_raw_sys::general as raw;
use quire_fs::lease::LeaseHolder;
use quire_fs::readiness::Listener;
use quire_fs::{FsError, Happening, OpenFlags, Ready, Watch, Watcher};
use quire_heap::{Arc, Weak, unsize};
use quire_sync::atomic::{AtomicU32, Ordering};
use quire_sync::{Mutex, Rank, SpinLock};

// The reasons of a signal, as pairs of `si_code` and `si_band`.
const IN: (i32, u64) = (1, 0x41);
const OUT: (i32, u64) = (2, 0x304);
const MESSAGE: (i32, u64) = (3, 0x441);
const ERROR: (i32, u64) = (4, 0x8);
const PRIORITY: (i32, u64) = (5, 0x82);
const HANGUP: (i32, u64) = (6, 0x18);

/// The receiver of the signals. The reference is weak, so that a later process with the same id receives none.
enum Receiver<M: Machine> {
    Thread(Pid, Weak<Process<M>>),
    Process(Weak<Process<M>>),
    Group(Weak<Group<M>>),
}

impl<M: Machine> Clone for Receiver<M> {
    fn clone(&self) -> Self {
        match self {
            Receiver::Thread(tid, process) => Receiver::Thread(*tid, process.clone()),
            Receiver::Process(process) => Receiver::Process(process.clone()),
            Receiver::Group(group) => Receiver::Group(group.clone()),
        }
    }
}

/// The user that set the receiver. The signals are sent with this user's rights.
#[derive(Clone, Copy)]
struct Setter {
    real: u32,
    effective: u32,
}

impl Setter {
    fn may_signal(self, other: &Credentials) -> bool {
        let same = |user: u32| user == other.real_user || user == other.saved_user;
        self.effective == 0 || same(self.effective) || same(self.real)
    }
}

struct State<M: Machine> {
    receiver: Option<(Receiver<M>, Setter)>,
    /// The signal of `F_SETSIG`. `None`: SIGIO without details.
    signal: Option<Signal>,
}

/// A directory's watch, its receiver of events, and the user's charge for it.
type Noticed<M> = (Arc<DirectoryNotice<M>>, Arc<Watch>, Charge);

/// The signals about one open file, and their receiver.
pub struct Notices<M: Machine> {
    linux: &'static Linux<M>,
    state: SpinLock<State<M>>,
    /// The listener on the file's stream, while `O_ASYNC` is set.
    listener: Mutex<Option<Arc<dyn Listener>>>,
    directory: Mutex<Option<Noticed<M>>>,
}

impl<M: Machine> Notices<M> {
    /// The notices of `file`, which are allocated at the first call.
    pub fn of(ctx: &Ctx<'_, M>, file: &File<M>) -> Result<Arc<Self>, Errno> {
        let state = State { receiver: None, signal: None };
        Ok(file.attach(|| {
            Ok(Arc::try_new(Notices {
                linux: ctx.linux,
                state: SpinLock::new(Rank::FILE, state),
                listener: Mutex::new(None),
                directory: Mutex::new(None),
            })?)
        })?)
    }

    /// Sends the signal for the reason `(code, band)`, which is one of the constants at the head of this module. `fd`
    /// is the descriptor with which the program made its request.
    fn send(&self, (code, band): (i32, u64), fd: i32) {
        let (receiver, signal) = {
            let state = self.state.lock();
            (state.receiver.clone(), state.signal)
        };
        let Some((receiver, setter)) = receiver else { return };
        let reasoned = signal.map(|signal| SigInfo { signal, code, errno: 0, detail: Detail::Band { band, fd } });
        let plain = SigInfo::kernel(Signal::IO);
        let to_process = |process: &Process<M>, info| match setter.may_signal(&process.credentials()) {
            true => self.linux.signal_process(process, info),
            false => Ok(()),
        };
        let to = |info: SigInfo| match &receiver {
            Receiver::Process(process) => process.upgrade().map_or(Ok(()), |process| to_process(&process, info)),
            Receiver::Group(group) => group
                .upgrade()
                .map_or(Ok(()), |group| group.signal(Some(info), |process| setter.may_signal(&process.credentials()))),
            Receiver::Thread(tid, process) => {
                let thread = self.linux.ids.thread(*tid);
                let same =
                    |of: &crate::Thread<M>| process.upgrade().is_some_and(|process| Arc::ptr_eq(&process, &of.process));
                let Some(task) = thread.filter(|task| task.payload().as_ref().is_some_and(same)) else { return Ok(()) };
                match to_thread_allowed(&task, setter) {
                    true => self.linux.signal_thread(&task, info),
                    false => Ok(()),
                }
            }
        };
        // As on Linux, SIGIO is sent instead of the chosen signal if the queue is full.
        if reasoned.is_none_or(|info| to(info) == Err(Errno::EAGAIN)) {
            let _no_receiver = to(plain);
        }
    }

    /// Makes the caller's process the receiver if there is none.
    fn default_receiver(&self, ctx: &Ctx<'_, M>) {
        let own = (Receiver::Process(Arc::downgrade(ctx.process())), setter(ctx));
        self.state.lock().receiver.get_or_insert(own);
    }
}

fn to_thread_allowed<M: Machine>(task: &quire_task::Thread<M>, setter: Setter) -> bool {
    task.payload().as_ref().is_some_and(|thread| thread.credentials.look(|theirs| setter.may_signal(theirs)))
}

fn setter<M: Machine>(ctx: &Ctx<'_, M>) -> Setter {
    let own = ctx.credentials();
    Setter { real: own.real_user, effective: own.effective_user }
}

impl<M: Machine> Drop for Notices<M> {
    fn drop(&mut self) {
        if let Some((_, watch, _)) = self.directory.get_mut().take() {
            watch.end();
        }
    }
}

/// The kinds of receivers of `F_SETOWN_EX`.
const THREAD: i32 = 0;
const PROCESS: i32 = 1;
const GROUP: i32 = 2;

/// Sets the receiver. An `id` of 0 removes it.
pub fn set_owner<M: Machine>(ctx: &Ctx<'_, M>, file: &File<M>, kind: i32, id: Pid) -> Result<(), Errno> {
    let ids = &ctx.linux.ids;
    let receiver = match kind {
        THREAD | PROCESS | GROUP if id == 0 => None,
        THREAD => Some(Receiver::Thread(id, Arc::downgrade(&ids.process_of_thread(id).ok_or(Errno::ESRCH)?))),
        PROCESS => Some(Receiver::Process(Arc::downgrade(&ids.process(id).ok_or(Errno::ESRCH)?))),
        GROUP => Some(Receiver::Group(Arc::downgrade(&ids.group(id).ok_or(Errno::ESRCH)?))),
        _ => return Err(Errno::EINVAL),
    };
    let old = core::mem::replace(
        &mut Notices::of(ctx, file)?.state.lock().receiver,
        receiver.map(|receiver| (receiver, setter(ctx))),
    );
    drop(old);
    Ok(())
}

/// `F_SETOWN`: `number` is a process id, or the negated id of a process group.
pub fn set_owner_by_number<M: Machine>(ctx: &Ctx<'_, M>, file: &File<M>, number: i32) -> Result<(), Errno> {
    match number {
        i32::MIN => Err(Errno::EINVAL),
        0.. => set_owner(ctx, file, PROCESS, number as Pid),
        _ => set_owner(ctx, file, GROUP, number.unsigned_abs()),
    }
}

/// The kind and the id of the receiver; `(PROCESS, 0)` if there is no receiver or the receiver has ended.
pub fn owner<M: Machine>(file: &File<M>) -> (i32, i32) {
    let receiver = file.attached().and_then(|notices| notices.state.lock().receiver.clone());
    // The last reference to an ended receiver may be dropped a moment later, but its id is free already. So the id is
    // looked up.
    let number = match receiver.map(|(receiver, _)| receiver) {
        Some(Receiver::Thread(tid, process)) => process.upgrade().and_then(|process| {
            let there = process.linux.ids.process_of_thread(tid);
            there.filter(|there| Arc::ptr_eq(there, &process)).map(|_| (THREAD, tid))
        }),
        Some(Receiver::Process(process)) => process.upgrade().and_then(|process| {
            let there = process.linux.ids.process(process.pid);
            there.filter(|there| Arc::ptr_eq(there, &process)).map(|_| (PROCESS, process.pid))
        }),
        Some(Receiver::Group(group)) => group.upgrade().and_then(|group| {
            let there = group.linux.ids.group(group.id);
            there.filter(|there| Arc::ptr_eq(there, &group)).map(|_| (GROUP, group.id))
        }),
        None => None,
    };
    number.map_or((PROCESS, 0), |(kind, id)| (kind, id as i32))
}

/// The receiver in the format of `F_GETOWN`.
pub fn owner_as_number<M: Machine>(file: &File<M>) -> i32 {
    match owner(file) {
        (GROUP, id) => -id,
        (_, id) => id,
    }
}

/// The real and the effective user id of the process that set the receiver.
pub fn owner_users<M: Machine>(file: &File<M>) -> [u32; 2] {
    let set = file.attached().and_then(|notices| notices.state.lock().receiver.as_ref().map(|(_, setter)| *setter));
    set.map_or([0; 2], |setter| [setter.real, setter.effective])
}

/// `F_SETSIG`: sets the signal that is sent; 0 for SIGIO without details.
pub fn set_signal<M: Machine>(ctx: &Ctx<'_, M>, file: &File<M>, number: u64) -> Result<(), Errno> {
    let signal = if number == 0 { None } else { Some(Signal::new(number)?) };
    Notices::of(ctx, file)?.state.lock().signal = signal;
    Ok(())
}

/// `F_GETSIG`: the number of the signal that is sent; 0 for SIGIO without details.
pub fn signal<M: Machine>(file: &File<M>) -> u8 {
    file.attached().and_then(|notices| notices.state.lock().signal).map_or(0, |signal| signal.number())
}

/// A listener that sends signals when a stream becomes ready.
struct Async<M: Machine> {
    file: Weak<File<M>>,
    fd: i32,
    /// The ready events at the last change.
    before: AtomicU32,
}

impl<M: Machine> Listener for Async<M> {
    /// Sends a signal at each change that leaves bytes to read, because a change does not say which event has occurred.
    /// For other events, sends a signal only when the event begins.
    fn changed(&self) {
        let Some(file) = self.file.upgrade() else { return };
        let Some(notices) = file.attached() else { return };
        let ready = file.ready();
        let before = Ready::from_bits_truncate(self.before.swap(ready.bits().into(), Ordering::AcqRel) as u16);
        let new = ready - before;
        let reasons = [
            (ready.contains(Ready::READ), IN),
            (new.contains(Ready::WRITE), OUT),
            (new.contains(Ready::PRIORITY), PRIORITY),
            (new.contains(Ready::ERROR), ERROR),
            (new.contains(Ready::HANGUP), HANGUP),
        ];
        if let Some((_, reason)) = reasons.into_iter().find(|(holds, _)| *holds) {
            notices.send(reason, self.fd);
        }
    }

    fn is_closed(&self) -> bool {
        self.file.strong_count() == 0
    }
}

/// Sets or clears `O_ASYNC` on a file whose readiness can change.
pub fn set_async<M: Machine>(ctx: &Ctx<'_, M>, file: &Arc<File<M>>, fd: i32, on: bool) -> Result<(), Errno> {
    let Some(readiness) = file.readiness() else { return Ok(()) };
    if !on && file.attached().is_none() {
        return Ok(());
    }
    let notices = Notices::of(ctx, file)?;
    let mut listener = notices.listener.lock();
    if let Some(old) = listener.take() {
        readiness.unlisten(&old);
    }
    if on {
        let before = AtomicU32::new(file.ready().bits().into());
        let new: Arc<dyn Listener> = unsize!(Arc::try_new(Async { file: Arc::downgrade(file), fd, before })?);
        readiness.listen(&new)?;
        *listener = Some(new);
    }
    Ok(())
}

/// The events of `F_NOTIFY`, each with the events of a [`Watch`] that it stands for. A file that is moved in or out
/// counts as created or deleted.
const CREATE: u32 = 4;
const DELETE: u32 = 8;
const RENAME: u32 = 0x10;
const EVENTS: [(u32, Happening); 6] = [
    (1, Happening::ACCESS),
    (2, Happening::MODIFY),
    (CREATE, Happening::CREATE.union(Happening::MOVED_TO)),
    (DELETE, Happening::DELETE.union(Happening::MOVED_FROM)),
    (RENAME, Happening::MOVED_FROM.union(Happening::MOVED_TO)),
    (0x20, Happening::ATTRIBUTES),
];
const MULTISHOT: u32 = 0x8000_0000;

/// A watcher that sends signals when names in a directory change, or when the files with these names change.
struct DirectoryNotice<M: Machine> {
    notices: Weak<Notices<M>>,
    fd: i32,
    /// The event bits of `F_NOTIFY` that the program asked for.
    mask: AtomicU32,
    /// The cookie of the last move out of the directory.
    moved: AtomicU32,
}

impl<M: Machine> DirectoryNotice<M> {
    /// Whether the program asked for the event `what`. A move is a rename if its two halves are in this directory.
    fn asks(&self, mask: u32, what: Happening, cookie: u32) -> bool {
        if what.contains(Happening::MOVED_FROM) {
            self.moved.store(cookie, Ordering::Relaxed);
            return mask & DELETE != 0;
        }
        if what.contains(Happening::MOVED_TO) {
            return mask & CREATE != 0 || mask & RENAME != 0 && self.moved.load(Ordering::Relaxed) == cookie;
        }
        true
    }
}

impl<M: Machine> Watcher for DirectoryNotice<M> {
    fn happened(&self, watch: &Watch, what: Happening, cookie: u32, _name: &[u8]) {
        let Some(notices) = self.notices.upgrade() else { return };
        let mask = self.mask.load(Ordering::Relaxed);
        let ends = mask & MULTISHOT == 0;
        // Without `MULTISHOT`, the first event ends the watch. Of two events on different CPUs, only the one whose
        // `end` succeeds sends a signal.
        if !self.asks(mask, what, cookie) || ends && !watch.end() {
            return;
        }
        notices.send(MESSAGE, self.fd);
        if ends {
            self.ended(watch);
        }
    }

    fn ended(&self, watch: &Watch) {
        let Some(notices) = self.notices.upgrade() else { return };
        let mut directory = notices.directory.lock();
        let is_own = directory.as_ref().is_some_and(|(_, own, _)| core::ptr::eq(&**own, watch));
        let old = if is_own { directory.take() } else { None };
        drop(directory);
        drop(old);
    }
}

/// `F_NOTIFY`: sets the events of a directory for which signals are sent; no events end the watch.
pub fn notify<M: Machine>(ctx: &Ctx<'_, M>, file: &File<M>, fd: i32, mask: u32) -> Result<(), Errno> {
    let mut wanted = Happening::empty();
    EVENTS.iter().filter(|(bit, _)| mask & bit != 0).for_each(|(_, of)| wanted |= *of);
    let ends = wanted.is_empty();
    if ends && file.attached().is_none() {
        return Ok(());
    }
    if !ends && !file.dentry.inode.is_directory() {
        return Err(Errno::ENOTDIR);
    }
    let notices = Notices::of(ctx, file)?;
    let mut directory = notices.directory.lock();
    if ends {
        let old = directory.take();
        drop(directory);
        if let Some((_, watch, _)) = old {
            watch.end();
        }
        return Ok(());
    }
    notices.default_receiver(ctx);
    if let Some((notice, watch, _)) = directory.as_ref().filter(|(_, watch, _)| !watch.is_gone()) {
        notice.mask.fetch_or(mask, Ordering::Relaxed);
        watch.set_wanted(watch.wanted() | wanted);
        return Ok(());
    }
    // SAFETY: the thread itself runs this, and does not replace the charge while it uses the reference.
    let payer = ctx.linux.users.payer(unsafe { ctx.thread.user_charge.get() });
    let most = ctx.linux.files.notify_limits.watches.load(Ordering::Relaxed);
    let charge = payer.charge(Account::Notices, 1, most).ok_or(Errno::ENOMEM)?;
    let (own, mask, moved) = (Arc::downgrade(&notices), AtomicU32::new(mask), AtomicU32::new(0));
    let notice = Arc::try_new(DirectoryNotice { notices: own, fd, mask, moved })?;
    let watcher: Arc<dyn Watcher> = unsize!(notice.clone());
    let watch = file.dentry.inode.watch(&watcher, fd, wanted)?;
    let old = directory.replace((notice, watch, charge));
    drop(directory);
    drop(old);
    Ok(())
}

/// Removes the receiver and the signal of `file`. Called when a lease has ended, as on Linux.
pub fn forget<M: Machine>(file: &File<M>) {
    let old = file.attached().and_then(|notices| {
        let mut state = notices.state.lock();
        state.signal = None;
        state.receiver.take()
    });
    drop(old);
}

/// A lease holder that sends a signal when the lease is broken.
pub struct Leased<M: Machine> {
    notices: Weak<Notices<M>>,
    fd: i32,
}

impl<M: Machine> Leased<M> {
    /// A holder for a lease of `file`, which the program requested with descriptor `fd`.
    pub fn of(ctx: &Ctx<'_, M>, file: &File<M>, fd: i32) -> Result<Arc<dyn LeaseHolder>, Errno> {
        let notices = Notices::of(ctx, file)?;
        notices.default_receiver(ctx);
        Ok(unsize!(Arc::try_new(Leased { notices: Arc::downgrade(&notices), fd })?))
    }
}

impl<M: Machine> LeaseHolder for Leased<M> {
    fn broken(&self) {
        if let Some(notices) = self.notices.upgrade() {
            notices.send(MESSAGE, self.fd);
        }
    }
}

/// The numbers of `fcntl`'s commands about receivers and leases that are not among the generated constants.
pub mod command {
    pub const SETOWN_EX: u32 = 15;
    pub const GETOWN_EX: u32 = 16;
    pub const GETOWNER_UIDS: u32 = 17;
    pub const NOTIFY: u32 = 1026;
    pub const SETLEASE: u32 = 1024;
    pub const GETLEASE: u32 = 1025;
}

const _: () = assert!(raw::F_SETSIG == 10 && raw::F_SETOWN == 8);
const _: () = assert!(OpenFlags::CHANGEABLE.contains(OpenFlags::ASYNC));

/// The errno of a failed change of a lease, from the file layer's error.
pub fn refused(why: FsError) -> Errno {
    match why {
        FsError::OutOfMemory => Errno::ENOLCK,
        why => why.into(),
    }
}
