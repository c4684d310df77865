//! The kernel's reports: the log, panics with their backtraces, traces, and the watchdog.
//!
//! The log is near the bottom of the layers: it uses only `cpu` and the serial port. Panics read kernel stacks. The
//! tracer and the watchdog read threads, so they are above `thread::context`. The observed code calls them, and behaves
//! the same if they are off.
//!
//! Invariant: the log, a panic and a backtrace work in every context, including an NMI and a panic while the log's lock
//! is held.

#[macro_use]
pub mod log;
pub mod backtrace;
#[cfg(debug_assertions)]
pub mod inversion;
pub mod panic;
pub mod ring;
pub mod trace;
pub mod watchdog;
