//! The measurements of Quire's parts, and the baselines.
//!
//! # Principles
//! - **A baseline stands behind the trait that production stands behind**, and passes the same tests. It is as good as
//!   its kind can reasonably be, because a comparison with a straw man says nothing.
//! - **Counts before times.** Lines missed, slots visited, locks taken and bytes held are counted, and repeat exactly.
//!   Times come from a benchmark harness, as medians.
//! - **No number without its unit and its method**: both stand beside the name in [`mod@bench`], and `./quire bench
//!   --list` prints them.
//!
//! # Where to start reading
//! [`mod@bench`]: the list of all benches. [`experiments`]: the sources' measurements, rerun. [`harness`] takes times,
//! [`cachegrind`] counts cache misses, [`machine`] boots the measured machine.
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
