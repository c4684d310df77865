//! The interface to the kernel's own page tables, for the kernel's map.

use super::Machine;
use crate::error::OutOfMemory;
use crate::phys::Physical;
use crate::tlb::flush::FlushSet;
use crate::types::{MemoryType, Pfn};

/// A machine on which the kernel has addresses of its own, which are the same in every address space.
///
/// # Safety
/// `flush_kernel` returns only when no CPU has a translation of the given addresses any more. The caller then frees
/// frames and reuses addresses.
pub unsafe trait KernelPages: Machine {
    /// Maps the page at `va` to `pfn`, with the rights to load and store but not to execute. Needs no flush.
    ///
    /// # Safety
    /// Nothing is mapped at `va`, which is an address of the caller's map, and `vm` is the system of this machine. The
    /// caller owns the frame until the page is unmapped and flushed.
    unsafe fn map_kernel(
        &self,
        vm: &'static Physical<Self>,
        va: u64,
        pfn: Pfn,
        memory: MemoryType,
    ) -> Result<(), OutOfMemory>;

    /// Removes the mapping of the page at `va`, and returns its frame. `None` if there was no mapping. CPUs may use the
    /// old translation until [`flush_kernel`](Self::flush_kernel).
    ///
    /// # Safety
    /// The caller owns the page, and no code uses it any more.
    unsafe fn unmap_kernel(&self, va: u64) -> Option<Pfn>;

    /// Makes every CPU drop its translations of `set`. Only this flush goes to all CPUs, because every CPU has kernel
    /// translations.
    fn flush_kernel(&self, set: &FlushSet);
}
