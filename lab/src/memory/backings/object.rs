//! Objects: pages by index, and the backings that map them.

use super::Core;
use super::tables::Tables;
use crate::Failure;
use crate::memory::kept;
use crate::memory::pages::Frame;
use crate::memory::read_write::ReadWrite;
use crate::memory::resident::Resident;
use quire_sync::record;
use slab::Slab;
use std::ops::Range;
use std::sync::Arc;

/// The place where a backing maps an object: pages of a space, and the object's page at their start.
#[derive(Clone)]
pub(super) struct Shown {
    pub pages: Range<u64>,
    pub offset: u64,
    tables: *const Tables,
}
// SAFETY: tables are shared, by marks and words; they stay as long as this is listed.
unsafe impl Send for Shown {}
// SAFETY: tables are shared through marks and words that are atomics, and stay as long as this is listed.
unsafe impl Sync for Shown {}

impl Shown {
    pub fn new(tables: &Tables, pages: Range<u64>, offset: u64) -> Shown {
        Shown { pages, offset, tables }
    }

    /// Splits off the part from a page on; this one ends there.
    pub fn split(&mut self, page: u64) -> Shown {
        let rest = Shown { pages: page..self.pages.end, offset: self.key(page), tables: self.tables };
        self.pages.end = page;
        rest
    }

    /// The object's page that is mapped at a page.
    pub fn key(&self, page: u64) -> u64 {
        self.offset + (page - self.pages.start)
    }

    /// The page at which the object's page is mapped.
    fn page(&self, key: u64) -> Option<u64> {
        let page = self.pages.start + key.checked_sub(self.offset)?;
        (page < self.pages.end).then_some(page)
    }
}

/// A thing that has pages.
pub struct Object {
    core: &'static Core,
    /// Pages of a file stay without mappings.
    file: bool,
    pages: ReadWrite<Resident>,
    shown: ReadWrite<Slab<Shown>>,
}

impl Object {
    /// An object without pages.
    pub(super) fn anonymous(core: &'static Core) -> Arc<Object> {
        Self::new(core, false)
    }

    fn new(core: &'static Core, file: bool) -> Arc<Object> {
        kept(Object { core, file, pages: ReadWrite::new(Resident::default()), shown: ReadWrite::new(Slab::new()) })
    }

    /// A file of so many pages, all resident and zero.
    pub fn file(core: &'static Core, pages: u64) -> Result<Arc<Object>, Failure> {
        let file = Self::new(core, true);
        for key in 0..pages {
            if let Some(frame) = file.add(key)? {
                // SAFETY: busy, and mapped nowhere yet.
                unsafe { core.zero(frame) };
                core.enqueue(frame);
                core.unbusy(frame);
            }
        }
        Ok(file)
    }

    /// Whether one backing maps this anonymous object, and nothing else refers to it.
    pub(super) fn only_one(self: &Arc<Object>) -> bool {
        !self.file && Arc::strong_count(self) == 1
    }

    /// Lists a backing; returns its index.
    pub(super) fn show(&self, shown: Shown) -> usize {
        let mut all = self.shown.write();
        let number = all.insert(shown);
        record::wrote(&all[number]);
        number
    }

    /// Ends the listed range there.
    pub(super) fn shrink(&self, number: usize, end: u64) {
        let mut all = self.shown.write();
        all[number].pages.end = end;
        record::wrote(&all[number]);
    }

    /// Removes a backing from the list.
    pub(super) fn hide(&self, number: usize) {
        let mut all = self.shown.write();
        record::wrote(&all[number]);
        all.remove(number);
    }

    /// The page at `key`, which stays until it is unshared.
    pub(super) fn look(&self, key: u64) -> Option<Frame> {
        loop {
            let frame = {
                let pages = self.pages.read();
                let frame = pages.get(key)?;
                if self.core.try_share(frame) {
                    return Some(frame);
                }
                frame
            };
            self.core.wait_shareable(frame);
        }
    }

    /// Whether it has a page at `key`.
    pub(super) fn has(&self, key: u64) -> bool {
        self.pages.read().get(key).is_some()
    }

    /// Whether it has a page at each key of a range.
    pub(super) fn has_all(&self, keys: Range<u64>) -> bool {
        let pages = self.pages.read();
        pages.len() >= keys.end - keys.start && keys.into_iter().all(|key| pages.get(key).is_some())
    }

    /// The pages of a range that no CPU holds exclusively; they stay until they are unshared.
    pub(super) fn near(&self, keys: Range<u64>, found: &mut [(u64, Frame)]) -> usize {
        let pages = self.pages.read();
        let mut n = 0;
        for key in keys {
            if let Some(frame) = pages.get(key)
                && n < found.len()
                && self.core.try_share(frame)
            {
                found[n] = (key, frame);
                n += 1;
            }
        }
        n
    }

    /// A new page at `key`, exclusive to the caller, who fills it; `None` if there is one.
    pub(super) fn add(&self, key: u64) -> Result<Option<Frame>, Failure> {
        let frame = self.core.take(key)?;
        let mut pages = self.pages.write();
        if pages.get(key).is_some() {
            drop(pages);
            self.core.free(frame);
            return Ok(None);
        }
        let busied = self.core.try_busy(frame);
        debug_assert!(busied, "a free frame has no owner");
        pages.set(key, Some(frame));
        Ok(Some(frame))
    }

    /// Removes pages from it and from every space that maps them.
    pub fn remove(&self, keys: Range<u64>) {
        for key in keys {
            while let Err(busy) = self.remove_one(key) {
                self.core.wait_unbusy(busy);
            }
        }
    }

    /// Removes a page; fails with the page if another CPU holds it.
    fn remove_one(&self, key: u64) -> Result<(), Frame> {
        let mut pages = self.pages.write();
        let Some(frame) = pages.get(key) else { return Ok(()) };
        if !self.core.try_busy(frame) {
            return Err(frame);
        }
        pages.set(key, None);
        drop(pages);
        // Every CPU that could map it has done so, because it shared the page for that. A later one does not find it.
        let all = self.shown.read();
        for (_, shown) in all.iter() {
            record::read(shown);
            if let Some(page) = shown.page(key) {
                // SAFETY: listed, so its tables stay as long as the list's lock is held.
                unsafe { &*shown.tables }.remove(page, frame);
            }
        }
        drop(all);
        self.core.dequeue(frame);
        self.core.unbusy(frame);
        self.core.free(frame);
        Ok(())
    }
}

impl Drop for Object {
    fn drop(&mut self) {
        let shown = std::mem::take(&mut *self.shown.write());
        debug_assert!(shown.is_empty(), "a backing that shows an object keeps it");
        if record::ENABLED {
            // See `kept`.
            std::mem::forget(shown);
        }
        for (_, frame) in self.pages.write().all() {
            // Nothing maps it: each space has unmapped its backing's pages.
            self.core.dequeue(frame);
            self.core.free(frame);
        }
    }
}
