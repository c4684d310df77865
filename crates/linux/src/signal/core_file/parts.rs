//! The parts of a core file: the mappings of the process, and how much of each is written.

use core::fmt::Write as _;
use quire_heap::Vec;
use quire_linux_state::{Ctx, Errno, Machine};
use quire_sync::atomic::Ordering;
use quire_vm::map::{EntryInfo, Flags, Tag};
use quire_vm::{PAGE_SIZE, Prot, VirtRange};

/// The most mappings that the header of a file can count.
const MOST: usize = 0xfff0;

/// One mapping.
pub(super) struct Part {
    pub range: VirtRange,
    pub prot: Prot,
    /// The number of bytes, from the start of the mapping, that are written to the file.
    pub kept: u64,
    /// The part is kernel memory that is mapped for the program (such as the vDSO). It must be read through the
    /// program's mapping.
    pub ours: bool,
}

// The kinds of memory, as bits of `coredump_filter`. The bits of huge pages and DAX files are left out, because this
// kernel has neither.
const PRIVATE: u32 = 1;
const SHARED: u32 = 2;
const PRIVATE_FILE: u32 = 4;
const SHARED_FILE: u32 = 8;
const HEADERS: u32 = 16;

/// The mapped files, for a note: three words for each mapping, and the names.
#[derive(Default)]
pub(super) struct Files {
    pub words: Vec<u64>,
    pub names: Vec<u8>,
}

/// The mappings of the caller's address space, and its mapped files.
pub(super) fn of<M: Machine>(ctx: &Ctx<'_, M>) -> Result<(Vec<Part>, Files), Errno> {
    let (mut parts, mut files) = (Vec::new(), Files::default());
    let mut result = Ok(());
    let filter = ctx.space()?.core_filter.load(Ordering::Relaxed);
    ctx.space()?.mappings(0, &mut |entry| {
        result = add(&mut parts, &mut files, entry, filter);
        result.is_ok()
    });
    result.map(|()| (parts, files))
}

fn add<M: Machine>(parts: &mut Vec<Part>, files: &mut Files, entry: &EntryInfo<M>, filter: u32) -> Result<(), Errno> {
    if parts.len() == MOST {
        return Err(Errno::E2BIG);
    }
    let ours = matches!(entry.tag(), Tag::Vdso | Tag::Vvar);
    let mut nameless = false;
    if entry.ident() != (0, 0) && !ours {
        files.words.try_extend([entry.range.start, entry.range.end, entry.offset / PAGE_SIZE])?;
        entry.name(&mut files.names).map_err(|_| Errno::ENOMEM)?;
        // The suffix marks a removed file, which no other process can open by name.
        nameless = files.names.ends_with(b"(deleted)");
        files.names.write_char('\0').map_err(|_| Errno::ENOMEM)?;
    }
    let kept = kept(entry, filter, nameless);
    Ok(parts.try_push(Part { range: entry.range, prot: entry.attributes.prot, kept, ours })?)
}

/// The number of bytes of a mapping that are written, by `filter`. A privately mapped file that the program has changed
/// counts as private memory. A shared file without a name counts as shared memory.
fn kept<M: Machine>(entry: &EntryInfo<M>, filter: u32, nameless: bool) -> u64 {
    let a = entry.attributes;
    let of_file = entry.ident() != (0, 0);
    let whole = entry.range.len();
    match entry.tag() {
        Tag::Vvar => return 0,
        Tag::Vdso => return whole,
        _ if a.flags.contains(Flags::DONT_DUMP) => return 0,
        _ => {}
    }
    let holds = |kind: u32| filter & kind != 0;
    if a.flags.contains(Flags::SHARED) {
        let kind = if of_file && !nameless { SHARED_FILE } else { SHARED };
        return if holds(kind) { whole } else { 0 };
    }
    let changed = !of_file || !a.flags.contains(Flags::NEEDS_FRONT);
    if changed && holds(PRIVATE) || of_file && holds(PRIVATE_FILE) {
        return whole;
    }
    let header = of_file && entry.offset == 0 && a.prot.contains(Prot::READ) && holds(HEADERS);
    if header { PAGE_SIZE } else { 0 }
}
