//! An ordered tree of disjoint ranges that is read without locks and changed by copying. It is a B+tree whose inner
//! nodes also store the largest hole below each child. So the search for a free range descends the tree once, and does
//! not walk all items.
//!
//! # State
//! A leaf holds up to `F` items: `starts`, `ends`, and a pointer to the value of the range. An inner node holds three
//! numbers for each child. `starts[i]` is the first address that an item below the child covers, and `ends[i]` is one
//! past the last. `gaps[i]` is the largest hole *between* two items below it. All leaves are at level 0. A node without
//! items is never kept.
//!
//! # Invariants
//! - **T1 Order.** Items are disjoint and ascending, within a leaf and from leaf to leaf.
//! - **T2 Exactness.** For each child: `starts[i]` is its first item's start, `ends[i]` its last item's end, and
//!   `gaps[i] = max(gaps of its own children, starts[j + 1] - ends[j] over its neighbours j, j + 1)`, 0 for none.
//! - **T3 Height.** Every leaf has the same distance from the root. Each node's level is one less than its parent's.
//!
//! # Why the gap values hold
//! The triple (first, last, gap) of a run of items is a monoid. The triple of two adjacent runs is
//! `(a.first, b.last, max(a.gap, b.gap, b.first - a.last))`. A node's triple therefore follows from its own arrays
//! alone, without its neighbours: a hole between two subtrees belongs to their lowest common ancestor. The cases are:
//!
//! - *A value is replaced by another of the same range.* No triple contains a value. So the change is one store, and
//!   nothing else is read.
//! - *A leaf is replaced by a leaf*, or any subtree by another below one slot. The new nodes' triples are computed from
//!   their finished arrays, bottom up. Then the ancestors above the slot are walked once, and each slot gets its
//!   child's new triple. The walk ends at a triple that does not change, because then no triple above it changes
//!   either.
//! - *Nodes split, merge or vanish.* Their parent is replaced too, and so on up to a slot or the root. There the
//!   previous case applies.
//!
//! An ancestor's new gap can usually be computed without its other children. Let `G` be its gap before the change,
//! which its parent stores. Let `x` and `y` be the largest of three values before and after: the changed child's gap,
//! and the holes at its two ends. Let `rest` be the largest of the ancestor's other gaps and holes. Then
//! `G = max(x, rest)`. If `y >= G`, then `y >= rest`, and the new gap is `y`. If `x < G`, then `rest = G`, and for
//! `y < G` the gap stays `G`. Only for `x = G > y` must `rest` be read. If the child's ends do not change, the holes do
//! not change either. Then `x` and `y` are the child's gap alone. If both are less than `G`, the ancestor's triple does
//! not change.
//!
//! Off the search path, a change reads only the end and the start of a neighbour in the same node. It writes nothing
//! there. (FreeBSD D19826 has the same aim for its binary tree. FreeBSD infers the value of an untouched child from its
//! parent's, because there a hole belongs to both neighbours. Here a hole belongs to the common ancestor, so no child
//! off the path is read.) [`Tree::check`] computes all triples again from the leaves.
//!
//! # Readers against the one writer
//! A reachable leaf is immutable, except for its values: one store replaces a value by another of the same range. The
//! `len` and `level` of a reachable inner node are immutable too. A change that fits below one slot of one inner node
//! builds the new subtree aside. Then it stores **one pointer** into that slot: a reader sees either the old subtree or
//! the new one. All replaced nodes are retired through the epoch.
//!
//! Readers use only `starts[1..]` and the pointers of an inner node. A reader descends to the last child that starts at
//! or before the address. If there is none, the reader descends to the first child. `starts[i]` may rise in place,
//! after the pointer is stored. It never falls for `i > 0`, because an item that starts before `starts[i]` is put below
//! child `i - 1`. So a reader that descends by an outdated `starts[i]` meets the new child. The address that it looks
//! up is not covered by this child, so it finds no item. That answer was right before the change, and is right after
//! it. A miss that overlaps *several* changes may be wrong. Therefore a miss counts only if the sequence number of the
//! arena that has the tree did not change (relies on C3). A hit counts only if the item is not stale. Only the writer
//! reads or writes `ends` and `gaps` of inner nodes.

mod change;
mod check;
mod fit;
mod node;
#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;

pub use change::Change;
pub use check::TreeError;
pub use node::{NODE_ALIGN, NodeAlloc, NodeSize, node_bytes};

use change::Source;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use node::TreeNode;
use quire_sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

/// The right to change one tree. [`Tree::new`] returns it with the tree. It is kept under the lock of the tree's
/// writers.
pub struct Owner(());

/// A range and its value, as the tree stores them.
#[derive(Debug)]
pub struct Item<T> {
    /// First address.
    pub start: u64,
    /// One past the last address.
    pub end: u64,
    /// The value of the range.
    pub value: NonNull<T>,
}

impl<T> Clone for Item<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Item<T> {}

/// The tree; see the module. `F` is the fan-out: with 11, a leaf has five cache lines. The alignment of `source` gives
/// `root`, which readers use, a cache line of its own.
#[repr(C, align(64))]
pub struct Tree<T, A: NodeAlloc, const F: usize> {
    root: AtomicPtr<TreeNode<A, F>>,
    source: Source<A, F>,
    /// Number of items. Only the writer writes it; statistics read it without a lock.
    len: AtomicUsize,
    _values: PhantomData<NonNull<T>>,
}

// SAFETY: nodes are shared by the rules of the module: readers use immutable parts and atomics, and there is one writer
// (`Owner`). Values are returned as raw pointers. Code that dereferences these pointers must argue that `T` allows it.
unsafe impl<T, A: NodeAlloc, const F: usize> Send for Tree<T, A, F> {}
// SAFETY: readers use atomics, and cells that are fixed once reachable. Every change requires the one `Owner`.
unsafe impl<T, A: NodeAlloc, const F: usize> Sync for Tree<T, A, F> {}

impl<T, A: NodeAlloc, const F: usize> Tree<T, A, F> {
    /// An empty tree, and the right to change it.
    pub fn new(alloc: A) -> (Self, Owner) {
        const { assert!(F >= 4 && F < 256) };
        (
            Tree {
                root: AtomicPtr::new(ptr::null_mut()),
                len: AtomicUsize::new(0),
                source: Source::new(alloc),
                _values: PhantomData,
            },
            Owner(()),
        )
    }

    /// Number of items.
    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    /// The numbers of leaves and of inner nodes. Leaves are counted without reading them.
    ///
    /// # Safety
    /// As [`Tree::get`].
    pub(crate) unsafe fn nodes(&self) -> [u64; 2] {
        /// # Safety
        /// As [`Tree::get`], and `node` was reached from the root since the caller pinned the epoch or excluded
        /// writers.
        unsafe fn count<A: NodeAlloc, const F: usize>(node: *mut TreeNode<A, F>, found: &mut [u64; 2]) {
            // SAFETY: by this function's contract; reachable nodes are alive while the caller is pinned.
            unsafe {
                match (*node).level {
                    0 => found[0] += 1,
                    1 => {
                        found[1] += 1;
                        found[0] += (*node).len() as u64;
                    }
                    _ => {
                        found[1] += 1;
                        (0..(*node).len()).for_each(|i| count((*node).child(i), found));
                    }
                }
            }
        }
        let mut found = [0; 2];
        let root = self.root.load(Ordering::Acquire);
        if !root.is_null() {
            // SAFETY: by this function's contract.
            unsafe { count(root, &mut found) };
        }
        found
    }

    /// The item that covers `at`.
    ///
    /// # Safety
    /// The caller is pinned in the epoch domain that the allocator retires into, or keeps writers out.
    #[inline]
    pub unsafe fn get(&self, at: u64) -> Option<Item<T>> {
        let mut node = self.root.load(Ordering::Acquire);
        if node.is_null() {
            return None;
        }
        // SAFETY: reachable nodes are alive while the caller is pinned.
        unsafe {
            while (*node).level > 0 {
                node = (*node).child((*node).route(at));
            }
            let n = (*node).count_starting_at_or_before(at);
            if n == 0 || (*node).end(n - 1) <= at {
                return None;
            }
            Some((*node).item(n - 1))
        }
    }

    /// The first item that ends after `from`: the item that covers `from`, else the next one.
    ///
    /// # Safety
    /// As [`Tree::get`].
    pub(crate) unsafe fn next(&self, from: u64) -> Option<Item<T>> {
        // SAFETY: by this function's contract.
        unsafe { self.cursor(from).next() }
    }

    /// The last item that starts before `at`.
    ///
    /// # Safety
    /// The caller keeps writers out.
    pub unsafe fn before(&self, at: u64) -> Option<Item<T>> {
        let mut node = self.root.load(Ordering::Acquire);
        if node.is_null() || at == 0 {
            return None;
        }
        // SAFETY: the caller keeps writers out, so nodes that the root leads to are not retired.
        unsafe {
            while (*node).level > 0 {
                node = (*node).child((*node).route(at - 1));
            }
            let n = (*node).count_starting_at_or_before(at - 1);
            (n > 0).then(|| (*node).item(n - 1))
        }
    }

    /// Walks the items that end after `from`.
    ///
    /// # Safety
    /// As [`Tree::get`], for as long as the cursor is used. If a writer runs at the same time, the walk may show some
    /// items from before its change and some from after it.
    pub unsafe fn cursor(&self, from: u64) -> Cursor<T, A, F> {
        let root = self.root.load(Ordering::Acquire);
        let mut cursor = Cursor { root, leaf: ptr::null_mut(), index: 0, beyond: from, _values: PhantomData };
        if !root.is_null() {
            // SAFETY: by this function's contract.
            unsafe { cursor.go_on() };
        }
        cursor
    }

    /// Frees all nodes at once, without the epoch. The values are not freed.
    ///
    /// # Safety
    /// The caller alone can reach the tree.
    pub unsafe fn free_all(&mut self) {
        let root = self.root.swap(ptr::null_mut(), Ordering::Relaxed);
        self.len.store(0, Ordering::Relaxed);
        if !root.is_null() {
            // SAFETY: by this function's contract.
            unsafe { TreeNode::free_subtree(root) };
        }
    }
}

/// A place between items; see [`Tree::cursor`]. A cursor has only four words. At the end of a leaf it descends from the
/// root again to find the next leaf. That costs less than a stored path, which every short walk would have to fill.
pub struct Cursor<T, A: NodeAlloc, const F: usize> {
    root: *mut TreeNode<A, F>,
    /// The leaf that contains the place, or that ends at the place. Null if there are no items.
    leaf: *mut TreeNode<A, F>,
    index: usize,
    /// The first address that belongs to a leaf further right.
    beyond: u64,
    _values: PhantomData<NonNull<T>>,
}

impl<T, A: NodeAlloc, const F: usize> Cursor<T, A, F> {
    /// Moves the cursor to the first item that ends after `beyond`, in the leaf for that address.
    ///
    /// # Safety
    /// There is a root, whose nodes are alive.
    #[inline]
    unsafe fn go_on(&mut self) {
        let from = self.beyond;
        // SAFETY: by this function's contract.
        unsafe {
            (self.leaf, self.beyond) = TreeNode::leaf_for(self.root, from);
            let leaf = &*self.leaf;
            self.index = leaf.count_starting_at_or_before(from);
            if self.index > 0 && leaf.end(self.index - 1) > from {
                self.index -= 1;
            }
        }
    }

    /// The item before the cursor's place. `None` if that item is not in the same leaf, or if no item is before.
    pub fn before(&self) -> Option<Item<T>> {
        // SAFETY: the caller of `cursor` keeps the nodes alive while the cursor is used.
        let leaf = unsafe { self.leaf.as_ref() }?;
        self.index.checked_sub(1).map(|i| leaf.item(i))
    }
}

impl<T, A: NodeAlloc, const F: usize> Clone for Cursor<T, A, F> {
    fn clone(&self) -> Self {
        Cursor { root: self.root, leaf: self.leaf, index: self.index, beyond: self.beyond, _values: PhantomData }
    }
}

impl<T, A: NodeAlloc, const F: usize> Iterator for Cursor<T, A, F> {
    type Item = Item<T>;

    #[inline]
    fn next(&mut self) -> Option<Item<T>> {
        // SAFETY: the caller of `cursor` keeps the nodes alive while the cursor is used.
        let mut leaf = unsafe { self.leaf.as_ref() }?;
        while self.index >= leaf.len() {
            // Each leaf begins at a higher address than the leaf before it. So this loop ends, even if a writer changes
            // the tree at the same time.
            if self.beyond == u64::MAX {
                return None;
            }
            // SAFETY: a cursor that has a leaf has a root, and the caller of `cursor` keeps its nodes alive.
            leaf = unsafe {
                self.go_on();
                &*self.leaf
            };
        }
        self.index += 1;
        Some(leaf.item(self.index - 1))
    }
}
