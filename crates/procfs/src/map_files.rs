//! `map_files`: a link for each mapping of a file. The link's name is the mapping's address range.
//!
//! Listing and lookup need access to the process, as for `maps`. Following a link also needs CAP_SYS_ADMIN or
//! CAP_CHECKPOINT_RESTORE, because it bypasses directories that the caller may not search. The permission bits of the
//! file itself are checked when it is opened.
//!
//! A link leads to the dentry by which the file was created. If that dentry is gone, the link leads to the dentry by
//! which the file was first opened afterwards. This dentry exists while it is in a directory or open. A mapping alone
//! does not keep it. If no dentry is left, the link cannot be followed (ENOENT). As on Linux, shared memory without a
//! file has a link, but it cannot be followed.

use crate::about::Task;
use crate::map_query::is_of_file;
use crate::maps;
use crate::node::{Directory, Each, Jump, Short, directory as on_heap};
use quire_fs::generated::{Entry, Generated, GeneratedDirectory, GeneratedLink};
use quire_fs::{FileKind, FsError, NewAttr};
use quire_heap::{Arc, Vec, unsize};
use quire_linux::file::path::absolute;
use quire_linux_state::file::host::FileHost;
use quire_linux_state::file::objects;
use quire_linux_state::machine::Machine;
use quire_linux_state::memory::Foreign;
use quire_linux_state::process::credentials::capabilities::cap;
use quire_vm::map::{EntryInfo, Flags};
use quire_vm::{PAGE_SIZE, Prot, VirtRange};

struct Mappings<M: Machine>(Task<M>);
/// The link of the mapping with exactly this address range. When the link is used, the reader is checked and the
/// mapping is looked up again.
struct Link<M: Machine>(Task<M>, VirtRange);

/// The directory `map_files`.
pub(super) fn directory<M: Machine>(about: Task<M>) -> Directory<M> {
    on_heap(Mappings(about))
}

/// The address range in a name: two hexadecimal numbers without leading zeroes. Letters may be upper case, as on Linux.
fn addresses(name: &[u8]) -> Option<VirtRange> {
    fn hexadecimal(digits: &[u8]) -> Option<u64> {
        let plain = digits.iter().all(u8::is_ascii_hexdigit) && !(digits.len() > 1 && digits[0] == b'0');
        u64::from_str_radix(core::str::from_utf8(digits).ok().filter(|_| plain)?, 16).ok()
    }
    let dash = name.iter().position(|byte| *byte == b'-')?;
    Some(VirtRange { start: hexadecimal(&name[..dash])?, end: hexadecimal(&name[dash + 1..])? })
}

/// The result of `f` for the mapping with exactly the address range `range`. `None` if there is no such mapping, or if
/// it maps no file.
fn exact<M: Machine, R>(memory: &Foreign<M>, range: VirtRange, f: impl FnOnce(&EntryInfo<M>) -> R) -> Option<R> {
    let (mut f, mut found) = (Some(f), None);
    memory.mappings(range.start, &mut |entry| {
        if entry.range == range && is_of_file(entry) {
            found = f.take().map(|f| f(entry));
        }
        false
    });
    found
}

impl<M: Machine> Mappings<M> {
    /// The inode number of the link. It consists of the thread's id (22 bits) and the page number of `start` (35 bits),
    /// so a mapping keeps its number.
    fn number(&self, start: u64) -> u64 {
        1 << 62 | u64::from(self.0.tid) << 36 | (start / PAGE_SIZE)
    }
}

impl<M: Machine> GeneratedDirectory<FileHost<M>> for Mappings<M> {
    fn lookup(&self, name: &[u8]) -> Result<Option<Entry<FileHost<M>>>, FsError> {
        let memory = self.0.look()?.memory;
        let Some((memory, range)) = memory.zip(addresses(name)) else { return Ok(None) };
        let mode = exact(&memory, range, |entry| {
            // The mode shows the access that the mapping may have, and not the access with which its file was opened.
            let a = entry.attributes;
            let stores = a.flags.contains(Flags::SHARED) && a.max_prot.contains(Prot::WRITE);
            0o400 | if stores { 0o200 } else { 0 }
        });
        let Some(mode) = mode else { return Ok(None) };
        let (uid, gid) = self.0.files_owner();
        let node = Generated::Link(unsize!(Arc::try_new(Link(self.0.clone(), range))?));
        Ok(Some(Entry { number: self.number(range.start), attr: NewAttr { mode, uid, gid }, node }))
    }

    fn admits(&self) -> bool {
        core::ptr::eq(&*self.0.process.linux.current().process, &*self.0.process)
    }

    fn list(&self, after: u64, each: Each<'_>) -> Result<(), FsError> {
        let Some(memory) = self.0.look()?.memory else { return Ok(()) };
        // A cookie is the end address of a mapping, and the next mapping ends above it.
        memory.mappings(after, &mut |entry| {
            let VirtRange { start, end } = entry.range;
            if !is_of_file(entry) {
                return true;
            }
            let name = Short::new(format_args!("{start:x}-{end:x}"));
            each(end, name.bytes(), FileKind::Symlink, self.number(start))
        });
        Ok(())
    }
}

impl<M: Machine> Link<M> {
    /// The result of `f` for the link's mapping. First checks whether the caller may access the process.
    fn mapping<R>(&self, f: impl FnOnce(&EntryInfo<M>) -> Result<R, FsError>) -> Result<R, FsError> {
        let memory = self.0.look()?.memory.ok_or(FsError::NotFound)?;
        exact(&memory, self.1, f).ok_or(FsError::NotFound)?
    }
}

impl<M: Machine> GeneratedLink<FileHost<M>> for Link<M> {
    fn target(&self) -> Result<Vec<u8>, FsError> {
        self.mapping(|entry| match objects::dentry_of(entry) {
            Some(dentry) => absolute(self.0.process.linux.files.vfs().root(), &dentry),
            None => {
                let mut name = Vec::new();
                maps::name(entry, &mut name).map_err(|_| FsError::OutOfMemory)?;
                Ok(name)
            }
        })
    }

    fn jump(&self) -> Option<Jump<M>> {
        let me = self.0.process.linux.current();
        // SAFETY: the thread `me` itself runs this, and does not replace its credentials during the check.
        let mine = unsafe { me.credentials.get() };
        if !mine.may(cap::SYS_ADMIN) && !mine.may(cap::CHECKPOINT_RESTORE) {
            return Some(Err(FsError::NotPermitted));
        }
        Some(self.mapping(|entry| objects::dentry_of(entry).ok_or(FsError::NotFound)))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn only_plain_addresses_name_a_mapping() {
        let range = |start, end| Some(VirtRange { start, end });
        assert_eq!(addresses(b"400000-401000"), range(0x40_0000, 0x40_1000));
        assert_eq!(addresses(b"7fffF000-7FFffFFFf000"), range(0x7fff_f000, 0x7fff_ffff_f000));
        assert_eq!((addresses(b"0-1"), addresses(b"0-0")), (range(0, 1), range(0, 0)));
        assert_eq!(addresses(b"ffffffffffffffff-0"), range(u64::MAX, 0));
        for bad in
            ["", "-", "1", "1-", "-1", "01-2", "1-02", "0x1-2", "1-2-3", "1--2", "+1-2", "1-+2", " 1-2", "1-2 ", "g-1"]
        {
            assert_eq!(addresses(bad.as_bytes()), None, "{bad}");
        }
        assert_eq!(addresses(b"10000000000000000-20000000000000000"), None);
    }
}
