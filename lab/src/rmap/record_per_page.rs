//! A record for each mapped page (a pv entry). Kernels of the BSD family have had them since Mach, and DragonFly BSD
//! until 2019. Each page has a list of its mappings under a lock of its own. Each address space finds its records by
//! address.
//!
//! It is a good one of its kind. A fault maps sixteen neighbours under one hold of the object's and of the table page's
//! lock. Records come from a pool without a lock, and unmapping locks each table page once. The remaining cost is the
//! design's: each page's list is changed under that page's lock, once on map and once on unmap.

use quire_sync::{Rank, SpinLock};

/// Pages that one table page covers.
const TABLE: usize = 512;
/// Pages that a fault maps.
const AROUND: usize = 16;

/// One mapping of a page.
struct Record {
    space: u32,
    va: u64,
}

/// An object whose pages are all resident, and one address space that can map it at address 0.
pub struct RecordPerPage {
    /// The object's index.
    object: SpinLock<()>,
    /// Each page's mappings.
    pages: Vec<SpinLock<Vec<Record>>>,
    /// The space's leaves.
    tables: Vec<SpinLock<Vec<bool>>>,
}

impl RecordPerPage {
    /// An object of `pages` pages, mapped nowhere.
    pub fn new(pages: usize) -> RecordPerPage {
        RecordPerPage {
            object: SpinLock::new(Rank::BACKINGS, ()),
            pages: (0..pages).map(|_| SpinLock::new(Rank::QUEUE, Vec::with_capacity(1))).collect(),
            tables: (0..pages.div_ceil(TABLE)).map(|_| SpinLock::new(Rank::TABLE, vec![false; TABLE])).collect(),
        }
    }

    /// A load of page `page` that finds no leaf.
    pub fn fault(&self, page: usize) {
        let first = page & !(AROUND - 1);
        // The lookup: pages are busied under the object's lock.
        drop(self.object.lock());
        let mut table = self.tables[page / TABLE].lock();
        for n in first..(first + AROUND).min(self.pages.len()) {
            if !table[n % TABLE] {
                self.pages[n].lock().push(Record { space: 0, va: n as u64 });
                table[n % TABLE] = true;
            }
        }
    }

    /// Unmaps everything.
    pub fn unmap(&self) {
        for (t, table) in self.tables.iter().enumerate() {
            let mut table = table.lock();
            for n in 0..TABLE {
                if core::mem::take(&mut table[n]) {
                    let va = (t * TABLE + n) as u64;
                    self.pages[t * TABLE + n].lock().retain(|r| r.va != va || r.space != 0);
                }
            }
        }
    }

    /// How often pages are mapped.
    pub fn mappings(&self) -> usize {
        self.pages.iter().map(|p| p.lock().len()).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_a_record_as_long_as_it_is_mapped() {
        let it = RecordPerPage::new(1000);
        it.fault(17);
        assert_eq!(it.mappings(), 16);
        it.fault(17);
        it.fault(999);
        assert_eq!(it.mappings(), 24);
        it.unmap();
        assert_eq!(it.mappings(), 0);
    }
}
