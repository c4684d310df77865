//! The target for cpio archives. A damaged archive must give an error or do no harm, and the unpacked files must be
//! readable.

use quire_fs::cpio::Members;
use quire_fs::test_host::TestHost;
use quire_fs::{Io, Limits, OpenFlags, SliceSink, Vfs};

/// The most inodes of the file tree.
const INODES: u64 = 200;
/// The most pages of the file tree.
const PAGES: u64 = 50;

/// Unpacks the bytes as an archive.
pub fn run(data: &[u8]) {
    let mut last = None;
    let mut members = 0;
    for member in Members::new(data) {
        let Ok(member) = member else { break };
        assert!(last.is_none_or(|at| at < member.offset) && member.offset < data.len());
        assert!(!member.name.contains(&0) && member.data.len() <= data.len());
        last = Some(member.offset);
        members += 1;
    }
    let vfs = Vfs::new(TestHost, Limits { inodes: Some(INODES), pages: Some(PAGES) }).expect("a tree of files");
    let done = vfs.unpack(&mut &*data);
    assert!(done.is_err() || done.is_ok_and(|d| d.members == members));
    // The tree is still consistent, and every path of a file leads to readable contents.
    let view = vfs.view();
    assert!(vfs.find(&view, vfs.root(), b"/.", true).is_ok());
    for member in Members::new(data).take(members).flatten() {
        let path = [b"/", member.name].concat();
        let Ok(found) = vfs.find(&view, vfs.root(), &path, true) else { continue };
        if found.inode.file().is_none() {
            continue;
        }
        let Ok(file) = vfs.open(&view, vfs.root(), &path, OpenFlags::READ, 0, &Io::NOW) else { continue };
        let mut bytes = vec![0; data.len() + 1];
        let got = file.read(&Io::NOW, &mut SliceSink::new(&mut bytes)).expect("a file of the tree can be read");
        assert!(got <= data.len());
    }
}
