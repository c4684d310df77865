//! The layout of an ELF core file: the header, the program headers, the notes, and from the next page boundary on the
//! segments.

use crate::signal::core_file::parts::Part;
use quire_heap::Vec;
use quire_linux_state::Errno;
use quire_vm::{PAGE_SIZE, Prot};

/// The size of the ELF header in bytes.
const HEADER: usize = 64;
/// The size of a program header in bytes.
const LINE: usize = 56;
const TYPE_CORE: u16 = 4;
const MACHINE_X86_64: u16 = 62;
const PART_LOAD: u32 = 1;
const PART_NOTE: u32 = 4;

/// A program header.
struct Line {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    kept: u64,
    len: u64,
    align: u64,
}

impl Line {
    fn put(&self, out: &mut Vec<u8>) -> Result<(), Errno> {
        out.try_extend_from_slice(&self.kind.to_le_bytes())?;
        out.try_extend_from_slice(&self.flags.to_le_bytes())?;
        for word in [self.offset, self.address, 0, self.kept, self.len, self.align] {
            out.try_extend_from_slice(&word.to_le_bytes())?;
        }
        Ok(())
    }
}

/// The ELF header and the program headers of a file with these parts and with `notes` bytes of notes.
pub(super) fn headers(parts: &[Part], notes: usize) -> Result<Vec<u8>, Errno> {
    let table = LINE * (parts.len() + 1);
    let mut out = Vec::try_with_capacity(HEADER + table)?;
    // Identification: 64 bits, little-endian, version 1, System V.
    out.try_extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0")?;
    out.try_extend_from_slice(&TYPE_CORE.to_le_bytes())?;
    out.try_extend_from_slice(&MACHINE_X86_64.to_le_bytes())?;
    out.try_extend_from_slice(&1u32.to_le_bytes())?;
    // No entry point, the offset of the program headers, no sections; then no flags.
    for word in [0, HEADER as u64, 0] {
        out.try_extend_from_slice(&word.to_le_bytes())?;
    }
    out.try_extend_from_slice(&0u32.to_le_bytes())?;
    for half in [HEADER, LINE, parts.len() + 1, 0, 0, 0] {
        out.try_extend_from_slice(&(half as u16).to_le_bytes())?;
    }
    let mut offset = (HEADER + table) as u64;
    let (kept, len) = (notes as u64, 0);
    Line { kind: PART_NOTE, flags: 0, offset, address: 0, kept, len, align: 4 }.put(&mut out)?;
    offset = (offset + notes as u64).next_multiple_of(PAGE_SIZE);
    for part in parts {
        let flag = |prot, bit| if part.prot.contains(prot) { bit } else { 0 };
        let flags = flag(Prot::EXEC, 1) | flag(Prot::WRITE, 2) | flag(Prot::READ, 4);
        let (address, kept, len) = (part.range.start, part.kept, part.range.len());
        Line { kind: PART_LOAD, flags, offset, address, kept, len, align: PAGE_SIZE }.put(&mut out)?;
        offset = offset.checked_add(kept).ok_or(Errno::EFBIG)?;
    }
    Ok(out)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_vm::VirtRange;

    fn word(bytes: &[u8], at: usize) -> u64 {
        u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
    }

    #[test]
    fn parts_follow_the_notes_from_the_next_page_on() {
        let part = |start, end, kept| Part { range: VirtRange { start, end }, prot: Prot::READ, kept, ours: false };
        let parts = [part(0x1000, 0x3000, 0x2000), part(0x4000, 0x8000, 0), part(0x9000, 0xa000, 0x1000)];
        let out = headers(&parts, 5000).unwrap();
        assert_eq!(out.len(), HEADER + 4 * LINE);
        assert_eq!((&out[..4], out[16], out[56]), (&b"\x7fELF"[..], 4, 4));
        let line = |n: usize| HEADER + n * LINE;
        assert_eq!((word(&out, line(0) + 8), word(&out, line(0) + 32)), (out.len() as u64, 5000));
        let offsets = [1, 2, 3].map(|n| word(&out, line(n) + 8));
        assert_eq!(offsets, [0x2000, 0x4000, 0x4000]);
        assert_eq!((word(&out, line(2) + 32), word(&out, line(2) + 40)), (0, 0x4000));
    }
}
