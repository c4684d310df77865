//! Seals: marks that forbid a kind of change of a file in memory. Seals are added, never removed.
//!
//! A file is sealed against writing only while no mapping can store into it. One count decides this, as one count
//! decides between writers and programs in [`text`](crate::file::text). Above zero, it is the number of shared mappings
//! that may store, and of map operations that are about to make one. Below zero, no such mapping can be made. So if a
//! seal and a mapping race, one of them is refused. Files that cannot be sealed have no count.

use crate::FsError;
use quire_sync::atomic::{AtomicBool, AtomicU64, Ordering};

bitflags::bitflags! {
    /// Linux's `F_SEAL_` bits.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct Seals: u32 {
        /// No further seal can be added.
        const SEAL = 1;
        /// The file does not shrink.
        const SHRINK = 2;
        /// The file does not grow.
        const GROW = 4;
        /// The file's bytes do not change.
        const WRITE = 8;
        /// No write and no new mapping changes the file's bytes.
        const FUTURE_WRITE = 16;
        /// The file's execute bits do not change.
        const EXEC = 32;
    }
}

impl Seals {
    /// The seals that forbid writes.
    pub const WRITES: Seals = Seals::WRITE.union(Seals::FUTURE_WRITE);
}

/// The count of a file for which mappings that may store are denied.
const DENIED: i64 = -1;

/// The number of mappings that may store into a file (see the module), and whether seals forbid writes.
pub(crate) struct Stores(AtomicU64, AtomicBool);

impl Stores {
    pub fn new() -> Self {
        Stores(AtomicU64::new(0), AtomicBool::new(false))
    }

    /// Notes that seals forbid writes from now on. Older mappings may still store.
    pub fn forbid_writes(&self) {
        self.1.store(true, Ordering::SeqCst);
    }

    /// Begins a change of the file through a mapping that may store, by an operation that is not a store. The change is
    /// counted until [`leave`](Self::leave). Returns false if seals forbid the change.
    pub fn begin_change(&self) -> bool {
        if self.enter().is_err() {
            return false;
        }
        let forbidden = self.1.load(Ordering::SeqCst);
        if forbidden {
            self.leave();
        }
        !forbidden
    }

    /// Adds one to the count, unless mappings that may store are denied.
    fn enter(&self) -> Result<(), FsError> {
        let more = |n: u64| (n as i64 != DENIED).then(|| n + 1);
        self.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).map(drop).map_err(|_| FsError::NotPermitted)
    }

    /// Adds one to a count above zero: a counted mapping is copied or split, or a counted map operation makes its
    /// mapping.
    pub fn add(&self) {
        let before = self.0.fetch_add(1, Ordering::AcqRel) as i64;
        debug_assert!(before > 0, "no mapping that may store was counted before");
    }

    /// Subtracts one from the count.
    pub fn leave(&self) {
        let before = self.0.fetch_sub(1, Ordering::AcqRel) as i64;
        debug_assert!(before > 0, "a count was removed that was not added");
    }

    /// Denies mappings that may store from now on. Fails with [`FsError::Busy`] if such a mapping exists.
    pub fn deny(&self) -> Result<(), FsError> {
        let denied = self.0.compare_exchange(0, DENIED as u64, Ordering::AcqRel, Ordering::Relaxed);
        denied.map(drop).map_err(|_| FsError::Busy)
    }
}

/// The announcement of a shared mapping that may store into a file. While it exists, the file cannot be sealed against
/// writing.
#[must_use]
pub struct ToStore<'a>(&'a Stores);

impl<'a> ToStore<'a> {
    /// Announces a mapping that may store. Fails with [`FsError::NotPermitted`] if the file is sealed.
    pub(crate) fn announce(stores: &'a Stores) -> Result<Self, FsError> {
        stores.enter()?;
        Ok(ToStore(stores))
    }
}

impl Drop for ToStore<'_> {
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::test_host::TestHost;
    use crate::{FileCredentials, Io, Limits, OpenFile, OpenFlags, SliceSource, Vfs};
    use quire_heap::Arc;

    fn tree() -> Arc<Vfs<TestHost>> {
        Vfs::new(TestHost, Limits { inodes: Some(20), pages: Some(20) }).unwrap()
    }

    fn file(vfs: &Vfs<TestHost>, seals: Seals) -> Arc<OpenFile<TestHost>> {
        vfs.memory_file(&FileCredentials::ROOT, b"m", OpenFlags::READ | OpenFlags::WRITE, seals).unwrap()
    }

    fn write(file: &OpenFile<TestHost>, at: u64, len: usize) -> Result<usize, FsError> {
        file.write_at(&Io::NOW, at, &mut SliceSource::new(&[1; 20_000][..len]))
    }

    #[test]
    fn a_file_without_seals_refuses_them() {
        let vfs = tree();
        let file = file(&vfs, Seals::SEAL);
        assert_eq!(file.dentry.inode.add_seals(Seals::GROW), Err(FsError::NotPermitted));
        assert_eq!(file.dentry.inode.seals(), Some(Seals::SEAL));
        assert_eq!(vfs.root().inode.seals(), None);
        assert_eq!(vfs.root().inode.add_seals(Seals::GROW), Err(FsError::Invalid));
    }

    #[test]
    fn a_file_keeps_its_size() {
        let vfs = tree();
        let file = file(&vfs, Seals::empty());
        let inode = &file.dentry.inode;
        file.truncate(&Io::NOW, 10_000).unwrap();
        inode.add_seals(Seals::GROW).unwrap();
        let denied = Err(FsError::NotPermitted);
        assert_eq!(file.truncate(&Io::NOW, 10_001), denied);
        assert_eq!(file.allocate(&Io::NOW, 0, 10_001, true), denied);
        assert_eq!(file.allocate(&Io::NOW, 0, 10_001, false), denied);
        // As on Linux, a whole page that would reach beyond the end is skipped. So nothing is left to write here.
        assert_eq!(write(&file, 9_000, 1_001), Err(FsError::NotPermitted));
        // A limit cuts the write first.
        let limited = |most| file.write_at(&Io { most, ..Io::NOW }, 9_000, &mut SliceSource::new(&[1; 1_001]));
        assert_eq!(limited(9_500), Ok(500));
        assert_eq!(limited(10_001), Err(FsError::NotPermitted));
        assert_eq!(write(&file, 100, 20_000), Ok(8192 - 100));
        assert_eq!(write(&file, 0, 10_000), Ok(10_000));
        assert_eq!(write(&file, 10_000, 0), Ok(0));
        file.truncate(&Io::NOW, 9_000).unwrap();
        inode.add_seals(Seals::SHRINK).unwrap();
        assert_eq!(file.truncate(&Io::NOW, 8_999), denied);
        assert_eq!(inode.truncate_by_name(&TestHost, 0, &Io::NOW), denied);
        file.truncate(&Io::NOW, 9_000).unwrap();
        assert_eq!(inode.status().size, 9_000);
    }

    #[test]
    fn a_file_sealed_against_writes_stays_unchanged() {
        for seal in [Seals::WRITE, Seals::FUTURE_WRITE] {
            let vfs = tree();
            let file = file(&vfs, Seals::empty());
            file.truncate(&Io::NOW, 10_000).unwrap();
            file.dentry.inode.add_seals(seal | Seals::SEAL).unwrap();
            assert_eq!(file.dentry.inode.add_seals(Seals::GROW), Err(FsError::NotPermitted));
            assert_eq!(write(&file, 0, 1), Err(FsError::NotPermitted));
            assert_eq!(file.punch(&Io::NOW, 0, 1), Err(FsError::NotPermitted));
            file.allocate(&Io::NOW, 0, 20_000, false).unwrap();
            file.truncate(&Io::NOW, 100).unwrap();
        }
    }

    #[test]
    fn execute_bits_stay() {
        let vfs = tree();
        let plain = file(&vfs, Seals::empty());
        vfs.set_mode(&FileCredentials::ROOT, &plain.dentry.inode, 0o644).unwrap();
        plain.dentry.inode.add_seals(Seals::EXEC).unwrap();
        assert_eq!(plain.dentry.inode.seals(), Some(Seals::EXEC));
        assert_eq!(vfs.set_mode(&FileCredentials::ROOT, &plain.dentry.inode, 0o645), Err(FsError::NotPermitted));
        vfs.set_mode(&FileCredentials::ROOT, &plain.dentry.inode, 0o600).unwrap();
        // A file sealed as executable is sealed against writes too.
        let program = file(&vfs, Seals::empty());
        program.dentry.inode.add_seals(Seals::EXEC).unwrap();
        assert_eq!(program.dentry.inode.seals(), Some(Seals::all() - Seals::SEAL));
        assert_eq!(vfs.set_mode(&FileCredentials::ROOT, &program.dentry.inode, 0o644), Err(FsError::NotPermitted));
    }

    /// Threads race to announce mappings and to seal files. A file is never sealed while a mapping may store into it.
    #[test]
    fn a_racing_seal_and_mapping_exclude_each_other() {
        let vfs = tree();
        for _ in 0..500 {
            let file = file(&vfs, Seals::empty());
            let (inode, both) = (&file.dentry.inode, std::sync::Barrier::new(2));
            let (sealed, mapped) = std::thread::scope(|scope| {
                let (vfs, both) = (&vfs, &both);
                let sealer = scope.spawn(move || {
                    vfs.host().be_cpu();
                    both.wait();
                    inode.add_seals(Seals::WRITE).is_ok()
                });
                let mapper = scope.spawn(move || {
                    vfs.host().be_cpu();
                    both.wait();
                    let right = inode.file().unwrap().to_store().ok().flatten();
                    // This counts the mapping itself.
                    right.inspect(|_| inode.file().unwrap().origin.note_stores(true)).is_some()
                });
                (sealer.join().unwrap(), mapper.join().unwrap())
            });
            assert!(!(sealed && mapped), "a mapping may store into a sealed file");
            if mapped {
                assert_eq!(inode.add_seals(Seals::WRITE), Err(FsError::Busy));
                inode.file().unwrap().origin.note_stores(false);
                inode.add_seals(Seals::WRITE).unwrap();
            }
            assert!(inode.file().unwrap().to_store().is_err());
        }
    }
}
