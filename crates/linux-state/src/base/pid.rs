//! Numbers of processes and threads.

/// The number of a process, thread, group or session.
pub type Pid = u32;
