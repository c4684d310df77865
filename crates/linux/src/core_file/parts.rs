//! The parts of the memory: which mappings there are, and how much of each the file holds.

use crate::{Ctx, Errno, Machine};
use core::fmt::Write as _;
use quire_heap::Vec;
use quire_vm::map::{EntryInfo, Flags, Tag};
use quire_vm::{PAGE_SIZE, Prot, VirtRange};

/// The most mappings that the header of a file can count.
const MOST: usize = 0xfff0;

/// One mapping.
pub(super) struct Part {
    pub range: VirtRange,
    pub prot: Prot,
    /// Bytes of it, from its start, that the file holds.
    pub kept: u64,
}

/// The mappings of files, for a note: three words for each, and their names.
#[derive(Default)]
pub(super) struct Files {
    pub words: Vec<u64>,
    pub names: Vec<u8>,
}

/// The mappings of the caller's space.
pub(super) fn of<M: Machine>(ctx: &Ctx<'_, M>) -> Result<(Vec<Part>, Files), Errno> {
    let (mut parts, mut files) = (Vec::new(), Files::default());
    let mut result = Ok(());
    ctx.space()?.entries(PAGE_SIZE, &mut |entry| {
        result = add(&mut parts, &mut files, entry);
        result.is_ok()
    });
    result.map(|()| (parts, files))
}

fn add<M: Machine>(parts: &mut Vec<Part>, files: &mut Files, entry: &EntryInfo<M>) -> Result<(), Errno> {
    if parts.len() == MOST {
        return Err(Errno::E2BIG);
    }
    parts.try_push(Part { range: entry.range, prot: entry.attributes.prot, kept: kept(entry) })?;
    let ours = matches!(entry.tag(), Tag::Vdso | Tag::Vvar);
    if entry.ident() != (0, 0) && !ours {
        files.words.try_extend([entry.range.start, entry.range.end, entry.offset / PAGE_SIZE])?;
        entry.name(&mut files.names).and_then(|()| files.names.write_char('\0')).map_err(|_| Errno::ENOMEM)?;
    }
    Ok(())
}

/// How much of a mapping the file holds: memory that no file has, files that the program has changed for itself, and
/// the headers of programs.
fn kept<M: Machine>(entry: &EntryInfo<M>) -> u64 {
    let a = entry.attributes;
    let of_file = entry.ident() != (0, 0);
    let changed = !a.flags.intersects(Flags::SHARED | Flags::NEEDS_FRONT);
    match entry.tag() {
        Tag::Vvar => 0,
        Tag::Vdso => entry.range.len(),
        _ if !of_file || changed => entry.range.len(),
        _ if !a.flags.contains(Flags::SHARED) && entry.offset == 0 && a.prot.contains(Prot::READ) => PAGE_SIZE,
        _ => 0,
    }
}
