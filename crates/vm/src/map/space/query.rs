//! Queries of a map: entries for tools, residency, keys for futexes. They acquire no lock of the map.

use crate::error::{FaultError, MapError};
use crate::machine::Machine;
use crate::map::arena::arenas::Changed;
use crate::map::entry::piece::layers;
use crate::map::entry::{Attributes, Entry, Tag};
use crate::map::space::Space;
use crate::object::ObjectRef;
use crate::object::index::Slot;
use crate::paging::pager::PagerError;
use crate::types::{PAGE_SHIFT, PAGE_SIZE, VirtRange};
use core::any::Any;
use core::fmt;
use core::ops::Range;
use quire_sync::epoch::Pinned;

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
        loop {
            let info = {
                let pin = self.vm().epoch().pin();
                let Some(entry) = self.arenas.next(at, &pin) else { return };
                let mut copied = false;
                let shown = layers(entry.front()).filter_map(|b| Some((b, b.object()?))).find_map(|(b, o)| {
                    copied |= o.is_private();
                    if o.is_private() { None } else { Some((b, ObjectRef::of(o, &pin)?)) }
                });
                let (offset, object) = match shown {
                    Some((b, o)) if b.range().contains(entry.range().start) => {
                        (b.key(entry.range().start) << PAGE_SHIFT, Some(o))
                    }
                    _ => (0, None),
                };
                EntryInfo { range: entry.range(), attributes: entry.attributes(), offset, object, copied }
            };
            at = info.range.end;
            if !f(&info) {
                return;
            }
        }
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
                // acquired.
                let front = Some(entry.front()).filter(|_| entry.shared());
                let shown = front.and_then(|b| Some((b.object().filter(|o| o.is_written_back())?, b.key(part.start))));
                (part, shown.and_then(|(o, first)| Some((ObjectRef::of(o, &pin)?, first))))
            };
            if part.start > at {
                result = Err(MapError::NotMapped);
            }
            if let Some((object, first)) = shown {
                write(&object, first..first + (part.len() >> PAGE_SHIFT)).map_err(|_| MapError::Pager)?;
            }
            at = part.end;
        }
        result
    }

    /// Calls `sink` with the number of each page of `range`, counted from its start, and whether the page is resident.
    /// At a hole this returns [`MapError::NotMapped`]; the pages before the hole have been reported.
    pub fn resident(&self, range: VirtRange, sink: &mut dyn FnMut(u64, bool)) -> Result<(), MapError> {
        self.valid(range)?;
        let mut va = range.start;
        while va < range.end {
            let there = {
                let pin = self.vm().epoch().pin();
                match self.look(va, &pin) {
                    Ok(None) => return Err(MapError::NotMapped),
                    Err(Changed) => continue,
                    // Look twice, because a walk may miss a page that a concurrent operation moves to a layer nearer to
                    // the front.
                    Ok(Some(entry)) => (0..2).any(|_| matches!(shown(entry, va, &pin), Slot::Page(_))),
                }
            };
            sink((va - range.start) >> PAGE_SHIFT, there);
            va += PAGE_SIZE;
        }
        Ok(())
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
