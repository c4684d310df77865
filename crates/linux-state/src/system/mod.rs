//! The state that a machine has once: its names and settings, the log, the load average, random numbers.

pub mod core_pattern;
pub mod host_name;
pub mod load;
pub mod log;
pub mod option_names;
pub mod random;
pub mod settings;
pub mod unknown;
pub mod unsupported;
