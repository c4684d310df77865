//! The encoding of page-table entries, and the place of an address in the tables.
//!
//! All tables are one page of 64-bit entries: 512 to a table, nine bits of the address a level, on x86-64 and on RISC-V
//! alike. The encoding of an entry depends on the architecture.

use quire_vm::machine::{Enter, Leaf};
use quire_vm::{MemoryType, PAGE_SHIFT, Pfn, Prot, VirtRange};

/// log2 of the entries in a table.
#[cfg(not(any(loom, shuttle)))]
pub const BITS: u32 = 9;
/// log2 of the entries in a table; fewer under the model checkers.
#[cfg(any(loom, shuttle))]
pub const BITS: u32 = 1;

/// Entries in a table.
pub const FANOUT: usize = 1 << BITS;

/// Rights of a kernel mapping. "Store and execute" cannot be expressed (W^X).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rights {
    /// Loads.
    Read,
    /// Loads and stores.
    Write,
    /// Loads and instruction fetches.
    Execute,
}

/// Page-table entries of one architecture. An entry that is not present is zero. It never keeps a frame number, so a
/// speculative load cannot follow it (L1TF on x86-64).
pub trait Format: Send + Sync + Sized + 'static {
    /// Levels of tables; level 0 is the last one, whose entries are leaves.
    const LEVELS: u32;
    /// The addresses that programs may map. The entries of the root below the middle belong to programs.
    const USER: VirtRange;
    /// The first address of the kernel's half.
    const KERNEL_HALF: u64;
    /// Dropping one page's translation also drops every cached upper level of that space (x86-64's INVLPG does,
    /// RISC-V's SFENCE.VMA with an address does not).
    const PAGE_DROPS_UPPER: bool;
    /// The hardware may cache absent entries, so a new entry is not seen before a local fence (RISC-V). x86-64 never
    /// caches absent entries, and a page fault drops the translation that caused it.
    const CACHES_ABSENT: bool;
    /// An address was translated through the entry.
    const ACCESSED: u64;
    /// The bit of an entry above the last level that stores need besides the leaf's own right. 0 where there is no such
    /// bit (RISC-V).
    const STORES_BELOW: u64;

    /// Whether the entry is present.
    fn present(word: u64) -> bool;
    /// The frame that an entry names.
    fn frame(word: u64) -> Pfn;
    /// An entry for a table page below a table of programs.
    fn user_table(child: Pfn) -> u64;
    /// An entry for a table page below a table of the kernel's.
    fn kernel_table(child: Pfn) -> u64;
    /// Whether a present user leaf allows stores.
    fn writable(word: u64) -> bool;
    /// A user leaf. Accessed is preset, and dirty where stores are allowed: a writable leaf implies that the page is
    /// marked dirty already (relies on C2).
    fn user_leaf(new: Enter) -> u64;
    /// The content of a user leaf, if it is present.
    fn read_leaf(word: u64) -> Option<Leaf>;
    /// The leaf `old` with the rights of `add`, which maps the same frame, besides its own. Accessed and dirty stay.
    fn strengthen(old: u64, add: u64) -> u64;
    /// The leaf `old` with no more rights than `keep`, which is not empty. Where the right to store is taken, dirty is
    /// cleared.
    fn weaken(old: u64, keep: Prot) -> u64;
    /// A kernel leaf at `level` for the physical address `pa`, aligned to what it covers. Accessed and dirty are
    /// preset, because no code reads them, and hardware need not write them.
    fn kernel_leaf(pa: u64, level: u32, rights: Rights, memory: MemoryType) -> u64;
    /// The kernel leaf `word` with these rights.
    fn with_rights(word: u64, rights: Rights) -> u64;
    /// The rights of a kernel leaf.
    fn rights(word: u64) -> Rights;
    /// Whether a present entry of a table at `level` is a leaf.
    fn is_leaf(word: u64, level: u32) -> bool;
}

/// Bytes that one entry of a table at `level` covers.
pub const fn span(level: u32) -> u64 {
    1 << (PAGE_SHIFT + BITS * level)
}

/// The entry of a table at `level` that covers `va`.
pub const fn index(va: u64, level: u32) -> usize {
    (va >> (PAGE_SHIFT + BITS * level)) as usize & (FANOUT - 1)
}

/// The first address that the entry covers which covers `va` at `level`.
pub const fn base(va: u64, level: u32) -> u64 {
    va & !(span(level) - 1)
}
