//! The tree: making, linking, removing and opening what names lead to.

use crate::dentry::Dentry;
use crate::device::Driver;
use crate::directory::Directory;
use crate::generated::{self, GeneratedDirectory};
use crate::host::Host;
use crate::inode::{DeviceNumber, EXECUTE, FileSystem, Inode, Limits, NewAttr, Node, Space};
use crate::open_file::{Body, OpenFile, Opening};
use crate::pipe::Pipe;
use crate::text::Writer;
use crate::walk::{Final, Found, Last, Place, Places, View, Want, Who};
use crate::{FileKind, FsError, Io, OpenFlags, Seals, Stream};
use quire_heap::{Arc, Vec, try_format};
use quire_lookup::Hold;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::{Mutex, Rank, SpinLock};

/// An open file as descriptors share it.
pub type SharedFile<H> = Arc<OpenFile<H>>;

/// What is to be made.
#[derive(Clone, Copy, Debug)]
pub enum Create<'a> {
    /// An empty file.
    File,
    /// An empty directory.
    Directory,
    /// A symbolic link to a path.
    Symlink(&'a [u8]),
    /// A pipe with a name.
    Fifo,
    /// A character device's node.
    CharDevice(DeviceNumber),
    /// A block device's node.
    BlockDevice(DeviceNumber),
    /// A socket's name.
    Socket,
}

/// All files of a machine.
pub struct Vfs<H: Host> {
    host: H,
    root: Arc<Dentry<H>>,
    /// Where the paths of [`view`](Self::view) start.
    places: Arc<Places<H>>,
    /// Where pipes and other nameless things live.
    nameless: &'static FileSystem,
    /// Where memory files live: it has no limits, as Linux's mount for them.
    memory: &'static FileSystem,
    /// Held while a name moves between directories: then, and only then, do ancestors change.
    pub(crate) moving: Mutex<()>,
    drivers: SpinLock<Vec<(DeviceNumber, Arc<dyn Driver>)>>,
    mounts: SpinLock<Vec<Arc<Dentry<H>>>>,
    next_device: AtomicU64,
}

impl<H: Host> Vfs<H> {
    /// An empty tree whose root file system has `limits`.
    pub fn new(host: H, limits: Limits) -> Result<Arc<Self>, FsError> {
        let cpus = host.cpus();
        let system = FileSystem::new(1, "tmpfs", limits, cpus)?;
        let root = Dentry::root(Self::root_directory(&host, system, 0o755)?)?;
        let place = Place::Counted(root.clone());
        Ok(Arc::try_new(Vfs {
            host,
            mounts: SpinLock::new(Rank::ATTRIBUTES, Vec::try_from_iter([root.clone()])?),
            root,
            places: Arc::try_new(Places { cwd: place.clone(), root: place })?,
            nameless: FileSystem::new(2, "pipefs", Limits::NONE, cpus)?,
            memory: FileSystem::new(3, "tmpfs", Limits::NONE, cpus)?,
            moving: Mutex::new(()),
            drivers: SpinLock::new(Rank::ATTRIBUTES, Vec::new()),
            next_device: AtomicU64::new(4),
        })?)
    }

    fn root_directory(host: &H, system: &'static FileSystem, mode: u16) -> Result<Arc<Inode<H>>, FsError> {
        let attr = NewAttr { mode, uid: 0, gid: 0 };
        let inode = Inode::new(host, system, attr, |_| Ok(Node::Directory(Directory::new(host))))?;
        inode.change(host.realtime(), |a| a.links = 2);
        Ok(inode)
    }

    /// The kernel around it.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// The root of everything.
    pub fn root(&self) -> &Arc<Dentry<H>> {
        &self.root
    }

    /// The view of a process that may do everything, from the root.
    pub fn view(&self) -> View<H> {
        View { places: self.places.clone(), who: Who::ROOT, umask: 0 }
    }

    // Mounts

    /// Mounts an empty memory file system on the directory `path`, which is made where it is missing.
    pub fn mount_memory(
        &self,
        path: &[u8],
        kind: &'static str,
        limits: Limits,
        mode: u16,
    ) -> Result<Arc<Dentry<H>>, FsError> {
        let device = self.next_device.fetch_add(1, Ordering::Relaxed);
        let system = FileSystem::new(device, kind, limits, self.host.cpus())?;
        let root = Self::root_directory(&self.host, system, mode)?;
        self.mount(path, root)
    }

    /// Mounts what `root` makes up on the directory `path`, which is made where it is missing.
    pub fn mount_generated(
        &self,
        path: &[u8],
        kind: &'static str,
        root: Arc<dyn GeneratedDirectory<H>>,
    ) -> Result<Arc<Dentry<H>>, FsError> {
        let device = self.next_device.fetch_add(1, Ordering::Relaxed);
        let system = FileSystem::new(device, kind, Limits::NONE, self.host.cpus())?;
        self.mount(path, generated::root_inode(&self.host, system, root)?)
    }

    fn mount(&self, path: &[u8], inode: Arc<Inode<H>>) -> Result<Arc<Dentry<H>>, FsError> {
        let view = self.view();
        let found = self.walk(&view, &self.root, path, Final::Follow)?;
        if found.last != Last::Name {
            return Err(FsError::Busy);
        }
        let Node::Directory(directory) = &found.parent.inode.node else { return Err(FsError::NotDirectory) };
        let name = found.name.shared()?;
        let mounted = Dentry::child(&found.parent, name.clone(), inode, true)?;
        let memory = directory.memory()?;
        self.mounts.lock().try_push(mounted.clone())?;
        if found.target.is_none()
            && let Err(e) = self.make(&view, &found, Create::Directory, 0o755)
        {
            self.mounts.lock().retain(|mount| !Arc::ptr_eq(mount, &mounted));
            return Err(e);
        }
        let hidden = directory.lock().put(memory, name, mounted.clone());
        drop(hidden);
        Ok(mounted)
    }

    /// From now on each file system that is mounted may hold `more` beside what it holds, where it has limits at all.
    pub fn set_room(&self, more: Limits) {
        // A directory that something was mounted on counts until no lookup can stand in it.
        self.host.epoch().drain();
        self.all_mounts().for_each(|mount| mount.inode.system().set_room(more));
    }

    /// Everything that is mounted, one after the other. Nothing is unmounted.
    fn all_mounts(&self) -> impl Iterator<Item = Arc<Dentry<H>>> {
        (0..).map_while(|n| self.mounts.lock().get(n).cloned())
    }

    /// Calls `each` with the path and the type of everything that is mounted.
    pub fn mounts(&self, mut each: impl FnMut(&[u8], &'static str)) -> Result<(), FsError> {
        for m in self.all_mounts() {
            each(&Dentry::path(&m, &self.root)?.0, m.inode.system().kind);
        }
        Ok(())
    }

    /// How much space the file system of `inode` has. The caller holds no lock.
    pub fn space(&self, inode: &Inode<H>) -> Space {
        // A directory that was removed counts until no lookup can stand in it.
        self.host.epoch().drain();
        inode.system().space()
    }

    // Devices

    /// From now on `driver` stands behind the nodes with that number.
    pub fn register(&self, number: DeviceNumber, driver: Arc<dyn Driver>) -> Result<(), FsError> {
        Ok(self.drivers.lock().try_push((number, driver))?)
    }

    /// Takes a [registered](Self::register) driver back.
    pub(crate) fn deregister(&self, number: DeviceNumber, driver: &Arc<dyn Driver>) {
        self.drivers.lock().retain(|(n, d)| *n != number || !Arc::ptr_eq(d, driver));
    }

    fn open_device(&self, number: DeviceNumber, flags: OpenFlags) -> Result<Arc<dyn Stream>, FsError> {
        let driver = self.drivers.lock().iter().rev().find(|(n, _)| *n == number).map(|(_, d)| d.clone());
        driver.ok_or(FsError::NoDevice)?.open(flags)
    }

    // Making and removing

    /// Makes `what` under the name that `found` ends in. `mode` loses what the view's umask says.
    pub fn make(
        &self,
        view: &View<H>,
        found: &Found<H>,
        what: Create<'_>,
        mode: u16,
    ) -> Result<Arc<Dentry<H>>, FsError> {
        if found.last != Last::Name || found.target.is_some() {
            return Err(FsError::Exists);
        }
        if found.slash && !matches!(what, Create::Directory) {
            return Err(FsError::NotFound);
        }
        let parent = &found.parent;
        let Node::Directory(directory) = &parent.inode.node else { return Err(FsError::NotFound) };
        view.who.may(&parent.inode, Want::WRITE | Want::EXECUTE)?;
        let inode = self.new_inode(view, Some(&parent.inode), parent.inode.system(), what, mode)?;
        let name = found.name.shared()?;
        let dentry = Dentry::child(parent, name.clone(), inode, false)?;
        let memory = directory.memory()?;
        if let Some(file) = dentry.inode.file() {
            file.origin.set_name(&dentry);
        }
        let now = self.host.realtime();
        let is_directory = dentry.inode.is_directory();
        dentry.inode.change(now, |a| a.links = if is_directory { 2 } else { 1 });
        {
            let mut entries = directory.lock();
            if entries.dead() {
                return Err(FsError::NotFound);
            }
            if entries.get(&name).is_some() {
                drop(entries);
                return Err(FsError::Exists);
            }
            entries.add(memory, name, dentry.clone());
        }
        parent.inode.change(now, |a| {
            a.modified = now;
            a.links += u32::from(is_directory);
        });
        Ok(dentry)
    }

    fn new_inode(
        &self,
        view: &View<H>,
        parent: Option<&Inode<H>>,
        system: &'static FileSystem,
        what: Create<'_>,
        mode: u16,
    ) -> Result<Arc<Inode<H>>, FsError> {
        let mut attr = NewAttr { mode: mode & !view.umask, uid: view.who.uid, gid: view.who.gid };
        if matches!(what, Create::Symlink(_)) {
            attr.mode = 0o777;
        }
        // A directory with the set-group-id bit hands its group on, and the bit to directories.
        if let Some(parent) = parent.map(|p| p.attr()).filter(|p| p.mode & 0o2000 != 0) {
            attr.gid = parent.gid;
            if matches!(what, Create::Directory) {
                attr.mode |= 0o2000;
            } else if attr.mode & 0o2010 == 0o2010 && !view.who.may_set_group_id(parent.gid) {
                // Who is not in a group makes no programs that run as that group.
                attr.mode &= !0o2000;
            }
        }
        Inode::new(&self.host, system, attr, |ident| {
            Ok(match what {
                Create::File => Inode::regular(&self.host, system, ident, Seals::SEAL)?,
                Create::Directory => Node::Directory(Directory::new(&self.host)),
                Create::Symlink(target) => Node::Symlink(Vec::try_copy(target)?),
                Create::Fifo => Node::Fifo(Pipe::new(self.host.clone())?),
                Create::CharDevice(n) => Node::CharDevice(n),
                Create::BlockDevice(n) => Node::BlockDevice(n),
                Create::Socket => Node::Socket,
            })
        })
    }

    /// Gives the inode behind `old` one more name.
    pub fn link(&self, view: &View<H>, old: &Arc<Dentry<H>>, found: &Found<H>) -> Result<(), FsError> {
        if found.last != Last::Name || found.target.is_some() {
            return Err(FsError::Exists);
        }
        if found.slash {
            return Err(FsError::NotFound);
        }
        if old.inode.is_directory() {
            return Err(FsError::NotPermitted);
        }
        let parent = &found.parent;
        if !core::ptr::eq(old.inode.system(), parent.inode.system()) {
            return Err(FsError::CrossDevice);
        }
        let Node::Directory(directory) = &parent.inode.node else { return Err(FsError::NotPermitted) };
        view.who.may_link(&old.inode)?;
        view.who.may(&parent.inode, Want::WRITE | Want::EXECUTE)?;
        let admitted = parent.inode.system().admit(self.host.epoch());
        let name = found.name.shared()?;
        let dentry = Dentry::child(parent, name.clone(), old.inode.clone(), false)?;
        let memory = directory.memory()?;
        let now = self.host.realtime();
        {
            let mut entries = directory.lock();
            if entries.dead() {
                return Err(FsError::NotFound);
            }
            if entries.get(&name).is_some() {
                drop(entries);
                return Err(FsError::Exists);
            }
            // Under the directory's lock: whoever sees the name sees it counted.
            old.inode.gain_name(now, admitted)?;
            entries.add(memory, name, dentry);
        }
        parent.inode.touch(now);
        Ok(())
    }

    /// Removes a name that does not lead to a directory.
    pub fn unlink(&self, view: &View<H>, found: &Found<H>) -> Result<(), FsError> {
        match found.last {
            Last::Name => {}
            _ => return Err(FsError::IsDirectory),
        }
        let Node::Directory(directory) = &found.parent.inode.node else { return Err(FsError::NotPermitted) };
        view.who.may(&found.parent.inode, Want::WRITE | Want::EXECUTE)?;
        let removed = {
            let mut entries = directory.lock();
            let victim = entries.get(found.name.bytes()).cloned().ok_or(FsError::NotFound)?;
            if victim.inode.is_directory() {
                return Err(FsError::IsDirectory);
            }
            if found.slash {
                return Err(FsError::NotDirectory);
            }
            view.who.may_take(&found.parent.inode, &victim.inode)?;
            let listed = entries.take(found.name.bytes());
            victim.unlist();
            (victim, listed)
        };
        let now = self.host.realtime();
        removed.0.inode.lose_name(now);
        found.parent.inode.touch(now);
        Ok(())
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, view: &View<H>, found: &Found<H>) -> Result<(), FsError> {
        match found.last {
            Last::Name => {}
            Last::Dot => return Err(FsError::Invalid),
            Last::DotDot => return Err(FsError::NotEmpty),
            Last::Root | Last::Jump => return Err(FsError::Busy),
        }
        let Node::Directory(directory) = &found.parent.inode.node else { return Err(FsError::NotPermitted) };
        view.who.may(&found.parent.inode, Want::WRITE | Want::EXECUTE)?;
        let removed = {
            let mut entries = directory.lock();
            let victim = entries.get(found.name.bytes()).cloned().ok_or(FsError::NotFound)?;
            if victim.mounted {
                return Err(FsError::Busy);
            }
            let Node::Directory(inner) = &victim.inode.node else { return Err(FsError::NotDirectory) };
            view.who.may_take(&found.parent.inode, &victim.inode)?;
            {
                let mut inner = inner.lock_below();
                if !inner.is_empty() {
                    return Err(FsError::NotEmpty);
                }
                inner.kill();
            }
            let listed = entries.take(found.name.bytes());
            victim.unlist();
            (victim, listed)
        };
        let now = self.host.realtime();
        removed.0.inode.change(now, |a| a.links = 0);
        found.parent.inode.change(now, |a| {
            a.modified = now;
            a.links = a.links.saturating_sub(1);
        });
        Ok(())
    }

    // Opening

    /// Opens what `path` leads to, making it where `flags` say so. Waits only for the other end of a FIFO.
    pub fn open(
        &self,
        view: &View<H>,
        base: &Arc<Dentry<H>>,
        path: &[u8],
        flags: OpenFlags,
        mode: u16,
        io: &Io<'_>,
    ) -> Result<Arc<OpenFile<H>>, FsError> {
        let exclusive = flags.contains(OpenFlags::CREATE | OpenFlags::EXCLUSIVE);
        let end = match () {
            () if exclusive => Final::Name,
            () if flags.contains(OpenFlags::NOFOLLOW) => Final::Stay,
            () => Final::Follow,
        };
        if flags.contains(OpenFlags::CREATE) && path.last() == Some(&b'/') {
            // Whatever it is, it would have to be made as a directory; but first of all the way there must exist.
            if self.walk(view, base, path, Final::Name)?.last == Last::Name {
                return Err(FsError::IsDirectory);
            }
        }
        if !flags.intersects(OpenFlags::CREATE | OpenFlags::NAMELESS) {
            let dentry = self.target(view, base, path, end)?.ok_or(FsError::NotFound)?;
            self.check_open(&view.who, &dentry, flags)?;
            return self.open_dentry(dentry, flags, io);
        }
        loop {
            let found = self.walk(view, base, path, end)?;
            if flags.contains(OpenFlags::NAMELESS) {
                let directory = found.target.ok_or(FsError::NotFound)?;
                let Node::Directory(_) = &directory.inode.node else { return Err(FsError::NotDirectory) };
                view.who.may(&directory.inode, Want::WRITE | Want::EXECUTE)?;
                let system = directory.inode.system();
                let inode = self.new_inode(view, Some(&directory.inode), system, Create::File, mode)?;
                // Nobody else has it yet.
                inode.change(self.host.realtime(), |a| a.linkable = !flags.contains(OpenFlags::EXCLUSIVE));
                let label = try_format(format_args!("#{}", inode.ident.number))?;
                return self.open_dentry(Dentry::unlisted(&directory, &label, inode)?, flags, io);
            }
            let dentry = match &found.target {
                Some(_) if exclusive => return Err(FsError::Exists),
                Some(there) => there.clone(),
                None if !flags.contains(OpenFlags::CREATE) => return Err(FsError::NotFound),
                // A link led to a name with a slash behind it.
                None if found.slash => return Err(FsError::IsDirectory),
                None => {
                    // Before the file: opening it needs no more memory.
                    let opening = Opening::new(&self.host)?;
                    match self.make(view, &found, Create::File, mode) {
                        Ok(new) => return self.open_in(opening, new.into(), flags - OpenFlags::TRUNCATE, io),
                        Err(FsError::Exists) if !exclusive => continue,
                        Err(e) => return Err(e),
                    }
                }
            };
            if flags.contains(OpenFlags::CREATE) && dentry.inode.is_directory() {
                return Err(FsError::IsDirectory);
            }
            self.check_open(&view.who, &dentry, flags)?;
            return self.open_dentry(dentry, flags, io);
        }
    }

    /// Whether `who` may open what is there with `flags`.
    fn check_open(&self, who: &Who, dentry: &Dentry<H>, flags: OpenFlags) -> Result<(), FsError> {
        let kind = dentry.inode.kind();
        if flags.contains(OpenFlags::DIRECTORY) && kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        if flags.contains(OpenFlags::PATH) {
            return Ok(());
        }
        if kind == FileKind::Symlink {
            return Err(FsError::Loop);
        }
        let mut want = Want::empty();
        want.set(Want::READ, flags.contains(OpenFlags::READ));
        want.set(Want::WRITE, flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE));
        if want.contains(Want::WRITE) && kind == FileKind::Directory {
            return Err(FsError::IsDirectory);
        }
        who.may(&dentry.inode, want)?;
        if flags.contains(OpenFlags::NOATIME) && !who.owns(&dentry.inode.attr()) {
            return Err(FsError::NotPermitted);
        }
        Ok(())
    }

    /// Opens a dentry; permissions were checked.
    pub fn open_dentry(
        &self,
        dentry: impl Into<Hold<Dentry<H>>>,
        flags: OpenFlags,
        io: &Io<'_>,
    ) -> Result<Arc<OpenFile<H>>, FsError> {
        self.open_in(Opening::new(&self.host)?, dentry.into(), flags, io)
    }

    fn open_in(
        &self,
        opening: Opening<H>,
        dentry: Hold<Dentry<H>>,
        flags: OpenFlags,
        io: &Io<'_>,
    ) -> Result<Arc<OpenFile<H>>, FsError> {
        if flags.contains(OpenFlags::PATH) {
            return Ok(OpenFile::new(opening, dentry, flags, Body::Path, false));
        }
        let written = dentry.inode.file().filter(|_| flags.contains(OpenFlags::WRITE));
        let writer = written.map(|file| file.writing.text.write()).transpose()?;
        let body = self.body(&dentry, flags, io)?;
        let counts = writer.map(Writer::keep).is_some();
        Ok(OpenFile::new(opening, dentry, flags, body, counts))
    }

    fn body(&self, dentry: &Arc<Dentry<H>>, flags: OpenFlags, io: &Io<'_>) -> Result<Body<H>, FsError> {
        let inode = &dentry.inode;
        Ok(match &inode.node {
            Node::File(file) => {
                if flags.contains(OpenFlags::TRUNCATE) {
                    inode.truncate_by_name(&self.host, 0, io)?;
                }
                file.origin.opened_as(dentry);
                Body::File
            }
            Node::Directory(_) => Body::Directory,
            Node::Fifo(pipe) => {
                let (read, write) = (flags.contains(OpenFlags::READ), flags.contains(OpenFlags::WRITE));
                // Only a pipe with a name is a meeting place. One without was open at both ends from the start, so its other
                // end is there or will never come: an opener that comes through /proc neither waits nor is refused.
                Body::Stream(match core::ptr::eq(inode.system(), self.nameless) {
                    true => Pipe::open_now(pipe, read, write)?,
                    false => Pipe::open(pipe, read, write, &io.of(flags))?,
                })
            }
            Node::CharDevice(number) => Body::Stream(self.open_device(*number, flags)?),
            Node::Generated(generated) => Body::generated(generated)?,
            Node::Symlink(_) => return Err(FsError::Loop),
            Node::BlockDevice(_) | Node::Socket | Node::Anonymous(_) => return Err(FsError::NoDevice),
        })
    }

    /// A new pipe of `who`: its reading and its writing end. `flags` are added to both, except that a reader has no packets.
    pub fn pipe(&self, who: &Who, flags: OpenFlags) -> Result<(SharedFile<H>, SharedFile<H>), FsError> {
        let (pipe, [r, w]) = Pipe::ends(self.host.clone())?;
        let attr = NewAttr { mode: 0o600, uid: who.uid, gid: who.gid };
        let inode = Inode::new(&self.host, self.nameless, attr, |_| Ok(Node::Fifo(pipe)))?;
        inode.change(self.host.realtime(), |a| a.links = 1);
        let label = try_format(format_args!("pipe:[{}]", inode.ident.number))?;
        let dentry = Dentry::nameless(&label, inode)?;
        let open_as = |flags, s| -> Result<SharedFile<H>, FsError> {
            Ok(OpenFile::new(Opening::new(&self.host)?, dentry.clone().into(), flags, Body::Stream(s), false))
        };
        Ok((open_as((flags - OpenFlags::DIRECT) | OpenFlags::READ, r)?, open_as(flags | OpenFlags::WRITE, w)?))
    }

    /// An open file of `who` for a stream without a name; `kind` is what listings of open files show.
    pub fn nameless_stream(
        &self,
        who: &Who,
        kind: &'static str,
        stream: Arc<dyn Stream>,
        flags: OpenFlags,
        socket: bool,
    ) -> Result<Arc<OpenFile<H>>, FsError> {
        let attr = NewAttr { mode: if socket { 0o777 } else { 0o600 }, uid: who.uid, gid: who.gid };
        let node = if socket { Node::Socket } else { Node::Anonymous(kind) };
        let inode = Inode::new(&self.host, self.nameless, attr, |_| Ok(node))?;
        inode.change(self.host.realtime(), |a| a.links = 1);
        let label = match socket {
            true => try_format(format_args!("socket:[{}]", inode.ident.number))?,
            false => try_format(format_args!("anon_inode:{kind}"))?,
        };
        let dentry = Dentry::nameless(&label, inode)?;
        Ok(OpenFile::new(Opening::new(&self.host)?, dentry.into(), flags, Body::Stream(stream), false))
    }

    /// A file of `who` in memory without a name in any directory; listings show `/memfd:name (deleted)`.
    /// With `seals`, of which [`Seals::EXEC`] says that nobody may ever execute it.
    pub fn memory_file(
        &self,
        who: &Who,
        name: &[u8],
        flags: OpenFlags,
        seals: Seals,
    ) -> Result<Arc<OpenFile<H>>, FsError> {
        let mode = if seals.contains(Seals::EXEC) { 0o777 & !EXECUTE } else { 0o777 };
        let attr = NewAttr { mode, uid: who.uid, gid: who.gid };
        let node = |ident| Inode::regular(&self.host, self.memory, ident, seals);
        let inode = Inode::new(&self.host, self.memory, attr, node)?;
        let mut label = Vec::new();
        for part in [b"/memfd:", name, b" (deleted)"] {
            label.try_extend_from_slice(part)?;
        }
        let dentry = Dentry::nameless(&label, inode)?;
        let opening = Opening::new(&self.host)?;
        let body = self.body(&dentry, flags, &Io::NOW)?;
        // No writer in the sense of a program's file, as on Linux: what is made in memory is executed through its only descriptor.
        Ok(OpenFile::new(opening, dentry.into(), flags | OpenFlags::LARGE, body, false))
    }
}
