//! The map of a space: ranges of pages, sorted by their starts.

use std::collections::BTreeMap;
use std::ops::Range;

/// A mapping that can be split in two.
pub trait Split {
    /// Splits the mapping at `page`. Keeps the part before `page` and returns the rest. The range begins at `start`.
    fn split(&mut self, start: u64, page: u64) -> Self;
}

/// A mapped range.
pub struct Entry<E> {
    /// The page after the last page of the range.
    pub end: u64,
    /// The mapping of the range.
    pub of: E,
}

/// The ranges of a space, which do not overlap.
pub struct Entries<E>(BTreeMap<u64, Entry<E>>);

impl<E: Split> Entries<E> {
    /// Makes a map without ranges.
    pub fn new() -> Self {
        Entries(BTreeMap::new())
    }

    /// The entry that covers a page, and its first page. `None` if there is none.
    pub fn covering(&self, page: u64) -> Option<(u64, &Entry<E>)> {
        self.0.range(..=page).next_back().filter(|(_, e)| e.end > page).map(|(start, e)| (*start, e))
    }

    /// As [`Entries::covering`], with mutable access to the entry.
    pub fn covering_mut(&mut self, page: u64) -> Option<(u64, &mut Entry<E>)> {
        self.0.range_mut(..=page).next_back().filter(|(_, e)| e.end > page).map(|(start, e)| (*start, e))
    }

    /// Splits the entry that covers `page`, so that an entry begins at `page`.
    fn clip(&mut self, page: u64) {
        let Some((start, entry)) = self.covering_mut(page).filter(|(start, _)| *start < page) else { return };
        let rest = Entry { end: entry.end, of: entry.of.split(start, page) };
        entry.end = page;
        self.0.insert(page, rest);
    }

    /// The entries of a range. An entry that crosses an end of the range is first split at that end.
    pub fn within(&mut self, pages: Range<u64>) -> impl Iterator<Item = (u64, &mut Entry<E>)> {
        self.clip(pages.start);
        self.clip(pages.end);
        self.0.range_mut(pages).map(|(start, e)| (*start, e))
    }

    /// Removes the entries of a range and returns their mappings.
    pub fn take(&mut self, pages: Range<u64>) -> Vec<E> {
        let starts: Vec<u64> = self.within(pages).map(|(start, _)| start).collect();
        starts.iter().filter_map(|start| self.0.remove(start)).map(|e| e.of).collect()
    }

    /// Adds an entry. Its range must not overlap another.
    pub fn insert(&mut self, pages: Range<u64>, of: E) {
        self.0.insert(pages.start, Entry { end: pages.end, of });
    }

    /// All entries.
    pub fn all(&mut self) -> impl Iterator<Item = (u64, &mut Entry<E>)> {
        self.0.iter_mut().map(|(start, e)| (*start, e))
    }
}
