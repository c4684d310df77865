//! Advice about ranges, and what it frees.

use super::arena::Writer;
use super::entry::{Entry, Flags};
use super::leaves::{Sweep, Work};
use super::piece::{Piece, layers};
use super::space::Space;
use super::update::Update;
use crate::backing::Backing;
use crate::error::MapError;
use crate::index::{Cursor, FillError, Slot};
use crate::machine::Machine;
use crate::object::{Object, ObjectRef};
use crate::remove;
use crate::types::{PAGE_SHIFT, Prot, VirtRange};
use core::ops::Range;
use quire_sync::atomic::fence_full;
use quire_sync::hooks::relax;

/// What a program says of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// Nothing special; also for random and sequential use, which change nothing yet.
    Normal,
    /// It is needed soon.
    WillNeed,
    /// Its content is not needed: private memory is as new (zeroes, or the file's content) at the next use; shared memory and
    /// files stay, and are mapped again by faults.
    DontNeed,
    /// As `DontNeed`, of private anonymous memory only; the content may go at any time until the next store.
    Free,
    /// The pages go from the shared object itself: a hole is punched.
    Remove,
    /// A fork leaves the range out.
    DontFork,
    /// A fork includes it again.
    DoFork,
    /// A fork gives the child fresh, empty memory there (private anonymous memory only).
    WipeOnFork,
    /// A fork gives the child the content again.
    KeepOnFork,
    /// Made resident now, for loads; errors are reported.
    PopulateRead,
    /// Made resident now, for stores; errors are reported.
    PopulateWrite,
}

impl<M: Machine> Space<M> {
    /// Takes advice about `range`. Where a part of it is a hole, the rest is served and [`MapError::NotMapped`] returned, as
    /// on Linux; [`MapError::Invalid`] where the advice does not fit the mapping.
    pub fn advise(&self, range: VirtRange, advice: Advice) -> Result<(), MapError> {
        self.valid(range)?;
        match advice {
            // Files in memory and anonymous memory have nothing to be read ahead.
            Advice::Normal | Advice::WillNeed => self.covered(range),
            Advice::PopulateRead | Advice::PopulateWrite => self.populate_strictly(range, advice),
            Advice::DontNeed | Advice::Free => self.forget(range, advice),
            Advice::Remove => self.punch(range),
            Advice::DontFork => self.change_flags(range, Flags::DONT_FORK, Flags::empty()),
            Advice::DoFork => self.change_flags(range, Flags::empty(), Flags::DONT_FORK),
            Advice::WipeOnFork => self.change_flags(range, Flags::WIPE_ON_FORK, Flags::empty()),
            Advice::KeepOnFork => self.change_flags(range, Flags::empty(), Flags::WIPE_ON_FORK),
        }
    }

    /// Whether there is no hole in `range`.
    pub(super) fn covered(&self, range: VirtRange) -> Result<(), MapError> {
        let writer = self.arena.write();
        covered(&writer, range)
    }

    fn populate_strictly(&self, range: VirtRange, advice: Advice) -> Result<(), MapError> {
        use crate::types::{Access, PAGE_SIZE};
        let access = if advice == Advice::PopulateWrite { Access::Write } else { Access::Read };
        for va in (range.start..range.end).step_by(PAGE_SIZE as usize) {
            self.fault(va, access).map_err(|e| match e {
                crate::FaultError::NotMapped => MapError::NotMapped,
                crate::FaultError::OutOfMemory => MapError::OutOfMemory,
                _ => MapError::Invalid,
            })?;
        }
        Ok(())
    }

    fn forget(&self, range: VirtRange, advice: Advice) -> Result<(), MapError> {
        let writer = self.arena.write();
        if advice == Advice::Free && writer.overlapping(range.start, range.end).any(|e| e.shared() || shows_file(e)) {
            return Err(MapError::Invalid);
        }
        // One entry after the other, each looked up anew: an entry may give way to others.
        let mut at = range.start;
        let mut writer = Some(writer);
        let mut result = Ok(());
        while at < range.end {
            let w = writer.take().unwrap_or_else(|| self.arena.write());
            let Some(entry) = w.next(at).filter(|e| e.range().start < range.end) else {
                result = Err(MapError::NotMapped);
                break;
            };
            let Some(part) = entry.range().intersect(&VirtRange { start: at, end: range.end }) else { break };
            if part.start > at {
                result = Err(MapError::NotMapped);
            }
            at = part.end;
            if entry.shared() || !has_private_pages(entry) {
                self.drop_leaves(part);
            } else if entry.flags().contains(Flags::NEEDS_FRONT) {
                self.begin_anew(w, entry, part)?;
                continue;
            } else {
                self.free_private(entry, part)?;
            }
            writer = Some(w);
        }
        result
    }

    fn drop_leaves(&self, part: VirtRange) {
        let mut sweep = Sweep::new(self);
        sweep.perform(Work::Clear(part));
        let cleared = sweep.cleared;
        let _flushed = sweep.finish();
        self.note_cleared(cleared);
    }

    /// Frees what a private entry has of its own in `part`. => the writer is held.
    ///
    /// The entry is marked for the time being, so that no fault takes effect in between; then the leaves go, with one flush for
    /// many. Pages in layers that nobody else shows go; where a layer that others show has a page, a cut in the front hides it
    /// (and all anonymous layers behind).
    fn free_private(&self, entry: &Entry<M>, part: VirtRange) -> Result<(), MapError> {
        entry.mark_stale();
        fence_full();
        self.drop_leaves(part);
        let mut hidden = false;
        for (depth, layer) in layers(entry.front()).enumerate() {
            let Some((object, keys)) = window(layer, part).filter(|(o, _)| o.is_private()) else { continue };
            // Others may show the front's object too, but not these pages of it: it was clipped.
            if depth == 0 || object.is_exclusive() {
                remove::free(object, keys);
            } else {
                hidden = true;
            }
        }
        let result = if hidden { self.cut(entry, part) } else { Ok(()) };
        entry.unmark_stale();
        result
    }

    /// Puts a cut into the front wherever a layer behind it has a page in `part`. Work for those pages only (Contract C7).
    fn cut(&self, entry: &Entry<M>, part: VirtRange) -> Result<(), MapError> {
        let vm = self.vm();
        let front = entry.front();
        for layer in layers(front).skip(1) {
            let Some((object, keys)) = window(layer, part).filter(|(o, _)| o.is_private()) else { continue };
            let mut cursor = Cursor::over(keys);
            loop {
                // A pin for each page: there may be many.
                let pin = vm.epoch().pin();
                let Some((key, slot)) = cursor.resume(object.index(), &pin).next() else { break };
                if !matches!(slot, Slot::Page(_) | Slot::Swap(_)) {
                    continue;
                }
                let Some(top) = front.touch(&pin)? else { break };
                match top.index().fill(front.key(layer.va(key)), Slot::Cut, vm, &pin) {
                    // Taken: by the cut for a layer in front of this one.
                    Ok(()) | Err(FillError::Taken(Slot::Cut)) => {}
                    // A fault that began before the mark has a page there, which it is about to give up.
                    Err(FillError::Taken(_)) => {
                        cursor.rewind(key);
                        relax();
                    }
                    Err(_) => return Err(MapError::OutOfMemory),
                }
            }
        }
        Ok(())
    }

    /// Gives `part` of an entry that allows no stores, and shares its anonymous layers, a chain without them.
    fn begin_anew<'s>(&'s self, writer: Writer<'s, M>, entry: &'s Entry<M>, part: VirtRange) -> Result<(), MapError> {
        let mut update = Update::new(self, writer, part);
        update.outside_before(part)?;
        update.push(Piece::without_private_layers(entry, part))?;
        update.outside_after(part)?;
        update.apply(Work::Clear(part))
    }

    fn punch(&self, range: VirtRange) -> Result<(), MapError> {
        let mut at = range.start;
        while at < range.end {
            let (object, pages, next) = {
                let pin = self.vm().epoch().pin();
                let sequence = self.sequence(at);
                let found = self.lookup(at, &pin);
                let Some(entry) = found else {
                    if !self.unchanged_since(at, sequence) {
                        continue;
                    }
                    return Err(MapError::NotMapped);
                };
                let Some(part) = entry.range().intersect(&VirtRange { start: at, end: range.end }) else { continue };
                if !entry.shared() || !entry.attributes().max_prot.contains(Prot::WRITE) {
                    return Err(MapError::Invalid);
                }
                let Some((object, keys)) = window(entry.front(), part) else { return Err(MapError::Invalid) };
                match ObjectRef::of(object, &pin) {
                    Some(object) => (object, keys, part.end),
                    None => continue,
                }
            };
            object.discard(pages);
            at = next;
        }
        Ok(())
    }

    fn change_flags(&self, range: VirtRange, set: Flags, clear: Flags) -> Result<(), MapError> {
        let writer = self.arena.write();
        let wiped = set.contains(Flags::WIPE_ON_FORK);
        if wiped && writer.overlapping(range.start, range.end).any(|e| e.shared() || shows_file(e)) {
            return Err(MapError::Invalid);
        }
        let result = covered(&writer, range);
        let changed = |e: &Entry<M>| {
            let mut a = e.attributes();
            a.flags = (a.flags | set) - clear;
            a
        };
        let mut update = Update::new(self, writer, range);
        let (first, last) = update.ends();
        update.outside_before(range)?;
        if let Some(e) = first.filter(|e| e.range().start >= range.start) {
            update.lean_on_previous(changed(e));
        }
        for e in update.writer().overlapping(range.start, range.end) {
            let mut piece = Piece::part(e, e.range().intersect(&range).unwrap_or(e.range()));
            piece.attributes = changed(e);
            update.push(piece)?;
        }
        update.outside_after(range)?;
        if let Some(e) = last.filter(|e| e.range().end <= range.end) {
            update.lean_on_next(changed(e));
        }
        update.apply(Work::None)?;
        result
    }
}

fn covered<M: Machine>(writer: &Writer<'_, M>, range: VirtRange) -> Result<(), MapError> {
    let mut at = range.start;
    for e in writer.overlapping(range.start, range.end) {
        if e.range().start > at {
            return Err(MapError::NotMapped);
        }
        at = e.range().end;
    }
    if at >= range.end { Ok(()) } else { Err(MapError::NotMapped) }
}

fn shows_file<M: Machine>(entry: &Entry<M>) -> bool {
    layers(entry.front()).any(|b| b.object().is_some_and(|o| !o.is_private()))
}

fn has_private_pages<M: Machine>(entry: &Entry<M>) -> bool {
    layers(entry.front()).any(|b| b.object().is_some_and(|o| o.is_private()))
}

/// The pages of a layer's object that it shows in `part`.
fn window<M: Machine>(layer: &Backing<M>, part: VirtRange) -> Option<(&Object<M>, Range<u64>)> {
    let part = layer.range().intersect(&part)?;
    let first = layer.key(part.start);
    Some((layer.object()?, first..first + (part.len() >> PAGE_SHIFT)))
}
