//! A file tree in memory, and the newc cpio archive made from it.

use std::{
    collections::BTreeMap,
    fs,
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::{Component, Path, PathBuf},
};

use cpio::newc;

use crate::failure::{Doing, Failure, Result};

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// One thing in the tree.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Node {
    Directory {
        mode: u32,
    },
    /// Read from the host only when the archive is written.
    HostFile {
        path: PathBuf,
        mode: u32,
    },
    File {
        bytes: Vec<u8>,
        mode: u32,
    },
    Link {
        to: String,
    },
}

/// What the guest's root will hold. Names are absolute, without `.` or `..`; directories come by themselves.
#[derive(Debug, Clone, Default)]
pub struct Tree {
    nodes: BTreeMap<String, Node>,
}

impl Tree {
    /// A directory with these permission bits.
    pub fn directory(&mut self, at: &str, mode: u32) -> Result<()> {
        let at = self.place(at)?;
        self.nodes.insert(at, Node::Directory { mode });
        Ok(())
    }

    /// A file with this content.
    pub fn file(&mut self, at: &str, mode: u32, bytes: impl Into<Vec<u8>>) -> Result<()> {
        let at = self.place(at)?;
        self.nodes.insert(at, Node::File { bytes: bytes.into(), mode });
        Ok(())
    }

    /// A symbolic link; one that is there already stays, as does a file.
    pub fn link(&mut self, at: &str, to: &str) -> Result<()> {
        let at = self.place(at)?;
        self.nodes.entry(at).or_insert_with(|| Node::Link { to: to.to_owned() });
        Ok(())
    }

    /// A file of the host, with its permission bits; symbolic links are followed.
    pub fn host_file(&mut self, at: &str, from: &Path) -> Result<()> {
        let about = || format!("cannot read {}", from.display());
        let meta = fs::metadata(from).doing(about)?;
        fs::File::open(from).doing(about)?;
        let at = self.place(at)?;
        self.nodes.insert(at, Node::HostFile { path: from.to_owned(), mode: meta.permissions().mode() & 0o7777 });
        Ok(())
    }

    /// A file or a whole directory of the host. Links inside a directory stay links.
    pub fn host_tree(&mut self, at: &str, from: &Path) -> Result<()> {
        let about = || format!("cannot copy {}", from.display());
        let meta = fs::metadata(from).doing(about)?;
        if meta.is_file() {
            return self.host_file(at, from);
        }
        if !meta.is_dir() {
            return Err(Failure::usage(format_args!("cannot copy {}: neither file nor directory", from.display())));
        }
        self.directory(at, meta.permissions().mode() & 0o7777)?;
        for entry in fs::read_dir(from).doing(about)? {
            let entry = entry.doing(about)?;
            let name = entry.file_name();
            let Some(name) = name.to_str() else {
                return Err(Failure::usage(format_args!(
                    "cannot copy {}: its name is not UTF-8",
                    entry.path().display()
                )));
            };
            let inner = format!("{}/{name}", at.trim_end_matches('/'));
            if entry.file_type().doing(about)?.is_symlink() {
                let to = fs::read_link(entry.path()).doing(about)?;
                self.link(&inner, &to.to_string_lossy())?;
            } else {
                self.host_tree(&inner, &entry.path())?;
            }
        }
        Ok(())
    }

    /// Is there anything of this name? Links to directories on the way are followed.
    pub fn has(&self, at: &str) -> bool {
        self.canonical(at).is_some_and(|at| self.nodes.contains_key(&at))
    }

    /// The host's file that the guest will find under this name, through the tree's own links.
    pub fn host_path(&self, at: &str) -> Option<PathBuf> {
        let mut at = self.canonical(at)?;
        for _ in 0..8 {
            match self.nodes.get(&at)? {
                Node::HostFile { path, .. } => return Some(path.clone()),
                Node::Link { to } => {
                    let from = Path::new(&at).parent()?.join(to);
                    at = self.canonical(from.to_str()?)?;
                }
                Node::Directory { .. } | Node::File { .. } => return None,
            }
        }
        None
    }

    /// Bytes that the archive will take, roughly: what the guest's memory must hold twice while it unpacks.
    pub fn bytes(&self) -> u64 {
        let size = |n: &Node| match n {
            Node::HostFile { path, .. } => fs::metadata(path).map_or(0, |m| m.len()),
            Node::File { bytes, .. } => bytes.len() as u64,
            Node::Directory { .. } | Node::Link { .. } => 0,
        };
        self.nodes.values().map(|n| size(n) + 256).sum()
    }

    /// Writes the archive: `first` before everything else if it is there, the rest in the order of names.
    pub fn write(&self, mut out: impl Write, first: &str) -> Result<()> {
        let mut archive = || -> io::Result<()> {
            let mut ino = 1;
            let first = self.nodes.get_key_value(first);
            for (name, node) in first.into_iter().chain(self.nodes.iter().filter(|n| Some(*n) != first)) {
                ino += 1;
                write_node(&mut out, ino, name, node)?;
            }
            newc::trailer(&mut out)?;
            out.flush()
        };
        archive().doing(|| "cannot write the initial file system".to_string())
    }

    /// The name under which a node goes: cleaned, its parents made, links to directories (`/bin`) followed.
    fn place(&mut self, at: &str) -> Result<String> {
        let at = self
            .canonical(at)
            .ok_or_else(|| Failure::usage(format_args!("{at:?} is no absolute path for the guest")))?;
        let mut parent = Path::new(&at);
        while let Some(up) = parent.parent() {
            let name = up.to_string_lossy().into_owned();
            if name != "/" {
                self.nodes.entry(name).or_insert(Node::Directory { mode: 0o755 });
            }
            parent = up;
        }
        Ok(at)
    }

    /// `at` without `.`, `..`, doubled slashes and without links among its parents.
    fn canonical(&self, at: &str) -> Option<String> {
        let mut clean: Vec<String> = Vec::new();
        if !at.starts_with('/') || at.contains('\0') {
            return None;
        }
        for part in Path::new(at).components() {
            match part {
                Component::Normal(name) => clean.push(name.to_str()?.to_owned()),
                Component::ParentDir => drop(clean.pop()),
                _ => {}
            }
            if clean.len() > 1 || part == Component::RootDir {
                continue;
            }
            // Only the top-level links of a merged /usr are made here; deeper links are the guest's own business.
            if let Some(Node::Link { to }) = self.nodes.get(&format!("/{}", clean.join("/"))) {
                clean = to.split('/').filter(|p| !p.is_empty()).map(str::to_owned).collect();
            }
        }
        Some(format!("/{}", clean.join("/")))
    }
}

fn write_node(out: &mut impl Write, ino: u32, name: &str, node: &Node) -> io::Result<()> {
    let host;
    let (mode, bytes): (u32, &[u8]) = match node {
        Node::Directory { mode } => (DIRECTORY | mode, &[]),
        Node::File { bytes, mode } => (REGULAR | mode, bytes),
        Node::Link { to } => (LINK | 0o777, to.as_bytes()),
        Node::HostFile { path, mode } => {
            host = fs::read(path)?;
            (REGULAR | mode, &host)
        }
    };
    let size = u32::try_from(bytes.len()).map_err(|_| io::Error::other(format!("{name} is larger than 4 GiB")))?;
    let links = if mode & DIRECTORY != 0 && mode & REGULAR == 0 { 2 } else { 1 };
    let mut entry =
        newc::Builder::new(name.trim_start_matches('/')).ino(ino).mode(mode).nlink(links).write(&mut *out, size);
    entry.write_all(bytes)?;
    entry.finish()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(archive: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut rest = archive;
        let mut found = Vec::new();
        loop {
            let mut reader = newc::Reader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                return found;
            }
            let (name, mode) = (reader.entry().name().to_owned(), reader.entry().mode());
            let mut bytes = Vec::new();
            io::Read::read_to_end(&mut reader, &mut bytes).unwrap();
            found.push((name, mode, bytes));
            rest = reader.finish().unwrap();
        }
    }

    #[test]
    fn the_archive_holds_parents_before_children_and_the_first_member_first() {
        let mut tree = Tree::default();
        tree.file("/a/b/c", 0o755, "text").unwrap();
        tree.file("/z", 0o600, "first").unwrap();
        tree.link("/a/l", "b/c").unwrap();
        let mut out = Vec::new();
        tree.write(&mut out, "/z").unwrap();
        let got = names(&out);
        let expected = [
            ("z", 0o100_600, "first"),
            ("a", 0o040_755, ""),
            ("a/b", 0o040_755, ""),
            ("a/b/c", 0o100_755, "text"),
            ("a/l", 0o120_777, "b/c"),
        ];
        assert_eq!(got.len(), expected.len());
        for ((name, mode, bytes), (n, m, b)) in got.iter().zip(expected) {
            assert_eq!((name.as_str(), *mode, bytes.as_slice()), (n, m, b.as_bytes()));
        }
    }

    #[test]
    fn names_are_cleaned_and_follow_top_level_links() {
        let mut tree = Tree::default();
        tree.link("/bin", "usr/bin").unwrap();
        tree.file("/bin/../bin/./x", 0o755, "").unwrap();
        assert!(tree.has("/usr/bin/x") && tree.has("/bin/x"));
        assert!(!tree.has("/bin/y"));
        tree.host_file("/bin/real", Path::new("/dev/null")).unwrap();
        tree.link("/bin/name", "real").unwrap();
        assert_eq!(tree.host_path("/bin/name"), Some("/dev/null".into()));
        assert_eq!(tree.host_path("/bin"), None);
        assert!(tree.file("relative", 0o644, "").is_err());
        assert!(tree.file("/nul\0", 0o644, "").is_err());
    }

    #[test]
    fn a_directory_of_the_host_is_copied_whole_with_its_links() {
        let host = tempfile::tempdir().unwrap();
        fs::create_dir(host.path().join("sub")).unwrap();
        fs::write(host.path().join("sub/file"), "x").unwrap();
        std::os::unix::fs::symlink("sub/file", host.path().join("link")).unwrap();
        let mut tree = Tree::default();
        tree.host_tree("/d", host.path()).unwrap();
        assert!(tree.has("/d/sub/file"));
        assert_eq!(tree.nodes["/d/link"], Node::Link { to: "sub/file".into() });
        assert!(tree.host_tree("/e", Path::new("/no/such/file")).is_err());
    }
}
