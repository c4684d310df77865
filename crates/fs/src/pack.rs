//! Packing a part of the tree into a cpio archive, in the format that [`cpio`](crate::cpio) reads.

use crate::host::{FileObject, Host};
use crate::stream::transfer::Sink;
use crate::tree::dentry::Dentry;
use crate::tree::inode::InodeContent;
use crate::vfs::Vfs;
use crate::{DeviceNumber, FileKind, FsError, Inode};
use core::fmt::Write as _;
use quire_heap::{Arc, Vec};

/// The receiver of the archive's bytes, which come in order.
pub type Out<'a> = &'a mut dyn FnMut(&[u8]);

/// The name of an archive's last member.
const TRAILER: &[u8] = b"TRAILER!!!";
/// The number of directory entries that are read at a time.
const BATCH: usize = 32;

/// A directory in progress: the cookie of its next entry, and the length of its path.
struct Open<H: Host> {
    directory: Arc<Dentry<H>>,
    cookie: u64,
    len: usize,
}

impl<H: Host> Vfs<H> {
    /// Writes the node `top` as the member `name`, and the nodes below it as `name/...`. A directory comes before its
    /// entries. If a file has several names, each of their members has the contents. File systems mounted below `top`
    /// are left out.
    ///
    /// The tree may change while it is packed. Then an entry that is added late may be missing, and a file that shrinks
    /// is padded with zeroes. Fails with [`FsError::TooLarge`] for a file of 4 GiB or more, which the format cannot
    /// hold.
    pub fn pack(&self, top: &Arc<Dentry<H>>, name: &[u8], out: Out<'_>) -> Result<(), FsError> {
        let mut path = Vec::try_copy(name)?;
        let mut open: Vec<Open<H>> = Vec::new();
        self.pack_one(top, &path, out)?;
        if top.inode.is_directory() {
            open.try_push(Open { directory: top.clone(), cookie: 0, len: path.len() })?;
        }
        while let Some(last) = open.last_mut() {
            path.truncate(last.len);
            let InodeContent::Directory(d) = &last.directory.inode.node else {
                open.pop();
                continue;
            };
            // After its first directory, the rest of a batch is read again later. So `open` keeps only the directories
            // on the path to the present one.
            let batch = d.batch(last.cookie, BATCH)?;
            if batch.is_empty() {
                open.pop();
                continue;
            }
            let mut below = None;
            for (next, name, dentry) in &batch {
                last.cookie = *next;
                path.truncate(last.len);
                path.try_extend_from_slice(b"/")?;
                path.try_extend_from_slice(name)?;
                self.pack_one(dentry, &path, out)?;
                if dentry.inode.is_directory() {
                    below = Some(Open { directory: dentry.clone(), cookie: 0, len: path.len() });
                    break;
                }
            }
            if let Some(below) = below {
                open.try_push(below)?;
            }
        }
        Ok(())
    }

    fn pack_one(&self, dentry: &Dentry<H>, name: &[u8], out: Out<'_>) -> Result<(), FsError> {
        let inode = &dentry.inode;
        match &inode.node {
            InodeContent::File(file) => {
                let size = file.object.size();
                header(inode, name, u32::try_from(size).map_err(|_| FsError::TooLarge)?, out)?;
                let mut left = Left { out: &mut *out, bytes: size };
                let (mut at, mut result) = (0, Ok(()));
                while at < size {
                    match file.object.read(at, &mut left) {
                        Ok(0) => break,
                        Ok(n) => at += n as u64,
                        Err(e) => {
                            result = Err(e);
                            break;
                        }
                    }
                }
                // The member must have the size in its header, also if a read fails. So the rest is filled with zeroes.
                let Left { mut bytes, .. } = left;
                bytes += pad(size);
                zeroes(bytes, out);
                return result;
            }
            InodeContent::Symlink(target) => {
                header(inode, name, target.len() as u32, out)?;
                out(target);
                zeroes(pad(target.len() as u64), out);
            }
            InodeContent::Generated(_) | InodeContent::Anonymous(_) => {}
            _ => header(inode, name, 0, out)?,
        }
        Ok(())
    }
}

/// Writes the end of an archive.
pub fn pack_end(out: Out<'_>) -> Result<(), FsError> {
    member([0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0], TRAILER, out)
}

/// Passes a file's bytes on, up to the size in its header.
struct Left<'a, 'o> {
    out: &'a mut (dyn FnMut(&[u8]) + 'o),
    bytes: u64,
}

impl Sink for Left<'_, '_> {
    fn put(&mut self, bytes: &[u8]) -> Result<usize, FsError> {
        let n = bytes.len().min(self.room());
        (self.out)(&bytes[..n]);
        self.bytes -= n as u64;
        Ok(n)
    }
    fn room(&self) -> usize {
        usize::try_from(self.bytes).unwrap_or(usize::MAX)
    }
}

fn pad(len: u64) -> u64 {
    len.next_multiple_of(4) - len
}

fn zeroes(mut count: u64, out: Out<'_>) {
    const ZEROES: [u8; 512] = [0; 512];
    while count > 0 {
        let n = count.min(ZEROES.len() as u64);
        out(&ZEROES[..n as usize]);
        count -= n;
    }
}

fn header<H: Host>(inode: &Inode<H>, name: &[u8], size: u32, out: Out<'_>) -> Result<(), FsError> {
    let attr = inode.attr();
    let kind: u32 = match inode.kind() {
        FileKind::Fifo => 0o1,
        FileKind::CharDevice => 0o2,
        FileKind::Directory => 0o4,
        FileKind::BlockDevice => 0o6,
        FileKind::Symlink => 0o12,
        FileKind::Socket => 0o14,
        _ => 0o10,
    };
    let node = match &inode.node {
        InodeContent::CharDevice(n) | InodeContent::BlockDevice(n) => *n,
        _ => DeviceNumber { major: 0, minor: 0 },
    };
    let mode = kind << 12 | u32::from(attr.mode);
    let time = u32::try_from(attr.modified.seconds.max(0)).unwrap_or(u32::MAX);
    // Each member is a file of its own, so all have the inode number 0 and one link.
    let nanos = attr.modified.nanos;
    member([0, mode, attr.uid, attr.gid, 1, time, size, 0, 0, node.major, node.minor, 0, nanos], name, out)
}

/// Writes a header and its name. Fills in the length of the name.
fn member(mut fields: [u32; 13], name: &[u8], out: Out<'_>) -> Result<(), FsError> {
    /// A header's text.
    struct Text([u8; 110], usize);
    impl core::fmt::Write for Text {
        fn write_str(&mut self, s: &str) -> core::fmt::Result {
            let room = self.0.get_mut(self.1..self.1 + s.len()).ok_or(core::fmt::Error)?;
            room.copy_from_slice(s.as_bytes());
            self.1 += s.len();
            Ok(())
        }
    }
    fields[11] = u32::try_from(name.len() + 1).map_err(|_| FsError::NameTooLong)?;
    let mut text = Text([0; 110], 0);
    let mut fits = text.write_str("070701");
    for field in fields {
        fits = fits.and_then(|()| write!(text, "{field:08x}"));
    }
    fits.map_err(|_| FsError::Overflow)?;
    out(&text.0);
    out(name);
    let len = (text.0.len() + name.len() + 1) as u64;
    zeroes(1 + pad(len), out);
    Ok(())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::Limits;
    use crate::cpio::tests::add;
    use crate::test_host::{TestHost, read_file};
    use std::format;
    use std::vec::Vec;

    fn vfs() -> Arc<Vfs<TestHost>> {
        Vfs::new(TestHost, Limits { inodes: Some(1000), pages: Some(1 << 20) }).unwrap()
    }

    fn packed(from: &Vfs<TestHost>, top: &str) -> Vec<u8> {
        let mut bytes = Vec::new();
        let top = from.find(&from.view(), from.root(), top.as_bytes(), false).unwrap();
        from.pack(&top, b"top", &mut |part| bytes.extend_from_slice(part)).unwrap();
        pack_end(&mut |part| bytes.extend_from_slice(part)).unwrap();
        bytes
    }

    #[test]
    fn a_packed_tree_unpacks_to_the_same() {
        let mut archive = Vec::new();
        add(&mut archive, "d", 0o40700, 1, 2, b"");
        add(&mut archive, "d/e", 0o40755, 2, 2, b"");
        for i in 0..100 {
            add(&mut archive, &format!("d/f{i}"), 0o100640, 9 + i, 1, &vec![i as u8; i as usize * 137]);
        }
        add(&mut archive, "d/e/l", 0o120777, 3, 1, b"../f3");
        add(&mut archive, "d/fifo", 0o10644, 4, 1, b"");
        add(&mut archive, "TRAILER!!!", 0, 0, 1, b"");
        let (first, second) = (vfs(), vfs());
        first.unpack(&mut &archive[..]).unwrap();
        let once = packed(&first, "/d");
        assert_eq!(second.unpack(&mut &once[..]).unwrap().members, 1 + 1 + 100 + 1 + 1);
        assert_eq!(read_file(&second, "/top/f99").unwrap(), vec![99; 99 * 137]);
        assert_eq!(read_file(&second, "/top/e/l").unwrap(), vec![3; 3 * 137]);
        for name in ["/top", "/top/f0", "/top/f57", "/top/fifo", "/top/e/l"] {
            let old = first.find(&first.view(), first.root(), name.replace("/top", "/d").as_bytes(), false).unwrap();
            let new = second.find(&second.view(), second.root(), name.as_bytes(), false).unwrap();
            let seen = |d: &Dentry<TestHost>| {
                let a = d.inode.attr();
                (d.inode.kind(), a.mode, a.uid, a.gid, a.modified)
            };
            assert_eq!(seen(&new), seen(&old), "{name}");
        }
        // Packing the unpacked tree gives the same archive.
        assert_eq!(packed(&second, "/top"), once);
    }

    #[test]
    fn one_file_and_an_empty_directory_are_packed() {
        let mut archive = Vec::new();
        add(&mut archive, "f", 0o100600, 1, 1, b"abc");
        add(&mut archive, "empty", 0o40700, 2, 1, b"");
        add(&mut archive, "TRAILER!!!", 0, 0, 1, b"");
        for (name, content) in [("/f", Some(b"abc".to_vec())), ("/empty", None)] {
            let (first, second) = (vfs(), vfs());
            first.unpack(&mut &archive[..]).unwrap();
            assert_eq!(second.unpack(&mut &packed(&first, name)[..]).unwrap().members, 1);
            assert_eq!(read_file(&second, "/top").ok(), content);
        }
    }
}
