//! A memory core that keeps a record for each mapped page: how kernels of the BSD family were built from Mach on (pv entries), and
//! DragonFly BSD until 2019. It is what S0 replaced, and with its queues in one part or in 256 it is what S1 replaced and S1 itself.
//!
//! A good one of its kind, so that what is left is what the design asks for:
//! - A fault finds its entry under a shared lock of the map, busies the page under the object's lock, and holds the
//!   object's no longer while the page is filled and mapped. A load maps what is resident around its page too. Leaves have a lock for each table page, records come from a pool of the table page, without another lock.
//! - Each page has a list of its mappings under a lock of its own. Mapping and unmapping change it; removing a page
//!   everywhere goes along its list. A fork copies no leaves, hence no records, as that source's did not (others' forks did).
//! - Free frames and the queue of pages fan out into as many parts as one likes; a CPU takes frames of parts of its own, and a page's
//!   place is in the part of its frame.
//! - Objects are shadowed at the first store after a fork where others have them; an object that only its shadow refers to is collapsed
//!   into it, at a new page of the shadow and when the last other reference goes.
//!
//! | lock | guards |
//! |---|---|
//! | map (shared or not) | entries; held over a fault |
//! | object, then the one behind it | its pages, who is busy, what is behind |
//! | table page | leaves and records of 2 MiB |
//! | page | the list of its mappings |
//! | part | free frames, queued pages |
//!
//! Pages that are busy are waited for with no lock of these held but the map's. There are no translation caches to flush.

mod object;
mod space;
mod tables;

pub use object::Object;
pub use space::Space;

use super::pages::{self, Taken};
use super::{Memory, What};
use crate::Failure;
use quire_sync::hooks::threads;
use quire_vm::{Access, VirtRange};
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a record.
pub const RECORD: usize = size_of::<tables::Record>();

/// Its memory: each page has a list of its mappings.
pub type Core = pages::Core<tables::Mapped>;

/// A machine with this core.
#[derive(Clone, Copy)]
pub struct Records(pub &'static Core);

impl Records {
    /// One with so many CPUs and memory, its frames and queues in so many parts.
    pub fn boot(cpus: usize, mib: u64, parts: usize) -> Result<Records, Failure> {
        Core::boot(cpus, mib, parts).map(Records)
    }
}

impl Memory for Records {
    type Cpu = usize;
    type Space = Arc<Space>;
    type File = Arc<Object>;
    type Taken = Taken<tables::Mapped>;

    fn attach(self, cpu: usize) -> usize {
        threads::set_cpu(cpu);
        cpu
    }

    fn on<R>(self, cpu: &usize, f: impl FnOnce() -> R) -> R {
        threads::as_cpu(*cpu, f)
    }

    fn enter(self, _cpu: &usize, _space: &Arc<Space>) {}

    fn space(self) -> Result<Arc<Space>, Failure> {
        Ok(Space::new(self.0))
    }

    fn file(self, pages: u64) -> Result<Arc<Object>, Failure> {
        Object::file(self.0, pages)
    }

    fn stored_file(self, pages: u64) -> Result<Arc<Object>, Failure> {
        self.file(pages)
    }

    fn map(self, space: &Arc<Space>, range: VirtRange, what: What<Arc<Object>>) -> Result<(), Failure> {
        space.map(range, what);
        Ok(())
    }

    fn protect(self, space: &Arc<Space>, range: VirtRange, stores: bool) -> Result<(), Failure> {
        space.protect(range, stores);
        Ok(())
    }

    fn unmap(self, space: &Arc<Space>, range: VirtRange) -> Result<(), Failure> {
        space.unmap(range);
        Ok(())
    }

    #[inline]
    fn fault(self, space: &Arc<Space>, va: u64, access: Access) -> Result<(), Failure> {
        space.fault(va, access == Access::Write)
    }

    fn fork(self, space: &Arc<Space>) -> Result<Arc<Space>, Failure> {
        Ok(space.fork())
    }

    fn remove(self, file: &Arc<Object>, pages: Range<u64>) {
        file.remove(pages);
    }

    fn page_out(self, file: &Arc<Object>, pages: Range<u64>) {
        // Its files have no store to ask: what is left is the way along each page's list, and the frame.
        file.remove(pages);
    }

    fn overhead(self, spaces: &[Arc<Space>]) -> u64 {
        spaces.iter().map(|s| (s.records() * RECORD) as u64).sum()
    }

    fn held(self) -> u64 {
        self.0.held()
    }

    fn reap(self) {}

    fn shuffle(self) {}

    fn waits(self) -> u64 {
        self.0.waits()
    }

    fn take_zeroed(self, frames: u64) -> Result<Self::Taken, Failure> {
        self.0.take_zeroed(frames)
    }
}
