//! Address spaces of the backings core: mappings, faults and forks.

use super::Core;
use super::backing::Backing;
use super::object::Object;
use super::tables::Tables;
use crate::Failure;
use crate::memory::entries::{Entries, Split};
use crate::memory::pages::Frame;
use crate::memory::read_write::ReadWrite;
use crate::memory::{Target, kept, pages};
use quire_vm::{FaultError, PAGE_SIZE, VirtRange};
use std::ops::Range;
use std::sync::Arc;

/// The mapping of a range of pages.
struct Mapping {
    front: Box<Backing>,
    shared: bool,
    writable: bool,
    /// Whether the object of `front` is shared, so that the first store adds a new object in front of it.
    needs_copy: bool,
}

impl Split for Mapping {
    fn split(&mut self, _start: u64, page: u64) -> Self {
        Mapping { front: self.front.split(page), ..*self }
    }
}

/// The most pages that one load fault maps.
const AROUND: usize = 16;
/// A fork ends a chain that has more objects than this, the front object included.
const DEEP: usize = 5;

/// An address space.
pub struct Space {
    core: &'static Core,
    /// The mappings. This field is dropped before `tables`, to which its backings refer. A space is never moved.
    map: ReadWrite<Entries<Mapping>>,
    tables: Tables,
}

/// The page that a fault has found or made. The fault holds it, so that it is not removed.
struct FaultPage {
    frame: Frame,
    /// Whether the page belongs to the front object.
    own: bool,
    /// Whether this fault made the page, and holds it exclusively.
    fresh: bool,
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
            Target::Private => (Object::anonymous(self.core), 0, false, false),
            Target::Shared(file, page) => (file, page, true, false),
            Target::Copied(file, page) => (file, page, false, true),
        };
        let mut map = self.map.write();
        let gone = self.take(&mut map, range.clone());
        let front = Backing::new(&self.tables, range.clone(), object, offset);
        map.insert(range, Mapping { front, shared, writable: true, needs_copy });
        drop(map);
        drop(gone);
    }

    /// Unmaps a range.
    pub fn unmap(&self, range: VirtRange) {
        let mut map = self.map.write();
        let gone = self.take(&mut map, pages(range));
        drop(map);
        // The backings are dropped without a lock, and with them the objects that no other space maps.
        drop(gone);
    }

    /// Removes a range from the map and from the page tables. Returns the removed mappings.
    fn take(&self, map: &mut Entries<Mapping>, range: Range<u64>) -> Vec<Mapping> {
        let gone = map.take(range.clone());
        if !gone.is_empty() {
            self.tables.clear(range);
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
            let mapping = &entry.of;
            if store && !mapping.writable {
                return Err(Failure::Fault(FaultError::Protection));
            }
            if store && mapping.needs_copy {
                drop(map);
                self.shadow(page);
                continue;
            }
            let found = self.find(&mapping.front, page, store)?;
            if found.own {
                self.tables.enter(page, found.frame, mapping.writable && !mapping.needs_copy);
            } else {
                // `enter_free` replaces no PTE. So the PTE of a copy that another CPU has just made stays.
                self.tables.enter_free([(page, found.frame)].into_iter());
            }
            if found.fresh {
                self.core.unbusy(found.frame);
                return Ok(());
            }
            self.core.unshare(found.frame);
            if !store && found.own {
                self.around(page, start..entry.end, &mapping.front);
            }
            return Ok(());
        }
    }

    /// Finds the page that the space sees at `page`, and holds it. For a store, the page belongs to the object of
    /// `front`, and is copied or zeroed if needed. For a load, the page may belong to an object behind `front`. If no
    /// object has a page, a zeroed page is made in the object of `front`.
    fn find(&self, front: &Backing, page: u64, store: bool) -> Result<FaultPage, Failure> {
        loop {
            if let Some(frame) = front.object.look(front.key(page)) {
                return Ok(FaultPage { frame, own: true, fresh: false });
            }
            if !store && let Some(frame) = front.seen_behind(page) {
                return Ok(FaultPage { frame, own: false, fresh: false });
            }
            if let Some(frame) = self.fill(front, page)? {
                return Ok(FaultPage { frame, own: true, fresh: true });
            }
        }
    }

    /// Makes a page in the front object, with the content seen behind it, or zeroes. The caller then holds the page
    /// exclusively. Returns `None` if another CPU has already added the page to the front object.
    fn fill(&self, front: &Backing, page: u64) -> Result<Option<Frame>, Failure> {
        let Some(frame) = front.object.add(front.key(page))? else { return Ok(None) };
        match front.seen_behind(page) {
            Some(source) => {
                // SAFETY: the caller holds `frame` exclusively.
                unsafe { self.core.copy(source, frame) };
                self.core.unshare(source);
            }
            // SAFETY: `add` just allocated the frame for this fault, and it is mapped nowhere yet.
            None => unsafe { self.core.zero(frame) },
        }
        self.core.enqueue(frame);
        Ok(Some(frame))
    }

    /// Maps the resident pages around `page` within `range`, for loads only.
    fn around(&self, page: u64, range: Range<u64>, front: &Backing) {
        let first = (page & !(AROUND as u64 - 1)).max(range.start);
        let end = ((page | (AROUND as u64 - 1)) + 1).min(range.end);
        let mut found = [(0, 0); AROUND];
        let n = front.object.near(front.key(first)..front.key(end), &mut found);
        self.tables.enter_free(found[..n].iter().map(|(key, frame)| (front.page(*key), *frame)));
        found[..n].iter().for_each(|(_, frame)| self.core.unshare(*frame));
    }

    /// If the object mapped at `page` is shared, puts a new object of this space in front of it. The new object gets
    /// the pages into which this space stores.
    fn shadow(&self, page: u64) {
        let mut map = self.map.write();
        let Some((start, entry)) = map.covering_mut(page).filter(|(_, e)| e.of.needs_copy) else { return };
        let range = start..entry.end;
        let mapping = &mut entry.of;
        if !mapping.front.object.only_one() {
            let new = Backing::new(&self.tables, range, Object::anonymous(self.core), 0);
            let behind = std::mem::replace(&mut mapping.front, new);
            mapping.front.put_behind(behind);
        }
        mapping.needs_copy = false;
    }

    /// Copies the space. Parent and child share private memory until the first store. PTEs are not copied.
    pub fn fork(&self) -> Result<Arc<Space>, Failure> {
        let child = Space::new(self.core);
        let mut map = self.map.write();
        let mut entries = child.map.write();
        for (start, entry) in map.all() {
            let (range, mapping) = (start..entry.end, &mut entry.of);
            if !mapping.shared {
                if mapping.front.depth() > DEEP || mapping.front.hides_all(range.clone()) {
                    self.collapse(range.clone(), &mut mapping.front)?;
                }
                if !mapping.needs_copy {
                    mapping.needs_copy = true;
                    self.tables.protect(range.clone());
                }
            }
            entries.insert(range, Mapping { front: mapping.front.replicate(&child.tables), ..*mapping });
        }
        drop(entries);
        drop(map);
        Ok(child)
    }

    /// Copies the pages that are seen through the front object into it, and removes the backings behind it. The caller
    /// holds the map exclusively.
    fn collapse(&self, pages: Range<u64>, front: &mut Backing) -> Result<(), Failure> {
        for page in pages.clone() {
            if front.object.has(front.key(page)) {
                continue;
            }
            let Some(source) = front.seen_behind(page) else { continue };
            self.core.unshare(source);
            if let Some(frame) = self.fill(front, page)? {
                self.core.unbusy(frame);
            }
        }
        // PTEs of these pages are cleared first, because they may map pages of the removed backings. After `cut`, a CPU
        // that removes such a page does not find this space in the object's list.
        self.tables.clear(pages);
        front.cut();
        Ok(())
    }

    /// The bytes of the space's backings.
    pub fn overhead(&self) -> u64 {
        self.map.write().all().map(|(_, e)| e.of.front.bytes()).sum()
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
        // The PTEs are cleared before their pages may be freed.
        self.tables.clear_all();
    }
}
