//! Page tables of the records core: table pages of 512 PTEs with a lock each, and a record for each mapping of a page.

use super::Core;
use crate::memory::levels::{FANOUT, Levels};
use crate::memory::pages::Frame;
use quire_sync::hooks::relax;
use quire_sync::{Rank, SpinLock, record};
use std::ops::Range;
use std::ptr;

/// The lock rank of a page's list of mappings. The lock is acquired inside the lock of a table page.
const PAGE_LOCK: Rank = Rank::INDEX;

/// The data that this core keeps for a page: the list of the page's mappings.
pub struct Mapped(SpinLock<Mappings>);

impl Default for Mapped {
    fn default() -> Mapped {
        Mapped(SpinLock::new(PAGE_LOCK, Mappings { first: ptr::null_mut() }))
    }
}

/// The list of the mappings of a page.
struct Mappings {
    first: *mut Record,
}
// SAFETY: the records of the list are accessed only under the lock around the list.
unsafe impl Send for Mappings {}

/// The number of records that a table page allocates at once.
const CHUNK: usize = 64;

/// The record of one mapping of a page.
pub struct Record {
    /// The neighbours in the page's list, guarded by the page's lock.
    next: *mut Record,
    prev: *mut Record,
    /// The table page of the mapping's PTE. The pointer is valid while the record is on a list.
    table: *const Table,
    slot: u16,
}

/// A PTE: a frame, with [`WRITABLE`] if stores are allowed; or [`NONE`].
type Leaf = u32;
const NONE: Leaf = u32::MAX;
const WRITABLE: Leaf = 1 << 31;

/// The frame that a PTE maps, and whether stores are allowed. `None` for an empty PTE.
fn frame_of(leaf: Leaf) -> Option<(Frame, bool)> {
    (leaf != NONE).then_some((leaf & !WRITABLE, leaf & WRITABLE != 0))
}

struct Leaves {
    entries: [Leaf; FANOUT],
    /// For each PTE, the number of its record.
    numbers: [u16; FANOUT],
    /// The records by number. They are never moved.
    #[expect(clippy::vec_box, reason = "records do not move when more are added")]
    chunks: Vec<Box<[Record; CHUNK]>>,
    /// The numbers of the records that are on no list.
    free: Vec<u16>,
}
// SAFETY: a record is accessed only under the lock of its table page, or of the page whose list has it.
unsafe impl Send for Leaves {}

/// A table page.
pub(super) struct Table(SpinLock<Leaves>);

impl Table {
    fn new() -> Box<Table> {
        let leaves = Leaves { entries: [NONE; FANOUT], numbers: [0; FANOUT], chunks: Vec::new(), free: Vec::new() };
        Box::new(Table(SpinLock::new(Rank::TABLE, leaves)))
    }
}

impl Leaves {
    fn record(&mut self, number: u16) -> *mut Record {
        &raw mut self.chunks[number as usize / CHUNK][number as usize % CHUNK]
    }

    /// Returns the number of a record that is on no list.
    fn take_record(&mut self) -> u16 {
        if self.free.is_empty() {
            let none = |_| Record { next: ptr::null_mut(), prev: ptr::null_mut(), table: ptr::null(), slot: 0 };
            let first = (self.chunks.len() * CHUNK) as u16;
            self.chunks.push(Box::new(std::array::from_fn(none)));
            self.free.extend((first..first + CHUNK as u16).rev());
        }
        self.free.pop().unwrap_or_else(|| unreachable!("a chunk was added"))
    }

    /// Maps `frame` at `slot`, and removes the old mapping if there is one.
    fn enter(&mut self, core: &Core, table: &Table, slot: usize, frame: Frame, writable: bool) {
        let flag = if writable { WRITABLE } else { 0 };
        match frame_of(self.entries[slot]) {
            Some((there, _)) if there == frame => {
                self.entries[slot] |= flag;
                record::wrote(&self.entries[slot]);
                return;
            }
            Some(_) => self.clear(core, slot),
            None => {}
        }
        let number = self.take_record();
        let record = self.record(number);
        record::wrote(record);
        let mut list = core.of(frame).0.lock();
        // SAFETY: the record is on no list, so only this table page uses it. The page's lock guards the neighbours of
        // the list's first record.
        unsafe {
            *record = Record { next: list.first, prev: ptr::null_mut(), table, slot: slot as u16 };
            if let Some(first) = list.first.as_mut() {
                first.prev = record;
                record::wrote(first);
            }
        }
        list.first = record;
        record::wrote(&*list);
        drop(list);
        self.entries[slot] = frame | flag;
        self.numbers[slot] = number;
        record::wrote(&self.entries[slot]);
    }

    /// Unmaps the PTE at `slot`.
    fn clear(&mut self, core: &Core, slot: usize) {
        let Some((frame, _)) = frame_of(self.entries[slot]) else { return };
        let record = self.record(self.numbers[slot]);
        let mut list = core.of(frame).0.lock();
        // SAFETY: the record of this PTE is on the page's list, whose lock is held.
        unsafe { unlink(&mut list, record) };
        drop(list);
        self.forget(slot);
    }

    /// Clears the PTE at `slot` and frees its record, which must be on no list any more.
    fn forget(&mut self, slot: usize) {
        self.entries[slot] = NONE;
        record::wrote(&self.entries[slot]);
        self.free.push(self.numbers[slot]);
    }
}

/// # Safety
/// `record` is on `list`.
unsafe fn unlink(list: &mut Mappings, record: *mut Record) {
    // SAFETY: the neighbours on a list are alive, because a record leaves its list before its table page is freed.
    unsafe {
        let (next, prev) = ((*record).next, (*record).prev);
        match prev.as_mut() {
            Some(prev) => {
                prev.next = next;
                record::wrote(prev);
            }
            None => {
                list.first = next;
                record::wrote(list);
            }
        }
        if let Some(next) = next.as_mut() {
            next.prev = prev;
            record::wrote(next);
        }
    }
}

impl Core {
    /// Removes a busy page from all spaces and frees it.
    pub(super) fn destroy(&self, frame: Frame) {
        loop {
            let mut list = self.of(frame).0.lock();
            let record = list.first;
            if record.is_null() {
                break;
            }
            // SAFETY: the record is on the list, so its table page stays as long as the page's lock is held.
            let (table, slot) = unsafe { (&*(*record).table, (*record).slot as usize) };
            // A fault acquires the table page's lock before the page's lock. This function acquires them in the
            // opposite order, so it must not wait for the table page's lock and only tries to acquire it.
            let Some(mut leaves) = table.0.try_lock() else {
                drop(list);
                relax();
                continue;
            };
            // SAFETY: the record is the first on the list. The locks of the list and of the table page are held.
            unsafe { unlink(&mut list, record) };
            leaves.forget(slot);
        }
        self.dequeue(frame);
        self.unbusy(frame);
        self.free(frame);
    }
}

/// The page tables of a space.
pub(super) struct Tables(Levels<Table>);

impl Tables {
    pub fn new() -> Tables {
        Tables(Levels::new())
    }

    fn table(&self, page: u64, make: bool) -> Option<&Table> {
        self.0.table(page, make, Table::new)
    }

    /// Unmaps all pages.
    pub fn clear_all(&self, core: &Core) {
        self.0.each(|table| {
            let mut leaves = table.0.lock();
            (0..FANOUT).for_each(|slot| leaves.clear(core, slot));
        });
    }

    /// Maps a busy page.
    pub fn enter(&self, core: &Core, page: u64, frame: Frame, writable: bool) {
        let Some(table) = self.table(page, true) else { return };
        table.0.lock().enter(core, table, page as usize % FANOUT, frame, writable);
    }

    /// Maps busy pages for loads, all in one table page. A PTE that maps a page already is not changed.
    pub fn enter_free(&self, core: &Core, pages: impl Iterator<Item = (u64, Frame)>) {
        let mut pages = pages.peekable();
        let Some(table) = pages.peek().and_then(|(page, _)| self.table(*page, true)) else { return };
        let mut leaves = table.0.lock();
        for (page, frame) in pages {
            let slot = page as usize % FANOUT;
            if leaves.entries[slot] == NONE {
                leaves.enter(core, table, slot, frame, false);
            }
        }
    }

    /// The frame mapped at a page, and whether stores are allowed.
    pub fn look(&self, page: u64) -> Option<(Frame, bool)> {
        let leaves = self.table(page, false)?.0.lock();
        frame_of(leaves.entries[page as usize % FANOUT])
    }

    /// Unmaps all pages of a range. Each record leaves the list of its page.
    pub fn clear(&self, core: &Core, pages: Range<u64>) {
        for (_, table, slots) in self.0.tables(pages) {
            let mut leaves = table.0.lock();
            slots.for_each(|slot| leaves.clear(core, slot));
        }
    }

    /// Removes the write permission from all PTEs of a range.
    pub fn protect(&self, pages: Range<u64>) {
        for (_, table, slots) in self.0.tables(pages) {
            let mut leaves = table.0.lock();
            leaves.entries[slots].iter_mut().filter(|l| **l != NONE).for_each(|leaf| {
                *leaf &= !WRITABLE;
                record::wrote(leaf);
            });
        }
    }

    /// The number of records that are in use.
    pub fn records(&self) -> usize {
        self.0
            .tables(0..1 << 36)
            .map(|(_, table, _)| table.0.lock().entries.iter().filter(|l| **l != NONE).count())
            .sum()
    }
}
