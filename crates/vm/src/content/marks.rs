//! Queries and resets of the accessed and dirty state of an object's pages, over all mappings. Each batch of pages
//! needs one pass over the backings ([`crate::rmap`]).

use crate::machine::Machine;
use crate::object::Object;
use crate::object::batch::Batch;
use crate::object::index::Slot;
use crate::object::{ObjectRange, SlotFilter};
use crate::rmap;
use crate::tlb::flush::FlushedEverywhere;
use core::ops::Range;

/// Counts of a range of an object; each page counts once, however often it is mapped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RangeCounts {
    /// Resident pages.
    pub resident: u64,
    /// Pages that at least one page table maps.
    pub mapped: u64,
    /// Pages that were referenced since the last [`Object::take_referenced`].
    pub referenced: u64,
    /// Pages with stores that the pager has not written.
    pub dirty: u64,
}

impl<M: Machine> Object<M> {
    /// Counts the pages of `keys` by their use. Changes nothing, and does not wait.
    pub fn query_range(&self, keys: Range<u64>) -> RangeCounts {
        let mut marks = RangeCounts::default();
        self.in_batches(keys, |batch| {
            let found = rmap::query(self, batch);
            marks.resident += batch.as_slice().len() as u64;
            marks.mapped += found.mapped.len() as u64;
            marks.referenced += found.referenced.len() as u64;
            marks.dirty += found.dirty.len() as u64;
        });
        marks
    }

    /// Clears the referenced marks of the pages of `keys`, and their access bits in every mapping. Returns the number
    /// of pages that were referenced.
    pub fn take_referenced(&self, keys: Range<u64>) -> u64 {
        let mut n = 0;
        self.in_batches(keys, |batch| n += rmap::take_referenced(self, batch).len() as u64);
        n
    }

    /// Removes the right to store into the pages of `keys` from all leaves that exist when this begins. After it
    /// returns, a store through one of these leaves faults. Dirty pages stay dirty.
    pub fn write_protect(&self, keys: Range<u64>) -> FlushedEverywhere {
        let mut proof = rmap::write_protect(self, &Batch::new());
        self.in_batches(keys, |batch| proof = rmap::write_protect(self, batch));
        proof
    }

    /// Calls `f` with the resident pages of `keys`, in batches, without a pin. The pages are not set busy. If a page is
    /// removed during the call of `f`, the pass over the mappings finds no leaf of its frame.
    fn in_batches(&self, keys: Range<u64>, mut f: impl FnMut(&Batch)) {
        let mut range = self.range(keys, SlotFilter::PAGES);
        loop {
            let mut batch = Batch::new();
            let done = gather(&mut range, &mut batch);
            if !batch.is_empty() {
                f(&batch);
            }
            if done {
                return;
            }
        }
    }
}

/// Fills `batch` with the next pages. Returns true at the end of the range.
fn gather<M: Machine>(range: &mut ObjectRange<'_, M>, batch: &mut Batch) -> bool {
    let pin = range.object().vm().epoch().pin();
    for found in range.walk(&pin) {
        if let Slot::Page(pfn) = found.slot() {
            batch.push(found.key(), pfn);
            if batch.is_full() {
                return false;
            }
        }
    }
    true
}
