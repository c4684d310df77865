//! A memory core that keeps a backing for each mapping, and nothing for a mapped page. It follows the ideas of
//! DragonFly BSD from 2019 on (S0).
//!
//! - A mapping has a backing: its range, its object, the place in it, and the backing behind it. An object lists the
//!   backings that map it. Fork and clip replicate the whole chain; a store after a fork puts an object in front of it.
//! - To remove a page from every space, the remover walks its object's backings. Each gives the address of the page,
//!   and the tables there are walked; a leaf that names another frame stays. So the cost grows with the object's
//!   mappings, not with the page's.
//! - Leaves have no lock of their own: a CPU that changes one holds one of 64 marks of the space, found by a hash. The
//!   remover of a page holds no mark, and clears each leaf by compare-and-set.
//! - A fault shares the map's lock, and it shares the page too if that is resident. It counts in the space and in the
//!   table page. A fork copies no leaves.
//! - The next fork ends a chain of more than five objects behind the front one: it copies the pages seen through it
//!   into the front object. It also ends a chain whose front hides all pages behind. Nothing else collapses. Until then
//!   a private mapping follows stores to its file.
//!
//! Frames, shards and page descriptors are those of [`Records`](super::Records), without a list for each page. It has
//! no TLB to flush either.

mod backing;
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

/// Its memory: a page has nothing but its own word.
pub type Core = pages::Core<()>;

/// A machine with this core.
#[derive(Clone, Copy)]
pub struct Backings(pub &'static Core);

impl Backings {
    /// A machine with so many CPUs and memory, its frames and queues in so many shards.
    pub fn boot(cpus: usize, mib: u64, parts: usize) -> Result<Backings, Failure> {
        Core::boot(cpus, mib, parts).map(Backings)
    }
}

impl Memory for Backings {
    type Cpu = usize;
    type Space = Arc<Space>;
    type File = Arc<Object>;
    type Taken = Taken<()>;

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
        space.fork()
    }

    fn remove(self, file: &Arc<Object>, pages: Range<u64>) {
        file.remove(pages);
    }

    fn page_out(self, file: &Arc<Object>, pages: Range<u64>) {
        // Its files have no store: a page-out is only the walk along the backings, page by page, and the free of the
        // frame.
        file.remove(pages);
    }

    fn overhead(self, spaces: &[Arc<Space>]) -> u64 {
        spaces.iter().map(|s| s.overhead()).sum()
    }

    fn held(self) -> u64 {
        self.0.held()
    }

    fn reap(self) {}

    fn shuffle(self) {}

    fn take_zeroed(self, frames: u64) -> Result<Self::Taken, Failure> {
        self.0.take_zeroed(frames)
    }

    fn waits(self) -> u64 {
        self.0.waits()
    }
}
