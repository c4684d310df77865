//! A file tree in memory, and the newc cpio archive made from it.
//!
//! Names follow the links of the tree itself, as they will in the guest. For example, a file that is added below `/bin`
//! gets a name in `/usr/bin`. A file of the host keeps its owner, permissions, times and hard links.

use std::{
    collections::{BTreeMap, HashMap},
    ffi::OsString,
    fs::{self, Metadata},
    io::{self, Write},
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Component, Path, PathBuf},
};

use super::archive::{Archive, MemberKind, Part};
use crate::failure::{Doing, Failure, Result};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;
/// The most symbolic links that the walk of one path follows, as in Linux.
const MOST_LINKS: usize = 40;

/// The permission bits, the owner, and the time of the last change of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Meta {
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    pub seconds: u32,
    pub nanos: u32,
}

impl Meta {
    /// The metadata of a file that this tool makes.
    fn made(mode: u32) -> Self {
        Self { mode, ..Self::default() }
    }

    /// The metadata of a host's file. Times before 1970 or after 2106 are clamped, because the archive cannot hold
    /// them.
    fn of(meta: &Metadata) -> Self {
        let seconds = u32::try_from(meta.mtime().max(0)).unwrap_or(u32::MAX);
        let nanos = if i64::from(seconds) == meta.mtime() { meta.mtime_nsec() as u32 } else { 0 };
        Self { mode: meta.mode() & 0o7777, uid: meta.uid(), gid: meta.gid(), seconds, nanos }
    }
}

/// The kind of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
enum NodeKind {
    Directory,
    /// A host file that is read only when the archive is written. If it has several names, also its device and inode
    /// number on the host.
    HostFile(PathBuf, Option<(u64, u64)>),
    /// A member of an archive on the host. It is read only when the archive is written.
    Member(Part),
    File(Vec<u8>),
    Link(PathBuf),
    /// A FIFO, a socket or a device: the type bits of its mode, and the device's number.
    Special(u32, u64),
}

impl NodeKind {
    /// A number that is equal for all names of one file. `None` if the node is known to have no other name.
    fn identity(&self) -> Option<(u64, u64)> {
        match self {
            NodeKind::HostFile(_, several) => *several,
            NodeKind::Member(part) => Some(part.identity()),
            _ => None,
        }
    }
}

/// One node of the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TreeEntry {
    kind: NodeKind,
    meta: Meta,
}

/// The contents of the guest's root file system. Names are absolute, without `.` or `..`. Missing parent directories
/// are added automatically.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    nodes: BTreeMap<PathBuf, TreeEntry>,
}

impl Tree {
    /// Adds a directory with these permission bits. An existing directory keeps its own bits.
    pub fn directory(&mut self, at: impl AsRef<Path>, mode: u32) -> Result<()> {
        self.put_directory(at.as_ref(), Meta::made(mode), false)
    }

    fn put_directory(&mut self, at: &Path, meta: Meta, over: bool) -> Result<()> {
        let place = self.place(at, true)?;
        match self.nodes.get_mut(&place) {
            Some(TreeEntry { kind: NodeKind::Directory, meta: old }) => {
                if over {
                    *old = meta;
                }
            }
            Some(_) => return Err(Failure::usage(format_args!("{} is not a directory in the guest", at.display()))),
            None => drop(self.nodes.insert(place, TreeEntry { kind: NodeKind::Directory, meta })),
        }
        Ok(())
    }

    /// Adds a file with this content.
    pub fn file(&mut self, at: impl AsRef<Path>, mode: u32, bytes: impl Into<Vec<u8>>) -> Result<()> {
        self.put(at.as_ref(), NodeKind::File(bytes.into()), Meta::made(mode))
    }

    /// Adds a symbolic link. The link replaces an existing file, link or directory. The content of a replaced directory
    /// moves to the link's target.
    pub fn link(&mut self, at: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        self.put_link(at.as_ref(), to.as_ref(), Meta::made(0o777))
    }

    /// Adds a symbolic link, unless a node of this name exists.
    pub fn alias(&mut self, at: impl AsRef<Path>, to: impl AsRef<Path>) -> Result<()> {
        let place = self.place(at.as_ref(), false)?;
        let node = TreeEntry { kind: NodeKind::Link(to.as_ref().to_owned()), meta: Meta::made(0o777) };
        self.nodes.entry(place).or_insert(node);
        Ok(())
    }

    fn put_link(&mut self, at: &Path, to: &Path, meta: Meta) -> Result<()> {
        let place = self.place(at, false)?;
        let below = |name: &Path| name != place && name.starts_with(&place);
        let mut moved = Vec::new();
        if self.nodes.get(&place).is_some_and(|n| n.kind == NodeKind::Directory) {
            let parent = place.parent().unwrap_or(Path::new("/"));
            let target = self.canonical(&parent.join(to), true).filter(|t| !t.starts_with(&place));
            let Some(target) = target else {
                return Err(Failure::usage(format_args!("{} is a directory in the guest, not a link", at.display())));
            };
            let names: Vec<PathBuf> = self.nodes.keys().filter(|name| below(name)).cloned().collect();
            for name in names {
                if let (Some(node), Ok(rest)) = (self.nodes.remove(&name), name.strip_prefix(&place)) {
                    moved.push((target.join(rest), node));
                }
            }
        }
        self.nodes.insert(place, TreeEntry { kind: NodeKind::Link(to.to_owned()), meta });
        for (name, node) in moved {
            let place = self.place(&name, false)?;
            self.nodes.entry(place).or_insert(node);
        }
        Ok(())
    }

    /// Adds a file of the host, with its permission bits. Symbolic links are followed.
    pub fn host_file(&mut self, at: impl AsRef<Path>, from: &Path) -> Result<()> {
        let about = || format!("cannot read {}", from.display());
        let meta = fs::metadata(from).doing(about)?;
        fs::File::open(from).doing(about)?;
        let several = (meta.nlink() > 1 && meta.is_file()).then(|| (meta.dev(), meta.ino()));
        self.put(at.as_ref(), NodeKind::HostFile(from.to_owned(), several), Meta::of(&meta))
    }

    /// Adds a file or a whole directory of the host. Links inside a directory stay links.
    pub fn host_tree(&mut self, at: impl AsRef<Path>, from: &Path) -> Result<()> {
        let meta = fs::metadata(from).doing(|| format!("cannot copy {}", from.display()))?;
        self.host_node(at.as_ref(), from, &meta)
    }

    fn host_node(&mut self, at: &Path, from: &Path, meta: &Metadata) -> Result<()> {
        let about = || format!("cannot copy {}", from.display());
        let kind = meta.file_type();
        let special = [
            (kind.is_fifo(), 0o010_000),
            (kind.is_char_device(), 0o020_000),
            (kind.is_block_device(), 0o060_000),
            (kind.is_socket(), 0o140_000),
        ];
        if kind.is_symlink() {
            return self.put_link(at, &fs::read_link(from).doing(about)?, Meta { mode: 0o777, ..Meta::of(meta) });
        }
        if let Some((_, bits)) = special.into_iter().find(|(is, _)| *is) {
            return self.put(at, NodeKind::Special(bits, meta.rdev()), Meta::of(meta));
        }
        if !kind.is_dir() {
            return self.host_file(at, from);
        }
        self.put_directory(at, Meta::of(meta), true)?;
        for entry in fs::read_dir(from).doing(about)? {
            let entry = entry.doing(about)?;
            // These are the metadata of the entry itself, not of a link's target.
            let meta = entry.metadata().doing(|| format!("cannot copy {}", entry.path().display()))?;
            self.host_node(&at.join(entry.file_name()), &entry.path(), &meta)?;
        }
        Ok(())
    }

    /// Adds the members of an archive below `at`. With `over`, a directory of the archive gives its owner and mode to a
    /// directory that exists already.
    pub fn members(&mut self, at: &Path, archive: &Archive, over: bool) -> Result<()> {
        for member in archive.members() {
            let member = member?;
            let place = at.join(&member.name);
            match member.kind {
                MemberKind::Directory if place == Path::new("/") => {}
                MemberKind::Directory => self.put_directory(&place, member.meta, over)?,
                MemberKind::File(part) => self.put(&place, NodeKind::Member(part), member.meta)?,
                MemberKind::Link(to) => self.put_link(&place, &to, member.meta)?,
                MemberKind::Again(first) => {
                    let first = self.canonical(&at.join(&first), false).and_then(|f| self.nodes.get(&f));
                    let Some(TreeEntry { kind, meta }) = first.cloned() else {
                        let name = member.name.display();
                        return Err(Failure::usage(format_args!("{}: {name} is a link to nothing", archive.name())));
                    };
                    self.put(&place, kind, meta)?;
                }
                MemberKind::Special(bits, device) => {
                    self.put(&place, NodeKind::Special(bits, device), member.meta)?;
                }
            }
        }
        Ok(())
    }

    /// Removes the node at `at` and all nodes below it.
    pub fn remove(&mut self, at: impl AsRef<Path>) {
        let Some(at) = self.canonical(at.as_ref(), false) else { return };
        let names: Vec<PathBuf> =
            self.nodes.range(at.clone()..).map(|(n, _)| n).take_while(|n| n.starts_with(&at)).cloned().collect();
        for name in names {
            self.nodes.remove(&name);
        }
    }

    /// Changes the owner of the node at `at`. A missing node is no error.
    pub fn own(&mut self, at: impl AsRef<Path>, uid: u32, gid: u32) {
        if let Some(node) = self.canonical(at.as_ref(), true).and_then(|at| self.nodes.get_mut(&at)) {
            (node.meta.uid, node.meta.gid) = (uid, gid);
        }
    }

    /// The owner of the node at `at`. Links are followed.
    pub fn owner(&self, at: impl AsRef<Path>) -> Option<(u32, u32)> {
        self.get(at.as_ref()).map(|node| (node.meta.uid, node.meta.gid))
    }

    /// The permission bits of the node at `at`. Links are followed.
    pub fn mode(&self, at: impl AsRef<Path>) -> Option<u32> {
        self.get(at.as_ref()).map(|node| node.meta.mode)
    }

    /// Changes the permission bits of the node at `at`. A missing node is no error.
    pub fn set_mode(&mut self, at: impl AsRef<Path>, mode: u32) {
        if let Some(node) = self.canonical(at.as_ref(), true).and_then(|at| self.nodes.get_mut(&at)) {
            node.meta.mode = mode & 0o7777;
        }
    }

    /// Adds a FIFO or a device: the type bits of its mode, the device's number, and its permission bits.
    pub fn special(&mut self, at: impl AsRef<Path>, bits: u32, device: u64, mode: u32) -> Result<()> {
        self.put(at.as_ref(), NodeKind::Special(bits, device), Meta::made(mode))
    }

    /// The target of the symbolic link at `at`. `None` if the node is no link.
    pub fn target(&self, at: impl AsRef<Path>) -> Option<PathBuf> {
        match &self.nodes.get(&self.canonical(at.as_ref(), false)?)?.kind {
            NodeKind::Link(to) => Some(to.clone()),
            _ => None,
        }
    }

    /// The name of a path after all links on the way.
    pub fn real(&self, at: impl AsRef<Path>) -> Option<PathBuf> {
        self.canonical(at.as_ref(), true)
    }

    /// The content of the file at `at`. Links are followed within the tree. `None` if there is no such file.
    pub fn read(&self, at: impl AsRef<Path>) -> Option<Vec<u8>> {
        match &self.get(at.as_ref())?.kind {
            NodeKind::HostFile(path, _) => fs::read(path).ok(),
            NodeKind::Member(part) => part.read().ok(),
            NodeKind::File(bytes) => Some(bytes.clone()),
            _ => None,
        }
    }

    /// The names of the nodes below a directory, at every depth.
    pub fn below(&self, at: impl AsRef<Path>) -> Vec<PathBuf> {
        let Some(at) = self.canonical(at.as_ref(), true) else { return Vec::new() };
        self.nodes
            .range(at.clone()..)
            .map(|(n, _)| n)
            .take_while(|n| n.starts_with(&at))
            .filter(|n| **n != at)
            .cloned()
            .collect()
    }

    /// Adds to the tree every host link on the way to `path`, and returns the final path. The file must have the same
    /// path in the guest, because a program may look at its own path (`$ORIGIN`, `/proc/self/exe`) and around it.
    pub fn host_links(&mut self, path: &Path) -> Result<PathBuf> {
        let about = || format!("cannot follow {}", path.display());
        let mut real = PathBuf::from("/");
        let mut left = Parts::of(&std::path::absolute(path).doing(about)?);
        let mut links = 0;
        while let Some(part) = left.next(&mut real) {
            let here = real.join(part);
            if !fs::symlink_metadata(&here).doing(about)?.is_symlink() {
                real = here;
                continue;
            }
            links += 1;
            if links > MOST_LINKS {
                return Err(Failure::usage(format_args!("{}: too many links", path.display())));
            }
            let to = fs::read_link(&here).doing(about)?;
            self.link(&here, &to)?;
            left.lead(&to, &mut real);
        }
        Ok(real)
    }

    /// Whether there is a node of this name. Links are followed.
    pub fn has(&self, at: impl AsRef<Path>) -> bool {
        self.get(at.as_ref()).is_some()
    }

    /// Whether there is a directory of this name.
    pub fn has_directory(&self, at: impl AsRef<Path>) -> bool {
        self.get(at.as_ref()).is_some_and(|n| n.kind == NodeKind::Directory)
    }

    fn get(&self, at: &Path) -> Option<&TreeEntry> {
        self.nodes.get(&self.canonical(at, true)?)
    }

    /// The path on the host of the file that is named `at` in the guest. Links are followed within the tree.
    pub fn host_path(&self, at: impl AsRef<Path>) -> Option<PathBuf> {
        match &self.get(at.as_ref())?.kind {
            NodeKind::HostFile(path, _) => Some(path.clone()),
            _ => None,
        }
    }

    /// The host paths of the files at this name and below it.
    pub fn host_files(&self, at: impl AsRef<Path>) -> Vec<PathBuf> {
        let Some(at) = self.canonical(at.as_ref(), true) else { return Vec::new() };
        let below = self.nodes.range(at.clone()..).take_while(|(name, _)| name.starts_with(&at));
        below
            .filter_map(|(_, node)| match &node.kind {
                NodeKind::HostFile(path, _) => Some(path.clone()),
                _ => None,
            })
            .collect()
    }

    /// An estimate, in bytes, of the memory that a guest needs to unpack the archive. The guest frees each file of the
    /// archive after unpacking it, so only one file is in memory twice. A file takes whole pages and some records.
    pub fn unpacked(&self) -> u64 {
        let (mut all, mut largest) = (0, 0);
        for size in self.sizes() {
            all += size.next_multiple_of(4096) + 1024;
            largest = largest.max(size);
        }
        all + largest
    }

    /// The size of each file's content in bytes. A further name of the same file, and any other entry, counts 0.
    pub fn sizes(&self) -> impl Iterator<Item = u64> {
        let mut seen = HashMap::new();
        self.nodes.values().map(move |n| match &n.kind {
            kind if kind.identity().is_some_and(|key| seen.insert(key, ()).is_some()) => 0,
            NodeKind::HostFile(path, _) => fs::metadata(path).map_or(0, |m| m.len()),
            NodeKind::Member(part) => part.len(),
            NodeKind::File(bytes) => bytes.len() as u64,
            _ => 0,
        })
    }

    /// Writes the archive. The node named `first`, if it exists, is its first member. The other nodes follow in the
    /// order of their names.
    pub fn write(&self, mut out: impl Write, first: &str) -> Result<()> {
        let mut names: HashMap<(u64, u64), u32> = HashMap::new();
        for node in self.nodes.values() {
            if let Some(key) = node.kind.identity() {
                *names.entry(key).or_default() += 1;
            }
        }
        // The first of a file's names in the archive carries the content. The others are hard links to it.
        let mut numbers: HashMap<(u64, u64), u32> = HashMap::new();
        let mut archive = || -> io::Result<()> {
            let mut last = 1;
            let first = self.nodes.get_key_value(Path::new(first));
            for (name, node) in first.into_iter().chain(self.nodes.iter().filter(|n| Some(*n) != first)) {
                last += 1;
                let key = node.kind.identity();
                let (number, again) = match key.and_then(|key| numbers.get(&key)) {
                    Some(number) => (*number, true),
                    None => (last, false),
                };
                if let Some(key) = key {
                    numbers.insert(key, number);
                }
                let links = key.and_then(|key| names.get(&key)).copied().unwrap_or(1);
                write_node(&mut out, number, links, again, name, node)?;
            }
            let trailer = TreeEntry { kind: NodeKind::File(Vec::new()), meta: Meta::default() };
            write_member(&mut out, Path::new("/TRAILER!!!"), 0, 1, 0, &trailer.meta, 0, &[])?;
            out.flush()
        };
        archive().doing(|| "cannot write the initial file system".to_string())
    }

    fn put(&mut self, at: &Path, kind: NodeKind, meta: Meta) -> Result<()> {
        let place = self.place(at, false)?;
        if self.has_directory(&place) {
            return Err(Failure::usage(format_args!("{} is a directory in the guest", at.display())));
        }
        self.nodes.insert(place, TreeEntry { kind, meta });
        Ok(())
    }

    /// The final name of a new node: cleaned, and with the links on the way followed. With `last`, a link at its end is
    /// followed too. Missing parent directories are added.
    fn place(&mut self, at: &Path, last: bool) -> Result<PathBuf> {
        let shown = at.display();
        let place = self.canonical(at, last).ok_or_else(|| {
            Failure::usage(format_args!("{shown:?} is not an absolute path; paths of the guest begin with /"))
        })?;
        for up in place.ancestors().skip(1).filter(|up| *up != Path::new("/")) {
            let parent = self.nodes.entry(up.to_owned());
            let made = TreeEntry { kind: NodeKind::Directory, meta: Meta::made(0o755) };
            if parent.or_insert(made).kind != NodeKind::Directory {
                return Err(Failure::usage(format_args!("{shown}: {} is not a directory in the guest", up.display())));
            }
        }
        Ok(place)
    }

    /// The path `at` without `.`, `..`, repeated slashes and links. A link at its end is followed only with `last`.
    fn canonical(&self, at: &Path, last: bool) -> Option<PathBuf> {
        if !at.is_absolute() || at.as_os_str().as_bytes().contains(&0) {
            return None;
        }
        let mut clean = PathBuf::from("/");
        let mut left = Parts::of(at);
        let mut links = 0;
        while let Some(part) = left.next(&mut clean) {
            let here = clean.join(part);
            match self.nodes.get(&here).map(|n| &n.kind) {
                Some(NodeKind::Link(to)) if last || !left.0.is_empty() => {
                    links += 1;
                    if links > MOST_LINKS {
                        return None;
                    }
                    left.lead(to, &mut clean);
                }
                _ => clean = here,
            }
        }
        Some(clean)
    }
}

/// The remaining parts of a path during a walk, in reverse order. `None` stands for `..`.
struct Parts(Vec<Option<OsString>>);

impl Parts {
    fn of(path: &Path) -> Self {
        let mut parts = Self(Vec::new());
        parts.lead(path, &mut PathBuf::new());
        parts
    }

    /// Returns the next name of the walk. Each `..` before it removes the last part of `at`.
    fn next(&mut self, at: &mut PathBuf) -> Option<OsString> {
        loop {
            match self.0.pop()? {
                Some(name) => return Some(name),
                None => drop(at.pop()),
            }
        }
    }

    /// Continues the walk at `to`, the target of a link in the directory `at`. The rest of the path follows.
    fn lead(&mut self, to: &Path, at: &mut PathBuf) {
        if to.is_absolute() {
            *at = PathBuf::from("/");
        }
        let parts: Vec<_> = to.components().collect();
        self.0.extend(parts.into_iter().rev().filter_map(|part| match part {
            Component::Normal(name) => Some(Some(name.to_owned())),
            Component::ParentDir => Some(None),
            _ => None,
        }));
    }
}

fn write_node(
    out: &mut impl Write,
    number: u32,
    links: u32,
    again: bool,
    name: &Path,
    node: &TreeEntry,
) -> io::Result<()> {
    let host;
    let (kind, links, device, bytes): (u32, u32, u64, &[u8]) = match &node.kind {
        NodeKind::Directory => (DIRECTORY, 2, 0, &[]),
        NodeKind::File(bytes) => (REGULAR, 1, 0, bytes),
        NodeKind::Link(to) => (LINK, 1, 0, to.as_os_str().as_bytes()),
        NodeKind::Special(bits, device) => (*bits, 1, *device, &[]),
        NodeKind::HostFile(path, _) => {
            host = if again { Vec::new() } else { fs::read(path)? };
            (REGULAR, links, 0, &host)
        }
        NodeKind::Member(part) => {
            host = if again { Vec::new() } else { part.read()? };
            (REGULAR, links, 0, &host)
        }
    };
    write_member(out, name, number, links, kind, &node.meta, device, bytes)
}

/// Writes a member of a newc archive. The format does not use its checksum field, so that field holds the nanoseconds
/// of the time. A guest that does not know this ignores the field.
#[allow(clippy::too_many_arguments)]
fn write_member(
    out: &mut impl Write,
    name: &Path,
    number: u32,
    links: u32,
    kind: u32,
    meta: &Meta,
    device: u64,
    bytes: &[u8],
) -> io::Result<()> {
    let size =
        u32::try_from(bytes.len()).map_err(|_| io::Error::other(format!("{} is larger than 4 GiB", name.display())))?;
    let name = name.as_os_str().as_bytes();
    let name = name.strip_prefix(b"/").unwrap_or(name);
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let length = u32::try_from(name.len() + 1).map_err(io::Error::other)?;
    let fields = [
        number,
        kind | meta.mode,
        meta.uid,
        meta.gid,
        links,
        meta.seconds,
        size,
        0,
        0,
        major,
        minor,
        length,
        meta.nanos,
    ];
    let mut header = b"070701".to_vec();
    for field in fields {
        header.extend(format!("{field:08x}").bytes());
    }
    header.extend(name);
    header.push(0);
    header.resize(header.len().next_multiple_of(4), 0);
    out.write_all(&header)?;
    out.write_all(bytes)?;
    out.write_all(&[0; 3][..bytes.len().next_multiple_of(4) - bytes.len()])
}

#[cfg(test)]
mod tests;
