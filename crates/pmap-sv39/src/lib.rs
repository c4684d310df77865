//! RISC-V Sv39 page tables for Quire: three levels, and the hardware's encoding (RISC-V privileged architecture, 12.4).
//! The architecture-independent code is in [`quire_pmap`]. Quire's kernel does not run on RISC-V. The hosted machine
//! simulates the hardware, and runs the same tests as for x86-64. `examples/riscv` is a kernel of three CPUs that boots
//! in QEMU. They show that the memory core depends on neither architecture.
//!
//! Differences from x86-64, beyond the bits:
//! - The hardware may cache absent entries. After a leaf was entered, the CPU that faulted fences the address
//!   (SFENCE.VMA, see [`Format::CACHES_ABSENT`]). Other CPUs fence it when they fault in turn.
//! - A fence of one address keeps cached upper levels. So freeing a table page needs a fence of the whole space
//!   ([`Format::PAGE_DROPS_UPPER`]).
//! - The hardware sets accessed and dirty (Svadu), or faults if they are missing (Svade). Both work: leaves are entered
//!   with both preset, and a fault that finds the leaf in place sets them again.
#![cfg_attr(not(any(test, loom, shuttle)), no_std)]
#![deny(missing_docs)]

#[cfg(target_arch = "riscv64")]
pub mod instructions;
pub mod word;

pub use word::Sv39;

use quire_pmap::Format;
use quire_vm::Pfn;

/// The page tables of one address space.
pub type Sv39Pmap = quire_pmap::Tables<Sv39>;

/// `satp`'s mode field for Sv39.
const SATP_SV39: u64 = 8 << 60;

/// The value for `satp`: the root and the address-space identifier. Writing `satp` drops no translations. So a CPU that
/// gives an identifier to another space fences that identifier.
pub const fn satp(root: Pfn, asid: u16) -> u64 {
    SATP_SV39 | (asid as u64) << 44 | root.0
}

const _: () = assert!(Sv39::LEVELS == 3);
