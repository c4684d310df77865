//! The map of a space: ranges of pages by their starts.

use std::collections::BTreeMap;
use std::ops::Range;

/// A mapping that can be split in two.
pub trait Split {
    /// Keeps the part before `page`, and returns the rest; the range begins at `start`.
    fn split(&mut self, start: u64, page: u64) -> Self;
}

/// A range.
pub struct Entry<E> {
    /// The page after the last.
    pub end: u64,
    /// Its mapping.
    pub of: E,
}

/// The ranges of a space, which do not overlap.
pub struct Entries<E>(BTreeMap<u64, Entry<E>>);

impl<E: Split> Entries<E> {
    /// No ranges.
    pub fn new() -> Self {
        Entries(BTreeMap::new())
    }

    /// The entry that covers a page, and its start.
    pub fn covering(&self, page: u64) -> Option<(u64, &Entry<E>)> {
        self.0.range(..=page).next_back().filter(|(_, e)| e.end > page).map(|(start, e)| (*start, e))
    }

    /// The same, to be changed.
    pub fn covering_mut(&mut self, page: u64) -> Option<(u64, &mut Entry<E>)> {
        self.0.range_mut(..=page).next_back().filter(|(_, e)| e.end > page).map(|(start, e)| (*start, e))
    }

    /// Splits the entry that covers the page, so that one begins there.
    fn clip(&mut self, page: u64) {
        let Some((start, entry)) = self.covering_mut(page).filter(|(start, _)| *start < page) else { return };
        let rest = Entry { end: entry.end, of: entry.of.split(start, page) };
        entry.end = page;
        self.0.insert(page, rest);
    }

    /// The entries of a range, clipped to it.
    pub fn within(&mut self, pages: Range<u64>) -> impl Iterator<Item = (u64, &mut Entry<E>)> {
        self.clip(pages.start);
        self.clip(pages.end);
        self.0.range_mut(pages).map(|(start, e)| (*start, e))
    }

    /// Takes the entries of a range out.
    pub fn take(&mut self, pages: Range<u64>) -> Vec<E> {
        let starts: Vec<u64> = self.within(pages).map(|(start, _)| start).collect();
        starts.iter().filter_map(|start| self.0.remove(start)).map(|e| e.of).collect()
    }

    /// Adds an entry where none is.
    pub fn insert(&mut self, pages: Range<u64>, of: E) {
        self.0.insert(pages.start, Entry { end: pages.end, of });
    }

    /// All entries.
    pub fn all(&mut self) -> impl Iterator<Item = (u64, &mut Entry<E>)> {
        self.0.iter_mut().map(|(start, e)| (*start, e))
    }
}
