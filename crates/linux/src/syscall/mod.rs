//! The system call table and what stands around it.

pub mod arg;
pub mod names;
pub mod page;
pub mod repeat;
pub mod table;

use core::sync::atomic::{AtomicU64, Ordering};

pub use arg::{Arg, Handler};
pub use repeat::Repeat;
pub use table::{SUPPORTED, dispatch};

/// One line of the generated list of what is supported.
#[derive(Clone, Copy, Debug)]
pub struct Supported {
    /// The call's number.
    pub number: u16,
    /// Its name.
    pub name: &'static str,
    /// What of it is missing or different; empty where nothing is known to be.
    pub note: &'static str,
}

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

    /// Whether `number` comes for the first time. Numbers beyond all that Linux has count as one.
    pub fn first_time(&self, number: u64) -> bool {
        let at = number.min(511);
        self.seen[(at / 64) as usize].fetch_or(1 << (at % 64), Ordering::Relaxed) & (1 << (at % 64)) == 0
    }
}
