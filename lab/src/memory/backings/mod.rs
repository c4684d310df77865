//! A memory core that keeps a backing for each mapping, but no record for a mapped page. It follows the design of
//! DragonFly BSD since 2019 (S0).
//!
//! - A mapping has a backing: its range, its object, the offset in the object, and the backing behind it. An object has
//!   a list of the backings that map it. Fork and clip copy the whole chain of backings. A store after a fork adds an
//!   object in front of the chain.
//! - To remove a page from every space, the remover walks the object's list of backings. Each backing gives the address
//!   of the page, and the remover looks up the PTE at that address. A PTE that maps another frame stays. So the cost
//!   grows with the number of the object's mappings, not with the number of the page's mappings.
//! - PTEs have no lock of their own. A CPU that changes a PTE holds one of 64 marks of the space, found by a hash. The
//!   remover of a page holds no mark. It clears each PTE by compare-and-swap.
//! - A fault holds the map's lock shared. It also holds the page shared if the page is resident. It changes counters of
//!   the space and of the table page. A fork copies no PTEs.
//! - A fork ends a chain of more than five objects, the front object included. It copies the pages that are seen
//!   through the front object into that object. A fork also ends a chain whose front object hides all pages behind. No
//!   other operation collapses a chain. Until its chain ends, a private mapping of a file shows later stores to the
//!   file.
//!
//! Frames, page descriptors, and the shards of the free list and of the page queue are those of
//! [`Records`](super::Records). But a page has no list of mappings. This core too has no TLB to flush.

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

/// The frames of this core. A page has no data beside its busy word.
pub type Core = pages::Core<()>;

/// A machine with this memory core.
#[derive(Clone, Copy)]
pub struct Backings(pub &'static Core);

impl Backings {
    /// Boots a machine with `cpus` CPUs and `mib` MiB of memory. Its free list and its page queue have `parts` shards.
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
        // The files of this core have no store. So a page-out is only the walk along the backings, page by page, and
        // the free of the frame.
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
