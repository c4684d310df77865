//! The translation caches of one CPU, as hostile as the manuals allow (Intel SDM volume 3, 4.10; RISC-V privileged
//! 12.2). A page-table entry that the CPU has once used stays cached until an instruction drops it. This holds for the
//! TLB and for the paging-structure caches. Eviction is random and rare.

use quire_vm::{MemoryType, Pfn};
use std::collections::{HashMap, HashSet};

/// A cached translation.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The number of the 4 KiB frame.
    pub frame: Pfn,
    /// Whether programs may use it.
    pub user: bool,
    /// Whether stores are allowed.
    pub write: bool,
    /// Whether instruction fetches are allowed.
    pub execute: bool,
    /// Whether the dirty bit is known to be set in the page table.
    pub dirty: bool,
    /// How accesses are cached.
    pub memory: MemoryType,
    /// The life of the frame in which the translation was made (see `Simulated::lives` in `machine`).
    pub life: u32,
}

/// A cached upper level: the table page that an entry above the last level names.
#[derive(Clone, Copy, Debug)]
pub struct Upper {
    /// The table page.
    pub table: Pfn,
    /// Whether all entries from the root to this one allowed programs.
    pub user: bool,
    /// Whether all entries from the root to this one allowed stores.
    pub write: bool,
    /// The life of the table page's frame when the level was cached.
    pub life: u32,
}

/// The most translations of a TLB. When they are reached, a quarter is evicted.
const CAPACITY: usize = 8192;

/// TLB and paging-structure caches of one CPU.
#[derive(Default)]
pub struct Tlb {
    /// The translations of one tag, by tag (PCID, ASID) and page number.
    pages: HashMap<(u16, u64), Entry>,
    /// Global translations, which hold under every tag, by page number.
    global: HashMap<u64, Entry>,
    /// Cached upper levels, by tag, level (1: the table that holds leaves) and the address bits that the level covers.
    upper: HashMap<(u16, u32, u64), Upper>,
    /// Pages without a mapping, by tag and page number, on hardware that caches absent entries.
    absent: HashSet<(u16, u64)>,
}

impl Tlb {
    /// Returns the translation of page number `page` under `tag`.
    pub fn get(&self, tag: u16, page: u64) -> Option<Entry> {
        self.global.get(&page).or_else(|| self.pages.get(&(tag, page))).copied()
    }

    /// Caches a translation.
    pub fn put(&mut self, tag: u16, page: u64, entry: Entry, global: bool) {
        if global {
            self.global.insert(page, entry);
            return;
        }
        if self.pages.len() >= CAPACITY {
            let mut n = 0;
            self.pages.retain(|_, _| {
                n += 1;
                n % 4 != 0
            });
        }
        self.pages.insert((tag, page), entry);
    }

    /// Returns the table page that translates the addresses with `prefix` below level `level`.
    pub fn get_upper(&self, tag: u16, level: u32, prefix: u64) -> Option<Upper> {
        self.upper.get(&(tag, level, prefix)).copied()
    }

    /// Caches an upper level.
    pub fn put_upper(&mut self, tag: u16, level: u32, prefix: u64, upper: Upper) {
        self.upper.insert((tag, level, prefix), upper);
    }

    /// Drops the page's translation under one tag, and its global one.
    pub fn drop_page(&mut self, tag: u16, page: u64) {
        self.pages.remove(&(tag, page));
        self.absent.remove(&(tag, page));
        self.global.remove(&page);
    }

    /// Drops the page's translations under every tag, and its global one.
    pub fn drop_page_of_all(&mut self, page: u64) {
        self.pages.retain(|k, _| k.1 != page);
        self.absent.retain(|k| k.1 != page);
        self.global.remove(&page);
    }

    /// Drops all upper levels of one tag.
    pub fn drop_upper(&mut self, tag: u16) {
        self.upper.retain(|k, _| k.0 != tag);
    }

    /// Caches the fact that the page is not mapped under `tag`.
    pub fn put_absent(&mut self, tag: u16, page: u64) {
        self.absent.insert((tag, page));
    }

    /// Whether it is cached that the page is not mapped.
    pub fn is_absent(&self, tag: u16, page: u64) -> bool {
        self.absent.contains(&(tag, page))
    }

    /// Handles a page fault at the page: drops its translation, and the upper levels that led to it.
    pub fn faulted(&mut self, tag: u16, page: u64, prefixes: impl Iterator<Item = (u32, u64)>) {
        self.pages.remove(&(tag, page));
        for (level, prefix) in prefixes {
            self.upper.remove(&(tag, level, prefix));
        }
    }

    /// Drops all entries of one tag; global translations stay.
    pub fn drop_tag(&mut self, tag: u16) {
        self.pages.retain(|k, _| k.0 != tag);
        self.absent.retain(|k| k.0 != tag);
        self.drop_upper(tag);
    }

    /// Drops everything.
    pub fn drop_all(&mut self) {
        *self = Tlb::default();
    }

    /// The number of cached translations.
    pub fn len(&self) -> usize {
        self.pages.len() + self.global.len()
    }

    /// Whether nothing is cached.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::Simulate;
    use quire_pmap_sv39::Sv39;
    use quire_pmap_x86_64::X86_64;

    fn entry(frame: u64) -> Entry {
        Entry {
            frame: Pfn(frame),
            user: true,
            write: true,
            execute: false,
            dirty: true,
            memory: MemoryType::WriteBack,
            life: 0,
        }
    }
    fn upper(table: u64) -> Upper {
        Upper { table: Pfn(table), user: true, write: true, life: 0 }
    }

    #[test]
    fn invlpg_drops_one_page_and_the_upper_levels_of_its_pcid() {
        let mut tlb = Tlb::default();
        tlb.put(1, 7, entry(70), false);
        tlb.put(1, 8, entry(80), false);
        tlb.put(2, 7, entry(71), false);
        tlb.put_upper(1, 1, 0, upper(5));
        tlb.put_upper(2, 1, 0, upper(6));
        X86_64::drop_page(&mut tlb, 1, 7 << 12);
        assert!(tlb.get(1, 7).is_none());
        assert!(tlb.get(1, 8).is_some() && tlb.get(2, 7).is_some());
        assert!(tlb.get_upper(1, 1, 0).is_none() && tlb.get_upper(2, 1, 0).is_some());
    }

    #[test]
    fn global_translations_outlive_a_pcid() {
        let mut tlb = Tlb::default();
        tlb.put(1, 9, entry(90), true);
        tlb.drop_tag(1);
        assert!(tlb.get(3, 9).is_some());
        X86_64::drop_page(&mut tlb, 3, 9 << 12);
        assert!(tlb.get(1, 9).is_none());
    }

    #[test]
    fn a_fence_of_one_address_keeps_upper_levels_on_riscv() {
        let mut tlb = Tlb::default();
        tlb.put(1, 7, entry(70), false);
        tlb.put_absent(2, 7);
        tlb.put_upper(1, 1, 0, upper(5));
        Sv39::drop_page(&mut tlb, 1, 7 << 12);
        assert!(tlb.get(1, 7).is_none() && !tlb.is_absent(2, 7));
        assert!(tlb.get_upper(1, 1, 0).is_some());
    }
}
