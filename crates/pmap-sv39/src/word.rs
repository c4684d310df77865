//! Page-table entries, bit by bit (RISC-V privileged architecture, 12.4; memory types from Svpbmt).

use quire_pmap::{Format, Rights};
use quire_vm::machine::{Enter, Leaf};
use quire_vm::{MemoryType, Pfn, Prot, VirtRange};

/// The entry is present.
pub const VALID: u64 = 1;
/// Loads are allowed. An entry with none of the bits for read, write and execute points to a table page.
pub const READ: u64 = 1 << 1;
/// Stores are allowed; never without [`READ`].
pub const WRITE: u64 = 1 << 2;
/// Instruction fetches are allowed.
pub const EXECUTE: u64 = 1 << 3;
/// Only programs may use the page. Zero in an entry that points to a table page.
pub const USER: u64 = 1 << 4;
/// The translation is the same in every address space.
pub const GLOBAL: u64 = 1 << 5;
/// An address was translated through the leaf. Like [`DIRTY`], it is zero in an entry that points to a table page.
pub const ACCESSED: u64 = 1 << 6;
/// A store went through the leaf.
pub const DIRTY: u64 = 1 << 7;
/// Memory type (Svpbmt): not cached, weakly ordered.
pub const NOT_CACHED: u64 = 1 << 61;
/// Memory type (Svpbmt): not cached, strongly ordered.
pub const IO: u64 = 2 << 61;

const FRAME_SHIFT: u32 = 10;
const FRAME: u64 = ((1 << 44) - 1) << FRAME_SHIFT;

/// The RISC-V Sv39 format for [`quire_pmap`].
pub enum Sv39 {}

const fn memory_bits(memory: MemoryType) -> u64 {
    match memory {
        MemoryType::WriteBack => 0,
        MemoryType::WriteCombining => NOT_CACHED,
        MemoryType::Uncached => IO,
    }
}

const fn rights_bits(rights: Rights) -> u64 {
    match rights {
        Rights::Read => READ,
        Rights::Write => READ | WRITE | DIRTY,
        Rights::Execute => READ | EXECUTE,
    }
}

impl Format for Sv39 {
    const LEVELS: u32 = 3;
    // As on x86-64, programs may map neither the first page nor the last.
    const USER: VirtRange = VirtRange { start: 0x1000, end: (1 << 38) - 0x1000 };
    const KERNEL_HALF: u64 = 0xffff_ffc0_0000_0000;
    const PAGE_DROPS_UPPER: bool = false;
    const CACHES_ABSENT: bool = true;
    const STORES_BELOW: u64 = 0;
    const ACCESSED: u64 = ACCESSED;

    fn present(word: u64) -> bool {
        word & VALID != 0
    }
    fn frame(word: u64) -> Pfn {
        Pfn((word & FRAME) >> FRAME_SHIFT)
    }
    fn user_table(child: Pfn) -> u64 {
        child.0 << FRAME_SHIFT | VALID
    }
    fn kernel_table(child: Pfn) -> u64 {
        child.0 << FRAME_SHIFT | VALID
    }
    fn writable(word: u64) -> bool {
        word & WRITE != 0
    }
    fn user_leaf(new: Enter) -> u64 {
        let mut word = new.pfn.0 << FRAME_SHIFT | VALID | READ | USER | ACCESSED | memory_bits(new.memory);
        if new.prot.contains(Prot::WRITE) {
            word |= WRITE | DIRTY;
        }
        if new.prot.contains(Prot::EXEC) {
            word |= EXECUTE;
        }
        word
    }
    fn read_leaf(word: u64) -> Option<Leaf> {
        if !Self::present(word) {
            return None;
        }
        let mut prot = Prot::READ;
        prot.set(Prot::WRITE, word & WRITE != 0);
        prot.set(Prot::EXEC, word & EXECUTE != 0);
        Some(Leaf { pfn: Self::frame(word), prot, accessed: word & ACCESSED != 0, dirty: word & DIRTY != 0 })
    }
    fn strengthen(old: u64, add: u64) -> u64 {
        old | add
    }
    fn weaken(old: u64, keep: Prot) -> u64 {
        let clear = if keep.contains(Prot::WRITE) { 0 } else { WRITE | DIRTY };
        old & !clear & if keep.contains(Prot::EXEC) { !0 } else { !EXECUTE }
    }
    fn kernel_leaf(pa: u64, _level: u32, rights: Rights, memory: MemoryType) -> u64 {
        Pfn::containing(pa).0 << FRAME_SHIFT | VALID | ACCESSED | GLOBAL | memory_bits(memory) | rights_bits(rights)
    }
    fn with_rights(word: u64, rights: Rights) -> u64 {
        word & !(READ | WRITE | EXECUTE | DIRTY) | rights_bits(rights)
    }
    fn rights(word: u64) -> Rights {
        match (word & WRITE != 0, word & EXECUTE != 0) {
            (true, _) => Rights::Write,
            (false, true) => Rights::Execute,
            (false, false) => Rights::Read,
        }
    }
    fn is_leaf(word: u64, level: u32) -> bool {
        level == 0 || word & (READ | WRITE | EXECUTE) != 0
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use quire_pmap::format::index;

    #[test]
    fn a_leaf_reads_back_as_it_was_entered() {
        for bits in 1..8u8 {
            let prot = Prot::from_bits_truncate(bits);
            let word = Sv39::user_leaf(Enter::new(Pfn(0x12345), prot));
            let leaf = Sv39::read_leaf(word).unwrap();
            assert_eq!((leaf.pfn, leaf.prot), (Pfn(0x12345), prot | Prot::READ));
            assert!(leaf.accessed && Sv39::is_leaf(word, 0));
            assert_eq!(leaf.dirty, prot.contains(Prot::WRITE));
        }
        assert_eq!(Sv39::read_leaf(0), None);
    }

    #[test]
    fn a_table_page_is_no_leaf_and_says_nothing_of_programs() {
        let word = Sv39::user_table(Pfn(0x777));
        assert!(Sv39::present(word) && !Sv39::is_leaf(word, 1));
        assert_eq!(word & (USER | ACCESSED | DIRTY), 0, "reserved in such entries");
        assert_eq!(Sv39::frame(word), Pfn(0x777));
    }

    #[test]
    fn an_address_is_taken_apart_as_the_hardware_does() {
        let va = 0x3f_1234_5abc;
        assert_eq!([2, 1, 0].map(|l| index(va, l)), [0xfc, 0x91, 0x145]);
        assert_eq!(crate::satp(Pfn(0x80000), 3), 8 << 60 | 3 << 44 | 0x80000);
    }
}
