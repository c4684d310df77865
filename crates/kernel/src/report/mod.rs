//! The kernel's reports: the log, panics with their backtraces, traces, and the watchdog.
//!
//! The log stands near the bottom: it uses a CPU and the serial port alone. Panics read stacks. The tracer and the watchdog look
//! at threads and stand above them. The code that they observe calls them, and behaves the same where they are off.
//!
//! Invariant: the log, a panic and a backtrace work in every context, an NMI and a panic while the log's lock is held included.

#[macro_use]
pub mod log;
pub mod backtrace;
#[cfg(debug_assertions)]
pub mod inversion;
pub mod panic;
pub mod trace;
pub mod watchdog;
