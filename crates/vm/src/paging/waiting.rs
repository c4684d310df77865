//! Waiting for memory, as the rooms that need some see it.

use crate::error::FaultError;
use crate::sleep::MaySleep;
use core::cell::UnsafeCell;

/// The room that frees memory.
pub(crate) trait MemoryWait: Sync {
    /// Sleeps until frames for programs are free; false where there is nothing that could be freed.
    fn wait_for_memory(&'static self, may: &mut MaySleep) -> bool;
    /// The same, for so long as the waiter has patience.
    fn memory_or_error(&'static self, patience: &mut Patience, may: &mut MaySleep) -> Result<(), FaultError>;
}

/// How often a fault finds memory taken again by others that it had waited for, before that is an error: only where what it
/// needs is not what pageout frees.
pub(crate) const DEFEATS: u32 = 1000;

/// What a fault puts up with.
pub(crate) struct Patience {
    pub(crate) left: u32,
    /// The first refusal.
    pub(crate) since: Option<u64>,
}

impl Patience {
    pub fn new() -> Patience {
        Patience { left: DEFEATS, since: None }
    }

    /// It got what it waited for, and goes on.
    pub fn served(&mut self) {
        self.since = None;
    }
}

/// Where a system keeps the room that frees its memory: given once, at boot.
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

/// Somebody who keeps memory for later, and gives it back when memory is short.
pub trait Reclaim: Send + Sync {
    /// Gives back what it keeps; returns whether anything came. Does not sleep; called where a fault may be served.
    fn reclaim(&self) -> bool;
}
