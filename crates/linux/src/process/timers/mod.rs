//! Calls for a process's timers.

pub mod interval;
pub mod posix;
