//! Wiring: ranges whose pages stay resident.
//!
//! # How
//! An entry has a mark that its range is wired, and so does each backing of its chain. No mark is written on pages.
//! Pageout passes over the backings that show a page anyway. If it meets a wired one, it leaves the page where it is
//! ([`rmap::unmap_unwired`](crate::rmap::unmap_unwired)). So wiring and unwiring cost work for the entries and their
//! layers, not for pages (relies on C7). Only bringing in missing pages is work for pages.
//!
//! A chain belongs to one entry, so its mark is that entry's alone: wired and other mappings may show the same page of
//! a file. Every layer that a wired chain shows stays, also where a layer in front hides it: every error is towards
//! keeping.
//!
//! # Against pageout
//! The writer marks the chain and publishes; then the range is faulted in. A fault reads busy under the table page's
//! lock, behind a fence; pageout sets busy, fences, and reads the mark. So one of them sees the other: the fault waits
//! and brings the page in again, or pageout leaves it.
//!
//! Truncation, and advice that content is not needed, take wired pages too. A child does not inherit wiring.

use crate::error::{FaultError, MapError};
use crate::machine::{Machine, Pmap};
use crate::map::entry::wired::{WIRED, Wire};
use crate::map::entry::{Attributes, Entry, Flags};
use crate::map::space::Space;
use crate::map::update::Update;
use crate::map::update::pte_update::Work;
use crate::types::{Access, Prot, VirtRange};
use quire_sync::trace::{EventKind, Span};

impl<M: Machine> Space<M> {
    /// Wires or unwires `range`. If a part of it is a hole, the range before that is changed and
    /// [`MapError::NotMapped`] returned, as on Linux. The caller brings pages in after this by
    /// [`make_resident`](Space::make_resident), in steps as large as it likes.
    pub fn wire(&self, range: VirtRange, how: Wire) -> Result<(), MapError> {
        let _span = Span::begin(EventKind::Wire, range.start, range.end.wrapping_sub(range.start));
        self.valid(range)?;
        let covered = self.change_wiring(range, how)?;
        if covered.end < range.end { Err(MapError::NotMapped) } else { Ok(()) }
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
        }
    }

    /// How mappings are wired that are made from now on.
    pub fn wire_future(&self, how: Wire) {
        self.set_future(how);
    }

    /// Bytes that are wired: in O(entries).
    pub fn wired_bytes(&self) -> u64 {
        self.wired_in(M::Pmap::USER)
    }

    /// Bytes of `range` that are wired.
    pub fn wired_in(&self, range: VirtRange) -> u64 {
        let mut bytes = 0;
        self.entries(range.start, &mut |e| {
            if e.attributes.flags.contains(Flags::WIRED) {
                bytes += e.range.intersect(&range).map_or(0, |r| r.len());
            }
            e.range.end < range.end
        });
        bytes
    }

    /// Returns how far it came: to the first hole.
    fn change_wiring(&self, range: VirtRange, how: Wire) -> Result<VirtRange, MapError> {
        let writer = self.write(range)?;
        let changed = |e: &Entry<M>| {
            let a = e.attributes();
            Attributes { flags: (a.flags - WIRED) | how.flags(), ..a }
        };
        let (mut end, mut changes) = (range.start, false);
        for e in writer.overlapping(range.start, range.end) {
            if e.range().start > end {
                break;
            }
            changes |= changed(e) != e.attributes();
            end = e.range().end;
        }
        let range = VirtRange { start: range.start, end: end.min(range.end) };
        if !changes || range.is_empty() {
            return Ok(range);
        }
        let mut update = Update::new(self, writer, range);
        update.change(range, changed)?;
        update.apply(Work::None)?;
        Ok(range)
    }

    /// Makes the mappings in `range` resident. Private memory that allows stores is made so for stores, so that no
    /// store has to copy later. If a part of it is a hole, the rest is served and [`MapError::NotMapped`] returned.
    /// [`MapError::Invalid`]: no map can have the range. [`MapError::Protection`]: a page cannot be made resident,
    /// because its mapping allows no access or its object ends before it. Also [`MapError::OutOfMemory`]. Pages brought
    /// in before stay. May sleep.
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
                // Another thread has unmapped it meanwhile.
                Err(FaultError::NotMapped) => result = Err(MapError::NotMapped),
                Err(FaultError::OutOfMemory) => return Err(MapError::OutOfMemory),
                Err(_) => return Err(MapError::Protection),
            }
            at = part.end;
        }
        result
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
