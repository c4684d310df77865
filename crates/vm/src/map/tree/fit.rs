//! The search for a free range: the lowest hole that fits.
//!
//! # Cost
//! If the alignment is a page, a search visits at most two nodes a level. A subtree is entered if its largest hole is
//! large enough (T2). Then it has a hole that fits, unless part of that hole lies below `lo` or above `hi`. On each
//! level only the subtree that contains `lo` can be searched in vain. Then the search continues to its right. The
//! subtree that contains `hi` ends the search. To the right of `lo`'s path the first subtree entered has the answer,
//! and so has the first subtree entered within it.

use super::node::TreeNode;
use super::{NodeAlloc, Owner, Tree};
use crate::types::PAGE_SIZE;

/// The hole to find.
struct Wanted {
    len: u64,
    align: u64,
    lo: u64,
    hi: u64,
    /// A subtree is entered only if its largest hole has at least this number of bytes.
    enter: u64,
    /// Number of nodes that were looked at.
    visited: u64,
}

impl Wanted {
    /// The lowest suitable address in the hole `from..to`.
    fn in_hole(&self, from: u64, to: u64) -> Option<u64> {
        let (from, to) = (from.max(self.lo), to.min(self.hi));
        let at = from.checked_next_multiple_of(self.align)?;
        (at < to && to - at >= self.len).then_some(at)
    }
}

impl<T, A: NodeAlloc, const F: usize> Tree<T, A, F> {
    /// The lowest multiple of `align` in `lo..hi` from which `len` bytes are free and end at or before `hi`. The search
    /// is O(log n) if `align` is a page. For larger `align` it is O(log n) too, if some hole has at least `len + align`
    /// bytes.
    pub fn first_fit(&self, owner: &Owner, len: u64, align: u64, lo: u64, hi: u64) -> Option<u64> {
        self.first_fit_visits(owner, len, align, lo, hi).0
    }

    /// Returns the result of [`first_fit`](Self::first_fit), and the number of nodes that the search looked at.
    pub fn first_fit_visits(&self, _owner: &Owner, len: u64, align: u64, lo: u64, hi: u64) -> (Option<u64>, u64) {
        let mut w = Wanted { len, align, lo, hi, enter: 0, visited: 0 };
        let found = self.find(&mut w);
        (found, w.visited)
    }

    fn find(&self, w: &mut Wanted) -> Option<u64> {
        if w.len == 0 || !w.align.is_power_of_two() || w.lo >= w.hi {
            return None;
        }
        w.enter = w.len.checked_add(w.align.max(PAGE_SIZE) - PAGE_SIZE)?;
        let found = self.search(w);
        if w.enter == w.len {
            return found;
        }
        // A hole of `enter` bytes fits, however it is aligned. A smaller hole may fit too, and may lie lower, but the
        // search for it may visit all nodes. So smaller holes are searched only if no hole has `enter` bytes.
        found.or_else(|| {
            w.enter = w.len;
            self.search(w)
        })
    }

    fn search(&self, w: &mut Wanted) -> Option<u64> {
        let root = self.root.load(quire_sync::atomic::Ordering::Relaxed);
        if root.is_null() {
            return w.in_hole(w.lo, w.hi);
        }
        // SAFETY: the caller is the writer (`Owner`), so reachable nodes stay.
        unsafe {
            let r = &*root;
            let (before, after) = (w.in_hole(w.lo, r.start(0)), w.in_hole(r.end(r.len() - 1), w.hi));
            before.or_else(|| below(root, w)).or(after)
        }
    }
}

/// The lowest fit between the items below `node`.
///
/// # Safety
/// `this` is reachable from the tree's root, and the caller is the writer.
unsafe fn below<A: NodeAlloc, const F: usize>(this: *mut TreeNode<A, F>, w: &mut Wanted) -> Option<u64> {
    w.visited += 1;
    // SAFETY: `this` is reachable, by this function's contract, and only the caller, which is the writer, changes it.
    let node = unsafe { &*this };
    // Children that end at or before `lo` have no hole in `lo..hi`. The hole after the last of these children may reach
    // into `lo..hi`.
    let mut i = node.route(w.lo);
    loop {
        // SAFETY: the node is reachable and has an item at least, so `route` and the loop keep `i` below its length.
        let gap = unsafe { TreeNode::gap(this, i) };
        // On each level, only the child that contains `lo` may be entered although the answer is not in it.
        if node.end(i) > w.lo && gap >= w.enter {
            // SAFETY: a leaf has gap 0, which is less than `enter`, so the slot leads to a child; it is reachable and
            // stays.
            let found = unsafe { below(node.child(i), w) };
            if found.is_some() {
                return found;
            }
        }
        if i + 1 == node.len() || node.end(i) >= w.hi {
            return None;
        }
        if let Some(at) = w.in_hole(node.end(i), node.start(i + 1)) {
            return Some(at);
        }
        i += 1;
    }
}
