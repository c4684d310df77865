//! Advice about ranges, and the memory that it frees.

use crate::error::MapError;
use crate::machine::Machine;
use crate::map::arena::Writer;
use crate::map::entry::piece::{Piece, layers};
use crate::map::entry::{Entry, Flags};
use crate::map::maps::Maps;
use crate::map::ops::seal::keeps_content;
use crate::map::space::Space;
use crate::map::update::pte_update::{Sweep, Work};
use crate::map::update::{PART, Update};
use crate::mutant::{Mutant, mutant};
use crate::object::backing::Backing;
use crate::object::index::{FillError, Slot};
use crate::object::kept::KeptObject;
use crate::object::removal;
use crate::object::{Object, ObjectRef, SlotFilter};
use crate::paging::page_in;
use crate::paging::swap::SwapSlots;
use crate::phys::page::Page;
use crate::reclaim::evict;
use crate::reclaim::madv_free;
use crate::sleep::MaySleep;
use crate::types::{PAGE_SHIFT, Prot, VirtRange};
use core::ops::Range;
use quire_sync::atomic::fence_full;
use quire_sync::epoch::Pinned;
use quire_sync::trace::{EventKind, Span};

/// A program's advice about a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Advice {
    /// No special use expected. Also used for advice of random and sequential use, which has no effect yet.
    Normal,
    /// The range is needed soon. Its pages in swap or at a pager are read now, unless memory is low. Faults map them
    /// later. The caller waits for the reads. A failed read is no error.
    WillNeed,
    /// The range's content is not needed. The next use of private memory finds zeroes, or the file's content. Pages of
    /// shared memory and of files stay in their objects, and faults map them again.
    DontNeed,
    /// Allowed for private anonymous memory only. Pageout may free the content without writing it, until the next
    /// store. Pages in swap are freed at once, because a read would cost more than a page of zeroes. Pages that other
    /// spaces also show are kept.
    Free,
    /// The pages are removed from the shared object itself: a hole is punched.
    Remove,
    /// The range is not needed soon. Its pages are paged out if possible, and are read back at their next use. Pages
    /// that other spaces also show are kept.
    PageOut,
    /// The pages are made resident now, for loads. Errors are returned.
    PopulateRead,
    /// The pages are made resident now, for stores. Errors are returned.
    PopulateWrite,
}

impl<M: Machine> Space<M> {
    /// Applies advice to `range`. If `range` has a hole, the advice applies to its mapped parts, and the result is
    /// [`MapError::NotMapped`], as on Linux. The other errors:
    ///
    /// - [`MapError::Invalid`]: the advice does not fit the mapping.
    /// - [`MapError::Protection`]: a hole is to be punched through a mapping that may not write its object.
    /// - [`MapError::Sealed`]: sealed content would be lost.
    /// - [`MapError::OutOfMemory`]: the advice may have been applied to a part. Repeating the call completes it.
    /// - [`MapError::Ending`]: the calling thread must end, and the advice may have been applied to a part.
    pub fn advise(&self, range: VirtRange, advice: Advice) -> Result<(), MapError> {
        let _span = Span::begin(EventKind::Advise, range.start, range.end.wrapping_sub(range.start));
        self.valid(range)?;
        self.with_memory(|| self.advise_once(range, advice))
    }

    fn advise_once(&self, range: VirtRange, advice: Advice) -> Result<(), MapError> {
        match advice {
            Advice::Normal => self.covered(range),
            Advice::WillNeed => self.read_ahead(range),
            Advice::PopulateRead | Advice::PopulateWrite => self.populate_strictly(range, advice),
            Advice::DontNeed => self.forget(range),
            Advice::Free => self.give_up(range),
            Advice::Remove => self.punch(range),
            Advice::PageOut => self.page_out(range),
        }
    }

    /// [`MapError::NotMapped`] if `range` has a hole.
    pub(in crate::map) fn covered(&self, range: VirtRange) -> Result<(), MapError> {
        let writer = self.write(range)?;
        covered(self, &writer, range)
    }

    fn populate_strictly(&self, range: VirtRange, advice: Advice) -> Result<(), MapError> {
        use crate::types::Access;
        let access = if advice == Advice::PopulateWrite { Access::Write } else { Access::Read };
        self.fault_range(range, access).map_err(|e| match e {
            crate::FaultError::NotMapped => MapError::NotMapped,
            crate::FaultError::OutOfMemory => MapError::OutOfMemory,
            _ => MapError::Invalid,
        })
    }

    fn forget(&self, range: VirtRange) -> Result<(), MapError> {
        let writer = self.write(range)?;
        // Each entry is looked up anew, because `begin_anew` may replace entries.
        let mut at = range.start;
        let mut writer = Some(writer);
        let mut result = Ok(());
        let mut left = PART;
        while at < range.end {
            if left == 0 {
                // Other threads get the lock. A part is done, as if the call had been made for that part alone.
                drop(writer.take());
                self.goes_on()?;
                left = PART;
            }
            left -= 1;
            let w = match writer.take() {
                Some(writer) => writer,
                None => self.write(VirtRange { start: at, end: range.end })?,
            };
            let Some(entry) = w.next(at).filter(|e| e.range().start < range.end) else {
                result = Err(MapError::NotMapped);
                break;
            };
            if keeps_content(entry) {
                return Err(MapError::Sealed);
            }
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
        let _flushed = sweep.finish();
    }

    /// Frees the private pages of an entry in `part`.
    ///
    /// The function first marks the entry stale, so that no fault enters a leaf until the call ends. Then it clears the
    /// leaves, with one flush for many leaves. If a shared layer has a page, a zero marker in the front (the chain's
    /// first backing) hides it. The marker is an index slot that says that the content is zeroes. The marker also hides
    /// all anonymous layers behind it. After all markers are stored, the function frees the pages that only this chain
    /// shows. So if no memory is left for a marker, no page is freed that hides an older page behind it.
    ///
    /// # Requires
    /// The writer is held.
    fn free_private(&self, entry: &Entry<M>, part: VirtRange) -> Result<(), MapError> {
        entry.mark_stale();
        if !mutant(Mutant::NoFenceAfterMark) {
            fence_full();
        }
        self.drop_leaves(part);
        let hidden = layers(entry.front()).skip(1).any(|b| shared_window(b, part).is_some());
        let result = if hidden { self.put_zero_markers(entry, part) } else { Ok(()) };
        if result.is_ok() {
            for (depth, layer) in layers(entry.front()).enumerate() {
                let Some((object, keys)) = window(layer, part).filter(|(o, _)| o.is_private()) else { continue };
                // After a clip (a split of an entry) other entries may have the same front object, but they do not map
                // these pages.
                if depth == 0 && hidden {
                    removal::free_but_marks(object, keys);
                } else if depth == 0 || object.is_exclusive() {
                    removal::free(object, keys);
                }
            }
        }
        entry.unmark_stale();
        if hidden {
            // Some pages of these layers may now be seen by no chain at all. So the reaper (a daemon that frees pages
            // that no chain sees) examines the layers.
            let behind = layers(entry.front()).skip(1).filter_map(|b| b.object()).filter(|o| o.is_private());
            behind.for_each(|o| self.vm().reaper().flag(o));
        }
        result
    }

    /// For each page that a shared layer has in `part`, stores a zero marker in the front's slot, and frees the front's
    /// own page there. The cost follows those pages only (relies on C7).
    fn put_zero_markers(&self, entry: &Entry<M>, part: VirtRange) -> Result<(), MapError> {
        let vm = self.vm();
        let front = entry.front();
        let mut may = MaySleep::here();
        for layer in layers(front).skip(1) {
            let Some((object, keys)) = shared_window(layer, part) else { continue };
            let mut range = object.range(keys, SlotFilter::BOTH);
            loop {
                let busy = {
                    // Each page gets a pin of its own, because one pin over many pages would delay the epoch.
                    let pin = may.pin(vm.epoch());
                    let Some(key) = range.walk(&pin).next().map(|found| found.key()) else { break };
                    let Some(top) = front.touch(&pin)? else { break };
                    let hidden = hide(vm, top, front.key(layer.va(key)), &pin)?;
                    if hidden.is_some() {
                        range.resume_at(key);
                    }
                    hidden
                };
                busy.inspect(|page| vm.wait_unbusy(page, &mut may));
            }
        }
        Ok(())
    }

    /// Gives `part` of `entry` a chain without anonymous layers. The entry allows no stores, and shares its present
    /// anonymous layers with other spaces.
    fn begin_anew<'s>(&'s self, writer: Writer<'s, M>, entry: &'s Entry<M>, part: VirtRange) -> Result<(), MapError> {
        let mut update = Update::new(self, writer, part);
        update.outside_before(part)?;
        update.push(Piece::without_private_layers(entry, part))?;
        update.outside_after(part)?;
        update.apply(Work::Clear(part))
    }

    fn punch(&self, range: VirtRange) -> Result<(), MapError> {
        let mut at = range.start;
        let mut result = Ok(());
        while at < range.end {
            let (object, pages, next) = {
                let pin = self.vm().epoch().pin();
                let moment = self.moment(at);
                let found = self.lookup(at, &pin);
                let Some(entry) = found else {
                    let next = self
                        .arenas
                        .next_in(VirtRange { start: at, end: range.end }, &pin)
                        .map_or(range.end, |e| e.range().start);
                    if self.unchanged_since(at, moment) {
                        result = Err(MapError::NotMapped);
                        at = next.max(at);
                    }
                    continue;
                };
                let Some(part) = entry.range().intersect(&VirtRange { start: at, end: range.end }) else { continue };
                if keeps_content(entry) {
                    return Err(MapError::Sealed);
                }
                if !entry.shared() && !shows_file(entry) {
                    return Err(MapError::Invalid);
                }
                if !entry.shared() || !entry.attributes().max_prot.contains(Prot::WRITE) {
                    return Err(MapError::Protection);
                }
                let Some((object, keys)) = window(entry.front(), part) else { return Err(MapError::Invalid) };
                match ObjectRef::of(object, &pin) {
                    Some(object) => (object, keys, part.end),
                    None => continue,
                }
            };
            if !object.pager().is_none_or(|pager| pager.discard_begins()) {
                return Err(MapError::Refused);
            }
            // `note_removal` is called first, because `discard` may free nodes of the index that have times of stores.
            object.note_removal();
            object.discard(pages);
            object.pager().inspect(|pager| pager.discard_ended());
            at = next;
            self.goes_on()?;
        }
        result
    }

    /// Reads pages ahead ([`Advice::WillNeed`]). Devices are skipped, because they have no pages to read.
    fn read_ahead(&self, range: VirtRange) -> Result<(), MapError> {
        self.each_layer(range, |_, object, _| object.device().is_none(), page_in::read_ahead)
    }

    fn page_out(&self, range: VirtRange) -> Result<(), MapError> {
        self.each_own_layer(range, evict::push_out)
    }

    /// Gives up the content lazily ([`Advice::Free`]). No entry changes, so faults and forks may run at the same time.
    fn give_up(&self, range: VirtRange) -> Result<(), MapError> {
        for (n, entry) in self.write(range)?.overlapping(range.start, range.end).enumerate() {
            if n % PART == PART - 1 {
                self.goes_on()?;
            }
            if keeps_content(entry) {
                return Err(MapError::Sealed);
            }
            if entry.shared() || shows_file(entry) {
                return Err(MapError::Invalid);
            }
        }
        self.each_own_layer(range, madv_free::give_up)
    }

    /// Calls `f` for each layer of `range` that is shared memory, and for each private layer that no other chain shows.
    /// The caller holds only a reference to the object during the call.
    fn each_own_layer(
        &self,
        range: VirtRange,
        f: impl FnMut(&Object<M>, Range<u64>, &mut MaySleep),
    ) -> Result<(), MapError> {
        let own_front = |e: &Entry<M>| !e.flags().contains(Flags::NEEDS_FRONT);
        self.each_layer(range, |e, o, depth| e.shared() || (depth == 0 && own_front(e)) || o.is_exclusive(), f)
    }

    /// Calls `f` with the object and the keys of each layer of `range` for which `wanted` returns true. `wanted` gets
    /// the entry, the object and the depth. Only a reference to the object is held during the call of `f`.
    pub(in crate::map) fn each_layer(
        &self,
        range: VirtRange,
        wanted: impl Fn(&Entry<M>, &Object<M>, usize) -> bool,
        mut f: impl FnMut(&Object<M>, Range<u64>, &mut MaySleep),
    ) -> Result<(), MapError> {
        let mut may = MaySleep::here();
        let mut at = range.start;
        let mut result = Ok(());
        while at < range.end {
            self.goes_on()?;
            // One layer at a time, because the entry is looked up again after each call of `f`.
            let mut depth = 0;
            loop {
                let found = {
                    let pin = may.pin(self.vm().epoch());
                    let Some(entry) = self.arenas.next_in(VirtRange { start: at, end: range.end }, &pin) else {
                        return Err(MapError::NotMapped);
                    };
                    if entry.range().start > at {
                        result = Err(MapError::NotMapped);
                        at = entry.range().start;
                    }
                    let Some(part) = entry.range().intersect(&VirtRange { start: at, end: range.end }) else { break };
                    let layer = layers(entry.front())
                        .enumerate()
                        .skip(depth)
                        .find_map(|(n, b)| Some((n, window(b, part).filter(|(o, _)| wanted(entry, o, n))?)))
                        .and_then(|(n, (o, keys))| Some((n, KeptObject::new(o, &pin)?, keys)));
                    match layer {
                        Some(found) => found,
                        None => {
                            at = part.end;
                            break;
                        }
                    }
                };
                let (n, object, keys) = found;
                f(object.object(), keys, &mut may);
                depth = n + 1;
            }
        }
        result
    }
}

/// [`MapError::NotMapped`] if `range` has a hole. The caller has changed nothing yet, because a thread that must end
/// stops here.
pub(in crate::map) fn covered<M: Machine>(
    space: &Space<M>,
    writer: &Writer<'_, M>,
    range: VirtRange,
) -> Result<(), MapError> {
    let mut at = range.start;
    for (n, e) in writer.overlapping(range.start, range.end).enumerate() {
        if n % PART == PART - 1 {
            space.goes_on()?;
        }
        if e.range().start > at {
            return Err(MapError::NotMapped);
        }
        at = e.range().end;
    }
    if at >= range.end { Ok(()) } else { Err(MapError::NotMapped) }
}

pub(in crate::map) fn shows_file<M: Machine>(entry: &Entry<M>) -> bool {
    layers(entry.front()).any(|b| b.object().is_some_and(|o| !o.is_private()))
}

fn has_private_pages<M: Machine>(entry: &Entry<M>) -> bool {
    layers(entry.front()).any(|b| b.object().is_some_and(|o| o.is_private()))
}

/// The object of a layer, and the keys of the pages that the layer shows in `part`.
pub(in crate::map) fn window<M: Machine>(layer: &Backing<M>, part: VirtRange) -> Option<(&Object<M>, Range<u64>)> {
    let part = layer.range().intersect(&part)?;
    let first = layer.key(part.start);
    Some((layer.object()?, first..first + (part.len() >> PAGE_SHIFT)))
}

/// Returns [`window`] for a private layer that other chains also show, else `None`. The pages of a layer that other
/// chains show must stay.
fn shared_window<M: Machine>(layer: &Backing<M>, part: VirtRange) -> Option<(&Object<M>, Range<u64>)> {
    window(layer, part).filter(|(o, _)| o.is_private() && !o.is_exclusive())
}

/// Stores a zero marker at `key` of a front (a chain's first layer), and frees the old page or swap slot there. The
/// leaf is cleared, and the entry is stale. Returns a page that is still busy, for which the caller waits; then it
/// tries again.
fn hide<M: Machine>(
    vm: &'static Maps<M>,
    front: &Object<M>,
    key: u64,
    pin: &Pinned<'_>,
) -> Result<Option<&'static Page>, MapError> {
    loop {
        match front.index().fill(key, Slot::ZeroMarker, vm, pin) {
            Ok(()) | Err(FillError::Taken(Slot::ZeroMarker)) => return Ok(None),
            Err(FillError::Taken(slot @ Slot::Page(pfn))) => {
                let page = vm.page(pfn);
                if vm.try_busy_page(front, key, page).is_none() {
                    return Ok(Some(page));
                }
                let replaced = front.index().replace(key, slot, Slot::ZeroMarker, pin);
                debug_assert!(replaced, "a busy page stays in its slot");
                vm.release_page(page);
                return Ok(None);
            }
            Err(FillError::Taken(slot)) => {
                if front.index().replace(key, slot, Slot::ZeroMarker, pin) {
                    if let Slot::Swap(at) = slot {
                        vm.swap().release(SwapSlots { first: at, len: 1 });
                    }
                    return Ok(None);
                }
            }
            Err(_) => return Err(MapError::OutOfMemory),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
