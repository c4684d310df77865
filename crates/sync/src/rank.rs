//! The one lock order (Contract C6), written once.
//!
//! A lock may be taken only while every spin lock that the CPU already holds has a *lower* rank; equal ranks are allowed
//! only through [`SpinLock::lock_nested`](crate::SpinLock::lock_nested), whose caller names the order, and
//! [`SpinLock::lock_below`](crate::SpinLock::lock_below), along a tree. Debug builds
//! check it, and learn the order of what has no rank; others compile the checks away.

/// A place in the lock order; lower ranks are taken first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rank(pub u8);

impl Rank {
    /// Sleeping locks of the layers above (file tables, process tree): taken before everything else.
    pub const SYSTEM: Rank = Rank(10);
    /// Members of a process group or session; what is done to each takes its own locks.
    pub const GROUP: Rank = Rank(15);
    /// Process tree, sessions, signal state (spin locks of the Linux layer).
    pub const PROCESS: Rank = Rank(20);
    /// Directories, pipes, open files (spin locks of the file layer).
    pub const FILE: Rank = Rank(30);
    /// An arena of a map: writers' bookkeeping that spins.
    pub const MAP: Rank = Rank(40);
    /// One part of an object's list of backings.
    pub const BACKINGS: Rank = Rank(50);
    /// The root tables that CPUs have of their own for one space.
    pub const ROOTS: Rank = Rank(58);
    /// A page-table page above the last level (parent before child).
    pub const TABLE_UPPER: Rank = Rank(60);
    /// A page-table page of the last level.
    pub const TABLE: Rank = Rank(61);
    /// An object's tree of index nodes where it grows.
    pub const INDEX: Rank = Rank(70);
    /// Hash of waiters for busy pages, wait queues, sleeping locks' insides.
    pub const WAIT: Rank = Rank(80);
    /// A CPU's list of objects that the reaper shall look at.
    pub const REAPER: Rank = Rank(82);
    /// A CPU's list of address spaces.
    pub const SPACES: Rank = Rank(83);
    /// A CPU's batch in front of the page queues.
    pub const QUEUE_BATCH: Rank = Rank(88);
    /// One part of a page queue.
    pub const QUEUE: Rank = Rank(90);
    /// Slots of the swap store.
    pub const SWAP: Rank = Rank(91);
    /// Records of reads and writes.
    pub const IO: Rank = Rank(92);
    /// A slab's depot.
    pub const SLAB: Rank = Rank(100);
    /// Idle kernel stacks of a CPU, and kernel ranges that wait to be forgotten.
    pub const KERNEL_STACKS: Rank = Rank(84);
    /// Empty table pages that a CPU keeps: given back to the magazines when memory is short, whatever slab is being filled.
    pub const TABLE_SPARE: Rank = Rank(103);
    /// A CPU's magazine of frames: before the depot that refills it.
    pub const MAGAZINE: Rank = Rank(105);
    /// The frame depot and the buddy lists of a domain.
    pub const FRAMES: Rank = Rank(110);
    /// Epoch domain: the list of what waits for readers.
    pub const EPOCH: Rank = Rank(120);
    /// Futex buckets.
    pub const FUTEX: Rank = Rank(85);
    /// A CPU's process ids on their way in or out.
    pub const IDS: Rank = Rank(86);
    /// The process ids that no CPU has.
    pub const ID_DEPOT: Rank = Rank(87);
    /// The books of a headcount: a user's threads, a file system's pages or inodes.
    pub const HEADCOUNT: Rank = Rank(125);
    /// A CPU's timer wheel.
    pub const TIMER: Rank = Rank(130);
    /// A CPU's run queue: the innermost lock, since waking happens under many others.
    pub const RUN_QUEUE: Rank = Rank(140);
    /// Devices and the console; may be taken from anywhere.
    pub const DEVICE: Rank = Rank(200);
}

use crate::held;

/// Panics in debug builds where the caller holds a spin lock (Contract C5: no sleep under a guard).
#[inline(always)]
pub fn assert_may_sleep() {
    held::assert_no_spin();
}
