//! Working directory, root directory and umask of a process.

use crate::file::host::{Dentry, FileHost};
use crate::{Errno, Machine};
use core::alloc::Layout;
use quire_fs::{Places, StartDirectory};
use quire_heap::{Arc, OutOfMemory, Room};
use quire_lookup::Apart;
use quire_sync::Rank;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The working directory, root directory and umask of a process. Threads that were cloned with CLONE_FS share one.
///
/// Each thread keeps its own copy of the directories ([`Seen`]), and renews it when they have changed. So a path walk
/// neither writes the directories' reference counts nor acquires the lock of `places`.
///
/// Each path walk reads the first two fields. Each thread that starts or ends writes the `Arc`'s reference count, which
/// lies before them. So the type is aligned to a cache line, and the count is on another line.
#[repr(align(64))]
pub struct FsState<M: Machine> {
    /// The number of directory changes. A thread holds the lock of `places` while it writes the number.
    pub changes: AtomicU64,
    umask: AtomicU32,
    /// The root and the working directory, with a lock that forks of other threads and `/proc` acquire. When threads
    /// begin to share this state, lock and directories move to memory of their own. The stores to the lock then do not
    /// take the cache line of the other fields from the CPUs that read them.
    places: Apart<Stored<M>>,
}

/// Root and working directory. Readers share a [`Places`], which is aligned to a cache line. This type is not aligned.
type Stored<M> = (StartDirectory<FileHost<M>>, StartDirectory<FileHost<M>>);

fn places_of<M: Machine>((root, cwd): &Stored<M>) -> Places<FileHost<M>> {
    Places { root: root.clone(), cwd: cwd.clone() }
}

/// A thread's copy of the directories in its [`FsState`].
pub struct Seen<M: Machine> {
    /// The number of directory changes when the copy was made.
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

    /// The state of a process in directory `cwd` of the tree with the root `root`, with Linux's initial umask.
    pub fn new(root: &'static Arc<Dentry<M>>, cwd: Arc<Dentry<M>>) -> Result<Arc<Self>, OutOfMemory> {
        Self::with(Places { root: StartDirectory::Root(root), cwd: StartDirectory::new(cwd, root) }, 0o022)
    }

    /// A copy for a forked child.
    pub fn fork(&self) -> Result<Arc<Self>, Errno> {
        Ok(Self::with(self.places(), self.umask().into())?)
    }

    /// A reference to the state for a new thread or process of the caller. The state is now shared, so the directories
    /// first move to memory of their own ([`Apart`]).
    pub fn share(this: &Arc<Self>) -> Result<Arc<Self>, OutOfMemory> {
        this.places.move_apart()?;
        Ok(this.clone())
    }

    /// The layout of the state's further allocation, for memory accounting; 0 bytes if there is none.
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
        // A plain load and store are enough, because only the holder of the lock writes.
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
        // Most programs set the umask that is set already. Then the value is not stored, so the cache line stays shared
        // by all CPUs.
        if self.umask.load(Ordering::Relaxed) == new {
            return new as u16;
        }
        self.umask.swap(new, Ordering::Relaxed) as u16
    }

    /// A copy of the present directories, with the present number of changes.
    pub fn seen(&self) -> Result<Seen<M>, OutOfMemory> {
        let room = Room::try_new()?;
        let places = self.places.lock();
        let (changes, now) = (self.changes.load(Ordering::Relaxed), places_of(&places));
        drop(places);
        Ok(Seen { changes, places: room.fill(now) })
    }
}
