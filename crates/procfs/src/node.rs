//! Tables of generated files. Most directories of `/proc` are such tables.

use core::fmt;
use quire_fs::NewAttr;
use quire_fs::generated::{Entry, Generated, GeneratedDirectory, GeneratedFile, GeneratedLink, Text};
use quire_fs::{Dentry, FileKind, FsError};
use quire_heap::{Arc, Vec, unsize};
use quire_linux_state::file::host::FileHost;
use quire_linux_state::machine::Machine;

/// A function that receives a directory's entries: cookie, name, kind, inode number. Returns whether to continue.
pub(super) type Each<'a> = &'a mut dyn FnMut(u64, &[u8], FileKind, u64) -> bool;

/// The dentry to which a link leads, or an error.
pub(super) type Jump<M> = Result<Arc<Dentry<FileHost<M>>>, FsError>;

/// A generated directory, or an error.
pub(super) type Directory<M> = Result<Arc<dyn GeneratedDirectory<FileHost<M>>>, FsError>;

/// The kinds of entries in a directory about a subject of type `T`.
pub(super) enum ItemKind<M: Machine, T> {
    /// A text that is generated when it is read.
    File(fn(&T, &mut Text) -> Result<(), FsError>),
    /// A generated text that only the owner may read.
    OwnFile(fn(&T, &mut Text) -> Result<(), FsError>),
    /// A file with these permission bits. The function checks the reader when the file is opened, and binds the file to
    /// its source.
    Bound(u16, fn(&T) -> Result<Arc<dyn GeneratedFile>, FsError>),
    /// A text that can also be written.
    Writable(fn(&T, &mut Text) -> Result<(), FsError>, fn(&T, &[u8]) -> Result<usize, FsError>),
    /// A text that all users may read and write. The two functions check the caller.
    Public(fn(&T, &mut Text) -> Result<(), FsError>, fn(&T, &[u8]) -> Result<usize, FsError>),
    /// A text that can only be written.
    WriteOnly(fn(&T, &[u8]) -> Result<usize, FsError>),
    /// A link and the function that returns its text. The second function, if present, returns the dentry to follow
    /// instead of the text.
    Link(fn(&T) -> Result<Vec<u8>, FsError>, Option<fn(&T) -> Jump<M>>),
    /// A directory that only the owner may read.
    OwnDirectory(fn(&T) -> Directory<M>),
    /// A directory.
    Directory(fn(&T) -> Directory<M>),
}

/// An entry of a table: its name and its kind.
pub(super) struct Item<M: Machine, T> {
    pub name: &'static str,
    pub kind: ItemKind<M, T>,
}

impl<M: Machine, T> Item<M, T> {
    pub const fn file(name: &'static str, text: fn(&T, &mut Text) -> Result<(), FsError>) -> Self {
        Item { name, kind: ItemKind::File(text) }
    }

    /// An entry for a generated text that only the owner may read. All users may read the text of [`file`](Self::file).
    pub const fn own(name: &'static str, text: fn(&T, &mut Text) -> Result<(), FsError>) -> Self {
        Item { name, kind: ItemKind::OwnFile(text) }
    }

    fn kind(&self) -> FileKind {
        match self.kind {
            ItemKind::File(_)
            | ItemKind::OwnFile(_)
            | ItemKind::Bound(..)
            | ItemKind::Writable(..)
            | ItemKind::Public(..)
            | ItemKind::WriteOnly(_) => FileKind::Regular,
            ItemKind::Link(..) => FileKind::Symlink,
            ItemKind::Directory(_) | ItemKind::OwnDirectory(_) => FileKind::Directory,
        }
    }
}

struct File<M: Machine, T: 'static> {
    about: T,
    item: &'static Item<M, T>,
    takes_from_pipes: bool,
}

impl<M: Machine, T: Send + Sync> GeneratedFile for File<M, T> {
    fn open(&self) -> Result<Option<Arc<dyn GeneratedFile>>, FsError> {
        match self.item.kind {
            ItemKind::Bound(_, bind) => bind(&self.about).map(Some),
            _ => Ok(None),
        }
    }

    fn text(&self, out: &mut Text) -> Result<(), FsError> {
        match self.item.kind {
            ItemKind::File(text)
            | ItemKind::OwnFile(text)
            | ItemKind::Writable(text, _)
            | ItemKind::Public(text, _) => text(&self.about, out),
            ItemKind::WriteOnly(_) => Err(FsError::Denied),
            _ => Err(FsError::Invalid),
        }
    }

    fn store(&self, bytes: &[u8]) -> Result<usize, FsError> {
        match self.item.kind {
            ItemKind::Writable(_, store) | ItemKind::Public(_, store) | ItemKind::WriteOnly(store) => {
                store(&self.about, bytes)
            }
            _ => Err(FsError::NotPermitted),
        }
    }

    fn takes_from_pipes(&self) -> bool {
        self.takes_from_pipes
    }
}

impl<M: Machine, T: Send + Sync> GeneratedLink<FileHost<M>> for File<M, T> {
    fn target(&self) -> Result<Vec<u8>, FsError> {
        match self.item.kind {
            ItemKind::Link(target, _) => target(&self.about),
            _ => Err(FsError::Invalid),
        }
    }

    fn jump(&self) -> Option<Jump<M>> {
        match self.item.kind {
            ItemKind::Link(_, Some(jump)) => Some(jump(&self.about)),
            _ => None,
        }
    }
}

/// A directory that is a table, about a subject of type `T`. Its inode numbers start at `numbers`.
pub(super) struct Table<M: Machine, T: 'static> {
    pub about: T,
    pub items: &'static [Item<M, T>],
    pub numbers: u64,
    /// The owner of the directories that all users may read.
    pub owner: (u32, u32),
    /// The owner of all other entries.
    pub files_owner: (u32, u32),
    /// Whether `splice` from a pipe may write to the files. As on Linux, only the files in `/proc/sys` accept such a
    /// `splice`.
    pub takes_from_pipes: bool,
}

impl<M: Machine, T> Table<M, T> {
    /// A table whose entries root owns.
    pub fn of_root(about: T, items: &'static [Item<M, T>], numbers: u64) -> Self {
        Table { about, items, numbers, owner: (0, 0), files_owner: (0, 0), takes_from_pipes: false }
    }
}

impl<M: Machine, T: Clone + Send + Sync> Table<M, T> {
    fn entry(&self, at: usize) -> Result<Entry<FileHost<M>>, FsError> {
        let item = &self.items[at];
        let takes_from_pipes = self.takes_from_pipes;
        let file = || Arc::try_new(File { about: self.about.clone(), item, takes_from_pipes });
        let (node, mode) = match &item.kind {
            ItemKind::File(_) => (Generated::File(unsize!(file()?)), 0o444),
            ItemKind::OwnFile(_) => (Generated::File(unsize!(file()?)), 0o400),
            ItemKind::Bound(mode, _) => (Generated::File(unsize!(file()?)), *mode),
            ItemKind::Writable(..) => (Generated::File(unsize!(file()?)), 0o644),
            ItemKind::Public(..) => (Generated::File(unsize!(file()?)), 0o666),
            ItemKind::WriteOnly(_) => (Generated::File(unsize!(file()?)), 0o200),
            ItemKind::Link(..) => (Generated::Link(unsize!(file()?)), 0o777),
            ItemKind::Directory(make) => (Generated::Directory(make(&self.about)?), 0o555),
            ItemKind::OwnDirectory(make) => (Generated::Directory(make(&self.about)?), 0o500),
        };
        let (uid, gid) = if matches!(item.kind, ItemKind::Directory(_)) { self.owner } else { self.files_owner };
        let attr = NewAttr { mode, uid, gid };
        Ok(Entry { number: self.numbers + at as u64, attr, node })
    }

    /// Lists the entries after cookie `after` (a position in the directory). The first entry has cookie 1. Returns
    /// whether `each` wants to continue.
    pub fn list_items(&self, after: u64, each: Each<'_>) -> bool {
        for (at, item) in self.items.iter().enumerate().skip(after as usize) {
            let number = self.numbers + at as u64;
            if !each(at as u64 + 1, item.name.as_bytes(), item.kind(), number) {
                return false;
            }
        }
        true
    }
}

impl<M: Machine, T: Clone + Send + Sync> GeneratedDirectory<FileHost<M>> for Table<M, T> {
    fn lookup(&self, name: &[u8]) -> Result<Option<Entry<FileHost<M>>>, FsError> {
        let at = self.items.iter().position(|item| item.name.as_bytes() == name);
        at.map(|at| self.entry(at)).transpose()
    }

    fn list(&self, after: u64, each: Each<'_>) -> Result<(), FsError> {
        self.list_items(after, each);
        Ok(())
    }
}

/// Allocates a directory on the heap.
pub(super) fn directory<M: Machine, D: GeneratedDirectory<FileHost<M>> + 'static>(of: D) -> Directory<M> {
    Ok(unsize!(Arc::try_new(of)?))
}

/// A short file name, stored without an allocation: a number, a word and a number, or two numbers.
pub(super) struct Short {
    bytes: [u8; Short::MOST],
    len: usize,
}

impl Short {
    /// The most bytes of a short name: two hexadecimal addresses and a dash.
    const MOST: usize = 33;

    /// The name that `name` formats.
    pub fn new(name: fmt::Arguments<'_>) -> Self {
        let mut new = Short { bytes: [0; Short::MOST], len: 0 };
        let written = fmt::write(&mut new, name);
        debug_assert!(written.is_ok(), "{name} is no short name");
        new
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl fmt::Write for Short {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        let end = self.len + s.len();
        self.bytes.get_mut(self.len..end).ok_or(fmt::Error)?.copy_from_slice(s.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// The error of a text that had no memory to grow.
pub(crate) fn no_memory(_: fmt::Error) -> FsError {
    FsError::OutOfMemory
}

/// `write!` into a text. It fails only if there is no memory.
macro_rules! put {
    ($out:expr, $($arg:tt)*) => {
        core::fmt::Write::write_fmt($out, format_args!($($arg)*)).map_err($crate::node::no_memory)
    };
}
pub(super) use put;

/// Writes texts and numbers without the formatter, which is several times slower. The parts are string literals and
/// numbers: `dec n` decimal, `kib n` in a column of KiB, `hex width n` hexadecimal with `width` digits.
macro_rules! parts {
    ($out:expr $(,)?) => { Ok(()) };
    ($out:expr, dec $value:expr $(, $($rest:tt)*)?) => {
        $out.push_decimal($value, 0).and_then(|()| parts!($out $(, $($rest)*)?))
    };
    ($out:expr, hex $least:literal $value:expr $(, $($rest:tt)*)?) => {
        $out.push_hexadecimal($value, $least).and_then(|()| parts!($out $(, $($rest)*)?))
    };
    ($out:expr, kib $value:expr $(, $($rest:tt)*)?) => {
        $out.push_decimal($value, 8).and_then(|()| $out.push(b" kB\n")).and_then(|()| parts!($out $(, $($rest)*)?))
    };
    ($out:expr, $text:literal $(, $($rest:tt)*)?) => {
        $out.push($text.as_bytes()).and_then(|()| parts!($out $(, $($rest)*)?))
    };
}
pub(super) use parts;

/// Parses a number in a file name: decimal, without a sign or leading zeroes. `None` if `name` is not such a number.
pub(super) fn number(name: &[u8]) -> Option<u32> {
    if name.is_empty() || name.len() > 10 || (name[0] == b'0' && name.len() > 1) || !name.iter().all(u8::is_ascii_digit)
    {
        return None;
    }
    core::str::from_utf8(name).ok()?.parse().ok()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::{Short, number};

    #[test]
    fn short_names_need_no_memory() {
        let longest = || Short::new(format_args!("{:x}-{:x}", u64::MAX, u64::MAX));
        assert_eq!(quire_heap::refusal::allocations(|| _ = longest()), 0);
        assert_eq!(longest().bytes(), b"ffffffffffffffff-ffffffffffffffff");
    }

    #[test]
    fn only_plain_numbers_name_processes() {
        assert_eq!(number(b"17"), Some(17));
        assert_eq!(number(b"0"), Some(0));
        for bad in [&b""[..], b"01", b"+1", b"1x", b"99999999999", b"4294967296"] {
            assert_eq!(number(bad), None);
        }
    }
}
