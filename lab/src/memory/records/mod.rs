//! A memory core that keeps a record (a pv entry) for each mapping of a page. The kernels of the BSD family did so
//! since Mach, and DragonFly BSD did until its change of 2019, the source S0. With its page queue in one shard, this
//! core is the design that DragonFly BSD replaced in 2011 (source S1). With 256 shards, it is the design of S1.
//!
//! The core is a good implementation of its design, so that the remaining cost belongs to the design:
//! - A fault finds its entry under a shared lock of the map, and makes the page busy under the object's lock. It
//!   releases the object's lock before it fills and maps the page. A load also maps the resident pages around its page.
//!   Each table page has a lock for its PTEs. It also has a pool of records, which needs no further lock.
//! - Each page has a list of its mappings with a lock of its own. Mapping and unmapping change the list. A remover of
//!   the page walks the list. A fork copies no PTEs and therefore no records, as in DragonFly BSD. Forks of other
//!   systems copied PTEs and records.
//! - Free frames and the page queue have any number of shards. A CPU allocates frames from its own shards. A page is
//!   queued in the shard of its frame.
//! - The first store after a fork adds a shadow object in front of a shared object. An object is collapsed into its
//!   shadow (its pages move there) if only that shadow refers to it. The collapse is tried when the shadow gets a new
//!   page, and when other references to the object are dropped.
//!
//! | lock | guards |
//! |---|---|
//! | map (shared or exclusive) | entries; a fault holds it to its end |
//! | object, then the object behind it | its pages, their busy states, the object behind |
//! | table page | leaves and records of 2 MiB |
//! | page | the list of its mappings |
//! | shard | free frames, queued pages |
//!
//! A CPU that waits for a busy page holds none of these locks except the map's. There is no TLB to flush.

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

/// The size of a record in bytes.
pub const RECORD: usize = size_of::<tables::Record>();

/// The frames of this core. The data of each page is the list of its mappings.
pub type Core = pages::Core<tables::Mapped>;

/// A machine with this memory core.
#[derive(Clone, Copy)]
pub struct Records(pub &'static Core);

impl Records {
    /// Boots a machine with `cpus` CPUs and `mib` MiB of memory. Its free list and its page queue have `parts` shards.
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
        // The files of this core have no store. So a page-out is only the walk along each page's list, and the free of
        // the frame.
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
