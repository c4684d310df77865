//! All maps of a memory system as one value. It is the third of the nested values that make up a system, after
//! `Physical` and `Objects`.

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
    /// Initialises all fields at `place` except `objects`, which the caller has initialised.
    ///
    /// # Safety
    /// `place` is new memory that no other thread can reach, and its field `objects` is initialised.
    #[inline(never)]
    pub(crate) unsafe fn write(place: *mut Self, boot: &mut BootMemory<'_, M>) {
        write_storey!(place => Maps { map_memory: MapMemory::new(boot); objects });
    }

    /// Slabs of spaces, entries and tree nodes.
    pub fn map_memory(&self) -> &MapMemory<M> {
        &self.map_memory
    }

    /// Called when a map's lock is released after a change. If a check is due, checks the structures that belong to no
    /// address space.
    #[cold]
    pub(crate) fn check_at_release(&self) {
        let done = match self.check_level() {
            Level::Never => return,
            Level::AtRelease => {
                // All CPUs share this counter, which is acceptable because no benchmark runs at this check level.
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

    /// Checks the structures that belong to no address space: queues, swap, slabs, frames. Other CPUs may run during
    /// the check. If the caller says that the machine is `quiet`, no other CPU changes memory, and more is checked. The
    /// cost is O(pages in queues + swap slots / 64), and with `quiet` O(frames).
    pub fn check(&self, quiet: bool) -> Result<(), Broken> {
        self.queues().check(quiet).map_err(Broken::Queue)?;
        self.swap().check()?;
        if quiet {
            self.frames().check().map_err(Broken::Frames)?;
        }
        for cache in
            self.map_memory().caches().into_iter().chain(self.object_memory().caches()).chain(self.heap().caches())
        {
            // SAFETY: the caches belong to this system, which is passed to them.
            unsafe { cache.check(self)? };
        }
        Ok(())
    }
}
