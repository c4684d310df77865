//! Page-table entries, bit by bit (Intel SDM volume 3, table 4-20), and where an address stands in the tables.
//!
//! An entry that is not present is zero: no frame number is ever left behind in one, so nothing is there for a speculative
//! load to follow (L1TF). Bits 5 and 6 of such words stay unused.

use quire_vm::machine::{Enter, Leaf};
use quire_vm::{PAGE_SHIFT, Pfn, Prot};

/// Levels of tables; level 0 is the last one, whose entries are leaves.
#[cfg(not(any(loom, shuttle)))]
pub const LEVELS: u32 = 4;
/// Levels of tables; fewer under the model checkers.
#[cfg(any(loom, shuttle))]
pub const LEVELS: u32 = 3;

/// log2 of the entries in a table.
#[cfg(not(any(loom, shuttle)))]
pub const BITS: u32 = 9;
/// log2 of the entries in a table; fewer under the model checkers.
#[cfg(any(loom, shuttle))]
pub const BITS: u32 = 1;

/// Entries in a table.
pub const FANOUT: usize = 1 << BITS;

/// Entry is present.
pub const PRESENT: u64 = 1;
/// Stores are allowed.
pub const WRITE: u64 = 1 << 1;
/// Programs may use it.
pub const USER: u64 = 1 << 2;
/// With [`NO_CACHE`]: strong uncacheable memory (PAT entry 3 as reset leaves it).
pub const WRITE_THROUGH: u64 = 1 << 3;
/// Not cached.
pub const NO_CACHE: u64 = 1 << 4;
/// Something was translated through the entry.
pub const ACCESSED: u64 = 1 << 5;
/// A leaf was stored through.
pub const DIRTY: u64 = 1 << 6;
/// The entry is a leaf above the last level (2 MiB at level 1, 1 GiB at level 2).
pub const LARGE: u64 = 1 << 7;
/// The translation is the same in every address space.
pub const GLOBAL: u64 = 1 << 8;
/// Instruction fetches are refused.
pub const NO_EXECUTE: u64 = 1 << 63;
/// The frame's physical address.
pub const FRAME: u64 = 0x000f_ffff_ffff_f000;

/// The frame that an entry names.
pub const fn frame(word: u64) -> Pfn {
    Pfn((word & FRAME) >> PAGE_SHIFT)
}

/// Whether the entry is present.
pub const fn present(word: u64) -> bool {
    word & PRESENT != 0
}

/// An entry for a table page below a user table. Accessed is preset, so that hardware need not write it.
pub const fn user_table(pfn: Pfn) -> u64 {
    pfn.address() | PRESENT | WRITE | USER | ACCESSED
}

/// An entry for a table page below a kernel table.
pub const fn kernel_table(pfn: Pfn) -> u64 {
    pfn.address() | PRESENT | WRITE | ACCESSED
}

/// A user leaf. Accessed is preset, and dirty where stores are allowed: a writable leaf implies that the page is marked dirty
/// already (Contract C2). Whatever is mapped can be read: the hardware knows no other way.
pub const fn user_leaf(new: Enter) -> u64 {
    let mut word = new.pfn.address() | PRESENT | USER | ACCESSED;
    if new.prot.contains(Prot::WRITE) {
        word |= WRITE | DIRTY;
    }
    if !new.prot.contains(Prot::EXEC) {
        word |= NO_EXECUTE;
    }
    word
}

/// What a user leaf says, if it is present.
pub const fn read_leaf(word: u64) -> Option<Leaf> {
    if !present(word) {
        return None;
    }
    let mut prot = Prot::READ;
    if word & WRITE != 0 {
        prot = prot.union(Prot::WRITE);
    }
    if word & NO_EXECUTE == 0 {
        prot = prot.union(Prot::EXEC);
    }
    Some(Leaf { pfn: frame(word), prot, accessed: word & ACCESSED != 0, dirty: word & DIRTY != 0 })
}

/// Bytes that one entry of a table at `level` covers.
pub const fn span(level: u32) -> u64 {
    1 << (PAGE_SHIFT + BITS * level)
}

/// Which entry of a table at `level` covers `va`.
pub const fn index(va: u64, level: u32) -> usize {
    (va >> (PAGE_SHIFT + BITS * level)) as usize & (FANOUT - 1)
}

/// The first address that the entry covers which covers `va` at `level`.
pub const fn base(va: u64, level: u32) -> u64 {
    va & !(span(level) - 1)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_leaf_reads_back_as_it_was_entered() {
        for bits in 1..8u8 {
            let prot = Prot::from_bits_truncate(bits);
            let leaf = read_leaf(user_leaf(Enter { pfn: Pfn(0x12345), prot })).unwrap();
            assert_eq!(leaf.pfn, Pfn(0x12345));
            assert_eq!(leaf.prot, prot | Prot::READ);
            assert!(leaf.accessed);
            assert_eq!(leaf.dirty, prot.contains(Prot::WRITE));
        }
        assert_eq!(read_leaf(0), None);
    }

    #[test]
    fn an_address_is_taken_apart_as_the_hardware_does() {
        let va = 0x7f12_3456_7abc;
        let parts: Vec<usize> = (0..4).rev().map(|l| index(va, l)).collect();
        assert_eq!(parts, [0xfe, 0x48, 0x1a2, 0x167]);
        assert_eq!(base(va, 1), 0x7f12_3440_0000);
        assert_eq!(span(1), 2 << 20);
    }
}
