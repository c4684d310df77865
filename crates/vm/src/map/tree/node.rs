//! Nodes, their memory, and paths through them.

use super::Item;
use crate::error::OutOfMemory;
use core::cell::Cell;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};
use quire_sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use quire_sync::epoch::Retired;
use quire_sync::record;

/// The two sizes of node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NodeSize {
    /// A leaf.
    Leaf,
    /// An inner node.
    Inner,
}

/// The allocator of a tree's nodes. Each node stores a copy of it, so that the epoch can free the node.
///
/// # Safety
/// `alloc` returns `bytes` bytes, aligned to [`NODE_ALIGN`], that no other code uses.
pub unsafe trait NodeAlloc: Copy + 'static {
    /// Memory for a node of `bytes` bytes.
    fn alloc(self, size: NodeSize, bytes: usize) -> Result<NonNull<u8>, OutOfMemory>;

    /// Frees a node at once, without the epoch.
    ///
    /// # Safety
    /// `node` came from `alloc` with the same `size` and `bytes`, and is not used any more.
    unsafe fn free(self, node: NonNull<u8>, size: NodeSize, bytes: usize);

    /// Calls `free` with `node` once no reader can hold the node. `node` points to the [`Retired`] field of the node.
    ///
    /// # Safety
    /// As [`quire_sync::epoch::Domain::retire`].
    unsafe fn retire(self, node: *mut Retired, free: unsafe fn(*mut Retired));
}

/// The most levels of a tree. They hold 2^22 items even if each node has only three slots, the fewest. That suffices
/// for the kernel's map, which has an item for each thread's stack. Nodes filled at random hold 2^42 items and more. A
/// change that needs more levels fails with [`OutOfMemory`].
pub(super) const MAX_LEVELS: usize = 14;

/// A leaf, or the part of an inner node that a leaf has too.
///
/// A node begins on a cache line, and each pointer is stored beside its start. So a descent reads one or two cache
/// lines of a node. Ends and gaps are on other lines, because most changes of a child do not change its ends.
#[repr(C, align(64))]
pub(super) struct TreeNode<A: NodeAlloc, const F: usize> {
    /// 0 for a leaf. Never changes.
    pub level: u8,
    /// Number of slots in use. Fixed once the node is reachable.
    len: Cell<u8>,
    /// The starts and pointers. All arrays of this struct are initialised below index `len`. The starts from `len` on
    /// are [`BEYOND`].
    keys: [Key; F],
    /// The end of each slot, one past its last address. In an inner node only the writer uses the ends. In a leaf the
    /// ends are fixed once the leaf is reachable.
    ends: [MaybeUninit<Cell<u64>>; F],
    /// Used by the epoch once the node is retired.
    retired: Retired,
    alloc: A,
    /// The next node on a list of the writer: nodes being built, or nodes to be retired. Readers never read this.
    pub link: Cell<*mut TreeNode<A, F>>,
}

/// The start of a slot that is not in use. A search compares with all slots, used or not. No range starts at this
/// address, because no range is empty.
const BEYOND: u64 = u64::MAX;

/// The start address of a slot, and the child or value in the slot.
#[repr(C)]
struct Key {
    /// In an inner node the start may rise in place (see the tree's module). In a leaf the start is fixed once the leaf
    /// is reachable.
    start: MaybeUninit<AtomicU64>,
    /// A child in an inner node, a value in a leaf. One store replaces it.
    slot: MaybeUninit<AtomicPtr<()>>,
}

/// An inner node: a leaf's fields, and the gaps.
#[repr(C)]
struct Inner<A: NodeAlloc, const F: usize> {
    node: TreeNode<A, F>,
    /// The largest hole below each child. Only the writer uses the gaps.
    gaps: [MaybeUninit<Cell<u64>>; F],
}

/// The alignment of a node in bytes: one cache line.
pub const NODE_ALIGN: usize = 64;

/// The size of a node in bytes.
pub const fn node_bytes<A: NodeAlloc, const F: usize>(size: NodeSize) -> usize {
    match size {
        NodeSize::Leaf => size_of::<TreeNode<A, F>>(),
        NodeSize::Inner => size_of::<Inner<A, F>>(),
    }
}

/// The triple of a node: first address, end of the last item, largest gap. The node's parent stores it (see the tree's
/// module).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Summary {
    pub first: u64,
    pub last: u64,
    pub gap: u64,
}

impl<A: NodeAlloc, const F: usize> TreeNode<A, F> {
    fn size(level: u8) -> (NodeSize, usize) {
        let size = if level == 0 { NodeSize::Leaf } else { NodeSize::Inner };
        (size, node_bytes::<A, F>(size))
    }

    /// An empty node that no other thread can reach yet.
    pub fn new(alloc: A, level: u8) -> Result<*mut Self, OutOfMemory> {
        let (size, bytes) = Self::size(level);
        let node = alloc.alloc(size, bytes)?.cast::<TreeNode<A, F>>().as_ptr();
        record::wrote(node);
        // SAFETY: the memory is new and large enough. The arrays may stay uninitialised, except the starts, with which
        // a search compares. `push` writes a slot before `len` makes it readable.
        unsafe {
            for key in &mut (*node).keys {
                key.start.write(AtomicU64::new(BEYOND));
            }
            (&raw mut (*node).retired).write(Retired::new());
            (&raw mut (*node).alloc).write(alloc);
            (&raw mut (*node).link).write(Cell::new(ptr::null_mut()));
            (&raw mut (*node).level).write(level);
            (&raw mut (*node).len).write(Cell::new(0));
        }
        Ok(node)
    }

    /// Frees a node that no other thread can reach.
    ///
    /// # Safety
    /// `node` came from [`TreeNode::new`], the caller alone can reach it, and it is freed once.
    pub unsafe fn free(node: *mut Self) {
        // SAFETY: by this function's contract.
        unsafe {
            let (alloc, (size, bytes)) = ((*node).alloc, Self::size((*node).level));
            alloc.free(NonNull::new_unchecked(node.cast()), size, bytes);
        }
    }

    /// Frees a node and all below it.
    ///
    /// # Safety
    /// The caller alone can reach the node and the nodes below it, and each is freed once.
    pub unsafe fn free_subtree(node: *mut Self) {
        // SAFETY: by this function's contract.
        unsafe {
            if (*node).level > 0 {
                for i in 0..(*node).len() {
                    Self::free_subtree((*node).child(i));
                }
            }
            Self::free(node);
        }
    }

    /// Retires a node that readers may still hold.
    ///
    /// # Safety
    /// No new reader can reach `node`, and it is retired once.
    pub unsafe fn retire(node: *mut Self) {
        // There is one function for each size, so that the function need not read `level` on the node's first cache
        // line.
        unsafe fn free<A: NodeAlloc, const F: usize, const LEAF: bool>(retired: *mut Retired) {
            // SAFETY: `retired` is a node's field; no reader is left.
            unsafe {
                let node: *mut TreeNode<A, F> = retired.byte_sub(core::mem::offset_of!(TreeNode<A, F>, retired)).cast();
                let (size, bytes) = TreeNode::<A, F>::size(u8::from(!LEAF));
                (*node).alloc.free(NonNull::new_unchecked(node.cast()), size, bytes);
            }
        }
        // SAFETY: by this function's contract.
        unsafe {
            let (alloc, leaf) = ((*node).alloc, (*node).level == 0);
            let free = if leaf { free::<A, F, true> } else { free::<A, F, false> };
            alloc.retire(&raw mut (*node).retired, free);
        }
    }

    #[inline(always)]
    pub fn len(&self) -> usize {
        record::read(&self.len);
        self.len.get() as usize
    }
    #[inline(always)]
    pub fn start(&self, i: usize) -> u64 {
        debug_assert!(i < self.len());
        // SAFETY: slots below `len` are initialised, and callers ask for no others.
        unsafe { self.keys.get_unchecked(i).start.assume_init_ref() }.load(Ordering::Relaxed)
    }
    #[inline(always)]
    pub fn end(&self, i: usize) -> u64 {
        debug_assert!(i < self.len());
        record::read(&self.ends[i]);
        // SAFETY: ends below `len` are initialised, and callers ask for no others.
        unsafe { self.ends.get_unchecked(i).assume_init_ref() }.get()
    }
    #[inline(always)]
    pub fn slot(&self, i: usize) -> *mut () {
        debug_assert!(i < self.len());
        // SAFETY: pointers below `len` are initialised, and callers ask for no others.
        unsafe { self.keys.get_unchecked(i).slot.assume_init_ref() }.load(Ordering::Acquire)
    }
    #[inline(always)]
    pub fn child(&self, i: usize) -> *mut TreeNode<A, F> {
        self.slot(i).cast()
    }
    #[inline(always)]
    pub fn item<T>(&self, i: usize) -> Item<T> {
        // SAFETY: a leaf's slots hold values, which came from `Item`s and so are not null.
        let value = unsafe { NonNull::new_unchecked(self.slot(i).cast()) };
        Item { start: self.start(i), end: self.end(i), value }
    }

    /// The index of the child to descend to for `at`: the last child that starts at or before `at`, else 0.
    #[inline(always)]
    pub fn route(&self, at: u64) -> usize {
        self.count_starting_at_or_before(at).saturating_sub(1)
    }

    /// Number of slots that start at or before `at`. The binary search runs the same steps for any content, so that no
    /// step depends on a branch or on `len`.
    #[inline(always)]
    pub fn count_starting_at_or_before(&self, at: u64) -> usize {
        let top = const { 1 << F.ilog2() };
        let at = at.min(BEYOND - 1);
        // The number of remaining slots is always one less than a power of two.
        let mut base = if self.start_or_beyond(top - 1) <= at { F + 1 - top } else { 0 };
        let mut half = top / 2;
        while half > 0 {
            base += if self.start_or_beyond(base + half - 1) <= at { half } else { 0 };
            half /= 2;
        }
        base
    }

    /// The start of slot `i`, which is below `F`. [`BEYOND`] if the slot is not in use.
    #[inline(always)]
    fn start_or_beyond(&self, i: usize) -> u64 {
        debug_assert!(i < F);
        // SAFETY: every node is made with all its starts written, and callers ask for no `i` beyond the array.
        unsafe { self.keys.get_unchecked(i).start.assume_init_ref() }.load(Ordering::Relaxed)
    }

    /// The leaf for `at`, and the first address that belongs to a leaf further right (`u64::MAX` if there is none).
    ///
    /// # Safety
    /// `root` and the nodes reachable from it stay alive.
    #[inline]
    pub unsafe fn leaf_for(root: *mut Self, at: u64) -> (*mut Self, u64) {
        let (mut node, mut bound) = (root, u64::MAX);
        // SAFETY: by this function's contract.
        unsafe {
            while (*node).level > 0 {
                let n = &*node;
                let i = n.route(at);
                if i + 1 < n.len() {
                    bound = n.start(i + 1);
                }
                node = n.child(i);
            }
        }
        (node, bound)
    }

    /// The gap below child `i`; 0 in a leaf.
    ///
    /// # Safety
    /// `this` is a live node with all its memory behind the pointer, `i` is below its length; the caller is the writer.
    #[inline(always)]
    pub unsafe fn gap(this: *mut Self, i: usize) -> u64 {
        // SAFETY: by this function's contract; nodes above level 0 were allocated as `Inner`, whose first field is the
        // `TreeNode`.
        unsafe { if (*this).level == 0 { 0 } else { (*this.cast::<Inner<A, F>>()).gaps[i].assume_init_ref().get() } }
    }

    /// Appends a slot to a node that is being built. A leaf ignores `gap`.
    ///
    /// # Safety
    /// As [`TreeNode::gap`]; no other thread can reach the node, and it is not full.
    #[inline]
    pub unsafe fn push(this: *mut Self, start: u64, end: u64, slot: *mut (), gap: u64) {
        // SAFETY: by this function's contract.
        unsafe {
            let i = (*this).len();
            debug_assert!(i < F);
            debug_assert!(i == 0 || (*this).end(i - 1) <= start, "T1: ranges ascend");
            record::wrote(&raw const (*this).keys[i]);
            record::wrote(&raw const (*this).ends[i]);
            (*this).keys[i].start.write(AtomicU64::new(start));
            (*this).ends[i].write(Cell::new(end));
            (*this).keys[i].slot.write(AtomicPtr::new(slot));
            if (*this).level > 0 {
                (*this.cast::<Inner<A, F>>()).gaps[i].write(Cell::new(gap));
            }
            (*this).len.set(i as u8 + 1);
        }
    }

    /// Appends slots `range` of `from`, a node of the same level, to a node that is being built.
    ///
    /// # Safety
    /// As [`TreeNode::push`], for each appended slot.
    pub unsafe fn append(this: *mut Self, from: *mut Self, range: core::ops::Range<usize>) {
        // SAFETY: by this function's contract. only the writer changes the copied arrays, so plain copies suffice. The
        // arrays of the two nodes do not overlap.
        unsafe {
            let (at, n) = ((*this).len(), range.len());
            record::read(from);
            record::wrote(this);
            debug_assert!(at + n <= F && range.end <= (*from).len());
            // The atomics of loom and shuttle are not plain words, so they cannot be copied bytewise.
            if cfg!(any(loom, shuttle)) {
                for i in range {
                    let gap = TreeNode::gap(from, i);
                    TreeNode::push(this, (*from).start(i), (*from).end(i), (*from).slot(i), gap);
                }
                return;
            }
            ptr::copy_nonoverlapping(
                (&raw const (*from).keys).cast::<Key>().add(range.start),
                (&raw mut (*this).keys).cast::<Key>().add(at),
                n,
            );
            ptr::copy_nonoverlapping(
                (&raw const (*from).ends).cast::<u64>().add(range.start),
                (&raw mut (*this).ends).cast::<u64>().add(at),
                n,
            );
            if (*this).level > 0 {
                ptr::copy_nonoverlapping(
                    (&raw const (*from.cast::<Inner<A, F>>()).gaps).cast::<u64>().add(range.start),
                    (&raw mut (*this.cast::<Inner<A, F>>()).gaps).cast::<u64>().add(at),
                    n,
                );
            }
            (*this).len.set((at + n) as u8);
        }
    }

    /// The node's own triple (first address, end, largest gap), computed from its arrays alone.
    ///
    /// # Safety
    /// As [`TreeNode::gap`]; the node is not empty.
    pub unsafe fn summary(this: *mut Self) -> Summary {
        // SAFETY: by this function's contract.
        unsafe {
            let n = (*this).len();
            let mut gap = 0;
            for i in 1..n {
                gap = gap.max((*this).start(i) - (*this).end(i - 1));
            }
            if (*this).level > 0 {
                for i in 0..n {
                    gap = gap.max(Self::gap(this, i));
                }
            }
            Summary { first: (*this).start(0), last: (*this).end(n - 1), gap }
        }
    }

    /// The triple of child `i` as inner node `this` stores it.
    ///
    /// # Safety
    /// As [`TreeNode::gap`].
    pub unsafe fn said(this: *mut Self, i: usize) -> Summary {
        // SAFETY: by this function's contract.
        unsafe { Summary { first: (*this).start(i), last: (*this).end(i), gap: Self::gap(this, i) } }
    }

    /// Stores `new` as the triple of child `i` in an inner node, where it differs from `old`. The caller has stored the
    /// child's pointer before.
    ///
    /// # Safety
    /// As [`TreeNode::gap`]; the node is an inner one.
    pub unsafe fn renew(this: *mut Self, i: usize, old: Summary, new: Summary) {
        debug_assert!(i == 0 || new.first >= old.first, "routing starts never fall in place");
        // SAFETY: by this function's contract.
        unsafe {
            debug_assert_eq!(old.gap, Self::gap(this, i), "T2");
            if new.first != old.first {
                // Release, so that a reader that descends by the new start also sees the new child.
                (*this).keys[i].start.assume_init_ref().store(new.first, Ordering::Release);
            }
            if new.last != old.last {
                (*this).ends[i].assume_init_ref().set(new.last);
            }
            if new.gap != old.gap {
                (*this.cast::<Inner<A, F>>()).gaps[i].assume_init_ref().set(new.gap);
            }
        }
    }

    /// Makes the end of item `i` wrong, for tests of the checker.
    #[cfg(all(test, not(any(loom, shuttle))))]
    pub fn corrupt_end(&self, i: usize, end: u64) {
        // SAFETY: slots below `len` are initialised.
        unsafe { self.ends[i].assume_init_ref() }.set(end);
    }

    /// The node's own triple, which was `own` before child `i` changed from `old` to `new`. This function reads the
    /// other children only if the largest gap may have shrunk (see the tree's module).
    ///
    /// # Safety
    /// As [`TreeNode::renew`], which has stored `new`.
    pub unsafe fn summary_after(this: *mut Self, i: usize, own: Summary, old: Summary, new: Summary) -> Summary {
        // SAFETY: by this function's contract.
        unsafe {
            let (n, node) = ((*this).len(), &*this);
            let mut around = (old.gap, new.gap);
            if i > 0 {
                let end = node.end(i - 1);
                around = (around.0.max(old.first - end), around.1.max(new.first - end));
            }
            if i + 1 < n {
                let start = node.start(i + 1);
                around = (around.0.max(start - old.last), around.1.max(start - new.last));
            }
            let gap = if around.1 >= own.gap {
                around.1
            } else if around.0 < own.gap {
                own.gap
            } else {
                return Self::summary(this);
            };
            let first = if i == 0 { new.first } else { own.first };
            let last = if i + 1 == n { new.last } else { own.last };
            Summary { first, last, gap }
        }
    }

    /// Replaces child or value `i`. This one store publishes a change below one slot (relies on C3).
    pub fn publish(&self, i: usize, child: *mut ()) {
        debug_assert!(i < self.len());
        // SAFETY: slots below `len` are initialised.
        unsafe { self.keys[i].slot.assume_init_ref() }.store(child, Ordering::Release);
    }
}

/// A node and an index at each level, from a root down.
pub(super) struct Path<A: NodeAlloc, const F: usize> {
    nodes: [*mut TreeNode<A, F>; MAX_LEVELS],
    index: [u8; MAX_LEVELS],
    height: u8,
}

impl<A: NodeAlloc, const F: usize> Clone for Path<A, F> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<A: NodeAlloc, const F: usize> Copy for Path<A, F> {}

impl<A: NodeAlloc, const F: usize> Path<A, F> {
    pub fn new() -> Self {
        Path { nodes: [ptr::null_mut(); MAX_LEVELS], index: [0; MAX_LEVELS], height: 0 }
    }

    /// Number of levels of the path, from the root to the leaf.
    pub fn height(&self) -> usize {
        self.height as usize
    }
    pub fn node(&self, level: usize) -> *mut TreeNode<A, F> {
        self.nodes[level]
    }
    pub fn index(&self, level: usize) -> usize {
        self.index[level] as usize
    }
    pub fn set(&mut self, level: usize, index: usize) {
        self.index[level] = index as u8;
    }

    /// Fills this path from `root` down to a leaf. At each node it descends to the child that `route` returns. The
    /// index in the leaf becomes 0.
    ///
    /// # Safety
    /// The nodes stay alive while the path is used.
    pub unsafe fn descend(&mut self, root: *mut TreeNode<A, F>, route: impl Fn(&TreeNode<A, F>) -> usize) {
        let mut node = root;
        // SAFETY: by this function's contract.
        unsafe {
            self.height = (*node).level + 1;
            loop {
                let level = (*node).level as usize;
                self.nodes[level] = node;
                self.index[level] = 0;
                if level == 0 {
                    return;
                }
                let i = route(&*node);
                self.index[level] = i as u8;
                node = (*node).child(i);
            }
        }
    }

    /// Fills this path from `root` down to the leaf for `at`. Returns the first address that belongs to a leaf further
    /// right (`u64::MAX` if there is none).
    ///
    /// # Safety
    /// As [`Path::descend`].
    pub unsafe fn descend_below(&mut self, root: *mut TreeNode<A, F>, at: u64) -> u64 {
        let mut bound = u64::MAX;
        let mut node = root;
        // SAFETY: by this function's contract.
        unsafe {
            self.height = (*node).level + 1;
            loop {
                let n = &*node;
                let level = n.level as usize;
                self.nodes[level] = node;
                self.index[level] = 0;
                if level == 0 {
                    return bound;
                }
                let i = n.route(at);
                self.index[level] = i as u8;
                if i + 1 < n.len() {
                    bound = n.start(i + 1);
                }
                node = n.child(i);
            }
        }
    }

    /// Moves to the next node at `level`, with index 0 there and below. Returns false if there is no next node.
    ///
    /// # Safety
    /// As [`Path::descend`].
    pub unsafe fn advance(&mut self, level: usize) -> bool {
        let mut up = level + 1;
        // SAFETY: by this function's contract.
        unsafe {
            while up < self.height() && self.index(up) + 1 >= (*self.nodes[up]).len() {
                up += 1;
            }
            if up >= self.height() {
                return false;
            }
            self.index[up] += 1;
            while up > level {
                self.nodes[up - 1] = (*self.nodes[up]).child(self.index(up));
                self.index[up - 1] = 0;
                up -= 1;
            }
        }
        true
    }
}
