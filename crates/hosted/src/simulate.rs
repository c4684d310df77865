//! The simulated hardware of each architecture: how it decodes entries, and which cached entries its instructions drop.

use crate::tlb::Tlb;
use quire_pmap::Format;
use quire_pmap_sv39::{Sv39, word as sv39};
use quire_pmap_x86_64::registers::PAT;
use quire_pmap_x86_64::{X86_64, word as x86};
use quire_vm::{MemoryType, PAGE_SHIFT};

/// A present entry, decoded as the hardware does. Its rights limit everything below it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Whether programs may use the pages below.
    pub user: bool,
    /// Whether stores are allowed below.
    pub write: bool,
    /// Whether instruction fetches are allowed below.
    pub execute: bool,
    /// Whether the translation holds in every address space.
    pub global: bool,
    /// Whether an address was translated through the entry.
    pub accessed: bool,
    /// Whether a store went through the leaf.
    pub dirty: bool,
    /// How accesses through a leaf are cached.
    pub memory: MemoryType,
}

/// An architecture whose hardware is simulated.
pub trait Simulate: Format {
    /// The dirty bit of a leaf.
    const DIRTY: u64;

    /// Decodes a present entry; `leaf` says whether it is a leaf.
    fn see(word: u64, leaf: bool) -> Seen;

    /// Executes the instruction that drops the translation of `va`, with `tag` loaded.
    fn drop_page(tlb: &mut Tlb, tag: u16, va: u64);
}

/// The memory type of an x86-64 leaf. Bits 4 and 3 of the leaf select an entry of the PAT (SDM volume 3, 11.12.2).
fn x86_memory(word: u64) -> MemoryType {
    let entry = (word & (x86::NO_CACHE | x86::WRITE_THROUGH)) >> 3;
    match (PAT >> (8 * entry)) & 0xff {
        6 => MemoryType::WriteBack,
        1 => MemoryType::WriteCombining,
        0 => MemoryType::Uncached,
        other => panic!("a leaf has memory type {other}"),
    }
}

/// The memory type of an Sv39 leaf, which its own bits 62 and 61 encode (Svpbmt).
fn sv39_memory(word: u64) -> MemoryType {
    match (word >> 61) & 3 {
        0 => MemoryType::WriteBack,
        1 => MemoryType::WriteCombining,
        2 => MemoryType::Uncached,
        _ => panic!("a leaf has the reserved memory type"),
    }
}

impl Simulate for X86_64 {
    const DIRTY: u64 = x86::DIRTY;

    fn see(word: u64, _leaf: bool) -> Seen {
        Seen {
            user: word & x86::USER != 0,
            write: word & x86::WRITE != 0,
            execute: word & x86::NO_EXECUTE == 0,
            global: word & x86::GLOBAL != 0,
            accessed: word & x86::ACCESSED != 0,
            dirty: word & x86::DIRTY != 0,
            memory: x86_memory(word),
        }
    }

    /// INVLPG, which also drops all cached upper levels of the tag (SDM volume 3, 4.10.4.1).
    fn drop_page(tlb: &mut Tlb, tag: u16, va: u64) {
        tlb.drop_page(tag, va >> PAGE_SHIFT);
        tlb.drop_upper(tag);
    }
}

impl Simulate for Sv39 {
    const DIRTY: u64 = sv39::DIRTY;

    fn see(word: u64, leaf: bool) -> Seen {
        if !leaf {
            // Bits that only leaves have are reserved in entries that point to table pages.
            assert_eq!(word & (sv39::USER | sv39::ACCESSED | sv39::DIRTY), 0, "reserved bits are set in {word:#x}");
            return Seen {
                user: true,
                write: true,
                execute: true,
                global: false,
                accessed: true,
                dirty: true,
                memory: MemoryType::WriteBack,
            };
        }
        assert!(word & sv39::READ != 0, "{word:#x} may be stored to or executed but not loaded");
        Seen {
            user: word & sv39::USER != 0,
            write: word & sv39::WRITE != 0,
            execute: word & sv39::EXECUTE != 0,
            global: word & sv39::GLOBAL != 0,
            accessed: word & sv39::ACCESSED != 0,
            dirty: word & sv39::DIRTY != 0,
            memory: sv39_memory(word),
        }
    }

    /// SFENCE.VMA with an address, for all address spaces. It drops only leaves.
    fn drop_page(tlb: &mut Tlb, _tag: u16, va: u64) {
        tlb.drop_page_of_all(va >> PAGE_SHIFT);
    }
}
