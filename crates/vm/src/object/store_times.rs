//! When programs last stored into an object through shared mappings, for the times of files.
//!
//! A write fault of a shared mapping notes the time. Stores through leaves that allow them already are not seen. Only
//! objects have times whose pager wants them ([`Pager::times_stores`](crate::paging::pager::Pager::times_stores)).
//!
//! # Where a time is
//! Each leaf of the index has a time, and [`Object::stored`] returns the latest one. So CPUs that fault in different
//! leaves share no line because of the times. A fault reads the time first, and writes it only after [`TICK`]. An
//! object of one page has no leaf; its time is in the object. The object also has the time of removals through
//! mappings, because a removal may free the leaf.
//!
//! # Order
//! A fault writes the time before it installs the leaf that allows the store. So a thread that sees the store sees the
//! time. Times are only raised, with two exceptions. [`Object::forget_stores`] takes back those that its caller
//! replaces. A time that lies in the future, because the clock was set back, becomes the present one when a thread
//! meets it.

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

use super::device::Own;
use super::{Object, STORED, STORES_TIMED};
use crate::machine::Machine;
use crate::mutant::{Mutant, mutant};
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::epoch::Pinned;

/// Nanoseconds for which a time is not written again. Shorter than a tick of Linux's coarse clock, 4 ms on Debian.
const TICK: u64 = 1 << 20;
/// Nanoseconds by which the clocks of two CPUs differ at most. A time that is later than the clock by more was noted
/// before the clock was set back.
const SKEW: u64 = 1_000_000_000;

/// Whether `time` was noted before the clock was set back to `now`.
fn is_ahead(time: u64, now: u64) -> bool {
    time > now.saturating_add(SKEW)
}

impl<M: Machine> Object<M> {
    /// Notes that a store into page `key` through a shared mapping follows.
    #[inline(always)]
    pub(crate) fn note_store(&self, key: u64, pin: &Pinned<'_>) {
        let flags = self.flags.load(Ordering::Relaxed);
        if flags & STORES_TIMED != 0 {
            self.note_time(self.index.stored(key, pin), flags);
        }
    }

    /// As [`note_store`](Self::note_store), for a page that a walk has found. `leaf` is the time of its leaf.
    #[inline(always)]
    pub(crate) fn note_store_in(&self, leaf: Option<&AtomicU64>) {
        let flags = self.flags.load(Ordering::Relaxed);
        if flags & STORES_TIMED != 0 {
            self.note_time(leaf, flags);
        }
    }

    /// Notes that pages are removed through a shared mapping.
    pub(crate) fn note_removal(&self) {
        let flags = self.flags.load(Ordering::Relaxed);
        if flags & STORES_TIMED != 0 {
            self.note_time(None, flags);
        }
    }

    /// `flags` are the object's, read before.
    #[inline(never)] // other faults need no room for its stack frame
    fn note_time(&self, leaf: Option<&AtomicU64>, flags: u32) {
        let time = match leaf {
            Some(time) => time,
            None => match &self.own {
                Own::Stored(time) => time,
                Own::Device(_) => return,
            },
        };
        // The clock is read after the time, so a later time shows that the clock was set back.
        let there = time.load(Ordering::Relaxed);
        let now = self.vm.machine().store_time();
        // A later time is far away, too.
        if now.wrapping_sub(there) >= TICK {
            Self::raise(time, there, now);
        }
        if flags & STORED == 0 {
            self.flags.fetch_or(STORED, Ordering::AcqRel);
        }
    }

    /// Raises `time`, which was `there`, to `now`, unless it is that already, or later on the same clock.
    fn raise(time: &AtomicU64, mut there: u64, now: u64) {
        let mut due = is_ahead(there, now);
        while due || now >= there.saturating_add(TICK) {
            match time.compare_exchange(there, now, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                // Another CPU has noted a store, or a thread has forgotten the time.
                Err(other) => (there, due) = (other, false),
            }
        }
    }

    /// Calls `visit` with each time, and with the clock's before.
    fn each_time(&self, mut visit: impl FnMut(&AtomicU64, u64)) {
        if self.flags.load(Ordering::Acquire) & STORED == 0 {
            return;
        }
        let now = self.vm.machine().store_time();
        self.index.each_stored(&self.vm.epoch().pin(), |time| visit(time, now));
        // Last, because a removal notes its time here before it frees leaves.
        if let Own::Stored(time) = &self.own {
            visit(time, now);
        }
    }

    /// When a program last stored into the object through a shared mapping, on the clock [`Machine::store_time`]. The
    /// fault that allowed the store counts, and the time may be a millisecond early. 0: there was no such fault. Visits
    /// each leaf of the index, if there was one.
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

    /// Forgets stores at times up to `until`, and at those in the future. The next fault's store gets a time of its
    /// own, however soon it comes.
    pub fn forget_stores(&self, until: u64) {
        self.each_time(|time, now| {
            let there = time.load(Ordering::Relaxed);
            if there != 0 && (there <= until || is_ahead(there, now)) {
                if mutant(Mutant::ForgetsUnlooked) {
                    time.store(0, Ordering::Relaxed);
                }
                // If it fails, a later store has come.
                let _kept = time.compare_exchange(there, 0, Ordering::Relaxed, Ordering::Relaxed);
            }
        });
    }
}
