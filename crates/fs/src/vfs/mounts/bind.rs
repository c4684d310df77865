//! Making bind mounts, and the mounts on dentries that they show. [`crate::tree::dentry::bind`] has the bind mount
//! itself.
//!
//! A bind mount shows the tree of one file system. A mount in that tree belongs to the paths of another mount, so
//! lookups through a bind mount see the dentry below it. A recursive bind mount also makes bind mounts of the mounts
//! below its source.

use super::InUse;
use super::table::{Changes, Mount};
use crate::FsError;
use crate::host::Host;
use crate::tree::dentry::Dentry;
use crate::tree::dentry::bind::{Bind, Through};
use crate::tree::inode::InodeContent;
use crate::tree::inode::generated::Generated;
use crate::tree::system::Restrictions;
use crate::vfs::Vfs;
use quire_heap::{Arc, Map, SpareEntry, Vec};
use quire_lookup::names;

impl<H: Host> Vfs<H> {
    /// Shows the directory or file `source` at `target` too. With `recursively`, shows the mounts below `source` too.
    /// Fails with [`FsError::Invalid`] if no mount leads to `source`.
    pub fn bind_on(
        &self,
        target: &Arc<Dentry<H>>,
        source: &Arc<Dentry<H>>,
        recursively: bool,
        in_use: InUse<'_, H>,
    ) -> Result<(), FsError> {
        let mut changes = self.changes.lock();
        let own = self.mount_around(source).ok_or(FsError::Invalid)?;
        if source.inode.is_directory() != target.inode.is_directory() {
            return Err(FsError::NotDirectory);
        }
        self.sweep(&mut changes, in_use)?;
        let family = match recursively {
            true => self.with_carried(&own, |mount| Dentry::is_below(&mount.root, source))?,
            false => Vec::try_from_iter([own.clone()])?,
        };
        let mut copies: Vec<Arc<Mount<H>>> = Vec::try_with_capacity(family.len())?;
        let mount = self.bind_one(&mut changes, target, source, source.restrictions(), own.source.clone())?;
        copies.push_reserved(mount);
        // The copies, by the number of the mount that was copied.
        let mut copied = Map::new();
        let result = (copied.try_insert(own.id, copies[0].clone()).map(drop).map_err(FsError::from)).and_then(|()| {
            family[1..].iter().try_for_each(|one| self.copy_below(&mut changes, one, &mut copies, &mut copied))
        });
        if result.is_err() {
            // Later copies end first, because they may be below earlier copies.
            for mount in copies.iter().rev() {
                self.detach(mount)?;
                mount.root.through().inspect(|through| through.bind.set_place(None));
                mount.system().count_bind(false);
            }
        }
        drop(changes);
        result.inspect(|()| self.mount_changes.announce())
    }

    /// Mounts the tree of a mounted file system at `target` once more, with restrictions of its own. `name` is the
    /// source's name, as the mounting program gave it.
    pub fn mount_again(
        &self,
        target: &Arc<Dentry<H>>,
        root: &Arc<Dentry<H>>,
        name: &[u8],
        restrictions: Restrictions,
        in_use: InUse<'_, H>,
    ) -> Result<(), FsError> {
        if !target.inode.is_directory() {
            return Err(FsError::NotDirectory);
        }
        let mut changes = self.changes.lock();
        self.sweep(&mut changes, in_use)?;
        self.bind_one(&mut changes, target, root, restrictions, Arc::try_copy(name)?)?;
        drop(changes);
        self.mount_changes.announce();
        Ok(())
    }

    /// Makes one bind mount of `source` at `target`. `name` is the name of its source.
    fn bind_one(
        &self,
        changes: &mut Changes<H>,
        target: &Arc<Dentry<H>>,
        source: &Arc<Dentry<H>>,
        restrictions: Restrictions,
        name: Arc<[u8]>,
    ) -> Result<Arc<Mount<H>>, FsError> {
        self.one_more(changes)?;
        let parent = Dentry::parent(target)?.ok_or(FsError::Busy)?;
        let id = self.mounts.lock().number();
        let bind = Arc::try_new(Bind::new(id, Dentry::seen(source).clone(), restrictions))?;
        let root = Dentry::view(&bind, bind.source.clone())?;
        let place = target.name();
        bind.set_place(Some((parent.clone(), place.clone())));
        match self.attach(&parent, &place, target, id, root, name) {
            Ok(mount) => {
                mount.system().count_bind(true);
                Ok(mount)
            }
            Err(e) => {
                bind.set_place(None);
                Err(e)
            }
        }
    }

    /// Makes a bind mount of the mount `one`. Its mount point is in a mount of which `copied` has a copy, or `one` is
    /// left out.
    fn copy_below(
        &self,
        changes: &mut Changes<H>,
        one: &Arc<Mount<H>>,
        copies: &mut Vec<Arc<Mount<H>>>,
        copied: &mut Map<u64, Arc<Mount<H>>>,
    ) -> Result<(), FsError> {
        let Some(hidden) = &one.hidden else { return Ok(()) };
        let around = copied.get(&one.on).and_then(|copy| copy.root.through());
        let Some(Through { bind, .. }) = around else { return Ok(()) };
        let memory = SpareEntry::try_new()?;
        let target = Dentry::view(bind, Dentry::seen(hidden).clone())?;
        let mount = self.bind_one(changes, &target, &one.root, one.restrictions(), one.source.clone())?;
        copied.insert(memory, one.id, mount.clone());
        copies.push_reserved(mount);
        Ok(())
    }

    /// The mount that leads to `dentry`, if there is one.
    pub(in crate::vfs) fn mount_around(&self, dentry: &Arc<Dentry<H>>) -> Option<Arc<Mount<H>>> {
        let Some(at) = dentry.through() else { return self.mount_of(&Dentry::top(dentry)?) };
        if !Dentry::is_below(&at.dentry, &at.bind.source) {
            return None;
        }
        self.mount_numbered(at.bind.id)
    }

    /// The dentry below all mounts at `root`.
    pub(super) fn beneath(&self, root: &Arc<Dentry<H>>) -> Option<Arc<Dentry<H>>> {
        let mut at = root.clone();
        while at.mounted {
            at = self.mount_of(&at)?.hidden.clone()?;
        }
        Some(at)
    }

    /// The entry `name` of the directory `here`, if it exists.
    pub(crate) fn child(&self, here: &Arc<Dentry<H>>, name: &[u8]) -> Result<Option<Arc<Dentry<H>>>, FsError> {
        match here.through() {
            Some(through) => self.child_through(through, name),
            None => self.own_child(here, name),
        }
    }

    /// The entry `name` of a directory that is no view.
    fn own_child(&self, here: &Arc<Dentry<H>>, name: &[u8]) -> Result<Option<Arc<Dentry<H>>>, FsError> {
        match &here.inode.node {
            InodeContent::Directory(d) => Ok(d.get(name, &self.host().epoch().pin()).map(names::FoundName::counted)),
            InodeContent::Generated(Generated::Directory(d)) => {
                let entry = d.lookup(name)?;
                entry.map(|entry| Dentry::for_generated(self.host(), here, name, entry)).transpose()
            }
            _ => Err(FsError::NotDirectory),
        }
    }

    /// The entry `name` of a directory that is seen through a bind mount.
    fn child_through(&self, at: &Through<H>, name: &[u8]) -> Result<Option<Arc<Dentry<H>>>, FsError> {
        let mut ended: Option<Arc<Dentry<H>>> = None;
        loop {
            let Some(there) = self.own_child(&at.dentry, name)? else { return Ok(None) };
            let Some(seen) = self.beneath(&there) else {
                // A mount that has just ended gave the entry back to the hidden directory. So the lookup is repeated
                // once.
                if ended.is_some_and(|ended| Arc::ptr_eq(&ended, &there)) {
                    return Err(FsError::NotFound);
                }
                ended = Some(there);
                continue;
            };
            return match at.bind.over(&seen) {
                Some(root) => Ok(Some(root)),
                None => Dentry::view(&at.bind, seen).map(Some),
            };
        }
    }
}

impl<H: Host> Mount<H> {
    /// The path of its root within its file system.
    pub fn root_path(&self) -> Result<Vec<u8>, FsError> {
        let Some(through) = self.root.through() else { return Ok(Vec::try_copy(b"/")?) };
        let source = &through.bind.source;
        let Some(top) = Dentry::top(source) else { return Ok(Vec::try_copy(b"/")?) };
        let (mut path, exists) = Dentry::path(source, &top)?;
        if !exists {
            path.try_extend_from_slice(b"//deleted")?;
        }
        Ok(path)
    }

    /// The uses that the mount refuses.
    pub fn restrictions(&self) -> Restrictions {
        self.root.restrictions()
    }

    /// Changes the uses that this mount refuses.
    pub(super) fn restrict(&self, uses: Restrictions) {
        match self.root.through() {
            Some(through) => through.bind.restrict(uses),
            None => self.system().restrict_first_mount(uses),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::rename::Rename;
    use crate::test_host::TestHost;
    use crate::vfs::mounts::Content;
    use crate::{Create, Final, Limits, NewAttr, OpenFlags};

    type V = Arc<Vfs<TestHost>>;
    type D = Arc<Dentry<TestHost>>;

    fn tree() -> V {
        let vfs = Vfs::new(TestHost, Limits::UNSET).unwrap();
        for path in [&b"/a"[..], b"/a/b", b"/a/b/c", b"/m", b"/n"] {
            make(&vfs, path, Create::Directory).unwrap();
        }
        make(&vfs, b"/a/file", Create::File).unwrap();
        make(&vfs, b"/there", Create::File).unwrap();
        vfs
    }

    fn make(vfs: &V, path: &[u8], what: Create<'_>) -> Result<(), FsError> {
        let found = vfs.walk(&vfs.view(), vfs.root(), path, Final::Name)?;
        vfs.make(&vfs.view(), &found, what, 0o755).map(drop)
    }

    fn at(vfs: &V, path: &[u8]) -> Result<D, FsError> {
        vfs.find(&vfs.view(), vfs.root(), path, true).map(|found| found.counted())
    }

    fn bind(vfs: &V, from: &[u8], to: &[u8], recursively: bool) -> Result<(), FsError> {
        vfs.bind_on(&at(vfs, to)?, &at(vfs, from)?, recursively, &|_| Ok(false))
    }

    fn memory(vfs: &V, path: &[u8]) {
        let root = NewAttr { mode: 0o700, uid: 0, gid: 0 };
        let content = Content::Memory { limits: Limits::UNSET, root };
        vfs.mount_on(&at(vfs, path).unwrap(), "tmpfs", content, b"mine", Restrictions::empty(), &|_| Ok(false))
            .unwrap();
    }

    fn end(vfs: &V, path: &[u8]) -> Result<(), FsError> {
        vfs.unmount(&at(vfs, path)?, false, &|_| Ok(false))
    }

    fn paths(vfs: &V) -> std::vec::Vec<(std::string::String, std::string::String)> {
        let mut all = std::vec::Vec::new();
        let text = |bytes: &[u8]| std::string::String::from_utf8(bytes.to_vec()).unwrap();
        vfs.mounts(|path, mount| all.push((text(path), text(&mount.root_path().unwrap())))).unwrap();
        all
    }

    #[test]
    fn a_covered_mount_is_neither_moved_nor_unmounted_alone() {
        let vfs = tree();
        memory(&vfs, b"/m");
        let lower = at(&vfs, b"/m").unwrap();
        memory(&vfs, b"/m");
        let no_user = |_: &D| Ok(false);
        assert_eq!(vfs.unmount(&lower, false, &no_user), Err(FsError::Busy));
        assert_eq!(vfs.move_on(&at(&vfs, b"/n").unwrap(), &lower, &no_user), Err(FsError::Busy));
        vfs.unmount(&lower, true, &no_user).unwrap();
        assert_eq!(paths(&vfs).len(), 1);
        make(&vfs, b"/m/again", Create::File).unwrap();
    }

    #[test]
    fn a_mount_on_a_view_goes_with_its_bind_mount_wherever_its_directory_is() {
        let vfs = tree();
        make(&vfs, b"/a/b/c/d", Create::Directory).unwrap();
        bind(&vfs, b"/a/b", b"/m", false).unwrap();
        memory(&vfs, b"/m/c/d");
        let view = vfs.view();
        let from = vfs.walk(&view, vfs.root(), b"/a/b/c", Final::Name).unwrap();
        let to = vfs.walk(&view, vfs.root(), b"/a/c", Final::Name).unwrap();
        vfs.rename(&view, &from, &to, Rename::Replace).unwrap();
        assert_eq!(end(&vfs, b"/m"), Err(FsError::Busy));
        vfs.unmount(&at(&vfs, b"/m").unwrap(), true, &|_| Ok(false)).unwrap();
        assert_eq!(paths(&vfs).len(), 1);
        // The mount point can be removed again.
        let found = vfs.walk(&view, vfs.root(), b"/a/c/d", Final::Name).unwrap();
        vfs.rmdir(&view, &found).unwrap();
    }

    #[test]
    fn a_mount_whose_directory_gets_another_name_meanwhile_is_refused() {
        let vfs = tree();
        let (target, root) = (at(&vfs, b"/m").unwrap(), at(&vfs, b"/a").unwrap());
        let earlier: Arc<[u8]> = Arc::try_copy(b"earlier").unwrap();
        let parent = vfs.root().clone();
        let done = vfs.attach(&parent, &earlier, &target, 99, root, earlier.clone());
        assert_eq!(done.err(), Some(FsError::NotFound));
        assert_eq!(paths(&vfs).len(), 1);
    }

    fn path(vfs: &V, dentry: &D) -> std::vec::Vec<u8> {
        Dentry::path(dentry, vfs.root()).unwrap().0.to_vec()
    }

    fn rename(vfs: &V, from: &[u8], to: &[u8]) -> Result<(), FsError> {
        let walk = |path| vfs.walk(&vfs.view(), vfs.root(), path, Final::Name);
        vfs.rename(&vfs.view(), &walk(from)?, &walk(to)?, Rename::Replace)
    }

    #[test]
    fn a_directory_is_seen_at_two_places() {
        let vfs = tree();
        bind(&vfs, b"/a/b", b"/m", false).unwrap();
        let (one, other) = (at(&vfs, b"/a/b/c").unwrap(), at(&vfs, b"/m/c").unwrap());
        assert!(Arc::ptr_eq(&one.inode, &other.inode) && !Dentry::same(&one, &other));
        assert!(Dentry::same(&other, &at(&vfs, b"/m/c/../../m/./c").unwrap()));
        assert_eq!((path(&vfs, &one), path(&vfs, &other)), (b"/a/b/c".to_vec(), b"/m/c".to_vec()));
        let up = vfs.find(&vfs.view(), &other, b"../..", true).unwrap();
        assert!(Arc::ptr_eq(&up, vfs.root()));
        // Names are made and removed at both places.
        make(&vfs, b"/m/new", Create::File).unwrap();
        at(&vfs, b"/a/b/new").unwrap();
        let name = |p| vfs.walk(&vfs.view(), vfs.root(), p, Final::Name).unwrap();
        vfs.unlink(&vfs.view(), &name(b"/m/new")).unwrap();
        assert_eq!(at(&vfs, b"/a/b/new").err(), Some(FsError::NotFound));
        assert_eq!(rename(&vfs, b"/m/c", b"/a/b/d"), Err(FsError::CrossDevice));
        rename(&vfs, b"/m/c", b"/m/d").unwrap();
        assert_eq!(path(&vfs, &other), b"/m/d");
        assert_eq!(rename(&vfs, b"/m", b"/x"), Err(FsError::Busy));
        // A directory that leaves the source has no way up through the mount.
        rename(&vfs, b"/a/b/d", b"/a/d").unwrap();
        assert_eq!(vfs.find(&vfs.view(), &other, b"..", true).err(), Some(FsError::NotFound));
        assert_eq!(paths(&vfs)[1], ("/m".into(), "/a/b".into()));
        end(&vfs, b"/m").unwrap();
        assert_eq!(at(&vfs, b"/m/d").err(), Some(FsError::NotFound));
        assert_eq!(end(&vfs, b"/m"), Err(FsError::Invalid));
    }

    #[test]
    fn a_directory_is_bound_below_itself() {
        let vfs = tree();
        bind(&vfs, b"/a", b"/a/b", true).unwrap();
        // The second `b` is the hidden directory.
        assert_eq!(path(&vfs, &at(&vfs, b"/a/b/b/c").unwrap()), b"/a/b/b/c");
        assert_eq!(at(&vfs, b"/a/b/b/b").err(), Some(FsError::NotFound));
        bind(&vfs, b"/", b"/a/b/b", true).unwrap();
        assert_eq!(paths(&vfs).len(), 4);
        at(&vfs, b"/a/b/b/a/b/b/c").unwrap();
        assert_eq!(end(&vfs, b"/a/b"), Err(FsError::Busy));
        vfs.unmount(&at(&vfs, b"/a/b").unwrap(), true, &|_| Ok(false)).unwrap();
        assert_eq!(paths(&vfs).len(), 1);
        at(&vfs, b"/a/b/c").unwrap();
    }

    #[test]
    fn a_mount_on_a_seen_directory_belongs_to_the_bind_mount() {
        let vfs = tree();
        bind(&vfs, b"/a", b"/m", false).unwrap();
        memory(&vfs, b"/m/b");
        make(&vfs, b"/m/b/inner", Create::Directory).unwrap();
        at(&vfs, b"/a/b/c").unwrap();
        assert_eq!(at(&vfs, b"/a/b/inner").err(), Some(FsError::NotFound));
        let name = |p| vfs.walk(&vfs.view(), vfs.root(), p, Final::Name).unwrap();
        vfs.rmdir(&vfs.view(), &name(b"/a/b/c")).unwrap();
        assert_eq!(vfs.rmdir(&vfs.view(), &name(b"/a/b")), Err(FsError::Busy));
        assert_eq!(rename(&vfs, b"/a/b", b"/a/x"), Err(FsError::Busy));
        assert_eq!(path(&vfs, &at(&vfs, b"/m/b/inner").unwrap()), b"/m/b/inner");
        // Makes another mount on the dentry that `/m/b` shows, and then ends both mounts.
        bind(&vfs, b"/n", b"/m/b", false).unwrap();
        assert_eq!(at(&vfs, b"/m/b/inner").err(), Some(FsError::NotFound));
        end(&vfs, b"/m/b").unwrap();
        at(&vfs, b"/m/b/inner").unwrap();
        end(&vfs, b"/m/b").unwrap();
        vfs.rmdir(&vfs.view(), &name(b"/a/b")).unwrap();
        end(&vfs, b"/m").unwrap();
    }

    #[test]
    fn only_a_recursive_bind_shows_mounts_below() {
        let vfs = tree();
        memory(&vfs, b"/a/b");
        make(&vfs, b"/a/b/inner", Create::Directory).unwrap();
        memory(&vfs, b"/a/b/inner");
        make(&vfs, b"/a/b/inner/most", Create::Directory).unwrap();
        bind(&vfs, b"/a", b"/m", false).unwrap();
        at(&vfs, b"/m/b/c").unwrap();
        bind(&vfs, b"/a", b"/n", true).unwrap();
        at(&vfs, b"/n/b/inner/most").unwrap();
        assert_eq!(path(&vfs, &at(&vfs, b"/n/b/inner/most").unwrap()), b"/n/b/inner/most");
        // A bind mount keeps the file system in use after the file system's own mount has ended.
        end(&vfs, b"/a/b/inner").unwrap();
        end(&vfs, b"/a/b").unwrap();
        at(&vfs, b"/n/b/inner/most").unwrap();
        memory(&vfs, b"/a/b");
        make(&vfs, b"/n/b/inner/new", Create::Directory).unwrap();
        end(&vfs, b"/n/b/inner").unwrap();
        end(&vfs, b"/n/b").unwrap();
        end(&vfs, b"/n").unwrap();
        at(&vfs, b"/m/b/c").unwrap();
    }

    #[test]
    fn a_file_is_bound_on_a_file() {
        let vfs = tree();
        assert_eq!(bind(&vfs, b"/a/file", b"/m", false), Err(FsError::NotDirectory));
        assert_eq!(bind(&vfs, b"/a", b"/there", false), Err(FsError::NotDirectory));
        bind(&vfs, b"/a/file", b"/there", false).unwrap();
        assert!(Arc::ptr_eq(&at(&vfs, b"/there").unwrap().inode, &at(&vfs, b"/a/file").unwrap().inode));
        let name = |p| vfs.walk(&vfs.view(), vfs.root(), p, Final::Name).unwrap();
        assert_eq!(vfs.unlink(&vfs.view(), &name(b"/there")), Err(FsError::Busy));
        assert_eq!(vfs.link(&vfs.view(), &at(&vfs, b"/there").unwrap(), &name(b"/link")), Err(FsError::CrossDevice));
        vfs.unlink(&vfs.view(), &name(b"/a/file")).unwrap();
        assert_eq!(paths(&vfs)[1], ("/there".into(), "/a/file//deleted".into()));
        end(&vfs, b"/there").unwrap();
        vfs.unlink(&vfs.view(), &name(b"/there")).unwrap();
    }

    #[test]
    fn a_read_only_bind_leaves_the_source_alone() {
        let vfs = tree();
        bind(&vfs, b"/a", b"/m", false).unwrap();
        let mount = vfs.mount_of(&at(&vfs, b"/m").unwrap()).unwrap();
        let changes = vfs.mount_changes().count();
        vfs.restrict_mount(&mount, Restrictions::READ_ONLY, false);
        assert_eq!(vfs.mount_changes().count(), changes + 1);
        assert_eq!(make(&vfs, b"/m/new", Create::Directory), Err(FsError::ReadOnly));
        let open = |path, flags| vfs.open(&vfs.view(), vfs.root(), path, flags, 0, &crate::Io::NOW).err();
        assert_eq!(open(b"/m/file", OpenFlags::WRITE), Some(FsError::ReadOnly));
        assert_eq!(open(b"/a/file", OpenFlags::WRITE), None);
        make(&vfs, b"/a/new", Create::Directory).unwrap();
        assert_eq!(rename(&vfs, b"/m/new", b"/m/x"), Err(FsError::ReadOnly));
        // A bind mount of it is read-only too.
        bind(&vfs, b"/m/b", b"/n", false).unwrap();
        assert_eq!(make(&vfs, b"/n/new", Create::Directory), Err(FsError::ReadOnly));
        drop(mount);
        end(&vfs, b"/n").unwrap();
        end(&vfs, b"/m").unwrap();
    }

    #[test]
    fn a_mount_moves_with_those_below() {
        let vfs = tree();
        let go = |from: &[u8], to: &[u8]| vfs.move_on(&at(&vfs, to)?, &at(&vfs, from)?, &|_| Ok(false));
        memory(&vfs, b"/m");
        make(&vfs, b"/m/x", Create::Directory).unwrap();
        memory(&vfs, b"/m/x");
        make(&vfs, b"/m/x/y", Create::Directory).unwrap();
        assert_eq!(go(b"/m", b"/m/x"), Err(FsError::Loop));
        assert_eq!(go(b"/m", b"/m"), Err(FsError::Loop));
        assert_eq!(go(b"/a", b"/n"), Err(FsError::Invalid));
        assert_eq!(go(b"/m", b"/there"), Err(FsError::Invalid));
        bind(&vfs, b"/a", b"/n", false).unwrap();
        let inside = at(&vfs, b"/m/x/y").unwrap();
        // Moves onto a directory that a bind mount shows.
        go(b"/m", b"/n/b").unwrap();
        assert_eq!(path(&vfs, &inside), b"/n/b/x/y");
        assert_eq!(
            (at(&vfs, b"/m/x").err(), at(&vfs, b"/a/b/x").err()),
            (Some(FsError::NotFound), Some(FsError::NotFound))
        );
        assert_eq!(end(&vfs, b"/n"), Err(FsError::Busy));
        // Moves a bind mount, with the mounts on it.
        go(b"/n", b"/m").unwrap();
        assert_eq!(path(&vfs, &inside), b"/m/b/x/y");
        at(&vfs, b"/m/b/c").err().unwrap();
        go(b"/m/b", b"/n").unwrap();
        at(&vfs, b"/m/b/c").unwrap();
        assert_eq!(path(&vfs, &inside), b"/n/x/y");
        vfs.unmount(&at(&vfs, b"/n").unwrap(), true, &|_| Ok(false)).unwrap();
        end(&vfs, b"/m").unwrap();
        assert_eq!(paths(&vfs).len(), 1);
    }

    #[test]
    fn a_root_inside_a_bind_mount_is_the_top() {
        let vfs = tree();
        bind(&vfs, b"/a", b"/m", false).unwrap();
        let mut view = vfs.view();
        let start = |path| crate::StartDirectory::Counted(at(&vfs, path).unwrap());
        view.places = Arc::try_new(crate::Places { root: start(b"/m/b"), cwd: start(b"/m/b/c") }).unwrap();
        let up = vfs.find(&view, view.cwd(), b"../../..", true).unwrap();
        assert!(Dentry::same(&up, view.root()));
        assert!(vfs.find(&view, view.cwd(), b"/c", true).is_ok());
    }
}
