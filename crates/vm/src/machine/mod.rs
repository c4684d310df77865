//! The hardware traits of the core, one trait a file. Dispatch is static: a [`Vm`](crate::Vm) is generic over one
//! [`Machine`]. (The number of the CPU, staying on it and sleeping come from `quire_sync`'s hooks.)
//!
//! This folder owns no state. A machine that breaks the contract of an unsafe trait breaks the core. The traits name
//! [`Physical`](crate::phys::Physical) and [`Obligation`](crate::tlb::flush::Obligation) of higher modules, because
//! page tables get their system as an argument and return the flushes that they owe.

pub(crate) mod bytes;
mod frame_bytes;
mod kernel;
mod phys;
mod pmap;

pub use frame_bytes::{FrameBytes, FrameBytesMut};
pub use kernel::KernelPages;
pub use phys::{PREFETCHED, PREFETCHED_BEFORE, Phys};
pub use pmap::{Enter, Leaf, Pmap, Removed, Table};

/// A machine: accessible RAM, and page tables.
pub trait Machine: Phys + Sized + Send + Sync + 'static {
    /// The page tables of one address space.
    type Pmap: Pmap<Self>;

    /// Number of CPUs, from 1 to [`MAX_CPUS`](quire_sync::cpuset::MAX_CPUS), always the same;
    /// `quire_sync::current_cpu()` of a thread that uses the machine is below it.
    fn cpus(&self) -> usize;

    /// Whether the calling thread is exiting and never runs its program again. Its waits for memory end at once, and it
    /// may use a part of the reserve to exit. Called on slow paths only, where it may sleep.
    fn is_ending(&self) -> bool {
        false
    }

    /// Number of memory domains: parts of RAM, each near to some of the CPUs. At most 128.
    fn domains(&self) -> usize {
        1
    }

    /// The domain that is near to `cpu`, below [`Machine::domains`].
    fn domain_of_cpu(&self, _cpu: usize) -> usize {
        0
    }

    /// The domain of frame `pfn`, below [`Machine::domains`], and a later frame up to which all are of that domain.
    /// Called at boot only.
    fn domain_of_frame(&self, _pfn: crate::types::Pfn) -> (usize, crate::types::Pfn) {
        (0, crate::types::Pfn(u64::MAX))
    }

    /// Whether the allocation that the calling thread makes now fails: for tests of error paths, which count per
    /// thread.
    #[inline(always)]
    fn refuses_allocation(&self) -> bool {
        false
    }

    /// The clock of [`Object::stored`](crate::object::Object::stored), in nanoseconds. The layer above chooses it, for
    /// example the wall clock.
    fn store_time(&self) -> u64 {
        quire_sync::hooks::now()
    }

    /// Whether the running thread ends something, so that it may have the frames below the
    /// [floor](crate::phys::frames::Frames::floor). Called only where the kernel's structures are refused.
    fn ends_something(&self) -> bool {
        true
    }
}
