//! The state of the file layer that a machine has once: the tree and its limits, the terminals.

use crate::file::host::{Dentry, FileHost};
use crate::file::notify_limits::NotifyLimits;
use crate::file::ptys::Ptys;
use crate::file::state::FsState;
use crate::{Errno, Machine};
use quire_fs::terminal::{Key, Size, Terminal};
use quire_fs::{Limits, Vfs};
use quire_heap::Arc;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::{Mutex, Rank, SpinLock};
use quire_vm::{PAGE_SIZE, Vm};

/// An upper bound, in bytes, for the kernel memory of one file in an epoll instance. That is a watch, its map entry,
/// its list links, and a listener at the file.
pub(super) const WATCH_BYTES: u64 = 256;
/// The state of the file layer that a machine has once.
pub struct System<M: Machine> {
    pub vfs: Arc<Vfs<FileHost<M>>>,
    /// The console's terminal, if there is one. Boot sets it once.
    pub terminal: SpinLock<Option<Arc<Terminal>>>,
    /// The pseudo-terminals.
    pub ptys: Ptys,
    /// The limits of `inotify`.
    pub notify_limits: NotifyLimits,
    /// The most files that a user may have in epoll instances.
    most_watches: AtomicU64,
    /// A thread holds this lock while it walks over nested epoll sets (epoll sets in epoll sets). The value is the
    /// number of the last walk.
    pub epoll_nests: Mutex<u64>,
}

impl<M: Machine> System<M> {
    /// A system with an empty tree. `/dev` and `/proc` are added when the first process starts.
    pub fn new(vm: &'static Vm<M>, machine: &'static M) -> Result<Self, Errno> {
        // The limits are unset at first, because the files that boot adds do not count towards them.
        let vfs = Vfs::new(FileHost::new(vm, machine)?, Limits::UNSET)?;
        // As on Linux, the watches of a user may use a twenty-fifth of memory.
        let memory = vm.frames().total() * PAGE_SIZE;
        let most_watches = AtomicU64::new(memory / 25 / WATCH_BYTES);
        Ok(System {
            vfs,
            terminal: SpinLock::new(Rank::FILE, None),
            ptys: Ptys::new(memory),
            notify_limits: NotifyLimits::new(memory),
            most_watches,
            epoll_nests: Mutex::new(0),
        })
    }

    /// The most files that a user may have in epoll instances: `fs.epoll.max_user_watches`.
    pub fn most_watches(&self) -> u64 {
        self.most_watches.load(Ordering::Relaxed)
    }

    /// Sets `fs.epoll.max_user_watches`. Existing watches stay.
    pub fn set_most_watches(&self, most: u64) {
        self.most_watches.store(most, Ordering::Relaxed);
    }

    /// The file tree and its state.
    #[inline]
    pub fn vfs(&self) -> &Arc<Vfs<FileHost<M>>> {
        &self.vfs
    }

    /// The console's terminal, if there is one.
    pub fn terminal(&self) -> Option<Arc<Terminal>> {
        self.terminal.lock().clone()
    }

    /// Sets the limits for files that are created from now on. Boot calls this function after it has unpacked its
    /// files, which do not count towards the limits. The root and `/dev` each get these limits. As on Linux, an unset
    /// page limit is half of the pages of memory, and an unset inode limit is the same number.
    pub fn set_limits(&self, vm: &Vm<M>, limits: Limits) {
        let half = Some(vm.frames().total() / 2);
        self.vfs.set_room(Limits { pages: limits.pages.or(half), inodes: limits.inodes.or(half) });
    }

    /// The first process's directories and umask: its working directory is `cwd`.
    pub fn first_fs(&'static self, cwd: &[u8]) -> Result<Arc<FsState<M>>, Errno> {
        let cwd = self.directory(cwd)?;
        Ok(FsState::new(self.vfs.root(), cwd)?)
    }

    fn directory(&self, path: &[u8]) -> Result<Arc<Dentry<M>>, Errno> {
        let found = self.vfs.find(&self.vfs.view(), self.vfs.root(), path, true)?;
        if found.inode.is_directory() { Ok(found.counted()) } else { Err(Errno::ENOTDIR) }
    }

    /// Passes a key that was pressed on the host to the console's terminal. `false` if there is no terminal.
    pub fn key(&self, key: Key) -> bool {
        match self.terminal() {
            Some(terminal) => {
                terminal.key(key);
                true
            }
            None => false,
        }
    }

    /// Sets the window size of the console's terminal.
    pub fn resize(&self, rows: u16, columns: u16) {
        if let Some(terminal) = self.terminal() {
            terminal.set_size(Size { rows, columns, ..terminal.size() });
        }
    }
}
