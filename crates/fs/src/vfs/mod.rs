//! Paths: a process's view of the tree, and the operations that take a path.
//!
//! [`Vfs`] holds the root, the mounts and the drivers. [`credentials`] has the caller's rights, [`view`] the start of
//! its paths, [`found`] the result of a walk. [`walk`] turns a path into a dentry. [`make`], [`mounts`], [`boot`],
//! [`open`], [`rename`] and [`attributes`] add methods to [`Vfs`] that change the tree or open its files.
//!
//! May use: [`tree`](crate::tree), [`file`](crate::file), [`pipe`](crate::pipe) and the interface to
//! [drivers](crate::device::driver). Devices themselves are above. Invariants: ancestors change only under `moving`;
//! users change mounts one at a time; permissions are checked before a name changes.

mod attributes;
mod boot;
pub(crate) mod credentials;
pub(crate) mod found;
pub(crate) mod make;
pub mod mounts;
pub(crate) mod open;
pub mod rename;
pub(crate) mod view;
pub mod walk;

use crate::device::driver::Driver;
use crate::host::Host;
use crate::tree::attr::{DeviceNumber, NewAttr};
use crate::tree::dentry::Dentry;
use crate::tree::inode::directory::Directory;
use crate::tree::inode::{Inode, InodeContent};
use crate::tree::system::{FileSystem, Limits};
use crate::{FsError, OpenFlags, Stream};
use credentials::FileCredentials;
use mounts::table::{Changes, Mount, MountChanges, Mounts};
use quire_heap::{Arc, Vec};
use quire_sync::atomic::{AtomicU32, AtomicU64};
use quire_sync::{Mutex, Rank, SpinLock};
use view::{Places, Resolve, StartDirectory, View};

/// The device number of the root file system, in the identities of its files.
pub const ROOT_DEVICE: u64 = 1;

/// All files of a machine.
pub struct Vfs<H: Host> {
    host: H,
    root: Arc<Dentry<H>>,
    /// The start of the paths of [`view`](Self::view).
    places: Arc<Places<H>>,
    /// The file system of pipes and other nameless files.
    nameless: &'static FileSystem,
    /// The file system of memory files. Like Linux's mount for them, it has no limits.
    memory: &'static FileSystem,
    /// Held while a name moves between directories. Ancestors change only then.
    pub(crate) moving: Mutex<()>,
    drivers: SpinLock<Vec<(DeviceNumber, Arc<dyn Driver>)>>,
    mounts: SpinLock<Mounts<H>>,
    /// Held while a user mounts or unmounts.
    changes: Mutex<Changes<H>>,
    mount_changes: MountChanges,
    next_device: AtomicU64,
    /// The cookie of the next move that is watched.
    cookies: AtomicU32,
}

impl<H: Host> Vfs<H> {
    /// An empty tree whose root file system has `limits`.
    pub fn new(host: H, limits: Limits) -> Result<Arc<Self>, FsError> {
        let cpus = host.cpus();
        let system = FileSystem::new(ROOT_DEVICE, "tmpfs", limits, cpus)?;
        let root = Dentry::root(Self::root_directory(&host, system, NewAttr { mode: 0o755, uid: 0, gid: 0 })?)?;
        let place = StartDirectory::Counted(root.clone());
        Ok(Arc::try_new(Vfs {
            host,
            mounts: SpinLock::new(Rank::ATTRIBUTES, Mounts::new(Mount::first(&root)?)?),
            changes: Mutex::new(Changes::new()),
            mount_changes: MountChanges::default(),
            root,
            places: Arc::try_new(Places { cwd: place.clone(), root: place })?,
            nameless: FileSystem::new(2, "pipefs", Limits::NONE, cpus)?,
            memory: FileSystem::new(3, "tmpfs", Limits::NONE, cpus)?,
            moving: Mutex::new(()),
            drivers: SpinLock::new(Rank::ATTRIBUTES, Vec::new()),
            next_device: AtomicU64::new(4),
            cookies: AtomicU32::new(1),
        })?)
    }

    fn root_directory(host: &H, system: &'static FileSystem, attr: NewAttr) -> Result<Arc<Inode<H>>, FsError> {
        let inode = Inode::new(host, system, attr, |_| Ok(InodeContent::Directory(Directory::new(host))))?;
        inode.change(host.realtime(), |a| a.links = 2);
        Ok(inode)
    }

    /// The host around the file layer.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// The root of the tree.
    pub fn root(&self) -> &Arc<Dentry<H>> {
        &self.root
    }

    /// The view of a process that may do everything, from the root.
    pub fn view(&self) -> View<H> {
        View { places: self.places.clone(), credentials: FileCredentials::ROOT, umask: 0, resolve: Resolve::empty() }
    }

    /// Registers `driver` for the nodes with the device number `number`.
    pub fn register(&self, number: DeviceNumber, driver: Arc<dyn Driver>) -> Result<(), FsError> {
        Ok(self.drivers.lock().try_push((number, driver))?)
    }

    /// Removes a [registered](Self::register) driver.
    pub(crate) fn deregister(&self, number: DeviceNumber, driver: &Arc<dyn Driver>) {
        self.drivers.lock().retain(|(n, d)| *n != number || !Arc::ptr_eq(d, driver));
    }

    fn open_device(&self, number: DeviceNumber, flags: OpenFlags) -> Result<Arc<dyn Stream>, FsError> {
        let serves = |n: DeviceNumber| n == number || n == DeviceNumber::each(number.major);
        let driver = self.drivers.lock().iter().rev().find(|(n, _)| serves(*n)).map(|(_, d)| d.clone());
        driver.ok_or(FsError::NoDevice)?.open_minor(number.minor, flags)
    }

    /// Fails if only the kernel makes and removes names of `system`, and `view` is not [the kernel's](Self::view).
    pub(crate) fn may_rename_in(&self, view: &View<H>, system: &FileSystem) -> Result<(), FsError> {
        let permitted = !system.by_kernel || Arc::ptr_eq(&view.places, &self.places);
        if permitted { Ok(()) } else { Err(FsError::NotPermitted) }
    }
}
