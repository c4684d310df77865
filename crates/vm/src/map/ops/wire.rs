//! Wiring: ranges whose pages stay resident.
//!
//! # How
//! An entry says that its range is wired, and so does each backing of its chain. Nothing is written on pages: who wants to
//! steal one passes over the backings that show it anyway, meets one that is wired, and leaves the page where it is
//! ([`rmap::unmap_unwired`](crate::rmap::unmap_unwired)). So wiring and unwiring cost work for the entries and their layers, not
//! for pages (relies on C7); only bringing in what is not there yet is work for pages.
//!
//! A chain belongs to one entry, so its mark is that entry's alone: the same page of a file may be shown by wired and by other
//! mappings. Every layer that a wired chain shows stays, also where a layer in front hides it: every error is towards keeping.
//!
//! # Against a thief
//! The writer marks the chain and publishes; then the range is faulted in. A fault looks at busy under the table page's lock, behind a
//! fence; a thief sets busy, fences, and looks at the mark. So one of them sees the other: the fault waits and brings the page
//! in again, or the thief leaves it.
//!
//! Truncation, and advice that content is not needed, take wired pages too. A child does not inherit wiring.

use crate::error::{FaultError, MapError};
use crate::machine::{Machine, Pmap};
use crate::map::entry::{Attributes, Entry, Flags};
use crate::map::pte_update::Work;
use crate::map::space::Space;
use crate::map::update::Update;
use crate::map::wired::{WIRED, Wire};
use crate::types::{Access, Prot, VirtRange};
use quire_sync::trace::{Kind, Span};

impl<M: Machine> Space<M> {
    /// Wires or unwires `range`. Where a part of it is a hole, what lies before that is changed and
    /// [`MapError::NotMapped`] returned, as on Linux. What is to be resident now is brought in by
    /// [`make_resident`](Space::make_resident) after this, in steps as large as the caller likes.
    pub fn wire(&self, range: VirtRange, how: Wire) -> Result<(), MapError> {
        let _span = Span::begin(Kind::Wire, range.start, range.end.wrapping_sub(range.start));
        self.valid(range)?;
        let covered = self.change_wiring(range, how)?;
        if covered.end < range.end { Err(MapError::NotMapped) } else { Ok(()) }
    }

    /// Wires or unwires everything that is mapped.
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

    /// Makes what is mapped in `range` resident: private memory that may be stored into as if it were, so that no store has to
    /// copy later. Where a part of it is a hole, the rest is served and [`MapError::NotMapped`] returned.
    /// [`MapError::Invalid`] for a range that no map can have; [`MapError::Protection`] at what cannot be, since nothing may
    /// access it or its object ends before it; [`MapError::OutOfMemory`]. What was brought in before stays. May sleep.
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
