//! Address spaces: what is mapped where, faults, forks.

use super::object::Object;
use super::pages::Core;
use super::read_write::ReadWrite;
use super::tables::Tables;
use crate::Failure;
use crate::memory::What;
use quire_vm::{FaultError, PAGE_SIZE, VirtRange};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// A range, in pages.
#[derive(Clone)]
struct Entry {
    end: u64,
    object: Arc<Object>,
    /// The object's page at the start.
    offset: u64,
    shared: bool,
    writable: bool,
    /// The object is another's too: a store puts one in front of it first.
    needs_copy: bool,
}

type Map = BTreeMap<u64, Entry>;

/// Pages that a load maps at most.
const AROUND: usize = 16;

/// An address space.
pub struct Space {
    core: &'static Core,
    map: ReadWrite<Map>,
    tables: Tables,
}

fn pages(range: VirtRange) -> Range<u64> {
    range.start / PAGE_SIZE..range.end / PAGE_SIZE
}

/// The entry that covers a page, and its start.
fn covering(map: &Map, page: u64) -> Option<(u64, &Entry)> {
    map.range(..=page).next_back().filter(|(_, e)| e.end > page).map(|(start, e)| (*start, e))
}

/// What covers the page begins there from now on.
fn clip(map: &mut Map, page: u64) {
    let Some((start, entry)) = covering(map, page).filter(|(start, _)| *start < page) else { return };
    let rest = Entry { offset: entry.offset + (page - start), ..entry.clone() };
    map.entry(start).and_modify(|e| e.end = page);
    map.insert(page, rest);
}

impl Space {
    /// An empty one.
    pub fn new(core: &'static Core) -> Space {
        Space { core, map: ReadWrite::new(Map::new()), tables: Tables::new() }
    }

    /// Maps `what`, in the place of what is there.
    pub fn map(&self, range: VirtRange, what: What<Arc<Object>>) {
        let Range { start, end } = pages(range);
        let (object, offset, shared, needs_copy) = match what {
            What::Private => (Object::anonymous(self.core, None), 0, false, false),
            What::Shared(file, page) => (file, page, true, false),
            What::Copied(file, page) => (file, page, false, true),
        };
        let mut map = self.map.write();
        let gone = self.take(&mut map, start..end);
        map.insert(start, Entry { end, object, offset, shared, writable: true, needs_copy });
        drop(map);
        drop(gone);
    }

    /// Unmaps a range.
    pub fn unmap(&self, range: VirtRange) {
        let mut map = self.map.write();
        let gone = self.take(&mut map, pages(range));
        drop(map);
        // With the objects that nothing else shows, without a lock.
        drop(gone);
    }

    /// Takes what is mapped in a range out of the map and the tables.
    fn take(&self, map: &mut Map, range: Range<u64>) -> Vec<Entry> {
        clip(map, range.start);
        clip(map, range.end);
        let starts: Vec<u64> = map.range(range.clone()).map(|(start, _)| *start).collect();
        if !starts.is_empty() {
            self.tables.clear(self.core, range);
        }
        starts.iter().filter_map(|start| map.remove(start)).collect()
    }

    /// Allows stores in a range, or not.
    pub fn protect(&self, range: VirtRange, stores: bool) {
        let range = pages(range);
        let mut map = self.map.write();
        clip(&mut map, range.start);
        clip(&mut map, range.end);
        map.range_mut(range.clone()).for_each(|(_, e)| e.writable = stores);
        if !stores {
            self.tables.protect(range);
        }
    }

    /// What an access that found no leaf, or one that does not allow it, makes the kernel do.
    pub fn fault(&self, va: u64, store: bool) -> Result<(), Failure> {
        let page = va / PAGE_SIZE;
        loop {
            let map = self.map.read();
            let (start, entry) = covering(&map, page).ok_or(Failure::Fault(FaultError::NotMapped))?;
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
                // It never takes the place of a copy that somebody has made meanwhile.
                self.tables.enter_free(self.core, [(page, found.frame)].into_iter());
            }
            self.core.unbusy(found.frame);
            if !store && found.own && !found.fresh {
                self.around(page, start, entry);
            }
            if found.fresh && store && self.core.collapses {
                entry.object.collapse();
            }
            return Ok(());
        }
    }

    /// Maps for loads what is resident around a page.
    fn around(&self, page: u64, start: u64, entry: &Entry) {
        let first = (page & !(AROUND as u64 - 1)).max(start);
        let end = ((page | (AROUND as u64 - 1)) + 1).min(entry.end);
        let to_key = |page: u64| entry.offset + (page - start);
        let mut found = [(0, 0); AROUND];
        let n = entry.object.near(to_key(first)..to_key(end), &mut found);
        let pages = found[..n].iter().map(|(key, frame)| (start + (key - entry.offset), *frame));
        self.tables.enter_free(self.core, pages);
        found[..n].iter().for_each(|(_, frame)| self.core.unbusy(*frame));
    }

    /// Puts an object of this space's own in front of what the page shows.
    fn shadow(&self, page: u64) {
        let mut map = self.map.write();
        let Some(start) = covering(&map, page).filter(|(_, e)| e.needs_copy).map(|(start, _)| start) else { return };
        map.entry(start).and_modify(|e| {
            e.object = Object::anonymous(self.core, Some(e.object.clone()));
            e.needs_copy = false;
        });
    }

    /// A copy: what is private is shared until it is stored into, and each leaf is copied with its record.
    pub fn fork(&self) -> Space {
        let child = Space::new(self.core);
        let mut map = self.map.write();
        let mut entries = child.map.write();
        for (start, entry) in map.iter_mut() {
            entry.needs_copy |= !entry.shared;
            self.tables.copy(self.core, *start..entry.end, !entry.shared, &child.tables);
            entries.insert(*start, entry.clone());
        }
        drop(entries);
        drop(map);
        child
    }

    /// Records of its mapped pages.
    pub fn records(&self) -> usize {
        self.tables.records()
    }

    /// The word at `va`, as a program loads it.
    pub fn load(&self, va: u64) -> Result<u64, Failure> {
        self.word(va, false).map(|at| {
            // SAFETY: an aligned word of a frame that this space maps; only tests use this, on one thread.
            unsafe { at.read() }
        })
    }

    /// Stores a word as a program does.
    pub fn store(&self, va: u64, value: u64) -> Result<(), Failure> {
        self.word(va, true).map(|at| {
            // SAFETY: as above.
            unsafe { at.write(value) }
        })
    }

    fn word(&self, va: u64, store: bool) -> Result<*mut u64, Failure> {
        loop {
            if let Some((frame, writable)) = self.tables.look(va / PAGE_SIZE)
                && (writable || !store)
            {
                // SAFETY: within the frame.
                return Ok(unsafe { self.core.bytes(frame).add((va % PAGE_SIZE) as usize & !7).cast() });
            }
            self.fault(va, store)?;
        }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // Each page leaves its list before the tables go.
        self.tables.clear_all(self.core);
    }
}
