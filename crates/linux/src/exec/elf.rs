//! Reads ELF headers. Every field is checked here, so that the loader can rely on valid fields.

use quire_heap::Vec;
use quire_linux_state::errno::Errno;
use quire_linux_state::user::USER_END;
use quire_vm::{PAGE_SIZE, Prot};

/// The size of the ELF header in bytes.
pub const HEADER_LEN: usize = 64;
/// The size of a program header in bytes.
pub const SEGMENT_LEN: usize = 56;
/// The most program headers. As on Linux, they must fit in 64 KiB.
const MOST_SEGMENTS: usize = 65_536 / SEGMENT_LEN;
/// The most bytes of an interpreter's path.
const LONGEST_PATH: u64 = 4096;

const TYPE_EXECUTABLE: u16 = 2;
const TYPE_SHARED: u16 = 3;
const MACHINE_X86_64: u16 = 62;
const LOAD: u32 = 1;
const INTERPRETER: u32 = 3;
const HEADERS: u32 = 6;
const GNU_STACK: u32 = 0x6474_e551;

/// The fields of the file header that the loader uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// Loadable at any address (a shared object, a position-independent program), not at fixed addresses.
    pub relocatable: bool,
    /// The address of the program's first instruction, before the load bias.
    pub entry: u64,
    /// The offset of the program headers in the file.
    pub segments_at: u64,
    /// The number of program headers.
    pub segment_count: usize,
}

/// A loadable segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// The segment's address, before the load bias.
    pub address: u64,
    /// The segment's size in memory, in bytes.
    pub memory_len: u64,
    /// The number of bytes that come from the file. The rest of the segment is zero.
    pub file_len: u64,
    /// The offset in the file of the bytes that come from the file.
    pub offset: u64,
    /// The segment's protection.
    pub prot: Prot,
}

/// The contents of the program headers.
#[derive(PartialEq, Eq, Debug)]
pub struct Layout {
    /// The segments to map, in ascending order. There is at least one segment, and no segment is empty. Each segment
    /// begins in a later page than the segment before it.
    pub segments: Vec<Segment>,
    /// The offset and the length of the interpreter's path in the file.
    pub interpreter: Option<(u64, usize)>,
    /// Whether the stack must be executable.
    pub executable_stack: bool,
    /// The address of the program headers in memory, before the load bias. `None` if no segment contains them.
    pub headers: Option<u64>,
    /// The largest alignment of a segment.
    pub align: u64,
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

impl Header {
    /// Parses the first bytes of the file. ENOEXEC if the file is no program for this machine.
    pub fn parse(bytes: &[u8]) -> Result<Header, Errno> {
        if bytes.len() < HEADER_LEN || bytes[..4] != *b"\x7fELF" {
            return Err(Errno::ENOEXEC);
        }
        // The file must be 64-bit, little-endian, and version 1.
        if bytes[4] != 2 || bytes[5] != 1 || bytes[6] != 1 {
            return Err(Errno::ENOEXEC);
        }
        let kind = u16_at(bytes, 16);
        let count = usize::from(u16_at(bytes, 56));
        let wrong = (kind != TYPE_EXECUTABLE && kind != TYPE_SHARED)
            || u16_at(bytes, 18) != MACHINE_X86_64
            || usize::from(u16_at(bytes, 54)) != SEGMENT_LEN
            || !(1..=MOST_SEGMENTS).contains(&count);
        if wrong {
            return Err(Errno::ENOEXEC);
        }
        Ok(Header {
            relocatable: kind == TYPE_SHARED,
            entry: u64_at(bytes, 24),
            segments_at: u64_at(bytes, 32),
            segment_count: count,
        })
    }

    /// The size of all program headers in bytes.
    pub fn segments_len(&self) -> usize {
        self.segment_count * SEGMENT_LEN
    }
}

impl Layout {
    /// Parses the program headers. `bytes` has [`Header::segments_len`] bytes.
    pub fn parse(header: &Header, bytes: &[u8]) -> Result<Layout, Errno> {
        let mut out = Layout {
            segments: Vec::new(),
            interpreter: None,
            executable_stack: false,
            headers: None,
            align: PAGE_SIZE,
        };
        let mut headers_by_load = None;
        for raw in bytes.chunks_exact(SEGMENT_LEN).take(header.segment_count) {
            let flags = u32_at(raw, 4);
            let (offset, address) = (u64_at(raw, 8), u64_at(raw, 16));
            let (file_len, memory_len, align) = (u64_at(raw, 32), u64_at(raw, 40), u64_at(raw, 48));
            match u32_at(raw, 0) {
                LOAD => {
                    if memory_len == 0 && file_len == 0 {
                        continue;
                    }
                    let segment = Segment { address, memory_len, file_len, offset, prot: prot_of(flags) };
                    segment.check()?;
                    if out.segments.last().is_some_and(|last| last.address + last.memory_len > address) {
                        return Err(Errno::ENOEXEC);
                    }
                    if align.is_power_of_two() && align <= 1 << 30 {
                        out.align = out.align.max(align);
                    }
                    if (offset..offset + file_len).contains(&header.segments_at) {
                        headers_by_load = headers_by_load.or(Some(address + (header.segments_at - offset)));
                    }
                    out.segments.try_push(segment)?;
                }
                INTERPRETER if out.interpreter.is_none() => {
                    if !(2..=LONGEST_PATH).contains(&file_len) {
                        return Err(Errno::ENOEXEC);
                    }
                    out.interpreter = Some((offset, file_len as usize));
                }
                HEADERS => out.headers = Some(address),
                GNU_STACK => out.executable_stack = flags & 1 != 0,
                _ => {}
            }
        }
        out.headers = out.headers.filter(|at| *at < USER_END).or(headers_by_load);
        if out.segments.is_empty() { Err(Errno::ENOEXEC) } else { Ok(out) }
    }

    /// The start of the first page and the page-aligned end of all mapped segments, before the load bias.
    pub fn span(&self) -> (u64, u64) {
        let start = self.segments.first().map_or(0, Segment::map_start);
        let end = self.segments.last().map_or(0, |s| (s.address + s.memory_len).next_multiple_of(PAGE_SIZE));
        (start, end)
    }
}

fn prot_of(flags: u32) -> Prot {
    let mut prot = Prot::empty();
    prot.set(Prot::EXEC, flags & 1 != 0);
    prot.set(Prot::WRITE, flags & 2 != 0);
    prot.set(Prot::READ, flags & 4 != 0);
    prot
}

impl Segment {
    fn check(&self) -> Result<(), Errno> {
        let end = self.address.checked_add(self.memory_len).filter(|end| *end <= USER_END);
        let file_end = self.offset.checked_add(self.file_len).filter(|end| *end <= i64::MAX as u64);
        let congruent = self.address % PAGE_SIZE == self.offset % PAGE_SIZE;
        if end.is_none() || file_end.is_none() || self.file_len > self.memory_len || (self.file_len > 0 && !congruent) {
            return Err(Errno::ENOEXEC);
        }
        Ok(())
    }

    /// The address of the segment's first page, before the load bias.
    pub fn map_start(&self) -> u64 {
        self.address & !(PAGE_SIZE - 1)
    }
    /// The page-aligned end of the pages that map the file, before the load bias.
    pub fn file_map_end(&self) -> u64 {
        if self.file_len == 0 { self.map_start() } else { (self.address + self.file_len).next_multiple_of(PAGE_SIZE) }
    }
    /// The page-aligned end of the segment, before the load bias.
    pub fn map_end(&self) -> u64 {
        (self.address + self.memory_len).next_multiple_of(PAGE_SIZE)
    }
    /// The offset of the segment's first page in the file.
    pub fn map_offset(&self) -> u64 {
        self.offset & !(PAGE_SIZE - 1)
    }
    /// The part of the last file page that must be zeroed: its start, before the load bias, and its length.
    pub fn tail(&self) -> Option<(u64, usize)> {
        if self.file_len == 0 || self.memory_len == self.file_len {
            return None;
        }
        let start = self.address + self.file_len;
        let len = self.file_map_end() - start;
        (len != 0).then_some((start, len as usize))
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    fn header(kind: u16, count: u16) -> std::vec::Vec<u8> {
        let mut out = vec![0u8; HEADER_LEN];
        out[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        out[16..18].copy_from_slice(&kind.to_le_bytes());
        out[18..20].copy_from_slice(&MACHINE_X86_64.to_le_bytes());
        out[24..32].copy_from_slice(&0x40_1000u64.to_le_bytes());
        out[32..40].copy_from_slice(&64u64.to_le_bytes());
        out[54..56].copy_from_slice(&(SEGMENT_LEN as u16).to_le_bytes());
        out[56..58].copy_from_slice(&count.to_le_bytes());
        out
    }

    fn program_header(kind: u32, flags: u32, numbers: [u64; 6]) -> std::vec::Vec<u8> {
        let [offset, address, physical, file_len, memory_len, align] = numbers;
        let mut out = std::vec::Vec::new();
        out.extend(kind.to_le_bytes());
        out.extend(flags.to_le_bytes());
        for n in [offset, address, physical, file_len, memory_len, align] {
            out.extend(n.to_le_bytes());
        }
        out
    }

    #[test]
    fn a_static_program_is_read_as_it_was_linked() {
        let h = Header::parse(&header(2, 3)).expect("a header");
        assert_eq!((h.relocatable, h.entry, h.segments_len()), (false, 0x40_1000, 168));
        let mut raw = program_header(LOAD, 5, [0, 0x40_0000, 0, 0x1234, 0x1234, 4096]);
        raw.extend(program_header(LOAD, 6, [0x1f00, 0x40_2f00, 0, 0x200, 0x5000, 4096]));
        raw.extend(program_header(GNU_STACK, 6, [0; 6]));
        let l = Layout::parse(&h, &raw).expect("a layout");
        assert_eq!(l.span(), (0x40_0000, 0x40_8000));
        assert_eq!(l.headers, Some(0x40_0040));
        assert!(!l.executable_stack && l.interpreter.is_none());
        let data = l.segments[1];
        assert_eq!(data.prot, Prot::READ | Prot::WRITE);
        assert_eq!((data.map_start(), data.file_map_end(), data.map_end()), (0x40_2000, 0x40_4000, 0x40_8000));
        assert_eq!((data.map_offset(), data.tail()), (0x1000, Some((0x40_3100, 0xf00))));
    }

    #[test]
    fn other_machines_classes_and_kinds_are_refused() {
        for (at, value) in [(4, 1), (5, 2), (6, 0), (16, 1), (18, 3), (54, 32), (56, 0)] {
            let mut raw = header(2, 1);
            raw[at] = value;
            assert_eq!(Header::parse(&raw), Err(Errno::ENOEXEC), "byte {at}");
        }
        assert_eq!(Header::parse(b"\x7fELF"), Err(Errno::ENOEXEC));
    }

    #[test]
    fn overlapping_wrapping_and_misaligned_segments_are_refused() {
        let h = Header::parse(&header(3, 2)).expect("a header");
        let two = |a: [u64; 6], b: [u64; 6]| {
            let mut raw = program_header(LOAD, 4, a);
            raw.extend(program_header(LOAD, 4, b));
            Layout::parse(&h, &raw)
        };
        let good = [0, 0x1000, 0, 0x1000, 0x1000, 4096];
        assert!(two(good, [0x1000, 0x2000, 0, 1, 1, 4096]).is_ok());
        assert!(two(good, [0x1000, 0x1000, 0, 1, 1, 4096]).is_err());
        assert!(two(good, [0x1000, u64::MAX - 0xfff, 0, 0x1000, 0x1000, 4096]).is_err());
        assert!(two(good, [0x1001, 0x3000, 0, 1, 1, 4096]).is_err());
        assert!(two(good, [0x1000, 0x3000, 0, 2, 1, 4096]).is_err());
        assert!(two(good, [u64::MAX - 0xfff, 0x3000, 0, 0x1000, 0x1000, 4096]).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic_or_leave_user_space(
            mut bytes in proptest::collection::vec(any::<u8>(), 64..512),
            tame in any::<bool>(),
        ) {
            if tame {
                let good = header(3, 4);
                bytes[..HEADER_LEN].copy_from_slice(&good);
                for i in (HEADER_LEN..bytes.len()).step_by(SEGMENT_LEN) {
                    bytes[i] %= 8;
                    for byte in bytes.iter_mut().skip(i + 1).take(3) {
                        *byte = 0;
                    }
                }
            }
            if let Ok(h) = Header::parse(&bytes)
                && let Ok(l) = Layout::parse(&h, &bytes[HEADER_LEN..])
            {
                let (start, end) = l.span();
                prop_assert!(start < end && end <= USER_END);
                for s in &l.segments {
                    prop_assert!(s.map_start() <= s.file_map_end() && s.file_map_end() <= s.map_end());
                    prop_assert!(start <= s.map_start() && s.map_end() <= end);
                }
            }
        }
    }
}
