//! The second *storey* (nested value) of a memory system: objects with their swap, I/O of pagers and reaper.

use super::reap_list::Reaper;
use super::{DirtyPages, ObjectMemory};
use crate::error::{FaultError, OutOfMemory};
use crate::machine::Machine;
use crate::paging::io::Io;
use crate::paging::swap::Swap;
use crate::paging::waiting::{Patience, Waiter};
use crate::phys::Physical;
use crate::phys::boot::{BootMemory, write_storey};
use crate::phys::frames::{Fill, For, Frame};
use crate::reclaim::progress::{Block, Ghosts};
use crate::sleep::MaySleep;
use crate::stats::Event;
use core::ops::Deref;
use quire_sync::atomic::AtomicU64;

/// All objects with their slabs, the swap, and reads and writes in progress.
pub struct Objects<M: Machine> {
    pub(crate) physical: Physical<M>,
    pub(crate) object_memory: ObjectMemory<M>,
    pub(crate) reaper: Reaper<M>,
    pub(crate) io: Io,
    pub(crate) swap: Swap,
    /// The dirty pages of files whose pagers have pages elsewhere.
    pub(crate) dirty: DirtyPages,
    /// Traces of pages that were evicted lately.
    pub(crate) ghosts: Ghosts,
    /// Pageout, which is part of a higher storey. It frees memory for a waiting thread.
    pub(crate) memory: Waiter,
}

impl<M: Machine> Deref for Objects<M> {
    type Target = Physical<M>;
    #[inline(always)]
    fn deref(&self) -> &Physical<M> {
        &self.physical
    }
}

impl<M: Machine> Objects<M> {
    /// Initialises all fields except `physical`, the embedded value of the storey below, for a system of `managed`
    /// frames.
    ///
    /// # Safety
    /// The place is new memory that no other thread can reach, and its field `physical` is initialised.
    #[inline(never)]
    pub(crate) unsafe fn write(place: *mut Self, boot: &mut BootMemory<'_, M>, managed: u64) {
        // SAFETY: `physical` is initialised, by this function's contract.
        let most = unsafe { (*place).physical.config.dirty }.unwrap_or(managed / 2);
        let (blocks, cpus) = (boot.per_cpu(|_| Block::default()), boot.machine().cpus());
        write_storey!(place => Objects {
            object_memory: ObjectMemory::new(boot),
            reaper: Reaper::new(boot),
            io: Io::new(boot),
            swap: Swap::new(),
            dirty: DirtyPages::new(most),
            ghosts: Ghosts::new(&mut |n| boot.slice(n, || AtomicU64::new(0)), blocks, cpus, managed),
            memory: Waiter::new();
            physical,
        });
    }

    /// Sleeps until frames for programs are free. Returns false if no memory can be freed.
    #[cold]
    pub(crate) fn wait_for_memory(&self, may: &mut MaySleep) -> bool {
        self.memory.get().is_some_and(|memory| memory.wait_for_memory(may))
    }

    /// Waits like `wait_for_memory`, but only as often as `patience` allows, because other threads may take the freed
    /// memory. Returns an error once the limit is reached.
    #[cold]
    pub(crate) fn memory_or_error(&self, patience: &mut Patience, may: &mut MaySleep) -> Result<(), FaultError> {
        self.memory.get().map_or(Err(FaultError::OutOfMemory), |memory| memory.memory_or_error(patience, may))
    }

    /// Sleeps after a failed allocation until memory is free. Returns false if no memory can be freed. The caller holds
    /// no lock or page that pageout could need, and retries a bounded number of times.
    #[cold]
    pub fn wait_for_frames(&self) -> bool {
        self.wait_for_memory(&mut MaySleep::here())
    }

    /// Allocates a frame for a program's data, and waits for memory if necessary. The caller holds no lock or page that
    /// pageout could need.
    pub(crate) fn alloc_frame_waiting(&self, fill: Fill, may: &mut MaySleep) -> Result<Frame, OutOfMemory> {
        let mut patience = Patience::new();
        loop {
            match self.alloc_frame(fill, For::User) {
                Ok(frame) => {
                    self.stats().count(Event::PageFilled);
                    return Ok(frame);
                }
                Err(e) if self.memory_or_error(&mut patience, may).is_err() => return Err(e),
                Err(_) => {}
            }
        }
    }

    /// The slabs of objects, backings and index nodes.
    pub fn object_memory(&self) -> &ObjectMemory<M> {
        &self.object_memory
    }

    #[inline(always)]
    pub(crate) fn reaper(&self) -> &Reaper<M> {
        &self.reaper
    }

    /// Reads and writes in progress.
    pub fn io(&self) -> &Io {
        &self.io
    }

    /// The swap, for its totals. [`Objects::add_swap`] adds a store.
    pub fn swap(&self) -> &Swap {
        &self.swap
    }
}
