//! The checker of the tree: it computes every invariant again from the leaves.

use super::node::{Summary, TreeNode};
use super::{NodeAlloc, Owner, Tree};
pub use crate::check::TreeError;
use quire_sync::atomic::Ordering;

impl<T, A: NodeAlloc, const F: usize> Tree<T, A, F> {
    /// Checks T1, T2 and T3 (see the module) in O(n).
    pub fn check(&self, _owner: &Owner) -> Result<(), TreeError> {
        let root = self.root.load(Ordering::Relaxed);
        let mut count = 0;
        if !root.is_null() {
            // SAFETY: the caller is the writer, so reachable nodes stay.
            unsafe {
                if (*root).level > 0 && (*root).len() < 2 {
                    return Err(TreeError::Shape((*root).start(0)));
                }
                check_node(root, &mut count)?;
            }
        }
        if count == self.len() { Ok(()) } else { Err(TreeError::Count) }
    }
}

/// Checks the subtree and returns its triple, derived from the leaves alone.
///
/// # Safety
/// `this` is reachable from the tree's root, and the caller is the writer.
unsafe fn check_node<A: NodeAlloc, const F: usize>(
    this: *mut TreeNode<A, F>,
    count: &mut usize,
) -> Result<Summary, TreeError> {
    // SAFETY: `this` is reachable, by this function's contract, and the caller is the writer, so no node is retired.
    let node = unsafe { &*this };
    if node.len() == 0 || node.len() > F {
        return Err(TreeError::Shape(0));
    }
    let mut sum: Option<Summary> = None;
    for i in 0..node.len() {
        let one = if node.level == 0 {
            *count += 1;
            if node.start(i) >= node.end(i) {
                return Err(TreeError::Order(node.start(i)));
            }
            Summary { first: node.start(i), last: node.end(i), gap: 0 }
        } else {
            // SAFETY: `i` is below the node's length. The pointer came from the tree, so it is valid for the whole
            // node.
            let (child, gap) = unsafe { (node.child(i), TreeNode::gap(this, i)) };
            // SAFETY: a child of a reachable node is reachable, and the caller is the writer, so it stays.
            if unsafe { (*child).level } + 1 != node.level {
                return Err(TreeError::Shape(node.start(i)));
            }
            // SAFETY: the child is reachable, and the caller is the writer, as the function requires.
            let truth = unsafe { check_node(child, count)? };
            if truth != (Summary { first: node.start(i), last: node.end(i), gap }) {
                return Err(TreeError::Summary(node.start(i)));
            }
            truth
        };
        sum = Some(match sum {
            None => one,
            Some(s) if s.last > one.first => return Err(TreeError::Order(one.first)),
            Some(s) => Summary { first: s.first, last: one.last, gap: s.gap.max(one.gap).max(one.first - s.last) },
        });
    }
    sum.ok_or(TreeError::Shape(0))
}

/// Damage for tests of the checker.
#[cfg(all(test, not(any(loom, shuttle))))]
impl<T, A: NodeAlloc, const F: usize> Tree<T, A, F> {
    /// Breaks the invariant that `damage` names, in a tree of two levels or more.
    pub fn corrupt(&self, damage: TreeError, _owner: &Owner) {
        let root = self.root.load(Ordering::Relaxed);
        // SAFETY: the caller is the writer, the tree has two levels, and the tests of the checker have no reader.
        unsafe {
            let child = (*root).child(1);
            match damage {
                TreeError::Order(_) => (*child).corrupt_end(0, (*child).start(1) + 1),
                TreeError::Summary(_) => {
                    let said = TreeNode::said(root, 1);
                    TreeNode::renew(root, 1, said, Summary { gap: said.gap + 1, ..said });
                }
                TreeError::Shape(_) => (*child).level += 1,
                TreeError::Count => {
                    self.len.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }
}
