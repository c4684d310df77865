//! Times of files that programs store into through mappings.

use crate::test_host::TestHost;
use crate::tree::attr::Timestamp;
use crate::{Limits, OpenFlags, Vfs};

use crate::Io;

fn at(seconds: i64) -> Timestamp {
    Timestamp { seconds, nanos: 0 }
}

#[test]
fn a_store_through_a_mapping_changes_both_times_until_they_are_set() {
    TestHost.be_cpu();
    let vfs = Vfs::new(TestHost, Limits { inodes: Some(20), pages: Some(100) }).expect("a file system");
    let file = vfs
        .open(&vfs.view(), vfs.root(), b"/file", OpenFlags::WRITE | OpenFlags::CREATE, 0o644, &Io::NOW)
        .expect("a file");
    let inode = &file.dentry.inode;
    let object = &inode.file().expect("a regular file").object;
    let store = |seconds| *object.disk().stored.lock().unwrap() = Some(at(seconds));
    let born = inode.attr().born;
    let times = || {
        let attr = inode.status().attr;
        assert_eq!((attr.accessed, attr.born), (born, born), "the others stay");
        (attr.modified.seconds, attr.changed.seconds)
    };
    store(2_000_000);
    assert_eq!(times(), (2_000_000, 2_000_000));
    // A change of attributes keeps the time of the store, and a write replaces it.
    inode.change(at(2_000_001), |a| a.mode = 0o600);
    assert_eq!(times(), (2_000_000, 2_000_001));
    inode.touch(at(2_000_002));
    assert_eq!(times(), (2_000_002, 2_000_002));
    store(2_000_003);
    assert_eq!(times(), (2_000_003, 2_000_003));
    // An explicit time replaces earlier stores, whether it is early or late, and later stores replace it.
    for (explicit, now) in [(5, 2_000_010), (9_000_000, 2_000_020)] {
        inode.set_times(at(now), None, Some(at(explicit)));
        assert_eq!(times(), (explicit, now));
        store(now + 1);
        assert_eq!(times(), (now + 1, now + 1));
        inode.change(at(now + 2), |_| ());
        assert_eq!(times(), (now + 1, now + 2));
    }
    // An explicit time of access keeps the time of the store.
    store(2_000_030);
    inode.set_times(at(2_000_031), Some(born), None);
    assert_eq!(times(), (2_000_030, 2_000_031));
}
