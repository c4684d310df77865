//! Unpacking an initial file system from a cpio archive (format "newc", as for Linux's initramfs).
//!
//! In a member without a checksum, the format does not use the checksum field. Quire stores the nanoseconds of the
//! member's time in that field. With seconds alone, a program could take a newer file for a file of the same age.
//!
//! The archive is untrusted: every number is checked, every part must lie inside the archive, and no name leaves the
//! tree.

use crate::host::{FileObject, Host};
use crate::stream::transfer::{SliceSource, Source};
use crate::tree::attr::DeviceNumber;
use crate::tree::attr::Timestamp;
use crate::tree::dentry::Dentry;
use crate::vfs::Vfs;
use crate::vfs::found::{Final, Last};
use crate::vfs::make::Create;
use crate::vfs::view::View;
use crate::vfs::walk::PATH_MAX;
use crate::{FsError, Inode};
use core::fmt;
use quire_heap::{Arc, Map, OutOfMemory, Vec};

/// The error for an archive that was refused. The members before the defect are unpacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CpioError {
    /// The offset in the archive at which the member's header starts, in bytes.
    pub offset: usize,
    /// The defect.
    pub problem: Problem,
}

/// The defects of an archive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Problem {
    /// Not a newc header.
    Magic,
    /// A field is not a hexadecimal number.
    Number,
    /// The archive ends inside a member, or without a trailer.
    Truncated,
    /// An empty or overlong name, or a name outside the tree.
    Name,
    /// A kind of file that does not exist.
    Kind,
    /// The file could not be made.
    File(FsError),
}

impl fmt::Display for CpioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cpio archive, offset {:#x}: ", self.offset)?;
        match self.problem {
            Problem::Magic => f.write_str("not a newc header"),
            Problem::Number => f.write_str("a field is not a hexadecimal number"),
            Problem::Truncated => f.write_str("the archive is cut off"),
            Problem::Name => f.write_str("bad name"),
            Problem::Kind => f.write_str("unknown kind of file"),
            Problem::File(e) => write!(f, "{e}"),
        }
    }
}

impl core::error::Error for CpioError {}

impl From<OutOfMemory> for Problem {
    fn from(e: OutOfMemory) -> Self {
        Problem::File(e.into())
    }
}

impl From<FsError> for Problem {
    fn from(e: FsError) -> Self {
        Problem::File(e)
    }
}

/// The bytes of an archive. The reader gives bytes up as it proceeds, so that their memory can be used again.
pub trait Archive {
    /// The bytes that are left.
    fn rest(&self) -> &[u8];
    /// Gives up the first `bytes` bytes of those that [`rest`](Self::rest) returns.
    fn give_up(&mut self, bytes: usize);
}

impl Archive for &[u8] {
    fn rest(&self) -> &[u8] {
        self
    }
    fn give_up(&mut self, bytes: usize) {
        *self = self.get(bytes..).unwrap_or_default();
    }
}

/// The amount that was unpacked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Unpacked {
    /// The number of members.
    pub members: usize,
    /// The number of bytes of their contents.
    pub bytes: u64,
}

const HEADER: usize = 110;
const TRAILER: &[u8] = b"TRAILER!!!";

/// One member of an archive.
#[derive(Debug)]
pub struct Member<'a> {
    /// The offset in the archive at which its header starts, in bytes.
    pub offset: usize,
    /// The name, unchecked.
    pub name: &'a [u8],
    /// The contents, or a link's target.
    pub data: &'a [u8],
    inode: u32,
    mode: u32,
    uid: u32,
    gid: u32,
    links: u32,
    time: Timestamp,
    device: (u32, u32),
    node: DeviceNumber,
}

/// An iterator over the members of an archive, or of several archives one after the other.
pub struct Members<'a> {
    archive: &'a [u8],
    at: usize,
    over: bool,
}

impl<'a> Members<'a> {
    /// Reads `archive` from its start.
    pub fn new(archive: &'a [u8]) -> Self {
        Members { archive, at: 0, over: false }
    }

    fn read(&mut self) -> Result<Option<Member<'a>>, Problem> {
        let bytes = &self.archive[self.at..];
        let header = bytes.get(..HEADER).ok_or(Problem::Truncated)?;
        if &header[..6] != b"070701" && &header[..6] != b"070702" {
            return Err(Problem::Magic);
        }
        let mut fields = [0; 13];
        for (field, text) in fields.iter_mut().zip(header[6..].chunks_exact(8)) {
            *field = hexadecimal(text).ok_or(Problem::Number)?;
        }
        let [inode, mode, uid, gid, links, time, size, major, minor, node_major, node_minor, name_len, check] = fields;
        // In a header with the magic "070702" the field is a checksum.
        let nanos = if header[5] == b'1' && check < 1_000_000_000 { check } else { 0 };
        let time = Timestamp { seconds: i64::from(time), nanos };
        if name_len == 0 || name_len as usize > PATH_MAX {
            return Err(Problem::Name);
        }
        let name = bytes.get(HEADER..HEADER + name_len as usize).ok_or(Problem::Truncated)?;
        let Some((0, name)) = name.split_last() else { return Err(Problem::Name) };
        if name.contains(&0) {
            return Err(Problem::Name);
        }
        let start = (HEADER + name_len as usize).next_multiple_of(4);
        let end = start.checked_add(size as usize).ok_or(Problem::Truncated)?;
        let data = bytes.get(start..end).ok_or(Problem::Truncated)?;
        let offset = self.at;
        // The padding behind the last member may be missing.
        self.at = (self.at + end.next_multiple_of(4)).min(self.archive.len());
        if name == TRAILER {
            return Ok(None);
        }
        Ok(Some(Member {
            offset,
            name,
            data,
            inode,
            mode,
            uid,
            gid,
            links,
            time,
            device: (major, minor),
            node: DeviceNumber { major: node_major, minor: node_minor },
        }))
    }
}

impl<'a> Iterator for Members<'a> {
    type Item = Result<Member<'a>, CpioError>;

    fn next(&mut self) -> Option<Self::Item> {
        while !self.over {
            let offset = self.at;
            match self.read() {
                Ok(Some(member)) => return Some(Ok(member)),
                Ok(None) => {
                    // A trailer is followed by padding, and perhaps another archive.
                    self.at += self.archive[self.at..].iter().take_while(|&&b| b == 0).count();
                    self.over = self.at == self.archive.len();
                }
                Err(problem) => {
                    self.over = true;
                    return Some(Err(CpioError { offset, problem }));
                }
            }
        }
        None
    }
}

fn hexadecimal(text: &[u8]) -> Option<u32> {
    text.iter().try_fold(0u32, |n, &b| Some(n << 4 | char::from(b).to_digit(16)?))
}

impl<H: Host> Vfs<H> {
    /// Unpacks `archive` into the root directory. Makes missing parent directories, and replaces existing names. Gives
    /// up each member when it is unpacked.
    pub fn unpack(&self, archive: &mut dyn Archive) -> Result<Unpacked, CpioError> {
        let view = self.view();
        let mut linked = Map::new();
        let mut directories = Vec::new();
        let mut done = Unpacked::default();
        let mut before = 0;
        loop {
            let mut members = Members::new(archive.rest());
            let Some(member) = members.next() else { break };
            let member = member.map_err(|e| CpioError { offset: before + e.offset, ..e })?;
            self.unpack_one(&view, &member, &mut linked, &mut directories)
                .map_err(|problem| CpioError { offset: before + member.offset, problem })?;
            done.members += 1;
            done.bytes += member.data.len() as u64;
            let read = members.at;
            before += read;
            archive.give_up(read);
        }
        archive.give_up(archive.rest().len());
        // Unpacking the files has changed the times of their directories, so these times are set last. If two members
        // name one directory, the later member counts.
        for (inode, time) in directories {
            inode.change(self.host().realtime(), |a| (a.accessed, a.modified) = (time, time));
        }
        Ok(done)
    }

    fn unpack_one(
        &self,
        view: &View<H>,
        member: &Member<'_>,
        linked: &mut Map<(u32, u32, u32), Arc<Dentry<H>>>,
        noted: &mut Vec<(Arc<Inode<H>>, Timestamp)>,
    ) -> Result<(), Problem> {
        let parts = member.name.split(|&b| b == b'/').filter(|part| !part.is_empty() && *part != b".");
        let path: Vec<&[u8]> = Vec::try_from_iter(parts)?;
        if path.iter().any(|part| *part == b"..") {
            return Err(Problem::Name);
        }
        let permissions = (member.mode & 0o7777) as u16;
        let Some((name, directories)) = path.split_last() else {
            if member.mode >> 12 != 0o4 {
                return Err(Problem::Name);
            }
            return self.adorn(&self.root().inode, member, noted);
        };
        let mut parent = self.root().clone();
        for part in directories {
            let found = self.walk(view, &parent, part, Final::Follow)?;
            parent = match &found.target {
                Some(there) => there.clone(),
                None => self.make(view, &found, Create::Directory, 0o755)?,
            };
        }
        let mut found = self.walk(view, &parent, name, Final::Name)?;
        let content = match member.mode >> 12 {
            0o4 => {
                if let Some(there) = found.target.as_ref().filter(|t| t.inode.is_directory()) {
                    return self.adorn(&there.inode, member, noted);
                }
                Create::Directory
            }
            0o10 => Create::File,
            0o12 => Create::Symlink(member.data),
            0o1 => Create::Fifo,
            0o2 => Create::CharDevice(member.node),
            0o6 => Create::BlockDevice(member.node),
            0o14 => Create::Socket,
            _ => return Err(Problem::Kind),
        };
        if matches!(content, Create::Symlink(target) if target.is_empty() || target.len() >= PATH_MAX) {
            return Err(Problem::Name);
        }
        if found.target.is_some() {
            if found.last != Last::Name {
                return Err(Problem::Name);
            }
            self.unlink(view, &found)?;
            found.target = None;
        }
        let key = (member.device.0, member.device.1, member.inode);
        let shared = member.links > 1 && !matches!(content, Create::Directory);
        let dentry = match linked.get(&key).filter(|_| shared) {
            Some(first) => {
                self.link(view, first, &found)?;
                first.clone()
            }
            None => {
                let new = self.make(view, &found, content, permissions)?;
                if shared {
                    linked.try_insert(key, new.clone())?;
                }
                new
            }
        };
        // If several members are names of one file, one of them carries the contents.
        if let Some(file) = dentry.inode.file().filter(|_| !member.data.is_empty()) {
            file.object.set_size(0)?;
            let mut source = SliceSource::new(member.data);
            let mut at = 0;
            while source.left() > 0 {
                match file.object.write(at, &mut source)? {
                    0 => return Err(Problem::File(FsError::NoSpace)),
                    n => at += n as u64,
                }
            }
        }
        self.adorn(&dentry.inode, member, noted)
    }

    /// Sets owner, permissions and times from the archive. Adds a directory to `directories`, because its times are set
    /// again after it is filled.
    fn adorn(
        &self,
        inode: &Arc<Inode<H>>,
        member: &Member<'_>,
        directories: &mut Vec<(Arc<Inode<H>>, Timestamp)>,
    ) -> Result<(), Problem> {
        let time = member.time;
        if inode.is_directory() {
            directories.try_push((inode.clone(), time))?;
        }
        let symlink = inode.kind() == crate::FileKind::Symlink;
        inode.change(self.host().realtime(), |a| {
            if !symlink {
                a.mode = (member.mode & 0o7777) as u16;
            }
            (a.uid, a.gid) = (member.uid, member.gid);
            (a.accessed, a.modified) = (time, time);
        });
        Ok(())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod tests {
    use super::*;
    use crate::Limits;
    use crate::test_host::{TestHost, read_file};
    use proptest::prelude::*;
    use std::format;
    use std::vec::Vec;

    /// Appends a member.
    pub fn add(out: &mut Vec<u8>, name: &str, mode: u32, inode: u32, links: u32, data: &[u8]) {
        let fields = [inode, mode, 5, 6, links, 7, data.len() as u32, 0, 0, 0, 0, name.len() as u32 + 1, 900_000_000];
        out.extend(b"070701");
        for f in fields {
            out.extend(format!("{f:08x}").bytes());
        }
        out.extend(name.bytes());
        out.push(0);
        out.resize(out.len().next_multiple_of(4), 0);
        out.extend(data);
        out.resize(out.len().next_multiple_of(4), 0);
    }

    fn sample() -> Vec<u8> {
        let mut a = Vec::new();
        add(&mut a, ".", 0o40755, 1, 2, b"");
        add(&mut a, "bin", 0o40755, 2, 2, b"");
        add(&mut a, "bin/busybox", 0o100755, 3, 2, b"");
        add(&mut a, "bin/sh", 0o100755, 3, 2, b"\x7fELF and more");
        add(&mut a, "./lib64", 0o120777, 4, 1, b"lib");
        add(&mut a, "deep/er/file", 0o100600, 5, 1, &[b'x'; 10_000]);
        add(&mut a, "fifo", 0o10644, 6, 1, b"");
        add(&mut a, "TRAILER!!!", 0, 0, 1, b"");
        a
    }

    /// An archive in memory that overwrites the bytes that are given up.
    struct Overwritten(Vec<u8>, usize);

    impl Archive for Overwritten {
        fn rest(&self) -> &[u8] {
            &self.0[self.1..]
        }
        fn give_up(&mut self, bytes: usize) {
            self.0[self.1..self.1 + bytes].fill(0xd5);
            self.1 += bytes;
        }
    }

    #[test]
    fn members_are_given_up_when_they_are_unpacked() {
        let (mut one, mut two) = (Vec::new(), Vec::new());
        add(&mut one, "a", 0o100644, 3, 1, b"first");
        add(&mut one, "d/b", 0o100644, 4, 1, b"second");
        add(&mut one, "TRAILER!!!", 0, 0, 1, b"");
        add(&mut two, "c", 0o100600, 3, 1, b"third");
        add(&mut two, "TRAILER!!!", 0, 0, 1, b"");
        let mut both = Overwritten([one.clone(), two.clone()].concat(), 0);
        let vfs = Vfs::new(TestHost, Limits { inodes: Some(1000), pages: Some(1 << 20) }).unwrap();
        let done = vfs.unpack(&mut both).unwrap();
        assert_eq!((done.members, both.1), (3, both.0.len()));
        assert!(both.0.iter().all(|byte| *byte == 0xd5));
        for (name, text) in [("/a", "first"), ("/d/b", "second"), ("/c", "third")] {
            assert_eq!(read_file(&vfs, name).unwrap(), text.as_bytes());
        }
        // The error has its offset in the whole archive, and the bytes from there on are not given up.
        let mut broken = Overwritten([one.clone(), two].concat(), 0);
        broken.0[one.len()] = b'x';
        let e = vfs.unpack(&mut broken).unwrap_err();
        assert_eq!((e.offset, e.problem, broken.0[one.len()]), (one.len(), Problem::Magic, b'x'));
    }

    #[test]
    fn an_archive_unpacks_with_links_modes_and_directories() {
        let vfs = Vfs::new(TestHost, Limits { inodes: Some(1000), pages: Some(1 << 20) }).unwrap();
        let mut a = sample();
        a.resize(a.len().next_multiple_of(512), 0);
        a.extend(sample()); // a second archive behind the padding replaces the files of the first
        let done = vfs.unpack(&mut &a[..]).unwrap();
        assert_eq!(done.members, 14);
        assert_eq!(read_file(&vfs, "/bin/busybox").unwrap(), b"\x7fELF and more");
        assert_eq!(read_file(&vfs, "/deep/er/file").unwrap().len(), 10_000);
        let view = vfs.view();
        let sh = vfs.find(&view, vfs.root(), b"/bin/sh", true).unwrap();
        assert_eq!((sh.inode.attr().links, sh.inode.attr().mode), (2, 0o755));
        let link = vfs.find(&view, vfs.root(), b"/lib64", false).unwrap();
        assert_eq!(vfs.link_target(&link).unwrap(), b"lib");
        for name in ["/", "/bin", "/bin/sh", "/lib64", "/fifo", "/deep/er/file"] {
            let attr = vfs.find(&view, vfs.root(), name.as_bytes(), false).unwrap().inode.attr();
            let time = Timestamp { seconds: 7, nanos: 900_000_000 };
            assert_eq!((attr.uid, attr.gid, attr.accessed, attr.modified), (5, 6, time, time), "{name}");
        }
    }

    #[test]
    fn a_checksum_is_no_time() {
        let vfs = Vfs::new(TestHost, Limits { inodes: Some(1000), pages: Some(1 << 20) }).unwrap();
        let mut a = Vec::new();
        add(&mut a, "f", 0o100644, 3, 1, b"x");
        a[5] = b'2';
        add(&mut a, "TRAILER!!!", 0, 0, 1, b"");
        vfs.unpack(&mut &a[..]).unwrap();
        let time = vfs.find(&vfs.view(), vfs.root(), b"/f", true).unwrap().inode.attr().modified;
        assert_eq!(time, Timestamp { seconds: 7, nanos: 0 });
    }

    #[test]
    fn names_that_climb_out_of_the_tree_are_refused() {
        let vfs = Vfs::new(TestHost, Limits { inodes: Some(1000), pages: Some(1 << 20) }).unwrap();
        let mut a = Vec::new();
        add(&mut a, "../etc/passwd", 0o100644, 3, 1, b"root");
        assert_eq!(vfs.unpack(&mut &a[..]).unwrap_err(), CpioError { offset: 0, problem: Problem::Name });
    }

    #[test]
    fn an_archive_without_a_trailer_is_cut_off() {
        let vfs = Vfs::new(TestHost, Limits { inodes: Some(1000), pages: Some(1 << 20) }).unwrap();
        let mut a = Vec::new();
        assert_eq!(vfs.unpack(&mut &a[..]).unwrap_err().problem, Problem::Truncated);
        add(&mut a, "file", 0o100644, 3, 1, b"12345");
        assert_eq!(vfs.unpack(&mut &a[..]).unwrap_err().problem, Problem::Truncated);
    }

    proptest! {
        #[test]
        fn a_damaged_archive_is_an_error_or_harmless(
            damage in prop::collection::vec((0usize..12_000, any::<u8>()), 1..8),
            keep in 0usize..12_000,
        ) {
            let mut a = sample();
            for (at, byte) in damage {
                let len = a.len();
                a[at % len] = byte;
            }
            a.truncate(keep.max(1));
            let vfs = Vfs::new(TestHost, Limits { inodes: Some(100), pages: Some(1 << 20) }).unwrap();
            let _outcome = vfs.unpack(&mut &a[..]);
            // The tree is still whole.
            prop_assert!(vfs.find(&vfs.view(), vfs.root(), b"/.", true).is_ok());
        }
    }
}
