//! The times of the last stores into an object through shared mappings, for the modification times of files.
//!
//! A write fault of a shared mapping records the time. Stores through PTEs that already allow them are not recorded.
//! Times are kept only for objects whose pager requests them
//! ([`Pager::times_stores`](crate::paging::pager::Pager::times_stores)).
//!
//! # Where the times are stored
//! Each leaf node of the index has a time, and [`Object::stored`] returns the latest one. So CPUs that fault in
//! different leaf nodes share no cache line because of the times. A fault reads the time first, and writes it only if
//! it is [`TICK`] old. An object of one page has no leaf node, so its time is in the object. The time in the object
//! also records removals through mappings, because a removal may free the leaf node.
//!
//! # Memory order
//! A fault writes the time before it installs the PTE that allows the store. So a thread that sees the store sees the
//! time. Times only rise, with two exceptions. [`Object::forget_stores`] resets the times that its caller replaces. If
//! the clock was set back, a time may lie in the future. The first thread that reads such a time sets it to the
//! present.

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use super::{DEVICE, Object, STORED, STORES_TIMED};
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::epoch::Pinned;

/// Nanoseconds for which a time is not written again. It is shorter than a tick of Linux's coarse clock, which is 4 ms
/// on Debian.
const TICK: u64 = 1 << 20;
/// The largest difference between the clocks of two CPUs, in nanoseconds. A time that is ahead of the clock by more was
/// recorded before the clock was set back.
const SKEW: u64 = 1_000_000_000;

/// Whether `time` was recorded before the clock was set back to `now`.
fn is_ahead(time: u64, now: u64) -> bool {
    time > now.saturating_add(SKEW)
}

impl<M: Machine> Object<M> {
    /// Records that a store into page `key` through a shared mapping follows.
    #[inline(always)]
    pub(crate) fn note_store(&self, key: u64, pin: &Pinned<'_>) {
        let flags = self.flags.load(Ordering::Relaxed);
        if flags & STORES_TIMED != 0 {
            self.note_time(self.index.stored(key, pin), flags);
        }
    }

    /// Records a store like [`note_store`](Self::note_store), for a page that a walk of the index has found. `leaf` is
    /// the time of its leaf node.
    #[inline(always)]
    pub(crate) fn note_store_in(&self, leaf: Option<&AtomicU64>) {
        let flags = self.flags.load(Ordering::Relaxed);
        if flags & STORES_TIMED != 0 {
            self.note_time(leaf, flags);
        }
    }

    /// Records that pages are removed through a shared mapping.
    pub(crate) fn note_removal(&self) {
        let flags = self.flags.load(Ordering::Relaxed);
        if flags & STORES_TIMED != 0 {
            self.note_time(None, flags);
        }
    }

    /// Records a store at the present time. `leaf` is the time of the leaf node, if there is one. `flags` are the
    /// object's flags.
    #[inline(never)] // other faults need no room for its stack frame
    fn note_time(&self, leaf: Option<&AtomicU64>, flags: u32) {
        let time = match leaf {
            Some(time) => time,
            None if flags & DEVICE != 0 => return,
            None => &self.own.value,
        };
        // This code reads the stored time, and then the clock. So if the stored time is later, the clock was set back.
        let there = time.load(Ordering::Relaxed);
        let now = self.vm.machine().store_time();
        // The difference wraps to a large number if the stored time is later, so the condition covers that case.
        if now.wrapping_sub(there) >= TICK {
            Self::raise(time, there, now);
        }
        if flags & STORED == 0 {
            self.flags.fetch_or(STORED, Ordering::AcqRel);
        }
    }

    /// Sets `time`, which was `there`, to `now`. Keeps it if it is less than [`TICK`] before `now`. Also keeps it if it
    /// is later and the clock was not set back.
    fn raise(time: &AtomicU64, mut there: u64, now: u64) {
        let mut due = is_ahead(there, now);
        while due || now >= there.saturating_add(TICK) {
            match time.compare_exchange(there, now, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                // Another CPU has recorded a store, or a thread has reset the time.
                Err(other) => (there, due) = (other, false),
            }
        }
    }

    /// Calls `visit` with each time, and with the clock's value, which was read before the times.
    fn each_time(&self, mut visit: impl FnMut(&AtomicU64, u64)) {
        if self.flags.load(Ordering::Acquire) & STORED == 0 {
            return;
        }
        let now = self.vm.machine().store_time();
        self.index.each_stored(&self.vm.epoch().pin(), |time| visit(time, now));
        // The time in the object comes last, because a removal records its time here before it frees leaf nodes.
        visit(&self.own.value, now);
    }

    /// When a program last stored into the object through a shared mapping, on the clock [`Machine::store_time`]. This
    /// is the time of the fault that allowed the store, and may be a millisecond early. Returns 0 if there was no such
    /// fault. Otherwise visits each leaf node of the index.
    pub fn stored(&self) -> u64 {
        let mut latest = 0;
        self.each_time(|time, now| {
            let mut there = time.load(Ordering::Relaxed);
            if is_ahead(there, now) {
                let changed = time.compare_exchange(there, now, Ordering::Relaxed, Ordering::Relaxed);
                there = changed.map_or_else(|other| other, |_| now);
            }
            latest = latest.max(there);
        });
        latest
    }

    /// Resets the times of stores up to `until`, and times in the future. The next faulting store records its time,
    /// even if it follows at once.
    pub fn forget_stores(&self, until: u64) {
        self.each_time(|time, now| {
            let there = time.load(Ordering::Relaxed);
            if there != 0 && (there <= until || is_ahead(there, now)) {
                if mutant(Mutant::ForgetsUnlooked) {
                    time.store(0, Ordering::Relaxed);
                }
                // If the exchange fails, another CPU has recorded a later store.
                let _kept = time.compare_exchange(there, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        });
    }
}
