//! Objects of the backings core: their pages by index, and the list of backings that map them.

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

/// A mapping of an object by a backing: a range of pages of a space, and the object's page at the start of the range.
#[derive(Clone)]
pub(super) struct Shown {
    pub pages: Range<u64>,
    pub offset: u64,
    tables: *const Tables,
}
// SAFETY: the tables are shared through atomic marks and words, and exist as long as the object's list has this value.
unsafe impl Send for Shown {}
// SAFETY: the tables are shared through atomic marks and words, and exist as long as the object's list has this value.
unsafe impl Sync for Shown {}

impl Shown {
    pub fn new(tables: &Tables, pages: Range<u64>, offset: u64) -> Shown {
        Shown { pages, offset, tables }
    }

    /// Splits off the part from `page` on. `self` then ends at `page`.
    pub fn split(&mut self, page: u64) -> Shown {
        let rest = Shown { pages: page..self.pages.end, offset: self.key(page), tables: self.tables };
        self.pages.end = page;
        rest
    }

    /// The object's page that is mapped at `page` of the space.
    pub fn key(&self, page: u64) -> u64 {
        self.offset + (page - self.pages.start)
    }

    /// The page of the space at which the object's page `key` is mapped. `None` if it is outside the range.
    fn page(&self, key: u64) -> Option<u64> {
        let page = self.pages.start + key.checked_sub(self.offset)?;
        (page < self.pages.end).then_some(page)
    }
}

/// An object that has pages.
pub struct Object {
    core: &'static Core,
    /// Whether the object is a file, whose pages stay even without mappings.
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

    /// Makes a file of `pages` pages, all resident and zeroed.
    pub fn file(core: &'static Core, pages: u64) -> Result<Arc<Object>, Failure> {
        let file = Self::new(core, true);
        for key in 0..pages {
            if let Some(frame) = file.add(key)? {
                // SAFETY: the frame is busy, and mapped nowhere yet.
                unsafe { core.zero(frame) };
                core.enqueue(frame);
                core.unbusy(frame);
            }
        }
        Ok(file)
    }

    /// Whether the object is anonymous and only one backing refers to it.
    pub(super) fn only_one(self: &Arc<Object>) -> bool {
        !self.file && Arc::strong_count(self) == 1
    }

    /// Adds a backing to the list. Returns its index in the list.
    pub(super) fn show(&self, shown: Shown) -> usize {
        let mut all = self.shown.write();
        let number = all.insert(shown);
        record::wrote(&all[number]);
        number
    }

    /// Makes the listed range end at `end`.
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

    /// The page at `key`, held shared: it stays until `Core::unshare`.
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

    /// Whether the object has a page at `key`.
    pub(super) fn has(&self, key: u64) -> bool {
        self.pages.read().get(key).is_some()
    }

    /// Whether the object has a page at each key of the range.
    pub(super) fn has_all(&self, keys: Range<u64>) -> bool {
        let pages = self.pages.read();
        pages.len() >= keys.end - keys.start && keys.into_iter().all(|key| pages.get(key).is_some())
    }

    /// Holds the pages of a range shared, except pages that a CPU holds exclusively. Returns the number of pages found.
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

    /// Adds a page at `key`. The caller holds it exclusively and must fill it. Returns `None` if there is a page
    /// already.
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

    /// Removes pages from the object and from every space that maps them.
    pub fn remove(&self, keys: Range<u64>) {
        for key in keys {
            while let Err(busy) = self.remove_one(key) {
                self.core.wait_unbusy(busy);
            }
        }
    }

    /// Removes a page. Returns the page as an error if another CPU holds it.
    fn remove_one(&self, key: u64) -> Result<(), Frame> {
        let mut pages = self.pages.write();
        let Some(frame) = pages.get(key) else { return Ok(()) };
        if !self.core.try_busy(frame) {
            return Err(frame);
        }
        pages.set(key, None);
        drop(pages);
        // A CPU holds a page shared while it maps the page. This CPU holds the page exclusively, so no CPU is mapping
        // it. Later faults do not find the page, because the object no longer has it.
        let all = self.shown.read();
        for (_, shown) in all.iter() {
            record::read(shown);
            if let Some(page) = shown.page(key) {
                // SAFETY: the backing is on the list, so its tables exist as long as the list's lock is held.
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
            // `kept` in `lab/src/memory/mod.rs` explains why the memory is not freed.
            std::mem::forget(shown);
        }
        for (_, frame) in self.pages.write().all() {
            // No space maps the page, because each space has unmapped the pages of its backings.
            self.core.dequeue(frame);
            self.core.free(frame);
        }
    }
}
