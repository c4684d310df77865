//! Sets up the file tree before the first process starts: devices, `/proc`, the terminal and the first descriptors.

use crate::file::ptys::{Multiplexer, Terminals};
use crate::file::terminals;
use crate::file::terminals::{Groups, OwnTerminal, settings};
use quire_fs::device::{CONSOLE, PTMX, PTS, TTY};
use quire_fs::port::{RawPort, Shared};
use quire_fs::terminal::{Size, Terminal};
use quire_fs::{DeviceNumber, Final, FsError, Io, OpenFlags, Port, Stream};
use quire_heap::{Arc, unsize};
use quire_linux_state::file::files::Files;
use quire_linux_state::file::host::File;
use quire_linux_state::file::system::System;
use quire_linux_state::{Errno, Linux, Machine};
use quire_sync::atomic::Ordering;

/// The major number of this kernel's own devices, from Linux's range for local use.
const LOCAL: u32 = 240;

/// Mounts `/dev`, and `/proc` and `/sys` if the kernel has them. Called after the initial file system is unpacked.
pub fn start<M: Machine>(linux: &'static Linux<M>) -> Result<(), Errno> {
    let system = &linux.files;
    system.vfs.host().set_linux(linux);
    system.vfs.mount_devices()?;
    system.vfs.register(TTY, unsize!(Arc::try_new(OwnTerminal(linux))?))?;
    system.vfs.register(PTMX, unsize!(Arc::try_new(Multiplexer(linux))?))?;
    system.vfs.register(DeviceNumber::each(PTS), unsize!(Arc::try_new(Terminals(linux))?))?;
    let trees: [(&[u8], _, _); 2] =
        [(b"/proc", "proc", linux.trees.proc(linux)), (b"/sys", "sysfs", linux.trees.sys(linux))];
    for (path, kind, root) in trees {
        match root {
            Err(Errno::ENODEV) => {}
            root => drop(system.vfs.mount_generated(path, kind, root?)?),
        }
    }
    // `/tmp`, which programs expect to be writable.
    let view = system.vfs.view();
    let found = system.vfs.walk(&view, system.vfs.root(), b"/tmp", Final::Follow)?;
    if found.target.is_none() {
        system.vfs.make(&view, &found, quire_fs::Create::Directory, 0o1777)?;
    }
    Ok(())
}

/// Makes the first process's descriptors 0 to 2. With `tty`, all three are a terminal on `io`, which becomes the
/// controlling terminal of process 1. Otherwise descriptors 0 and 1 pass bytes unchanged to `io`, and descriptor 2 to
/// `error`.
pub fn standard_files<M: Machine>(
    system: &System<M>,
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
        *system.terminal.lock() = Some(terminal.clone());
        let stream: Arc<dyn Stream> = unsize!(terminal.clone());
        system.vfs.register(CONSOLE, unsize!(Arc::try_new(Shared(stream))?))?;
        terminal.claim(1, 1, true)?;
        if let Some(group) = linux.ids.group(1) {
            group.session.terminal.store(terminals::CONSOLE, Ordering::Release);
        }
        let both = OpenFlags::READ | OpenFlags::WRITE;
        let file = open_device(system, b"/dev/console", both)?;
        for _ in 0..3 {
            put(file.clone())?;
        }
    } else {
        let io: Arc<dyn Stream> = unsize!(RawPort::new(io)?);
        let error: Arc<dyn Stream> = unsize!(RawPort::new(error)?);
        system.vfs.register(CONSOLE, unsize!(Arc::try_new(Shared(io.clone()))?))?;
        let ports: [(&[u8], u32, Arc<dyn Stream>); 2] = [(b"port0", 0, io), (b"port1", 1, error)];
        for (name, minor, stream) in ports {
            let number = DeviceNumber { major: LOCAL, minor };
            system.vfs.add_device(name, number, 0o600, unsize!(Arc::try_new(Shared(stream))?))?;
        }
        put(open_device(system, b"/dev/port0", OpenFlags::READ)?)?;
        put(open_device(system, b"/dev/port0", OpenFlags::WRITE)?)?;
        put(open_device(system, b"/dev/port1", OpenFlags::WRITE)?)?;
    }
    Ok(files)
}

fn open_device<M: Machine>(system: &System<M>, path: &[u8], flags: OpenFlags) -> Result<Arc<File<M>>, FsError> {
    system.vfs.open(&system.vfs.view(), system.vfs.root(), path, flags, 0, &Io::NOW)
}
