//! Inodes: the files that names lead to.

pub mod directory;
pub mod generated;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
mod watches;
mod xattrs;

use super::attr::{Attr, DeviceNumber, EXECUTE, FileKind, Ident, NewAttr, Rights, Status, Timestamp, without_set_ids};
use super::system::{Admitted, FileSystem};
use super::{watch, xattr};
use crate::file::lease;
use crate::file::lock::RecordLocks;
use crate::file::seal::{Seals, ToStore};
use crate::file::text::TextUse;
use crate::host::{FileObject, Host, Origin, PAGE_SIZE};
use crate::pipe::Pipe;
use crate::{FsError, Io};
use directory::Directory;
use generated::Generated;
use quire_heap::{Arc, Room, Vec};
use quire_sync::atomic::{AtomicU32, Ordering};
use quire_sync::{Mutex, MutexGuard, Rank, Sequenced};

/// The most names of one inode.
pub const LINK_MAX: u32 = 1 << 30;

/// A regular file's contents.
pub struct RegularFile<H: Host> {
    /// The bytes.
    pub object: H::Object,
    /// The state that writers and executing processes change.
    pub writing: Writing,
    /// The object's description of the file.
    pub origin: Arc<Origin<H>>,
}

/// The state that writers and executing processes of a file change. The alignment keeps it off the cache lines of the
/// neighbouring fields, which mappers and readers of the file read.
#[repr(C, align(128))]
pub struct Writing {
    /// Serialises writes and truncations, so that appends do not overwrite each other.
    lock: Mutex<()>,
    /// The bits of [`Seals`]. They change under `lock`, so that a write and a new seal are serialised.
    seals: AtomicU32,
    /// On the second cache line, so that writers and openers of the file share no line.
    pub(crate) text: TextUse,
}

impl Writing {
    /// The number of open files that may write.
    pub fn writers(&self) -> u64 {
        self.text.writers()
    }

    /// Excludes other writes and truncations.
    pub(crate) fn lock(&self) -> MutexGuard<'_, ()> {
        self.lock.lock()
    }

    /// The file's seals. The seals that concern writes and truncations change under `Writing::lock`.
    pub(crate) fn seals(&self) -> Seals {
        Seals::from_bits_truncate(self.seals.load(Ordering::Acquire))
    }
}

impl<H: Host> RegularFile<H> {
    /// Announces that the caller is about to make a shared mapping that may store into the file. The caller keeps the
    /// announcement until the mapping exists or has failed. `None` if the file cannot be sealed, so that nothing is
    /// announced. Fails with [`FsError::NotPermitted`] if a seal forbids such mappings.
    pub fn to_store(&self) -> Result<Option<ToStore<'_>>, FsError> {
        let Some(announced) = self.origin.to_store()? else { return Ok(None) };
        // The seals are checked after the announcement, so that a later seal finds the announcement.
        if self.writing.seals().intersects(Seals::WRITES) { Err(FsError::NotPermitted) } else { Ok(Some(announced)) }
    }
}

/// The contents of an inode.
pub enum InodeContent<H: Host> {
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
    /// A block device (a node only, without a driver).
    BlockDevice(DeviceNumber),
    /// A socket's name.
    Socket,
    /// A nameless stream.
    Anonymous(&'static str),
    /// Contents that are generated when they are read.
    Generated(Generated<H>),
}

/// An inode; see the module.
pub struct Inode<H: Host> {
    /// Identity.
    pub ident: Ident,
    /// Contents.
    pub node: InodeContent<H>,
    /// Locks on byte ranges, and on the whole file.
    pub locks: RecordLocks<H::LockCharge>,
    system: &'static FileSystem,
    /// The inode's watches. Read only while the file system has any watches.
    watches: watch::OwnList,
    /// The inode's leases. Read only while the file system has any leases.
    pub(crate) leases: lease::OwnLeases,
    /// The inode's extended attributes.
    xattrs: xattr::OwnXattrs,
    /// The words of [`Rights`]. All path walks to or through the inode read them, so they are apart from fields that
    /// writes to the file change. Written under the lock of `attr`.
    rights: Sequenced<2>,
    attr: Attributes,
}

/// The attributes as [`Attr::words`]. Aligned, because each write to the file stores its time in these words.
#[repr(align(64))]
struct Attributes(Sequenced<8>);

impl<H: Host> Drop for Inode<H> {
    fn drop(&mut self) {
        if self.system.is_watched() && self.fixed_attr().links == 0 {
            self.end_watches();
        }
        self.system.forget();
    }
}

impl<H: Host> Inode<H> {
    /// A new inode of `system` without a name. `node` makes its contents from its identity.
    pub fn new(
        host: &H,
        system: &'static FileSystem,
        attr: NewAttr,
        node: impl FnOnce(Ident) -> Result<InodeContent<H>, FsError>,
    ) -> Result<Arc<Self>, FsError> {
        let room = Room::try_new()?;
        let admitted = system.admit(host.epoch())?;
        let ident = Ident { device: system.device, number: system.number() };
        let node = node(ident)?;
        // From here on no step can fail. So the count stays raised until the inode is dropped.
        admitted.keep();
        Ok(room.fill(Self::with(ident, node, attr, host.realtime(), system)))
    }

    /// An inode of a generated file. The provider of the file numbers it, and it counts against no limit.
    pub fn generated(
        system: &'static FileSystem,
        number: u64,
        attr: NewAttr,
        now: Timestamp,
        node: Generated<H>,
    ) -> Result<Arc<Self>, FsError> {
        debug_assert!(system.inodes.is_none(), "generated files have no limit");
        let ident = Ident { device: system.device, number };
        Ok(Arc::try_new(Self::with(ident, InodeContent::Generated(node), attr, now, system))?)
    }

    fn with(ident: Ident, node: InodeContent<H>, new: NewAttr, now: Timestamp, system: &'static FileSystem) -> Self {
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
            watches: watch::no_list(),
            leases: lease::none(),
            xattrs: xattr::none(),
            rights: Sequenced::new(Rank::RIGHTS, [words[0], words[1]]),
            attr: Attributes(Sequenced::new(Rank::ATTRIBUTES, words)),
        }
    }

    /// Makes the contents of a regular file of `system`. With [`Seals::SEAL`] no seal can be added to it later.
    pub fn regular(host: &H, system: &FileSystem, ident: Ident, seals: Seals) -> Result<InodeContent<H>, FsError> {
        let origin = Arc::try_new(Origin::new(ident, !seals.contains(Seals::SEAL)))?;
        let object = host.object(origin.clone(), system.quota())?;
        let writing = Writing { lock: Mutex::new(()), seals: AtomicU32::new(seals.bits()), text: TextUse::new() };
        Ok(InodeContent::File(RegularFile { object, writing, origin }))
    }

    /// The file system it belongs to.
    pub fn system(&self) -> &'static FileSystem {
        self.system
    }

    /// The inode's kind.
    pub fn kind(&self) -> FileKind {
        match &self.node {
            InodeContent::File(_) => FileKind::Regular,
            InodeContent::Directory(_) => FileKind::Directory,
            InodeContent::Symlink(_) => FileKind::Symlink,
            InodeContent::Fifo(_) => FileKind::Fifo,
            InodeContent::CharDevice(_) => FileKind::CharDevice,
            InodeContent::BlockDevice(_) => FileKind::BlockDevice,
            InodeContent::Socket => FileKind::Socket,
            InodeContent::Anonymous(_) => FileKind::Anonymous,
            InodeContent::Generated(g) => g.kind(),
        }
    }

    /// Whether the inode is a directory, in which names can be looked up.
    pub fn is_directory(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    /// The inode's present attributes, with the time of the last store through a mapping. That time comes from the
    /// object, because stores do not write the attribute words.
    pub fn attr(&self) -> Attr {
        // The stores are read before the attribute words. A caller that sets an explicit time writes the words first,
        // and then makes the object forget the stores that this time replaces. So the result has the stores or the
        // explicit time.
        let stored = self.stored();
        let mut attr = Attr::of_words(self.attr.0.read());
        stored.inspect(|at| attr.add_store(*at));
        attr
    }

    /// The inode's attributes without the time of stores through mappings, for which [`attr`](Self::attr) visits the
    /// file's whole index. Owner, mode and links are those that `attr` returns.
    pub fn fixed_attr(&self) -> Attr {
        Attr::of_words(self.attr.0.read())
    }

    /// The time at which a program last stored into the file through a mapping.
    fn stored(&self) -> Option<Timestamp> {
        self.file().and_then(|file| file.object.stored())
    }

    /// The inode's present permissions.
    pub(crate) fn rights(&self) -> Rights {
        let [first, owners] = self.rights.read();
        Rights { mode: first as u16, uid: owners as u32, gid: (owners >> 32) as u32 }
    }

    /// Changes attributes in one step and stores the time of the change.
    pub fn change<R>(&self, now: Timestamp, f: impl FnOnce(&mut Attr) -> R) -> R {
        let Ok(result) = self.change_or(now, |attr| Ok::<R, core::convert::Infallible>(f(attr)));
        result
    }

    /// As [`change`](Self::change), but `f` may refuse the change. Then nothing changes, not even the time.
    pub fn change_or<R, E>(&self, now: Timestamp, f: impl FnOnce(&mut Attr) -> Result<R, E>) -> Result<R, E> {
        self.attr.0.update(|words| {
            let mut attr = Attr::of_words(*words);
            // The time of modification was set explicitly and lies in the future. A store through a mapping after that
            // is added now. After this change the store would be earlier than both times, and so would be ignored.
            // `stored` visits all leaves of the file's index, but files from the future are rare.
            if attr.modified > now {
                self.stored().inspect(|at| attr.add_store(*at));
            }
            attr.changed = now;
            let result = f(&mut attr)?;
            let before = [words[0], words[1]];
            *words = attr.words();
            if before != [words[0], words[1]] {
                self.rights.update(|rights| *rights = [words[0], words[1]]);
            }
            Ok(result)
        })
    }

    /// Stores the time of a change of the contents. This time replaces the times of modification and of change, so
    /// earlier stores through mappings need not be read.
    pub fn touch(&self, now: Timestamp) {
        self.attr.0.update(|words| {
            let mut attr = Attr::of_words(*words);
            (attr.modified, attr.changed) = (now, now);
            *words = attr.words();
        });
    }

    /// Sets the times of last access and modification, if given. An explicit time of modification replaces earlier
    /// stores through mappings.
    pub(crate) fn set_times(&self, now: Timestamp, accessed: Option<Timestamp>, modified: Option<Timestamp>) {
        self.change(now, |a: &mut Attr| {
            a.accessed = accessed.unwrap_or(a.accessed);
            a.modified = modified.unwrap_or(a.modified);
        });
        if let (Some(_), Some(file)) = (modified, self.file()) {
            file.object.forget_stores(now);
        }
    }

    /// Its regular file; `None` for other files.
    pub fn file(&self) -> Option<&RegularFile<H>> {
        match &self.node {
            InodeContent::File(f) => Some(f),
            _ => None,
        }
    }

    /// The seals of a regular file; `None` for other files.
    pub fn seals(&self) -> Option<Seals> {
        self.file().map(|file| file.writing.seals())
    }

    /// Adds seals to a regular file. Fails with [`FsError::NotPermitted`] if no seal may be added. Fails with
    /// [`FsError::Busy`] if a seal would forbid writes while a mapping may store.
    pub fn add_seals(&self, seals: Seals) -> Result<(), FsError> {
        let file = self.file().ok_or(FsError::Invalid)?;
        let writing = &file.writing;
        let _one = writing.lock();
        if writing.seals().contains(Seals::SEAL) {
            return Err(FsError::NotPermitted);
        }
        // The seals are added under the lock of the attributes, so that the mode does not change at the same time. A
        // file sealed as executable is sealed against writes too.
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

    /// Adds a name to a file that is not a directory. As on Linux, each further name counts like an inode. The first
    /// name of a file made without a name does not count. An inode that lost its last name gets no new one.
    pub(crate) fn gain_name(&self, now: Timestamp, admitted: Result<Admitted<'_>, FsError>) -> Result<(), FsError> {
        let further = self.change_or(now, |a| match a.links {
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

    /// Removes a name.
    pub(crate) fn lose_name(&self, now: Timestamp) {
        let left = self.change(now, |a| {
            a.links = a.links.saturating_sub(1);
            a.links
        });
        if left > 0 {
            self.system.forget();
        }
    }

    /// The inode's status for `stat`.
    pub fn status(&self) -> Status {
        let (mut size, mut allocated, mut device) = (0, 0, DeviceNumber { major: 0, minor: 0 });
        let mut attr = self.attr();
        match &self.node {
            InodeContent::File(f) => {
                size = f.object.size();
                allocated = f.object.resident() * PAGE_SIZE as u64;
            }
            // The size is as on Linux's tmpfs: twenty bytes for each entry, including `.` and `..`.
            InodeContent::Directory(d) => size = (d.len() as u64 + 2) * 20,
            InodeContent::Symlink(target) => size = target.len() as u64,
            InodeContent::CharDevice(d) | InodeContent::BlockDevice(d) => device = *d,
            // The directories of a generated directory come and go without changes of the inode.
            InodeContent::Generated(Generated::Directory(d)) => attr.links = attr.links.saturating_add(d.directories()),
            InodeContent::Fifo(_) | InodeContent::Socket | InodeContent::Anonymous(_) | InodeContent::Generated(_) => {}
        }
        Status { ident: self.ident, kind: self.kind(), attr, size, allocated, device }
    }

    /// Clears the set-id bits before a change of the contents, because otherwise the writer's code would run with the
    /// rights of the program's owner. If the caller may `keep` the bits, they stay. The group's bit stays if the group
    /// may not execute the file, because the bit then has another meaning.
    pub(crate) fn lose_set_ids(&self, host: &H, keep: bool) {
        const EITHER: u16 = 0o6000;
        // Mostly no bit is set, and then this call writes nothing.
        if keep || self.rights().mode & EITHER == 0 || self.is_directory() {
            return;
        }
        self.change(host.realtime(), |a| a.mode = without_set_ids(a.mode));
    }

    /// Makes a regular file `size` bytes long.
    pub(crate) fn truncate(&self, host: &H, size: u64, io: &Io<'_>) -> Result<(), FsError> {
        match &self.node {
            InodeContent::File(f) => {
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
            InodeContent::Directory(_) => Err(FsError::IsDirectory),
            // A generated text has no size to change.
            InodeContent::Generated(Generated::File(_)) => Ok(()),
            _ => Err(FsError::Invalid),
        }
    }
}
