//! Calls about clocks, sleeping and timers.

pub mod adjust;
pub mod clock;
pub mod sleep;
pub mod timer_file;
