//! Memory cores behind one trait: production's, one that keeps a record for each mapped page, and one that keeps a backing for each
//! mapping instead, as the source did that replaced the records.

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

/// Parts of the queues and of the free frames after the source of 2011, and since.
pub const PARTS: usize = 256;

/// A value whose memory is not used again in the recording build. There CPUs are one thread, of which each would get what another had
/// freed; kernels keep what a CPU has freed for that one.
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

/// What a mapping shows.
#[derive(Clone)]
pub enum What<F> {
    /// Memory of the space's own, zero at first.
    Private,
    /// A file from one of its pages on: stores are seen by all.
    Shared(F, u64),
    /// The same, stored into in copies of the space's own.
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

    /// Does `f` as that one.
    fn on<R>(self, cpu: &Self::Cpu, f: impl FnOnce() -> R) -> R;

    /// That CPU runs programs in `space` from now on: what it does there costs what it costs programs.
    fn enter(self, cpu: &Self::Cpu, space: &Self::Space);

    /// An empty space.
    fn space(self) -> Result<Self::Space, Failure>;

    /// A file in memory whose pages are all resident.
    fn file(self, pages: u64) -> Result<Self::File, Failure>;

    /// A file whose pages are all resident, and in its store too: a page can go without being written.
    fn stored_file(self, pages: u64) -> Result<Self::File, Failure>;

    /// Maps `what` in a range, in the place of what is there.
    fn map(self, space: &Self::Space, range: VirtRange, what: What<Self::File>) -> Result<(), Failure>;

    /// Allows stores or not.
    fn protect(self, space: &Self::Space, range: VirtRange, stores: bool) -> Result<(), Failure>;

    /// Unmaps a range.
    fn unmap(self, space: &Self::Space, range: VirtRange) -> Result<(), Failure>;

    /// What an access that finds no leaf, or one that does not allow it, makes the kernel do.
    fn fault(self, space: &Self::Space, va: u64, access: Access) -> Result<(), Failure>;

    /// A copy of a space.
    fn fork(self, space: &Self::Space) -> Result<Self::Space, Failure>;

    /// Takes pages out of a file, and out of every space that maps them.
    fn remove(self, file: &Self::File, pages: Range<u64>);

    /// Pages a range of a file out, which has not changed: out of every space that maps it, and the frames go.
    fn page_out(self, file: &Self::File, pages: Range<u64>);

    /// Bytes that reverse mapping holds for the pages that these spaces map, and perhaps more that does not depend on them.
    fn overhead(self, spaces: &[Self::Space]) -> u64;

    /// Frames that hold pages of objects.
    fn held(self) -> u64;

    /// Looks for pages that nobody can reach since somebody left, where the design does.
    fn reap(self);

    /// Mixes the free frames, where they have come into an order.
    fn shuffle(self);

    /// So many frames, taken one by one and zeroed.
    fn take_zeroed(self, frames: u64) -> Result<Self::Taken, Failure>;

    /// How often a CPU has found a lock held by another one, so far: of a part of the queues, where a design has those, else any.
    fn waits(self) -> u64;
}
