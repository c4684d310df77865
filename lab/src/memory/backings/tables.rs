//! Page tables of the backings core, without a record for each PTE. A CPU that changes a PTE holds a mark of the space:
//! a small spin lock, chosen by a hash of the page's number. A CPU that removes a page from all spaces holds no mark.
//! That CPU changes PTEs by compare-and-swap.

use crate::memory::levels::{FANOUT, Levels};
use crate::memory::pages::Frame;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering};
use quire_sync::hooks::relax;
use quire_sync::{CachePadded, record};
use std::ops::Range;

/// A PTE: a frame, [`PRESENT`], and [`WRITABLE`] if stores are allowed; or [`NONE`].
type Leaf = u32;
const NONE: Leaf = 0;
const PRESENT: Leaf = 1 << 30;
const WRITABLE: Leaf = 1 << 31;

/// The frame that a PTE maps, and whether stores are allowed. `None` for an empty PTE.
fn frame_of(leaf: Leaf) -> Option<(Frame, bool)> {
    (leaf & PRESENT != 0).then_some((leaf & !(PRESENT | WRITABLE), leaf & WRITABLE != 0))
}

/// The number of marks of a space, as in the source.
const MARKS: usize = 64;
/// The value of a free mark. Any other value is the page that is marked.
const FREE: u64 = u64::MAX;

/// A table page.
struct Table {
    leaves: [AtomicU32; FANOUT],
    /// The number of PTEs that are set.
    wired: AtomicU32,
}

impl Table {
    fn new() -> Box<Table> {
        Box::new(Table { leaves: [const { AtomicU32::new(NONE) }; FANOUT], wired: AtomicU32::new(0) })
    }
}

/// The page tables of a space.
pub(super) struct Tables {
    levels: Levels<Table>,
    marks: CachePadded<[AtomicU64; MARKS]>,
    /// The number of PTEs that are set in all table pages.
    resident: CachePadded<AtomicU64>,
}

/// A page whose mark is held. Only the holder of the mark, and a CPU that removes the frame, change the page's PTE.
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
        // A simple hash is good enough: it separates adjacent pages, and pages at the same slot of different table
        // pages.
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

    /// Maps a page in place of the old PTE. The caller holds the page, so no CPU removes the page during the call.
    pub fn enter(&self, page: u64, frame: Frame, writable: bool) {
        let Some(table) = self.levels.table(page, true, Table::new) else { return };
        let _mark = self.mark(page);
        let new = frame | PRESENT | if writable { WRITABLE } else { 0 };
        // If another CPU has mapped the same frame as writable, the PTE stays writable.
        let with = |old: Leaf| Some(if frame_of(old).is_some_and(|(f, _)| f == frame) { old | new } else { new });
        let old = table.leaves[page as usize % FANOUT].fetch_update(Ordering::AcqRel, Ordering::Relaxed, with);
        if old == Ok(NONE) {
            self.added(table, 1);
        }
    }

    /// Maps pages for loads, all in one table page. A PTE that is set already is not changed. The caller holds the
    /// pages.
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

    /// Clears the PTE of `page` if it maps this frame.
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
                // An empty PTE stays empty, because the caller holds the map exclusively. So this CPU skips it without
                // a mark.
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

    /// Unmaps all pages.
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

    /// Removes the write permission from all PTEs of a range.
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
