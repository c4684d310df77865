//! The place of a mount: taking it, leaving it, and moving to another place.
//!
//! A mount replaces an entry of its directory. Where a bind mount shows the directory, the mount has a place in the
//! bind mount's map instead. All memory for leaving a place is allocated before any place changes.

use super::InUse;
use super::table::Mount;
use crate::FsError;
use crate::host::Host;
use crate::tree::dentry::Dentry;
use crate::tree::dentry::bind::Bind;
use crate::tree::inode::InodeContent;
use crate::tree::inode::directory::{Directory, ShownMemory};
use crate::vfs::Vfs;
use quire_heap::{Arc, SpareEntry};

/// The place of a mount, and the memory to leave it.
enum Leave<H: Host> {
    /// An entry of a directory.
    Entry { directory: Arc<Dentry<H>>, name: Arc<[u8]>, memory: ShownMemory<H> },
    /// A place that a bind mount shows. `seen` is the dentry below all mounts at that place.
    Shown { directory: Arc<Dentry<H>>, seen: Arc<Dentry<H>>, memory: SpareEntry<usize, Arc<Dentry<H>>> },
}

impl<H: Host> Vfs<H> {
    /// Mounts `root` over `target`, the entry `name` of `parent`, as mount `id`. If a mount with that id is listed
    /// already, the new mount replaces it in the list. Fails with [`FsError::NotFound`] if `target` is no longer there.
    pub(super) fn attach(
        &self,
        parent: &Arc<Dentry<H>>,
        name: &Arc<[u8]>,
        target: &Arc<Dentry<H>>,
        id: u64,
        root: Arc<Dentry<H>>,
        source: Arc<[u8]>,
    ) -> Result<Arc<Mount<H>>, FsError> {
        // Nothing can be mounted in a tree whose mount has ended.
        let around = self.mount_around(target).ok_or(FsError::Invalid)?;
        let InodeContent::Directory(directory) = &parent.inode.node else { return Err(FsError::Busy) };
        let hidden = Some(target.clone());
        let mount = Arc::try_new(Mount::new(id, around.id, root.clone(), source, hidden, false))?;
        // A mount that moves is in the list already.
        let earlier = self.mounts.lock().relist(mount.clone());
        if earlier.is_none() {
            let memory = SpareEntry::try_new()?;
            self.mounts.lock().list(memory, mount.clone());
        }
        let attached = match parent.through() {
            Some(through) => self.cover(&through.bind, parent, name, directory, target, root),
            None => directory.shown_memory().map(|memory| {
                let mut entries = directory.lock();
                // Another thread may have moved or removed the directory, or mounted on it.
                match entries.get(name).is_some_and(|there| Dentry::same(there, target)) {
                    true => entries.replace(memory, name.clone(), root),
                    false => None,
                }
                .is_some()
            }),
        };
        match attached {
            Ok(true) => {
                around.carry(true);
                // The mounts that are mounted in this mount move with it.
                earlier.inspect(|earlier| mount.take_carried(earlier));
                Ok(mount)
            }
            other => {
                // `replaced` and `gone` are dropped after the lock of `mounts` is released.
                let (replaced, gone) = match earlier {
                    Some(earlier) => (self.mounts.lock().relist(earlier), None),
                    None => (None, self.mounts.lock().unlist(id)),
                };
                drop((replaced, gone));
                Err(other.err().unwrap_or(FsError::NotFound))
            }
        }
    }

    /// Mounts `root` over `target`, which the bind mount `bind` shows as the entry `name` of `parent`. Returns `false`
    /// if `target` is no longer there.
    pub(super) fn cover(
        &self,
        bind: &Bind<H>,
        parent: &Arc<Dentry<H>>,
        name: &Arc<[u8]>,
        directory: &Directory<H>,
        target: &Arc<Dentry<H>>,
        root: Arc<Dentry<H>>,
    ) -> Result<bool, FsError> {
        let Some(bottom) = self.beneath(target) else { return Ok(false) };
        let seen = Dentry::seen(&bottom);
        let memory = SpareEntry::try_new()?;
        let entries = directory.lock();
        // Another thread may have moved or removed the target. No other thread changes mounts, because users change
        // mounts one at a time.
        let there = match bind.over(seen) {
            Some(top) => Dentry::same(&top, target),
            None => seen.is_in(Dentry::seen(parent)) && seen.name() == *name && !target.mounted,
        };
        let old = if there {
            seen.count_cover(true);
            bind.cover(memory, seen, root)
        } else {
            None
        };
        drop(entries);
        drop(old);
        Ok(there)
    }

    /// Takes the mount from its place, and gives the place back to the directory or file that the mount hid.
    pub(super) fn detach(&self, mount: &Arc<Mount<H>>) -> Result<(), FsError> {
        let leave = self.before_leaving(mount)?;
        self.leave(mount, leave);
        Ok(())
    }

    fn before_leaving(&self, mount: &Mount<H>) -> Result<Leave<H>, FsError> {
        let directory = Dentry::parent(&mount.root)?;
        let (Some(hidden), Some(directory)) = (&mount.hidden, directory) else { return Err(FsError::Busy) };
        let InodeContent::Directory(entries) = &directory.inode.node else { return Err(FsError::Busy) };
        if directory.through().is_some() {
            let bottom = self.beneath(hidden).ok_or(FsError::Invalid)?;
            let (seen, memory) = (Dentry::seen(&bottom).clone(), SpareEntry::try_new()?);
            return Ok(Leave::Shown { directory, seen, memory });
        }
        let (name, memory) = (mount.root.name(), entries.shown_memory()?);
        Ok(Leave::Entry { directory, name, memory })
    }

    fn leave(&self, mount: &Arc<Mount<H>>, leave: Leave<H>) {
        let Some(hidden) = &mount.hidden else { return };
        let replaced = match leave {
            Leave::Entry { directory, name, memory } => {
                let InodeContent::Directory(entries) = &directory.inode.node else { return };
                let mut entries = entries.lock();
                match entries.get(&name).is_some_and(|there| Dentry::same(there, &mount.root)) {
                    true => entries.replace(memory, name, hidden.clone()),
                    false => None,
                }
            }
            Leave::Shown { directory, seen, memory } => {
                let InodeContent::Directory(entries) = &directory.inode.node else { return };
                let Some(through) = directory.through() else { return };
                let entries = entries.lock();
                seen.count_cover(false);
                let replaced = match hidden.mounted {
                    true => through.bind.cover(memory, &seen, hidden.clone()),
                    false => through.bind.uncover(&seen),
                };
                drop(entries);
                replaced
            }
        };
        if let Some(around) = self.mount_numbered(mount.on) {
            around.carry(false);
        }
        let gone = {
            let mut mounts = self.mounts.lock();
            // After a move, the list has the mount at its new place under this number.
            if mounts.lists(mount) { mounts.unlist(mount.id) } else { None }
        };
        drop((gone, replaced));
    }

    /// Moves the mount whose root is `root` to `target`, with the mounts below it. Fails with [`FsError::Invalid`] if
    /// `root` is not the root of a mount, or if only one of the two is a directory. Fails with [`FsError::Loop`] if
    /// `target` is below `root`.
    pub fn move_on(&self, target: &Arc<Dentry<H>>, root: &Arc<Dentry<H>>, in_use: InUse<'_, H>) -> Result<(), FsError> {
        let mut changes = self.changes.lock();
        self.sweep(&mut changes, in_use)?;
        // The move changes ancestors of directories, and no ancestor may change after the check for a loop.
        let moving = self.moving.lock();
        let old = self.mount_of(root).filter(|mount| mount.hidden.is_some()).ok_or(FsError::Invalid)?;
        if root.inode.is_directory() != target.inode.is_directory() {
            return Err(FsError::Invalid);
        }
        if Dentry::is_below(target, root) {
            return Err(FsError::Loop);
        }
        let covers = |mount: Arc<Mount<H>>| mount.hidden.as_ref().is_some_and(|hidden| Dentry::same(hidden, root));
        if old.permanent || old.carries() && self.all_mounts().any(covers) {
            return Err(FsError::Busy);
        }
        let parent = Dentry::parent(target)?.ok_or(FsError::Busy)?;
        let leave = self.before_leaving(&old)?;
        let name = target.name();
        self.attach(&parent, &name, target, old.id, old.root.clone(), old.source.clone())?;
        let earlier = old.root.move_to(&parent, name);
        self.leave(&old, leave);
        drop(earlier);
        drop(moving);
        drop(changes);
        self.mount_changes.announce();
        Ok(())
    }
}
