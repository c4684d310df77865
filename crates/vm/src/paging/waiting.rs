//! The trait by which modules below pageout wait for memory.

use crate::error::FaultError;
use crate::sleep::MaySleep;
use core::cell::UnsafeCell;

/// The module that frees memory, which is pageout.
pub(crate) trait MemoryWait: Sync {
    /// Sleeps until frames for programs are free. Returns false if no memory can be freed.
    fn wait_for_memory(&'static self, may: &mut MaySleep) -> bool;
    /// Waits like `wait_for_memory`, within the limits of `patience`. Returns an error if these limits are reached.
    fn memory_or_error(&'static self, patience: &mut Patience, may: &mut MaySleep) -> Result<(), FaultError>;
}

/// The number of times that a fault waits for memory and then finds that other threads have taken it. After that the
/// fault fails. The limit is reached only if pageout does not free the needed kind of memory.
pub(crate) const DEFEATS: u32 = 1000;

/// The first refusal of a fault.
#[derive(Clone, Copy)]
pub(crate) struct Refused {
    pub(crate) at: u64,
    /// The number of reads and writes that were finished at the time `at`.
    pub(crate) finished: u64,
    /// The value of [`Patience::left`] at the time `at`.
    pub(crate) left: u32,
}

/// The limits of a fault's waiting.
pub(crate) struct Patience {
    pub(crate) left: u32,
    /// The first refusal since the fault last got memory.
    pub(crate) since: Option<Refused>,
}

impl Patience {
    pub fn new() -> Patience {
        Patience { left: DEFEATS, since: None }
    }

    /// Records that the fault got its memory.
    pub fn served(&mut self) {
        self.since = None;
    }
}

/// The module that frees the system's memory. It is set once at boot.
pub(crate) struct Waiter(UnsafeCell<Option<&'static dyn MemoryWait>>);

// SAFETY: `give` writes the word while no other CPU can reach the system. After that it is only read.
unsafe impl Sync for Waiter {}

impl Waiter {
    pub(crate) const fn new() -> Waiter {
        Waiter(UnsafeCell::new(None))
    }

    /// # Safety
    /// No other CPU can reach the system yet, and no reference to the word is alive.
    pub(crate) unsafe fn give(&self, memory: &'static dyn MemoryWait) {
        // SAFETY: by this function's contract no other code reads or writes the word during this write.
        unsafe { *self.0.get() = Some(memory) };
    }

    /// The module, or `None` while the system is being built.
    pub(crate) fn get(&self) -> Option<&'static dyn MemoryWait> {
        // SAFETY: the word was written before another CPU could reach the system, and no code writes it later.
        unsafe { *self.0.get() }
    }
}

/// A cache that frees its memory when memory is short.
pub trait Reclaim: Send + Sync {
    /// Frees the cache's memory. Returns whether it freed any. Does not sleep, because it is called while faults are
    /// served.
    fn reclaim(&self) -> bool;
}
