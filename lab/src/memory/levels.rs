//! The page tables above the last level: three levels, whose tables are never freed while the space exists.

use quire_sync::atomic::{AtomicPtr, Ordering};
use quire_sync::{Rank, SpinLock, record};
use std::ops::Range;
use std::ptr;

/// The number of pages that a last-level table covers, and of entries in a table above it.
pub const FANOUT: usize = 512;

/// A table of one of the three levels.
type Level<T> = [AtomicPtr<T>; FANOUT];

/// The tables of a space above its last-level tables. `T` is the type of a last-level table.
pub struct Levels<T> {
    root: Box<Level<Level<Level<T>>>>,
    /// The last-level tables that were made. An exit walks this list.
    made: SpinLock<Vec<Made<T>>>,
}

/// A last-level table that is linked below the root.
struct Made<T>(*const T);
// SAFETY: tables may be shared between threads, because they have their own locks.
unsafe impl<T: Sync> Send for Made<T> {}

fn level<T>() -> Box<Level<T>> {
    Box::new(std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())))
}

/// The table to which `slot` points, if any.
fn there<T>(slot: &AtomicPtr<T>) -> Option<&T> {
    // SAFETY: a table is not freed as long as the space exists, so the reference stays valid.
    unsafe { slot.load(Ordering::Acquire).as_ref() }
}

/// The table to which `slot` points. If there is none and `make` is true, `new` makes it.
fn below<T>(slot: &AtomicPtr<T>, make: bool, new: impl FnOnce() -> Box<T>) -> Option<&T> {
    let mut at = slot.load(Ordering::Acquire);
    if at.is_null() {
        if !make {
            return None;
        }
        let fresh = Box::into_raw(new());
        match slot.compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => at = fresh,
            Err(others) => {
                // SAFETY: the exchange failed, so `fresh` was never published, and only this thread has the box.
                drop(unsafe { Box::from_raw(fresh) });
                at = others;
            }
        }
    }
    // SAFETY: a table is not freed as long as the space exists, so the reference stays valid.
    unsafe { at.as_ref() }
}

impl<T: Sync> Levels<T> {
    pub fn new() -> Levels<T> {
        Levels { root: level(), made: SpinLock::new(Rank::INDEX, Vec::new()) }
    }

    /// The last-level table that covers `page`. If there is none and `make` is true, `new` makes it.
    pub fn table(&self, page: u64, make: bool, new: fn() -> Box<T>) -> Option<&T> {
        let index = |shift: u32| (page >> shift) as usize % FANOUT;
        let upper = below(&self.root[index(27)], make, level)?;
        let middle = below(&upper[index(18)], make, level)?;
        let slot = &middle[index(9)];
        if let Some(table) = there(slot) {
            return Some(table);
        }
        // The table is made under the lock of the list, so that each table is on the list once.
        let mut made = make.then(|| self.made.lock())?;
        let known = !slot.load(Ordering::Acquire).is_null();
        let table = below(slot, true, new)?;
        if !known {
            made.push(Made(table));
        }
        Some(table)
    }

    /// Calls `f` on every last-level table of a space that is being dropped. No CPU makes further tables in that space.
    pub fn each(&self, mut f: impl FnMut(&T)) {
        // The list is moved out of the lock first. `f` may acquire a table's lock, and the lock order forbids that
        // while this lock is held.
        let made = std::mem::take(&mut *self.made.lock());
        // SAFETY: the tables are not freed as long as the space exists.
        made.iter().for_each(|table| f(unsafe { &*table.0 }));
        *self.made.lock() = made;
    }

    /// The last-level tables in a range. Each comes with its first page and the slots that lie in the range.
    pub fn tables(&self, pages: Range<u64>) -> impl Iterator<Item = (u64, &T, Range<usize>)> {
        let mut page = pages.start;
        std::iter::from_fn(move || {
            while page < pages.end {
                let at = page;
                let index = |shift: u32| (at >> shift) as usize % FANOUT;
                let next = |shift: u32| ((at >> shift) + 1) << shift;
                let Some(upper) = there(&self.root[index(27)]) else {
                    page = next(27);
                    continue;
                };
                let Some(middle) = there(&upper[index(18)]) else {
                    page = next(18);
                    continue;
                };
                page = next(9);
                if let Some(table) = there(&middle[index(9)]) {
                    let first = at & !(FANOUT as u64 - 1);
                    let slots = (at - first) as usize..(pages.end - first).min(FANOUT as u64) as usize;
                    return Some((first, table, slots));
                }
            }
            None
        })
    }
}

impl<T> Drop for Levels<T> {
    fn drop(&mut self) {
        if record::ENABLED {
            // The recording build leaks the memory, so that it is not reused. `kept` in `lab/src/memory/mod.rs` gives
            // the reason.
            return;
        }
        /// # Safety
        /// No other CPU uses the table to which `slot` points.
        unsafe fn free<T>(slot: &AtomicPtr<T>) -> Option<Box<T>> {
            let at = slot.load(Ordering::Acquire);
            // SAFETY: `below` made the table as a box, and only this caller uses it.
            (!at.is_null()).then(|| unsafe { Box::from_raw(at) })
        }
        // SAFETY: the space is gone and its PTEs were cleared, so nothing refers to its tables.
        unsafe {
            for upper in self.root.iter().filter_map(|s| free(s)) {
                upper.iter().for_each(|s| drop(free(s)));
            }
            self.made.lock().drain(..).for_each(|t| drop(Box::from_raw(t.0.cast_mut())));
        }
    }
}
