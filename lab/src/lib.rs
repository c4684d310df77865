//! The measurements of Quire's parts, and the baselines.
//!
//! # Principles
//! - **A baseline implements the same trait as production**, and passes the same tests. It is as good as its design can
//!   reasonably be, because a comparison with a bad implementation says nothing.
//! - **Counts before times.** Missed cache lines, visited slots, acquired locks and used bytes are counted, and are
//!   equal in each run. Times come from a benchmark harness, as medians.
//! - **No number without its unit and its method.** Both are beside the name in [`mod@bench`], and `./quire bench
//!   --list` prints them.
//!
//! # Where to start reading
//! [`mod@bench`] has the list of all benches, and [`experiments`] reruns the sources' measurements. [`harness`]
//! measures times, [`cachegrind`] counts cache misses, and [`machine`] boots the measured machine.
#![deny(missing_docs)]

pub mod bench;
pub mod cachegrind;
#[cfg(recording)]
pub mod conflicts;
pub mod experiments;
pub mod failure;
pub mod frames;
pub mod harness;
pub mod machine;
pub mod map;
pub mod memory;
pub mod queue;
pub mod rmap;
pub mod run_queue;
pub mod timers;

pub use failure::Failure;
