//! The tree's contents when the first process starts: devices, `/proc`, the terminal and the first descriptors.

use super::File;
use super::files::Files;
use super::system::System;
use super::terminals::ptys::{Multiplexer, Terminals};
use super::terminals::{self, Groups, OwnTerminal, settings};
use crate::{Errno, Linux, Machine};
use quire_fs::device::{CONSOLE, PTMX, PTS, TTY};
use quire_fs::generated::GeneratedDirectory;
use quire_fs::port::{RawPort, Shared};
use quire_fs::terminal::{Size, Terminal};
use quire_fs::{DeviceNumber, Final, FsError, Io, OpenFlags, Port, Stream};
use quire_heap::{Arc, unsize};
use quire_sync::atomic::Ordering;

/// The root directory of a file system whose files are generated when they are read.
type Root<M> = Arc<dyn GeneratedDirectory<super::FileHost<M>>>;

/// Majors of this kernel's own devices, from Linux's range for local use.
const LOCAL: u32 = 240;

impl<M: Machine> System<M> {
    /// Mounts `/dev`, and `/proc` and `/sys` if they are given. Called after the initial file system is unpacked.
    pub fn start(&self, linux: &'static Linux<M>, generated: Option<(Root<M>, Root<M>)>) -> Result<(), Errno> {
        self.vfs.host().set_linux(linux);
        self.vfs.mount_devices()?;
        self.vfs.register(TTY, unsize!(Arc::try_new(OwnTerminal(linux))?))?;
        self.vfs.register(PTMX, unsize!(Arc::try_new(Multiplexer(linux))?))?;
        self.vfs.register(DeviceNumber::each(PTS), unsize!(Arc::try_new(Terminals(linux))?))?;
        if let Some((proc, sys)) = generated {
            self.vfs.mount_generated(b"/proc", "proc", proc)?;
            self.vfs.mount_generated(b"/sys", "sysfs", sys)?;
        }
        // Directories that programs expect to be writable.
        let view = self.vfs.view();
        let found = self.vfs.walk(&view, self.vfs.root(), b"/tmp", Final::Follow)?;
        if found.target.is_none() {
            self.vfs.make(&view, &found, quire_fs::Create::Directory, 0o1777)?;
        }
        Ok(())
    }

    /// The first process's descriptors 0 to 2. They are on a terminal at `io`, which process 1's session then gets. Or
    /// they are byte-transparent on `io` and, for 2, on `error`.
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
            let terminal = Terminal::new(io, unsize!(Arc::try_new(Groups(linux))?), size, terminals::CONSOLE)?;
            terminal.set_settings(settings::initial(), false);
            *self.terminal.lock() = Some(terminal.clone());
            let stream: Arc<dyn Stream> = unsize!(terminal.clone());
            self.vfs.register(CONSOLE, unsize!(Arc::try_new(Shared(stream))?))?;
            terminal.claim(1, 1, true)?;
            if let Some(group) = linux.ids.group(1) {
                group.session.terminal.store(terminals::CONSOLE, Ordering::Release);
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
}
