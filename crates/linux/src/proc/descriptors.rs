//! `fd`: a link for each open file.

use super::node::{Directory, Each, Jump, Short, number};
use super::process::{About, numbers};
use crate::file::path::absolute;
use crate::file::{File, FileHost, Files};
use crate::machine::Machine;
use quire_fs::NewAttr;
use quire_fs::generated::{Entry, Generated, GeneratedDirectory, GeneratedLink};
use quire_fs::{FileKind, FsError, OpenFlags};
use quire_heap::{Arc, Vec, unsize};

struct Descriptors<M: Machine>(About<M>);
/// The link of one descriptor. Its file is looked up again when the link is used, after the reader was checked.
struct Link<M: Machine>(About<M>, u32);

/// The directory.
pub(super) fn directory<M: Machine>(about: About<M>) -> Directory<M> {
    Ok(unsize!(Arc::try_new(Descriptors(about))?))
}

fn files<M: Machine>(about: &About<M>) -> Option<Arc<Files<M>>> {
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
        // Cookies are descriptors plus one.
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
