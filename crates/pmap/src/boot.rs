//! The kernel's tables and the CPUs' state in frames from the start of RAM, before the memory core exists.

use crate::format::{Format, Rights};
use crate::kernel_tables::{KernelMapError, KernelTables};
use crate::mmu::Mmu;
use core::ptr::NonNull;
use quire_vm::{MemoryType, OutOfMemory, PAGE_SIZE, Pfn, Phys, PhysRange, VirtRange};

/// Addresses of the kernel, and the memory that they map.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The addresses, in the kernel's half.
    pub range: VirtRange,
    /// The physical address that the first of them maps. The others follow in order.
    pub physical: u64,
    /// What the kernel may do there.
    pub rights: Rights,
}

/// Takes the first frame off `ram`.
fn take(ram: &mut PhysRange) -> Option<Pfn> {
    let first = (ram.start < ram.end).then_some(ram.start)?;
    ram.start = Pfn(first.0 + 1);
    Some(first)
}

/// Makes the kernel's tables over `regions`, which are write-back memory. The frames of the tables are taken off the
/// start of `ram`.
///
/// # Safety
/// No other code uses the frames of `ram` that are taken. `phys` reaches all of them. The kernel may have the memory of
/// each region with the region's rights.
pub unsafe fn kernel_tables<F: Format>(
    phys: &impl Phys,
    ram: &mut PhysRange,
    regions: &[Region],
) -> Result<KernelTables<F>, KernelMapError> {
    let root = take(ram).ok_or(OutOfMemory)?;
    // SAFETY: by this function's contract, the frame that was taken has no other user.
    let mut tables = unsafe { KernelTables::new(phys, root) };
    for region in regions {
        let mut frames = || take(ram);
        // SAFETY: as for the root. The contract gives the kernel the region's memory with these rights.
        unsafe {
            tables.reserve(phys, region.range, &mut frames)?;
            tables.map(phys, region.range, region.physical, region.rights, MemoryType::WriteBack, &mut frames)?;
        }
    }
    Ok(tables)
}

/// Makes the state of `cpus` CPUs, as [`Mmu::new`] does, in frames that are taken off the start of `ram`.
///
/// # Safety
/// No other code uses the frames of `ram` that are taken. `phys` reaches all of them.
pub unsafe fn mmu<F: Format>(
    phys: &impl Phys,
    ram: &mut PhysRange,
    cpus: usize,
    kernel: KernelTables<F>,
    tags: bool,
) -> Result<Mmu<F>, OutOfMemory> {
    let frames = (Mmu::<F>::bytes(cpus) as u64).div_ceil(PAGE_SIZE);
    let end = ram.start.0.checked_add(frames).filter(|end| *end <= ram.end.0).ok_or(OutOfMemory)?;
    let memory = NonNull::new(phys.frame_ptr(ram.start)).ok_or(OutOfMemory)?;
    ram.start = Pfn(end);
    // SAFETY: the frames are consecutive memory that has no other user, and are aligned to pages.
    Ok(unsafe { Mmu::new(memory, cpus, kernel, tags) })
}
