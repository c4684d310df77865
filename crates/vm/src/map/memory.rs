//! The memory for the structures of maps.

use super::arena::Arena;
use super::entry::Entry;
use super::kernel::Region;
use super::space::Space;
use super::tree::{NodeAlloc, NodeSize};
use crate::error::OutOfMemory;
use crate::machine::Machine;
use crate::map::arena::arenas::Fan;
use crate::map::maps::Maps;
use crate::map::space::commit::{CommitCharge, Posts};
use crate::map::space::spaces::Spaces;
use crate::phys::boot::BootMemory;
use crate::phys::slab::{Cache, Slab};
use core::alloc::Layout;
use core::ptr::NonNull;
use quire_sync::atomic::{AtomicU64, Ordering};
use quire_sync::epoch::Retired;
use quire_sync::{PerCpu, preempt_off};

/// The fan-out of a map's tree. A leaf has five cache lines, and a frame has twelve leaves. A larger fan-out makes
/// copies of leaves more expensive, a smaller one makes the tree deeper. `./quire bench mapper_misses` counts the cache
/// misses. Of 8, 11, 14 and 15, the fan-out 11 had the fewest.
pub const FAN_OUT: usize = 11;

/// The slabs of all maps of a system.
pub struct MapMemory<M: Machine> {
    pub(super) entries: Slab<Entry<M>>,
    pub(super) spaces: Slab<Space<M>>,
    pub(super) arenas: Slab<Arena<M>>,
    pub(super) fans: Slab<Fan<M>>,
    pub(super) regions: Slab<Region>,
    leaves: Cache,
    inner: Cache,
    /// All spaces.
    pub(super) all: Spaces<M>,
    /// The commit charge: writable private memory of all spaces.
    commit_charge: CommitCharge,
    /// The number of ids that each CPU has given to spaces. Ids are never reused.
    ids: PerCpu<AtomicU64>,
}

impl<M: Machine> MapMemory<M> {
    pub(crate) fn new(boot: &mut BootMemory<'_, impl Machine>) -> Self {
        let node = |size| {
            let bytes = super::tree::node_bytes::<Nodes<M>, FAN_OUT>(size);
            Layout::from_size_align(bytes, super::tree::NODE_ALIGN).unwrap_or(Layout::new::<u64>())
        };
        let burst = boot.burst;
        MapMemory {
            entries: Slab::new("map-entry", boot).deferred(burst),
            spaces: Slab::new("space", boot),
            arenas: Slab::new("map-arena", boot),
            fans: Slab::new("map-arenas", boot),
            regions: Slab::new("kernel-range", boot),
            leaves: Cache::new("map-leaf", node(NodeSize::Leaf), boot).deferred(burst),
            inner: Cache::new("map-inner", node(NodeSize::Inner), boot).deferred(burst),
            all: Spaces::new(boot),
            commit_charge: CommitCharge::new(boot.per_cpu(|_| Posts::new())),
            ids: boot.per_cpu(|_| AtomicU64::new(0)),
        }
    }

    /// A new space's id. Each CPU counts for itself, and the ids of different CPUs are interleaved. So making a space
    /// writes no shared cache line.
    pub(super) fn new_id(&self) -> u64 {
        let cpu = preempt_off();
        let given = self.ids.mine(&cpu);
        let n = given.load(Ordering::Relaxed) + 1;
        given.store(n, Ordering::Relaxed);
        n * self.ids.len() as u64 + cpu.cpu() as u64
    }

    /// The bytes that a leaf and an inner node of a tree use, with their share of the slabs' waste.
    pub(super) fn node_shares(&self) -> (u64, u64) {
        (self.leaves.share(), self.inner.share())
    }

    /// The commit charge, and its limit.
    pub fn commit_charge(&self) -> &CommitCharge {
        &self.commit_charge
    }

    /// All slabs, for tools that report their labels and counts.
    pub fn caches(&self) -> [&Cache; 7] {
        [
            self.entries.cache(),
            self.spaces.cache(),
            self.arenas.cache(),
            self.fans.cache(),
            self.regions.cache(),
            &self.leaves,
            &self.inner,
        ]
    }
}

/// The allocator of tree nodes: the slabs of a system.
pub(super) struct Nodes<M: Machine>(pub &'static Maps<M>);

impl<M: Machine> Clone for Nodes<M> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<M: Machine> Copy for Nodes<M> {}

impl<M: Machine> Nodes<M> {
    fn cache(self, size: NodeSize) -> &'static Cache {
        match size {
            NodeSize::Leaf => &self.0.map_memory().leaves,
            NodeSize::Inner => &self.0.map_memory().inner,
        }
    }
}

// SAFETY: the caches are made for the sizes and the alignment that the tree requires.
unsafe impl<M: Machine> NodeAlloc for Nodes<M> {
    fn alloc(self, size: NodeSize, bytes: usize) -> Result<NonNull<u8>, OutOfMemory> {
        debug_assert!(self.cache(size).object_size() >= bytes);
        self.cache(size).alloc(self.0)
    }
    unsafe fn free(self, node: NonNull<u8>, size: NodeSize, _bytes: usize) {
        // SAFETY: the node came from `alloc` with this size, hence from this cache: the contract of `NodeAlloc::free`.
        unsafe { self.cache(size).free(self.0, node) }
    }
    unsafe fn retire(self, node: *mut Retired, free: unsafe fn(*mut Retired)) {
        // SAFETY: no new reader can reach the node, and it is retired once: the contract of `NodeAlloc::retire`.
        unsafe { self.0.epoch().retire(node, free) }
    }
}
