//! Making, linking and removing names.

use super::Vfs;
use super::credentials::Want;
use super::found::{FoundPath, Last};
use super::view::View;
use crate::host::Host;
use crate::pipe::Pipe;
use crate::tree::attr::{DeviceNumber, NewAttr};
use crate::tree::dentry::Dentry;
use crate::tree::inode::directory::Directory;
use crate::tree::inode::generated::{Generated, GeneratedDirectory};
use crate::tree::inode::{Inode, InodeContent};
use crate::tree::system::FileSystem;
use crate::tree::watch::Happening;
use crate::{FsError, Seals};
use quire_heap::{Arc, Vec};

/// The kind of file to make.
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

impl<H: Host> Vfs<H> {
    /// Makes a file with `content` under the name in which `found` ends. `mode` loses the bits of the view's umask.
    pub fn make(
        &self,
        view: &View<H>,
        found: &FoundPath<H>,
        content: Create<'_>,
        mode: u16,
    ) -> Result<Arc<Dentry<H>>, FsError> {
        if found.last != Last::Name || found.target.is_some() {
            return Err(FsError::Exists);
        }
        if found.slash && !matches!(content, Create::Directory) {
            return Err(FsError::NotFound);
        }
        let parent = &found.parent;
        let InodeContent::Directory(directory) = &parent.inode.node else { return Err(FsError::NotFound) };
        view.credentials.may_at(parent, Want::WRITE | Want::EXECUTE)?;
        self.may_rename_in(view, parent.inode.system()).map_err(|e| match content {
            // Directories in which no file can be made return this error too.
            Create::File => FsError::Denied,
            _ => e,
        })?;
        let inode = self.new_inode(view, Some(&parent.inode), parent.inode.system(), content, mode)?;
        let name = found.name.shared()?;
        let dentry = Dentry::child(Dentry::seen(parent), name.clone(), inode, false)?;
        let seen = Dentry::seen_from(parent, dentry.clone())?;
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
            entries.add(memory, name, dentry);
        }
        parent.inode.change(now, |a| {
            a.modified = now;
            a.links += u32::from(is_directory);
        });
        parent.entry_happened(Happening::CREATE, 0, found.name.bytes(), &seen.inode);
        Ok(seen)
    }

    pub(super) fn new_inode(
        &self,
        view: &View<H>,
        parent: Option<&Inode<H>>,
        system: &'static FileSystem,
        content: Create<'_>,
        mode: u16,
    ) -> Result<Arc<Inode<H>>, FsError> {
        let mut attr = NewAttr { mode: mode & !view.umask, uid: view.credentials.uid, gid: view.credentials.gid };
        if matches!(content, Create::Symlink(_)) {
            attr.mode = 0o777;
        }
        // A directory with the set-group-id bit passes its group on to new files, and the bit to new directories.
        if let Some(parent) = parent.map(|p| p.fixed_attr()).filter(|p| p.mode & 0o2000 != 0) {
            attr.gid = parent.gid;
            if matches!(content, Create::Directory) {
                attr.mode |= 0o2000;
            } else if attr.mode & 0o2010 == 0o2010 && !view.credentials.may_set_group_id(parent.gid) {
                // A caller outside a group cannot make programs that run as that group.
                attr.mode &= !0o2000;
            }
        }
        Inode::new(&self.host, system, attr, |ident| {
            Ok(match content {
                Create::File => Inode::regular(&self.host, system, ident, Seals::SEAL)?,
                Create::Directory => InodeContent::Directory(Directory::new(&self.host)),
                Create::Symlink(target) => InodeContent::Symlink(Vec::try_copy(target)?),
                Create::Fifo => InodeContent::Fifo(Pipe::new(self.host.clone())?),
                Create::CharDevice(n) => InodeContent::CharDevice(n),
                Create::BlockDevice(n) => InodeContent::BlockDevice(n),
                Create::Socket => InodeContent::Socket,
            })
        })
    }

    /// Gives the inode of `old` a further name.
    pub fn link(&self, view: &View<H>, old: &Arc<Dentry<H>>, found: &FoundPath<H>) -> Result<(), FsError> {
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
        if !old.same_mount(parent) {
            return Err(FsError::CrossDevice);
        }
        let InodeContent::Directory(directory) = &parent.inode.node else { return Err(FsError::NotPermitted) };
        view.credentials.may_link(&old.inode)?;
        view.credentials.may_at(parent, Want::WRITE | Want::EXECUTE)?;
        self.may_rename_in(view, parent.inode.system())?;
        let admitted = parent.inode.system().admit(self.host.epoch());
        let name = found.name.shared()?;
        let dentry = Dentry::child(Dentry::seen(parent), name.clone(), old.inode.clone(), false)?;
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
            // Done under the directory's lock, so that each reader of the name finds it counted.
            old.inode.gain_name(now, admitted)?;
            entries.add(memory, name, dentry);
        }
        parent.inode.touch(now);
        old.inode_happened(Happening::ATTRIBUTES);
        parent.entry_happened(Happening::CREATE, 0, found.name.bytes(), &old.inode);
        Ok(())
    }

    /// Removes a file of a generated directory.
    fn unlink_generated(
        &self,
        view: &View<H>,
        found: &FoundPath<H>,
        directory: &dyn GeneratedDirectory<H>,
    ) -> Result<(), FsError> {
        view.credentials.may_at(&found.parent, Want::WRITE | Want::EXECUTE)?;
        let victim = found.target.as_ref().ok_or(FsError::NotFound)?;
        if found.slash {
            return Err(FsError::NotDirectory);
        }
        view.credentials.may_take(&found.parent.inode, &victim.inode)?;
        directory.remove(found.name.bytes(), victim.inode.ident.number)
    }

    /// The error for the removal of a name in a directory of generated entries.
    fn unchangeable(&self, found: &FoundPath<H>) -> FsError {
        if found.target.is_some() { FsError::NotPermitted } else { FsError::NotFound }
    }

    /// Removes a name that does not lead to a directory.
    pub fn unlink(&self, view: &View<H>, found: &FoundPath<H>) -> Result<(), FsError> {
        match found.last {
            Last::Name => {}
            _ => return Err(FsError::IsDirectory),
        }
        if let InodeContent::Generated(Generated::Directory(directory)) = &found.parent.inode.node
            && directory.removes()
        {
            return self.unlink_generated(view, found, &**directory);
        }
        let InodeContent::Directory(directory) = &found.parent.inode.node else { return Err(self.unchangeable(found)) };
        found.parent.changeable()?;
        self.may_rename_in(view, found.parent.inode.system())?;
        let removed = {
            let mut entries = directory.lock();
            // As on Linux, a missing name is reported before a missing permission.
            let victim = entries.get(found.name.bytes()).cloned().ok_or(FsError::NotFound)?;
            if found.slash {
                return Err(if victim.inode.is_directory() { FsError::IsDirectory } else { FsError::NotDirectory });
            }
            view.credentials.may_at(&found.parent, Want::WRITE | Want::EXECUTE)?;
            if victim.inode.is_directory() {
                return Err(FsError::IsDirectory);
            }
            view.credentials.may_take(&found.parent.inode, &victim.inode)?;
            if victim.is_fixed() {
                return Err(FsError::Busy);
            }
            let listed = entries.take(found.name.bytes());
            victim.unlist();
            (victim, listed)
        };
        let now = self.host.realtime();
        removed.0.inode.lose_name(now);
        found.parent.inode.touch(now);
        removed.0.inode_happened(Happening::ATTRIBUTES);
        // If this was the last use of the inode, its watchers are notified of its end first. It was the last use if
        // only the caller, the entry and this function refer to the dentry, and no other name leads to the inode.
        let uses = 2 + usize::from(found.target.is_some());
        let inode = &removed.0.inode;
        if Arc::strong_count(&removed.0) == uses && Arc::strong_count(inode) == 1 && inode.fixed_attr().links == 0 {
            inode.end_watches();
        }
        found.parent.name_removed(found.name.bytes(), false);
        Ok(())
    }

    /// Removes an empty directory.
    pub fn rmdir(&self, view: &View<H>, found: &FoundPath<H>) -> Result<(), FsError> {
        match found.last {
            Last::Name => {}
            Last::Dot => return Err(FsError::Invalid),
            Last::DotDot => return Err(FsError::NotEmpty),
            Last::Root | Last::Jump => return Err(FsError::Busy),
        }
        let InodeContent::Directory(directory) = &found.parent.inode.node else { return Err(self.unchangeable(found)) };
        found.parent.changeable()?;
        self.may_rename_in(view, found.parent.inode.system())?;
        let removed = {
            let mut entries = directory.lock();
            let victim = entries.get(found.name.bytes()).cloned().ok_or(FsError::NotFound)?;
            view.credentials.may_at(&found.parent, Want::WRITE | Want::EXECUTE)?;
            if victim.is_fixed() {
                return Err(FsError::Busy);
            }
            let InodeContent::Directory(inner) = &victim.inode.node else { return Err(FsError::NotDirectory) };
            view.credentials.may_take(&found.parent.inode, &victim.inode)?;
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
        removed.0.inode.end_watches();
        found.parent.name_removed(found.name.bytes(), true);
        Ok(())
    }
}
