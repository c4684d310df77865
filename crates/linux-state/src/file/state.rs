//! Working directory, root directory and umask of a process.

use crate::file::host::{Dentry, FileHost};
use crate::{Errno, Machine};
use core::alloc::Layout;
use quire_fs::{Places, StartDirectory};
use quire_heap::{Arc, OutOfMemory, Room};
use quire_lookup::Apart;
use quire_sync::Rank;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// See the module. Shared by the threads that CLONE_FS says.
///
/// Each thread keeps its own copy of the places ([`Seen`]), renewed when the directories have changed. So a path walk
/// neither changes their reference counts nor takes the lock.
///
/// Each path walk reads the first two fields. Aligned, because each thread that comes or goes writes the reference
/// count before them.
#[repr(align(64))]
pub struct FsState<M: Machine> {
    /// The number of directory changes; written under the lock of `places`.
    pub changes: AtomicU64,
    umask: AtomicU32,
    /// Apart from the other fields once threads share them, because other threads' forks and `/proc` take the lock.
    places: Apart<Stored<M>>,
}

/// Root and working directory. [`Places`] is aligned for readers that share it, which this is not.
type Stored<M> = (StartDirectory<FileHost<M>>, StartDirectory<FileHost<M>>);

fn places_of<M: Machine>((root, cwd): &Stored<M>) -> Places<FileHost<M>> {
    Places { root: root.clone(), cwd: cwd.clone() }
}

/// A thread's copy of its [`FsState`].
pub struct Seen<M: Machine> {
    /// The number of changes at the time of the copy.
    pub changes: u64,
    pub places: Arc<Places<FileHost<M>>>,
}

impl<M: Machine> FsState<M> {
    fn with(places: Places<FileHost<M>>, umask: u32) -> Result<Arc<Self>, OutOfMemory> {
        const { assert!(size_of::<Self>() == 64, "with the counts before it, it takes two lines") };
        let Places { root, cwd } = places;
        let places = Apart::new(Rank::FILE, (root, cwd));
        Arc::try_new(FsState { changes: AtomicU64::new(0), umask: AtomicU32::new(umask), places })
    }

    /// In directory `cwd` of the tree that begins at `root`, with Linux's first umask.
    pub fn new(root: &'static Arc<Dentry<M>>, cwd: Arc<Dentry<M>>) -> Result<Arc<Self>, OutOfMemory> {
        Self::with(Places { root: StartDirectory::Root(root), cwd: StartDirectory::new(cwd, root) }, 0o022)
    }

    /// A copy for a forked child.
    pub fn fork(&self) -> Result<Arc<Self>, Errno> {
        Ok(Self::with(self.places(), self.umask().into())?)
    }

    /// The state for one more thread (or process) of the caller's.
    pub fn share(this: &Arc<Self>) -> Result<Arc<Self>, OutOfMemory> {
        this.places.move_apart()?;
        Ok(this.clone())
    }

    /// The layout of its allocation beside itself; of no bytes if there is none.
    pub fn more(&self) -> Layout {
        if self.places.is_apart() { Apart::<Stored<M>>::FAR } else { Layout::new::<()>() }
    }

    /// Root and working directory.
    pub fn places(&self) -> Places<FileHost<M>> {
        places_of(&self.places.lock())
    }

    /// The umask.
    pub fn umask(&self) -> u16 {
        self.umask.load(Ordering::Relaxed) as u16
    }

    fn change(&self, change: impl FnOnce(&mut Stored<M>) -> StartDirectory<FileHost<M>>) {
        let mut places = self.places.lock();
        let old = change(&mut places);
        // Only the lock's holder writes.
        self.changes.store(self.changes.load(Ordering::Relaxed) + 1, Ordering::Release);
        drop(places);
        drop(old);
    }

    /// Changes the working directory.
    pub fn set_cwd(&self, to: StartDirectory<FileHost<M>>) {
        self.change(|places| core::mem::replace(&mut places.1, to));
    }

    /// Changes the root directory.
    pub fn set_root(&self, to: StartDirectory<FileHost<M>>) {
        self.change(|places| core::mem::replace(&mut places.0, to));
    }

    /// Changes the umask, and returns the old one.
    pub fn set_umask(&self, mask: u16) -> u16 {
        let new = u32::from(mask & 0o777);
        // An equal value is not written: most programs set the value that is there.
        if self.umask.load(Ordering::Relaxed) == new {
            return new as u16;
        }
        self.umask.swap(new, Ordering::Relaxed) as u16
    }

    /// A copy of the present state, with its number of changes.
    pub fn seen(&self) -> Result<Seen<M>, OutOfMemory> {
        let room = Room::try_new()?;
        let places = self.places.lock();
        let (changes, now) = (self.changes.load(Ordering::Relaxed), places_of(&places));
        drop(places);
        Ok(Seen { changes, places: room.fill(now) })
    }
}
