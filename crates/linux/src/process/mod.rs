//! Calls that make, end, change and inspect processes.

pub mod barrier;
pub mod exit;
pub mod foreign;
pub mod fork;
pub mod identity;
pub mod io_priority;
pub mod job_control;
pub mod limits;
pub mod pidfd;
pub mod prctl;
pub mod scheduling;
pub mod timers;
pub mod usage;
pub mod wait;
