//! Address spaces of the records core: mappings, faults and forks.

use super::Core;
use super::object::Object;
use super::tables::Tables;
use crate::Failure;
use crate::memory::entries::{Entries, Split};
use crate::memory::read_write::ReadWrite;
use crate::memory::{Target, kept, pages};
use quire_vm::{FaultError, PAGE_SIZE, VirtRange};
use std::ops::Range;
use std::sync::Arc;

/// The mapping of a range of pages.
#[derive(Clone)]
struct Shown {
    object: Arc<Object>,
    /// The object's page at the start of the range.
    offset: u64,
    shared: bool,
    writable: bool,
    /// Whether the object is shared, so that the first store adds a new object in front of it.
    needs_copy: bool,
}

impl Split for Shown {
    fn split(&mut self, start: u64, page: u64) -> Self {
        Shown { offset: self.offset + (page - start), ..self.clone() }
    }
}

fn release(gone: Vec<Shown>) {
    gone.into_iter().for_each(|shown| shown.object.release());
}

/// The most pages that one load fault maps.
const AROUND: usize = 16;

/// An address space.
pub struct Space {
    core: &'static Core,
    map: ReadWrite<Entries<Shown>>,
    tables: Tables,
}

impl Space {
    /// Makes an empty space.
    pub fn new(core: &'static Core) -> Arc<Space> {
        kept(Space { core, map: ReadWrite::new(Entries::new()), tables: Tables::new() })
    }

    /// Maps `target` at a range. Older mappings of the range are removed.
    pub fn map(&self, range: VirtRange, target: Target<Arc<Object>>) {
        let range = pages(range);
        let (object, offset, shared, needs_copy) = match target {
            Target::Private => (Object::anonymous(self.core, None), 0, false, false),
            Target::Shared(file, page) => (file, page, true, false),
            Target::Copied(file, page) => (file, page, false, true),
        };
        let mut map = self.map.write();
        let gone = self.take(&mut map, range.clone());
        map.insert(range, Shown { object, offset, shared, writable: true, needs_copy });
        drop(map);
        release(gone);
    }

    /// Unmaps a range.
    pub fn unmap(&self, range: VirtRange) {
        let mut map = self.map.write();
        let gone = self.take(&mut map, pages(range));
        drop(map);
        // The references are dropped without a lock, and with them the objects that no other space maps.
        release(gone);
    }

    /// Removes a range from the map and from the page tables. Returns the removed mappings.
    fn take(&self, map: &mut Entries<Shown>, range: Range<u64>) -> Vec<Shown> {
        let gone = map.take(range.clone());
        if !gone.is_empty() {
            self.tables.clear(self.core, range);
        }
        gone
    }

    /// Allows or forbids stores in a range.
    pub fn protect(&self, range: VirtRange, stores: bool) {
        let range = pages(range);
        let mut map = self.map.write();
        map.within(range.clone()).for_each(|(_, e)| e.of.writable = stores);
        if !stores {
            self.tables.protect(range);
        }
    }

    /// Handles the fault of an access that found no PTE, or a PTE that forbids it.
    pub fn fault(&self, va: u64, store: bool) -> Result<(), Failure> {
        let page = va / PAGE_SIZE;
        loop {
            let map = self.map.read();
            let (start, entry) = map.covering(page).ok_or(Failure::Fault(FaultError::NotMapped))?;
            let (end, entry) = (entry.end, &entry.of);
            if store && !entry.writable {
                return Err(Failure::Fault(FaultError::Protection));
            }
            if store && entry.needs_copy {
                drop(map);
                self.shadow(page);
                continue;
            }
            let found = entry.object.find(entry.offset + (page - start), store)?;
            if found.own {
                let writable = entry.writable && !entry.needs_copy;
                self.tables.enter(self.core, page, found.frame, writable);
            } else {
                // `enter_free` replaces no PTE. So the PTE of a copy that another CPU has just made stays.
                self.tables.enter_free(self.core, [(page, found.frame)].into_iter());
            }
            self.core.unbusy(found.frame);
            if !store && found.own && !found.fresh {
                self.around(page, start..end, entry);
            }
            if found.fresh && store {
                entry.object.collapse();
            }
            return Ok(());
        }
    }

    /// Maps the resident pages around `page` within `range`, for loads only.
    fn around(&self, page: u64, range: Range<u64>, shown: &Shown) {
        let first = (page & !(AROUND as u64 - 1)).max(range.start);
        let end = ((page | (AROUND as u64 - 1)) + 1).min(range.end);
        let to_key = |page: u64| shown.offset + (page - range.start);
        let mut found = [(0, 0); AROUND];
        let n = shown.object.near(to_key(first)..to_key(end), &mut found);
        let pages = found[..n].iter().map(|(key, frame)| (range.start + (key - shown.offset), *frame));
        self.tables.enter_free(self.core, pages);
        found[..n].iter().for_each(|(_, frame)| self.core.unbusy(*frame));
    }

    /// If the object mapped at `page` is shared, puts a new object of this space in front of it. The new object gets
    /// the pages into which this space stores.
    fn shadow(&self, page: u64) {
        let mut map = self.map.write();
        let Some((_, entry)) = map.covering_mut(page).filter(|(_, e)| e.of.needs_copy) else { return };
        let shown = &mut entry.of;
        if !shown.object.only_one() {
            shown.object = Object::anonymous(self.core, Some(shown.object.clone()));
        }
        shown.needs_copy = false;
    }

    /// Copies the space. Parent and child share private memory until the first store. PTEs are not copied.
    pub fn fork(&self) -> Arc<Space> {
        let child = Space::new(self.core);
        let mut map = self.map.write();
        let mut entries = child.map.write();
        for (start, entry) in map.all() {
            let shown = &mut entry.of;
            if !shown.shared && !shown.needs_copy {
                shown.needs_copy = true;
                self.tables.protect(start..entry.end);
            }
            entries.insert(start..entry.end, shown.clone());
        }
        drop(entries);
        drop(map);
        child
    }

    /// The number of records of the space's mapped pages.
    pub fn records(&self) -> usize {
        self.tables.records()
    }

    /// Loads the word at `va`, as a program does.
    pub fn load(&self, va: u64) -> Result<u64, Failure> {
        // SAFETY: `word` passes an aligned word of a frame that this space maps.
        self.word(va, false, |at| unsafe { at.read() })
    }

    /// Stores a word at `va`, as a program does.
    pub fn store(&self, va: u64, value: u64) -> Result<(), Failure> {
        // SAFETY: `word` passes an aligned word of a frame that this space maps for stores.
        self.word(va, true, |at| unsafe { at.write(value) })
    }

    /// Calls `f` with a word while the word is mapped. The map is locked during the call, so forks and unmaps wait.
    /// Only tests call this function. They do not remove pages of a file that they access in this way.
    fn word<R>(&self, va: u64, store: bool, f: impl Fn(*mut u64) -> R) -> Result<R, Failure> {
        loop {
            let map = self.map.read();
            if let Some((frame, writable)) = self.tables.look(va / PAGE_SIZE)
                && (writable || !store)
            {
                return Ok(f(self.core.word(frame, va)));
            }
            drop(map);
            self.fault(va, store)?;
        }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // Each mapped page removes its record from its list before the tables are freed.
        self.tables.clear_all(self.core);
        let gone = self.map.write().take(0..u64::MAX);
        release(gone);
    }
}
