//! Exact execution times: measured at every kernel entry, every kernel exit and every switch, not sampled by ticks.
//!
//! Each value has one writer, the CPU that runs the thread. A reader may see a value that is one step old.

use quire_sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The time that a thread has used, in nanoseconds.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Times {
    /// In user mode.
    pub user_ns: u64,
    /// In the kernel, on the thread's behalf.
    pub system_ns: u64,
}

/// A thread's times in ticks of the machine's counter.
pub(crate) struct Account {
    /// When the current stretch of user or system time began.
    stamp: AtomicU64,
    user: AtomicU64,
    system: AtomicU64,
}

/// Adds to a value that only the caller writes: no locked instruction.
#[inline(always)]
pub(crate) fn bump(value: &AtomicU64, by: u64) {
    value.store(value.load(Relaxed).wrapping_add(by), Relaxed);
}

impl Account {
    pub fn new() -> Self {
        Account { stamp: AtomicU64::new(0), user: AtomicU64::new(0), system: AtomicU64::new(0) }
    }

    // The stamp is of this CPU, whose clock does not run backwards: `start` sets it anew when a thread moves to another
    // CPU.

    /// The kernel was entered from user mode: the time since the last stamp was user time.
    #[inline(always)]
    pub fn enter_kernel(&self, ticks: u64) {
        bump(&self.user, ticks.wrapping_sub(self.stamp.load(Relaxed)));
        self.stamp.store(ticks, Relaxed);
    }

    /// The CPU is about to leave the kernel for user mode, or to switch threads: the time was system time.
    #[inline(always)]
    pub fn cut_system(&self, ticks: u64) {
        bump(&self.system, ticks.wrapping_sub(self.stamp.load(Relaxed)));
        self.stamp.store(ticks, Relaxed);
    }

    /// The thread gets a CPU, in the kernel.
    #[inline(always)]
    pub fn start(&self, ticks: u64) {
        self.stamp.store(ticks, Relaxed);
    }

    /// User and system ticks so far.
    pub fn ticks(&self) -> (u64, u64) {
        (self.user.load(Relaxed), self.system.load(Relaxed))
    }
}
