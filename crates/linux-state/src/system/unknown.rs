//! Unknown system calls, each logged once.

use quire_sync::atomic::{AtomicU64, Ordering};

/// Which unknown calls were logged already.
pub struct Unknown {
    seen: [AtomicU64; 8],
}

impl Default for Unknown {
    fn default() -> Self {
        Self::new()
    }
}

impl Unknown {
    /// None yet.
    pub fn new() -> Self {
        Unknown { seen: core::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Whether `number` occurs for the first time. Numbers beyond Linux's highest count as one.
    pub fn first_time(&self, number: u64) -> bool {
        let at = number.min(511);
        self.seen[(at / 64) as usize].fetch_or(1 << (at % 64), Ordering::Relaxed) & (1 << (at % 64)) == 0
    }
}
