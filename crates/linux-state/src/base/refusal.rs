//! Refused allocations, to test the error paths: in a kernel with checks, a thread can have the n-th allocation of its
//! next system call refused.
//!
//! A number N written to `/proc/sys/vm/quire_refuse` applies to the writer's next system call. Its N-th allocation is
//! refused, of any kind (frames, page tables, the core's structures, this layer's). 0 refuses none. Read afterwards,
//! the file shows the call's number of allocations, and whether one was refused. A refusal is final: the call neither
//! waits for memory nor is repeated.

use quire_sync::atomic::{AtomicU64, Ordering};

/// No number was written.
const NONE: u64 = u64::MAX;

/// A thread's state. Only that thread reads and writes it.
pub struct Refusals {
    /// The number for the next call.
    next: AtomicU64,
    /// In a call with a number: the allocation to refuse; else [`NONE`].
    number: AtomicU64,
    /// How many allocations that call has made.
    made: AtomicU64,
    /// 1 if one was refused.
    refused: AtomicU64,
    /// The page of user memory whose fault failed for it; else [`NONE`].
    missed: AtomicU64,
}

impl Default for Refusals {
    fn default() -> Self {
        Self::new()
    }
}

impl Refusals {
    /// None.
    pub const fn new() -> Self {
        let [next, number, missed] = [const { AtomicU64::new(NONE) }; 3];
        Refusals { next, number, made: AtomicU64::new(0), refused: AtomicU64::new(0), missed }
    }

    /// Sets the number for the next call.
    pub fn set_next(&self, number: u64) {
        self.next.store(number, Ordering::Relaxed);
    }

    /// Begins a call. A repetition does not count as a call.
    pub fn begin(&self) {
        let next = self.next.load(Ordering::Relaxed);
        if next != NONE && self.number.load(Ordering::Relaxed) == NONE {
            self.next.store(NONE, Ordering::Relaxed);
            self.made.store(0, Ordering::Relaxed);
            self.refused.store(0, Ordering::Relaxed);
            self.missed.store(NONE, Ordering::Relaxed);
            self.number.store(next, Ordering::Relaxed);
        }
    }

    /// Ends the call. Returns whether one of its allocations was refused.
    pub fn end(&self) -> bool {
        let was_set = self.number.load(Ordering::Relaxed) != NONE;
        self.number.store(NONE, Ordering::Relaxed);
        was_set && self.refused.load(Ordering::Relaxed) == 1
    }

    /// Whether the allocation that the thread makes now is refused.
    pub fn refuses(&self) -> bool {
        let number = self.number.load(Ordering::Relaxed);
        if number == NONE {
            return false;
        }
        let made = self.made.load(Ordering::Relaxed) + 1;
        self.made.store(made, Ordering::Relaxed);
        if made == number {
            self.refused.store(1, Ordering::Relaxed);
        }
        made == number
    }

    /// Whether an allocation of this call was refused.
    pub fn has_refused(&self) -> bool {
        self.number.load(Ordering::Relaxed) != NONE && self.refused.load(Ordering::Relaxed) == 1
    }

    /// Notes that a fault at `page` failed because of a refused allocation. That is final: a copy that continues
    /// bytewise faults there again.
    pub fn miss(&self, page: u64) {
        self.missed.store(page, Ordering::Relaxed);
    }

    /// Whether a fault at `page` has failed so in this call.
    pub fn misses(&self, page: u64) -> bool {
        self.has_refused() && self.missed.load(Ordering::Relaxed) == page
    }

    /// For the last call with a number: the allocations that it made, and whether one was refused.
    pub fn last(&self) -> (u64, bool) {
        (self.made.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed) == 1)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn the_number_covers_the_next_call_and_its_repeats() {
        let refusals = Refusals::new();
        let call = |allocations: u32| {
            refusals.begin();
            let refused: std::vec::Vec<bool> = (0..allocations).map(|_| refusals.refuses()).collect();
            // Another attempt.
            refusals.begin();
            (refused, refusals.has_refused(), refusals.end())
        };
        assert_eq!(call(2), (std::vec![false; 2], false, false));
        refusals.set_next(2);
        assert_eq!(call(3), (std::vec![false, true, false], true, true));
        assert_eq!(refusals.last(), (3, true));
        assert_eq!(call(3), (std::vec![false; 3], false, false));
        refusals.set_next(0);
        assert_eq!(call(1), (std::vec![false], false, false));
        assert_eq!(refusals.last(), (1, false));
        refusals.set_next(2);
        assert_eq!(call(1), (std::vec![false], false, false));
        assert_eq!(refusals.last(), (1, false));
    }

    #[test]
    fn a_page_that_was_missed_is_missed_to_the_end_of_the_call() {
        let refusals = Refusals::new();
        refusals.set_next(1);
        refusals.begin();
        assert!(refusals.refuses());
        refusals.miss(7);
        assert!(refusals.misses(7) && !refusals.misses(8));
        assert!(refusals.end() && !refusals.misses(7));
        refusals.set_next(1);
        refusals.begin();
        assert!(refusals.refuses() && !refusals.misses(7));
    }
}
