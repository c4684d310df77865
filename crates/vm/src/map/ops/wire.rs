//! Wiring: a wired range's pages stay resident.
//!
//! # Marks
//! A wired entry has a mark, and so does each backing of its chain. Pages have no mark. Before it evicts a page,
//! pageout visits all backings that show it. If one of them is wired, pageout leaves the page resident
//! ([`rmap::unmap_unwired`](crate::rmap::unmap_unwired)). So the cost of wiring and unwiring follows the entries and
//! their layers, not the pages (relies on C7). Only the reading of missing pages has a cost for each page.
//!
//! A chain belongs to one entry, so its marks are that entry's alone. Wired and unwired mappings may map the same page
//! of a file. A page of any layer of a wired chain stays resident, even if a layer in front hides it. That keeps a few
//! pages needlessly, but is always safe.
//!
//! # Against pageout
//! The writer marks the chain and publishes the entry. Then the range is faulted in. A fault checks the busy state
//! under the table page's lock, after a fence. Pageout sets the page busy, fences, and reads the mark. So either the
//! fault sees the busy page, waits, and reads the page in again, or pageout sees the mark and leaves the page.
//!
//! A truncation, and advice that content is not needed, remove wired pages too. A child does not inherit wiring.

use crate::error::{FaultError, MapError};
use crate::machine::{Machine, Pmap};
use crate::map::entry::wired::{WIRED, Wire};
use crate::map::entry::{Attributes, Entry, Flags};
use crate::map::space::Space;
use crate::map::update::pte_update::Work;
use crate::map::update::{PART, Update};
use crate::types::{Access, Prot, VirtRange};
use quire_sync::trace::{EventKind, Span};

impl<M: Machine> Space<M> {
    /// Wires or unwires `range`. If `range` has a hole, the part before the hole is changed, and the result is
    /// [`MapError::NotMapped`], as on Linux. Afterwards the caller reads the pages in by
    /// [`make_resident`](Space::make_resident), in steps of any size. Many mappings are changed in several steps. A
    /// calling thread that must end stops between two steps ([`MapError::Ending`]), here and in
    /// [`wire_all`](Space::wire_all).
    pub fn wire(&self, range: VirtRange, how: Wire) -> Result<(), MapError> {
        let _span = Span::begin(EventKind::Wire, range.start, range.end.wrapping_sub(range.start));
        self.valid(range)?;
        let mut at = range.start;
        loop {
            let (end, more) = self.change_wiring(VirtRange { start: at, end: range.end }, how)?;
            if !more {
                return if end < range.end { Err(MapError::NotMapped) } else { Ok(()) };
            }
            self.goes_on()?;
            at = end;
        }
    }

    /// Wires or unwires all mappings.
    pub fn wire_all(&self, how: Wire) -> Result<(), MapError> {
        let mut at = M::Pmap::USER.start;
        loop {
            let mut next = None;
            self.entries(at, &mut |e| {
                next = Some(e.range);
                false
            });
            let Some(range) = next else { return Ok(()) };
            at = range.end;
            self.change_wiring(range, how)?;
            self.goes_on()?;
        }
    }

    /// Sets how future mappings are wired.
    pub fn wire_future(&self, how: Wire) {
        self.set_future(how);
    }

    /// Number of wired bytes. The cost is O(entries).
    pub fn wired_bytes(&self) -> u64 {
        self.arenas.all().map(|arena| arena.covered().wired).sum()
    }

    /// Number of wired bytes in `range`. If the calling thread must end, the number may be too small.
    pub fn wired_in(&self, range: VirtRange) -> u64 {
        let (mut bytes, mut left) = (0, PART);
        self.entries(range.start, &mut |e| {
            if left == 0 && self.goes_on().is_err() {
                return false;
            }
            left = if left == 0 { PART } else { left - 1 };
            if e.attributes.flags.contains(Flags::WIRED) {
                bytes += e.range.intersect(&range).map_or(0, |r| r.len());
            }
            e.range.end < range.end
        });
        bytes
    }

    /// Wires or unwires the first [`PART`] entries of `range`, up to the first hole. Returns the end of the changed part,
    /// and whether more of the range may follow there.
    fn change_wiring(&self, range: VirtRange, how: Wire) -> Result<(u64, bool), MapError> {
        let writer = self.write(range)?;
        let changed = |e: &Entry<M>| {
            let a = e.attributes();
            Attributes { flags: (a.flags - WIRED) | how.flags(), ..a }
        };
        let (mut end, mut changes, mut left) = (range.start, false, PART);
        let mut more = false;
        for e in writer.overlapping(range.start, range.end) {
            if e.range().start > end {
                break;
            }
            if left == 0 {
                more = true;
                break;
            }
            left -= 1;
            changes |= changed(e) != e.attributes();
            end = e.range().end;
        }
        let range = VirtRange { start: range.start, end: end.min(range.end) };
        if changes && !range.is_empty() {
            let mut update = Update::new(self, writer, range);
            update.change(range, changed)?;
            update.apply(Work::None)?;
        }
        Ok((range.end, more))
    }

    /// Makes the pages of `range` resident and maps them. Private memory that allows stores is faulted in for stores,
    /// so that no later store needs a copy. If `range` has a hole, the rest is made resident, and the result is
    /// [`MapError::NotMapped`]. The other errors:
    ///
    /// - [`MapError::Invalid`]: no map can have the range.
    /// - [`MapError::Protection`]: a page cannot be made resident, because its mapping allows no access, or because the
    ///   object ends before the page.
    /// - [`MapError::OutOfMemory`]: no memory is free.
    /// - [`MapError::Ending`]: the calling thread must end.
    ///
    /// After an error, pages that were made resident stay. May sleep.
    pub fn make_resident(&self, range: VirtRange) -> Result<(), MapError> {
        // Relies on C10: a range that no map can have is an error.
        self.valid(range)?;
        let mut at = range.start;
        let mut result = Ok(());
        while at < range.end {
            let mut found = None;
            self.entries(at, &mut |e| {
                found = Some((e.range, e.attributes));
                false
            });
            let part =
                found.and_then(|(entry, a)| Some((entry.intersect(&VirtRange { start: at, end: range.end })?, a)));
            let Some((part, a)) = part else { return Err(MapError::NotMapped) };
            if part.start > at {
                result = Err(MapError::NotMapped);
            }
            let store = a.prot.contains(Prot::WRITE) && !a.flags.contains(Flags::SHARED);
            match self.fault_range(part, if store { Access::Write } else { Access::Read }) {
                Ok(()) => {}
                // Another thread has unmapped the part during this call.
                Err(FaultError::NotMapped) => result = Err(MapError::NotMapped),
                Err(FaultError::OutOfMemory) => return Err(MapError::OutOfMemory),
                Err(_) => return Err(MapError::Protection),
            }
            at = part.end;
            self.goes_on()?;
        }
        result
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
