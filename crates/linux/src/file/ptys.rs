//! `/dev/ptmx` and `/dev/pts`: opening the master of a new pair, and the terminal of an existing pair.

use crate::file::open::open_flags;
use crate::file::terminals::{Groups, claim_at_open, settings};
use core::any::Any;
use linux_raw_sys::general as raw;
use quire_fs::device::{Driver, PTS};
use quire_fs::terminal::pty::Pty;
use quire_fs::terminal::{Notice, Processes};
use quire_fs::{Create, DeviceNumber, FileCredentials, Final, FsError, Io, OpenFlags, Powers, Readiness, Ready};
use quire_fs::{Sink, Source, Stream};
use quire_heap::{Arc, OutOfMemory, Vec, try_format, unsize};
use quire_linux_state::file::ptys::Place;
use quire_linux_state::file::view::descriptor_limit;
use quire_linux_state::{Ctx, Errno, Linux, Machine};

/// The group of terminals (`tty` in distributions), whose members may write to terminals.
const TTY_GROUP: u32 = 5;
/// The permissions of a terminal.
const MODE: u16 = 0o620;
const DIRECTORY: &[u8] = b"/dev/pts";

/// The process groups, for the terminal of a pair. The value is dropped with the pair, which frees the pair's index.
struct PtyGroups<M: Machine>(Groups<M>, #[allow(dead_code, reason = "its drop frees the index")] Place);

impl<M: Machine> Processes for PtyGroups<M> {
    fn notify(&self, group: u32, notice: Notice) {
        self.0.notify(group, notice);
    }
    fn check(&self, session: u32, foreground: u32, writing: bool) -> Result<(), FsError> {
        self.0.check(session, foreground, writing)
    }
    fn hung_up(&self, session: u32, foreground: u32) {
        self.0.hung_up(session, foreground);
    }
}

/// `/dev/ptmx`. Each open makes a new pair.
pub struct Multiplexer<M: Machine>(pub &'static Linux<M>);

impl<M: Machine> Driver for Multiplexer<M> {
    fn open(&self, _flags: OpenFlags) -> Result<Arc<dyn Stream>, FsError> {
        let linux = self.0;
        let place = linux.files.ptys.reserve().map_err(|why| match why {
            Errno::ENOMEM => FsError::OutOfMemory,
            _ => FsError::NoSpace,
        })?;
        let (index, number) = (place.index, place.number);
        let groups = Arc::try_new(PtyGroups(Groups(linux), place))?;
        let pty = Pty::new(unsize!(groups), settings::of_pty(), number)?;
        let master = Arc::try_new(Master { linux, pty, index })?;
        linux.files.ptys.fill(index, &master.pty);
        // If this fails, the drop of `master` undoes the earlier steps.
        master.make_node()?;
        Ok(unsize!(master))
    }
}

/// The driver of the nodes in `/dev/pts`.
pub struct Terminals<M: Machine>(pub &'static Linux<M>);

impl<M: Machine> Driver for Terminals<M> {
    fn open(&self, _flags: OpenFlags) -> Result<Arc<dyn Stream>, FsError> {
        Err(FsError::NoDevice)
    }

    fn open_minor(&self, minor: u32, _flags: OpenFlags) -> Result<Arc<dyn Stream>, FsError> {
        Pty::open_slave(&self.0.files.ptys.get(minor).ok_or(FsError::Io)?)
    }
}

/// The open master of a pair. Its drop hangs the terminal up.
pub struct Master<M: Machine> {
    linux: &'static Linux<M>,
    /// The pair.
    pub pty: Arc<Pty>,
    /// The pair's index.
    pub index: u32,
}

impl<M: Machine> Master<M> {
    fn name(&self) -> Result<Vec<u8>, OutOfMemory> {
        try_format(format_args!("{}", self.index))
    }

    /// Makes the terminal's node, which belongs to the calling thread's user.
    fn make_node(&self) -> Result<(), FsError> {
        let vfs = self.linux.files.vfs();
        // SAFETY: these are the calling thread's own credentials, which only that thread replaces.
        let uid = unsafe { self.linux.current().credentials.get() }.file_user;
        let mut view = vfs.view();
        view.credentials = FileCredentials { uid, gid: TTY_GROUP, groups: None, powers: Powers::all() };
        let directory = vfs.find(&view, vfs.root(), DIRECTORY, true)?;
        let found = vfs.walk(&view, &directory, &self.name()?, Final::Name)?;
        let number = DeviceNumber { major: PTS, minor: self.index };
        vfs.make(&view, &found, Create::CharDevice(number), MODE).map(drop)
    }

    fn remove_node(&self) -> Result<(), FsError> {
        let vfs = self.linux.files.vfs();
        let view = vfs.view();
        let directory = vfs.find(&view, vfs.root(), DIRECTORY, true)?;
        let found = vfs.walk(&view, &directory, &self.name()?, Final::Name)?;
        vfs.unlink(&view, &found)
    }
}

impl<M: Machine> Drop for Master<M> {
    fn drop(&mut self) {
        // If memory is exhausted, the node stays, and opening it fails. The next pair with this index then gets no
        // node.
        let _stays = self.remove_node();
        self.pty.close_master();
    }
}

impl<M: Machine> Stream for Master<M> {
    fn read(&self, io: &Io<'_>, sink: &mut dyn Sink) -> Result<usize, FsError> {
        self.pty.read_master(io, sink)
    }

    fn write(&self, io: &Io<'_>, source: &mut dyn Source) -> Result<usize, FsError> {
        self.pty.write_master(io, source)
    }

    fn ready(&self) -> Ready {
        self.pty.master_ready()
    }

    fn readiness(&self) -> Option<&Readiness> {
        Some(self.pty.master_readiness())
    }

    fn queued(&self) -> Result<usize, FsError> {
        Ok(self.pty.master_queued())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// TIOCGPTPEER: opens the terminal of a master. The node is found in `/dev/pts` even if the caller's root directory
/// hides it.
pub fn open_peer<M: Machine>(ctx: &Ctx<'_, M>, master: &Master<M>, flags: u32) -> Result<usize, Errno> {
    let ours = open_flags(flags)? - OpenFlags::CREATE;
    let descriptor = ctx.files()?.reserve(flags & raw::O_CLOEXEC != 0, descriptor_limit(ctx.thread))?;
    let vfs = ctx.vfs();
    let view = vfs.view();
    let path = try_format(format_args!("/dev/pts/{}", master.index))?;
    let file = vfs.open(&view, vfs.root(), &path, ours, 0, &Io::NOW)?;
    if !ours.contains(OpenFlags::NO_TERMINAL) {
        claim_at_open(ctx, &file);
    }
    Ok(descriptor.fill(file) as usize)
}
