//! The file layer's state of a machine: the tree, devices, the terminal, the first process's files.

use super::files::Files;
use super::host::FileHost;
use super::state::FsState;
use super::terminals::{Groups, OwnTerminal, settings};
use super::{Dentry, File};
use crate::{Errno, Linux, Machine};
use core::sync::atomic::{AtomicU64, Ordering};
use quire_fs::device::{CONSOLE, TTY};
use quire_fs::generated::GeneratedDirectory;
use quire_fs::port::{RawPort, Shared};
use quire_fs::terminal::{Key, Size, Terminal};
use quire_fs::{DeviceNumber, Final, FsError, Io, Limits, OpenFlags, Port, Stream, Vfs};
use quire_heap::{Arc, unsize};
use quire_sync::{Rank, SpinLock};
use quire_vm::{PAGE_SIZE, Vm};

/// See the module.
pub struct System<M: Machine> {
    vfs: Arc<Vfs<FileHost<M>>>,
    /// The one terminal, where there is one. Changed once, at start.
    terminal: SpinLock<Option<Arc<Terminal>>>,
    /// How many files a user may have in epoll sets.
    most_watches: AtomicU64,
}

/// The root directory of a file system whose files are made up when they are looked at.
type Root<M> = Arc<dyn GeneratedDirectory<FileHost<M>>>;

/// Majors of this kernel's own devices, from Linux's range for local use.
const LOCAL: u32 = 240;

impl<M: Machine> System<M> {
    /// An empty tree. `/dev` and `/proc` come with [`start`](Self::start).
    pub fn new(vm: &'static Vm<M>, machine: &'static M) -> Result<Self, Errno> {
        // What boot puts there comes first, and does not count.
        let vfs = Vfs::new(FileHost::new(vm, machine)?, Limits::UNSET)?;
        // As on Linux, they may take a twenty-fifth of memory.
        let most_watches = AtomicU64::new(vm.frames().total() * PAGE_SIZE / 25 / super::epoll::WATCH_BYTES);
        Ok(System { vfs, terminal: SpinLock::new(Rank::FILE, None), most_watches })
    }

    /// How many files a user may have in epoll sets: `fs.epoll.max_user_watches`.
    pub fn most_watches(&self) -> u64 {
        self.most_watches.load(Ordering::Relaxed)
    }

    /// Changes that. Those that are watched stay.
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

    /// Mounts `/dev`, and `/proc` and `/sys` where they are given. After the initial file system is unpacked.
    pub fn start(&self, linux: &'static Linux<M>, generated: Option<(Root<M>, Root<M>)>) -> Result<(), Errno> {
        self.vfs.host().set_linux(linux);
        self.vfs.mount_devices()?;
        self.vfs.register(TTY, unsize!(Arc::try_new(OwnTerminal(linux))?))?;
        if let Some((proc, sys)) = generated {
            self.vfs.mount_generated(b"/proc", "proc", proc)?;
            self.vfs.mount_generated(b"/sys", "sysfs", sys)?;
        }
        // What programs expect to be able to write to.
        let view = self.vfs.view();
        let found = self.vfs.walk(&view, self.vfs.root(), b"/tmp", Final::Follow)?;
        if found.target.is_none() {
            self.vfs.make(&view, &found, quire_fs::Create::Directory, 0o1777)?;
        }
        Ok(())
    }

    /// What boot puts into files is there: from now on the root and `/dev` may each hold `limits` beside it. Where these say nothing,
    /// it is as much as on Linux: half of memory, and half as many inodes as memory has pages.
    pub fn set_limits(&self, vm: &Vm<M>, limits: Limits) {
        let half = Some(vm.frames().total() / 2);
        self.vfs.set_room(Limits { pages: limits.pages.or(half), inodes: limits.inodes.or(half) });
    }

    /// The first process's descriptors 0 to 2: on a terminal at `io` (then process 1's session gets it), or byte-transparent
    /// on `io` and, for 2, on `error`.
    pub fn standard_files(
        &self,
        linux: &'static Linux<M>,
        tty: bool,
        io: Arc<dyn Port>,
        error: Arc<dyn Port>,
        size: Size,
    ) -> Result<Arc<Files<M>>, Errno> {
        let files = Files::new(linux.vm)?;
        let put = |file: Arc<File<M>>| files.insert(file, false, 0, 3).map(drop);
        if tty {
            let terminal = Terminal::new(io, unsize!(Arc::try_new(Groups(linux))?), size)?;
            terminal.set_settings(settings::initial(), false);
            *self.terminal.lock() = Some(terminal.clone());
            let stream: Arc<dyn Stream> = unsize!(terminal.clone());
            self.vfs.register(CONSOLE, unsize!(Arc::try_new(Shared(stream))?))?;
            terminal.claim(1, 1, true)?;
            if let Some(group) = linux.ids.group(1) {
                group.session.terminal.store(super::terminals::CONSOLE, Ordering::Release);
            }
            let both = OpenFlags::READ | OpenFlags::WRITE;
            let file = self.open_device(b"/dev/console", both)?;
            for _ in 0..3 {
                put(file.clone())?;
            }
        } else {
            let io: Arc<dyn Stream> = unsize!(RawPort::new(io)?);
            let error: Arc<dyn Stream> = unsize!(RawPort::new(error)?);
            self.vfs.register(CONSOLE, unsize!(Arc::try_new(Shared(io.clone()))?))?;
            let ports: [(&[u8], u32, Arc<dyn Stream>); 2] = [(b"port0", 0, io), (b"port1", 1, error)];
            for (name, minor, stream) in ports {
                let number = DeviceNumber { major: LOCAL, minor };
                self.vfs.add_device(name, number, 0o600, unsize!(Arc::try_new(Shared(stream))?))?;
            }
            put(self.open_device(b"/dev/port0", OpenFlags::READ)?)?;
            put(self.open_device(b"/dev/port0", OpenFlags::WRITE)?)?;
            put(self.open_device(b"/dev/port1", OpenFlags::WRITE)?)?;
        }
        Ok(files)
    }

    fn open_device(&self, path: &[u8], flags: OpenFlags) -> Result<Arc<File<M>>, FsError> {
        self.vfs.open(&self.vfs.view(), self.vfs.root(), path, flags, 0, &Io::NOW)
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

    /// A key pressed outside: to the terminal's foreground; `false` where there is no terminal.
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
