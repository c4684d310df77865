//! Unknown system calls, each logged once.

use core::sync::atomic::{AtomicU64, Ordering};

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
    pub const fn new() -> Self {
        Unknown { seen: [const { AtomicU64::new(0) }; 8] }
    }

    /// Whether `number` occurs for the first time. Numbers beyond Linux's highest count as one.
    pub fn first_time(&self, number: u64) -> bool {
        let at = number.min(511);
        self.seen[(at / 64) as usize].fetch_or(1 << (at % 64), Ordering::Relaxed) & (1 << (at % 64)) == 0
    }
}
