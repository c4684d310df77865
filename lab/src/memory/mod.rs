//! Memory cores behind one trait: the production core and two baselines. One baseline keeps a record for each mapped
//! page. The other keeps a backing for each mapping instead, as DragonFly does since 2019.

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

/// The number of shards of the queues and of the free list, in the source of 2011 and since then.
pub const PARTS: usize = 256;

/// Allocates a value whose memory is not reused in the recording build. In that build, one thread acts as all CPUs. So
/// its allocator would give each CPU memory that another CPU has freed. A kernel keeps freed memory for the CPU that
/// freed it.
fn kept<T>(value: T) -> Arc<T> {
    let value = Arc::new(value);
    if record::ENABLED {
        std::mem::forget(Arc::downgrade(&value));
    }
    value
}

/// The numbers of the pages of a range.
fn pages(range: VirtRange) -> Range<u64> {
    range.start / PAGE_SIZE..range.end / PAGE_SIZE
}

/// The object that a mapping shows.
#[derive(Clone)]
pub enum Target<F> {
    /// Private memory of the space, zeroed at first.
    Private,
    /// A file from this page on, shared: all mappings see stores.
    Shared(F, u64),
    /// A file from this page on, private: stores go to copies.
    Copied(F, u64),
}

/// A memory core on a machine that is never freed.
pub trait Memory: Copy + Send + Sync + 'static {
    /// The calling thread acts as a CPU until this value is dropped.
    type Cpu;
    /// An address space. A CPU must drop it.
    type Space: Send + Sync;
    /// A file.
    type File: Clone + Send + Sync + 'static;
    /// Allocated frames that are freed when the value is dropped.
    type Taken;

    /// Makes the calling thread a CPU. One thread may act as several CPUs.
    fn attach(self, cpu: usize) -> Self::Cpu;

    /// Calls `f` as that CPU.
    fn on<R>(self, cpu: &Self::Cpu, f: impl FnOnce() -> R) -> R;

    /// Lets `cpu` run programs in `space` from now on, with all costs of a running program.
    fn enter(self, cpu: &Self::Cpu, space: &Self::Space);

    /// Makes an empty space.
    fn space(self) -> Result<Self::Space, Failure>;

    /// Makes a file in memory whose pages are all resident.
    fn file(self, pages: u64) -> Result<Self::File, Failure>;

    /// Makes a file whose pages are all resident and clean: a page can be dropped without a write.
    fn stored_file(self, pages: u64) -> Result<Self::File, Failure>;

    /// Maps `target` at a range. Older mappings of the range are removed.
    fn map(self, space: &Self::Space, range: VirtRange, target: Target<Self::File>) -> Result<(), Failure>;

    /// Allows or forbids stores in a range.
    fn protect(self, space: &Self::Space, range: VirtRange, stores: bool) -> Result<(), Failure>;

    /// Unmaps a range.
    fn unmap(self, space: &Self::Space, range: VirtRange) -> Result<(), Failure>;

    /// Handles the fault of an access that found no PTE, or a PTE that forbids it.
    fn fault(self, space: &Self::Space, va: u64, access: Access) -> Result<(), Failure>;

    /// Copies a space, as a fork does.
    fn fork(self, space: &Self::Space) -> Result<Self::Space, Failure>;

    /// Removes pages from a file, and from every space that maps them.
    fn remove(self, file: &Self::File, pages: Range<u64>);

    /// Pages out a clean range of a file: removes it from every space that maps it, and frees the frames.
    fn page_out(self, file: &Self::File, pages: Range<u64>);

    /// The bytes of reverse mapping for the pages that these spaces map. The result may include a constant.
    fn overhead(self, spaces: &[Self::Space]) -> u64;

    /// The number of frames that hold pages of objects.
    fn held(self) -> u64;

    /// Frees pages that became unreachable when a process exited, if the design does this later.
    fn reap(self);

    /// Puts the free frames into random order, if the design keeps them in an order.
    fn shuffle(self);

    /// Allocates `frames` frames one by one and zeroes them.
    fn take_zeroed(self, frames: u64) -> Result<Self::Taken, Failure>;

    /// How often a CPU found a lock held by another CPU. It counts the locks of queue shards if the design has those,
    /// and otherwise all locks.
    fn waits(self) -> u64;
}
