//! The devices without hardware: `null`, `zero`, `full`, `random`; and their directory.
//!
//! [`driver`] is the interface through which [`vfs`](crate::vfs) opens a device, so it uses nothing of `vfs`. [`port`]
//! is a device for a line of bytes to the outside world.
//!
//! May use: [`vfs`](crate::vfs) and all below; [`driver`] and [`port`] only [`stream`](crate::stream). Defines the
//! numbers of the memory devices and of the terminals' nodes.

pub(crate) mod driver;
pub mod port;

pub use driver::Driver;

use crate::host::Host;
use crate::stream::Stream;
use crate::stream::io::Io;
use crate::stream::transfer::{Sink, Source};
use crate::tree::attr::DeviceNumber;
use crate::tree::system::Limits;
use crate::vfs::Vfs;
use crate::vfs::found::Final;
use crate::vfs::make::Create;
use crate::{FsError, OpenFlags};
use core::any::Any;
use quire_heap::{Arc, unsize};

/// Number of the caller's own terminal.
pub const TTY: DeviceNumber = DeviceNumber { major: 5, minor: 0 };
/// Number of the system's terminal.
pub const CONSOLE: DeviceNumber = DeviceNumber { major: 5, minor: 1 };
/// Number of the device that makes a pseudo-terminal when it is opened.
pub const PTMX: DeviceNumber = DeviceNumber { major: 5, minor: 2 };
/// Numbers of the two devices of random bytes, `random` and `urandom`.
pub const RANDOM: [DeviceNumber; 2] = [DeviceNumber { major: 1, minor: 8 }, DeviceNumber { major: 1, minor: 9 }];
/// Major number of pseudo-terminals.
pub const PTS: u32 = 136;

static ZEROES: [u8; 4096] = [0; 4096];

/// A memory device.
struct Memory<H: Host> {
    which: MemoryDevice,
    host: H,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MemoryDevice {
    Null,
    Zero,
    Full,
    Random,
}

impl<H: Host> Stream for Memory<H> {
    fn read(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        match self.which {
            MemoryDevice::Null => Ok(0),
            MemoryDevice::Zero | MemoryDevice::Full => {
                in_pieces(io, sink, ZEROES.len(), |sink, n| sink.put(&ZEROES[..n]))
            }
            MemoryDevice::Random => self.read_random(io, sink),
        }
    }

    fn write(&self, _io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError> {
        match self.which {
            MemoryDevice::Full => Err(FsError::NoSpace),
            // The bytes are not read, as on Linux.
            MemoryDevice::Null | MemoryDevice::Zero => Ok(source.left()),
            MemoryDevice::Random => {
                let mut bytes = [0; 256];
                let mut done = 0;
                while source.left() > 0 {
                    let want = source.left().min(bytes.len());
                    match source.take(&mut bytes[..want]) {
                        Ok(0) => break,
                        Ok(n) => done += n,
                        Err(_) if done > 0 => break,
                        Err(e) => return Err(e),
                    }
                }
                Ok(done)
            }
        }
    }

    fn seekable(&self) -> bool {
        true
    }

    fn maps_zeroes(&self) -> bool {
        self.which == MemoryDevice::Zero
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl<H: Host> Memory<H> {
    /// A separate function, so that reads of zeroes need no stack for its buffer.
    #[inline(never)]
    fn read_random(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        let mut random = [0; 256];
        in_pieces(io, sink, random.len(), |sink, n| {
            self.host.random(&mut random);
            sink.put(&random[..n])
        })
    }
}

/// Fills `sink` by calls of `put`. Each call puts the requested number of bytes, which is at most `most`.
fn in_pieces(
    io: &Io<'_>,
    sink: &mut dyn Sink,
    most: usize,
    mut put: impl FnMut(&mut dyn Sink, usize) -> Result<usize, FsError>,
) -> Result<usize, FsError> {
    let mut done = 0;
    loop {
        let n = sink.room().min(most);
        // A large read can be interrupted, because it may take long.
        if n == 0 || done > 0 && (io.interrupted)() {
            return Ok(done);
        }
        match put(sink, n) {
            Ok(m) => {
                done += m;
                if m < n {
                    return Ok(done);
                }
            }
            Err(_) if done > 0 => return Ok(done),
            Err(e) => return Err(e),
        }
    }
}

struct MemoryDriver<H: Host> {
    which: MemoryDevice,
    host: H,
}

impl<H: Host> Driver for MemoryDriver<H> {
    fn open(&self, _flags: OpenFlags) -> Result<Arc<dyn Stream>, FsError> {
        Ok(unsize!(Arc::try_new(Memory { which: self.which, host: self.host.clone() })?))
    }
}

impl<H: Host> Vfs<H> {
    /// Mounts `/dev` with the memory devices, nodes for terminals and the usual links. The caller
    /// [registers](Vfs::register) the drivers for [`TTY`], [`CONSOLE`] and [`PTMX`].
    pub fn mount_devices(&self) -> Result<(), FsError> {
        let view = self.view();
        let dev = self.mount_memory(b"/dev", "devtmpfs", Limits::UNSET, 0o755)?;
        let make = |name: &[u8], content: Create<'_>, mode: u16| -> Result<(), FsError> {
            let found = self.walk(&view, &dev, name, Final::Name)?;
            self.make(&view, &found, content, mode).map(drop)
        };
        let memory = [
            (&b"null"[..], 3, MemoryDevice::Null),
            (b"zero", 5, MemoryDevice::Zero),
            (b"full", 7, MemoryDevice::Full),
            (b"random", 8, MemoryDevice::Random),
            (b"urandom", 9, MemoryDevice::Random),
        ];
        for (name, minor, which) in memory {
            let number = DeviceNumber { major: 1, minor };
            self.register(number, unsize!(Arc::try_new(MemoryDriver { which, host: self.host().clone() })?))?;
            make(name, Create::CharDevice(number), 0o666)?;
        }
        make(b"tty", Create::CharDevice(TTY), 0o666)?;
        make(b"ptmx", Create::CharDevice(PTMX), 0o666)?;
        make(b"console", Create::CharDevice(CONSOLE), 0o600)?;
        make(b"fd", Create::Symlink(b"/proc/self/fd"), 0)?;
        make(b"stdin", Create::Symlink(b"/proc/self/fd/0"), 0)?;
        make(b"stdout", Create::Symlink(b"/proc/self/fd/1"), 0)?;
        make(b"stderr", Create::Symlink(b"/proc/self/fd/2"), 0)?;
        make(b"shm", Create::Directory, 0o1777)?;
        let pts = self.mount_memory(b"/dev/pts", "devpts", Limits::NONE, 0o755)?;
        let found = self.walk(&view, &pts, b"ptmx", Final::Name)?;
        self.make(&view, &found, Create::CharDevice(PTMX), 0).map(drop)
    }

    /// Makes a node in `/dev`, and registers its driver.
    pub fn add_device(
        &self,
        name: &[u8],
        number: DeviceNumber,
        mode: u16,
        driver: Arc<dyn Driver>,
    ) -> Result<(), FsError> {
        let view = self.view();
        let dev = self.find(&view, self.root(), b"/dev", true)?;
        let found = self.walk(&view, &dev, name, Final::Name)?;
        self.register(number, driver.clone())?;
        let made = self.make(&view, &found, Create::CharDevice(number), mode);
        if made.is_err() {
            self.deregister(number, &driver);
        }
        made.map(drop)
    }
}
