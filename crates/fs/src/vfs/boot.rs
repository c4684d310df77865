//! The mounts that are made at boot.

use super::Vfs;
use super::found::{Final, Last};
use super::make::Create;
use super::mounts::root_inode;
use super::mounts::table::Mount;
use crate::FsError;
use crate::host::Host;
use crate::tree::attr::NewAttr;
use crate::tree::dentry::Dentry;
use crate::tree::inode::generated::GeneratedDirectory;
use crate::tree::inode::{Inode, InodeContent};
use crate::tree::system::Limits;
use quire_heap::{Arc, Room, SpareEntry};

impl<H: Host> Vfs<H> {
    /// Mounts an empty memory file system on the directory `path`, which is made if it is missing.
    pub fn mount_memory(
        &self,
        path: &[u8],
        kind: &'static str,
        limits: Limits,
        mode: u16,
    ) -> Result<Arc<Dentry<H>>, FsError> {
        let system = self.new_system(kind, limits)?;
        let root = Self::root_directory(&self.host, system, NewAttr { mode, uid: 0, gid: 0 })?;
        self.mount(path, root)
    }

    /// Mounts the generated tree of `root` on the directory `path`, which is made if it is missing.
    pub fn mount_generated(
        &self,
        path: &[u8],
        kind: &'static str,
        root: Arc<dyn GeneratedDirectory<H>>,
    ) -> Result<Arc<Dentry<H>>, FsError> {
        let system = self.new_system(kind, Limits::NONE)?;
        self.mount(path, root_inode(&self.host, system, root, 0o555)?)
    }

    fn mount(&self, path: &[u8], inode: Arc<Inode<H>>) -> Result<Arc<Dentry<H>>, FsError> {
        let view = self.view();
        let found = self.walk(&view, &self.root, path, Final::Follow)?;
        if found.last != Last::Name {
            return Err(FsError::Busy);
        }
        let InodeContent::Directory(directory) = &found.parent.inode.node else { return Err(FsError::NotDirectory) };
        let name = found.name.shared()?;
        let mounted = Dentry::child(&found.parent, name.clone(), inode, true)?;
        let memory = directory.memory()?;
        let source = Arc::try_copy(mounted.inode.system().kind.as_bytes())?;
        let listed = SpareEntry::try_new()?;
        let room = Room::try_new()?;
        let around = self.mount_around(&found.parent).ok_or(FsError::Busy)?;
        let hidden = match &found.target {
            Some(there) => there.clone(),
            None => self.make(&view, &found, Create::Directory, 0o755)?,
        };
        let id = self.mounts.lock().number();
        mounted.inode.system().set_mount(id);
        let mount = room.fill(Mount::new(id, around.id, mounted.clone(), source, Some(hidden), true));
        around.carry(true);
        self.mounts.lock().list(listed, mount);
        let hidden = directory.lock().put(memory, name, mounted.clone());
        drop(hidden);
        Ok(mounted)
    }
}
