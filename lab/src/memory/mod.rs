//! Memory cores behind one trait: production's and two baselines. One baseline keeps a record for each mapped page. The
//! other keeps a backing for each mapping instead, as DragonFly does since it replaced the records.

pub mod backings;
mod entries;
mod levels;
mod pages;
mod production;
mod read_write;
pub mod records;
mod resident;
pub mod store;
#[cfg(test)]
mod tests;

pub use backings::Backings;
pub use production::Production;
pub use records::Records;

use crate::Failure;
use quire_sync::record;
use quire_vm::{Access, PAGE_SIZE, VirtRange};
use std::ops::Range;
use std::sync::Arc;

/// Shards of the queues and of the free frames after the source of 2011, and since.
pub const PARTS: usize = 256;

/// A value whose memory is not reused in the recording build. There one thread acts as all CPUs, so each would get
/// memory that another CPU had freed; kernels keep freed memory for the freeing CPU.
fn kept<T>(value: T) -> Arc<T> {
    let value = Arc::new(value);
    if record::ENABLED {
        std::mem::forget(Arc::downgrade(&value));
    }
    value
}

/// A range's pages, by number.
fn pages(range: VirtRange) -> Range<u64> {
    range.start / PAGE_SIZE..range.end / PAGE_SIZE
}

/// The target of a mapping.
#[derive(Clone)]
pub enum Target<F> {
    /// Memory of the space's own, zero at first.
    Private,
    /// A file from one of its pages on: all mappings see stores.
    Shared(F, u64),
    /// The same, but stores go to private copies.
    Copied(F, u64),
}

/// A memory core on a machine that lives until the process ends.
pub trait Memory: Copy + Send + Sync + 'static {
    /// The calling thread as a CPU, until it is dropped.
    type Cpu;
    /// An address space. Dropped by a CPU.
    type Space: Send + Sync;
    /// A file.
    type File: Clone + Send + Sync + 'static;
    /// Frames that go back when this is dropped.
    type Taken;

    /// Makes the calling thread a CPU; it may be several.
    fn attach(self, cpu: usize) -> Self::Cpu;

    /// Does `f` as that CPU.
    fn on<R>(self, cpu: &Self::Cpu, f: impl FnOnce() -> R) -> R;

    /// That CPU runs programs in `space` from now on, with the costs of a program.
    fn enter(self, cpu: &Self::Cpu, space: &Self::Space);

    /// An empty space.
    fn space(self) -> Result<Self::Space, Failure>;

    /// A file in memory whose pages are all resident.
    fn file(self, pages: u64) -> Result<Self::File, Failure>;

    /// A file whose pages are all resident, and in its store too: a page can be dropped without a write.
    fn stored_file(self, pages: u64) -> Result<Self::File, Failure>;

    /// Maps `target` in a range, in place of older mappings.
    fn map(self, space: &Self::Space, range: VirtRange, target: Target<Self::File>) -> Result<(), Failure>;

    /// Allows or forbids stores.
    fn protect(self, space: &Self::Space, range: VirtRange, stores: bool) -> Result<(), Failure>;

    /// Unmaps a range.
    fn unmap(self, space: &Self::Space, range: VirtRange) -> Result<(), Failure>;

    /// The fault of an access that found no leaf, or a leaf that does not allow it.
    fn fault(self, space: &Self::Space, va: u64, access: Access) -> Result<(), Failure>;

    /// A copy of a space.
    fn fork(self, space: &Self::Space) -> Result<Self::Space, Failure>;

    /// Removes pages from a file, and from every space that maps them.
    fn remove(self, file: &Self::File, pages: Range<u64>);

    /// Pages out a clean range of a file: removes it from every space that maps it, and frees the frames.
    fn page_out(self, file: &Self::File, pages: Range<u64>);

    /// Bytes of reverse mapping for the pages that these spaces map, perhaps plus a constant.
    fn overhead(self, spaces: &[Self::Space]) -> u64;

    /// Frames that hold pages of objects.
    fn held(self) -> u64;

    /// Collects pages that became unreachable when a process exited, if the design does.
    fn reap(self);

    /// Shuffles the free frames, if they have come into an order.
    fn shuffle(self);

    /// So many frames, taken one by one and zeroed.
    fn take_zeroed(self, frames: u64) -> Result<Self::Taken, Failure>;

    /// How often a CPU has found a lock held by another one: a lock of a queue shard, if the design has those, else
    /// any.
    fn waits(self) -> u64;
}
