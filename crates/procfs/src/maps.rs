//! `maps`, and the lines that `smaps` shares with it.

use core::fmt::Write as _;
use quire_fs::FsError;
use quire_fs::generated::{Columns, Text};
use quire_heap::Vec;
use quire_linux_state::machine::Machine;
use quire_linux_state::memory::Foreign;
use quire_vm::Prot;
use quire_vm::map::{EntryInfo, Flags, Tag};

/// Writes the records of mappings from a cursor (second argument) on, until the text has at least the given number of
/// bytes (third argument). Returns the next cursor. A cursor is an address: the next record is of the first mapping
/// that ends above this address.
pub(super) type Records<M> = fn(&Foreign<M>, u64, usize, &mut Text) -> Result<Option<u64>, FsError>;

pub(super) fn maps<M: Machine>(
    memory: &Foreign<M>,
    from: u64,
    enough: usize,
    out: &mut Text,
) -> Result<Option<u64>, FsError> {
    each(memory, from, enough, out, &mut |_, _| Ok(()))
}

/// Calls `write` for mappings from `from` on until `out` has `enough` bytes. Returns the cursor after the last record
/// that was written.
pub(super) fn records<M: Machine>(
    memory: &Foreign<M>,
    from: u64,
    enough: usize,
    out: &mut Text,
    mut write: impl FnMut(&EntryInfo<M>, &mut Text) -> Result<(), FsError>,
) -> Result<Option<u64>, FsError> {
    let (mut written, mut next) = (Ok(()), None);
    memory.mappings(from, &mut |entry| {
        // The last shown mapping may have grown by its neighbour. Then the rest is shown, so that no memory that was
        // there all the time is missing.
        written = match from.checked_sub(entry.range.start).filter(|shown| *shown != 0) {
            Some(shown) => write(&entry.rest(shown), out),
            None => write(entry, out),
        };
        next = (out.len() >= enough).then_some(entry.range.end);
        written.is_ok() && next.is_none()
    });
    written.map(|()| next)
}

/// Whether the mapping is shown as shared. All programs map the kernel's own pages (vDSO). As on Linux, such a mapping
/// is shown as private, with offset 0.
pub(super) fn is_shared<M: Machine>(entry: &EntryInfo<M>) -> bool {
    entry.attributes.flags.contains(Flags::SHARED) && !is_ours(entry)
}

fn is_ours<M: Machine>(entry: &EntryInfo<M>) -> bool {
    matches!(entry.attributes.tag, Tag::Vdso | Tag::Vvar)
}

/// Writes the name of a mapping. Writes nothing if the mapping has no name.
pub(super) fn name<M: Machine>(entry: &EntryInfo<M>, to: &mut Vec<u8>) -> core::fmt::Result {
    match entry.attributes.tag {
        Tag::Heap => to.write_str("[heap]"),
        Tag::Stack => to.write_str("[stack]"),
        Tag::Vdso => to.write_str("[vdso]"),
        Tag::Vvar => to.write_str("[vvar]"),
        Tag::None if entry.ident() != (0, 0) => entry.name(to),
        Tag::None if is_shared(entry) => to.write_str("/dev/zero (deleted)"),
        Tag::None => Ok(()),
    }
}

/// A function that adds lines after the line of a mapping.
pub(super) type More<'a, M> = &'a mut dyn FnMut(&EntryInfo<M>, &mut Text) -> Result<(), FsError>;

/// Writes the lines of mappings by [`records`]. `more` adds lines after the line of each mapping.
pub(super) fn each<M: Machine>(
    memory: &Foreign<M>,
    from: u64,
    enough: usize,
    out: &mut Text,
    more: More<'_, M>,
) -> Result<Option<u64>, FsError> {
    // The name is on the heap, because it may be as long as a path. The parts of a file that is mapped in a row have one
    // name, which is found once.
    let mut shown = Vec::<u8>::new();
    let mut named = None;
    records(memory, from, enough, out, |entry, out| {
        let a = entry.attributes;
        let letter = |prot: Prot, c: u8| if a.prot.contains(prot) { c } else { b'-' };
        let (r, w, x) = (letter(Prot::READ, b'r'), letter(Prot::WRITE, b'w'), letter(Prot::EXEC, b'x'));
        let s = if is_shared(entry) { b's' } else { b'p' };
        let offset = if is_ours(entry) { 0 } else { entry.offset };
        let (device, inode) = entry.ident();
        let (major, minor) = (device >> 8 & 0xfff, device & 0xff);
        let mut write = || {
            if named.is_none() || named != entry.object || a.tag != Tag::None {
                shown.clear();
                named = None;
                name(entry, &mut shown).map_err(|_| FsError::OutOfMemory)?;
                named = entry.object.clone().filter(|_| a.tag == Tag::None);
            }
            // Spaces precede the name, so that all names begin in one column if the numbers before them are short
            // enough.
            let mut line = Columns::<WIDEST>::new();
            line.push_hexadecimal(entry.range.start, 1);
            line.push(b"-");
            line.push_hexadecimal(entry.range.end, 1);
            line.push(&[b' ', r, w, x, s, b' ']);
            line.push_hexadecimal(offset, 8);
            line.push(b" ");
            line.push_hexadecimal(major, 2);
            line.push(b":");
            line.push_hexadecimal(minor, 2);
            line.push(b" ");
            line.push_decimal(inode);
            line.push(b" ");
            if !shown.is_empty() {
                line.fill_to(COLUMN);
            }
            out.push(line.bytes())?;
            out.push(&shown)?;
            out.push(b"\n")
        };
        write().and_then(|()| more(entry, out))
    })
}

/// The column of the names, as on Linux.
const COLUMN: usize = 73;
/// The most bytes before a name: if all numbers have their largest values.
const WIDEST: usize = 96;
