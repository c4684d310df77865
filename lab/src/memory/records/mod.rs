//! A memory core that keeps a record for each mapped page (a pv entry). Kernels of the BSD family did so from Mach on,
//! and DragonFly BSD until 2019. S0 replaced it. With its queues in one shard it is the design that S1 replaced, and
//! with 256 shards it is S1 itself.
//!
//! It is a good one of its kind, so that the remaining cost is the design's:
//! - A fault finds its entry under a shared lock of the map and busies the page under the object's lock. It releases
//!   the object's lock while it fills and maps the page. A load also maps the resident pages around its page. Leaves
//!   have a lock for each table page; records come from a pool of the table page, without another lock.
//! - Each page has a list of its mappings under a lock of its own. Mapping and unmapping change it; a remover walks the
//!   page's list. A fork copies no leaves, hence no records, as in that source (other systems' forks did).
//! - Free frames and the page queue have any number of shards. A CPU takes frames of its own shards, and a page is
//!   queued in the shard of its frame.
//! - The first store after a fork shadows an object that is shared. An object that only its shadow refers to is
//!   collapsed into it, at a new page of the shadow and when the last other reference goes.
//!
//! | lock | guards |
//! |---|---|
//! | map (shared or not) | entries; held over a fault |
//! | object, then the one behind it | its pages, their busy states, the object behind |
//! | table page | leaves and records of 2 MiB |
//! | page | the list of its mappings |
//! | shard | free frames, queued pages |
//!
//! A CPU that waits for a busy page holds none of these locks but the map's. There is no TLB to flush.

mod object;
mod space;
mod tables;

pub use object::Object;
pub use space::Space;

use super::pages::{self, Taken};
use super::{Memory, Target};
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
    /// A machine with so many CPUs and memory, its frames and queues in so many shards.
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

    fn map(self, space: &Arc<Space>, range: VirtRange, target: Target<Arc<Object>>) -> Result<(), Failure> {
        space.map(range, target);
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
        // Its files have no store: a page-out is only the walk along each page's list, and the free of the frame.
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
