//! Top-down splay trees whose nodes hold the largest gap of their subtree, *before* and *after* FreeBSD's change D19826
//! (Doug Moore, 2019).
//!
//! # Invariant
//! `max` of a node is the largest gap with an end in the node's subtree. These are the gaps between two entries of the
//! subtree, and the two gaps that border the subtree. Each side of a node has a value. With a child on that side, the
//! value is the child's `max`. Without a child, it is the gap between the node and the nearest ancestor on that side,
//! or the map's end. `max` is the larger of the two values.
//!
//! # The walk
//! A split at an address takes every node on the search path off the tree and puts it on one of two lists. The lists
//! hold the nodes below and above the address, the latest first. A merge attaches both lists under a new root and
//! recomputes each node's `max`. The split changes the side of a node that is on the search path. It does not change
//! the other side, which is *off the path*.
//!
//! - *Before*: the computation of a `max` reads both children of the node.
//! - *After*: the split stores the value of the off-path side in `max`, and the merge reads no child off the path. If
//!   the child on the path has a smaller `max` than the node, the off-path value equals the node's own `max`. Then no
//!   child is read (a *decline*). A rotation moves one child to a new parent. That child is read only if the other side
//!   of the new parent is too small to decide. **Exception**: the path ends in a gap instead of a child. A clip or
//!   resize changes the bounds of that gap before the walk. Then the gap's value proves nothing about an older `max`,
//!   and the other child is read.
//!
//! The constant `AFTER` selects one of the two designs. All other code is the same.

use super::by_entry::{Entries, in_hole};
use super::{MapFootprint, MapRange, PAGE};
use quire_sync::record;

const NIL: u32 = u32::MAX;
/// The map's range. The gaps at its two ends count as gaps too.
const BOTTOM: u64 = 0;
const TOP: u64 = 1 << 47;

/// An entry. It takes one cache line, the least that an entry of a kernel takes.
#[repr(align(64))]
#[derive(Clone, Copy)]
struct SplayNode {
    start: u64,
    end: u64,
    max: u64,
    left: u32,
    right: u32,
    /// The previous and the next entry in address order.
    prev: u32,
    next: u32,
    prot: u32,
}

/// Counts of how often a walk needed the value of a node's off-path side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// A child off the path was read.
    pub reads: u64,
    /// The child was not read, because a comparison along the path gave the value.
    pub declines: u64,
    /// The number of those reads in which the node's own `max` was zero. A test for zero would have avoided them.
    pub zeros: u64,
}

/// The splay tree that the module describes.
pub struct Splay<const AFTER: bool> {
    nodes: Vec<SplayNode>,
    root: u32,
    /// Nodes that hold no entry, linked by `next`.
    free: u32,
    asked: Asked,
}

/// The design that reads the children of every node on a path.
pub type Before = Splay<false>;
/// The design that reads children off the path only where the path does not give their value.
pub type After = Splay<true>;

/// The nodes that a search took off the tree, as two lists. Each field is the latest node below or above the address.
/// Each list is linked through the child that leads towards the address.
struct Lists {
    below: u32,
    above: u32,
}

impl<const AFTER: bool> Splay<AFTER> {
    /// An empty tree with room for `entries` entries.
    pub fn with_capacity(entries: usize) -> Self {
        Splay { nodes: Vec::with_capacity(entries), root: NIL, free: NIL, asked: Asked::default() }
    }

    /// The counts of how often walks needed off-path sides.
    pub fn asked(&self) -> Asked {
        self.asked
    }

    #[inline(always)]
    fn at(&self, n: u32) -> &SplayNode {
        let node = &self.nodes[n as usize];
        record::read(node);
        node
    }
    #[inline(always)]
    fn at_mut(&mut self, n: u32) -> &mut SplayNode {
        let node = &mut self.nodes[n as usize];
        record::wrote(node);
        node
    }

    /// The start of the gap above node `n`: the end of its entry, or the map's start for `NIL`.
    #[inline(always)]
    fn end_of(&self, n: u32) -> u64 {
        if n == NIL { BOTTOM } else { self.at(n).end }
    }
    #[inline(always)]
    fn start_of(&self, n: u32) -> u64 {
        if n == NIL { TOP } else { self.at(n).start }
    }

    /// The value of the left side: the left child's `max`, or else the gap up to `ancestor`.
    #[inline(always)]
    fn left_side(&self, n: u32, ancestor: u32) -> u64 {
        let left = self.at(n).left;
        if left == NIL { self.at(n).start - self.end_of(ancestor) } else { self.at(left).max }
    }
    #[inline(always)]
    fn right_side(&self, n: u32, ancestor: u32) -> u64 {
        let right = self.at(n).right;
        if right == NIL { self.start_of(ancestor) - self.at(n).end } else { self.at(right).max }
    }

    /// Whether the value of the off-path side equals the node's own `max`. The answer is counted.
    #[inline(always)]
    fn declines(&mut self, own: u64, path_child: u32, off_child: u32) -> bool {
        if !AFTER {
            return false;
        }
        if path_child != NIL && self.at(path_child).max < own {
            self.asked.declines += 1;
            return true;
        }
        if off_child != NIL {
            self.asked.reads += 1;
            self.asked.zeros += u64::from(own == 0);
        }
        false
    }

    /// Does one step from `n`, which lies above `at`, to its left. `n` joins the list of nodes above. If `at` also lies
    /// left of the left child, that child is rotated over `n` and joins the list instead. Returns the next node of the
    /// path.
    #[inline(always)]
    fn step_left(&mut self, n: u32, at: u64, lists: &mut Lists) -> u32 {
        let (own, child, off_child) = (self.at(n).max, self.at(n).left, self.at(n).right);
        let mut off = match self.declines(own, child, off_child) {
            true => own,
            false if AFTER => self.right_side(n, lists.above),
            false => 0,
        };
        let (mut top, mut next) = (n, child);
        if child != NIL && at < self.at(child).start {
            let inner = self.at(child).right;
            let over = self.at(child).max;
            self.at_mut(n).left = inner;
            if AFTER {
                if off < over {
                    let side = if inner == NIL { self.at(n).start - self.at(child).end } else { self.at(inner).max };
                    off = off.max(side);
                }
                self.at_mut(n).max = off;
            } else {
                let side = if inner == NIL { self.at(n).start - self.at(child).end } else { self.at(inner).max };
                self.at_mut(n).max = side.max(self.right_side(n, lists.above));
            }
            self.at_mut(child).right = n;
            (top, next) = (child, self.at(child).left);
        }
        let above = lists.above;
        let top_node = self.at_mut(top);
        top_node.left = above;
        if AFTER {
            top_node.max = off;
        }
        lists.above = top;
        next
    }

    /// The mirror image of [`Splay::step_left`].
    #[inline(always)]
    fn step_right(&mut self, n: u32, at: u64, lists: &mut Lists) -> u32 {
        let (own, child, off_child) = (self.at(n).max, self.at(n).right, self.at(n).left);
        let mut off = match self.declines(own, child, off_child) {
            true => own,
            false if AFTER => self.left_side(n, lists.below),
            false => 0,
        };
        let (mut top, mut next) = (n, child);
        if child != NIL && at >= self.at(child).end {
            let inner = self.at(child).left;
            let over = self.at(child).max;
            self.at_mut(n).right = inner;
            if AFTER {
                if off < over {
                    let side = if inner == NIL { self.at(child).start - self.at(n).end } else { self.at(inner).max };
                    off = off.max(side);
                }
                self.at_mut(n).max = off;
            } else {
                let side = if inner == NIL { self.at(child).start - self.at(n).end } else { self.at(inner).max };
                self.at_mut(n).max = side.max(self.left_side(n, lists.below));
            }
            self.at_mut(child).left = n;
            (top, next) = (child, self.at(child).right);
        }
        let below = lists.below;
        let top_node = self.at_mut(top);
        top_node.right = below;
        if AFTER {
            top_node.max = off;
        }
        lists.below = top;
        next
    }

    /// Takes the path to `at` off the tree. Returns the entry that covers `at`, with both its children, or `NIL`.
    fn split(&mut self, at: u64) -> (u32, Lists) {
        let mut lists = Lists { below: NIL, above: NIL };
        let mut n = self.root;
        while n != NIL {
            let node = self.at(n);
            n = if at < node.start {
                self.step_left(n, at, &mut lists)
            } else if at >= node.end {
                self.step_right(n, at, &mut lists)
            } else {
                break;
            };
        }
        (n, lists)
    }

    /// Attaches both lists under `root`, whose children lie between the two lists. `left` and `right` are the values of
    /// its sides, if known.
    fn merge(&mut self, root: u32, lists: Lists, left: Option<u64>, right: Option<u64>) {
        let (mut tree, mut n) = (self.at(root).left, lists.below);
        let mut side = left.unwrap_or_else(|| self.left_side(root, n));
        while n != NIL {
            let up = self.at(n).right;
            let off = if AFTER { self.at(n).max } else { self.left_side(n, up) };
            side = side.max(off);
            let node = self.at_mut(n);
            (node.right, node.max) = (tree, side);
            (tree, n) = (n, up);
        }
        self.at_mut(root).left = tree;
        let mut most = side;
        (tree, n) = (self.at(root).right, lists.above);
        side = right.unwrap_or_else(|| self.right_side(root, n));
        while n != NIL {
            let up = self.at(n).left;
            let off = if AFTER { self.at(n).max } else { self.right_side(n, up) };
            side = side.max(off);
            let node = self.at_mut(n);
            (node.left, node.max) = (tree, side);
            (tree, n) = (n, up);
        }
        most = most.max(side);
        let node = self.at_mut(root);
        (node.right, node.max) = (tree, most);
        self.root = root;
    }

    /// Merges after a split that found no entry. The nearest entry below becomes the root, or else the nearest above.
    fn merge_around_gap(&mut self, lists: Lists) {
        let Lists { below, above } = lists;
        let known = |s: &Self, n: u32| AFTER.then(|| s.at(n).max);
        if below != NIL {
            let left = known(self, below);
            let rest = Lists { below: self.at(below).right, above };
            self.at_mut(below).right = NIL;
            self.merge(below, rest, left, None);
        } else if above != NIL {
            let right = known(self, above);
            let rest = Lists { below, above: self.at(above).left };
            self.at_mut(above).left = NIL;
            self.merge(above, rest, None, right);
        } else {
            self.root = NIL;
        }
    }

    /// Makes the entry at `at` the root, or else a neighbour of that address.
    fn splay(&mut self, at: u64) {
        if self.root == NIL || (self.at(self.root).start <= at && at < self.at(self.root).end) {
            return;
        }
        let (root, lists) = self.split(at);
        if root == NIL { self.merge_around_gap(lists) } else { self.merge(root, lists, None, None) }
    }

    /// Takes out the entry that starts at `start`, as the root. Returns `None` and restores the tree if there is none.
    fn entry(&mut self, start: u64) -> Option<(u32, Lists)> {
        let (root, lists) = self.split(start);
        if root == NIL {
            self.merge_around_gap(lists);
            return None;
        }
        Some((root, lists))
    }

    /// Moves the nodes of the left subtree of `root` onto the list of nodes below. The last entry of the subtree
    /// becomes the latest node of that list.
    fn open_left(&mut self, root: u32, lists: &mut Lists) {
        let (mut n, at) = (self.at(root).left, self.at(root).start);
        while n != NIL {
            n = self.step_right(n, at, lists);
        }
        self.at_mut(root).left = NIL;
    }

    fn open_right(&mut self, root: u32, lists: &mut Lists) {
        let (mut n, at) = (self.at(root).right, self.at(root).start);
        while n != NIL {
            n = self.step_left(n, at, lists);
        }
        self.at_mut(root).right = NIL;
    }

    fn held(&self, n: u32) -> Option<MapRange> {
        (n != NIL).then(|| {
            let SplayNode { start, end, prot, .. } = *self.at(n);
            MapRange { start, end, prot }
        })
    }

    fn new_node(&mut self, node: SplayNode) -> u32 {
        if self.free == NIL {
            self.nodes.push(node);
            return self.nodes.len() as u32 - 1;
        }
        let n = self.free;
        self.free = self.at(n).next;
        *self.at_mut(n) = node;
        n
    }

    /// The lowest suitable address. The search enters only subtrees whose `max` is at least `enter` bytes.
    fn search(&self, len: u64, align: u64, bounds: (u64, u64), enter: u64) -> Option<u64> {
        // Subtrees and holes still to visit, the lowest on top: (node, start and end of its range).
        let mut todo = vec![(self.root, BOTTOM, TOP)];
        while let Some((n, from, to)) = todo.pop() {
            if to <= bounds.0 {
                continue;
            }
            if from >= bounds.1 {
                return None;
            }
            if n == NIL {
                let at = in_hole(len, align, bounds, (from, to));
                if at.is_some() {
                    return at;
                }
            } else if self.at(n).max >= enter {
                let node = self.at(n);
                todo.push((node.right, node.end, to));
                todo.push((node.left, from, node.start));
            }
        }
        None
    }
}

impl<const AFTER: bool> Entries for Splay<AFTER> {
    fn around(&mut self, at: u64) -> (Option<MapRange>, Option<MapRange>) {
        self.splay(at);
        match self.root {
            NIL => (None, None),
            n if self.at(n).start <= at => (self.held(n), self.held(self.at(n).next)),
            n => (self.held(self.at(n).prev), self.held(n)),
        }
    }

    fn link(&mut self, entry: MapRange) {
        let (root, lists) = self.split(entry.start);
        debug_assert_eq!(root, NIL, "entries do not overlap");
        let MapRange { start, end, prot } = entry;
        let (prev, next) = (lists.below, lists.above);
        let n = self.new_node(SplayNode { start, end, max: 0, left: NIL, right: NIL, prev, next, prot });
        if prev != NIL {
            self.at_mut(prev).next = n;
        }
        if next != NIL {
            self.at_mut(next).prev = n;
        }
        self.merge(n, lists, None, None);
    }

    fn unlink(&mut self, start: u64) {
        let Some((n, mut lists)) = self.entry(start) else { return };
        self.open_left(n, &mut lists);
        self.open_right(n, &mut lists);
        let (prev, next) = (self.at(n).prev, self.at(n).next);
        if prev != NIL {
            self.at_mut(prev).next = next;
        }
        if next != NIL {
            self.at_mut(next).prev = prev;
        }
        self.at_mut(n).next = self.free;
        self.free = n;
        self.merge_around_gap(lists);
    }

    fn clip(&mut self, start: u64, rest: MapRange) {
        self.splay(start);
        if self.root != NIL {
            // This is the exception of the module's docs: the end changes before the walk of `link`.
            let root = self.root;
            self.at_mut(root).end = rest.start;
            self.link(rest);
        }
    }

    fn resize(&mut self, start: u64, end: u64) {
        let Some((n, mut lists)) = self.entry(start) else { return };
        // FreeBSD does the same: the end changes first, then a walk follows the path to the gap behind the entry.
        self.at_mut(n).end = end;
        self.open_right(n, &mut lists);
        self.merge(n, lists, None, None);
    }

    fn shrink_start(&mut self, start: u64, to: u64) {
        let Some((n, mut lists)) = self.entry(start) else { return };
        self.at_mut(n).start = to;
        self.open_left(n, &mut lists);
        self.merge(n, lists, None, None);
    }

    fn set_prot(&mut self, start: u64, prot: u32) {
        self.splay(start);
        if self.root != NIL {
            let root = self.root;
            self.at_mut(root).prot = prot;
        }
    }

    fn find(&mut self, len: u64, align: u64, lo: u64, hi: u64) -> Option<u64> {
        let sure = len.checked_add(align.max(PAGE) - PAGE)?;
        let found = self.search(len, align, (lo, hi), sure);
        if sure == len { found } else { found.or_else(|| self.search(len, align, (lo, hi), len)) }
    }

    fn entries(&self) -> Vec<MapRange> {
        let mut n = self.root;
        while n != NIL && self.at(n).prev != NIL {
            n = self.at(n).prev;
        }
        let mut all = Vec::new();
        while let Some(held) = self.held(n) {
            all.push(held);
            n = self.at(n).next;
        }
        all
    }

    fn nodes(&self) -> Option<MapFootprint> {
        let some = |n: u32| Some(n).filter(|n| *n != NIL);
        let free = std::iter::successors(some(self.free), |n| some(self.nodes[*n as usize].next));
        let nodes = self.nodes.len() - free.count();
        Some(MapFootprint { nodes, bytes: nodes * size_of::<SplayNode>() })
    }

    fn consistent(&self) -> Result<(), String> {
        // The nodes in an order with parents before children, each with its nearest ancestors below and above.
        let (mut order, mut todo) = (Vec::new(), vec![(self.root, NIL, NIL)]);
        while let Some((n, below, above)) = todo.pop() {
            if n == NIL {
                continue;
            }
            let node = self.at(n);
            if node.start >= node.end || self.end_of(below) > node.start || self.start_of(above) < node.end {
                return Err(format!("{:#x}..{:#x} is out of order", node.start, node.end));
            }
            order.push((n, below, above));
            todo.extend([(node.left, below, n), (node.right, n, above)]);
        }
        // The true gaps, computed from the entries alone, children before parents.
        let mut truth = std::collections::HashMap::new();
        for &(n, below, above) in order.iter().rev() {
            let node = self.at(n);
            let side = |child: u32, gap: u64| if child == NIL { gap } else { truth[&child] };
            let left = side(node.left, node.start - self.end_of(below));
            let right = side(node.right, self.start_of(above) - node.end);
            if node.max != left.max(right) {
                return Err(format!(
                    "{:#x} records the gap {:#x} instead of {:#x}",
                    node.start,
                    node.max,
                    left.max(right)
                ));
            }
            truth.insert(n, node.max);
        }
        let listed = self.entries();
        if listed.len() != order.len() || !listed.windows(2).all(|w| w[0].end <= w[1].start) {
            return Err(format!("{} entries are listed, {} are in the tree", listed.len(), order.len()));
        }
        Ok(())
    }
}
