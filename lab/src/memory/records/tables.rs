//! Page tables: leaves of 512 entries under a lock each, and the records of mapped pages.

use super::Core;
use crate::memory::levels::{FANOUT, Levels};
use crate::memory::pages::Frame;
use quire_sync::hooks::relax;
use quire_sync::{Rank, SpinLock, record};
use std::ops::Range;
use std::ptr;

/// The rank of a page's list of mappings: inside that of a table page.
const PAGE_LOCK: Rank = Rank::INDEX;

/// A page's data: the list of its mappings.
pub struct Mapped(SpinLock<Mappings>);

impl Default for Mapped {
    fn default() -> Mapped {
        Mapped(SpinLock::new(PAGE_LOCK, Mappings { first: ptr::null_mut() }))
    }
}

/// The mappings of a page.
struct Mappings {
    first: *mut Record,
}
// SAFETY: records are reached under the lock around the list alone.
unsafe impl Send for Mappings {}

/// Records that a table page allocates at once.
const CHUNK: usize = 64;

/// A mapping of a page.
pub struct Record {
    /// Neighbours in the page's list; guarded by the page's lock.
    next: *mut Record,
    prev: *mut Record,
    /// The table of its leaf; valid while the record is listed.
    table: *const Table,
    slot: u16,
}

/// A leaf entry: a frame, and [`WRITABLE`] if stores are allowed; or [`NONE`].
type Leaf = u32;
const NONE: Leaf = u32::MAX;
const WRITABLE: Leaf = 1 << 31;

/// The frame that an entry names, and whether stores are allowed.
fn frame_of(leaf: Leaf) -> Option<(Frame, bool)> {
    (leaf != NONE).then_some((leaf & !WRITABLE, leaf & WRITABLE != 0))
}

struct Leaves {
    entries: [Leaf; FANOUT],
    /// The number of each entry's record.
    numbers: [u16; FANOUT],
    /// Records, by number; they do not move.
    #[expect(clippy::vec_box, reason = "records do not move when more are added")]
    chunks: Vec<Box<[Record; CHUNK]>>,
    /// Numbers of the unlisted records.
    free: Vec<u16>,
}
// SAFETY: records are reached under the lock of the leaves or of the page that lists them.
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

    /// A record that is on no list.
    fn take_record(&mut self) -> u16 {
        if self.free.is_empty() {
            let none = |_| Record { next: ptr::null_mut(), prev: ptr::null_mut(), table: ptr::null(), slot: 0 };
            let first = (self.chunks.len() * CHUNK) as u16;
            self.chunks.push(Box::new(std::array::from_fn(none)));
            self.free.extend((first..first + CHUNK as u16).rev());
        }
        self.free.pop().unwrap_or_else(|| unreachable!("a chunk was added"))
    }

    /// Maps `frame` at `slot`, in place of the old leaf.
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
        // SAFETY: the record is on no list, hence this table's alone; the first one's neighbours are guarded by the
        // page's lock.
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

    /// Unmaps the leaf at `slot`.
    fn clear(&mut self, core: &Core, slot: usize) {
        let Some((frame, _)) = frame_of(self.entries[slot]) else { return };
        let record = self.record(self.numbers[slot]);
        let mut list = core.of(frame).0.lock();
        // SAFETY: the entry's record is on the page's list, whose lock is held.
        unsafe { unlink(&mut list, record) };
        drop(list);
        self.forget(slot);
    }

    /// The record of `slot` is on no list any more.
    fn forget(&mut self, slot: usize) {
        self.entries[slot] = NONE;
        record::wrote(&self.entries[slot]);
        self.free.push(self.numbers[slot]);
    }
}

/// # Safety
/// `record` is on `list`.
unsafe fn unlink(list: &mut Mappings, record: *mut Record) {
    // SAFETY: neighbours on a list are alive: a record leaves its list before its table goes.
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
            // SAFETY: listed, so its table stays as long as the page's lock is held.
            let (table, slot) = unsafe { (&*(*record).table, (*record).slot as usize) };
            // Against the lock order: the holder of the table may be waiting for the page.
            let Some(mut leaves) = table.0.try_lock() else {
                drop(list);
                relax();
                continue;
            };
            // SAFETY: the record is the first of the list, whose lock is held, and the table's lock is too.
            unsafe { unlink(&mut list, record) };
            leaves.forget(slot);
        }
        self.dequeue(frame);
        self.unbusy(frame);
        self.free(frame);
    }
}

/// A space's tables.
pub(super) struct Tables(Levels<Table>);

impl Tables {
    pub fn new() -> Tables {
        Tables(Levels::new())
    }

    fn table(&self, page: u64, make: bool) -> Option<&Table> {
        self.0.table(page, make, Table::new)
    }

    /// Unmaps everything.
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

    /// Maps busy pages of one table page for loads, where nothing is mapped.
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

    /// Unmaps all pages of a range: each leaves its page's list.
    pub fn clear(&self, core: &Core, pages: Range<u64>) {
        for (_, table, slots) in self.0.tables(pages) {
            let mut leaves = table.0.lock();
            slots.for_each(|slot| leaves.clear(core, slot));
        }
    }

    /// Removes store rights from all pages of a range.
    pub fn protect(&self, pages: Range<u64>) {
        for (_, table, slots) in self.0.tables(pages) {
            let mut leaves = table.0.lock();
            leaves.entries[slots].iter_mut().filter(|l| **l != NONE).for_each(|leaf| {
                *leaf &= !WRITABLE;
                record::wrote(leaf);
            });
        }
    }

    /// Records that are in use.
    pub fn records(&self) -> usize {
        self.0
            .tables(0..1 << 36)
            .map(|(_, table, _)| table.0.lock().entries.iter().filter(|l| **l != NONE).count())
            .sum()
    }
}
