//! Page tables without a record for a leaf. A CPU that changes a leaf holds a mark of the space. The remover of a page
//! sets leaves by compare-and-set.

use crate::memory::levels::{FANOUT, Levels};
use crate::memory::pages::Frame;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_sync::hooks::relax;
use quire_sync::{CachePadded, record};
use std::ops::Range;

/// A leaf: a frame, [`PRESENT`], and [`WRITABLE`] if stores are allowed; or [`NONE`].
type Leaf = u32;
const NONE: Leaf = 0;
const PRESENT: Leaf = 1 << 30;
const WRITABLE: Leaf = 1 << 31;

/// The frame that a leaf names, and whether stores are allowed.
fn frame_of(leaf: Leaf) -> Option<(Frame, bool)> {
    (leaf & PRESENT != 0).then_some((leaf & !(PRESENT | WRITABLE), leaf & WRITABLE != 0))
}

/// Marks of a space: as many as its source had.
const MARKS: usize = 64;
/// A free mark; else it is a page.
const FREE: u64 = u64::MAX;

/// A table page.
struct Table {
    leaves: [AtomicU32; FANOUT],
    /// How many leaves are set.
    wired: AtomicU32,
}

impl Table {
    fn new() -> Box<Table> {
        Box::new(Table { leaves: [const { AtomicU32::new(NONE) }; FANOUT], wired: AtomicU32::new(0) })
    }
}

/// A space's tables.
pub(super) struct Tables {
    levels: Levels<Table>,
    marks: CachePadded<[AtomicU64; MARKS]>,
    /// Leaves of all tables.
    resident: CachePadded<AtomicU64>,
}

/// A marked page: only its holder, and the remover of a frame, change its leaf.
struct Marked<'t>(&'t AtomicU64);

impl Drop for Marked<'_> {
    fn drop(&mut self) {
        record::released(self.0, None);
        self.0.store(FREE, Ordering::Release);
    }
}

impl Tables {
    pub fn new() -> Tables {
        let marks = CachePadded([const { AtomicU64::new(FREE) }; MARKS]);
        Tables { levels: Levels::new(), marks, resident: CachePadded(AtomicU64::new(0)) }
    }

    fn mark(&self, page: u64) -> Marked<'_> {
        // Any hash is good enough: neighbours differ, and so do pages at one place in different table pages.
        let mark = &self.marks[(page ^ (page >> 9) ^ (page >> 18)) as usize % MARKS];
        while mark.compare_exchange(FREE, page, Ordering::Acquire, Ordering::Relaxed).is_err() {
            relax();
        }
        record::taken(mark, None);
        Marked(mark)
    }

    fn added(&self, table: &Table, leaves: u32) {
        table.wired.fetch_add(leaves, Ordering::Relaxed);
        self.resident.fetch_add(u64::from(leaves), Ordering::Relaxed);
    }

    fn gone(&self, table: &Table, leaves: u32) {
        table.wired.fetch_sub(leaves, Ordering::Relaxed);
        self.resident.fetch_sub(u64::from(leaves), Ordering::Relaxed);
    }

    /// Maps a page that stays meanwhile, in place of the old leaf.
    pub fn enter(&self, page: u64, frame: Frame, writable: bool) {
        let Some(table) = self.levels.table(page, true, Table::new) else { return };
        let _mark = self.mark(page);
        let new = frame | PRESENT | if writable { WRITABLE } else { 0 };
        // Store rights that another CPU has given stay.
        let with = |old: Leaf| Some(if frame_of(old).is_some_and(|(f, _)| f == frame) { old | new } else { new });
        let old = table.leaves[page as usize % FANOUT].fetch_update(Ordering::AcqRel, Ordering::Relaxed, with);
        if old == Ok(NONE) {
            self.added(table, 1);
        }
    }

    /// Maps pages of one table page for loads, where nothing is mapped; the pages stay meanwhile.
    pub fn enter_free(&self, pages: impl Iterator<Item = (u64, Frame)>) {
        let mut pages = pages.peekable();
        let Some(table) = pages.peek().and_then(|(page, _)| self.levels.table(*page, true, Table::new)) else { return };
        let mut added = 0;
        for (page, frame) in pages {
            let _mark = self.mark(page);
            let leaf = &table.leaves[page as usize % FANOUT];
            added +=
                u32::from(leaf.compare_exchange(NONE, frame | PRESENT, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        }
        self.added(table, added);
    }

    /// The frame mapped at a page, and whether stores are allowed.
    pub fn look(&self, page: u64) -> Option<(Frame, bool)> {
        let table = self.levels.table(page, false, Table::new)?;
        frame_of(table.leaves[page as usize % FANOUT].load(Ordering::Acquire))
    }

    /// Removes a leaf if it names this frame.
    pub fn remove(&self, page: u64, frame: Frame) {
        let Some(table) = self.levels.table(page, false, Table::new) else { return };
        let none = |leaf| frame_of(leaf).filter(|(f, _)| *f == frame).map(|_| NONE);
        let leaf = &table.leaves[page as usize % FANOUT];
        if leaf.fetch_update(Ordering::AcqRel, Ordering::Acquire, none).is_ok() {
            self.gone(table, 1);
        }
    }

    /// Unmaps all pages of a range.
    pub fn clear(&self, pages: Range<u64>) {
        for (first, table, slots) in self.levels.tables(pages) {
            for slot in slots {
                // An empty leaf stays empty, because the caller holds the map exclusively.
                if table.leaves[slot].load(Ordering::Relaxed) == NONE {
                    continue;
                }
                let _mark = self.mark(first + slot as u64);
                if table.leaves[slot].swap(NONE, Ordering::AcqRel) != NONE {
                    self.gone(table, 1);
                }
            }
        }
    }

    /// Unmaps everything.
    pub fn clear_all(&self) {
        if self.resident.load(Ordering::Relaxed) == 0 {
            return;
        }
        self.levels.each(|table| {
            if table.wired.load(Ordering::Relaxed) == 0 {
                return;
            }
            let there = |leaf: &&AtomicU32| leaf.load(Ordering::Relaxed) != NONE;
            let taken = table.leaves.iter().filter(there).filter(|leaf| leaf.swap(NONE, Ordering::AcqRel) != NONE);
            self.gone(table, taken.count() as u32);
        });
    }

    /// Removes store rights from all pages of a range.
    pub fn protect(&self, pages: Range<u64>) {
        for (first, table, slots) in self.levels.tables(pages) {
            for slot in slots {
                if table.leaves[slot].load(Ordering::Relaxed) & WRITABLE != 0 {
                    let _mark = self.mark(first + slot as u64);
                    table.leaves[slot].fetch_and(!WRITABLE, Ordering::AcqRel);
                }
            }
        }
    }
}
