//! A machine below the Linux layer that needs no kernel, for unit tests and fuzzers, with std.
//!
//! [`One`] has one CPU and its own clock. It runs the whole layer, the memory core, the scheduler and the files in a
//! process. A program's instructions are Rust code of the test. Between these instructions, the module [steps] does the
//! work of a CPU. Unit tests use a `script`: closures for programs, threads and signal handlers, which make real system
//! calls. A sleep needs no real time, because the clock advances when all threads sleep.
#![allow(clippy::missing_panics_doc)] // A test host panics where a test is wrong.

pub mod files;
mod machine;
mod refusal;
#[cfg(test)]
pub mod script;
pub mod steps;

pub use machine::{Context, One, Programs, lock};
