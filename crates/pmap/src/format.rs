//! The encoding of page-table entries, and the place of an address in the tables.
//!
//! On x86-64 and on RISC-V each table is one page of 512 entries of 64 bits, so each level translates nine bits of the
//! address. The encoding of an entry depends on the architecture.

use quire_vm::machine::{Enter, Leaf};
use quire_vm::{MemoryType, PAGE_SHIFT, Pfn, Prot, VirtRange};

/// log2 of the number of entries in a table.
#[cfg(not(any(loom, shuttle)))]
pub const BITS: u32 = 9;
/// log2 of the number of entries in a table; fewer under the model checkers.
#[cfg(any(loom, shuttle))]
pub const BITS: u32 = 1;

/// The number of entries in a table.
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

/// The encoding of page-table entries of one architecture. An entry that is not present is zero. It never keeps a frame
/// number, so a speculative load cannot follow it (L1TF on x86-64).
pub trait Format: Send + Sync + Sized + 'static {
    /// The number of levels of tables. Level 0 is the last one, whose entries are leaves.
    const LEVELS: u32;
    /// The addresses that programs may map. The entries in the lower half of the root table cover them.
    const USER: VirtRange;
    /// The first address of the kernel's half.
    const KERNEL_HALF: u64;
    /// Whether dropping one page's translation also drops every cached upper level of that space. INVLPG of x86-64
    /// does; SFENCE.VMA of RISC-V with an address does not.
    const PAGE_DROPS_UPPER: bool;
    /// Whether the hardware may cache absent entries (RISC-V). Then a CPU may not see a new entry before it has fenced
    /// the address. CPUs of x86-64 never cache absent entries, and a page fault drops the translation that caused it.
    const CACHES_ABSENT: bool;
    /// The accessed bit: the hardware has translated an address through the entry.
    const ACCESSED: u64;
    /// The bit of an entry above the last level that allows stores below it. A store needs this bit and the leaf's own
    /// right. 0 if the architecture has no such bit (RISC-V).
    const STORES_BELOW: u64;

    /// Whether the entry is present.
    fn present(word: u64) -> bool;
    /// The frame that an entry names.
    fn frame(word: u64) -> Pfn;
    /// Returns an entry of a user table that names the table page `child`.
    fn user_table(child: Pfn) -> u64;
    /// Returns an entry of a kernel table that names the table page `child`.
    fn kernel_table(child: Pfn) -> u64;
    /// Whether a present user leaf allows stores.
    fn writable(word: u64) -> bool;
    /// Returns a user leaf. The accessed bit is preset. The dirty bit is preset if stores are allowed, because a fault
    /// marks the page dirty before it installs a writable leaf (relies on C2).
    fn user_leaf(new: Enter) -> u64;
    /// The content of a user leaf, if it is present.
    fn read_leaf(word: u64) -> Option<Leaf>;
    /// Returns the leaf `old` with the rights of `add` added. `old` and `add` map one frame. The accessed and dirty
    /// bits stay.
    fn strengthen(old: u64, add: u64) -> u64;
    /// Returns the leaf `old` without the rights that are not in `keep`, which is not empty. If the right to store is
    /// removed, clears the dirty bit.
    fn weaken(old: u64, keep: Prot) -> u64;
    /// Returns a kernel leaf at `level` for the physical address `pa`, which is aligned to the leaf's size. Accessed
    /// and dirty are preset: no code reads them, and so the hardware need not write them.
    fn kernel_leaf(pa: u64, level: u32, rights: Rights, memory: MemoryType) -> u64;
    /// Returns the kernel leaf `word` with its rights replaced by `rights`.
    fn with_rights(word: u64, rights: Rights) -> u64;
    /// The rights of a kernel leaf.
    fn rights(word: u64) -> Rights;
    /// Whether the present entry `word` of a table at `level` is a leaf.
    fn is_leaf(word: u64, level: u32) -> bool;
}

/// The number of bytes that one entry of a table at `level` covers.
pub const fn span(level: u32) -> u64 {
    1 << (PAGE_SHIFT + BITS * level)
}

/// The index of the entry that covers `va` in a table at `level`.
pub const fn index(va: u64, level: u32) -> usize {
    (va >> (PAGE_SHIFT + BITS * level)) as usize & (FANOUT - 1)
}

/// The first address covered by the entry at `level` that covers `va`.
pub const fn base(va: u64, level: u32) -> u64 {
    va & !(span(level) - 1)
}
