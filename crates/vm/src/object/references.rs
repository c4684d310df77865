//! What keeps an object: its handles, and the parts of its list that have something.
//!
//! A CPU's own part counts from its first backing until the list's parts are closed, empty or not: else who maps and unmaps there
//! would write a line of everybody's each time. So such references do not keep an object by themselves: whoever is about to give up
//! the last of the others closes the parts first (mutant [`Mutant::OwnPartsKeep`]). What is linked there goes to the first part, which
//! counts.

use crate::mutant::{Mutant, mutant};
use quire_sync::atomic::{AtomicU64, Ordering};

/// One of a handle or of a part that all CPUs have.
const ONE: u64 = 1;
/// One of a CPU's own part: counted by itself, too.
const OWN: u64 = 1 << 32 | ONE;

/// The count. From zero it never rises.
pub(crate) struct References(AtomicU64);

/// What came of giving a reference up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GivenUp {
    /// Others keep the object.
    Kept,
    /// It was the last.
    Last,
    /// It is not given up yet: it is the last but for those of CPUs' own parts.
    OnlyOwn,
}

impl References {
    /// One.
    pub fn one() -> References {
        References(AtomicU64::new(ONE))
    }

    /// How many there are, of all kinds.
    pub fn count(&self) -> u32 {
        self.0.load(Ordering::Acquire) as u32
    }

    /// How many are CPUs' own parts'.
    pub fn own(&self) -> u32 {
        (self.0.load(Ordering::Acquire) >> 32) as u32
    }

    /// One more. The caller keeps the object.
    pub fn add(&self) {
        self.0.fetch_add(ONE, Ordering::AcqRel);
    }

    /// One less, which is not the last.
    pub fn subtract(&self) {
        self.0.fetch_sub(ONE, Ordering::AcqRel);
    }

    /// A CPU's own part counts from now on. The caller keeps the object.
    pub fn add_own(&self) {
        self.0.fetch_add(OWN, Ordering::AcqRel);
    }

    /// A CPU's own part does not count any more. The caller keeps the object.
    pub fn subtract_own(&self) {
        self.0.fetch_sub(OWN, Ordering::AcqRel);
    }

    /// One more, unless there is none.
    pub fn try_add(&self) -> bool {
        let mut n = self.0.load(Ordering::Relaxed);
        while n as u32 != 0 {
            match self.0.compare_exchange_weak(n, n + ONE, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(now) => n = now,
            }
        }
        false
    }

    /// Gives one up, which is no own part's.
    pub fn give_up(&self) -> GivenUp {
        let mut n = self.0.load(Ordering::Relaxed);
        loop {
            let (all, own) = (n as u32, n >> 32);
            debug_assert!(
                u64::from(all) > own || mutant(Mutant::OwnPartsKeep),
                "more references are given up than there are"
            );
            if own != 0 && u64::from(all) == own + 1 && !mutant(Mutant::OwnPartsKeep) {
                return GivenUp::OnlyOwn;
            }
            match self.0.compare_exchange_weak(n, n - ONE, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) if all == 1 => return GivenUp::Last,
                Ok(_) => return GivenUp::Kept,
                Err(now) => n = now,
            }
        }
    }

    /// Says that there is none, for tests of the checker.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub fn corrupt(&self) {
        self.0.store(0, Ordering::Release);
    }
}
