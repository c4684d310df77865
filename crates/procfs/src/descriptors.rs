//! `fd` has a link for each open file, and `fdinfo` a text about each open file.

use crate::about::{Task, numbers};
use crate::mounts::number_of;
use crate::node::{Directory, Each, Jump, Short, number, put};
use linux_raw_sys::general as raw;
use quire_fs::NewAttr;
use quire_fs::event::Event;
use quire_fs::generated::{Entry, Generated, GeneratedDirectory, GeneratedFile, GeneratedLink, Text};
use quire_fs::{FileKind, FsError, OpenFlags};
use quire_heap::{Arc, Vec, unsize};
use quire_linux::file::inotify::{Notifier, mask_of};
use quire_linux::file::linux_flags;
use quire_linux::file::path::absolute;
use quire_linux::process::pidfd::PidFile;
use quire_linux::signal::signal_file::SignalFile;
use quire_linux_state::file::files::Files;
use quire_linux_state::file::host::{File, FileHost};
use quire_linux_state::machine::Machine;

struct Descriptors<M: Machine>(Task<M>);
/// The link of one descriptor. When the link is used, the reader is checked and the file is looked up again.
struct Link<M: Machine>(Task<M>, u32);

/// The directory `fd`.
pub(super) fn directory<M: Machine>(about: Task<M>) -> Directory<M> {
    Ok(unsize!(Arc::try_new(Descriptors(about))?))
}

fn files<M: Machine>(about: &Task<M>) -> Option<Arc<Files<M>>> {
    let task = about.task()?;
    task.payload().as_ref()?.files.look(|files| files.clone())
}

impl<M: Machine> Descriptors<M> {
    fn number(&self, fd: u32) -> u64 {
        numbers(self.0.tid) + 0x2000 + u64::from(fd)
    }
}

impl<M: Machine> GeneratedDirectory<FileHost<M>> for Descriptors<M> {
    fn lookup(&self, name: &[u8]) -> Result<Option<Entry<FileHost<M>>>, FsError> {
        let Some(fd) = number(name) else { return Ok(None) };
        let Some(file) = files(&self.0).and_then(|files| files.peek(fd)) else { return Ok(None) };
        let flags = file.flags();
        let mut mode = 0o100;
        if flags.contains(OpenFlags::READ) {
            mode |= 0o400;
        }
        if flags.contains(OpenFlags::WRITE) {
            mode |= 0o200;
        }
        let (uid, gid) = self.0.files_owner();
        let attr = NewAttr { mode, uid, gid };
        let node = Generated::Link(unsize!(Arc::try_new(Link(self.0.clone(), fd))?));
        Ok(Some(Entry { number: self.number(fd), attr, node }))
    }

    fn admits(&self) -> bool {
        core::ptr::eq(&*self.0.process.linux.current().process, &*self.0.process)
    }

    fn list(&self, after: u64, each: Each<'_>) -> Result<(), FsError> {
        const BATCH: usize = 64;
        let Some(files) = files(&self.0) else { return Ok(()) };
        // A cookie is a descriptor plus one.
        let mut from = after as u32;
        loop {
            let batch = files.list(from, BATCH)?;
            let Some((last, _)) = batch.last() else { return Ok(()) };
            let next = *last as u32 + 1;
            for (fd, _) in &batch {
                let name = Short::new(format_args!("{fd}"));
                if !each(*fd as u64 + 1, name.bytes(), FileKind::Symlink, self.number(*fd as u32)) {
                    return Ok(());
                }
            }
            from = next;
        }
    }
}

impl<M: Machine> Link<M> {
    fn file(&self) -> Result<Arc<File<M>>, FsError> {
        self.0.taken(|_| files(&self.0).and_then(|files| files.peek(self.1)).ok_or(FsError::NotFound))
    }
}

impl<M: Machine> GeneratedLink<FileHost<M>> for Link<M> {
    fn target(&self) -> Result<Vec<u8>, FsError> {
        let root = self.0.process.linux.files.vfs().root();
        absolute(root, &self.file()?.dentry)
    }

    fn jump(&self) -> Option<Jump<M>> {
        Some(self.file().map(|file| file.dentry.clone()))
    }
}

/// The directory `fdinfo`.
struct Infos<M: Machine>(Descriptors<M>);
/// The text about one descriptor. Its file is looked up when the text is read.
struct Info<M: Machine>(Link<M>);

/// The directory `fdinfo`, for readers with access to the process.
pub(super) fn infos<M: Machine>(about: Task<M>) -> Directory<M> {
    Ok(unsize!(Arc::try_new(Infos(Descriptors(about)))?))
}

impl<M: Machine> GeneratedDirectory<FileHost<M>> for Infos<M> {
    fn open(&self) -> Result<(), FsError> {
        self.0.0.look().map(drop)
    }

    fn lookup(&self, name: &[u8]) -> Result<Option<Entry<FileHost<M>>>, FsError> {
        let about = &self.0.0;
        about.look()?;
        let Some(fd) = number(name) else { return Ok(None) };
        if files(about).and_then(|files| files.peek(fd)).is_none() {
            return Ok(None);
        }
        let (uid, gid) = about.files_owner();
        let node = Generated::File(unsize!(Arc::try_new(Info(Link(about.clone(), fd)))?));
        Ok(Some(Entry { number: self.0.number(fd) + INFOS, attr: NewAttr { mode: 0o444, uid, gid }, node }))
    }

    fn list(&self, after: u64, each: Each<'_>) -> Result<(), FsError> {
        self.0.0.look()?;
        let mut text = |cookie, name: &[u8], _, number| each(cookie, name, FileKind::Regular, number + INFOS);
        self.0.list(after, &mut text)
    }
}

/// The device number of a file system as Linux stores it in the kernel: the minor number has twenty bits.
fn kernel_device(device: u64) -> u64 {
    (device >> 8) << 20 | device & 0xff
}

/// The difference between the inode numbers of a text and its link. It is larger than all other inode numbers of a
/// process's files.
const INFOS: u64 = 1 << 61;

impl<M: Machine> GeneratedFile for Info<M> {
    fn text(&self, out: &mut Text) -> Result<(), FsError> {
        let Link(about, fd) = &self.0;
        let (file, closes) = about.taken(|_| {
            let files = files(about).ok_or(FsError::NotFound)?;
            let file = files.peek(*fd).ok_or(FsError::NotFound)?;
            Ok((file, files.closes_on_exec(*fd).unwrap_or(false)))
        })?;
        let flags = linux_flags(file.flags()) | if closes { raw::O_CLOEXEC } else { 0 };
        let vfs = about.process.linux.files.vfs();
        put!(out, "pos:\t{}\nflags:\t0{flags:o}\n", file.position())?;
        put!(out, "mnt_id:\t{}\nino:\t{}\n", number_of(vfs, &file.dentry), file.dentry.inode.ident.number)?;
        if let Some(PidFile(process)) = file.stream_as::<PidFile<M>>() {
            // As on Linux, the pid of a reaped process is shown as -1.
            let pid = if about.process.linux.ids.process(process.pid).is_some() { process.pid as i32 } else { -1 };
            put!(out, "Pid:\t{pid}\nNSpid:\t{pid}\n")?;
        } else if let Some(event) = file.stream_as::<Event>() {
            put!(out, "eventfd-count: {:16x}\n", event.count())?;
            put!(out, "eventfd-semaphore: {}\n", u8::from(event.is_semaphore()))?;
        } else if let Some(signals) = file.stream_as::<SignalFile<M>>() {
            put!(out, "sigmask:\t{:016x}\n", signals.wanted().0)?;
        } else if let Some(notifier) = file.stream_as::<Notifier>() {
            for watch in notifier.watches()? {
                let (number, device) = (watch.ident.number, kernel_device(watch.ident.device));
                put!(out, "inotify wd:{:x} ino:{number:x} sdev:{device:x} ", watch.id)?;
                // Linux adds a file handle here. Quire's files have no handles.
                put!(out, "mask:{:x} ignored_mask:0 \n", mask_of(&watch))?;
            }
        }
        Ok(())
    }
}
