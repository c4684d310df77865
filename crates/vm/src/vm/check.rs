//! The checker at work: what belongs to no address space, and what happens where an invariant does not hold.

use crate::check::{Broken, Due, Level};
use crate::machine::Machine;
use crate::phys::queues::Queue;
use crate::stats::Event;
use crate::vm::Vm;
use quire_sync::atomic::Ordering;

impl<M: Machine> Vm<M> {
    /// A structure was checked: panics with the report where it is broken; else it is due again after as many updates as the
    /// check looked at things.
    #[cold]
    pub fn checked(&self, due: &mut Due, result: Result<u64, Broken>) {
        match result {
            Ok(cost) => {
                due.checked(cost);
                self.stats().add(Event::CheckVisit, cost);
            }
            Err(broken) => self.broken(broken),
        }
    }

    /// A map was changed and its lock is given up: what belongs to no address space is checked where it is due.
    #[cold]
    pub(crate) fn check_at_release(&self) {
        let done = match self.check_level() {
            Level::Never => return,
            Level::AtRelease => {
                // Shared between CPUs: with the knob at this level, nobody measures.
                let updates = self.check_updates.fetch_add(1, Ordering::Relaxed);
                let cost = Queue::ALL.iter().map(|q| self.queues().len(*q)).sum::<u64>();
                if updates < cost {
                    return;
                }
                self.check_updates.store(0, Ordering::Relaxed);
                self.check(false)
            }
            Level::Always => self.check(false),
        };
        done.unwrap_or_else(|broken| self.broken(broken));
    }

    /// Checks what belongs to no address space: queues, swap, slabs, frames. Others may be at work, unless the caller says that
    /// the machine is `quiet`; then more can be checked. In O(pages in queues + swap slots / 64), and where `quiet` O(frames).
    pub fn check(&self, quiet: bool) -> Result<(), Broken> {
        self.queues().check(quiet).map_err(Broken::Queue)?;
        self.swap().check()?;
        if quiet {
            self.frames().check().map_err(Broken::Frames)?;
        }
        for cache in
            self.map_memory().caches().into_iter().chain(self.object_memory().caches()).chain(self.heap().caches())
        {
            cache.check(self)?;
        }
        Ok(())
    }

    /// An invariant does not hold: nothing that follows could be relied upon.
    #[cold]
    pub fn broken(&self, what: Broken) -> ! {
        // The panic's own way out gives up locks: they must not be checked.
        self.set_check_level(Level::Never);
        panic!("consistency check: {what}")
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
