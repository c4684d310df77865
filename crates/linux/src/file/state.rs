//! Working directory, root directory and umask of a process.

use super::host::{Dentry, FileHost};
use crate::{Errno, Machine};
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_fs::{Places, StartDirectory};
use quire_heap::{Arc, OutOfMemory, Room};
use quire_sync::{CachePadded, Rank, SpinLock};

/// See the module. Shared by the threads that CLONE_FS says.
///
/// Each thread keeps its own copy of the places ([`Seen`]), renewed when the directories have changed. So a path walk
/// neither changes their reference counts nor takes the lock.
pub struct FsState<M: Machine> {
    pub(super) look: CachePadded<Look>,
    places: SpinLock<Places<FileHost<M>>>,
}

/// The fields that each path walk reads.
pub(super) struct Look {
    /// The number of directory changes; written under the lock of `places`.
    pub(super) changes: AtomicU64,
    umask: AtomicU32,
}

/// A thread's copy of its [`FsState`].
pub struct Seen<M: Machine> {
    /// The number of changes at the time of the copy.
    pub(super) changes: u64,
    pub(super) places: Arc<Places<FileHost<M>>>,
}

impl<M: Machine> FsState<M> {
    fn with(places: Places<FileHost<M>>, umask: u32) -> Result<Arc<Self>, OutOfMemory> {
        let look = Look { changes: AtomicU64::new(0), umask: AtomicU32::new(umask) };
        Arc::try_new(FsState { look: CachePadded(look), places: SpinLock::new(Rank::FILE, places) })
    }

    /// In directory `cwd` of the tree that begins at `root`, with Linux's first umask.
    pub fn new(root: &'static Arc<Dentry<M>>, cwd: Arc<Dentry<M>>) -> Result<Arc<Self>, OutOfMemory> {
        Self::with(Places { root: StartDirectory::Root(root), cwd: StartDirectory::new(cwd, root) }, 0o022)
    }

    /// A copy for a forked child.
    pub fn fork(&self) -> Result<Arc<Self>, Errno> {
        Ok(Self::with(self.places(), self.umask().into())?)
    }

    /// Root and working directory.
    pub fn places(&self) -> Places<FileHost<M>> {
        self.places.lock().clone()
    }

    /// The umask.
    pub fn umask(&self) -> u16 {
        self.look.umask.load(Ordering::Relaxed) as u16
    }

    fn change(&self, change: impl FnOnce(&mut Places<FileHost<M>>) -> StartDirectory<FileHost<M>>) {
        let mut places = self.places.lock();
        let old = change(&mut places);
        // Only the lock's holder writes.
        self.look.changes.store(self.look.changes.load(Ordering::Relaxed) + 1, Ordering::Release);
        drop(places);
        drop(old);
    }

    /// Changes the working directory.
    pub fn set_cwd(&self, to: StartDirectory<FileHost<M>>) {
        self.change(|places| core::mem::replace(&mut places.cwd, to));
    }

    /// Changes the root directory.
    pub fn set_root(&self, to: StartDirectory<FileHost<M>>) {
        self.change(|places| core::mem::replace(&mut places.root, to));
    }

    /// Changes the umask, and returns the old one.
    pub fn set_umask(&self, mask: u16) -> u16 {
        let new = u32::from(mask & 0o777);
        // An equal value is not written: most programs set the value that is there.
        if self.look.umask.load(Ordering::Relaxed) == new {
            return new as u16;
        }
        self.look.umask.swap(new, Ordering::Relaxed) as u16
    }

    /// A copy of the present state, with its number of changes.
    pub(super) fn seen(&self) -> Result<Seen<M>, OutOfMemory> {
        let room = Room::try_new()?;
        let places = self.places.lock();
        let (changes, now) = (self.look.changes.load(Ordering::Relaxed), places.clone());
        drop(places);
        Ok(Seen { changes, places: room.fill(now) })
    }
}
