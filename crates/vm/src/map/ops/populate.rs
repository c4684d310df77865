//! The population of ranges. Walks over the objects map resident pages, many under one acquisition of a table page's
//! lock. Faults bring in the other pages.

use crate::error::FaultError;
use crate::fault::refill::{Tally, refill, refill_some};
use crate::machine::{Machine, Pmap, Table};
use crate::map::entry::Flags;
use crate::map::space::Space;
use crate::sleep::MaySleep;
use crate::stats::FaultKind;
use crate::types::{Access, PAGE_SIZE, Prot, VirtRange};

/// The most pages that one walk maps under one acquisition of a table page's lock: all pages that a table page covers.
const LOOK: u32 = 512;

impl<M: Machine> Space<M> {
    /// Serves `access` at every page of `range`. Ends at the first page whose access fails, and returns that error. May
    /// sleep.
    pub(in crate::map) fn fault_range(&self, range: VirtRange, access: Access) -> Result<(), FaultError> {
        let mut at = range.start;
        while at < range.end {
            let (end, all) = self.map_residents(VirtRange { start: at, end: range.end });
            if self.were_tables_dropped() {
                refill(self, &mut MaySleep::here());
            }
            // All pages up to `end` are mapped with the needed rights.
            if all.contains(access.needs()) {
                at = end;
                continue;
            }
            // Fault page by page until a fault finds a resident page. Before that, another walk over the objects would
            // find nothing.
            loop {
                let Some(va) = self.first_unmapped(VirtRange { start: at, end: range.end }, access) else {
                    return Ok(());
                };
                let past = self.table_end(va);
                let kind = self.fault(va, access)?;
                at = va + PAGE_SIZE;
                if at >= past.min(range.end)
                    || matches!(kind, FaultKind::Resident | FaultKind::Reuse | FaultKind::Spurious)
                {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Maps the resident pages of `range`, up to the end of the table page and of the entry at its start. Returns that
    /// end. Also returns the rights that all pages up to there have, if this call has mapped all of them; else no
    /// rights.
    fn map_residents(&self, range: VirtRange) -> (u64, Prot) {
        let pin = self.vm().epoch().pin();
        let Some(entry) = self.lookup(range.start, &pin) else { return (range.start, Prot::empty()) };
        let end = self.table_end(range.start).min(range.end).min(entry.range().end);
        let mut tally = Tally::of(LOOK);
        for private in [true, false] {
            let mut at = range.start;
            while at < end && tally.left != 0 {
                match refill_some(self, entry, VirtRange { start: at, end }, private, LOOK as usize, &mut tally, &pin) {
                    Ok(next) if next > at => at = next,
                    _ => break,
                }
            }
        }
        let all = u64::from(LOOK - tally.left) == (end - range.start) / PAGE_SIZE;
        (end, if all { tally.prot } else { Prot::empty() })
    }

    /// The first page of `range` whose leaf does not allow `access`.
    fn first_unmapped(&self, range: VirtRange, access: Access) -> Option<u64> {
        let zero = self.vm().zero_frame();
        let mut at = range.start;
        while at < range.end {
            let Some(table) = self.pmap().next_table(self.vm(), VirtRange { start: at, end: range.end }) else {
                return Some(at);
            };
            let span = table.span();
            if span.start > at {
                return Some(at);
            }
            let end = span.end.min(range.end);
            while at < end {
                match table.get(at) {
                    // A wired mapping has pages of its own. It may still show the frame of zeroes from before.
                    Some(leaf) if leaf.pfn == zero && self.is_wired_at(at) => return Some(at),
                    Some(leaf)
                        if leaf.prot.contains(access.needs())
                            && (access != Access::Write || !table.is_store_protected()) =>
                    {
                        at += PAGE_SIZE
                    }
                    _ => return Some(at),
                }
            }
        }
        None
    }

    /// Whether the mapping at `va` is wired. The caller may hold a table page's lock.
    fn is_wired_at(&self, va: u64) -> bool {
        let pin = self.vm().epoch().pin();
        self.lookup(va, &pin).is_some_and(|entry| entry.flags().contains(Flags::WIRED))
    }

    /// The end of the 2 MiB region of `va`. The region is only the step of a walk, so it may differ from the range that
    /// a table page covers.
    fn table_end(&self, va: u64) -> u64 {
        const REGION: u64 = 2 << 20;
        (va / REGION + 1) * REGION
    }
}
