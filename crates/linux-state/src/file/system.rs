//! The file layer's state of a machine: the tree and its limits, the terminal, the first working directory.

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

/// Kernel memory of one file in an epoll set, or a little more. It has a watch, its map entry, its places on the list,
/// and the file's listener.
pub(super) const WATCH_BYTES: u64 = 256;
/// See the module.
pub struct System<M: Machine> {
    pub vfs: Arc<Vfs<FileHost<M>>>,
    /// The console's terminal, if there is one. Set once, at start.
    pub terminal: SpinLock<Option<Arc<Terminal>>>,
    /// The pseudo-terminals.
    pub ptys: Ptys,
    /// The limits of files that announce events of other files.
    pub notify_limits: NotifyLimits,
    /// How many files a user may have in epoll sets.
    most_watches: AtomicU64,
    /// Held by a thread that walks epoll sets in epoll sets. The number of the last walk.
    pub epoll_nests: Mutex<u64>,
}

impl<M: Machine> System<M> {
    /// An empty tree. `/dev` and `/proc` come when the first process starts.
    pub fn new(vm: &'static Vm<M>, machine: &'static M) -> Result<Self, Errno> {
        // Files that boot puts there come first, and do not count.
        let vfs = Vfs::new(FileHost::new(vm, machine)?, Limits::UNSET)?;
        // As on Linux, they may take a twenty-fifth of memory.
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

    /// How many files a user may have in epoll sets: `fs.epoll.max_user_watches`.
    pub fn most_watches(&self) -> u64 {
        self.most_watches.load(Ordering::Relaxed)
    }

    /// Changes that. Existing watches stay.
    pub fn set_most_watches(&self, most: u64) {
        self.most_watches.store(most, Ordering::Relaxed);
    }

    /// All files.
    #[inline]
    pub fn vfs(&self) -> &Arc<Vfs<FileHost<M>>> {
        &self.vfs
    }

    /// The terminal.
    pub fn terminal(&self) -> Option<Arc<Terminal>> {
        self.terminal.lock().clone()
    }

    /// Called when boot has unpacked its files: from now on the root and `/dev` may each hold `limits` beside them.
    /// Unset limits are as on Linux: half of memory, and half as many inodes as memory has pages.
    pub fn set_limits(&self, vm: &Vm<M>, limits: Limits) {
        let half = Some(vm.frames().total() / 2);
        self.vfs.set_room(Limits { pages: limits.pages.or(half), inodes: limits.inodes.or(half) });
    }

    /// The first process's view of the tree, in directory `cwd`.
    pub fn first_fs(&'static self, cwd: &[u8]) -> Result<Arc<FsState<M>>, Errno> {
        let cwd = self.directory(cwd)?;
        Ok(FsState::new(self.vfs.root(), cwd)?)
    }

    fn directory(&self, path: &[u8]) -> Result<Arc<Dentry<M>>, Errno> {
        let found = self.vfs.find(&self.vfs.view(), self.vfs.root(), path, true)?;
        if found.inode.is_directory() { Ok(found.counted()) } else { Err(Errno::ENOTDIR) }
    }

    /// Sends a key pressed outside to the terminal's foreground; `false` if there is no terminal.
    pub fn key(&self, key: Key) -> bool {
        match self.terminal() {
            Some(terminal) => {
                terminal.key(key);
                true
            }
            None => false,
        }
    }

    /// The size of the terminal's window changed.
    pub fn resize(&self, rows: u16, columns: u16) {
        if let Some(terminal) = self.terminal() {
            terminal.set_size(Size { rows, columns, ..terminal.size() });
        }
    }
}
