//! The hardware traits of the core, one trait a file. Dispatch is static: a [`Vm`](crate::Vm) is generic over one
//! [`Machine`]. (The hooks of `quire_sync` supply the number of the CPU, the disabling of preemption, and sleep.)
//!
//! This folder owns no state. A machine that breaks the contract of an unsafe trait breaks the core's memory safety.
//! The traits use two types of higher modules, [`Physical`](crate::phys::Physical) and
//! [`Obligation`](crate::tlb::flush::Obligation). Page tables get their system as an argument, and return the flushes
//! that they owe.

pub(crate) mod bytes;
mod direct;
mod frame_bytes;
mod kernel;
mod phys;
mod pmap;

pub use direct::DirectMap;
pub use frame_bytes::{FrameBytes, FrameBytesMut};
pub use kernel::KernelPages;
pub use phys::{PREFETCHED, PREFETCHED_BEFORE, Phys};
pub use pmap::{Count, Enter, Leaf, Pmap, Removed, Table};

/// On whose behalf a thread allocates. It decides how much of the [reserve](crate::phys::frames::Frames::reserve) the
/// thread may use. So the programs of a user cannot take the memory with which an administrator ends them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// A program. Its data and the kernel's structures for it use no part of the reserve.
    Program,
    /// A program of the administrator. Its data may use the upper quarter of the reserve. The kernel's structures for
    /// it may use the upper half.
    Administrator,
    /// The system itself. Data uses no part of the reserve. The kernel's structures may use the upper half.
    System,
}

/// A machine: accessible RAM, and page tables.
pub trait Machine: Phys + Sized + Send + Sync + 'static {
    /// The page tables of one address space.
    type Pmap: Pmap<Self>;

    /// Number of CPUs, from 1 to [`MAX_CPUS`](quire_sync::cpuset::MAX_CPUS). It never changes. In a thread that uses
    /// the machine, `quire_sync::current_cpu()` is below this number.
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

    /// The domain of frame `pfn`, below [`Machine::domains`], and the end of a range of frames from `pfn` on. All
    /// frames of the range are in this domain. Called at boot only.
    fn domain_of_frame(&self, _pfn: crate::types::Pfn) -> (usize, crate::types::Pfn) {
        (0, crate::types::Pfn(u64::MAX))
    }

    /// Whether the present allocation of the calling thread shall fail. For tests of error paths, which count each
    /// thread's allocations.
    #[inline(always)]
    fn refuses_allocation(&self) -> bool {
        false
    }

    /// The time for [`Object::stored`](crate::object::Object::stored), in nanoseconds. The layer above chooses the
    /// clock, for example the wall clock.
    fn store_time(&self) -> u64 {
        quire_sync::hooks::now()
    }

    /// On whose behalf the running thread allocates. Called only where an allocation is refused.
    fn standing(&self) -> Standing {
        Standing::System
    }

    /// Whether the running thread is in an operation that ends something, so that it may allocate frames below the
    /// [floor](crate::phys::frames::Frames::floor). Called only after an allocation of a kernel structure was refused.
    fn ends_something(&self) -> bool {
        true
    }
}
