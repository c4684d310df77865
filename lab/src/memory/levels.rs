//! Page tables above the leaves: three levels that only grow.

use quire_sync::atomic::{AtomicPtr, Ordering};
use quire_sync::{Rank, SpinLock, record};
use std::ops::Range;
use std::ptr;

/// Pages that a leaf table covers, and entries of a level above.
pub const FANOUT: usize = 512;

/// A level.
type Level<T> = [AtomicPtr<T>; FANOUT];

/// A space's tables above its leaf tables, which are `T`s.
pub struct Levels<T> {
    root: Box<Level<Level<Level<T>>>>,
    /// The leaf tables that were made: the list that an exit walks.
    made: SpinLock<Vec<Made<T>>>,
}

/// A leaf table that stands below the root.
struct Made<T>(*const T);
// SAFETY: tables are shared, by their own locks.
unsafe impl<T: Sync> Send for Made<T> {}

fn level<T>() -> Box<Level<T>> {
    Box::new(std::array::from_fn(|_| AtomicPtr::new(ptr::null_mut())))
}

/// The table below `slot`, if any.
fn there<T>(slot: &AtomicPtr<T>) -> Option<&T> {
    // SAFETY: tables only grow: an entry stays as long as the space.
    unsafe { slot.load(Ordering::Acquire).as_ref() }
}

/// The table below `slot`, made by `new` if there is none and `make` says so.
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
                // SAFETY: the exchange failed, so `fresh` was published nowhere, and this thread has the box alone.
                drop(unsafe { Box::from_raw(fresh) });
                at = others;
            }
        }
    }
    // SAFETY: tables only grow: an entry stays as long as the space.
    unsafe { at.as_ref() }
}

impl<T: Sync> Levels<T> {
    pub fn new() -> Levels<T> {
        Levels { root: level(), made: SpinLock::new(Rank::INDEX, Vec::new()) }
    }

    /// The leaf table that covers a page, made by `new` where there is none and `make` says so.
    pub fn table(&self, page: u64, make: bool, new: fn() -> Box<T>) -> Option<&T> {
        let index = |shift: u32| (page >> shift) as usize % FANOUT;
        let upper = below(&self.root[index(27)], make, level)?;
        let middle = below(&upper[index(18)], make, level)?;
        let slot = &middle[index(9)];
        if let Some(table) = there(slot) {
            return Some(table);
        }
        // Under the lock of the list, so each table is on it once.
        let mut made = make.then(|| self.made.lock())?;
        let known = !slot.load(Ordering::Acquire).is_null();
        let table = below(slot, true, new)?;
        if !known {
            made.push(Made(table));
        }
        Some(table)
    }

    /// Every leaf table of a space that is being dropped, in which no CPU makes more.
    pub fn each(&self, mut f: impl FnMut(&T)) {
        // Taken out of the lock, which may come after that of a table.
        let made = std::mem::take(&mut *self.made.lock());
        // SAFETY: tables stay as long as the space.
        made.iter().for_each(|table| f(unsafe { &*table.0 }));
        *self.made.lock() = made;
    }

    /// The leaf tables in a range, each with its first page and the slots that the range has of it.
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
            // Its memory is not used again: see `kept`.
            return;
        }
        /// # Safety
        /// Nothing else uses the table in `slot`.
        unsafe fn free<T>(slot: &AtomicPtr<T>) -> Option<Box<T>> {
            let at = slot.load(Ordering::Acquire);
            // SAFETY: made by `below`, and this caller's alone.
            (!at.is_null()).then(|| unsafe { Box::from_raw(at) })
        }
        // SAFETY: the space is gone, and nothing refers to its tables: their leaves were cleared.
        unsafe {
            for upper in self.root.iter().filter_map(|s| free(s)) {
                upper.iter().for_each(|s| drop(free(s)));
            }
            self.made.lock().drain(..).for_each(|t| drop(Box::from_raw(t.0.cast_mut())));
        }
    }
}
