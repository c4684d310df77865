//! Queries of a map: entries for tools, residency, keys for futexes. They acquire no lock of the map.

use crate::error::{FaultError, MapError};
use crate::machine::Machine;
use crate::map::arena::arenas::Changed;
use crate::map::arena::covered::SHOWS_OBJECT;
use crate::map::entry::piece::layers;
use crate::map::entry::{Attributes, Entry, Tag};
use crate::map::space::Space;
use crate::map::space::shown::{shown_in, window_at};
use crate::object::ObjectRef;
use crate::object::index::Slot;
use crate::paging::pager::PagerError;
use crate::types::{PAGE_SHIFT, PAGE_SIZE, VirtRange};
use core::any::Any;
use core::fmt;
use core::ops::Range;
use quire_sync::epoch::Pinned;

/// Entries that a list of mappings looks up at a time.
const TOGETHER: usize = 8;
/// Entries that a walk looks at under one pin.
const STEPS: usize = 256;

/// A flag in a futex key: the key names an object. Without the flag it names a space.
const SHARED_KEY: u64 = 1 << 63;

/// The information of an entry for tools.
#[derive(Debug)]
pub struct EntryInfo<M: Machine> {
    /// The addresses of the entry.
    pub range: VirtRange,
    /// Protection, kind and purpose.
    pub attributes: Attributes,
    /// The offset in bytes in the object at which the entry begins; 0 for anonymous memory.
    pub offset: u64,
    /// The file or shared memory that the entry maps, at the end of its chain.
    pub object: Option<ObjectRef<M>>,
    /// An anonymous layer is in front of the object, and may have copies of its pages.
    pub copied: bool,
}

impl<M: Machine> EntryInfo<M> {
    /// The entry without its first `bytes` bytes, a part of its pages.
    pub fn rest(&self, bytes: u64) -> EntryInfo<M> {
        let offset = if self.object.is_some() { self.offset + bytes } else { self.offset };
        let range = VirtRange { start: self.range.start + bytes, end: self.range.end };
        EntryInfo { range, attributes: self.attributes, offset, object: self.object.clone(), copied: self.copied }
    }

    /// As [`Entry::is_continued_by`].
    fn is_continued_by(&self, next: &EntryInfo<M>) -> bool {
        self.range.end == next.range.start
            && self.attributes.looks_like(&next.attributes)
            && self.object == next.object
            && (self.object.is_none() || self.offset + self.range.len() == next.offset)
    }

    /// The purpose of the entry.
    pub fn tag(&self) -> Tag {
        self.attributes.tag
    }
    /// Device and inode number of the file; zeroes if there is no file.
    pub fn ident(&self) -> (u64, u64) {
        self.object.as_ref().map_or((0, 0), |o| o.ident())
    }
    /// The pager of the file, for the layer that made it. `None` if there is no file, or if the pager does not
    /// implement `as_any`.
    pub fn pager(&self) -> Option<&dyn Any> {
        self.object.as_ref()?.pager()?.as_any()
    }
    /// Writes the file's path; writes nothing if there is no file.
    pub fn name(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        self.object.as_ref().map_or(Ok(()), |o| o.name(to))
    }
}

impl<M: Machine> Space<M> {
    /// Calls `f` with each entry that ends after `from`, ascending, until `f` returns false. No lock and no pin is held
    /// during a call, so `f` may sleep. The walk continues by address, so `f` may see the entries from before or from
    /// after a concurrent change.
    pub fn entries(&self, from: u64, f: &mut dyn FnMut(&EntryInfo<M>) -> bool) {
        let mut at = from;
        while let Some(info) = self.next_info(at) {
            at = info.range.end;
            if !f(&info) {
                return;
            }
        }
    }

    /// As [`Space::entries`], by mappings: entries that continue each other (`Entry::is_continued_by`) are shown as
    /// one. The first mapping is shown whole, even if it begins before `from`.
    pub fn mappings(&self, from: u64, f: &mut dyn FnMut(&EntryInfo<M>) -> bool) {
        let mut whole: Option<EntryInfo<M>> = None;
        let mut at = self.mapping_start(from);
        loop {
            let next = self.next_infos(at);
            if next[0].is_none() {
                break;
            }
            for next in next.into_iter().flatten() {
                at = next.range.end;
                match &mut whole {
                    Some(whole) if whole.is_continued_by(&next) => {
                        whole.range.end = next.range.end;
                        whole.copied |= next.copied;
                    }
                    _ => {
                        if whole.replace(next).is_some_and(|done| !f(&done)) {
                            return;
                        }
                    }
                }
            }
        }
        if let Some(last) = whole {
            f(&last);
        }
    }

    /// The first entries that end after `at`, as many as one look under one pin shows, from the front of the array. None
    /// if there are no more.
    fn next_infos(&self, at: u64) -> [Option<EntryInfo<M>>; TOGETHER] {
        let mut all = [const { None }; TOGETHER];
        if self.arenas.fanned_out() {
            all[0] = self.next_info(at);
            return all;
        }
        let pin = self.vm().epoch().pin();
        for (place, entry) in all.iter_mut().zip(self.arenas.home().walk(at, &pin)) {
            *place = Some(Self::info(entry, &pin));
        }
        all
    }

    /// The start of the mapping that has `va`; `va` itself where nothing is mapped.
    fn mapping_start(&self, va: u64) -> u64 {
        let pin = self.vm().epoch().pin();
        let mut start = va;
        let mut first = self.lookup(va, &pin);
        while let Some(entry) = first {
            start = entry.range().start;
            let before = start.checked_sub(1).and_then(|before| self.lookup(before, &pin));
            first = before.filter(|before| before.is_continued_by(entry));
        }
        start
    }

    /// The first entry that ends after `at`.
    fn next_info(&self, at: u64) -> Option<EntryInfo<M>> {
        let pin = self.vm().epoch().pin();
        Some(Self::info(self.arenas.next(at, &pin)?, &pin))
    }

    /// Calls `f` with each entry that shows a file or shared memory, by arenas, until it returns false. Each arena counts
    /// these entries, and the walk of an arena ends at the last of them. An entry of private memory before it costs a
    /// step of the tree.
    pub fn entries_of_objects(&self, f: &mut dyn FnMut(&EntryInfo<M>) -> bool) {
        for arena in self.arenas.all() {
            let (mut at, mut left) = (0, arena.covered().objects);
            while left > 0 {
                let found = {
                    let pin = self.vm().epoch().pin();
                    let mut last = None;
                    let found = arena.walk(at, &pin).take(STEPS).find(|entry| {
                        last = Some(entry.range().end);
                        entry.flags().intersects(SHOWS_OBJECT)
                    });
                    let Some(end) = last else { break };
                    at = end;
                    found.map(|entry| Self::info(entry, &pin))
                };
                let Some(info) = found else { continue };
                left -= 1;
                if !f(&info) {
                    return;
                }
            }
        }
    }

    fn info(entry: &Entry<M>, pin: &Pinned<'_>) -> EntryInfo<M> {
        let copied = layers(entry.front()).any(|b| b.object().is_some_and(|o| o.is_private()));
        let shown = entry.shows().and_then(|(object, offset)| Some((offset, Some(ObjectRef::of(object, pin)?))));
        let (offset, object) = shown.unwrap_or((0, None));
        EntryInfo { range: entry.range(), attributes: entry.attributes(), offset, object, copied }
    }

    /// Whether anything is mapped in `range` at this moment.
    pub fn is_mapped(&self, range: VirtRange) -> bool {
        let pin = self.vm().epoch().pin();
        self.arenas.next_in(range, &pin).is_some()
    }

    /// Writes the dirty pages of the shared file mappings in `range` to the files' pagers, and waits for the writes. If
    /// `range` has a hole, the mappings after it are written too, as on Linux, and the result is
    /// [`MapError::NotMapped`]. [`MapError::Pager`] means that a write failed; the pages stay dirty. May sleep.
    pub fn sync(&self, range: VirtRange) -> Result<(), MapError> {
        self.write_shared(range, |object, pages| object.write_back(pages).map(drop))
    }

    /// Writes dirty pages like [`Space::sync`], but does not wait for the writes. A later `sync` returns their errors.
    /// May sleep until a write can be started.
    pub fn start_sync(&self, range: VirtRange) -> Result<(), MapError> {
        self.write_shared(range, |object, pages| {
            object.start_write_back(pages);
            Ok(())
        })
    }

    /// Calls `write` with each object that a shared mapping in `range` maps, and the numbers of its pages there.
    fn write_shared(
        &self,
        range: VirtRange,
        write: impl Fn(&ObjectRef<M>, Range<u64>) -> Result<(), PagerError>,
    ) -> Result<(), MapError> {
        self.valid(range)?;
        let (mut at, mut result) = (range.start, Ok(()));
        while at < range.end {
            let rest = VirtRange { start: at, end: range.end };
            let (part, shown) = {
                let pin = self.vm().epoch().pin();
                let Some(entry) = self.arenas.next_in(rest, &pin) else { return Err(MapError::NotMapped) };
                let Some(part) = entry.range().intersect(&rest) else { return Err(MapError::NotMapped) };
                // A shared mapping has one layer. Most objects are never written back, so no reference to them is
                // acquired. Their pagers are not asked here, because only a reference keeps a pager.
                let front = Some(entry.front()).filter(|_| entry.shared());
                let shown = front.and_then(|b| Some((b.object().filter(|o| !o.holes_are_zero())?, b.key(part.start))));
                (part, shown.and_then(|(o, first)| Some((ObjectRef::of(o, &pin)?, first))))
            };
            if part.start > at {
                result = Err(MapError::NotMapped);
            }
            if let Some((object, first)) = shown {
                write(&object, first..first + (part.len() >> PAGE_SHIFT))?;
            }
            at = part.end;
        }
        result
    }

    /// Calls `sink` with the number of each page of `range`, counted from its start, and whether the page is resident.
    /// At a hole this returns [`MapError::NotMapped`]; the pages before the hole have been reported. Returns whether an
    /// entry in `range` shows a file or shared memory.
    pub fn resident(&self, range: VirtRange, sink: &mut dyn FnMut(u64, bool)) -> Result<bool, MapError> {
        self.valid(range)?;
        let (mut va, mut objects) = (range.start, false);
        while va < range.end {
            let pin = self.vm().epoch().pin();
            let entry = match self.look(va, &pin) {
                Ok(None) => return Err(MapError::NotMapped),
                Err(Changed) => continue,
                Ok(Some(entry)) => entry,
            };
            let window = window_at(va, VirtRange { start: va, end: range.end.min(entry.range().end) });
            let first = (va - range.start) >> PAGE_SHIFT;
            va = window.end;
            if entry.flags().intersects(SHOWS_OBJECT) {
                objects = true;
                for (n, at) in (first..).zip((window.start..window.end).step_by(PAGE_SIZE as usize)) {
                    // Look twice, because a walk may miss a page that a concurrent operation moves to a layer nearer to
                    // the front.
                    sink(n, (0..2).any(|_| matches!(shown(entry, at, &pin), Slot::Page(_))));
                }
            } else {
                // For the same reason these are two looks.
                let there = shown_in(entry, window, &pin) | shown_in(entry, window, &pin);
                for n in 0..window.bytes() >> PAGE_SHIFT {
                    sink(first + n, there & 1 << n != 0);
                }
            }
        }
        Ok(objects)
    }

    /// The futex key of the word at `va`, which is the same in every space that shares the word. Private memory has the
    /// key (space, address), shared memory (object, byte).
    pub fn futex_key(&self, va: u64) -> Result<(u64, u64), FaultError> {
        loop {
            let pin = self.vm().epoch().pin();
            let entry = match self.look(va, &pin) {
                Ok(Some(entry)) => entry,
                Ok(None) => return Err(FaultError::NotMapped),
                Err(Changed) => continue,
            };
            let front = entry.front();
            return Ok(match front.object() {
                Some(object) if entry.shared() => {
                    let page = front.key(va & !(PAGE_SIZE - 1));
                    (SHARED_KEY | object.id(), (page << PAGE_SHIFT) | (va % PAGE_SIZE))
                }
                _ => (self.id(), va),
            });
        }
    }
}

/// The slot that a fault at `va` would find.
pub(in crate::map) fn shown<M: Machine>(entry: &Entry<M>, va: u64, pin: &Pinned<'_>) -> Slot {
    let mut zero_marker = false;
    for (object, key) in layers(entry.front()).filter_map(|b| b.layer(va)) {
        if zero_marker && object.is_private() {
            continue;
        }
        match object.index().get(key, pin) {
            Slot::Empty => {}
            Slot::ZeroMarker => zero_marker = true,
            there => return there,
        }
    }
    Slot::Empty
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::map::{MapRequest, Placement, Wire};
    use crate::testing::page;
    use crate::tests::{anonymous, range, show, store, system};
    use crate::types::Prot;

    #[test]
    fn entries_of_objects_are_found_among_many_others_and_counted() {
        let m = system();
        let space = Space::new(m.vm).unwrap();
        let file = ObjectRef::anonymous(m.vm, 16).unwrap();
        // Private memory with gaps: more entries than one pin covers, on both sides of the file's.
        let gapped = |first: u64| (0..300).for_each(|n| anonymous(&space, first + 2 * n, 1));
        gapped(0);
        show(&space, 700, 8, &file, true);
        show(&space, 710, 8, &file, false);
        gapped(720);
        let found = || {
            let mut found = Vec::new();
            space.entries_of_objects(&mut |e| {
                found.push(e.range);
                true
            });
            found
        };
        assert_eq!(found(), [range(700, 8), range(710, 8)]);
        // A part that is cut out, and a right that comes and goes, change no sum.
        space.unmap(range(702, 2)).unwrap();
        space.protect(range(710, 4), Prot::READ).unwrap();
        store(&space, page(716), 1);
        assert_eq!(found().len(), 4);
        assert_eq!(space.stats().covered.objects, 4);
        space.check(true).unwrap();
        let child = space.fork().unwrap();
        assert_eq!(child.stats().covered, space.stats().covered);
        child.check(true).unwrap();
        space.unmap(range(0, 1400)).unwrap();
        assert_eq!((found().len(), space.stats().covered.objects), (0, 0));
    }

    #[test]
    fn wired_bytes_are_counted_with_the_map() {
        let m = system();
        let space = Space::new(m.vm).unwrap();
        anonymous(&space, 0, 8);
        let wired =
            MapRequest { wire: Wire::OnFault, ..MapRequest::private(Placement::Fixed(page(20)), 4 * PAGE_SIZE) };
        space.map(&wired).unwrap();
        space.wire(range(2, 3), Wire::Now).unwrap();
        assert_eq!(space.wired_bytes(), 7 * PAGE_SIZE);
        assert_eq!(space.wired_bytes(), space.wired_in(range(0, 100)));
        space.check(true).unwrap();
        space.unmap(range(3, 18)).unwrap();
        assert_eq!(space.wired_bytes(), 4 * PAGE_SIZE);
        space.wire(range(0, 3), Wire::No).unwrap();
        assert_eq!(space.wired_bytes(), 3 * PAGE_SIZE);
        assert_eq!(space.fork().unwrap().wired_bytes(), 0, "a child's memory is not locked");
        space.check(true).unwrap();
    }
}
