//! Values of the control registers that the page tables rely on.

use quire_vm::Pfn;

/// CR3, bit 63: keep the PCID's cached translations.
pub const CR3_KEEP: u64 = 1 << 63;

/// Returns the value for CR3. Bits 51 to 12 are the root's frame number, bits 11 to 0 the PCID (zero if PCIDs are off).
/// Bit 63 keeps the PCID's cached translations; it may be set only if PCIDs are on.
pub const fn cr3(root: Pfn, pcid: u16, keep: bool) -> u64 {
    root.address() | pcid as u64 | if keep { CR3_KEEP } else { 0 }
}

/// The number of the model-specific register that gives the entries' cache bits their meaning (Intel SDM volume 3,
/// 11.12).
pub const PAT_MSR: u32 = 0x277;

/// The value of the PAT. Every CPU loads it before it uses memory that is not write-back. Entries 0, 2 and 3 keep their
/// reset values: write-back, uncached unless an MTRR says otherwise, uncached. So the tables that boot made keep their
/// meaning. Entry 1, write-through at reset, becomes write-combining, as on Linux.
pub const PAT: u64 = 0x0007_0406_0007_0106;
