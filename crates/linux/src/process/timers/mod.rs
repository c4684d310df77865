//! Calls about a process's timers.

pub mod interval;
pub mod posix;
