//! # Contract C6: one lock order
//! A lock may be taken only while every spin lock that the CPU already holds has a *lower* rank. Equal ranks are
//! allowed only through two methods: [`SpinLock::lock_nested`](crate::SpinLock::lock_nested), whose caller names the
//! order, and [`SpinLock::lock_below`](crate::SpinLock::lock_below), along a tree. Debug builds check this rule, and
//! learn the order of locks without a rank. Other builds compile the checks away.
//!
//! The table below has the ranks of all layers, sorted by rank. Different locks may have the same rank if a CPU never
//! holds two of them.

use crate::held;

/// A place in the lock order. Locks of lower ranks are taken first.
///
/// The constants are the only ranks: no other code makes a rank from a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Rank(u8);

impl Rank {
    /// Whether locks of this rank must be taken before locks of `other`.
    pub const fn is_before(self, other: Rank) -> bool {
        self.0 < other.0
    }

    /// The rank's number, for traces and for the check of the order.
    pub(crate) const fn number(self) -> u8 {
        self.0
    }

    /// A rank for the locks of a test.
    #[cfg(test)]
    pub(crate) const fn of_test(number: u8) -> Self {
        Rank(number)
    }
}

/// Makes the constants of [`Rank`] from a table, and refuses a table that is not sorted.
macro_rules! ranks {
    ($($(#[$doc:meta])* $name:ident = $rank:literal,)*) => {
        impl Rank {
            $($(#[$doc])* pub const $name: Rank = Rank($rank);)*
        }

        const _: () = assert!(is_sorted(&[$($rank),*]), "the table of ranks is not sorted");
    };
}

ranks! {
    /// Sleeping locks of the layers above (file tables, process tree): taken before everything else.
    SYSTEM = 10,
    /// The members of the scheduler's groups. An operation on a member takes the member's own locks under this lock.
    GROUP = 15,
    /// Process tree, sessions, signal state (spin locks of the Linux layer).
    PROCESS = 20,
    /// A process's family: its children and their zombies. A parent's lock is taken before its reaper's (nested).
    FAMILY = 20,
    /// A child's pointer to its parent.
    PARENT = 21,
    /// A process that moves between groups.
    MOVING = 21,
    /// Members of the Linux layer's process groups.
    MEMBERS = 22,
    /// A process's list of threads.
    THREADS = 23,
    /// Signal actions.
    ACTIONS = 24,
    /// A process's pending signals, then a thread's.
    SIGNALS = 25,
    /// Limits, names, credentials, and values that a thread owns: leaf locks of the Linux layer.
    OWNED = 26,
    /// The state of a POSIX timer.
    POSIX_TIMER = 27,
    /// A process's timers on CPU time. A timer joins and leaves this list under its own `POSIX_TIMER` lock.
    CPU_TIMERS = 28,
    /// A bucket of a table of socket names or ports.
    SOCKET_NAMES = 29,
    /// The connection of a socket. A CPU never holds two of these locks.
    SOCKET = 30,
    /// The messages that wait at a socket.
    INBOX = 31,
    /// Directories, pipes, open files (spin locks of the file layer).
    FILE = 32,
    /// The entries of a directory. A thread that locks two directories locks the ancestor first. Unrelated directories
    /// are locked in the order of their addresses, under the rename lock.
    DIRECTORY = 32,
    /// A directory entry's parent and name.
    PLACE = 33,
    /// Attributes of an inode, its list of watches, tables of drivers and of record locks.
    ATTRIBUTES = 34,
    /// The events and the watches of a notifier. Events are delivered under an inode's list of watches. A CPU never
    /// holds two of these locks.
    NOTIFIER = 35,
    /// A terminal's line editor and settings.
    TERMINAL = 36,
    /// The bytes in transit between a terminal and its master. The terminal asks for room for further bytes while it
    /// holds its `TERMINAL` lock.
    CABLE = 37,
    /// The part of a directory that lookups read.
    NAMES = 38,
    /// The attributes of an inode by which paths are checked.
    RIGHTS = 39,
    /// The changed watches of an epoll set.
    EPOLL = 40,
    /// The charge for a watch of an epoll set.
    EPOLL_CHARGE = 41,
    /// The listeners of a readiness.
    LISTENERS = 42,
    /// The waiters for a range of a file: taken after that file's locks.
    RANGE_WAITS = 43,
    /// The setting of a timer's file.
    TIMER_FILE = 44,
    /// The files of timers on the time of day. A timer joins and leaves this list under its own `TIMER_FILE` lock.
    DAY_TIMERS = 45,
    /// An arena of a map (a part of an address space with its own lock and tree): the bookkeeping of its writers that a
    /// spin lock guards.
    MAP = 48,
    /// One shard (a part with its own lock) of an object's list of backings.
    BACKINGS = 50,
    /// The CPUs' own root tables of one space.
    ROOTS = 58,
    /// A page-table page above the last level (parent before child).
    TABLE_UPPER = 60,
    /// A page-table page of the last level.
    TABLE = 61,
    /// An object's index of pages in the designs that the lab compares.
    INDEX = 70,
    /// The hash of waiters for busy pages, wait queues, and the internals of sleeping locks.
    WAIT = 80,
    /// A CPU's list of objects for the reaper to check.
    REAPER = 82,
    /// A CPU's list of address spaces.
    SPACES = 83,
    /// Idle kernel stacks of a CPU, and kernel ranges that wait for their flush.
    KERNEL_STACKS = 84,
    /// Futex buckets. No allocation happens under one.
    FUTEX = 84,
    /// The locks that the threads of a futex bucket own and wait for (priority inheritance).
    FUTEX_THREAD = 85,
    /// A CPU's batch of process ids.
    IDS = 86,
    /// The process ids outside the CPUs' batches.
    ID_DEPOT = 87,
    /// A CPU's batch: its new pages, which are not in a shard of the page queues yet.
    QUEUE_BATCH = 88,
    /// One shard of a page queue.
    QUEUE = 90,
    /// Slots of the swap store.
    SWAP = 91,
    /// Records of reads and writes.
    IO = 92,
    /// A slab's depot.
    SLAB = 100,
    /// Spare table pages of a CPU. When memory is short they are freed to the magazines, also while a slab is being
    /// filled.
    TABLE_SPARE = 103,
    /// A CPU's magazine of frames: taken before the depot that refills it.
    MAGAZINE = 105,
    /// The frame depot and the buddy lists of a domain.
    FRAMES = 110,
    /// Epoch domain: the lists of retired values.
    EPOCH = 120,
    /// The total of a limited counter: a user's threads, a file system's pages or inodes.
    LIMITED_COUNTER = 125,
    /// A CPU's timer wheel.
    TIMER = 130,
    /// Timers that have expired and wait for a thread. A timer's callback acquires this lock while its CPU holds the
    /// lock of the timer wheel.
    EXPIRED = 135,
    /// A CPU's run queue: the innermost lock, because threads are woken under many others.
    RUN_QUEUE = 140,
    /// Devices and the console; may be taken from anywhere.
    DEVICE = 200,
}

const fn is_sorted(ranks: &[u8]) -> bool {
    let mut i = 1;
    while i < ranks.len() {
        if ranks[i - 1] > ranks[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// Panics in debug builds if the caller holds a spin lock, because it must not sleep then (relies on C5).
#[inline(always)]
pub fn assert_may_sleep() {
    held::assert_no_spin();
}

/// Panics in debug builds and in models if the caller holds a spin lock, because it is about to wait for other CPUs
/// (relies on C5). A CPU that spins for that lock would wait for those CPUs too.
#[inline(always)]
pub fn assert_may_await_cpus() {
    held::assert_awaits_no_spinner();
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "waiting for other CPUs while spin locks are held")]
    fn a_wait_for_other_cpus_under_a_spin_lock_is_refused() {
        let lock = crate::SpinLock::new(Rank::of_test(1), ());
        assert_may_await_cpus();
        let _held = lock.lock();
        assert_may_await_cpus();
    }

    #[test]
    fn a_table_out_of_order_is_refused() {
        assert!(is_sorted(&[]) && is_sorted(&[1, 2, 2, 3]));
        assert!(!is_sorted(&[1, 3, 2]));
    }
}
