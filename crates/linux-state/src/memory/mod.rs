//! Linux's address spaces: the map, the heap and the program in it, and the calls that change them.

pub mod image;
pub mod own;
pub mod victim;

use crate::base::line::Line;
use crate::errno::Errno;
use crate::machine::Machine;
use crate::memory::image::Image;
use core::ops::Deref;
pub use own::{Foreign, OwnSpace};
use quire_heap::Arc;
use quire_sync::Mutex;
use quire_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use quire_task::powers::{self, Openness};
use quire_vm::{Space, SpaceRef};

/// The first `core_filter`, as on Linux. Core files hold private and shared anonymous memory, ELF headers and private
/// huge pages.
const CORE_FILTER: u32 = 0x33;

/// The heap (`brk`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Heap {
    /// The address of the heap's first byte. It never changes.
    pub start: u64,
    /// The break: the address after the heap's last byte.
    pub end: u64,
}

/// An address space with its program and heap. The threads of a process share one address space, and CLONE_VM shares it
/// with a child process too. The type is aligned to cache lines, because address spaces that are neighbours in memory
/// are used on different CPUs.
#[repr(C, align(64))]
pub struct AddressSpace<M: Machine> {
    /// The map.
    pub space: SpaceRef<M>,
    /// The program.
    pub image: Arc<Image<M>>,
    /// Whether other processes of the same owner may read this memory. A thread in the space writes this field when it
    /// changes its ids or capabilities.
    dumpable: Openness,
    /// Begins a new cache line. Every fault reads the fields above, and system calls write the fields below.
    _heap: Line,
    /// The heap. The lock is a sleeping lock, because `brk` changes the map while it holds the lock.
    pub heap: Mutex<Heap>,
    /// The kinds of memory barriers for which the program has registered (`membarrier`).
    pub barriers: AtomicU32,
    /// The program disabled large pages (`PR_SET_THP_DISABLE`). Quire has none, so the flag is only stored and
    /// reported.
    pub small_pages: AtomicBool,
    /// The kinds of memory that a core file holds (`coredump_filter`).
    pub core_filter: AtomicU32,
}

impl<M: Machine> Deref for AddressSpace<M> {
    type Target = Space<M>;
    fn deref(&self) -> &Space<M> {
        &self.space
    }
}

impl<M: Machine> AddressSpace<M> {
    /// A space that holds the program `image`.
    pub fn new(space: SpaceRef<M>, heap: Heap, image: Arc<Image<M>>, dumpable: bool) -> Self {
        let (dumpable, heap) = (Openness::new(dumpable), Mutex::new(heap));
        AddressSpace {
            space,
            image,
            dumpable,
            _heap: Line,
            heap,
            barriers: AtomicU32::new(0),
            small_pages: AtomicBool::new(false),
            core_filter: AtomicU32::new(CORE_FILTER),
        }
    }

    /// Whether other processes of the same owner may read this memory.
    pub fn is_dumpable(&self) -> bool {
        self.dumpable.is_open()
    }

    /// The dumpable state, for a thread that changes it. A thread closes the memory before it publishes new ids: see
    /// [`powers`].
    pub fn dumpable(&self) -> &Openness {
        &self.dumpable
    }

    /// A copy-on-write copy of the space, for a forked child.
    pub fn fork(&self) -> Result<Arc<Self>, Errno> {
        let heap = *self.heap.lock();
        let (space, dumpable) = powers::copy(&self.dumpable, || self.space.fork())?;
        let new = AddressSpace::new(space, heap, self.image.clone(), dumpable);
        new.barriers.store(self.barriers.load(Ordering::Relaxed), Ordering::Relaxed);
        new.small_pages.store(self.small_pages.load(Ordering::Relaxed), Ordering::Relaxed);
        new.core_filter.store(self.core_filter.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(Arc::try_new(new)?)
    }
}

/// `value` rounded up to whole pages; `None` if the result overflows.
pub fn page_up(value: u64) -> Option<u64> {
    value.checked_next_multiple_of(quire_vm::PAGE_SIZE)
}
