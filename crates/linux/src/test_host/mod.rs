//! A machine beneath the Linux layer that needs no kernel: for unit tests and fuzzers, with std.
//!
//! [`One`] has one CPU and a clock of its own, and runs the whole layer, the memory core, the scheduler and the files
//! in a process. A program's instructions are Rust code of the test: the [steps] between them are those of a CPU. A
//! unit test beside the code under test is a `script`: closures for programs, threads and signal handlers, which make
//! real system calls. Time passes only when all threads sleep, so a test waits for nothing.
#![allow(clippy::missing_panics_doc)] // A test host panics where a test is wrong.

pub mod files;
mod machine;
mod refusal;
#[cfg(test)]
pub mod script;
pub mod steps;

pub use machine::{Context, One, Programs, lock};
