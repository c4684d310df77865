//! Opening files by name, and nameless files.

use super::Vfs;
use super::credentials::{FileCredentials, Want};
use super::found::{Final, Last};
use super::make::Create;
use super::view::View;
use crate::file::open_file::{Body, OpenFile, Opening};
use crate::file::text::Writer;
use crate::host::Host;
use crate::pipe::Pipe;
use crate::tree::attr::{EXECUTE, FileKind, NewAttr};
use crate::tree::dentry::Dentry;
use crate::tree::inode::generated::Digits;
use crate::tree::inode::{Inode, InodeContent};
use crate::tree::system::Restrictions;
use crate::tree::watch::Happening;
use crate::{FsError, Io, OpenFlags, Seals, Stream};
use quire_heap::{Arc, Vec, try_format};
use quire_lookup::Hold;

/// An open file, shared by descriptors.
pub type SharedFile<H> = Arc<OpenFile<H>>;

impl<H: Host> Vfs<H> {
    /// Opens the file at `path`, and makes it first if `flags` say so. Waits only for the other end of a FIFO.
    pub fn open(
        &self,
        view: &View<H>,
        base: &Arc<Dentry<H>>,
        path: &[u8],
        flags: OpenFlags,
        mode: u16,
        io: &Io<'_>,
    ) -> Result<Arc<OpenFile<H>>, FsError> {
        let exclusive = flags.contains(OpenFlags::CREATE | OpenFlags::EXCLUSIVE);
        let end = match () {
            () if exclusive => Final::Name,
            () if flags.contains(OpenFlags::NOFOLLOW) => Final::Stay,
            () => Final::Follow,
        };
        if flags.contains(OpenFlags::CREATE) && path.last() == Some(&b'/') {
            // A trailing slash requires a directory, which `open` cannot make. But errors of the parent path are
            // reported first.
            if self.walk(view, base, path, Final::Name)?.last == Last::Name {
                return Err(FsError::IsDirectory);
            }
        }
        if !flags.intersects(OpenFlags::CREATE | OpenFlags::NAMELESS) {
            let dentry = self.target(view, base, path, end)?.ok_or(FsError::NotFound)?;
            self.check_open(&view.credentials, &dentry, flags)?;
            return self.open_dentry(dentry, flags, io);
        }
        loop {
            let found = self.walk(view, base, path, end)?;
            if flags.contains(OpenFlags::NAMELESS) {
                let directory = found.target.ok_or(FsError::NotFound)?;
                let InodeContent::Directory(_) = &directory.inode.node else { return Err(FsError::NotDirectory) };
                view.credentials.may_at(&directory, Want::WRITE | Want::EXECUTE)?;
                let system = directory.inode.system();
                let inode = self.new_inode(view, Some(&directory.inode), system, Create::File, mode)?;
                // No other thread can reach the file yet.
                inode.change(self.host.realtime(), |a| a.linkable = !flags.contains(OpenFlags::EXCLUSIVE));
                let label = try_format(format_args!("#{}", inode.ident.number))?;
                let file = Dentry::unlisted(Dentry::seen(&directory), &label, inode)?;
                return self.open_dentry(Dentry::seen_from(&directory, file)?, flags, io);
            }
            let dentry = match &found.target {
                Some(_) if exclusive => return Err(FsError::Exists),
                Some(there) => there.clone(),
                None if !flags.contains(OpenFlags::CREATE) => return Err(FsError::NotFound),
                // A link led to a missing name with a trailing slash.
                None if found.slash => return Err(FsError::IsDirectory),
                None => {
                    // Allocated before the file is made, so that opening the file needs no more memory.
                    let opening = Opening::new(&self.host)?;
                    match self.make(view, &found, Create::File, mode) {
                        Ok(new) => {
                            let flags = (flags - OpenFlags::TRUNCATE) | OpenFlags::CREATED;
                            return self.open_in(opening, new.into(), flags, io);
                        }
                        Err(FsError::Exists) if !exclusive => continue,
                        Err(e) => return Err(e),
                    }
                }
            };
            if flags.contains(OpenFlags::CREATE) && dentry.inode.is_directory() {
                return Err(FsError::IsDirectory);
            }
            self.check_open(&view.credentials, &dentry, flags)?;
            return self.open_dentry(dentry, flags, io);
        }
    }

    /// Checks that `caller` may open an existing file with `flags`.
    fn check_open(&self, caller: &FileCredentials, dentry: &Dentry<H>, flags: OpenFlags) -> Result<(), FsError> {
        let kind = dentry.inode.kind();
        if flags.contains(OpenFlags::DIRECTORY) && kind != FileKind::Directory {
            return Err(FsError::NotDirectory);
        }
        if flags.contains(OpenFlags::PATH) {
            return Ok(());
        }
        if kind == FileKind::Symlink {
            return Err(FsError::Loop);
        }
        let mut want = Want::empty();
        want.set(Want::READ, flags.contains(OpenFlags::READ));
        want.set(Want::WRITE, flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE));
        if want.contains(Want::WRITE) && kind == FileKind::Directory {
            return Err(FsError::IsDirectory);
        }
        caller.may_at(dentry, want)?;
        if flags.contains(OpenFlags::NOATIME) && !caller.owns(&dentry.inode.fixed_attr()) {
            return Err(FsError::NotPermitted);
        }
        Ok(())
    }

    /// Opens a dentry. The caller has checked the permissions.
    pub fn open_dentry(
        &self,
        dentry: impl Into<Hold<Dentry<H>>>,
        flags: OpenFlags,
        io: &Io<'_>,
    ) -> Result<Arc<OpenFile<H>>, FsError> {
        self.open_in(Opening::new(&self.host)?, dentry.into(), flags, io)
    }

    fn open_in(
        &self,
        opening: Opening<H>,
        dentry: Hold<Dentry<H>>,
        flags: OpenFlags,
        io: &Io<'_>,
    ) -> Result<Arc<OpenFile<H>>, FsError> {
        if flags.contains(OpenFlags::PATH) {
            return Ok(OpenFile::new(opening, dentry, flags, Body::Path, false));
        }
        let written = dentry.inode.file().filter(|_| flags.contains(OpenFlags::WRITE));
        let writer = written.map(|file| file.writing.text.write()).transpose()?;
        let changes = flags.intersects(OpenFlags::WRITE | OpenFlags::TRUNCATE);
        io.with(flags, |io| dentry.inode.break_leases(&self.host, changes, io))?;
        let body = self.body(&dentry, flags, io)?;
        let counts = writer.map(Writer::keep).is_some();
        let file = OpenFile::new(opening, dentry, flags, body, counts);
        file.dentry.happened(Happening::OPEN);
        if flags.contains(OpenFlags::TRUNCATE) && file.regular().is_some() {
            file.dentry.happened(Happening::MODIFY);
        }
        Ok(file)
    }

    fn body(&self, dentry: &Arc<Dentry<H>>, flags: OpenFlags, io: &Io<'_>) -> Result<Body<H>, FsError> {
        let inode = &dentry.inode;
        Ok(match &inode.node {
            InodeContent::File(file) => {
                if flags.contains(OpenFlags::TRUNCATE) {
                    inode.truncate_by_name(&self.host, 0, &io.of(flags))?;
                }
                file.origin.opened_as(Dentry::seen(dentry));
                Body::File
            }
            InodeContent::Directory(_) => Body::Directory,
            InodeContent::Fifo(pipe) => {
                let (read, write) = (flags.contains(OpenFlags::READ), flags.contains(OpenFlags::WRITE));
                // Only openers of a pipe with a name wait for each other. A nameless pipe was open at both ends from
                // the start, so its other end is open now or may never be. So an opener through /proc neither waits nor
                // is refused.
                Body::Stream(match core::ptr::eq(inode.system(), self.nameless) {
                    true => Pipe::open_now(pipe, read, write)?,
                    false => Pipe::open(pipe, read, write, &io.of(flags))?,
                })
            }
            InodeContent::CharDevice(_) | InodeContent::BlockDevice(_) if dentry.refuses(Restrictions::NO_DEVICES) => {
                return Err(FsError::Denied);
            }
            InodeContent::CharDevice(number) => Body::Stream(self.open_device(*number, flags)?),
            InodeContent::Generated(generated) => Body::generated(generated)?,
            InodeContent::Symlink(_) => return Err(FsError::Loop),
            InodeContent::BlockDevice(_) | InodeContent::Socket | InodeContent::Anonymous(_) => {
                return Err(FsError::NoDevice);
            }
        })
    }

    /// Makes a pipe of `caller`, and returns its reading end and its writing end. Both get `flags`, but the reading end
    /// never has [`OpenFlags::DIRECT`].
    pub fn pipe(&self, caller: &FileCredentials, flags: OpenFlags) -> Result<(SharedFile<H>, SharedFile<H>), FsError> {
        let (pipe, [r, w]) = Pipe::ends(self.host.clone())?;
        let attr = NewAttr { mode: 0o600, uid: caller.uid, gid: caller.gid };
        let inode = Inode::new(&self.host, self.nameless, attr, |_| Ok(InodeContent::Fifo(pipe)))?;
        inode.change(self.host.realtime(), |a| a.links = 1);
        let label = numbered(b"pipe:[", inode.ident.number)?;
        let dentry = Dentry::nameless(&label, inode)?;
        let open_as = |flags, s| -> Result<SharedFile<H>, FsError> {
            Ok(OpenFile::new(Opening::new(&self.host)?, dentry.clone().into(), flags, Body::Stream(s), false))
        };
        Ok((open_as((flags - OpenFlags::DIRECT) | OpenFlags::READ, r)?, open_as(flags | OpenFlags::WRITE, w)?))
    }

    /// An open file of `caller` for a stream without a name; listings of open files show `kind`.
    pub fn nameless_stream(
        &self,
        caller: &FileCredentials,
        kind: &'static str,
        stream: Arc<dyn Stream>,
        flags: OpenFlags,
        socket: bool,
    ) -> Result<Arc<OpenFile<H>>, FsError> {
        Ok(self.nameless(caller, kind, socket)?.open(stream, flags))
    }

    /// Makes the inode, the dentry and the memory of a [nameless stream](Self::nameless_stream). The caller supplies
    /// the stream afterwards, by a step that cannot fail. So no error can lose the stream.
    pub fn nameless(
        &self,
        caller: &FileCredentials,
        kind: &'static str,
        socket: bool,
    ) -> Result<NamelessFile<H>, FsError> {
        let attr = NewAttr { mode: if socket { 0o777 } else { 0o600 }, uid: caller.uid, gid: caller.gid };
        let node = if socket { InodeContent::Socket } else { InodeContent::Anonymous(kind) };
        let inode = Inode::new(&self.host, self.nameless, attr, |_| Ok(node))?;
        inode.change(self.host.realtime(), |a| a.links = 1);
        let label = match socket {
            true => numbered(b"socket:[", inode.ident.number)?,
            false => {
                let mut label = Vec::try_copy(b"anon_inode:")?;
                label.try_extend_from_slice(kind.as_bytes())?;
                label
            }
        };
        let dentry = Dentry::nameless(&label, inode)?;
        Ok(NamelessFile { opening: Opening::new(&self.host)?, dentry })
    }

    /// Makes a file of `caller` in memory, with `seals` and without a name in any directory. Listings show `/memfd:name
    /// (deleted)`. [`Seals::EXEC`] means that no process may ever execute it.
    pub fn memory_file(
        &self,
        caller: &FileCredentials,
        name: &[u8],
        flags: OpenFlags,
        seals: Seals,
    ) -> Result<Arc<OpenFile<H>>, FsError> {
        let mode = if seals.contains(Seals::EXEC) { 0o777 & !EXECUTE } else { 0o777 };
        let attr = NewAttr { mode, uid: caller.uid, gid: caller.gid };
        let node = |ident| Inode::regular(&self.host, self.memory, ident, seals);
        let inode = Inode::new(&self.host, self.memory, attr, node)?;
        let mut label = Vec::new();
        for part in [b"/memfd:", name, b" (deleted)"] {
            label.try_extend_from_slice(part)?;
        }
        let dentry = Dentry::nameless(&label, inode)?;
        let opening = Opening::new(&self.host)?;
        let body = self.body(&dentry, flags, &Io::NOW)?;
        // The open file does not count as a writer, as on Linux, because a memory file is executed through its only
        // descriptor.
        Ok(OpenFile::new(opening, dentry.into(), flags | OpenFlags::LARGE, body, false))
    }
}

/// The label of a nameless file: `kind`, the number of an inode, and a bracket. Written without the formatter, which
/// costs several times as much.
fn numbered(kind: &[u8], number: u64) -> Result<Vec<u8>, FsError> {
    let mut digits = Digits::new();
    let digits = digits.decimal(number);
    let mut label = Vec::try_with_capacity(kind.len() + digits.len() + 1)?;
    for part in [kind, digits, b"]"] {
        label.extend_reserved(part);
    }
    Ok(label)
}

/// An open file that has no stream yet.
pub struct NamelessFile<H: Host> {
    opening: Opening<H>,
    dentry: Arc<Dentry<H>>,
}

impl<H: Host> NamelessFile<H> {
    /// The number of its inode.
    pub fn inode(&self) -> u64 {
        self.dentry.inode.ident.number
    }

    /// Opens the file with `stream`.
    pub fn open(self, stream: Arc<dyn Stream>, flags: OpenFlags) -> Arc<OpenFile<H>> {
        OpenFile::new(self.opening, self.dentry.into(), flags, Body::Stream(stream), false)
    }
}
