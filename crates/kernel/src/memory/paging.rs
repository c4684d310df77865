//! Builds the kernel's half of every address space at boot, by the page tables of `quire_pmap`.

use crate::machine::DirectMap;
use crate::memory::layout::{self, DIRECT, IMAGE, MAP, MAP_END, PAGE};
use crate::memory::stack;
use quire_kernel::loader::memory_map::{Ram, Span};
use quire_pmap::{KernelMapError, Rights};
use quire_pmap_x86_64::KernelTables;
use quire_vm::{MemoryType, Pfn, VirtRange};

/// Builds the kernel's page tables, which map `all` RAM and the image. Table pages are taken from `free`. The root
/// entries of the kernel's map are filled too, so that every address space shares the kernel's later mappings. The page
/// of the image at `guard`, below the boot stack, is not mapped.
pub fn build(all: &Ram, free: &mut Ram, guard: u64) -> Result<KernelTables, KernelMapError> {
    let phys = &DirectMap;
    let mut frames = || take_low(free, PAGE).map(Pfn::containing);
    let root = frames().ok_or(KernelMapError::OutOfMemory)?;
    // SAFETY: frames of `frames` are taken off the free memory, so the tables own them. The direct map is all memory.
    let mut tables = unsafe { KernelTables::new(phys, root) };
    let [text, constants, data, end] = layout::image();
    let range = |start: u64, end: u64| VirtRange { start, end };
    // SAFETY: frames of `frames` go to these tables alone, and the direct map is all memory.
    unsafe {
        tables.reserve(phys, range(IMAGE, end), &mut frames)?;
        tables.reserve(phys, range(DIRECT, DIRECT + all.end()), &mut frames)?;
        tables.reserve(phys, range(MAP, MAP_END), &mut frames)?;
    }
    let mut map = |at: u64, end: u64, physical: u64, rights| {
        // SAFETY: frames of `frames` go to these tables alone, and the direct map is all memory. The kernel maps its own image
        // and all RAM, with the rights that it needs there.
        unsafe { tables.map(phys, range(at, end), physical, rights, MemoryType::WriteBack, &mut frames) }
    };
    map(text, constants, text - IMAGE, Rights::Execute)?;
    map(constants, data, constants - IMAGE, Rights::Read)?;
    map(data, guard, data - IMAGE, Rights::Write)?;
    map(guard + PAGE, end, guard + PAGE - IMAGE, Rights::Write)?;
    // Text and constants are read-only in the direct map too, so that no alias of an executable page is writable.
    let fixed = Span { start: text - IMAGE, end: data - IMAGE };
    for span in all.spans() {
        let before = Span { start: span.start, end: span.end.min(fixed.start) };
        let inside = Span { start: span.start.max(fixed.start), end: span.end.min(fixed.end) };
        let after = Span { start: span.start.max(fixed.end), end: span.end };
        for (part, rights) in [(before, Rights::Write), (inside, Rights::Read), (after, Rights::Write)] {
            if !part.is_empty() {
                map(DIRECT + part.start, DIRECT + part.end, part.start, rights)?;
            }
        }
    }
    Ok(tables)
}

/// Takes memory below 4 GiB for tables and stacks, because the boot page tables, which may still be loaded, map only
/// the first 4 GiB. Returns the physical address; `None` if there is not enough memory.
pub fn take_low(free: &mut Ram, len: u64) -> Option<u64> {
    let at = free.take(len, PAGE, 1 << 20)?;
    (at + len <= 1 << 32).then_some(at)
}

/// Takes memory for large allocations, after the kernel's own tables are loaded. It is above 4 GiB if possible, because
/// devices and the start of CPUs need memory below. Returns the physical address; `None` if there is not enough memory.
pub fn take_large(free: &mut Ram, len: u64) -> Option<u64> {
    free.take(len, PAGE, 1 << 32).or_else(|| free.take(len, PAGE, 1 << 20))
}

/// Maps `len` bytes of device registers at physical address `pa`, before the memory system exists. Registers that are
/// mapped later are in the kernel's map ([`stack::kernel_map`]).
pub fn map_device(
    tables: &KernelTables,
    pa: u64,
    len: u64,
    frames: &mut dyn FnMut() -> Option<Pfn>,
) -> Result<*mut u8, KernelMapError> {
    let offset = pa % PAGE;
    let pages = (offset + len).next_multiple_of(PAGE);
    let va = stack::fresh(pages).ok_or(KernelMapError::OutOfMemory)?;
    let range = VirtRange { start: va, end: va + pages };
    // SAFETY: the caller's frames go to the tables alone, and the range maps registers, which are no memory.
    unsafe { tables.map(&DirectMap, range, pa - offset, Rights::Write, MemoryType::Uncached, frames) }?;
    Ok((va + offset) as *mut u8)
}
