//! Calls for a process's timers.

pub mod interval;
pub mod posix;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
