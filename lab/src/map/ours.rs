//! Production's tree of map entries, driven as `quire_vm::map` drives it. An operation finds its entries, prepares the
//! pieces that replace them, and commits by one swap. Entries are immutable records outside the tree. Replaced entries
//! are retired through an epoch (RCU).

use super::{AddressMap, MapFootprint, MapRange, Taken};
use quire_sync::PerCpu;
use quire_sync::epoch::{Domain, Retired, Slot};
use quire_sync::record;
use quire_vm::OutOfMemory;
use quire_vm::map::tree::{Item, NodeAlloc, NodeSize, Owner, Tree};
use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::{self, NonNull};

/// The fan-out of production's maps.
const FAN_OUT: usize = quire_vm::map::FAN_OUT;

/// The data of an entry, outside the tree. It takes one cache line, the least that production's entries take.
#[repr(C, align(64))]
struct Record {
    retired: Retired,
    shared: *const Shared,
    held: MapRange,
}

/// A pool of objects of one size, carved from large chunks. The object that was freed last is allocated next.
struct Pool {
    layout: Layout,
    free: Cell<*mut u8>,
    /// The number of objects in use.
    out: Cell<usize>,
    /// The unused rest of the last chunk: its address, and its bytes.
    fresh: Cell<(*mut u8, usize)>,
    chunks: Cell<Vec<*mut u8>>,
}

const CHUNK: Layout = match Layout::from_size_align(1 << 20, 4096) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

impl Pool {
    fn new(bytes: usize, align: usize) -> Self {
        let layout = Layout::from_size_align(bytes, align).expect("sizes of nodes").pad_to_align();
        Pool {
            layout,
            free: Cell::new(ptr::null_mut()),
            out: Cell::new(0),
            fresh: Cell::new((ptr::null_mut(), 0)),
            chunks: Cell::default(),
        }
    }

    fn alloc(&self) -> Option<NonNull<u8>> {
        let free = self.free.get();
        if !free.is_null() {
            // SAFETY: the first word of a free object is the address of the next free object.
            self.free.set(unsafe { *free.cast::<*mut u8>() });
            self.out.set(self.out.get() + 1);
            return NonNull::new(free);
        }
        let (mut at, mut left) = self.fresh.get();
        if left < self.layout.size() {
            // SAFETY: the layout's size is not zero.
            at = unsafe { std::alloc::alloc(CHUNK) };
            if at.is_null() {
                return None;
            }
            left = CHUNK.size();
            let mut chunks = self.chunks.take();
            chunks.push(at);
            self.chunks.set(chunks);
        }
        self.fresh.set((at.wrapping_add(self.layout.size()), left - self.layout.size()));
        self.out.set(self.out.get() + 1);
        NonNull::new(at)
    }

    /// # Safety
    /// `object` came from `alloc` of this pool, and nothing uses it.
    unsafe fn free(&self, object: *mut u8) {
        // SAFETY: `object` came from `alloc`, which gives room for a pointer, and it is used no more.
        unsafe { *object.cast::<*mut u8>() = self.free.get() };
        self.free.set(object);
        self.out.set(self.out.get() - 1);
    }

    /// Bytes of the objects in use.
    fn bytes(&self) -> usize {
        self.out.get() * self.layout.size()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for chunk in self.chunks.take() {
            // SAFETY: the chunk was allocated with this layout, and its objects have no users any more.
            unsafe { std::alloc::dealloc(chunk, CHUNK) };
        }
    }
}

/// The allocators of nodes and records, and the epoch domain through which they are retired.
struct Shared {
    domain: Domain,
    slots: (*mut u8, Layout),
    leaves: Pool,
    inner: Pool,
    records: Pool,
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: `Ours::new` allocated the slots with this layout, and the domain is used no more.
        unsafe { std::alloc::dealloc(self.slots.0, self.slots.1) };
    }
}

/// The node allocator of the tree, which takes nodes from the pools.
#[derive(Clone, Copy)]
struct Nodes(&'static Shared);

impl Nodes {
    fn pool(self, size: NodeSize) -> &'static Pool {
        match size {
            NodeSize::Leaf => &self.0.leaves,
            NodeSize::Inner => &self.0.inner,
        }
    }
}

// SAFETY: the pools return memory of the requested size, and only one thread uses them.
unsafe impl NodeAlloc for Nodes {
    fn alloc(self, size: NodeSize, bytes: usize) -> Result<NonNull<u8>, OutOfMemory> {
        debug_assert!(bytes <= self.pool(size).layout.size());
        self.pool(size).alloc().ok_or(OutOfMemory)
    }
    unsafe fn free(self, node: NonNull<u8>, size: NodeSize, _bytes: usize) {
        // SAFETY: the tree frees each node once, a node that this pool allocated, and no reader can reach it.
        unsafe { self.pool(size).free(node.as_ptr()) }
    }
    unsafe fn retire(self, node: *mut Retired, free: unsafe fn(*mut Retired)) {
        // SAFETY: the tree retires each node once, and no new reader can reach it.
        unsafe { self.0.domain.retire(node, free) }
    }
}

/// Production's tree as an [`AddressMap`], with production's fan-out or another.
pub struct Ours<const F: usize = FAN_OUT> {
    tree: Tree<Record, Nodes, F>,
    owner: Owner,
    shared: &'static Shared,
    /// The items that an operation replaces, and their replacements. The vectors are kept, so that operations do not
    /// allocate.
    old: Vec<Item<Record>>,
    new: Vec<MapRange>,
}

impl<const F: usize> Default for Ours<F> {
    fn default() -> Self {
        Self::new()
    }
}

impl<const F: usize> Ours<F> {
    /// An empty map.
    pub fn new() -> Self {
        use quire_sync::hooks::threads;
        use quire_vm::map::tree::{NODE_ALIGN, node_bytes};
        // One thread uses the map, so that thread is its only CPU.
        if quire_sync::current_cpu() == threads::NO_CPU {
            threads::set_cpu(0);
        }
        let layout = Layout::from_size_align(PerCpu::<Slot>::bytes(1), 128).expect("slots of one CPU");
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { std::alloc::alloc(layout) };
        let at = NonNull::new(memory).expect("memory for a slot");
        // SAFETY: the memory has the size and alignment that `PerCpu` requires, and it is freed after the domain.
        let slots = unsafe { PerCpu::new(at, 1, |_| Slot::new()) };
        let shared: &'static Shared = Box::leak(Box::new(Shared {
            domain: Domain::new(slots),
            slots: (memory, layout),
            leaves: Pool::new(node_bytes::<Nodes, F>(NodeSize::Leaf), NODE_ALIGN),
            inner: Pool::new(node_bytes::<Nodes, F>(NodeSize::Inner), NODE_ALIGN),
            records: Pool::new(size_of::<Record>(), align_of::<Record>()),
        }));
        let (tree, owner) = Tree::new(Nodes(shared));
        Ours { tree, owner, shared, old: Vec::new(), new: Vec::new() }
    }

    fn held(item: &Item<Record>) -> MapRange {
        record::read(item.value.as_ptr());
        // SAFETY: the record of an item lives as long as the item is in the tree.
        unsafe { item.value.as_ref() }.held
    }

    fn record(shared: &'static Shared, held: MapRange) -> NonNull<Record> {
        let at = shared.records.alloc().expect("memory for a record").cast::<Record>();
        record::wrote(at.as_ptr());
        // SAFETY: `at` is fresh memory with room for a record.
        unsafe { at.write(Record { retired: Retired::new(), shared, held }) };
        at
    }

    /// Replaces `self.old` by `self.new`.
    fn replace(&mut self) {
        let ends = |first: Option<(u64, u64)>, last: Option<(u64, u64)>| Some((first?.0, last?.1));
        let old = ends(self.old.first().map(|i| (i.start, i.end)), self.old.last().map(|i| (i.start, i.end)));
        let new = ends(self.new.first().map(|h| (h.start, h.end)), self.new.last().map(|h| (h.start, h.end)));
        let Some((lo, hi)) = old.or(new) else { return };
        let (lo, hi) = new.map_or((lo, hi), |n| (lo.min(n.0), hi.max(n.1)));
        let new = std::mem::take(&mut self.new);
        let shared = self.shared;
        let items = new.iter().map(|h| Item { start: h.start, end: h.end, value: Self::record(shared, *h) });
        let change = self.tree.prepare(&mut self.owner, lo, hi, new.len(), items).expect("memory for nodes");
        self.tree.commit(&mut self.owner, change);
        self.new = new;
        self.new.clear();
        for item in self.old.drain(..) {
            unsafe fn free(retired: *mut Retired) {
                let record = retired.cast::<Record>();
                // SAFETY: the header is the first field of a record, and no reader holds the record any more.
                unsafe { (*(*record).shared).records.free(record.cast()) }
            }
            // SAFETY: the record is out of the tree since the commit, and it is retired once.
            unsafe { self.shared.domain.retire(item.value.as_ptr().cast(), free) };
        }
    }

    /// Adds a piece to `self.new`. A piece that continues the previous one with the same rights is joined to it.
    fn push(&mut self, piece: MapRange) {
        match self.new.last_mut() {
            Some(last) if last.end == piece.start && last.prot == piece.prot => last.end = piece.end,
            _ => self.new.push(piece),
        }
    }

    /// The item that ends exactly at `start`, if there is one.
    fn touching_before(&self, known: Option<Item<Record>>, start: u64) -> Option<Item<Record>> {
        // SAFETY: the map is used by one thread, so the tree does not change while it is read.
        known.or_else(|| unsafe { self.tree.before(start) }).filter(|i| i.end == start)
    }

    /// Does [`AddressMap::first_fit`], and also returns the number of visited nodes.
    pub fn first_fit_visits(&self, len: u64, align: u64, lo: u64, hi: u64) -> (Option<u64>, u64) {
        self.tree.first_fit_visits(&self.owner, len, align, lo, hi)
    }

    /// The end of the last range that begins before `at`, but at most `at`; 0 if there is none.
    pub fn end_before(&self, at: u64) -> u64 {
        // SAFETY: the map is used by one thread, so the tree does not change while it is read.
        unsafe { self.tree.before(at) }.map_or(0, |i| i.end.min(at))
    }
}

impl<const F: usize> AddressMap for Ours<F> {
    fn lookup(&mut self, at: u64) -> Option<MapRange> {
        let _pin = self.shared.domain.pin();
        // SAFETY: the domain is pinned, so nodes that the lookup reaches are not freed before it ends.
        unsafe { self.tree.get(at) }.map(|item| Self::held(&item))
    }

    fn insert(&mut self, start: u64, end: u64, prot: u32) -> Result<(), Taken> {
        // SAFETY: the map is used by one thread, so the tree does not change while the cursor is used.
        let mut cursor = unsafe { self.tree.cursor(start) };
        let before = cursor.before();
        let next = cursor.next();
        if next.is_some_and(|n| n.start < end) {
            return Err(Taken);
        }
        if let Some(i) = self.touching_before(before, start).filter(|i| Self::held(i).prot == prot) {
            self.old.push(i);
            self.push(Self::held(&i));
        }
        self.push(MapRange { start, end, prot });
        if let Some(i) = next.filter(|n| n.start == end).filter(|i| Self::held(i).prot == prot) {
            self.old.push(i);
            self.push(Self::held(&i));
        }
        self.replace();
        Ok(())
    }

    fn remove(&mut self, start: u64, end: u64) {
        // SAFETY: the map is used by one thread, so the tree does not change while the cursor is used.
        let cursor = unsafe { self.tree.cursor(start) };
        self.old.extend(cursor.take_while(|i| i.start < end));
        if let Some(first) = self.old.first().filter(|i| i.start < start).map(Self::held) {
            self.new.push(MapRange { end: start, ..first });
        }
        if let Some(last) = self.old.last().filter(|i| i.end > end).map(Self::held) {
            self.new.push(MapRange { start: end, ..last });
        }
        self.replace();
    }

    fn protect(&mut self, start: u64, end: u64, prot: u32) {
        // SAFETY: the map is used by one thread, so the tree does not change while the cursor is used.
        let mut cursor = unsafe { self.tree.cursor(start) };
        let before = cursor.before();
        let mut next = cursor.next();
        let (mut changes, mut inside) = (false, Vec::new());
        std::mem::swap(&mut inside, &mut self.old);
        while let Some(item) = next.filter(|i| i.start < end) {
            changes |= Self::held(&item).prot != prot;
            inside.push(item);
            next = cursor.next();
        }
        if !changes {
            inside.clear();
            self.old = inside;
            return;
        }
        let first = inside[0];
        if first.start >= start
            && let Some(i) = self.touching_before(before, first.start)
        {
            inside.insert(0, i);
        }
        if inside.last().is_some_and(|l| next.is_some_and(|n| l.end <= end && l.end == n.start)) {
            inside.extend(next);
        }
        for item in &inside {
            let held = Self::held(item);
            let (from, to) = (held.start.max(start), held.end.min(end));
            if from >= to {
                self.push(held);
                continue;
            }
            if held.start < from {
                self.push(MapRange { end: from, ..held });
            }
            self.push(MapRange { start: from, end: to, prot });
            if held.end > to {
                self.push(MapRange { start: to, ..held });
            }
        }
        self.old = inside;
        self.replace();
    }

    fn first_fit(&mut self, len: u64, align: u64, lo: u64, hi: u64) -> Option<u64> {
        self.tree.first_fit(&self.owner, len, align, lo, hi)
    }

    fn all(&self) -> Vec<MapRange> {
        // SAFETY: the map is used by one thread, so the tree does not change while the cursor is used.
        unsafe { self.tree.cursor(0) }.map(|i| Self::held(&i)).collect()
    }

    fn kept(&self) -> Option<MapFootprint> {
        // Retired entries are freed first, because they are not part of the map.
        self.shared.domain.drain();
        let Shared { leaves, inner, records, .. } = self.shared;
        let bytes = leaves.bytes() + inner.bytes() + records.bytes();
        Some(MapFootprint { nodes: leaves.out.get() + inner.out.get(), bytes })
    }

    fn check(&self) -> Result<(), String> {
        self.tree.check(&self.owner).map_err(|e| format!("{e:?}"))?;
        // SAFETY: the map is used by one thread, so the tree does not change while the cursor is used.
        let odd = unsafe { self.tree.cursor(0) }.find(|i| (i.start, i.end) != (Self::held(i).start, Self::held(i).end));
        odd.map_or(Ok(()), |i| Err(format!("{:#x}..{:#x} has another entry's record", i.start, i.end)))
    }
}

impl<const F: usize> Drop for Ours<F> {
    fn drop(&mut self) {
        // Records need no drop of their own, because their pool frees their memory. Retired records must be freed
        // before the pools.
        self.shared.domain.drain();
        // SAFETY: `self` is the only user of the tree and of its shared parts, and both end here.
        unsafe {
            self.tree.free_all();
            drop(Box::from_raw(ptr::from_ref(self.shared).cast_mut()));
        }
    }
}
