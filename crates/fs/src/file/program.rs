//! The reference of an exec, and then of a process, to the file of its program.

use super::text::RUNS;
use crate::host::Host;
use crate::tree::dentry::Dentry;
use crate::{FsError, InodeContent};
use core::ops::Deref;
use quire_heap::Arc;
use quire_lookup::Hold;

/// A regular file that no process can open for writing while this exists.
pub struct Program<H: Host>(Hold<Dentry<H>>);

impl<H: Host> Program<H> {
    /// Begins to use the file of `dentry` as a program. Fails with [`FsError::TextBusy`] if it is open for writing, and
    /// with [`FsError::Denied`] if it is not a regular file.
    pub fn new(dentry: Hold<Dentry<H>>) -> Result<Self, FsError> {
        let InodeContent::File(file) = &dentry.inode.node else { return Err(FsError::Denied) };
        file.writing.text.enter(RUNS)?;
        Ok(Program(dentry))
    }
}

impl<H: Host> Deref for Program<H> {
    type Target = Arc<Dentry<H>>;
    fn deref(&self) -> &Arc<Dentry<H>> {
        &self.0
    }
}

impl<H: Host> Drop for Program<H> {
    fn drop(&mut self) {
        if let InodeContent::File(file) = &self.0.inode.node {
            file.writing.text.leave(RUNS);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::test_host::{TestHost, write_file};
    use crate::{FileCredentials, Io, Limits, OpenFile, OpenFlags, Vfs};

    fn tree() -> Arc<Vfs<TestHost>> {
        let vfs = Vfs::new(TestHost, Limits { inodes: Some(20), pages: Some(20) }).unwrap();
        write_file(&vfs, "/p", b"text").unwrap();
        vfs
    }

    fn open(vfs: &Vfs<TestHost>, flags: OpenFlags) -> Result<Arc<OpenFile<TestHost>>, FsError> {
        vfs.open(&vfs.view(), vfs.root(), b"/p", flags, 0, &Io::NOW)
    }

    fn program(vfs: &Vfs<TestHost>) -> Result<Program<TestHost>, FsError> {
        Program::new(vfs.find(&vfs.view(), vfs.root(), b"/p", true).unwrap())
    }

    const WRITE: OpenFlags = OpenFlags::WRITE;
    const BOTH: OpenFlags = WRITE.union(OpenFlags::READ);

    #[test]
    fn a_running_program_and_a_writer_exclude_each_other() {
        let vfs = tree();
        let busy = Some(FsError::TextBusy);
        let (first, second) = (program(&vfs).unwrap(), program(&vfs).unwrap());
        for flags in [WRITE, BOTH, WRITE | OpenFlags::TRUNCATE, OpenFlags::READ | OpenFlags::TRUNCATE] {
            assert_eq!(open(&vfs, flags).err(), busy, "{flags:?}");
        }
        let inode = first.inode.clone();
        assert_eq!(inode.truncate_by_name(&TestHost, 0, &Io::NOW).err(), busy);
        assert_eq!(inode.status().size, 4, "a refused truncation changes nothing");
        drop(first);
        assert_eq!(open(&vfs, WRITE).err(), busy);
        drop(second);
        let writers = [open(&vfs, WRITE).unwrap(), open(&vfs, BOTH).unwrap()];
        drop(open(&vfs, OpenFlags::READ).unwrap());
        drop(open(&vfs, OpenFlags::PATH).unwrap());
        for writer in writers {
            assert_eq!(program(&vfs).err().map(|_| ()), Some(()));
            drop(writer);
        }
        let reader = open(&vfs, OpenFlags::READ).unwrap();
        let path = open(&vfs, OpenFlags::PATH).unwrap();
        let running = program(&vfs).unwrap();
        drop((reader, path));
        assert_eq!(open(&vfs, WRITE).err(), busy);
        drop(running);
        inode.truncate_by_name(&TestHost, 0, &Io::NOW).unwrap();
        drop(program(&vfs).unwrap());
    }

    #[test]
    fn an_open_that_fails_leaves_no_writer() {
        let vfs = tree();
        let file = vfs.find(&vfs.view(), vfs.root(), b"/p", true).unwrap();
        vfs.set_mode(&FileCredentials::ROOT, &file.inode, 0o500).unwrap();
        let mut view = vfs.view();
        view.credentials = FileCredentials { uid: 7, gid: 8, ..FileCredentials::default() };
        assert_eq!(vfs.open(&view, vfs.root(), b"/p", WRITE, 0, &Io::NOW).err(), Some(FsError::Denied));
        drop(program(&vfs).unwrap());
    }

    #[test]
    fn a_memory_files_first_descriptor_is_no_writer() {
        let vfs = tree();
        let memory = vfs.memory_file(&FileCredentials::ROOT, b"m", BOTH, crate::Seals::SEAL).unwrap();
        let running = Program::new(Arc::clone(&memory.dentry).into()).unwrap();
        memory.write(&Io::NOW, &mut crate::SliceSource::new(b"new text")).unwrap();
        let again = || vfs.open_dentry(Arc::clone(&memory.dentry), WRITE, &Io::NOW);
        assert_eq!(again().err(), Some(FsError::TextBusy));
        drop(running);
        let writer = again().unwrap();
        assert_eq!(Program::new(Arc::clone(&memory.dentry).into()).err().map(|_| ()), Some(()));
        drop(writer);
    }

    /// Threads race to open the file for writing and to execute it. They never do both at once, and at the end both
    /// counts are zero.
    #[test]
    fn racing_writers_and_programs_exclude_each_other() {
        let vfs = tree();
        let inside = std::sync::atomic::AtomicI64::new(0);
        std::thread::scope(|scope| {
            for n in 0..4 {
                let (vfs, inside) = (&vfs, &inside);
                scope.spawn(move || {
                    vfs.host().be_cpu();
                    for _ in 0..2000 {
                        let kind = if n % 2 == 0 { 1 } else { -1 };
                        let (writer, running) =
                            (open(vfs, WRITE).ok().filter(|_| n % 2 == 0), (n % 2 != 0).then(|| program(vfs)));
                        let got = writer.is_some() || running.as_ref().is_some_and(Result::is_ok);
                        if got {
                            let before = inside.fetch_add(kind, std::sync::atomic::Ordering::SeqCst);
                            assert!(before * kind >= 0, "a writer and a program at once");
                            inside.fetch_sub(kind, std::sync::atomic::Ordering::SeqCst);
                        }
                    }
                });
            }
        });
        drop(open(&vfs, WRITE).unwrap());
        drop(program(&vfs).unwrap());
    }
}
