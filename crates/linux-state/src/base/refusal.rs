//! Refused allocations, for tests of error paths. In a kernel with debug assertions, a thread can have the n-th
//! allocation of its next system call refused.
//!
//! A number N that is written to `/proc/sys/vm/quire_refuse` applies to the writer's next system call. The N-th
//! allocation of that call is refused. Allocations of frames, page tables, and structures of the core and of this layer
//! all count. 0 refuses none. A later read of the file returns the number of allocations of that call, and whether one
//! was refused. A refusal is final: the call neither waits for memory nor is repeated.

use quire_sync::atomic::{AtomicU64, Ordering};

/// The value if no number was written.
const NONE: u64 = u64::MAX;

/// The refusals of one thread. Only that thread reads and writes the fields.
pub struct Refusals {
    /// The number that the thread has written for its next call; [`NONE`] if it has written none.
    next: AtomicU64,
    /// During a call for which the thread has written a number: the number of the allocation to refuse. Otherwise
    /// [`NONE`].
    number: AtomicU64,
    /// The number of allocations that the call has made so far.
    made: AtomicU64,
    /// 1 if an allocation was refused; else 0.
    refused: AtomicU64,
    /// The page of user memory whose fault failed because of the refusal; [`NONE`] if no fault failed.
    missed: AtomicU64,
}

impl Default for Refusals {
    fn default() -> Self {
        Self::new()
    }
}

impl Refusals {
    /// A state in which nothing is refused.
    pub const fn new() -> Self {
        let [next, number, missed] = [const { AtomicU64::new(NONE) }; 3];
        Refusals { next, number, made: AtomicU64::new(0), refused: AtomicU64::new(0), missed }
    }

    /// Sets the number for the next call.
    pub fn set_next(&self, number: u64) {
        self.next.store(number, Ordering::Relaxed);
    }

    /// Begins a system call. A restarted call does not count as a new one.
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

    /// Ends the system call. Returns whether one of its allocations was refused.
    pub fn end(&self) -> bool {
        let was_set = self.number.load(Ordering::Relaxed) != NONE;
        self.number.store(NONE, Ordering::Relaxed);
        was_set && self.refused.load(Ordering::Relaxed) == 1
    }

    /// Counts an allocation of the thread. Returns whether it must be refused.
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

    /// Whether an allocation of the present call was refused.
    pub fn has_refused(&self) -> bool {
        self.number.load(Ordering::Relaxed) != NONE && self.refused.load(Ordering::Relaxed) == 1
    }

    /// Records that a fault at `page` failed because of a refused allocation. Later faults at this page fail too,
    /// because a copy to user memory tries the page again byte by byte.
    pub fn miss(&self, page: u64) {
        self.missed.store(page, Ordering::Relaxed);
    }

    /// Whether a fault at `page` has failed because of a refusal in this call.
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
            // A second attempt of the same call.
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
