//! One CPU's translation caches, as hostile as the SDM (volume 3, 4.10) lets them be: whatever was ever seen in a page table
//! stays until an instruction takes it away, in the TLB and in the paging-structure caches alike. Nothing is evicted but at
//! random, and that seldom.

use quire_vm::Pfn;
use std::collections::HashMap;

/// A cached translation.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Physical address of the page's first byte.
    pub frame: Pfn,
    /// Programs may use it.
    pub user: bool,
    /// Stores are allowed.
    pub write: bool,
    /// Instruction fetches are allowed.
    pub execute: bool,
    /// The dirty bit is known to be set in the page table.
    pub dirty: bool,
    /// Which life of the frame the translation was made for.
    pub life: u32,
}

/// A cached upper level: the table page below an entry.
#[derive(Clone, Copy, Debug)]
pub struct Upper {
    /// The table page.
    pub table: Pfn,
    /// Whether all entries on the way allowed programs.
    pub user: bool,
    /// Whether all entries on the way allowed stores.
    pub write: bool,
    /// Which life of the table page's frame this is.
    pub life: u32,
}

/// Translations beyond this number are evicted, a quarter at a time.
const CAPACITY: usize = 8192;

/// TLB and paging-structure caches of one CPU.
#[derive(Default)]
pub struct Tlb {
    /// By PCID and page number.
    pages: HashMap<(u16, u64), Entry>,
    /// Global translations, by page number: in every PCID.
    global: HashMap<u64, Entry>,
    /// By PCID, level (1: the table that holds leaves) and the address bits above it.
    upper: HashMap<(u16, u32, u64), Upper>,
}

impl Tlb {
    /// The translation of page number `page` under `pcid`.
    pub fn get(&self, pcid: u16, page: u64) -> Option<Entry> {
        self.global.get(&page).or_else(|| self.pages.get(&(pcid, page))).copied()
    }

    /// Caches a translation.
    pub fn put(&mut self, pcid: u16, page: u64, entry: Entry, global: bool) {
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
        self.pages.insert((pcid, page), entry);
    }

    /// The table page that translates the addresses with `prefix` below level `level`.
    pub fn get_upper(&self, pcid: u16, level: u32, prefix: u64) -> Option<Upper> {
        self.upper.get(&(pcid, level, prefix)).copied()
    }

    /// Caches an upper level.
    pub fn put_upper(&mut self, pcid: u16, level: u32, prefix: u64, upper: Upper) {
        self.upper.insert((pcid, level, prefix), upper);
    }

    /// INVLPG: the page in the current PCID and in the global ones, and all upper levels of the current PCID.
    pub fn invlpg(&mut self, pcid: u16, page: u64) {
        self.pages.remove(&(pcid, page));
        self.global.remove(&page);
        self.upper.retain(|k, _| k.0 != pcid);
    }

    /// A page fault at the page: its translation goes, and the upper levels that led to it.
    pub fn faulted(&mut self, pcid: u16, page: u64, prefixes: impl Iterator<Item = (u32, u64)>) {
        self.pages.remove(&(pcid, page));
        for (level, prefix) in prefixes {
            self.upper.remove(&(pcid, level, prefix));
        }
    }

    /// Everything of one PCID but global translations.
    pub fn drop_pcid(&mut self, pcid: u16) {
        self.pages.retain(|k, _| k.0 != pcid);
        self.upper.retain(|k, _| k.0 != pcid);
    }

    /// Everything.
    pub fn drop_all(&mut self) {
        *self = Tlb::default();
    }

    /// Number of cached translations.
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

    fn entry(frame: u64) -> Entry {
        Entry { frame: Pfn(frame), user: true, write: true, execute: false, dirty: true, life: 0 }
    }
    fn upper(table: u64) -> Upper {
        Upper { table: Pfn(table), user: true, write: true, life: 0 }
    }

    #[test]
    fn invlpg_takes_one_page_and_every_upper_level_of_its_pcid_only() {
        let mut tlb = Tlb::default();
        tlb.put(1, 7, entry(70), false);
        tlb.put(1, 8, entry(80), false);
        tlb.put(2, 7, entry(71), false);
        tlb.put_upper(1, 1, 0, upper(5));
        tlb.put_upper(2, 1, 0, upper(6));
        tlb.invlpg(1, 7);
        assert!(tlb.get(1, 7).is_none());
        assert!(tlb.get(1, 8).is_some() && tlb.get(2, 7).is_some());
        assert!(tlb.get_upper(1, 1, 0).is_none() && tlb.get_upper(2, 1, 0).is_some());
    }

    #[test]
    fn global_translations_outlive_a_pcid() {
        let mut tlb = Tlb::default();
        tlb.put(1, 9, entry(90), true);
        tlb.drop_pcid(1);
        assert!(tlb.get(3, 9).is_some());
        tlb.invlpg(3, 9);
        assert!(tlb.get(1, 9).is_none());
    }
}
