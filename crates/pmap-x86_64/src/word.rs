//! Page-table entries, bit by bit (Intel SDM volume 3, table 4-20).
//!
//! An entry that is not present is zero. It never keeps a frame number, so a speculative load cannot follow it (L1TF).
//! Bits 5 and 6 of words that are not present stay unused.

use quire_pmap::{Format, Rights};
use quire_vm::machine::{Enter, Leaf};
use quire_vm::{MemoryType, PAGE_SHIFT, Pfn, Prot, VirtRange};

/// The number of levels of tables. Level 0 is the last one, whose entries are leaves.
pub const LEVELS: u32 = 4;

/// The entry is present.
pub const PRESENT: u64 = 1;
/// Stores are allowed.
pub const WRITE: u64 = 1 << 1;
/// Programs may use the page.
pub const USER: u64 = 1 << 2;
/// Alone: write-combining memory, because [`registers::PAT`](crate::registers::PAT) changes PAT entry 1 to that. With
/// [`NO_CACHE`]: strong uncacheable memory (entry 3).
pub const WRITE_THROUGH: u64 = 1 << 3;
/// Not cached.
pub const NO_CACHE: u64 = 1 << 4;
/// An address was translated through the entry.
pub const ACCESSED: u64 = 1 << 5;
/// A store went through the leaf.
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

/// Returns an entry of a user table that names a table page. Accessed is preset, so that the hardware need not write
/// it.
pub const fn user_table(pfn: Pfn) -> u64 {
    pfn.address() | PRESENT | WRITE | USER | ACCESSED
}

/// Returns an entry of a kernel table that names a table page.
pub const fn kernel_table(pfn: Pfn) -> u64 {
    pfn.address() | PRESENT | WRITE | ACCESSED
}

/// Returns a user leaf. The accessed bit is preset. The dirty bit is preset if stores are allowed, because a fault
/// marks the page dirty before it installs a writable leaf (relies on C2). Each present leaf is readable, because the
/// hardware has no other encoding.
pub const fn user_leaf(new: Enter) -> u64 {
    let mut word = new.pfn.address() | PRESENT | USER | ACCESSED | cache_bits(new.memory);
    if new.prot.contains(Prot::WRITE) {
        word |= WRITE | DIRTY;
    }
    if !new.prot.contains(Prot::EXEC) {
        word |= NO_EXECUTE;
    }
    word
}

/// The content of a user leaf, if it is present.
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

/// The x86-64 format for [`quire_pmap`].
pub enum X86_64 {}

/// The cache bits of a leaf at any level.
const fn cache_bits(memory: MemoryType) -> u64 {
    match memory {
        MemoryType::WriteBack => 0,
        MemoryType::WriteCombining => WRITE_THROUGH,
        MemoryType::Uncached => NO_CACHE | WRITE_THROUGH,
    }
}

const fn rights_bits(rights: Rights) -> u64 {
    match rights {
        Rights::Read => NO_EXECUTE,
        Rights::Write => NO_EXECUTE | WRITE | DIRTY,
        Rights::Execute => 0,
    }
}

impl Format for X86_64 {
    const LEVELS: u32 = LEVELS;
    // Programs may not map page 0, nor the last page before the hole in the address space, as on Linux. A system call
    // at the end of that page would have its return address in the hole.
    const USER: VirtRange = VirtRange { start: 0x1000, end: 0x7fff_ffff_f000 };
    const KERNEL_HALF: u64 = 0xffff_8000_0000_0000;
    const PAGE_DROPS_UPPER: bool = true;
    const CACHES_ABSENT: bool = false;
    const ACCESSED: u64 = ACCESSED;
    const STORES_BELOW: u64 = WRITE;

    #[inline(always)]
    fn present(word: u64) -> bool {
        present(word)
    }
    #[inline(always)]
    fn frame(word: u64) -> Pfn {
        frame(word)
    }
    #[inline(always)]
    fn user_table(child: Pfn) -> u64 {
        user_table(child)
    }
    #[inline(always)]
    fn kernel_table(child: Pfn) -> u64 {
        kernel_table(child)
    }
    #[inline(always)]
    fn writable(word: u64) -> bool {
        word & WRITE != 0
    }
    #[inline(always)]
    fn user_leaf(new: Enter) -> u64 {
        user_leaf(new)
    }
    #[inline(always)]
    fn read_leaf(word: u64) -> Option<Leaf> {
        read_leaf(word)
    }
    #[inline(always)]
    fn strengthen(old: u64, add: u64) -> u64 {
        (old | add) & !((!old | !add) & NO_EXECUTE)
    }
    #[inline(always)]
    fn weaken(old: u64, keep: Prot) -> u64 {
        let clear = if keep.contains(Prot::WRITE) { 0 } else { WRITE | DIRTY };
        let set = if keep.contains(Prot::EXEC) { 0 } else { NO_EXECUTE };
        old & !clear | set
    }
    fn kernel_leaf(pa: u64, level: u32, rights: Rights, memory: MemoryType) -> u64 {
        let large = if level > 0 { LARGE } else { 0 };
        pa | PRESENT | ACCESSED | GLOBAL | large | cache_bits(memory) | rights_bits(rights)
    }
    fn with_rights(word: u64, rights: Rights) -> u64 {
        word & !(WRITE | DIRTY | NO_EXECUTE) | rights_bits(rights)
    }
    fn rights(word: u64) -> Rights {
        match (word & WRITE != 0, word & NO_EXECUTE == 0) {
            (true, _) => Rights::Write,
            (false, true) => Rights::Execute,
            (false, false) => Rights::Read,
        }
    }
    #[inline(always)]
    fn is_leaf(word: u64, level: u32) -> bool {
        level == 0 || word & LARGE != 0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_pmap::format::{base, index, span};

    #[test]
    fn memory_types_are_the_pats_entries() {
        // Entry n of the PAT is its n-th byte. The value 6 is write-back, 1 is write-combining, 0 is uncached. Bits 4
        // and 3 of the leaf are the number of its PAT entry.
        for (memory, kind) in [(MemoryType::WriteBack, 6), (MemoryType::WriteCombining, 1), (MemoryType::Uncached, 0)] {
            let word = user_leaf(Enter { memory, ..Enter::new(Pfn(1), Prot::READ) });
            let entry = (word >> 3) & 3;
            assert_eq!((crate::registers::PAT >> (8 * entry)) & 0xff, kind, "{memory:?}");
            assert_eq!(
                X86_64::kernel_leaf(0, 0, Rights::Read, memory) & (NO_CACHE | WRITE_THROUGH),
                cache_bits(memory)
            );
        }
    }

    #[test]
    fn a_leaf_reads_back_as_it_was_entered() {
        for bits in 1..8u8 {
            let prot = Prot::from_bits_truncate(bits);
            let leaf = read_leaf(user_leaf(Enter::new(Pfn(0x12345), prot))).unwrap();
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
