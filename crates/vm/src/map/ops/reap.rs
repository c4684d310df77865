//! The memory of an out-of-memory victim. It is counted for the choice of the victim, and freed while threads of the
//! victim may still sleep.
//!
//! # A condemned space
//! After [`Space::condemn`] no fault enters a translation in the space any more: a fault treats every entry as stale
//! (relies on C3). It makes this check under the table page's lock, so it cannot map a page that [`Space::reap`] takes.
//! Such a fault fails and does not wait, because no writer will replace the entries. System calls that access the
//! memory fail as at a bad address. A fork fails, because the child would inherit zeroes. Map operations still work,
//! because the drop of the last handle is one of them.
//!
//! # The memory that a reap frees
//! A reap frees private memory that only this space shows, both frames and swap slots. Shared memory and files may have
//! other users. Page tables are freed with the space. A reap allocates nothing. It acquires the lock of each arena (a
//! part of the map), one after the other. The holder of such a lock may wait for a page that is being read, but never
//! for memory.

use crate::PAGE_SIZE;
use crate::machine::{Machine, Pmap};
use crate::map::entry::piece::layers;
use crate::map::entry::{Entry, Flags};
use crate::map::space::Space;
use crate::map::update::pte_update::{Sweep, Work};
use crate::mutant::{Mutant, mutant};
use crate::object::SlotFilter;
use crate::object::removal;
use crate::types::VirtRange;
use quire_sync::atomic::{Ordering, fence_full};

/// Number of pages that a count of a space's memory visits under one pin of the epoch (an RCU read section).
const COUNTED: usize = 1024;

/// Pages that the end of a space would free, counted for the choice of a victim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Holdings {
    /// Resident pages: those that the page tables map, or would map if the tables had not been dropped.
    pub resident: u64,
    /// Pages of private memory that are in swap.
    pub swapped: u64,
    /// Page-table pages.
    pub tables: u64,
}

impl Holdings {
    /// The sum of all three numbers.
    pub fn total(&self) -> u64 {
        self.resident + self.swapped + self.tables
    }
}

impl<M: Machine> Space<M> {
    /// Counts the pages of the space. Pages that a parent shares with its children count in the parent and in each
    /// child, as on Linux. The cost follows the pages in swap, and also the resident pages if the page tables were
    /// dropped.
    pub fn holdings(&self) -> Holdings {
        let mut held = Holdings {
            resident: self.pmap().resident_pages(self.vm()),
            swapped: 0,
            tables: self.pmap().table_pages(self.vm()),
        };
        // If the page tables were dropped, only the objects show the resident pages. Pageout drops the tables of all
        // idle spaces before memory is exhausted.
        let filter = if self.were_tables_dropped() { SlotFilter::BOTH } else { SlotFilter::SWAP };
        let mut pages = 0;
        let _holes = self.each_layer(
            M::Pmap::USER,
            |_, object, _| object.is_private(),
            |object, keys, may| {
                let mut range = object.range(keys, filter);
                while !range.is_done() {
                    let pin = may.pin(self.vm().epoch());
                    for found in range.walk(&pin).take(COUNTED) {
                        match found.slot() {
                            crate::object::index::Slot::Page(_) => pages += 1,
                            crate::object::index::Slot::Swap(_) => held.swapped += 1,
                            _ => {}
                        }
                    }
                }
            },
        );
        held.resident = held.resident.max(pages);
        held
    }

    /// Upper bounds of [`holdings`](Self::holdings), but only an estimate of the table pages: one for each resident
    /// page. Reads neither page tables nor objects.
    pub fn most_holdings(&self) -> Holdings {
        let mapped = self.mapped() / PAGE_SIZE;
        // Where page tables were dropped, pages count that may never have had a leaf here.
        let resident = if self.lost_leaves() { mapped } else { self.peak_resident().min(mapped) };
        let swap = self.vm().swap();
        Holdings { resident, swapped: (swap.total() - swap.free().min(swap.total())).min(mapped), tables: resident }
    }

    /// The number of resident pages, read from a few counters. If the page tables were dropped, an upper bound.
    pub fn resident_estimate(&self) -> u64 {
        let most = || self.peak_resident().min(self.mapped() / PAGE_SIZE);
        if self.were_tables_dropped() { most() } else { self.pmap().counted_pages(self.vm()).unwrap_or_else(most) }
    }

    /// Pages of private memory in `range` that are in swap, counted as [`holdings`](Self::holdings) counts them.
    pub fn swapped_in(&self, range: VirtRange) -> u64 {
        let mut swapped = 0;
        let _holes = self.each_layer(
            range,
            |_, object, _| object.is_private(),
            |object, keys, may| {
                let mut range = object.range(keys, SlotFilter::SWAP);
                while !range.is_done() {
                    let pin = may.pin(self.vm().epoch());
                    swapped += range.walk(&pin).take(COUNTED).count() as u64;
                }
            },
        );
        swapped
    }

    /// From this call on, no fault enters a translation in the space; see the module. The caller has begun to end the
    /// space's program.
    pub fn condemn(&self) {
        self.condemned.store(true, Ordering::Relaxed);
        // This CPU sets the flag, fences, and later sweeps the leaves in `reap`. A fault on another CPU checks the flag
        // under its table page's lock. So the fault sees the flag, or the sweep finds the leaf of the fault.
        if !mutant(Mutant::NoFenceAfterCondemn) {
            fence_full();
        }
    }

    /// Whether [`Space::condemn`] was called.
    #[inline(always)]
    pub(crate) fn is_condemned(&self) -> bool {
        self.condemned.load(Ordering::Relaxed)
    }

    /// Frees the private memory of a condemned space. May sleep; the caller holds no lock.
    ///
    /// # Panics
    /// In debug builds, if the space is not condemned, because its program would find zeroes in place of its data.
    pub fn reap(&self) {
        debug_assert!(self.is_condemned());
        let user = M::Pmap::USER;
        let mut at = user.start;
        while at < user.end {
            // The writer is held during the loop, so that no fork shares a layer and no other writer moves an entry.
            let (writer, end) = self.write_at(at);
            let end = end.min(user.end);
            for entry in writer.overlapping(at, end) {
                if let Some(part) = entry.range().intersect(&VirtRange { start: at, end }) {
                    self.reap_entry(entry, part);
                }
            }
            at = end;
        }
    }

    /// # Requires
    /// The arena's writer is held, and the space is condemned.
    fn reap_entry(&self, entry: &Entry<M>, part: VirtRange) {
        if entry.shared() {
            return;
        }
        let mut sweep = Sweep::new(self);
        sweep.perform(Work::Clear(part));
        let late = if mutant(Mutant::ReapsBeforeFlush) {
            Some(sweep)
        } else {
            let _flushed = sweep.finish();
            None
        };
        for (depth, layer) in layers(entry.front()).enumerate() {
            let own_front = depth == 0 && !entry.flags().contains(Flags::NEEDS_FRONT);
            if let Some((object, keys)) = crate::map::ops::advise::window(layer, part)
                && object.is_private()
                && (own_front || object.is_exclusive() || mutant(Mutant::ReapsShared))
            {
                removal::free(object, keys);
            }
        }
        drop(late);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
