//! Builds the kernel's half of every address space at boot, over `quire_pmap_x86_64`'s tables.

use crate::layout::{self, DEVICES, DIRECT, IMAGE, PAGE, STACKS, STACKS_END};
use crate::machine::DirectMap;
use core::sync::atomic::{AtomicU64, Ordering};
use quire_kernel::memory_map::{Ram, Span};
use quire_pmap_x86_64::{Caching, KernelMapError, KernelTables, Rights};
use quire_vm::{Pfn, VirtRange};

/// Bytes of addresses set aside for device registers: a root entry's worth is the least there is.
const DEVICES_LEN: u64 = 1 << 39;

/// Builds the kernel's tables over `all` RAM, taking table pages from `free`. Root entries for stacks and devices are made
/// too, so that mappings made there later are in every space.
pub fn build(all: &Ram, free: &mut Ram) -> Result<KernelTables, KernelMapError> {
    let phys = &DirectMap;
    let mut frames = || take_low(free, PAGE).map(Pfn::containing);
    let root = frames().ok_or(KernelMapError::OutOfMemory)?;
    let mut tables = KernelTables::new(phys, root);
    let [text, constants, data, end] = layout::image();
    let range = |start: u64, end: u64| VirtRange { start, end };
    tables.reserve(phys, range(IMAGE, end), &mut frames)?;
    tables.reserve(phys, range(DIRECT, DIRECT + all.end()), &mut frames)?;
    tables.reserve(phys, range(STACKS, STACKS_END), &mut frames)?;
    tables.reserve(phys, range(DEVICES, DEVICES + DEVICES_LEN), &mut frames)?;
    let mut map = |at: u64, end: u64, physical: u64, rights| {
        tables.map(phys, range(at, end), physical, rights, Caching::WriteBack, &mut frames)
    };
    map(text, constants, text - IMAGE, Rights::Execute)?;
    map(constants, data, constants - IMAGE, Rights::Read)?;
    let guard = crate::boot::pvh::stack_guard();
    map(data, guard, data - IMAGE, Rights::Write)?;
    map(guard + PAGE, end, guard + PAGE - IMAGE, Rights::Write)?;
    // W^X holds for the alias too: text and constants are not writable through the direct map either.
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

/// Memory for tables and stacks while the boot tables, which show the first 4 GiB, may still be loaded.
pub fn take_low(free: &mut Ram, len: u64) -> Option<u64> {
    let at = free.take(len, PAGE, 1 << 20)?;
    (at + len <= 1 << 32).then_some(at)
}

static NEXT_DEVICE: AtomicU64 = AtomicU64::new(DEVICES);

/// Maps `len` bytes of device registers at physical address `pa`.
pub fn map_device(
    tables: &KernelTables,
    pa: u64,
    len: u64,
    frames: &mut dyn FnMut() -> Option<Pfn>,
) -> Result<*mut u8, KernelMapError> {
    let offset = pa % PAGE;
    let pages = (offset + len).next_multiple_of(PAGE);
    let va = NEXT_DEVICE.fetch_add(pages, Ordering::Relaxed);
    let range = VirtRange { start: va, end: va + pages };
    tables.map(&DirectMap, range, pa - offset, Rights::Write, Caching::Uncached, frames)?;
    Ok((va + offset) as *mut u8)
}
