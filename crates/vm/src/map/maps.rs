//! All maps of a memory system, as one value: the third storey.

use super::memory::MapMemory;
use crate::check::{Broken, Level};
use crate::machine::Machine;
use crate::object::Objects;
use crate::phys::boot::{BootMemory, write_storey};
use crate::phys::queues::Queue;
use core::ops::Deref;
use quire_sync::atomic::Ordering;

/// Address spaces, and the slabs of their entries and nodes.
pub struct Maps<M: Machine> {
    pub(crate) objects: Objects<M>,
    pub(crate) map_memory: MapMemory<M>,
}

impl<M: Machine> Deref for Maps<M> {
    type Target = Objects<M>;
    #[inline(always)]
    fn deref(&self) -> &Objects<M> {
        &self.objects
    }
}

impl<M: Machine> Maps<M> {
    /// Writes everything but the storey below.
    ///
    /// # Safety
    /// The place is fresh memory that no reader knows, and the storey below is written.
    #[inline(never)]
    pub(crate) unsafe fn write(place: *mut Self, boot: &mut BootMemory<'_, M>) {
        write_storey!(place => Maps { map_memory: MapMemory::new(boot); objects });
    }

    /// Slabs of spaces, entries and tree nodes.
    pub fn map_memory(&self) -> &MapMemory<M> {
        &self.map_memory
    }

    /// Called when a map's lock is given up after a change: checks what belongs to no address space, if that is due.
    #[cold]
    pub(crate) fn check_at_release(&self) {
        let done = match self.check_level() {
            Level::Never => return,
            Level::AtRelease => {
                // Shared between CPUs: at this check level no benchmark runs.
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

    /// Checks what belongs to no address space: queues, swap, slabs, frames. Other CPUs may be at work, unless the
    /// caller says that the machine is `quiet`; then more can be checked. In O(pages in queues + swap slots / 64), and
    /// if `quiet` O(frames).
    pub fn check(&self, quiet: bool) -> Result<(), Broken> {
        self.queues().check(quiet).map_err(Broken::Queue)?;
        self.swap().check()?;
        if quiet {
            self.frames().check().map_err(Broken::Frames)?;
        }
        for cache in
            self.map_memory().caches().into_iter().chain(self.object_memory().caches()).chain(self.heap().caches())
        {
            // SAFETY: the caches are those of this system, which they are given.
            unsafe { cache.check(self)? };
        }
        Ok(())
    }
}
