//! The ids of processes and threads.

/// The id of a process, thread, group or session.
pub type Pid = u32;
