//! `fd`: a link for each open file.

use super::node::{Jump, number};
use super::process::{About, numbers};
use crate::file::{File, FileHost, Files};
use crate::machine::Machine;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;
use quire_fs::generated::{Entry, Generated, GeneratedDirectory, GeneratedLink};
use quire_fs::inode::NewAttr;
use quire_fs::{FileKind, FsError, OpenFlags};

struct Descriptors<M: Machine>(About<M>);
/// Of one descriptor. What it names is looked up again when the link is used, after the looker was checked.
struct Link<M: Machine>(About<M>, u32);

/// The directory.
pub(super) fn directory<M: Machine>(about: About<M>) -> Arc<dyn GeneratedDirectory<FileHost<M>>> {
    Arc::new(Descriptors(about))
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
    fn lookup(&self, name: &[u8]) -> Option<Entry<FileHost<M>>> {
        let fd = number(name)?;
        let file = files(&self.0)?.peek(fd)?;
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
        Some(Entry { number: self.number(fd), attr, node: Generated::Link(Arc::new(Link(self.0.clone(), fd))) })
    }

    fn admits(&self) -> bool {
        core::ptr::eq(&*self.0.process.linux.current().process, &*self.0.process)
    }

    fn list(&self, after: u64, each: &mut dyn FnMut(u64, &[u8], FileKind, u64) -> bool) {
        const BATCH: usize = 64;
        let Some(files) = files(&self.0) else { return };
        // Cookies are descriptors plus one.
        let mut from = after as u32;
        loop {
            let batch = files.list(from, BATCH);
            let Some((last, _)) = batch.last() else { return };
            let next = *last as u32 + 1;
            for (fd, _) in &batch {
                if !each(*fd as u64 + 1, format!("{fd}").as_bytes(), FileKind::Symlink, self.number(*fd as u32)) {
                    return;
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
        let (mut path, exists) = self.file()?.dentry.path(root)?;
        if !exists {
            path.extend_from_slice(b" (deleted)");
        }
        Ok(path)
    }

    fn jump(&self) -> Option<Jump<M>> {
        Some(self.file().map(|file| file.dentry.clone()))
    }
}
