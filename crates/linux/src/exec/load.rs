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
use quire_linux_state::system::settings::Setting;
use quire_linux_state::vdso;
use quire_vm::map::{Limits, MapRequest, Placement, Tag, USER};
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
/// They lie where Linux puts them, because sanitizers know Linux's layout: ThreadSanitizer ends a program whose stack or
/// libraries lie outside its `0x7e80_0000_0000..0x8000_0000_0000`, or whose position-independent code lies outside its
/// `0x5500_0000_0000..0x5680_0000_0000`.
///
/// Stack, vDSO and mappings follow from one random base. Mappings are placed upwards from the base. The stack grows down
/// from a little below the base. The two pages of the [`vdso`] are in between. So the stack and the libraries of a small
/// process share page tables. A program with an interpreter has a random place of its own, and its heap follows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Places {
    /// The address after the stack's highest byte.
    pub stack_top: u64,
    /// The address of the two pages of the vDSO: the clock page and the shared object.
    pub vdso: u64,
    /// The address from which mappings are placed.
    pub base: u64,
    /// The lowest address of a position-independent program that has an interpreter. Of a program without one, which is
    /// placed as a mapping, it is the start of the heap.
    pub program: u64,
    /// The gap in bytes between a program and its heap. As on Linux, it is whole pages and less than 32 MiB.
    pub heap_gap: u64,
}

const GIB: u64 = 1 << 30;
/// The lowest base. The 64 GiB below it down to the lowest address of sanitizers' libraries are for the stack.
const LOWEST: u64 = 0x7e80_0000_0000 + 64 * GIB;
/// The lowest place of a position-independent program: two thirds of the address space, as on Linux.
const LOWEST_PROGRAM: u64 = 0x5555_5555_4000;
/// The bits by which a base, and a program's place, are random. They choose a page, as on Linux.
pub const PLACE_BITS: u32 = 28;

/// The number of possible places of the vDSO between stack and mappings. They are one page apart.
const VDSO_PLACES: u64 = 16;
/// The size in bytes of the range that the possible places of the vDSO cover.
const VDSO_ROOM: u64 = (VDSO_PLACES - 1 + vdso::PAGES) * PAGE_SIZE;

impl Places {
    /// Places by random bits. `bits` chooses the base, the place of the vDSO, and the gap before the heap. `more` chooses
    /// the program's place.
    fn from_bits(bits: u64, more: u64) -> Places {
        let pages = |bits: u64| (bits & ((1 << PLACE_BITS) - 1)) * PAGE_SIZE;
        let base = LOWEST + pages(bits);
        let stack_top = base - VDSO_ROOM;
        let vdso = stack_top + (bits >> 56 & (VDSO_PLACES - 1)) * PAGE_SIZE;
        let heap_gap = (bits >> 40 & 0x1fff) * PAGE_SIZE;
        Places { stack_top, vdso, base, program: LOWEST_PROGRAM + pages(more), heap_gap }
    }

    /// Random places if `chosen` is set, otherwise always the same.
    pub(crate) fn random<M: Machine>(linux: &Linux<M>, chosen: bool) -> Places {
        let mut bits = [0u8; 16];
        if chosen {
            linux.random.fill(&mut bits);
        }
        let bits = u128::from_le_bytes(bits);
        Places::from_bits(bits as u64, (bits >> 64) as u64)
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
    let lowest = linux.settings.get(Setting::LowestMapping).unsigned_abs();
    if !program.header.relocatable && program.layout.span().0 < lowest {
        return Err(Errno::EPERM);
    }
    let space = Space::new(linux.vm)?;
    let (bytes, data) = (most.bytes.min(USER.end), most.data);
    space.set_limits(Limits { base: places.base, entries: linux.max_map_count(), bytes, data, ..space.limits() });
    // A position-independent program without an interpreter may be an interpreter itself. As on Linux it lies among the
    // mappings, out of the way of the program that it loads, and its heap does not.
    let alone = program.header.relocatable && interpreter.is_none();
    let bias = map_segments(&space, if alone { places.base } else { places.program }, object, program)?;
    let (start, end) = program.layout.span();
    let heap = match alone {
        true => places.program,
        false => end.wrapping_add(bias).next_multiple_of(PAGE_SIZE).wrapping_add(places.heap_gap),
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
    MapRequest { prot, ..MapRequest::private(Placement::Any { hint: 0 }, 0) }
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

    const MIB: u64 = 1 << 20;

    proptest! {
        #[test]
        fn places_lie_where_sanitizers_allow_them_and_nothing_collides(bits in any::<u64>(), more in any::<u64>()) {
            let p = Places::from_bits(bits, more);
            prop_assert!([p.base, p.stack_top, p.vdso, p.program, p.heap_gap].iter().all(|at| at % PAGE_SIZE == 0));
            prop_assert!(p.stack_top <= p.vdso && p.vdso + vdso::PAGES * PAGE_SIZE <= p.base);
            // A stack of 32 GiB, and 400 GiB of mappings.
            prop_assert!(p.stack_top - 32 * GIB >= 0x7e80_0000_0000 && p.base + 400 * GIB <= USER.end);
            prop_assert!(p.program >= 0x5500_0000_0000 && p.heap_gap < 32 * MIB);
            // A program and a heap of 64 GiB each.
            prop_assert!(p.program + p.heap_gap + 128 * GIB <= 0x5680_0000_0000);
        }
    }

    #[test]
    fn each_bit_of_a_place_is_random() {
        let zero = Places::from_bits(0, 0);
        let all = Places::from_bits(u64::MAX, u64::MAX);
        let most = ((1 << 28) - 1) * PAGE_SIZE;
        assert_eq!([all.base - zero.base, all.stack_top - zero.stack_top, all.program - zero.program], [most; 3]);
    }
}
