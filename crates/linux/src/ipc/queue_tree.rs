//! The file system `mqueue`: a directory of all POSIX message queues.

use core::fmt::{self, Write};
use quire_fs::generated::{Entry, Generated, GeneratedDirectory, GeneratedFile, Text};
use quire_fs::{FileKind, FsError, NewAttr};
use quire_heap::{Arc, unsize};
use quire_ipc::Error;
use quire_linux_state::file::host::FileHost;
use quire_linux_state::ipc::host::PosixQueue;
use quire_linux_state::{Linux, Machine};

/// The inode number of the directory. The numbers of queues are above it.
const ROOT: u64 = 1;

struct Queues<M: Machine>(&'static Linux<M>);

struct Queue<M: Machine>(Arc<PosixQueue<M>>);

/// Writes the description of a queue, which programs read from its file or from a descriptor.
pub(super) fn describe<M: Machine>(queue: &PosixQueue<M>, out: &mut dyn Write) -> fmt::Result {
    let (bytes, pid) = (queue.filled().1, queue.notified());
    writeln!(out, "QSIZE:{bytes:<10} NOTIFY:{:<5} SIGNO:{:<5} NOTIFY_PID:{pid:<6}", 0, 0)
}

fn failed(e: Error) -> FsError {
    match e {
        Error::NotFound => FsError::NotFound,
        _ => FsError::OutOfMemory,
    }
}

impl<M: Machine> GeneratedFile for Queue<M> {
    fn text(&self, out: &mut Text) -> Result<(), FsError> {
        describe(&self.0, out).map_err(|_| FsError::OutOfMemory)
    }
}

impl<M: Machine> GeneratedDirectory<FileHost<M>> for Queues<M> {
    fn lookup(&self, name: &[u8]) -> Result<Option<Entry<FileHost<M>>>, FsError> {
        let Some(queue) = self.0.ipc.posix.find(name) else { return Ok(None) };
        let (owner, number) = (queue.owner(), ROOT + queue.number());
        let attr = NewAttr { mode: owner.mode as u16, uid: owner.user, gid: owner.group };
        let node = Generated::File(unsize!(Arc::try_new(Queue(queue.clone()))?));
        Ok(Some(Entry { number, attr, node }))
    }

    fn list(&self, after: u64, each: &mut dyn FnMut(u64, &[u8], FileKind, u64) -> bool) -> Result<(), FsError> {
        let mut one = |number, name: &[u8]| each(number, name, FileKind::Regular, ROOT + number);
        self.0.ipc.posix.list(after, &mut one).map_err(failed)
    }

    fn removes(&self) -> bool {
        true
    }

    fn remove(&self, name: &[u8], number: u64) -> Result<(), FsError> {
        self.0.ipc.posix.remove(name, number - ROOT).map_err(failed)
    }
}

/// The root of the file system.
pub fn queue_root<M: Machine>(linux: &'static Linux<M>) -> Result<Arc<dyn GeneratedDirectory<FileHost<M>>>, FsError> {
    Ok(unsize!(Arc::try_new(Queues(linux))?))
}
