//! Exact execution times. They are measured at every kernel entry, kernel exit and switch, instead of sampled by ticks.
//!
//! Each value has one writer, the CPU that runs the thread. A reader may see a value that is one step old.

use quire_sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The time that a thread has used, in nanoseconds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Times {
    /// The time in user mode.
    pub user_ns: u64,
    /// The time in the kernel on behalf of the thread.
    pub system_ns: u64,
}

/// A thread's times in ticks of the machine's counter.
pub(crate) struct Account {
    /// The counter's value when the current interval of user or system time began.
    stamp: AtomicU64,
    user: AtomicU64,
    system: AtomicU64,
}

/// Adds `by` to a value that only the caller writes, so that no locked instruction is needed.
#[inline(always)]
pub(crate) fn bump(value: &AtomicU64, by: u64) {
    value.store(value.load(Relaxed).wrapping_add(by), Relaxed);
}

impl Account {
    pub fn new() -> Self {
        Account { stamp: AtomicU64::new(0), user: AtomicU64::new(0), system: AtomicU64::new(0) }
    }

    // The stamp is always a counter value of the CPU that runs the thread, because `start` sets it at each dispatch. So
    // the differences below are never negative.

    /// Adds the time since the stamp to user time, because the kernel was entered from user mode.
    #[inline(always)]
    pub fn enter_kernel(&self, ticks: u64) {
        bump(&self.user, ticks.wrapping_sub(self.stamp.load(Relaxed)));
        self.stamp.store(ticks, Relaxed);
    }

    /// Adds the time since the stamp to system time, because the CPU is about to return to user mode or to switch
    /// threads.
    #[inline(always)]
    pub fn cut_system(&self, ticks: u64) {
        bump(&self.system, ticks.wrapping_sub(self.stamp.load(Relaxed)));
        self.stamp.store(ticks, Relaxed);
    }

    /// Sets the stamp, because a CPU begins to run the thread in the kernel.
    #[inline(always)]
    pub fn start(&self, ticks: u64) {
        self.stamp.store(ticks, Relaxed);
    }

    /// User and system ticks so far.
    pub fn ticks(&self) -> (u64, u64) {
        (self.user.load(Relaxed), self.system.load(Relaxed))
    }
}
