//! Unknown system calls. Each is logged once.

use quire_sync::atomic::{AtomicU64, Ordering};

/// The numbers of the unknown system calls that were logged already, as a bit set.
pub struct Unknown {
    seen: [AtomicU64; 8],
}

impl Default for Unknown {
    fn default() -> Self {
        Self::new()
    }
}

impl Unknown {
    /// An empty set.
    pub fn new() -> Self {
        Unknown { seen: core::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Adds `number`, and returns whether it was not in the set. All numbers from 511 on count as one.
    pub fn first_time(&self, number: u64) -> bool {
        let at = number.min(511);
        self.seen[(at / 64) as usize].fetch_or(1 << (at % 64), Ordering::Relaxed) & (1 << (at % 64)) == 0
    }
}
