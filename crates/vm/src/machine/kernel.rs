//! The kernel's own page tables, as its map uses them.

use super::Machine;
use crate::error::OutOfMemory;
use crate::phys::Physical;
use crate::tlb::flush::FlushSet;
use crate::types::{MemoryType, Pfn};

/// A machine on which the kernel has addresses of its own, the same in every space.
///
/// # Safety
/// `flush_kernel` returns only when no CPU holds a translation of the addresses that it names. Frames are freed and
/// addresses are used again after that.
pub unsafe trait KernelPages: Machine {
    /// Maps the page at `va` to `pfn`, to load and store, never to execute. Needs no flush.
    ///
    /// # Safety
    /// Nothing is mapped at `va`, which is an address of the caller's map, and `vm` is this machine's. The frame is the
    /// caller's until the page is unmapped and flushed.
    unsafe fn map_kernel(
        &self,
        vm: &'static Physical<Self>,
        va: u64,
        pfn: Pfn,
        memory: MemoryType,
    ) -> Result<(), OutOfMemory>;

    /// Takes the mapping of the page at `va` away, where there is one, and returns its frame. CPUs may continue to use
    /// it until [`flush_kernel`](Self::flush_kernel).
    ///
    /// # Safety
    /// The page is the caller's, and nothing reaches it any more.
    unsafe fn unmap_kernel(&self, va: u64) -> Option<Pfn>;

    /// Makes every CPU drop its translations of `set`. The only broadcast, because every CPU has kernel translations.
    fn flush_kernel(&self, set: &FlushSet);
}
