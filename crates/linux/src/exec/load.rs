//! Maps a program's segments into a new address space.

use crate::exec::elf::{Header, Layout};
use crate::exec::strings::{Stack, aux};
use crate::exec::{Identity, elf};
use crate::signal;
use quire_heap::Vec;
use quire_linux_state::Linux;
use quire_linux_state::errno::Errno;
use quire_linux_state::machine::Machine;
use quire_linux_state::memory::Heap;
use quire_linux_state::vdso;
use quire_vm::map::{Limits, MapRequest, Placement, Tag, USER, Wire};
use quire_vm::object::ObjectRef;
use quire_vm::{PAGE_SIZE, Prot, Space, SpaceRef};

/// A program file whose headers were read and checked.
pub struct Program {
    /// The ELF header.
    pub header: Header,
    /// The contents of the program headers.
    pub layout: Layout,
}

impl Program {
    /// Reads the program in `object`, whose first bytes are `head`.
    pub fn read<M: Machine>(object: &ObjectRef<M>, head: &[u8]) -> Result<Program, Errno> {
        let header = Header::parse(head)?;
        let len = header.segments_len();
        // Linkers usually put the program headers directly after the ELF header, so `head` has them already.
        let start = usize::try_from(header.segments_at).map_err(|_| Errno::ENOEXEC)?;
        if let Some(near) = start.checked_add(len).and_then(|end| head.get(start..end)) {
            return Ok(Program { header, layout: Layout::parse(&header, near)? });
        }
        let mut bytes = Vec::new();
        bytes.try_resize(len, 0)?;
        if quire_linux_state::file::read_kernel(object, header.segments_at, &mut bytes)? != len {
            return Err(Errno::ENOEXEC);
        }
        Ok(Program { header, layout: Layout::parse(&header, &bytes)? })
    }

    /// Reads the path of the program's interpreter. `None` if the program has none.
    pub fn interpreter_path<M: Machine>(&self, object: &ObjectRef<M>) -> Result<Option<Vec<u8>>, Errno> {
        let Some((offset, len)) = self.layout.interpreter else { return Ok(None) };
        let mut path = Vec::new();
        path.try_resize(len, 0)?;
        if quire_linux_state::file::read_kernel(object, offset, &mut path)? != len
            || path.pop() != Some(0)
            || path.contains(&0)
        {
            return Err(Errno::ENOEXEC);
        }
        Ok(Some(path))
    }
}

/// The addresses of stack, mappings and heap that the kernel chooses for a program.
///
/// All of them follow from one random base. Mappings are placed upwards from the base. The stack grows down from a
/// little below the base. The two pages of the [`vdso`] are in between. So the stack, program and libraries of a small
/// process share page tables. The heap starts at the gigabyte boundary below the base, in the same page directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// The address after the stack's highest byte.
    pub stack_top: u64,
    /// The address of the two pages of the vDSO: the clock page and the shared object.
    pub vdso: u64,
    /// The address from which mappings are placed.
    pub base: u64,
    /// The start of the heap of a position-independent program.
    pub heap: u64,
    /// The gap in bytes between a program at fixed addresses and its heap. As on Linux, it is whole pages and less than
    /// 32 MiB.
    pub heap_gap: u64,
}

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
/// The lowest base. The range of bases has 16 TiB, so 48 TiB are above the highest base.
const LOWEST: u64 = 0x4000_0000_0000;
/// The stack limit in bytes above which the heap is placed far below the stack.
const NEAR_STACK: u64 = 512 * MIB;
/// The lowest base for a program at fixed addresses. These bases are in the upper half of the range of the first root
/// table entry.
const LOWEST_NEAR: u64 = 256 * GIB;

/// The number of possible places of the vDSO between stack and mappings. They are one page apart.
const VDSO_PLACES: u64 = 16;
/// The size in bytes of the range that the possible places of the vDSO cover.
const VDSO_ROOM: u64 = (VDSO_PLACES - 1 + vdso::PAGES) * PAGE_SIZE;

/// The gap between program and heap, from bits of `random` that are not used for other choices.
fn heap_gap(random: u64) -> u64 {
    (random >> 40 & 0x1fff) * PAGE_SIZE
}

impl Places {
    /// Whether `program` gets a base of [`near_from_bits`](Self::near_from_bits). The program must be at fixed
    /// addresses far below these bases, and its stack must be bounded. It must have no interpreter, because its
    /// libraries could include a sanitizer, which reserves all addresses below 17 TiB.
    fn are_near(program: &Program, interpreter: bool, stack_limit: u64) -> bool {
        let (_, end) = program.layout.span();
        !program.header.relocatable && !interpreter && end <= LOWEST_NEAR / 2 && stack_limit <= NEAR_STACK
    }

    /// Places by `random` bits for a program at low, fixed addresses, whose heap follows it. Such a program needs page
    /// tables for low addresses in any case. Stack and mappings share the entry of the root table with the program, so
    /// a small process needs one table page less. The heap can grow to at least 128 GiB.
    fn near_from_bits(random: u64) -> Places {
        // 8 bits choose a gigabyte. 9 bits choose a page table in it, because the gigabyte is otherwise empty. 7 bits
        // choose a page, as in `from_bits`. Together these are 24 bits, and `from_bits` uses 26.
        let table = LOWEST_NEAR + (random & 0xff) * GIB + (random >> 8 & 0x1ff) * 2 * MIB;
        let base = table + MIB / 2 + (random >> 17 & 0x7f) * PAGE_SIZE;
        // The heap follows the program, so `heap` is unused.
        Places::around(base, base, random)
    }

    /// Places around `base`. 4 bits choose the place of the vDSO.
    fn around(base: u64, heap: u64, random: u64) -> Places {
        let stack_top = base - VDSO_ROOM;
        let vdso = stack_top + (random >> 56 & (VDSO_PLACES - 1)) * PAGE_SIZE;
        Places { stack_top, vdso, base, heap, heap_gap: heap_gap(random) }
    }

    /// Places by `random` bits, for all other programs.
    fn from_bits(random: u64, stack_limit: u64) -> Places {
        // 14 bits choose a gigabyte, and 5 bits choose a page table in its last 64 MiB. 7 bits choose a page in the
        // middle of that table. So the table has room for the stack below the base and for mappings above it.
        let gigabyte = LOWEST + (random & 0x3fff) * GIB;
        let table = gigabyte + GIB - 64 * MIB + (random >> 14 & 0x1f) * 2 * MIB;
        let base = table + MIB / 2 + (random >> 19 & 0x7f) * PAGE_SIZE;
        let heap_page = (random >> 26 & 0xff) * PAGE_SIZE;
        let heap = if stack_limit <= NEAR_STACK { gigabyte } else { gigabyte - (8 << 40) } + heap_page;
        Places::around(base, heap, random)
    }

    /// Places for `program`. They are random if `chosen` is set, otherwise always the same. `interpreter` says whether
    /// the program has an interpreter.
    pub(crate) fn random<M: Machine>(
        linux: &Linux<M>,
        program: &Program,
        interpreter: bool,
        stack_limit: u64,
        chosen: bool,
    ) -> Places {
        let mut bits = [0u8; 8];
        if chosen {
            linux.random.fill(&mut bits);
        }
        let bits = u64::from_le_bytes(bits);
        if Places::are_near(program, interpreter, stack_limit) {
            Places::near_from_bits(bits)
        } else {
            Places::from_bits(bits, stack_limit)
        }
    }
}

/// A loaded program.
pub struct Loaded<M: Machine> {
    /// The new address space.
    pub space: SpaceRef<M>,
    /// The address of the first instruction: that of the interpreter if there is one, otherwise that of the program.
    pub entry: u64,
    /// The heap, which is still empty.
    pub heap: Heap,
    /// The start and the end of the program's code.
    pub code: (u64, u64),
    /// The ranges that must be zeroed.
    pub tails: [Option<(u64, usize)>; 2],
    /// The load bias, added to the program's addresses.
    bias: u64,
    interpreter: u64,
    /// The address of the vDSO, or `None` if it is not mapped.
    vdso: Option<u64>,
}

/// Maps `program`, its interpreter and the vDSO into a new address space.
pub(crate) fn load<M: Machine>(
    linux: &'static Linux<M>,
    places: &Places,
    object: &ObjectRef<M>,
    program: &Program,
    interpreter: Option<(&ObjectRef<M>, &Program)>,
    most: crate::exec::Limits,
) -> Result<Loaded<M>, Errno> {
    let space = Space::new(linux.vm)?;
    let (bytes, data) = (most.bytes.min(USER.end), most.data);
    space.set_limits(Limits { base: places.base, entries: linux.max_map_count(), bytes, data, ..space.limits() });
    let bias = map_segments(&space, places.base, object, program)?;
    let (start, end) = program.layout.span();
    let heap = match program.header.relocatable {
        true => places.heap,
        false => end.wrapping_add(bias).wrapping_add(places.heap_gap),
    };
    let mut tails = [tail(program, bias), None];
    let (mut entry, mut interpreter_bias) = (program.header.entry.wrapping_add(bias), 0);
    if let Some((object, program)) = interpreter {
        let above = if start.wrapping_add(bias) >= places.base { end.wrapping_add(bias) } else { places.base };
        interpreter_bias = map_segments(&space, above, object, program)?;
        entry = program.header.entry.wrapping_add(interpreter_bias);
        tails[1] = tail(program, interpreter_bias);
    }
    let code = program.layout.segments.iter().filter(|s| s.prot.contains(Prot::EXEC));
    let code = code.map(|s| s.address.wrapping_add(bias)..s.address.wrapping_add(s.memory_len).wrapping_add(bias));
    let code = code.fold((u64::MAX, 0), |(lo, hi), s| (lo.min(s.start), hi.max(s.end)));
    let heap = Heap { start: heap, end: heap };
    let code = (code.0.min(code.1), code.1);
    // The vDSO is mapped last, because it must not take addresses that the program needs.
    let vdso = linux.vdso.map(&space, places.vdso)?;
    Ok(Loaded { space, entry, heap, code, tails, bias, interpreter: interpreter_bias, vdso })
}

/// The range after the last segment's file bytes that must be zeroed. `None` if the program cannot write there.
fn tail(program: &Program, bias: u64) -> Option<(u64, usize)> {
    let segment = program.layout.segments.iter().rfind(|s| s.tail().is_some())?;
    let (at, len) = segment.tail()?;
    segment.prot.contains(Prot::WRITE).then_some((at.wrapping_add(bias), len))
}

/// Maps all segments, and returns the load bias. A position-independent file is mapped at the first free range from
/// `base` on.
fn map_segments<M: Machine>(
    space: &SpaceRef<M>,
    base: u64,
    object: &ObjectRef<M>,
    program: &Program,
) -> Result<u64, Errno> {
    let (start, end) = program.layout.span();
    let bias = if program.header.relocatable {
        let align = program.layout.align.max(PAGE_SIZE);
        let at = base.checked_next_multiple_of(align).ok_or(Errno::ENOMEM)?;
        at.checked_add(end - start).filter(|end| *end <= quire_linux_state::user::USER_END).ok_or(Errno::ENOMEM)?;
        at.wrapping_sub(start)
    } else {
        0
    };
    for segment in &program.layout.segments {
        let (from, file_end, to) = (segment.map_start(), segment.file_map_end(), segment.map_end());
        if file_end > from {
            let request = MapRequest {
                at: Placement::Fixed(from.wrapping_add(bias)),
                len: file_end - from,
                object: Some((object, segment.map_offset())),
                ..private(segment.prot)
            };
            space.map(&request)?;
        }
        if to > file_end {
            let request = MapRequest {
                at: Placement::Fixed(file_end.wrapping_add(bias)),
                len: to - file_end,
                ..private(segment.prot)
            };
            space.map(&request)?;
        }
    }
    Ok(bias)
}

fn private<'o, M: Machine>(prot: Prot) -> MapRequest<'o, M> {
    MapRequest {
        at: Placement::Any { hint: 0 },
        len: 0,
        prot,
        max_prot: Prot::all(),
        shared: false,
        object: None,
        grows_down: false,
        tag: Tag::None,
        wire: Wire::No,
        populate: false,
    }
}

/// The bytes of a stack that are mapped at first. Faults grow the stack.
const FIRST_STACK: u64 = 132 << 10;

/// Maps the range to which `stack` will be written.
pub(crate) fn map_stack<M: Machine>(
    space: &SpaceRef<M>,
    places: &Places,
    stack: &Stack,
    limit: u64,
    executable: bool,
) -> Result<(), Errno> {
    let len = (stack.bytes.len() as u64 + FIRST_STACK).next_multiple_of(PAGE_SIZE);
    let mut prot = Prot::READ | Prot::WRITE;
    prot.set(Prot::EXEC, executable);
    let at = Placement::Fixed(places.stack_top - len);
    space.map(&MapRequest { at, len, grows_down: true, tag: Tag::Stack, ..private(prot) })?;
    space.set_limits(Limits { stack: limit, ..space.limits() });
    Ok(())
}

impl<M: Machine> Loaded<M> {
    /// The auxiliary vector, without the entries that point to the stack.
    pub(crate) fn vector(
        &self,
        linux: &Linux<M>,
        program: &Program,
        identity: Identity,
    ) -> Result<Vec<(u64, u64)>, Errno> {
        let mut out = Vec::new();
        out.try_reserve_exact(23)?;
        out.extend_reserved(&[
            (aux::MINSIGSTKSZ, signal::frame::least_stack(linux.machine) as u64),
            (aux::HWCAP, linux.machine.hwcap()),
            (aux::PAGESZ, PAGE_SIZE),
            (aux::CLKTCK, quire_linux_state::time::TICKS_PER_SECOND),
            (aux::PHDR, program.layout.headers.map_or(0, |at| at.wrapping_add(self.bias))),
            (aux::PHENT, elf::SEGMENT_LEN as u64),
            (aux::PHNUM, program.header.segment_count as u64),
            (aux::BASE, self.interpreter),
            (aux::FLAGS, 0),
            (aux::ENTRY, program.header.entry.wrapping_add(self.bias)),
            (aux::UID, u64::from(identity.user)),
            (aux::EUID, u64::from(identity.effective_user)),
            (aux::GID, u64::from(identity.group)),
            (aux::EGID, u64::from(identity.effective_group)),
            (aux::SECURE, u64::from(identity.secure)),
            (aux::HWCAP2, 0),
            (aux::RSEQ_FEATURE_SIZE, crate::rseq::FEATURE_LEN),
            (aux::RSEQ_ALIGN, crate::rseq::ALIGN),
        ]);
        if let Some(at) = self.vdso {
            out.extend_reserved(&[(aux::SYSINFO_EHDR, at)]);
        }
        Ok(out)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stack_and_mappings_share_a_page_table_and_nothing_collides(random in any::<u64>(), large in any::<bool>()) {
            let limit = if large { u64::MAX } else { 8 * MIB };
            let p = Places::from_bits(random, limit);
            prop_assert_eq!(p.base % PAGE_SIZE, 0);
            prop_assert!(p.stack_top <= p.vdso && p.vdso + vdso::PAGES * PAGE_SIZE <= p.base);
            prop_assert_eq!((p.stack_top - FIRST_STACK) / (2 * MIB), (p.base + 256 * PAGE_SIZE) / (2 * MIB));
            prop_assert!(p.base < LOWEST + (16 << 40));
            prop_assert!(p.heap_gap.is_multiple_of(PAGE_SIZE) && p.heap_gap < 32 * MIB);
            if large {
                prop_assert!(p.stack_top - p.heap > 7 << 40);
            } else {
                prop_assert_eq!(p.heap / GIB, p.base / GIB);
                prop_assert!(p.stack_top - limit - p.heap > 800 * MIB);
            }
        }

        #[test]
        fn stack_and_mappings_of_a_fixed_program_share_a_table(random in any::<u64>()) {
            let p = Places::near_from_bits(random);
            prop_assert_eq!(p.base % PAGE_SIZE, 0);
            prop_assert!(p.stack_top <= p.vdso && p.vdso + vdso::PAGES * PAGE_SIZE <= p.base);
            prop_assert_eq!((p.stack_top - FIRST_STACK) / (2 * MIB), (p.base + 256 * PAGE_SIZE) / (2 * MIB));
            prop_assert_eq!((p.base + 256 * PAGE_SIZE) / (512 * GIB), 0);
            prop_assert!(p.stack_top - NEAR_STACK - LOWEST_NEAR / 2 > 127 * GIB);
        }
    }
}
