//! This layer's places in the one lock order (all at or just above [`Rank::PROCESS`], below [`Rank::FILE`]).

use quire_sync::Rank;

/// A process's family: its children and their zombies. A parent's before its reaper's (nested).
pub const FAMILY: Rank = Rank(20);
/// A child's pointer to its parent.
pub const PARENT: Rank = Rank(21);
/// Moving a process between groups.
pub const MOVING: Rank = Rank(21);
/// Members of a process group, of a session.
pub const GROUP: Rank = Rank(22);
/// A process's list of threads.
pub const THREADS: Rank = Rank(23);
/// Signal actions.
pub const ACTIONS: Rank = Rank(24);
/// A process's pending signals, then a thread's.
pub const SIGNALS: Rank = Rank(25);
/// Limits, names, credentials, and what a thread owns: leaf locks of this layer.
pub const OWNED: Rank = Rank(26);
