//! A tar archive on the host. Its members become nodes of a tree. Their contents stay in the archive until the image is
//! written.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileExt as _, MetadataExt as _},
    },
    path::{Component, Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
};

use tar::EntryType;

use super::tree::Meta;
use crate::{
    failure::{Doing, Failure, Result},
    machine::qemu::memory_file,
};

/// The first bytes of each compressed format, and the program that unpacks it to standard output.
const FORMATS: &[(&[u8], &str)] =
    &[(b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ\0", "xz"), (b"\x28\xb5\x2f\xfd", "zstd")];

/// An uncompressed archive, open for reading.
#[derive(Debug, Clone)]
pub struct Archive {
    name: PathBuf,
    file: Arc<File>,
    /// A number made of the device and the inode number. It distinguishes the members of two archives.
    number: u64,
}

/// A part of an archive: the content of one file.
#[derive(Debug, Clone)]
pub struct Part {
    file: Arc<File>,
    number: u64,
    at: u64,
    len: u64,
}

impl PartialEq for Part {
    fn eq(&self, other: &Self) -> bool {
        self.identity() == other.identity()
    }
}

impl Eq for Part {}

impl Part {
    /// A pair of numbers that is equal for all names of one member.
    pub fn identity(&self) -> (u64, u64) {
        (self.number, self.at)
    }

    /// The length of the content in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Reads the content.
    pub fn read(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(self.len).map_err(io::Error::other)?];
        self.file.read_exact_at(&mut bytes, self.at)?;
        Ok(bytes)
    }
}

/// The kind of a member.
#[derive(Debug)]
pub enum MemberKind {
    /// A directory.
    Directory,
    /// A file.
    File(Part),
    /// A symbolic link.
    Link(PathBuf),
    /// Another name of an earlier member: a hard link.
    Again(PathBuf),
    /// A FIFO or a device: the type bits of its mode, and the device's number.
    Special(u32, u64),
}

/// One member of an archive.
#[derive(Debug)]
pub struct Member {
    /// The member's name, without a leading slash, `.` or `..`.
    pub name: PathBuf,
    /// The owner, the permissions and the time of the last change.
    pub meta: Meta,
    /// The kind of the member.
    pub kind: MemberKind,
}

impl Archive {
    /// Opens an archive. An archive packed by gzip, bzip2, xz or zstd is first unpacked into memory by that program.
    pub fn open(path: &Path) -> Result<Self> {
        let about = || format!("cannot read {}", path.display());
        let mut file = File::open(path).doing(about)?;
        let mut start = Vec::new();
        (&file).take(8).read_to_end(&mut start).doing(about)?;
        file.rewind().doing(about)?;
        if let Some((_, program)) = FORMATS.iter().find(|(magic, _)| start.starts_with(magic)) {
            let out = memory_file("quire-root").doing(about)?;
            let run = Command::new(program)
                .arg("-dc")
                .stdin(file)
                .stdout(out.try_clone().doing(about)?)
                .stderr(Stdio::inherit())
                .status()
                .doing(|| format!("{} needs {program}", path.display()))?;
            if !run.success() {
                return Err(Failure::usage(format_args!("{program} cannot unpack {}", path.display())));
            }
            file = out;
        }
        let meta = file.metadata().doing(about)?;
        // The number mixes the bits of the device's number and of the inode's number. So files of one device get
        // different numbers, and so do files in memory.
        let number = 1 << 63 | meta.dev().rotate_left(40) ^ meta.ino();
        Ok(Self { name: path.to_owned(), file: Arc::new(file), number })
    }

    /// The archive's path, for messages.
    pub fn name(&self) -> std::path::Display<'_> {
        self.name.display()
    }

    /// The archive's members in order. A name that leads out of the archive is an error.
    pub fn members(&self) -> impl Iterator<Item = Result<Member>> {
        // All headers are read first, because reading them moves the position of the shared descriptor.
        let mut found = Vec::new();
        let mut read = || -> io::Result<()> {
            let mut file = &*self.file;
            file.rewind()?;
            let mut archive = tar::Archive::new(file);
            for entry in archive.entries_with_seek()? {
                if let Some(member) = self.member(&entry?)? {
                    found.push(Ok(member));
                }
            }
            Ok(())
        };
        if let Err(e) = read() {
            found.push(Err(Failure::usage(format_args!("{}: {e}", self.name.display()))));
        }
        found.into_iter()
    }

    fn member<R: io::Read>(&self, entry: &tar::Entry<'_, R>) -> io::Result<Option<Member>> {
        let header = entry.header();
        let name = inside(&entry.path()?)?;
        let number = |n: io::Result<u64>| Ok::<_, io::Error>(u32::try_from(n?).unwrap_or(u32::MAX));
        let meta = Meta {
            mode: header.mode()? & 0o7777,
            uid: number(header.uid())?,
            gid: number(header.gid())?,
            seconds: number(header.mtime())?,
            nanos: 0,
        };
        let target = || {
            let name = entry.link_name()?.ok_or_else(|| io::Error::other(format!("{} leads nowhere", name.display())));
            name.map(|n| n.into_owned())
        };
        let device = || Ok::<_, io::Error>((header.device_major()?.unwrap_or(0), header.device_minor()?.unwrap_or(0)));
        let kind = match header.entry_type() {
            EntryType::Directory => MemberKind::Directory,
            EntryType::Regular | EntryType::Continuous => MemberKind::File(Part {
                file: Arc::clone(&self.file),
                number: self.number,
                at: entry.raw_file_position(),
                len: entry.size(),
            }),
            EntryType::Symlink => MemberKind::Link(target()?),
            EntryType::Link => MemberKind::Again(inside(&target()?)?),
            EntryType::Fifo => MemberKind::Special(0o010_000, 0),
            EntryType::Char => {
                let (major, minor) = device()?;
                MemberKind::Special(0o020_000, rustix::fs::makedev(major, minor))
            }
            EntryType::Block => {
                let (major, minor) = device()?;
                MemberKind::Special(0o060_000, rustix::fs::makedev(major, minor))
            }
            EntryType::XGlobalHeader => return Ok(None),
            other => return Err(io::Error::other(format!("{}: a member of kind {other:?}", name.display()))),
        };
        Ok(Some(Member { name, meta, kind }))
    }
}

/// A member's name without the parts that stand for the archive's own root directory.
fn inside(name: &Path) -> io::Result<PathBuf> {
    let mut clean = PathBuf::new();
    for part in name.components() {
        match part {
            Component::Normal(part) => clean.push(part),
            Component::RootDir | Component::CurDir => {}
            _ => return Err(io::Error::other(format!("{} leads out of the archive", name.display()))),
        }
    }
    if clean.as_os_str().as_bytes().contains(&0) {
        return Err(io::Error::other("a name with a zero byte"));
    }
    Ok(clean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::tree::Tree;

    fn header(kind: EntryType, size: u64) -> tar::Header {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_mode(0o4751);
        header.set_uid(7);
        header.set_gid(8);
        header.set_mtime(1_000_000_000);
        header
    }

    fn archive(name: &str) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        let long = "x".repeat(200);
        builder.append_data(&mut header(EntryType::Directory, 0), "./d/", &[][..]).unwrap();
        builder.append_data(&mut header(EntryType::Regular, 5), format!("./d/{long}"), &b"hello"[..]).unwrap();
        builder.append_link(&mut header(EntryType::Link, 0), "d/second", format!("d/{long}")).unwrap();
        builder.append_link(&mut header(EntryType::Symlink, 0), "d/link", "second").unwrap();
        builder.append_data(&mut header(EntryType::Fifo, 0), "d/fifo", &[][..]).unwrap();
        let mut last = header(EntryType::Regular, 0);
        // The name is written by hand, because the builder refuses such names.
        last.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        last.set_cksum();
        builder.append(&last, &[][..]).unwrap();
        builder.into_inner().unwrap()
    }

    fn read(bytes: &[u8]) -> Result<Tree> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), bytes).unwrap();
        let mut tree = Tree::default();
        tree.members(Path::new("/"), &Archive::open(file.path())?, true)?;
        Ok(tree)
    }

    #[test]
    fn members_keep_names_links_and_contents() {
        let tree = read(&archive("end")).unwrap();
        let long = format!("/d/{}", "x".repeat(200));
        assert_eq!(tree.read(&long).as_deref(), Some(&b"hello"[..]));
        assert_eq!(tree.read("/d/link").as_deref(), Some(&b"hello"[..]));
        assert_eq!(tree.below("/d").len(), 4);
        assert!(tree.has("/end") && tree.sizes().sum::<u64>() < 4096, "a second name has no content of its own");
        // The image has the content once, under two names.
        let mut image = Vec::new();
        tree.write(&mut image, "").unwrap();
        assert_eq!(image.windows(5).filter(|w| w == b"hello").count(), 1);
    }

    #[test]
    fn a_packed_archive_is_unpacked() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), archive("end")).unwrap();
        let packed = Command::new("gzip").arg("-c").arg(file.path()).output().unwrap().stdout;
        assert!(read(&packed).unwrap().has("/d/second"));
        assert!(read(&packed[..packed.len() / 2]).is_err(), "cut off");
    }

    #[test]
    fn names_that_lead_out_and_damaged_archives_are_refused() {
        assert!(read(&archive("../x")).is_err());
        assert!(read(&archive("a/../../x")).is_err());
        assert!(read(&[1; 700]).is_err());
        let whole = archive("end");
        assert!(read(&whole[..1100]).is_err(), "cut off");
        assert!(read(b"").unwrap().below("/").is_empty());
    }
}
