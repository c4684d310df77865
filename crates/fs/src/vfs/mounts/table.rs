//! The list of a tree's mounts by their numbers, and the mounts that have ended but are still in use.

use crate::FsError;
use crate::host::Host;
use crate::stream::readiness::Readiness;
use crate::tree::dentry::Dentry;
use crate::tree::system::FileSystem;
use quire_heap::{Arc, Map, SpareEntry, Vec};
use quire_sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// The most mounts at once, as Linux's `fs.mount-max`.
pub const MOUNTS_MAX: usize = 100_000;

/// The number of the first mount. Linux's numbers are low, too.
pub const FIRST_MOUNT: u64 = 21;

/// A mounted file system.
pub struct Mount<H: Host> {
    /// The mount's number, which no later mount gets. A move of the mount keeps it.
    pub id: u64,
    /// The number of the mount in which it is mounted; 1 for the root of the tree.
    pub on: u64,
    /// The number of mounts that are mounted in it. Written under the lock of [`Changes`].
    carried: AtomicUsize,
    /// The root of the mount.
    pub root: Arc<Dentry<H>>,
    /// The name of the mount's source, as the mounting program gave it.
    pub source: Arc<[u8]>,
    /// The directory or file that the mount's root hides; `None` for the root of the tree.
    pub(in crate::vfs) hidden: Option<Arc<Dentry<H>>>,
    /// Whether the mount was made at boot, and stays.
    pub(in crate::vfs) permanent: bool,
}

/// The mounts by their numbers, which is the order in which they were made.
pub(in crate::vfs) struct Mounts<H: Host> {
    all: Map<u64, Arc<Mount<H>>>,
    next: u64,
}

/// The memory of an entry in the list of mounts.
pub(super) type MountMemory<H> = SpareEntry<u64, Arc<Mount<H>>>;

/// An entry that was removed from the list of mounts, with its memory.
pub(super) type Listed<H> = (MountMemory<H>, u64, Arc<Mount<H>>);

impl<H: Host> Mounts<H> {
    /// A list with only the root of the tree.
    pub fn new(first: Arc<Mount<H>>) -> Result<Self, FsError> {
        let mut all = Map::new();
        all.try_insert(first.id, first)?;
        Ok(Mounts { all, next: FIRST_MOUNT + 1 })
    }

    /// Takes the number of a new mount.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// The number of mounts.
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// All mounts.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Mount<H>>> {
        self.all.values()
    }

    /// The mount `id`, if there is one.
    pub fn numbered(&self, id: u64) -> Option<Arc<Mount<H>>> {
        self.all.get(&id).cloned()
    }

    /// The first mount whose number is at least `id`.
    pub fn from(&self, id: u64) -> Option<Arc<Mount<H>>> {
        self.all.iter_from(&id).next().map(|(_, mount)| mount.clone())
    }

    /// Whether the list has `mount` under its number.
    pub fn lists(&self, mount: &Arc<Mount<H>>) -> bool {
        self.all.get(&mount.id).is_some_and(|listed| Arc::ptr_eq(listed, mount))
    }

    /// Takes mount `id` off the list. The caller drops it without locks.
    pub fn unlist(&mut self, id: u64) -> Option<Listed<H>> {
        self.all.take(&id)
    }

    /// Lists `mount` in place of the earlier mount with its number, and returns the earlier one.
    pub fn relist(&mut self, mount: Arc<Mount<H>>) -> Option<Arc<Mount<H>>> {
        self.all.get_mut(&mount.id).map(|listed| core::mem::replace(listed, mount))
    }

    /// Lists `mount`, whose number no other mount has.
    pub fn list(&mut self, memory: MountMemory<H>, mount: Arc<Mount<H>>) {
        let earlier = self.all.insert(memory, mount.id, mount);
        debug_assert!(earlier.is_none());
    }
}

/// The state that mounts and unmounts by users change, under one lock.
pub(crate) struct Changes<H: Host> {
    pub(in crate::vfs) detached: Vec<Arc<Mount<H>>>,
    /// File systems of ended mounts that may still have files, because a thread holds a file that it has looked up.
    pub(super) emptying: Vec<&'static FileSystem>,
    /// File systems without files. They are never freed, and serve the next mounts of their kind.
    pub(super) spare: Vec<&'static FileSystem>,
}

impl<H: Host> Changes<H> {
    pub(crate) const fn new() -> Self {
        Changes { detached: Vec::new(), emptying: Vec::new(), spare: Vec::new() }
    }
}

/// Announces each change of the mounts.
#[derive(Default)]
pub struct MountChanges {
    count: AtomicU64,
    readiness: Readiness,
}

impl MountChanges {
    /// The number of changes so far.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The readiness that is notified of each change.
    pub fn readiness(&self) -> &Readiness {
        &self.readiness
    }

    /// Announces a change, which is visible already. The caller holds no lock.
    pub(super) fn announce(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
        self.readiness.notify();
    }
}

impl<H: Host> Mount<H> {
    /// The mount of the root of the tree.
    pub(crate) fn first(root: &Arc<Dentry<H>>) -> Result<Arc<Self>, FsError> {
        root.inode.system().set_mount(FIRST_MOUNT);
        let source = Arc::try_copy(b"rootfs")?;
        Ok(Arc::try_new(Mount::new(FIRST_MOUNT, 1, root.clone(), source, None, true))?)
    }

    /// The mount `id` with root `root`, in the place of `hidden` in mount `on`. `source` is the name of its source.
    pub(in crate::vfs) fn new(
        id: u64,
        on: u64,
        root: Arc<Dentry<H>>,
        source: Arc<[u8]>,
        hidden: Option<Arc<Dentry<H>>>,
        permanent: bool,
    ) -> Self {
        Mount { id, on, carried: AtomicUsize::new(0), root, source, hidden, permanent }
    }

    /// Whether other mounts are mounted in this mount.
    pub(in crate::vfs) fn carries(&self) -> bool {
        self.carried.load(Ordering::Relaxed) > 0
    }

    /// Counts a mount that begins in this mount, or uncounts a mount that leaves it.
    pub(in crate::vfs) fn carry(&self, comes: bool) {
        let now = self.carried.load(Ordering::Relaxed);
        self.carried.store(if comes { now + 1 } else { now - 1 }, Ordering::Relaxed);
    }

    /// Takes over the count of the mounts that are mounted in `earlier`.
    pub(super) fn take_carried(&self, earlier: &Self) {
        self.carried.store(earlier.carried.load(Ordering::Relaxed), Ordering::Relaxed);
    }

    /// Whether this is the first mount of its file system, and no bind mount.
    pub fn is_first(&self) -> bool {
        self.root.through().is_none()
    }

    /// The mount's file system.
    pub fn system(&self) -> &'static FileSystem {
        self.root.inode.system()
    }
}
