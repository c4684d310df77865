//! Production's tree with hints in front of its search for space. It measures whether hints would make that search
//! cheaper.

use super::by_entry::in_hole;
use super::hints::Hints;
use super::ours::Ours;
use super::{AddressMap, MapRange, PAGE, Taken};
use quire_vm::map::FAN_OUT;

/// Production's tree, searched through [`Hints`].
#[derive(Default)]
pub struct Hinted<const F: usize = FAN_OUT> {
    tree: Ours<F>,
    hints: Hints,
}

impl<const F: usize> Hinted<F> {
    /// An empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// The address at which a search from `lo` may begin, by the hints. A search with an alignment above a page uses no
    /// hints. For such a search, the tree prefers a hole that is certainly large enough to a lower hole that happens to
    /// be aligned. So the result does not prove that there is no space below it.
    fn begin(&self, len: u64, align: u64, lo: u64) -> u64 {
        if align > PAGE { lo } else { self.hints.begin(len, align, lo) }
    }

    /// Does [`AddressMap::first_fit`], and also returns the number of visited nodes.
    pub fn first_fit_visits(&mut self, len: u64, align: u64, lo: u64, hi: u64) -> (Option<u64>, u64) {
        let (found, nodes) = self.tree.first_fit_visits(len, align, self.begin(len, align, lo), hi);
        if let Some(at) = found.filter(|_| align <= PAGE) {
            self.hints.found(len, align, lo, at);
        }
        (found, nodes)
    }
}

impl<const F: usize> AddressMap for Hinted<F> {
    fn lookup(&mut self, at: u64) -> Option<MapRange> {
        self.tree.lookup(at)
    }

    fn insert(&mut self, start: u64, end: u64, prot: u32) -> Result<(), Taken> {
        self.tree.insert(start, end, prot)
    }

    fn remove(&mut self, start: u64, end: u64) {
        self.tree.remove(start, end);
        // The new hole may begin lower than `start`, at the end of the last range before.
        self.hints.freed(self.tree.end_before(start));
    }

    fn protect(&mut self, start: u64, end: u64, prot: u32) {
        self.tree.protect(start, end, prot);
    }

    fn first_fit(&mut self, len: u64, align: u64, lo: u64, hi: u64) -> Option<u64> {
        self.first_fit_visits(len, align, lo, hi).0
    }

    fn all(&self) -> Vec<MapRange> {
        self.tree.all()
    }

    fn check(&self) -> Result<(), String> {
        self.tree.check()?;
        below_no_hint(&self.hints, &self.all())
    }
}

/// Checks that no hole below a hint has enough space for the hint's size.
pub(super) fn below_no_hint(hints: &Hints, entries: &[MapRange]) -> Result<(), String> {
    let ends = std::iter::once(0).chain(entries.iter().map(|e| e.end));
    let starts = entries.iter().map(|e| e.start).chain([u64::MAX]);
    for hole in ends.zip(starts) {
        for h in hints.all() {
            if let Some(at) = in_hole(h.len, h.align, (h.from, u64::MAX), hole).filter(|at| *at < h.at) {
                return Err(format!("room for {:#x} at {at:#x} below the hint {:#x}", h.len, h.at));
            }
        }
    }
    Ok(())
}
