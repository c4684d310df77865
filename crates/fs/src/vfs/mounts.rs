//! Mounts: file systems at a directory of another one.

use super::Vfs;
use super::found::{Final, Last};
use super::make::Create;
use crate::FsError;
use crate::host::Host;
use crate::tree::attr::NewAttr;
use crate::tree::dentry::Dentry;
use crate::tree::generated::{Generated, GeneratedDirectory};
use crate::tree::inode::{Inode, InodeContent};
use crate::tree::system::{FileSystem, Limits, Space};
use quire_heap::Arc;
use quire_sync::atomic::Ordering;

impl<H: Host> Vfs<H> {
    /// Mounts an empty memory file system on the directory `path`, which is made if it is missing.
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

    /// Mounts the generated tree of `root` on the directory `path`, which is made if it is missing.
    pub fn mount_generated(
        &self,
        path: &[u8],
        kind: &'static str,
        root: Arc<dyn GeneratedDirectory<H>>,
    ) -> Result<Arc<Dentry<H>>, FsError> {
        let device = self.next_device.fetch_add(1, Ordering::Relaxed);
        let system = FileSystem::new(device, kind, Limits::NONE, self.host.cpus())?;
        self.mount(path, root_inode(&self.host, system, root)?)
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

    /// Sets the limits of each mounted file system to its present contents plus `more`, if it has limits at all.
    pub fn set_room(&self, more: Limits) {
        // A mounted-over directory is counted until no lookup can still be in it.
        self.host.epoch().drain();
        self.all_mounts().for_each(|mount| mount.inode.system().set_room(more));
    }

    /// All mounts, one after the other. Mounts are never removed.
    fn all_mounts(&self) -> impl Iterator<Item = Arc<Dentry<H>>> {
        (0..).map_while(|n| self.mounts.lock().get(n).cloned())
    }

    /// Calls `each` with the path, the type and the device number of each mount.
    pub fn mounts(&self, mut each: impl FnMut(&[u8], &'static str, u64)) -> Result<(), FsError> {
        for m in self.all_mounts() {
            let system = m.inode.system();
            each(&Dentry::path(&m, &self.root)?.0, system.kind, system.device);
        }
        Ok(())
    }

    /// Inodes of all mounted file systems that count them.
    pub fn inodes(&self) -> u64 {
        self.all_mounts().map(|mount| mount.inode.system().inodes()).sum()
    }

    /// The space of the file system of `inode`. The caller holds no lock.
    pub fn space(&self, inode: &Inode<H>) -> Space {
        // A removed directory is counted until no lookup can still be in it.
        self.host.epoch().drain();
        inode.system().space()
    }
}

/// A file system of generated files, with `root` as its root directory.
fn root_inode<H: Host>(
    host: &H,
    system: &'static FileSystem,
    root: Arc<dyn GeneratedDirectory<H>>,
) -> Result<Arc<Inode<H>>, FsError> {
    let attr = NewAttr { mode: 0o555, uid: 0, gid: 0 };
    let inode = Inode::generated(system, 1, attr, host.realtime(), Generated::Directory(root))?;
    inode.change(host.realtime(), |a| a.links = 2);
    Ok(inode)
}
