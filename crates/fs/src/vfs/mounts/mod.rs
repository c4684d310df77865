//! Mounts: file systems at a directory of another one.
//!
//! The root of a mount replaces the entry of its directory in the parent directory. So a walk meets the root like any
//! other entry, at no cost. The directory that the root replaces (the *hidden* directory) stays with the [`Mount`], and
//! gets its place back when the mount ends. Two kinds of directories cannot be mount points. One is the root of the
//! tree. The other are directories of generated file systems, because their entries are made at each lookup.
//!
//! A bind mount ([`bind`]) shows the entries of another mount. The bind mount itself keeps the mounts on such entries,
//! because only its paths lead to these mounts.
//!
//! A file system in memory keeps its own tree alive: each entry refers to its directory, and each directory to its
//! entries. So the tree is taken apart when its mount has ended and no process uses it any more. Until then the mount
//! is on the list of detached mounts, which each later mount or unmount checks again.

mod attach;
mod bind;
pub(crate) mod table;

use super::Vfs;
use crate::FsError;
use crate::host::Host;
use crate::tree::attr::NewAttr;
use crate::tree::dentry::Dentry;
use crate::tree::inode::generated::{Generated, GeneratedDirectory};
use crate::tree::inode::{Inode, InodeContent};
use crate::tree::system::{FileSystem, Limits, Restrictions, Space};
use quire_heap::{Arc, Vec};
use quire_sync::atomic::Ordering;
use table::Changes;
pub use table::{FIRST_MOUNT, MOUNTS_MAX, Mount, MountChanges};

/// Returns whether any process uses a tree: as a working directory, by an open file, or by a mapping.
pub type InUse<'a, H> = &'a dyn Fn(&Arc<Dentry<H>>) -> Result<bool, FsError>;

/// A file system to mount.
pub enum Content<H: Host> {
    /// An empty file system in memory.
    Memory {
        /// The limits of the file system; a limit may be unset.
        limits: Limits,
        /// The permission bits, user and group of its root.
        root: NewAttr,
    },
    /// A tree of generated files, and the permission bits of its root.
    Generated(Arc<dyn GeneratedDirectory<H>>, u16),
}

impl<H: Host> Vfs<H> {
    pub(super) fn new_system(&self, kind: &'static str, limits: Limits) -> Result<&'static FileSystem, FsError> {
        let device = self.next_device.fetch_add(1, Ordering::Relaxed);
        FileSystem::new(device, kind, limits, self.host.cpus())
    }

    /// Mounts `content` on the directory `target` for a user.
    pub fn mount_on(
        &self,
        target: &Arc<Dentry<H>>,
        kind: &'static str,
        content: Content<H>,
        source: &[u8],
        restrictions: Restrictions,
        in_use: InUse<'_, H>,
    ) -> Result<(), FsError> {
        if !target.inode.is_directory() {
            return Err(FsError::NotDirectory);
        }
        let parent = Dentry::parent(target)?.ok_or(FsError::Busy)?;
        let mut changes = self.changes.lock();
        self.sweep(&mut changes, in_use)?;
        self.one_more(&mut changes)?;
        let source = Arc::try_copy(source)?;
        let system = match changes.spare.iter().position(|system| system.kind == kind) {
            Some(at) => changes.spare.swap_remove(at),
            // Limits are set below. A file system without limits counts nothing, and cannot get limits later.
            None => {
                let limits = if matches!(content, Content::Memory { .. }) { Limits::UNSET } else { Limits::NONE };
                self.new_system(kind, limits)?
            }
        };
        let mounted = self.mount_system(target, &parent, system, content, source, restrictions);
        if mounted.is_err() {
            changes.spare.push_reserved(system);
        }
        drop(changes);
        mounted.inspect(|()| self.mount_changes.announce())
    }

    #[allow(clippy::too_many_arguments)]
    fn mount_system(
        &self,
        target: &Arc<Dentry<H>>,
        parent: &Arc<Dentry<H>>,
        system: &'static FileSystem,
        content: Content<H>,
        source: Arc<[u8]>,
        restrictions: Restrictions,
    ) -> Result<(), FsError> {
        system.restrict(Restrictions::empty());
        let inode = match content {
            Content::Memory { limits, root } => {
                system.set_limits(limits);
                Self::root_directory(&self.host, system, root)?
            }
            Content::Generated(root, mode) => root_inode(&self.host, system, root, mode)?,
        };
        system.restrict(restrictions);
        let name = target.name();
        let root = Dentry::child(parent, name.clone(), inode, true)?;
        let id = self.mounts.lock().number();
        system.set_mount(id);
        self.attach(parent, &name, target, id, root, source).map(drop)
    }

    /// Checks that one more mount is allowed, and reserves the memory that the end of that mount needs.
    pub(super) fn one_more(&self, changes: &mut Changes<H>) -> Result<(), FsError> {
        if self.mounts.lock().len() + changes.detached.len() >= MOUNTS_MAX {
            return Err(FsError::NoSpace);
        }
        changes.detached.try_reserve(1)?;
        Ok(changes.spare.try_reserve(1)?)
    }

    /// Ends the mount whose root is `root`. Fails with [`FsError::Busy`] if the mount is in use, or another mount is
    /// below it. With `lazily` the mount ends nevertheless: the mounts below it end too, and users keep their files.
    /// Fails with [`FsError::Invalid`] if `root` is not the root of a mount.
    pub fn unmount(&self, root: &Arc<Dentry<H>>, lazily: bool, in_use: InUse<'_, H>) -> Result<(), FsError> {
        let mut changes = self.changes.lock();
        let own = self.mount_of(root).ok_or(FsError::Invalid)?;
        if own.hidden.is_none() || own.permanent || !lazily && (own.carries() || in_use(root)?) {
            return Err(FsError::Busy);
        }
        let all = self.with_carried(&own, |_| true)?;
        for mount in all.iter().rev() {
            changes.detached.try_reserve(1)?;
            changes.spare.try_reserve(1)?;
            self.detach(mount)?;
            changes.detached.push_reserved(mount.clone());
        }
        drop(all);
        let swept = self.sweep(&mut changes, in_use);
        drop(changes);
        self.mount_changes.announce();
        swept
    }

    /// Returns `own`, the mounts on `own` that are `wanted`, and all mounts on the wanted mounts. Each mount comes
    /// after the mount that it is on.
    pub(super) fn with_carried(
        &self,
        own: &Arc<Mount<H>>,
        wanted: impl Fn(&Arc<Mount<H>>) -> bool,
    ) -> Result<Vec<Arc<Mount<H>>>, FsError> {
        let mut family = Vec::try_from_iter([own.clone()])?;
        if !own.carries() {
            return Ok(family);
        }
        let mut all = Vec::try_from_iter(self.all_mounts())?;
        all.sort_unstable_by_key(|mount| (mount.on, mount.id));
        let mut at = 0;
        while let Some(mount) = family.get(at).map(|mount| mount.id) {
            let first = all.partition_point(|other| other.on < mount);
            for one in all[first..].iter().take_while(|other| other.on == mount) {
                if at > 0 || wanted(one) {
                    family.try_push(one.clone())?;
                }
            }
            at += 1;
        }
        Ok(family)
    }

    /// The announcements of changes of the mounts.
    pub fn mount_changes(&self) -> &MountChanges {
        &self.mount_changes
    }

    /// Changes the restrictions of `mount`. With `with_system`, also sets whether its file system takes changes.
    pub fn restrict_mount(&self, mount: &Mount<H>, uses: Restrictions, with_system: bool) {
        if with_system {
            mount.system().set_read_only(uses.contains(Restrictions::READ_ONLY));
        }
        mount.restrict(uses);
        self.mount_changes.announce();
    }

    /// Takes the trees of detached mounts apart if no process uses them any more. Keeps their file systems for later
    /// mounts.
    pub(super) fn sweep(&self, changes: &mut Changes<H>, in_use: InUse<'_, H>) -> Result<(), FsError> {
        let mut at = 0;
        while let Some(mount) = changes.detached.get(at) {
            if in_use(&mount.root)? || mount.is_first() && mount.system().is_bound() {
                at += 1;
                continue;
            }
            match mount.root.through() {
                // From now on the way up through the bind mount ends at the bind mount's top.
                Some(through) => {
                    through.bind.set_place(None);
                    mount.system().count_bind(false);
                }
                None => {
                    self.take_apart(&mount.root);
                    changes.emptying.try_push(mount.root.inode.system())?;
                }
            }
            let gone = changes.detached.swap_remove(at);
            drop(gone);
        }
        // A removed directory stays counted until no lookup can use it any more.
        self.host.epoch().drain();
        let mut at = 0;
        while let Some(system) = changes.emptying.get(at).copied() {
            if system.inodes() == 0 {
                changes.spare.try_push(system)?;
                changes.emptying.swap_remove(at);
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    /// Removes all entries below `root`. Needs no memory for a list of entries.
    fn take_apart(&self, root: &Arc<Dentry<H>>) {
        let now = self.host.realtime();
        let mut at = root.clone();
        loop {
            let InodeContent::Directory(directory) = &at.inode.node else { return };
            let taken = {
                let mut entries = directory.lock();
                // From now on no name can be added.
                entries.kill();
                let taken = entries.first().and_then(|name| entries.take(&name));
                taken.inspect(|(child, _)| child.unlist())
            };
            let next = match &taken {
                Some((child, _)) if child.inode.is_directory() => {
                    child.inode.change(now, |a| a.links = 0);
                    child.clone()
                }
                Some((child, _)) => {
                    child.inode.lose_name(now);
                    continue;
                }
                None if Arc::ptr_eq(&at, root) => return,
                // The directory is empty now, and was removed from its parent before. The loop continues in the parent.
                None => at.directory().unwrap_or_else(|| root.clone()),
            };
            at = next;
        }
    }

    /// The mount whose root is `root`.
    pub fn mount_of(&self, root: &Arc<Dentry<H>>) -> Option<Arc<Mount<H>>> {
        self.mount_numbered(root.mount()).filter(|mount| Dentry::same(&mount.root, root))
    }

    pub(super) fn mount_numbered(&self, id: u64) -> Option<Arc<Mount<H>>> {
        self.mounts.lock().numbered(id)
    }

    /// The number of the mount that leads to `dentry`.
    pub fn mount_id(&self, dentry: &Arc<Dentry<H>>) -> Option<u64> {
        self.mount_around(dentry).map(|mount| mount.id)
    }

    /// The root of the first mounted file system of that kind.
    pub fn mounted(&self, kind: &str) -> Option<Arc<Dentry<H>>> {
        let mounts = self.mounts.lock();
        let found = mounts.iter().find(|mount| mount.is_first() && mount.system().kind == kind);
        found.map(|mount| mount.root.clone())
    }

    /// Sets the limits of each mounted file system to its present contents plus `more`, if it has limits at all.
    pub fn set_room(&self, more: Limits) {
        // A directory under a mount stays counted until no lookup can use it any more.
        self.host.epoch().drain();
        self.all_mounts().filter(|mount| mount.is_first()).for_each(|mount| mount.system().set_room(more));
    }

    /// All mounts, one after the other. Mounts that begin or end during the iteration may be left out.
    pub(super) fn all_mounts(&self) -> impl Iterator<Item = Arc<Mount<H>>> {
        let mut next = 0;
        core::iter::from_fn(move || {
            let mount = self.mounts.lock().from(next)?;
            next = mount.id + 1;
            Some(mount)
        })
    }

    /// Calls `each` with the path and the mount of each mounted file system.
    pub fn mounts(&self, mut each: impl FnMut(&[u8], &Mount<H>)) -> Result<(), FsError> {
        for mount in self.all_mounts() {
            each(&Dentry::path(&mount.root, &self.root)?.0, &mount);
        }
        Ok(())
    }

    /// The number of inodes of all mounted file systems that count them.
    pub fn inodes(&self) -> u64 {
        self.all_mounts().filter(|mount| mount.is_first()).map(|mount| mount.system().inodes()).sum()
    }

    /// The space of the file system of `inode`. The caller holds no lock.
    pub fn space(&self, inode: &Inode<H>) -> Space {
        // A removed directory stays counted until no lookup can use it any more.
        self.host.epoch().drain();
        inode.system().space()
    }
}

/// The root inode of a file system of generated files, whose provider is `root`.
pub(super) fn root_inode<H: Host>(
    host: &H,
    system: &'static FileSystem,
    root: Arc<dyn GeneratedDirectory<H>>,
    mode: u16,
) -> Result<Arc<Inode<H>>, FsError> {
    let attr = NewAttr { mode, uid: 0, gid: 0 };
    let inode = Inode::generated(system, 1, attr, host.realtime(), Generated::Directory(root))?;
    inode.change(host.realtime(), |a| a.links = 2);
    Ok(inode)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::test_host::TestHost;
    use crate::{Create, Final, OpenFlags};

    type V = Arc<Vfs<TestHost>>;

    fn tree() -> V {
        let vfs = Vfs::new(TestHost, Limits::UNSET).unwrap();
        for path in [&b"/m"[..], b"/m/own", b"/other"] {
            make(&vfs, path).unwrap();
        }
        vfs
    }

    fn make(vfs: &V, path: &[u8]) -> Result<(), FsError> {
        let found = vfs.walk(&vfs.view(), vfs.root(), path, Final::Name)?;
        vfs.make(&vfs.view(), &found, Create::Directory, 0o755).map(drop)
    }

    fn at(vfs: &V, path: &[u8]) -> Result<Arc<Dentry<TestHost>>, FsError> {
        vfs.find(&vfs.view(), vfs.root(), path, true).map(|found| found.counted())
    }

    fn mount(vfs: &V, path: &[u8], inodes: u64, restrictions: Restrictions) -> Result<(), FsError> {
        let root = NewAttr { mode: 0o700, uid: 3, gid: 4 };
        let limits = Limits { inodes: Some(inodes), pages: Some(9) };
        let content = Content::Memory { limits, root };
        vfs.mount_on(&at(vfs, path)?, "tmpfs", content, b"mine", restrictions, &|_| Ok(false))
    }

    fn unmount(vfs: &V, path: &[u8], lazily: bool, used: bool) -> Result<(), FsError> {
        vfs.unmount(&at(vfs, path)?, lazily, &|_| Ok(used))
    }

    #[test]
    fn a_mount_hides_a_directory_until_it_ends() {
        let vfs = tree();
        mount(&vfs, b"/m", 5, Restrictions::empty()).unwrap();
        assert_eq!(at(&vfs, b"/m/own").err(), Some(FsError::NotFound));
        make(&vfs, b"/m/new").unwrap();
        make(&vfs, b"/m/new/deep").unwrap();
        let space = vfs.space(&at(&vfs, b"/m").unwrap().inode);
        assert_eq!((space.inodes.total, space.inodes.free, space.pages.total), (5, 2, 9));
        // Neither end can be removed or renamed.
        let found = vfs.walk(&vfs.view(), vfs.root(), b"/m", Final::Name).unwrap();
        assert_eq!(vfs.rmdir(&vfs.view(), &found), Err(FsError::Busy));
        assert_eq!(unmount(&vfs, b"/m/new", false, false), Err(FsError::Invalid));
        assert_eq!(unmount(&vfs, b"/m", false, true), Err(FsError::Busy));
        unmount(&vfs, b"/m", false, false).unwrap();
        at(&vfs, b"/m/own").unwrap();
        assert_eq!(at(&vfs, b"/m/new").err(), Some(FsError::NotFound));
        assert_eq!(unmount(&vfs, b"/", false, false), Err(FsError::Busy));
    }

    #[test]
    fn mounts_below_keep_one_busy_and_end_with_it_lazily() {
        let vfs = tree();
        mount(&vfs, b"/m", 5, Restrictions::empty()).unwrap();
        make(&vfs, b"/m/below").unwrap();
        mount(&vfs, b"/m/below", 5, Restrictions::empty()).unwrap();
        // Mounts on the same directory again.
        mount(&vfs, b"/m/below", 5, Restrictions::empty()).unwrap();
        assert_eq!(unmount(&vfs, b"/m", false, false), Err(FsError::Busy));
        let mut count = 0;
        vfs.mounts(|_, _| count += 1).unwrap();
        assert_eq!(count, 4);
        // A user keeps the tree.
        let kept = at(&vfs, b"/m").unwrap();
        vfs.unmount(&kept, true, &|root| Ok(Arc::ptr_eq(root, &kept))).unwrap();
        at(&vfs, b"/m/own").unwrap();
        assert!(vfs.find(&vfs.view(), &kept, b"below", true).is_ok());
        // The next change takes it apart.
        mount(&vfs, b"/other", 5, Restrictions::empty()).unwrap();
        assert_eq!(vfs.find(&vfs.view(), &kept, b"below", true).err(), Some(FsError::NotFound));
        unmount(&vfs, b"/other", false, false).unwrap();
    }

    /// The number of each mount, and of the mount that it is on.
    fn numbers(vfs: &V) -> std::vec::Vec<(u64, u64)> {
        let mut all = std::vec::Vec::new();
        vfs.mounts(|_, mount| all.push((mount.id, mount.on))).unwrap();
        all
    }

    #[test]
    fn a_mount_keeps_its_number_and_knows_the_mount_that_it_is_on() {
        let vfs = tree();
        mount(&vfs, b"/other", 5, Restrictions::empty()).unwrap();
        mount(&vfs, b"/m", 5, Restrictions::empty()).unwrap();
        // Mounts on `/m` a second time, and on a directory in that mount.
        mount(&vfs, b"/m", 5, Restrictions::empty()).unwrap();
        make(&vfs, b"/m/below").unwrap();
        mount(&vfs, b"/m/below", 5, Restrictions::empty()).unwrap();
        assert_eq!(numbers(&vfs), [(21, 1), (22, 21), (23, 21), (24, 23), (25, 24)]);
        assert_eq!(vfs.mount_id(&at(&vfs, b"/m/below").unwrap()), Some(25));
        unmount(&vfs, b"/other", false, false).unwrap();
        assert_eq!(numbers(&vfs), [(21, 1), (23, 21), (24, 23), (25, 24)]);
        // Moves a mount onto a later mount: its number stays, and the mount on it stays there.
        make(&vfs, b"/late").unwrap();
        mount(&vfs, b"/late", 5, Restrictions::empty()).unwrap();
        make(&vfs, b"/late/place").unwrap();
        let (place, top) = (at(&vfs, b"/late/place").unwrap(), at(&vfs, b"/m").unwrap());
        vfs.move_on(&place, &top, &|_| Ok(false)).unwrap();
        assert_eq!(numbers(&vfs), [(21, 1), (23, 21), (24, 26), (25, 24), (26, 21)]);
        assert_eq!(vfs.mount_id(&at(&vfs, b"/late/place/below").unwrap()), Some(25));
        drop((place, top));
        // No mount is mounted in the lower mount now. Mounts are mounted in the later mount, and its lazy unmount ends
        // all of them.
        unmount(&vfs, b"/m", false, false).unwrap();
        assert_eq!(unmount(&vfs, b"/late", false, false), Err(FsError::Busy));
        unmount(&vfs, b"/late", true, false).unwrap();
        assert_eq!(numbers(&vfs), [(21, 1)]);
        make(&vfs, b"/late/again").unwrap();
    }

    #[test]
    fn all_mounts_that_there_may_be_come_and_go() {
        let vfs = tree();
        for n in 1..MOUNTS_MAX {
            // Some mounts are on one another, the others on directories of their own.
            let path = std::format!("/m{}", n / 4);
            if n % 4 == 0 || n == 1 {
                make(&vfs, path.as_bytes()).unwrap();
            }
            mount(&vfs, path.as_bytes(), 5, Restrictions::empty()).unwrap();
        }
        assert_eq!(mount(&vfs, b"/other", 5, Restrictions::empty()), Err(FsError::NoSpace));
        let last = std::format!("/m{}", (MOUNTS_MAX - 1) / 4);
        assert_eq!(vfs.mount_id(&at(&vfs, last.as_bytes()).unwrap()), Some(FIRST_MOUNT + MOUNTS_MAX as u64 - 1));
        for n in 1..MOUNTS_MAX {
            unmount(&vfs, std::format!("/m{}", n / 4).as_bytes(), false, false).unwrap();
        }
        assert_eq!(numbers(&vfs), [(21, 1)]);
        unmount(&vfs, b"/m0", false, false).unwrap_err();
    }

    #[test]
    fn a_read_only_mount_refuses_changes() {
        let vfs = tree();
        mount(&vfs, b"/m", 5, Restrictions::READ_ONLY).unwrap();
        assert_eq!(make(&vfs, b"/m/new"), Err(FsError::ReadOnly));
        let root = at(&vfs, b"/m").unwrap();
        let caller = crate::FileCredentials::ROOT;
        assert_eq!(vfs.set_mode(&caller, &root.inode, 0o777), Err(FsError::ReadOnly));
        assert_eq!(vfs.set_owner(&caller, &root.inode, Some(1), None), Err(FsError::ReadOnly));
        assert_eq!(vfs.set_times(&caller, &root.inode, None, None, true), Err(FsError::ReadOnly));
        root.inode.system().restrict(Restrictions::empty());
        make(&vfs, b"/m/new").unwrap();
        root.inode.system().restrict(Restrictions::READ_ONLY);
        let open = |flags| vfs.open(&vfs.view(), vfs.root(), b"/m/new", flags, 0, &crate::Io::NOW).err();
        assert_eq!(
            (open(OpenFlags::READ), open(OpenFlags::READ | OpenFlags::NAMELESS)),
            (None, Some(FsError::ReadOnly))
        );
        unmount(&vfs, b"/m", false, false).unwrap();
    }

    #[test]
    fn a_file_system_serves_one_mount_after_another() {
        let vfs = tree();
        let mut devices = std::collections::BTreeSet::new();
        for n in 1..50 {
            mount(&vfs, b"/m", n + 1, Restrictions::empty()).unwrap();
            make(&vfs, b"/m/new").unwrap();
            let root = at(&vfs, b"/m").unwrap();
            devices.insert(root.inode.ident.device);
            assert_eq!(vfs.space(&root.inode).inodes.free, n - 1);
            drop(root);
            unmount(&vfs, b"/m", false, false).unwrap();
        }
        // The caller of `unmount` still has the root, so two file systems take turns.
        assert!(devices.len() <= 2, "{devices:?}");
    }
}
