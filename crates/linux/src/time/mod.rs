//! Calls for clocks, sleeping and timer files.

pub mod adjust;
pub mod clock;
pub mod sleep;
pub mod timer_file;
