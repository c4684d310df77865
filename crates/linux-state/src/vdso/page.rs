//! The clock page: the words from which programs compute the clocks, in a page that they can only read.
//!
//! # The count
//! It is odd while a writer stores. A reader reads the count, the words, and the count again. It makes the system call
//! if the first count is odd, and begins again if the second one differs. The reader is the code of `image.s`. It
//! relies on the order of loads that x86 keeps.

use crate::machine::UserClock;
use crate::mutant::{Mutant, mutant};
use linux_raw_sys::general as raw;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// Clocks by id: those that programs may compute have smaller ids.
const CLOCKS: usize = 12;
/// The time of day.
const DAY: [u32; 3] = [raw::CLOCK_REALTIME, raw::CLOCK_REALTIME_COARSE, raw::CLOCK_TAI];
/// The time since boot.
const SINCE_BOOT: [u32; 4] =
    [raw::CLOCK_MONOTONIC, raw::CLOCK_MONOTONIC_RAW, raw::CLOCK_MONOTONIC_COARSE, raw::CLOCK_BOOTTIME];

/// The words.
#[repr(C)]
#[cfg_attr(all(test, any(loom, shuttle)), derive(Default))]
pub(crate) struct ClockPage {
    pub count: AtomicU32,
    /// A bit for each clock that programs compute; none of them where they make system calls.
    pub clocks: AtomicU32,
    /// As in [`UserClock`].
    pub start: AtomicU64,
    /// As in [`UserClock`].
    pub ns_per_tick: AtomicU64,
    /// The smallest step of these clocks in nanoseconds.
    pub(crate) resolution: AtomicU64,
    /// See [`cpu_selector`](crate::Machine::cpu_selector).
    pub cpu_selector: AtomicU32,
    /// Nanoseconds between the time since boot and each clock.
    pub offsets: [AtomicU64; CLOCKS],
}

impl ClockPage {
    /// Stores what never changes. No program has the page yet.
    pub fn begin(&self, resolution: u64, cpu_selector: u16) {
        self.resolution.store(resolution, Ordering::Relaxed);
        self.cpu_selector.store(u32::from(cpu_selector), Ordering::Relaxed);
    }

    /// Stores `clock` as one step for readers. `None`: they make system calls.
    ///
    /// # Requires
    /// No other writer.
    pub(crate) fn publish(&self, clock: Option<UserClock>) {
        self.change(|| clock);
    }

    /// Stores the clock that `set` returns, as [`publish`](Self::publish) does. Readers make system calls from before
    /// `set` begins. So `set` may change the clock of system calls, and no reader computes the old one afterwards.
    ///
    /// # Requires
    /// No other writer.
    pub fn change(&self, set: impl FnOnce() -> Option<UserClock>) {
        let count = self.count.load(Ordering::Relaxed);
        if !mutant(Mutant::ClockUncounted) {
            self.count.store(count.wrapping_add(1), Ordering::Relaxed);
        }
        if !mutant(Mutant::ClockWriteNoFence) {
            fence(Ordering::Release);
        }
        let mut clocks = 0;
        if let Some(clock) = set() {
            self.start.store(clock.start, Ordering::Relaxed);
            self.ns_per_tick.store(clock.ns_per_tick, Ordering::Relaxed);
            for id in DAY {
                self.offsets[id as usize].store(clock.epoch, Ordering::Relaxed);
            }
            clocks = DAY.iter().chain(&SINCE_BOOT).fold(0, |all, id| all | 1 << id);
        }
        self.clocks.store(clocks, Ordering::Relaxed);
        let last = if mutant(Mutant::ClockCountEarly) { Ordering::Relaxed } else { Ordering::Release };
        self.count.store(count.wrapping_add(2), last);
    }
}
