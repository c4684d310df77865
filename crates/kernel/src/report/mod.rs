//! The kernel's reports: the log, panics with their backtraces, traces, and the watchdog.
//!
//! The log lies near the bottom: it uses only a CPU and the serial port. Panics read stacks. The tracer and the
//! watchdog read threads and lie above them. The observed code calls them, and behaves the same if they are off.
//!
//! Invariant: the log, a panic and a backtrace work in every context, an NMI and a panic while the log's lock is held
//! included.

#[macro_use]
pub mod log;
pub mod backtrace;
#[cfg(debug_assertions)]
pub mod inversion;
pub mod panic;
pub mod ring;
pub mod trace;
pub mod watchdog;
