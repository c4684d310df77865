//! Waiting for memory, for the modules below pageout.

use crate::error::FaultError;
use crate::sleep::MaySleep;
use core::cell::UnsafeCell;

/// The module that frees memory: pageout.
pub(crate) trait MemoryWait: Sync {
    /// Sleeps until frames for programs are free; false where there is nothing that could be freed.
    fn wait_for_memory(&'static self, may: &mut MaySleep) -> bool;
    /// As `wait_for_memory`, within the waiter's patience.
    fn memory_or_error(&'static self, patience: &mut Patience, may: &mut MaySleep) -> Result<(), FaultError>;
}

/// How often other threads may take the memory that a fault waited for before that is an error. Reached only where
/// pageout does not free the needed kind of memory.
pub(crate) const DEFEATS: u32 = 1000;

/// A fault's first refusal.
#[derive(Clone, Copy)]
pub(crate) struct Refused {
    pub(crate) at: u64,
    /// Reads and writes that were finished then.
    pub(crate) finished: u64,
    /// The refusals that the fault could still bear then.
    pub(crate) left: u32,
}

/// A fault's limits of waiting.
pub(crate) struct Patience {
    pub(crate) left: u32,
    /// The first refusal since the fault got memory.
    pub(crate) since: Option<Refused>,
}

impl Patience {
    pub fn new() -> Patience {
        Patience { left: DEFEATS, since: None }
    }

    /// Notes that the fault got its memory.
    pub fn served(&mut self) {
        self.since = None;
    }
}

/// A system's reference to the module that frees its memory, set once at boot.
pub(crate) struct Waiter(UnsafeCell<Option<&'static dyn MemoryWait>>);

// SAFETY: the word is written by `give`, whose caller is the only CPU that knows the system, and only read after that.
unsafe impl Sync for Waiter {}

impl Waiter {
    pub(crate) const fn new() -> Waiter {
        Waiter(UnsafeCell::new(None))
    }

    /// # Safety
    /// No other CPU knows the system yet, and no reference to the word is alive.
    pub(crate) unsafe fn give(&self, memory: &'static dyn MemoryWait) {
        // SAFETY: by this function's contract no other code reads or writes the word meanwhile.
        unsafe { *self.0.get() = Some(memory) };
    }

    /// None only while the system is built.
    pub(crate) fn get(&self) -> Option<&'static dyn MemoryWait> {
        // SAFETY: the word was written before another CPU knew the system, and no code writes it later.
        unsafe { *self.0.get() }
    }
}

/// A cache that gives its memory back when memory is short.
pub trait Reclaim: Send + Sync {
    /// Frees its memory; returns whether it freed any. Does not sleep; called where a fault may be served.
    fn reclaim(&self) -> bool;
}
