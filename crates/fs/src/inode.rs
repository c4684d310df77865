//! Inodes: what a name leads to.

use crate::directory::Directory;
use crate::generated::Generated;
use crate::host::{FileObject, Host, Origin, PAGE_SIZE, Timestamp};
use crate::lock::RecordLocks;
use crate::pipe::Pipe;
use crate::seal::{Seals, ToStore};
use crate::text::TextUse;
use crate::{FsError, Io};
use quire_heap::{Arc, Room, Vec, try_leak};
use quire_lookup::per_cpu;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_sync::epoch::Domain;
use quire_sync::{Mutex, MutexGuard, PerCpu, Quota, Rank, Sequenced, preempt_off};

/// Most names of one inode.
pub const LINK_MAX: u32 = 1 << 30;

/// Names a file among all files: the file system's device number and the inode's number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ident {
    /// Device number of the file system.
    pub device: u64,
    /// Number of the inode in it.
    pub number: u64,
}

/// Names a device driver.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct DeviceNumber {
    /// The kind of device.
    pub major: u32,
    /// Which of them.
    pub minor: u32,
}

/// What kind of thing an inode is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub enum FileKind {
    Regular,
    Directory,
    Symlink,
    Fifo,
    CharDevice,
    BlockDevice,
    Socket,
    /// A nameless stream: an event counter or the like.
    Anonymous,
}

/// Attributes that anybody may ask for and the owner may change.
#[derive(Clone, Copy, Debug)]
pub struct Attr {
    /// Permission bits, with set-id and sticky bits (0o7777).
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names.
    pub links: u32,
    /// It was made without a name, and may be given its first one.
    pub linkable: bool,
    /// Last read. Kept at creation and by explicit change only: reads write nothing (as with `noatime`).
    pub accessed: Timestamp,
    /// Last change of the contents.
    pub modified: Timestamp,
    /// Last change of the attributes.
    pub changed: Timestamp,
    /// Creation.
    pub born: Timestamp,
}

/// The bit of [`Attr::words`] between mode and number of names.
const LINKABLE: u64 = 1 << 16;

impl Attr {
    fn words(&self) -> [u64; 8] {
        let times = [self.accessed, self.modified, self.changed, self.born];
        let [a, m, c, b] = times.map(|t| t.seconds as u64);
        let [an, mn, cn, bn] = times.map(|t| u64::from(t.nanos));
        let (mode, links) = (u64::from(self.mode), u64::from(self.links));
        let linkable = u64::from(self.linkable) * LINKABLE;
        let owners = u64::from(self.uid) | u64::from(self.gid) << 32;
        [mode | linkable | links << 32, owners, a, m, c, b, an | mn << 32, cn | bn << 32]
    }

    fn of_words([first, owners, a, m, c, b, an_mn, cn_bn]: [u64; 8]) -> Self {
        let time = |seconds: u64, nanos: u64| Timestamp { seconds: seconds as i64, nanos: nanos as u32 };
        Attr {
            mode: first as u16,
            uid: owners as u32,
            gid: (owners >> 32) as u32,
            links: (first >> 32) as u32,
            linkable: first & LINKABLE != 0,
            accessed: time(a, an_mn),
            modified: time(m, an_mn >> 32),
            changed: time(c, cn_bn),
            born: time(b, cn_bn >> 32),
        }
    }
}

/// Who may do what: the attributes that a path is checked by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rights {
    pub mode: u16,
    pub uid: u32,
    pub gid: u32,
}

/// Everything that `stat` tells.
#[derive(Clone, Copy, Debug)]
pub struct Status {
    /// Identity.
    pub ident: Ident,
    /// Kind.
    pub kind: FileKind,
    /// Attributes.
    pub attr: Attr,
    /// Size in bytes.
    pub size: u64,
    /// Bytes that it takes.
    pub allocated: u64,
    /// Driver, of a device.
    pub device: DeviceNumber,
}

/// What a file system may hold. `None`: anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Limits {
    /// Pages of files' contents, those in swap too.
    pub pages: Option<u64>,
    /// Inodes, and the second and further names of files: each takes kernel memory.
    pub inodes: Option<u64>,
}

impl Limits {
    /// A file system that may hold anything, for ever.
    pub const NONE: Limits = Limits { pages: None, inodes: None };
    /// One that gets its limits later ([`FileSystem::set_room`]).
    pub const UNSET: Limits = Limits { pages: Some(u64::MAX), inodes: Some(u64::MAX) };
}

/// The file system that an inode belongs to. It is mounted, or the machine's, for ever.
///
/// Inodes and pages are counted by each processor for itself, and inodes numbered, so that those who make and remove files or write to
/// different files at the same time share no line. The limits are exact all the same.
pub struct FileSystem {
    /// Device number that its inodes show.
    pub device: u64,
    /// Its type, as mount tables name it.
    pub kind: &'static str,
    /// None where there is no limit, for ever; the same for pages.
    inodes: Option<&'static Quota>,
    pages: Option<&'static Quota>,
    numbered: PerCpu<AtomicU64>,
}

impl FileSystem {
    /// An empty file system on a machine of `cpus` processors. What has no limit now is not counted, and never gets one.
    pub fn new(device: u64, kind: &'static str, limits: Limits, cpus: usize) -> Result<&'static Self, FsError> {
        let quota = |limit: u64| -> Result<&'static Quota, FsError> { Ok(try_leak(per_cpu::quota(cpus, limit)?)?) };
        Ok(try_leak(FileSystem {
            device,
            kind,
            inodes: limits.inodes.map(quota).transpose()?,
            pages: limits.pages.map(quota).transpose()?,
            numbered: per_cpu::per_cpu(cpus, |_| AtomicU64::new(0))?,
        })?)
    }

    /// Adds `more` to what it holds at this moment: that, and no more than that, it may hold from now on.
    pub fn set_room(&self, more: Limits) {
        for (quota, more) in [(self.inodes, more.inodes), (self.pages, more.pages)] {
            if let Some(quota) = quota {
                quota.set_limit(more.map_or(u64::MAX, |more| quota.taken().saturating_add(more)));
            }
        }
    }

    /// How much it may hold, and how much of that is free. Zeroes stand for no limit, as on Linux.
    pub fn space(&self) -> Space {
        let of = |quota: Option<&Quota>| match quota.map(|quota| (quota.limit(), quota.taken())) {
            None | Some((u64::MAX, _)) => Count::default(),
            Some((limit, taken)) => Count { total: limit, free: limit.saturating_sub(taken) },
        };
        Space { kind: self.kind, device: self.device, pages: of(self.pages), inodes: of(self.inodes) }
    }

    /// Inodes that live, and further names, where they are counted.
    pub fn inodes(&self) -> u64 {
        self.inodes.map_or(0, Quota::taken)
    }

    /// What contents are charged to.
    pub fn quota(&self) -> Option<&'static Quota> {
        self.pages
    }

    /// One more inode, or name of one. The caller holds no lock and is not pinned.
    pub(crate) fn admit(&self, epoch: &Domain) -> Result<Admitted<'_>, FsError> {
        let Some(quota) = self.inodes else { return Ok(Admitted(self)) };
        if !quota.take(1) {
            // A directory that was removed counts until no lookup can stand in it.
            epoch.drain();
            if !quota.take(1) {
                return Err(FsError::NoSpace);
            }
        }
        Ok(Admitted(self))
    }

    /// One inode less, or name of one.
    pub(crate) fn forget(&self) {
        if let Some(quota) = self.inodes {
            quota.put(1);
        }
    }

    /// A number that no other inode has or had.
    fn number(&self) -> u64 {
        let pinned = preempt_off();
        // Written by this processor alone.
        let mine = self.numbered.mine(&pinned);
        let n = mine.load(Ordering::Relaxed);
        mine.store(n + 1, Ordering::Relaxed);
        n * self.numbered.len() as u64 + pinned.cpu() as u64 + 1
    }
}

/// An inode, or a name, that counts; it counts no more when this is dropped.
#[must_use]
pub(crate) struct Admitted<'a>(&'a FileSystem);

impl Admitted<'_> {
    /// It is there: whoever takes it away says so ([`FileSystem::forget`]).
    pub fn keep(self) {
        core::mem::forget(self);
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        self.0.forget();
    }
}

/// A regular file's contents.
pub struct RegularFile<H: Host> {
    /// The bytes.
    pub object: H::Object,
    /// What those change who write to it, or execute it.
    pub writing: Writing,
    /// What the object knows of the file.
    pub origin: Arc<Origin<H>>,
}

/// What those change who write to a file, or execute it. On lines of its own: who maps or reads the file reads what stands beside.
#[repr(C, align(128))]
pub struct Writing {
    /// Writes and truncations one after the other, so that appends do not overwrite each other.
    lock: Mutex<()>,
    /// [`Seals`]. Written under the lock, so that a write and a seal come one after the other.
    seals: AtomicU32,
    /// On the second line: who writes and who opens share none.
    pub(crate) text: TextUse,
}

impl Writing {
    /// Keeps other writes and truncations out.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock()
    }

    /// What will not happen to the file any more. Those that concern writes and truncations change under the lock.
    pub(crate) fn seals(&self) -> Seals {
        Seals::from_bits_truncate(self.seals.load(Ordering::Acquire))
    }
}

impl<H: Host> RegularFile<H> {
    /// Announces a shared mapping that may store into the file. The caller keeps the announcement until the mapping is there, or given up.
    /// `None`: the file cannot be sealed. [`FsError::NotPermitted`]: it is sealed against that.
    pub fn to_store(&self) -> Result<Option<ToStore<'_>>, FsError> {
        let Some(announced) = self.origin.to_store()? else { return Ok(None) };
        // After the announcement: a seal that comes now finds it.
        if self.writing.seals().intersects(Seals::WRITES) { Err(FsError::NotPermitted) } else { Ok(Some(announced)) }
    }
}

/// What is behind an inode.
pub enum Node<H: Host> {
    /// A file with bytes.
    File(RegularFile<H>),
    /// A directory.
    Directory(Directory<H>),
    /// A symbolic link to a path.
    Symlink(Vec<u8>),
    /// A pipe, with or without a name.
    Fifo(Arc<Pipe<H>>),
    /// A device that reads and writes streams of bytes.
    CharDevice(DeviceNumber),
    /// A device of blocks (a node only: nothing drives one).
    BlockDevice(DeviceNumber),
    /// A socket's name.
    Socket,
    /// A nameless stream.
    Anonymous(&'static str),
    /// Made up when looked at.
    Generated(Generated<H>),
}

/// An inode; see the module.
pub struct Inode<H: Host> {
    /// Identity.
    pub ident: Ident,
    /// Contents.
    pub node: Node<H>,
    /// Locks on byte ranges, and on the whole.
    pub locks: RecordLocks<H::LockCharge>,
    system: &'static FileSystem,
    /// [`Rights`], for all the paths that lead here or through: what a write to the file changes stands elsewhere. Written under the
    /// lock of `attr`.
    rights: Sequenced<2>,
    attr: Attributes,
}

/// As [`Attr::words`]. On lines of its own: each write to the file notes its time.
#[repr(align(64))]
struct Attributes(Sequenced<8>);

impl<H: Host> Drop for Inode<H> {
    fn drop(&mut self) {
        self.system.forget();
    }
}

/// The attributes of a new inode.
#[derive(Clone, Copy, Debug)]
pub struct NewAttr {
    /// Permission bits.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

impl<H: Host> Inode<H> {
    /// A new inode of `system` with no name yet, with what `node` makes of its identity.
    pub fn new(
        host: &H,
        system: &'static FileSystem,
        attr: NewAttr,
        node: impl FnOnce(Ident) -> Result<Node<H>, FsError>,
    ) -> Result<Arc<Self>, FsError> {
        let room = Room::try_new()?;
        let admitted = system.admit(host.epoch())?;
        let ident = Ident { device: system.device, number: system.number() };
        let node = node(ident)?;
        // From here on the inode itself counts, until it is dropped.
        admitted.keep();
        Ok(room.fill(Self::with(ident, node, attr, host.realtime(), system)))
    }

    /// An inode that stands for something generated, numbered by its provider; it counts against no limit.
    pub fn generated(
        system: &'static FileSystem,
        number: u64,
        attr: NewAttr,
        now: Timestamp,
        node: Generated<H>,
    ) -> Result<Arc<Self>, FsError> {
        debug_assert!(system.inodes.is_none(), "what is generated has no limit");
        let ident = Ident { device: system.device, number };
        Ok(Arc::try_new(Self::with(ident, Node::Generated(node), attr, now, system))?)
    }

    fn with(ident: Ident, node: Node<H>, new: NewAttr, now: Timestamp, system: &'static FileSystem) -> Self {
        let attr = Attr {
            mode: new.mode & 0o7777,
            uid: new.uid,
            gid: new.gid,
            links: 0,
            linkable: false,
            accessed: now,
            modified: now,
            changed: now,
            born: now,
        };
        let words = attr.words();
        Inode {
            ident,
            node,
            locks: RecordLocks::new(),
            system,
            rights: Sequenced::new(Rank::RIGHTS, [words[0], words[1]]),
            attr: Attributes(Sequenced::new(Rank::ATTRIBUTES, words)),
        }
    }

    /// A regular file's node, in `system`. With [`Seals::SEAL`] it can never be sealed further.
    pub fn regular(host: &H, system: &FileSystem, ident: Ident, seals: Seals) -> Result<Node<H>, FsError> {
        let origin = Arc::try_new(Origin::new(ident, !seals.contains(Seals::SEAL)))?;
        let object = host.object(origin.clone(), system.quota())?;
        let writing = Writing { lock: Mutex::new(()), seals: AtomicU32::new(seals.bits()), text: TextUse::new() };
        Ok(Node::File(RegularFile { object, writing, origin }))
    }

    /// The file system it belongs to.
    pub fn system(&self) -> &'static FileSystem {
        self.system
    }

    /// What kind it is.
    pub fn kind(&self) -> FileKind {
        match &self.node {
            Node::File(_) => FileKind::Regular,
            Node::Directory(_) => FileKind::Directory,
            Node::Symlink(_) => FileKind::Symlink,
            Node::Fifo(_) => FileKind::Fifo,
            Node::CharDevice(_) => FileKind::CharDevice,
            Node::BlockDevice(_) => FileKind::BlockDevice,
            Node::Socket => FileKind::Socket,
            Node::Anonymous(_) => FileKind::Anonymous,
            Node::Generated(g) => g.kind(),
        }
    }

    /// Whether names can be looked up in it.
    pub fn is_directory(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    /// Its attributes now.
    pub fn attr(&self) -> Attr {
        Attr::of_words(self.attr.0.read())
    }

    /// Who may do what with it now.
    pub(crate) fn rights(&self) -> Rights {
        let [first, owners] = self.rights.read();
        Rights { mode: first as u16, uid: owners as u32, gid: (owners >> 32) as u32 }
    }

    /// Changes attributes in one step and notes the time of the change.
    pub fn change<R>(&self, now: Timestamp, f: impl FnOnce(&mut Attr) -> R) -> R {
        self.attr.0.update(|words| {
            let mut attr = Attr::of_words(*words);
            attr.changed = now;
            let result = f(&mut attr);
            let before = [words[0], words[1]];
            *words = attr.words();
            if before != [words[0], words[1]] {
                self.rights.update(|rights| *rights = [words[0], words[1]]);
            }
            result
        })
    }

    /// Notes that the contents changed.
    pub fn touch(&self, now: Timestamp) {
        self.change(now, |a| a.modified = now);
    }

    /// The regular file behind it.
    pub fn file(&self) -> Option<&RegularFile<H>> {
        match &self.node {
            Node::File(f) => Some(f),
            _ => None,
        }
    }

    /// The seals of a regular file.
    pub fn seals(&self) -> Option<Seals> {
        self.file().map(|file| file.writing.seals())
    }

    /// Adds seals to a regular file. [`FsError::NotPermitted`] where none may be added, [`FsError::Busy`] where a mapping may store
    /// into it that is to be written to no more.
    pub fn add_seals(&self, seals: Seals) -> Result<(), FsError> {
        let file = self.file().ok_or(FsError::Invalid)?;
        let writing = &file.writing;
        let _one = writing.lock();
        if writing.seals().contains(Seals::SEAL) {
            return Err(FsError::NotPermitted);
        }
        // Under the lock of the mode, so that it does not change meanwhile. What may be executed for ever is not written to.
        self.attr.0.update(|words| {
            let runs = seals.contains(Seals::EXEC) && Attr::of_words(*words).mode & EXECUTE != 0;
            let implied = if runs { Seals::SHRINK | Seals::GROW | Seals::WRITES } else { Seals::empty() };
            let more = (seals | implied) - writing.seals();
            if more.contains(Seals::WRITE) {
                file.origin.deny_stores()?;
            }
            if more.intersects(Seals::WRITES) {
                file.origin.forbid_writes();
            }
            writing.seals.fetch_or(more.bits(), Ordering::AcqRel);
            Ok(())
        })
    }

    /// Counts one more name of something that is no directory. Further names count as inodes do, as on Linux; the first one of a file
    /// that was made without a name does not. An inode that lost its last name stays so.
    pub(crate) fn gain_name(&self, now: Timestamp, admitted: Result<Admitted<'_>, FsError>) -> Result<(), FsError> {
        let further = self.change(now, |a| match a.links {
            0 if !a.linkable => Err(FsError::NotFound),
            LINK_MAX.. => Err(FsError::TooManyLinks),
            before => {
                if let (1.., Err(full)) = (before, &admitted) {
                    return Err(*full);
                }
                a.links += 1;
                a.linkable = false;
                Ok(before > 0)
            }
        })?;
        if further {
            admitted.map(Admitted::keep)?;
        }
        Ok(())
    }

    /// Counts one name less.
    pub(crate) fn lose_name(&self, now: Timestamp) {
        let left = self.change(now, |a| {
            a.links = a.links.saturating_sub(1);
            a.links
        });
        if left > 0 {
            self.system.forget();
        }
    }

    /// Everything that is to be told about it.
    pub fn status(&self) -> Status {
        let (mut size, mut allocated, mut device) = (0, 0, DeviceNumber { major: 0, minor: 0 });
        match &self.node {
            Node::File(f) => {
                size = f.object.size();
                allocated = f.object.resident() * PAGE_SIZE as u64;
            }
            // As Linux's tmpfs does: twenty bytes an entry, `.` and `..` included.
            Node::Directory(d) => size = (d.len() as u64 + 2) * 20,
            Node::Symlink(target) => size = target.len() as u64,
            Node::CharDevice(d) | Node::BlockDevice(d) => device = *d,
            Node::Fifo(_) | Node::Socket | Node::Anonymous(_) | Node::Generated(_) => {}
        }
        Status { ident: self.ident, kind: self.kind(), attr: self.attr(), size, allocated, device }
    }

    /// Takes the set-id bits away, before the contents change on behalf of somebody who may not keep them: what runs as its
    /// owner is what the owner wrote. The bit for the group stays where nobody of the group may execute it, for then it says
    /// something else.
    pub(crate) fn lose_set_ids(&self, host: &H, keep: bool) {
        const EITHER: u16 = 0o6000;
        // Mostly there are none, and then nothing is written.
        if keep || self.rights().mode & EITHER == 0 || self.is_directory() {
            return;
        }
        self.change(host.realtime(), |a| a.mode = without_set_ids(a.mode));
    }

    /// As [`truncate`](Self::truncate), for a caller that has not opened it for writing: a program that runs is not cut.
    pub fn truncate_by_name(&self, host: &H, size: u64, io: &Io<'_>) -> Result<(), FsError> {
        let _writer = self.file().map(|file| file.writing.text.write()).transpose()?;
        self.truncate(host, size, io)
    }

    /// Makes a regular file `size` bytes long.
    pub(crate) fn truncate(&self, host: &H, size: u64, io: &Io<'_>) -> Result<(), FsError> {
        match &self.node {
            Node::File(f) => {
                let _one = f.writing.lock();
                let (seals, now) = (f.writing.seals(), f.object.size());
                if size > now && size > io.most {
                    return Err(FsError::OverLimit);
                }
                let against = if size < now { Seals::SHRINK } else { Seals::GROW };
                if size != now && seals.contains(against) {
                    return Err(FsError::NotPermitted);
                }
                self.lose_set_ids(host, io.keeps_set_ids);
                f.object.set_size(size)?;
                self.touch(host.realtime());
                Ok(())
            }
            Node::Directory(_) => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid),
        }
    }
}

/// The bits of a mode that allow execution.
pub(crate) const EXECUTE: u16 = 0o111;

/// `mode` without what makes a program run as its owner or its group.
pub(crate) fn without_set_ids(mode: u16) -> u16 {
    let group = if mode & 0o010 != 0 { 0o2000 } else { 0 };
    mode & !(0o4000 | group)
}

/// How many of something there may be, and how many of these are free; zeroes where there is no limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Count {
    /// All.
    pub total: u64,
    /// Those that may still be had.
    pub free: u64,
}

/// Space on a file system.
#[derive(Clone, Copy, Debug)]
pub struct Space {
    /// The type's name.
    pub kind: &'static str,
    /// Device number.
    pub device: u64,
    /// Pages.
    pub pages: Count,
    /// Inodes.
    pub inodes: Count,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_host::TestHost;
    use quire_sync::hooks::threads::set_cpu;
    use std::collections::BTreeSet;

    /// As many inodes as the limit says, whichever processors make and remove them; each with a number of its own.
    #[test]
    fn what_one_processor_gives_back_another_may_use() {
        const LIMIT: u64 = 200;
        let system = FileSystem::new(1, "test", Limits { inodes: Some(LIMIT), pages: None }, 3).unwrap();
        let epoch = TestHost.epoch();
        let mut numbers = BTreeSet::new();
        for n in 0..LIMIT {
            set_cpu(n as usize % 3);
            assert_eq!(system.space().inodes, Count { total: LIMIT, free: LIMIT - n });
            system.admit(epoch).unwrap().keep();
            assert!(numbers.insert(system.number()));
        }
        assert_eq!((system.admit(epoch).err(), system.inodes()), (Some(FsError::NoSpace), LIMIT));
        set_cpu(1);
        (0..LIMIT).for_each(|_| system.forget());
        assert_eq!(system.inodes(), 0);
        set_cpu(2);
        (0..LIMIT).for_each(|_| system.admit(epoch).unwrap().keep());
        set_cpu(0);
        assert_eq!(system.admit(epoch).err(), Some(FsError::NoSpace));
        system.forget();
        drop(system.admit(epoch).unwrap());
        assert_eq!(system.inodes(), LIMIT - 1);
    }
}
