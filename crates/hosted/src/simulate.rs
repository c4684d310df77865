//! The simulated hardware of each architecture: how it reads its tables, and how its instructions change its caches.

use crate::tlb::Tlb;
use quire_pmap::Format;
use quire_pmap_sv39::{Sv39, word as sv39};
use quire_pmap_x86_64::registers::PAT;
use quire_pmap_x86_64::{X86_64, word as x86};
use quire_vm::{MemoryType, PAGE_SHIFT};

/// A present entry, decoded as the hardware does: its rights for everything below it.
#[derive(Clone, Copy, Debug)]
pub struct Seen {
    /// Programs may use the pages below.
    pub user: bool,
    /// Stores are allowed below.
    pub write: bool,
    /// Instruction fetches are allowed below.
    pub execute: bool,
    /// The translation is for every address space.
    pub global: bool,
    /// Has been translated through.
    pub accessed: bool,
    /// Has been stored through.
    pub dirty: bool,
    /// How accesses through a leaf are cached.
    pub memory: MemoryType,
}

/// An architecture whose hardware is simulated.
pub trait Simulate: Format {
    /// The dirty bit of a leaf.
    const DIRTY: u64;

    /// Decodes a present entry; `leaf` if it is a leaf.
    fn see(word: u64, leaf: bool) -> Seen;

    /// The instruction that drops the translation of `va`, with `tag` loaded.
    fn drop_page(tlb: &mut Tlb, tag: u16, va: u64);
}

/// By way of the PAT (SDM volume 3, 11.12.2): bits 4 and 3 of a leaf name one of its entries.
fn x86_memory(word: u64) -> MemoryType {
    let entry = (word & (x86::NO_CACHE | x86::WRITE_THROUGH)) >> 3;
    match (PAT >> (8 * entry)) & 0xff {
        6 => MemoryType::WriteBack,
        1 => MemoryType::WriteCombining,
        0 => MemoryType::Uncached,
        other => panic!("a leaf has memory type {other}"),
    }
}

/// By the leaf itself (Svpbmt).
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

    /// INVLPG (SDM volume 3, 4.10.4.1).
    fn drop_page(tlb: &mut Tlb, tag: u16, va: u64) {
        tlb.drop_page(tag, va >> PAGE_SHIFT);
        tlb.drop_upper(tag);
    }
}

impl Simulate for Sv39 {
    const DIRTY: u64 = sv39::DIRTY;

    fn see(word: u64, leaf: bool) -> Seen {
        if !leaf {
            // Bits of leaves are reserved in entries that point to table pages.
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

    /// SFENCE.VMA with an address, for all address spaces: leaves only.
    fn drop_page(tlb: &mut Tlb, _tag: u16, va: u64) {
        tlb.drop_page_of_all(va >> PAGE_SHIFT);
    }
}
