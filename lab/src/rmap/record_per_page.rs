//! A reverse mapping with a record (a pv entry) for each mapping of a page. Kernels of the BSD family have used it
//! since Mach, and DragonFly BSD did until 2019. Each page has a list of its mappings with a lock of its own. Each
//! address space finds its records by address.
//!
//! This is a good implementation of its design. A fault maps sixteen adjacent pages while it holds the object's and the
//! table page's locks once. Records come from a pool without a lock, and an unmap locks each table page once. The
//! remaining cost belongs to the design: each map and each unmap of a page changes the page's list under its lock.

use quire_sync::{Rank, SpinLock};

/// The number of pages that one table page covers.
const TABLE: usize = 512;
/// The number of pages that one fault maps.
const AROUND: usize = 16;

/// One mapping of a page.
struct Record {
    space: u32,
    va: u64,
}

/// An object whose pages are all resident, and one address space that can map it at address 0.
pub struct RecordPerPage {
    /// The lock of the object's page index.
    object: SpinLock<()>,
    /// The mappings of each page.
    pages: Vec<SpinLock<Vec<Record>>>,
    /// The PTEs of the space by table page. An element says whether the page is mapped.
    tables: Vec<SpinLock<Vec<bool>>>,
}

impl RecordPerPage {
    /// Makes an object of `pages` pages that are not mapped.
    pub fn new(pages: usize) -> RecordPerPage {
        RecordPerPage {
            object: SpinLock::new(Rank::BACKINGS, ()),
            pages: (0..pages).map(|_| SpinLock::new(Rank::QUEUE, Vec::with_capacity(1))).collect(),
            tables: (0..pages.div_ceil(TABLE)).map(|_| SpinLock::new(Rank::TABLE, vec![false; TABLE])).collect(),
        }
    }

    /// Handles the fault of a load of page `page` that finds no PTE.
    pub fn fault(&self, page: usize) {
        let first = page & !(AROUND - 1);
        // The lookup: a real core makes the pages busy under the object's lock.
        drop(self.object.lock());
        let mut table = self.tables[page / TABLE].lock();
        for n in first..(first + AROUND).min(self.pages.len()) {
            if !table[n % TABLE] {
                self.pages[n].lock().push(Record { space: 0, va: n as u64 });
                table[n % TABLE] = true;
            }
        }
    }

    /// Unmaps all pages.
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

    /// The number of mappings of all pages.
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
