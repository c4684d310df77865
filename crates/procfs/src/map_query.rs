//! `PROCMAP_QUERY`: an ioctl that returns the mapping at an address, so that no text of all mappings must be parsed.

use crate::maps;
use quire_heap::Vec;
use quire_linux_state::base::plain::Plain;
use quire_linux_state::machine::Machine;
use quire_linux_state::memory::Foreign;
use quire_linux_state::{Ctx, Errno};
use quire_vm::map::EntryInfo;
use quire_vm::{PAGE_SIZE, Prot};

/// The number of the request.
pub(crate) const QUERY: u32 = 0xc068_6611;

// The flags of a query. The first four are also the access flags of a mapping.
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;
const EXECUTABLE: u64 = 4;
const SHARED: u64 = 8;
const COVERING_OR_NEXT: u64 = 0x10;
const OF_FILE: u64 = 0x20;
const RIGHTS: u64 = READABLE | WRITABLE | EXECUTABLE | SHARED;
const ALL: u64 = RIGHTS | COVERING_OR_NEXT | OF_FILE;

/// The fewest bytes that a program may pass: the fields up to the address.
const LEAST: u64 = 24;
/// The most bytes of a mapping's name, as on Linux.
const NAME_MOST: usize = 4096;

/// Linux's `struct procmap_query`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Query {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    rights: u64,
    page_size: u64,
    offset: u64,
    inode: u64,
    major: u32,
    minor: u32,
    name_size: u32,
    build_id_size: u32,
    name_address: u64,
    build_id_address: u64,
}

// SAFETY: the two pairs of 32-bit fields fill eight bytes each, so there is no padding. Every bit pattern is a value.
unsafe impl Plain for Query {}
const SIZE: usize = size_of::<Query>();
const _: () = assert!(SIZE == 104);

fn rights<M: Machine>(entry: &EntryInfo<M>) -> u64 {
    let of = |prot: Prot, bit: u64| if entry.attributes.prot.contains(prot) { bit } else { 0 };
    let shared = if maps::is_shared(entry) { SHARED } else { 0 };
    of(Prot::READ, READABLE) | of(Prot::WRITE, WRITABLE) | of(Prot::EXEC, EXECUTABLE) | shared
}

/// Whether Linux counts the mapping as a mapping of a file. Shared anonymous memory counts as a file.
pub(super) fn is_of_file<M: Machine>(entry: &EntryInfo<M>) -> bool {
    entry.ident() != (0, 0) || maps::is_shared(entry)
}

/// The mapping that `query` asks for. ENOENT if there is none.
fn find<M: Machine>(memory: &Foreign<M>, query: &Query) -> Result<EntryInfo<M>, Errno> {
    let mut found = None;
    memory.entries(query.address, &mut |entry| {
        let next = query.flags & COVERING_OR_NEXT != 0;
        let wanted = query.flags & RIGHTS & !rights(entry) == 0
            && (query.flags & OF_FILE == 0 || is_of_file(entry))
            && (next || entry.range.start <= query.address);
        if wanted {
            let (range, attributes, offset) = (entry.range, entry.attributes, entry.offset);
            found = Some(EntryInfo { range, attributes, offset, object: entry.object.clone(), copied: entry.copied });
        }
        !wanted && next
    });
    found.ok_or(Errno::ENOENT)
}

/// Executes the query at address `at` in the caller's memory.
pub(super) fn serve<M: Machine>(ctx: &Ctx<'_, M>, memory: Option<Foreign<M>>, at: u64) -> Result<usize, Errno> {
    let size = ctx.read::<u64>(at)?;
    if size > PAGE_SIZE {
        return Err(Errno::E2BIG);
    }
    if size < LEAST {
        return Err(Errno::EINVAL);
    }
    let known = SIZE.min(size as usize);
    let mut bytes = [0u8; SIZE];
    ctx.user().read_bytes(at, &mut bytes[..known])?;
    let rest = at.checked_add(known as u64).ok_or(Errno::EFAULT)?;
    if !ctx.user().is_zero(rest, size as usize - known)? {
        return Err(Errno::E2BIG);
    }
    let word = |at: usize| bytes[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
    let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
    let mut query = Query {
        size,
        flags: long(8),
        address: long(16),
        name_size: word(80),
        build_id_size: word(84),
        name_address: long(88),
        build_id_address: long(96),
        ..Query::default()
    };
    let both = |size: u32, at: u64| (size != 0) == (at != 0);
    if query.flags & !ALL != 0
        || !both(query.name_size, query.name_address)
        || !both(query.build_id_size, query.build_id_address)
    {
        return Err(Errno::EINVAL);
    }
    let entry = find(&memory.ok_or(Errno::ESRCH)?, &query)?;
    let (device, inode) = entry.ident();
    query.start = entry.range.start;
    query.end = entry.range.end;
    query.rights = rights(&entry);
    query.page_size = PAGE_SIZE;
    if is_of_file(&entry) {
        query.offset = entry.offset;
        (query.major, query.minor) = ((device >> 8 & 0xfff) as u32, (device & 0xff) as u32);
        query.inode = inode;
    }
    // The query never returns a build id. A program that finds none reads it from the file itself.
    query.build_id_size = 0;
    if query.name_size != 0 {
        let mut name = Vec::<u8>::new();
        maps::name(&entry, &mut name).map_err(|_| Errno::ENOMEM)?;
        if !name.is_empty() {
            name.try_push(0)?;
        }
        if name.len() > NAME_MOST.min(query.name_size as usize) {
            return Err(Errno::ENAMETOOLONG);
        }
        query.name_size = name.len() as u32;
        ctx.user().write_bytes(query.name_address, &name)?;
    }
    if known == SIZE {
        ctx.write(at, &query)?;
        return Ok(0);
    }
    let words = [query.start, query.end, query.rights, query.page_size, query.offset, query.inode];
    let pairs = [(query.major, query.minor), (query.name_size, query.build_id_size)];
    let all = [query.size, query.flags, query.address].into_iter().chain(words);
    let all = all.chain(pairs.map(|(low, high)| u64::from(low) | u64::from(high) << 32));
    for (to, word) in bytes.chunks_exact_mut(8).zip(all) {
        to.copy_from_slice(&word.to_le_bytes());
    }
    ctx.user().write_bytes(at, &bytes[..known])?;
    Ok(0)
}
