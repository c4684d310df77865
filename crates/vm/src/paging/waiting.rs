//! Waiting for memory, as the rooms that need some see it.

use crate::error::FaultError;
use crate::sleep::MaySleep;

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

/// Somebody who keeps memory for later, and gives it back when memory is short.
pub trait Reclaim: Send + Sync {
    /// Gives back what it keeps; returns whether anything came. Does not sleep; called where a fault may be served.
    fn reclaim(&self) -> bool;
}
