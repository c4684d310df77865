//! Backings. A backing is the mapping of an object in a space. Where the object has no page, the page of the backing
//! *behind* it is seen: that backing maps another object at the same addresses.

use super::object::{Object, Shown};
use super::tables::Tables;
use crate::memory::pages::Frame;
use std::ops::Range;
use std::sync::Arc;

/// A space's mapping of an object. The object's list contains the backing as long as the backing exists. The space's
/// tables exist longer than the backing.
pub(super) struct Backing {
    pub object: Arc<Object>,
    shown: Shown,
    /// The index of this backing in the object's list.
    number: usize,
    behind: Option<Box<Backing>>,
}

impl Backing {
    pub fn new(tables: &Tables, pages: Range<u64>, object: Arc<Object>, offset: u64) -> Box<Backing> {
        Self::listed(Shown::new(tables, pages, offset), object, None)
    }

    fn listed(shown: Shown, object: Arc<Object>, behind: Option<Box<Backing>>) -> Box<Backing> {
        let number = object.show(shown.clone());
        Box::new(Backing { object, shown, number, behind })
    }

    /// The object's page that is mapped at `page` of the space.
    pub fn key(&self, page: u64) -> u64 {
        self.shown.key(page)
    }

    /// The page of the space at which the object's page `key` is mapped.
    pub fn page(&self, key: u64) -> u64 {
        self.shown.pages.start + (key - self.shown.offset)
    }

    /// Copies this backing, and those behind it, for another space.
    pub fn replicate(&self, tables: &Tables) -> Box<Backing> {
        let behind = self.behind.as_ref().map(|b| b.replicate(tables));
        let shown = Shown::new(tables, self.shown.pages.clone(), self.shown.offset);
        Self::listed(shown, self.object.clone(), behind)
    }

    /// Splits this backing, and those behind it, at `page`. The existing backings keep the pages before `page`. The
    /// returned backings get the rest.
    pub fn split(&mut self, page: u64) -> Box<Backing> {
        let behind = self.behind.as_mut().map(|b| b.split(page));
        // Until `shrink` returns, the object's list has two backings for the pages from `page` on. A CPU that removes
        // such a page then looks up the page's PTE twice, which is harmless.
        let rest = Self::listed(self.shown.split(page), self.object.clone(), behind);
        self.object.shrink(self.number, page);
        rest
    }

    /// The number of backings in the chain.
    pub fn depth(&self) -> usize {
        1 + self.behind.as_ref().map_or(0, |b| b.depth())
    }

    /// Whether this backing's object has all pages of the range, and so hides the backings behind it.
    pub fn hides_all(&self, pages: Range<u64>) -> bool {
        self.behind.is_some() && self.object.has_all(self.key(pages.start)..self.key(pages.end))
    }

    /// Puts a backing behind this one, which must have none yet.
    pub fn put_behind(&mut self, behind: Box<Backing>) {
        self.behind = Some(behind);
    }

    /// Removes all backings behind this one.
    pub fn cut(&mut self) {
        self.behind = None;
    }

    /// The page that the backings behind this one show at `page`, held shared. The page stays until the caller calls
    /// `Core::unshare`.
    pub fn seen_behind(&self, page: u64) -> Option<Frame> {
        let mut at = self.behind.as_ref();
        while let Some(backing) = at {
            if let Some(frame) = backing.object.look(backing.key(page)) {
                return Some(frame);
            }
            at = backing.behind.as_ref();
        }
        None
    }

    /// The size in bytes of this backing and of those behind it.
    pub fn bytes(&self) -> u64 {
        (size_of::<Backing>() + size_of::<Shown>()) as u64 + self.behind.as_ref().map_or(0, |b| b.bytes())
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        self.object.hide(self.number);
    }
}
