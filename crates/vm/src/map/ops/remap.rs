//! The resizing and moving of mappings. Pages are not moved: they stay in their objects, under the same keys. The
//! leaves at the old place are cleared, and faults enter them at the new place.

use crate::error::MapError;
use crate::machine::Machine;
use crate::map::arena::Writer;
use crate::map::entry::piece::{ChainSource, Piece};
use crate::map::entry::{Attributes, Entry, Flags};
use crate::map::space::Space;
use crate::map::update::pte_update::Work;
use crate::map::update::{Row, Update};
use crate::types::{PAGE_SIZE, VirtRange};
use quire_sync::trace::{EventKind, Span};

/// A move to a given address is refused if fewer than this number of entries can be added below the limit, as on Linux.
/// The move may split the mapping at both ends, and the mapping at the new place too.
const ENTRIES_OF_A_MOVE: usize = 6;

/// Whether a mapping may move, and its new place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Move {
    /// The mapping stays.
    No,
    /// The mapping moves to any place if it cannot grow in place.
    May,
    /// The mapping moves to this address; older mappings there are removed.
    To(u64),
}

impl<M: Machine> Space<M> {
    /// Changes the length of the mapping at `old` to `new_len` bytes. Moves the mapping if needed and if `how` allows
    /// that. Returns its address. `old` must lie within one entry (else [`MapError::NotMapped`]) that is not sealed
    /// (else [`MapError::Sealed`]). If `old` is empty, the mapping must be shared, and this makes a second mapping of
    /// the same pages. With `keep_old` the mapping always moves, and the old range stays mapped. A private old range
    /// has no pages then, like a new mapping.
    pub fn remap(&self, old: VirtRange, new_len: u64, how: Move, keep_old: bool) -> Result<u64, MapError> {
        let _span = Span::begin(EventKind::Remap, old.start, new_len);
        let twice = old.start == old.end;
        if twice {
            self.valid(VirtRange {
                start: old.start,
                end: old.start.checked_add(PAGE_SIZE).ok_or(MapError::Invalid)?,
            })?;
        } else {
            self.valid(old)?;
        }
        if new_len == 0 || !new_len.is_multiple_of(PAGE_SIZE) || (keep_old && (new_len != old.len() || how == Move::No))
        {
            return Err(MapError::Invalid);
        }
        if let Move::To(at) = how {
            let new = VirtRange::checked(at, new_len).ok_or(MapError::Invalid)?;
            self.valid(new)?;
            if new.intersect(&old).is_some() || (twice && new.contains(old.start)) {
                return Err(MapError::Invalid);
            }
        }
        let stays = how == Move::No || (how == Move::May && !keep_old);

        // A move that makes too many entries is refused before anything is unmapped for it.
        if matches!(how, Move::To(_)) && self.too_many(&self.write_at(old.start).0, ENTRIES_OF_A_MOVE) {
            return Err(MapError::TooMany);
        }

        // Pages beyond the new length are unmapped first, as on Linux, even if several entries map them. A range that
        // only shrinks in place may have several entries.
        let mut old = old;
        if !twice && new_len <= old.len() {
            let stays_whole = VirtRange { start: old.start, end: old.start + if stays { PAGE_SIZE } else { new_len } };
            covering(&self.write_at(old.start).0, stays_whole)?;
            if new_len < old.len() {
                self.unmap(VirtRange { start: old.start + new_len, end: old.end })?;
                old.end = old.start + new_len;
            }
            if stays {
                return Ok(old.start);
            }
        }
        let to = match how {
            Move::To(at) => Some(VirtRange { start: at, end: at + new_len }),
            _ => None,
        };
        if let Some(to) = to {
            // Check first that the mapping can be moved, before anything is unmapped for it.
            let shown = if twice { VirtRange { end: old.start + 1, ..old } } else { old };
            if !covering(&self.write_at(old.start).0, shown)?.shared() && twice {
                return Err(MapError::Invalid);
            }
            self.unmap(to)?;
        }

        self.with_memory(|| self.resize(old, new_len, how, to, keep_old))
    }

    /// The rest of [`Space::remap`], after the new place is unmapped: grows the mapping in place, or moves it.
    fn resize(
        &self,
        old: VirtRange,
        new_len: u64,
        how: Move,
        to: Option<VirtRange>,
        keep_old: bool,
    ) -> Result<u64, MapError> {
        let twice = old.start == old.end;
        let stays = how == Move::No || (how == Move::May && !keep_old);
        let mut writer = self.write_at(old.start).0;
        let mut everything = false;
        loop {
            let entry = covering(&writer, if twice { VirtRange { end: old.start + 1, ..old } } else { old })?;
            let a = entry.attributes();
            if twice && !a.flags.contains(Flags::SHARED) {
                return Err(MapError::Invalid);
            }
            if twice && how == Move::No {
                return Err(MapError::NoSpace);
            }
            let more = new_len - if keep_old { 0 } else { old.len() };
            // A mapping that only moves is always allowed, even if a limit was lowered since it was made.
            if more > 0 && (self.exceeds(more, &a) || !writer.charge_commit(more, 0, &a)) {
                return Err(MapError::NoSpace);
            }
            if !twice && stays {
                let end = old.start.checked_add(new_len).ok_or(MapError::Invalid)?;
                let grown = VirtRange { start: old.start, end };
                let free = entry.range().end == old.end
                    && self.valid(grown).is_ok()
                    && self.has(&writer, grown)
                    && writer.next(old.end).is_none_or(|e| e.range().start >= grown.end);
                if free {
                    let more = VirtRange { start: old.end, end: grown.end };
                    self.grow(writer, entry, a, more)?;
                    self.bring_in(a, more);
                    return Ok(old.start);
                }
                if how == Move::No {
                    return Err(MapError::NoSpace);
                }
            }
            // Both places must be in the writer's arena (the part of the map whose lock it holds). If they are not, all
            // arenas are joined below.
            let new = match to {
                Some(to) => Some(to).filter(|to| self.has(&writer, *to)),
                None => self.find(&writer, new_len),
            };
            match new {
                // Another thread has mapped something at the new place since it was unmapped.
                Some(new) if writer.next(new.start).is_some_and(|e| e.range().start < new.end) => {
                    return Err(MapError::NoSpace);
                }
                Some(new) => {
                    self.relocate(writer, entry, old, new, twice, keep_old)?;
                    self.bring_in(a, new);
                    return Ok(new.start);
                }
                None if everything => return Err(MapError::NoSpace),
                None => {
                    drop(writer);
                    writer = self.write_all()?;
                    everything = true;
                }
            }
        }
    }

    /// Makes `range` resident if it is wired. Errors are ignored, because later accesses return them.
    fn bring_in(&self, a: Attributes, range: VirtRange) {
        if a.flags.contains(Flags::WIRED) && !a.flags.contains(Flags::WIRED_ON_FAULT) {
            let _as_far_as_it_goes = self.make_resident(range);
        }
    }

    /// Extends `entry` over the hole `more`, which begins at its end.
    fn grow<'s>(
        &'s self,
        writer: Writer<'s, M>,
        entry: &'s Entry<M>,
        a: Attributes,
        more: VirtRange,
    ) -> Result<(), MapError> {
        let all = VirtRange { start: entry.range().start, end: more.end };
        let mut update = Update::new(self, writer, all);
        let mut last = a;
        if shows_objects(entry) && front_is_own(entry) {
            // The new part continues the file or shared memory at the old end.
            update.push(Piece::new(all, a, ChainSource::Entry(entry)))?;
        } else if shows_objects(entry) {
            update.push(Piece::part(entry, entry.range()))?;
            update.push(Piece::without_private_layers(entry, more))?;
        } else {
            update.push(Piece::part(entry, entry.range()))?;
            last = a.emptied();
            update.push(Piece::new(more, last, ChainSource::Empty))?;
        }
        update.lean_on_next(last);
        update.apply(Work::None)
    }

    /// Maps the pages that `entry` has in `old` at `new`, and further pages if `new` is longer.
    fn relocate<'s>(
        &'s self,
        writer: Writer<'s, M>,
        entry: &'s Entry<M>,
        old: VirtRange,
        new: VirtRange,
        twice: bool,
        keep_old: bool,
    ) -> Result<(), MapError> {
        let a = entry.attributes();
        let by = old.start.wrapping_sub(new.start);
        // If only a part of the entry moves, private pages after that part belong to the rest of the entry.
        let all_there_is = old.end >= entry.range().end || !has_pages(entry);
        let goes_on = shows_objects(entry) && (new.len() <= old.len() || (front_is_own(entry) && all_there_is));
        let len = if twice || goes_on { new.len() } else { old.len() };
        let (moved, rest) = new_parts(new, len);

        let mut there = Row::new(self, new).moving(by);
        there.push(Piece::new(moved, a, ChainSource::Entry(entry)))?;
        if let Some(rest) = rest {
            there.push(Piece::without_private_layers(entry, rest))?;
        }
        // `Update::new` marks the old entry stale, so its chain does not change. If the call makes a second mapping of
        // the pages, the old place stays unchanged.
        let gone = if twice { entry.range() } else { old };
        let mut here = Update::new(self, writer, gone);
        here.outside_before(gone)?;
        if twice {
            here.push(Piece::part(entry, gone))?;
        } else if keep_old && a.flags.contains(Flags::SHARED) {
            here.push(Piece::part(entry, old))?;
        } else if keep_old {
            here.push(Piece::without_private_layers(entry, old))?;
        }
        here.outside_after(gone)?;
        here.apply_with(&mut there, if twice { Work::None } else { Work::Clear(old) })
    }
}

/// The entry that covers all of `range`, to be moved or resized. [`MapError::Sealed`] if it is sealed.
fn covering<'a, M: Machine>(writer: &Writer<'a, M>, range: VirtRange) -> Result<&'a Entry<M>, MapError> {
    match writer.get(range.start) {
        Some(e) if e.flags().contains(Flags::SEALED) => Err(MapError::Sealed),
        Some(e) if e.range().end >= range.end => Ok(e),
        _ => Err(MapError::NotMapped),
    }
}

/// Whether the entry maps a file or shared memory, so that growth at its end maps more of the object, and not zeroes.
fn shows_objects<M: Machine>(entry: &Entry<M>) -> bool {
    crate::map::entry::piece::layers(entry.front()).any(|b| b.object().is_some_and(|o| !o.is_private()))
}

/// Whether a copy of the front (the first backing) may cover more addresses than the entry. If another front has the
/// same private object, that object may have pages at the additional addresses.
fn front_is_own<M: Machine>(entry: &Entry<M>) -> bool {
    entry.front().object().is_none_or(|o| !o.is_private() || o.is_alone())
}

/// Whether a layer of the chain may have anonymous pages. After a fork, the layers behind an empty front may have some.
fn has_pages<M: Machine>(entry: &Entry<M>) -> bool {
    crate::map::entry::piece::layers(entry.front()).any(|b| b.object().is_some_and(|o| o.is_private()))
}

fn new_parts(new: VirtRange, len: u64) -> (VirtRange, Option<VirtRange>) {
    let moved = VirtRange { start: new.start, end: new.start + len.min(new.len()) };
    (moved, (moved.end < new.end).then_some(VirtRange { start: moved.end, end: new.end }))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
