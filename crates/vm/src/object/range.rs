//! Walks over a range of an object. A walk visits the occupied slots in order, and does no work for empty slots.
//!
//! Each operation on a range of an object is such a walk: flush, truncate, invalidate, unwire, unmap, release of swap
//! slots.
//!
//! # Contract C7: nothing proportional to pages
//! A walk does not look up each offset: its work grows only with the number of occupied slots. `mmap`, `fork`, `exec`
//! and `exit` of memory that no thread has touched do no work for its pages.
//!
//! # Why no item can be stale (relies on C5)
//! An [`ObjectRange`] that is not walking is two numbers: its position and its end. A walk borrows the range and a pin,
//! and each yielded item borrows both. While such an item lives, the thread cannot sleep, because sleeping needs the
//! [`MaySleep`](crate::sleep::MaySleep) that the pin borrows. The range cannot be moved or resumed either. The walk
//! stores no "next" item that could become stale: at each step it searches for the slot after a *key*.
//!
//! A yielded item may be removed during the walk, because the walk holds no slot. A slot that changes during the walk
//! may be visited or not. A slot that stays occupied is visited once.
//!
//! A yielded page cannot be kept while the thread sleeps:
//! ```compile_fail,E0502
//! use quire_vm::{Machine, ObjectRef, sleep::MaySleep, object::SlotFilter};
//!
//! fn keeps_a_page_over_a_sleep<M: Machine>(object: &ObjectRef<M>, may: &mut MaySleep) {
//!     let mut range = object.range(0..64, SlotFilter::PAGES);
//!     let pin = may.pin(object.vm().epoch());
//!     let found = unsafe { range.walk_under(&pin) }.next();
//!     may.sleep_until(|| true); // error: `may` is borrowed by the pin, which `found` holds
//!     assert!(found.is_some());
//! }
//! ```
//! The iterator cannot be kept either:
//! ```compile_fail,E0502
//! use quire_vm::{Machine, ObjectRef, sleep::MaySleep, object::SlotFilter};
//!
//! fn sleeps_between_two_steps<M: Machine>(object: &ObjectRef<M>, may: &mut MaySleep) {
//!     let mut range = object.range(0..64, SlotFilter::PAGES);
//!     let pin = may.pin(object.vm().epoch());
//!     for _page in unsafe { range.walk_under(&pin) } {
//!         may.sleep_until(|| true); // error: the walk holds the pin
//!     }
//! }
//! ```
//! A yielded item cannot be used after the range has moved:
//! ```compile_fail,E0499
//! use quire_vm::{Machine, ObjectRef, object::SlotFilter};
//!
//! fn uses_a_stale_next<M: Machine>(object: &ObjectRef<M>) {
//!     let mut range = object.range(0..64, SlotFilter::PAGES);
//!     let pin = object.vm().epoch().pin();
//!     let next = unsafe { range.walk_under(&pin) }.next();
//!     range.resume_at(32); // error: `next` still borrows the range
//!     assert!(next.is_some());
//! }
//! ```
//! A walk that is reduced to its key may sleep, and continues after the finished cluster:
//! ```
//! use quire_vm::{Machine, ObjectRef, sleep::MaySleep, object::SlotFilter};
//!
//! fn in_clusters_of_eight<M: Machine>(object: &ObjectRef<M>, may: &mut MaySleep) {
//!     let mut range = object.range(0..64, SlotFilter::PAGES);
//!     loop {
//!         let first = {
//!             let pin = may.pin(object.vm().epoch());
//!             let Some(found) = unsafe { range.walk_under(&pin) }.next() else { return };
//!             found.key()
//!         };
//!         may.sleep_until(|| true); // the cluster is written
//!         range.resume_at(first + 8);
//!     }
//! }
//! ```

use super::Object;
use crate::machine::Machine;
use crate::object::Objects;
use crate::object::index::{Cursor, Slot, Visit};
use crate::stats::Event;
use core::marker::PhantomData;
use core::ops::Range;
use quire_sync::epoch::Pinned;

bitflags::bitflags! {
    /// The slots that a walk visits. It always visits slots that are being filled or emptied. A caller that must not
    /// miss the new content of such a slot waits and reads the slot again.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub struct SlotFilter: u8 {
        /// Resident pages.
        const PAGES = 1;
        /// Pages that are in a swap slot.
        const SWAP = 2;
        /// Zero markers, which have no content.
        const MARKS = 4;
        /// Only pages whose dirty bit in the index is set. (The index's bit is a hint. Whether the page must be written
        /// depends on its own dirty bit.)
        const DIRTY_ONLY = 8;
        /// Pages that are resident or in swap.
        const BOTH = 1 | 2;
    }
}

/// A range of an object and a position in it; see the module's comment.
pub struct ObjectRange<'o, M: Machine> {
    object: &'o Object<M>,
    cursor: Cursor,
    filter: SlotFilter,
}

impl<M: Machine> Object<M> {
    /// A walk over the pages `keys`, positioned at their start.
    pub fn range(&self, keys: Range<u64>, filter: SlotFilter) -> ObjectRange<'_, M> {
        ObjectRange { object: self, cursor: Cursor::over(keys), filter }
    }
}

impl<'o, M: Machine> ObjectRange<'o, M> {
    /// The object.
    pub fn object(&self) -> &'o Object<M> {
        self.object
    }
    /// The next key to visit.
    pub fn key(&self) -> u64 {
        self.cursor.key()
    }
    /// Whether nothing is left to visit.
    pub fn is_done(&self) -> bool {
        self.cursor.is_done()
    }
    /// Moves the position to `key`: back, to visit a page again, or forward, after a group of pages that were written
    /// together.
    pub fn resume_at(&mut self, key: u64) {
        self.cursor.rewind(key);
    }
    /// Continues the walk.
    pub(crate) fn walk<'w>(&'w mut self, pin: &'w Pinned<'_>) -> Walk<'w, M> {
        let dirty = self.filter.contains(SlotFilter::DIRTY_ONLY);
        let visit = if dirty {
            self.cursor.resume_dirty(&self.object.index, pin)
        } else {
            self.cursor.resume(&self.object.index, pin)
        };
        Walk { object: self.object, visit, filter: self.filter, visited: 0 }
    }

    /// As `walk`, for callers outside this crate.
    ///
    /// # Safety
    /// The pin is of the object's system.
    pub unsafe fn walk_under<'w>(&'w mut self, pin: &'w Pinned<'_>) -> Walk<'w, M> {
        self.walk(pin)
    }
}

/// A running walk: an iterator over occupied slots in ascending order.
pub struct Walk<'w, M: Machine> {
    object: &'w Object<M>,
    visit: Visit<'w, &'static Objects<M>>,
    filter: SlotFilter,
    visited: u64,
}

/// An occupied slot, with the content that it had when it was visited. The value borrows the walk.
#[derive(Clone, Copy)]
pub struct Present<'w, M: Machine> {
    _object: PhantomData<&'w Object<M>>,
    key: u64,
    slot: Slot,
}

impl<'w, M: Machine> Iterator for Walk<'w, M> {
    type Item = Present<'w, M>;

    fn next(&mut self) -> Option<Present<'w, M>> {
        loop {
            let (key, slot) = self.visit.next()?;
            self.visited += 1;
            let wanted = match slot {
                Slot::Page(_) => SlotFilter::PAGES,
                Slot::Swap(_) => SlotFilter::SWAP,
                Slot::ZeroMarker => SlotFilter::MARKS,
                Slot::Reserved => SlotFilter::empty(),
                Slot::Empty => continue,
            };
            if self.filter.contains(wanted) {
                return Some(Present { _object: PhantomData, key, slot });
            }
        }
    }
}

impl<M: Machine> Drop for Walk<'_, M> {
    fn drop(&mut self) {
        if self.visited != 0 {
            self.object.vm().stats().add(Event::RangeVisit, self.visited);
        }
    }
}

impl<'w, M: Machine> Present<'w, M> {
    /// The slot's key.
    pub fn key(&self) -> u64 {
        self.key
    }
    /// The slot's content.
    pub fn slot(&self) -> Slot {
        self.slot
    }
}
