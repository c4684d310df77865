//! The clock page: the words from which programs compute the clocks, in a page that they can only read.
//!
//! # The count
//! The count is odd while a writer stores. A reader reads the count, the words, and the count again. If the first count
//! is odd, the reader makes the system call. If the second count differs, the reader begins again. The reader is the
//! code in `image.s`, which relies on the order of loads that x86 keeps.

use crate::machine::UserClock;
use crate::mutant::{Mutant, mutant};
use linux_raw_sys::general as raw;
use quire_sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The number of offsets. The ids of all clocks that programs may compute are smaller.
const CLOCKS: usize = 12;
/// The clocks that are the time of day.
const DAY: [u32; 3] = [raw::CLOCK_REALTIME, raw::CLOCK_REALTIME_COARSE, raw::CLOCK_TAI];
/// The clocks that are the time since boot.
const SINCE_BOOT: [u32; 4] =
    [raw::CLOCK_MONOTONIC, raw::CLOCK_MONOTONIC_RAW, raw::CLOCK_MONOTONIC_COARSE, raw::CLOCK_BOOTTIME];

/// The words of the clock page.
#[repr(C)]
#[cfg_attr(all(test, any(loom, shuttle)), derive(Default))]
pub(crate) struct ClockPage {
    pub count: AtomicU32,
    /// The set of clocks that programs compute, as bits. It is 0 if programs must make system calls.
    pub clocks: AtomicU32,
    /// See [`UserClock::start`].
    pub start: AtomicU64,
    /// See [`UserClock::ns_per_tick`].
    pub ns_per_tick: AtomicU64,
    /// The smallest step of these clocks, in nanoseconds.
    pub(crate) resolution: AtomicU64,
    /// The selector that [`cpu_selector`](crate::Machine::cpu_selector) returns.
    pub cpu_selector: AtomicU32,
    /// For each clock, the nanoseconds to add to the time since boot.
    pub offsets: [AtomicU64; CLOCKS],
}

impl ClockPage {
    /// Stores the words that never change. Called before any program has the page.
    pub fn begin(&self, resolution: u64, cpu_selector: u16) {
        self.resolution.store(resolution, Ordering::Relaxed);
        self.cpu_selector.store(u32::from(cpu_selector), Ordering::Relaxed);
    }

    /// Stores `clock` as one step for readers. `None`: programs must make system calls.
    ///
    /// # Requires
    /// No other writer runs.
    pub(crate) fn publish(&self, clock: Option<UserClock>) {
        self.change(|| clock);
    }

    /// Stores the clock that `set` returns, as one step for readers. Readers make system calls from before `set` begins
    /// until the new words are stored. So when `set` changes the clock of system calls, no reader still computes the
    /// old clock.
    ///
    /// # Requires
    /// No other writer runs.
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
