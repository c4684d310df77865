//! RAM that is mapped in one piece.

use super::Phys;
use crate::types::{PAGE_SIZE, Pfn};

/// All of RAM at a fixed distance from its physical addresses, in the kernel's half of every address space.
#[derive(Clone, Copy, Debug)]
pub struct DirectMap {
    start: u64,
}

impl DirectMap {
    /// The map that has physical address 0 at `start`.
    ///
    /// # Safety
    /// Every frame of the machine's RAM is mapped for reads and writes at `start` plus its physical address, as long as
    /// the value or a copy of it is used.
    pub const unsafe fn new(start: u64) -> DirectMap {
        DirectMap { start }
    }

    /// The kernel's address of the physical address `physical`.
    pub const fn address(self, physical: u64) -> u64 {
        self.start.wrapping_add(physical)
    }
}

// SAFETY: the contract of `new`. Addresses are physical addresses plus a constant, so consecutive frames are
// consecutive.
unsafe impl Phys for DirectMap {
    #[inline(always)]
    fn frame_ptr(&self, pfn: Pfn) -> *mut u8 {
        core::ptr::with_exposed_provenance_mut(self.address(pfn.address()) as usize)
    }
    #[inline(always)]
    fn pfn_of(&self, ptr: *const u8) -> Pfn {
        Pfn((ptr.addr() as u64).wrapping_sub(self.start) / PAGE_SIZE)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn frames_lie_in_order_at_their_distance() {
        // SAFETY: the test only computes addresses with the map, and reads and writes nothing through them.
        let map = unsafe { DirectMap::new(0xffff_ffc0_0000_0000) };
        for pfn in [0, 1, 0x8_0000, 0x3ff_ffff].map(Pfn) {
            let at = map.frame_ptr(pfn);
            assert_eq!(at.addr() as u64, 0xffff_ffc0_0000_0000 + pfn.address());
            assert_eq!((map.pfn_of(at), map.pfn_of(at.wrapping_add(4095))), (pfn, pfn));
        }
    }
}
