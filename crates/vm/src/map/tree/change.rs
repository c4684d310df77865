//! Changes of the tree: new nodes are built aside, then published by one store that cannot fail.

use super::node::{MAX_LEVELS, Path, Summary, TreeNode};
use super::{Item, NodeAlloc, Owner, Tree};
use crate::error::OutOfMemory;
use core::cell::{Cell, UnsafeCell};
use core::iter::Peekable;
use core::marker::PhantomData;
use core::ptr::{self, NonNull};
use quire_sync::atomic::Ordering;

/// If a change leaves a node with this number of slots or fewer, the node merges with a neighbour.
const fn thin(fan_out: usize) -> usize {
    fan_out / 4
}

/// Two nodes that a change replaces become one node if that node has this number of slots or fewer.
const fn crowded(fan_out: usize) -> usize {
    fan_out - fan_out / 4
}

/// A prepared replacement of a range's items. [`Tree::commit`] publishes it. A drop frees its new nodes.
#[must_use = "a prepared change does nothing until it is committed"]
pub struct Change<T, A: NodeAlloc, const F: usize> {
    /// The first of all new nodes. `TreeNode::link` leads to the next one.
    built: *mut TreeNode<A, F>,
    /// All nodes that the change replaces, linked.
    replaced: *mut TreeNode<A, F>,
    /// The top of the new nodes. Null if no item is left.
    top: *mut TreeNode<A, F>,
    /// The level of the new nodes' parent on the path that [`Source`] keeps. `None` if `top` becomes the root, and 0 if
    /// only a value is replaced.
    parent: Option<usize>,
    /// The number of the change. The kept path is that of the last prepared change, so only that change may be
    /// committed.
    number: u32,
    /// The new value.
    value: *mut (),
    /// The number of items that the change adds, less the number that it removes.
    delta: isize,
    _values: PhantomData<Item<T>>,
}

/// Finished and half-finished nodes of one level, in order.
struct Level<A: NodeAlloc, const F: usize> {
    level: u8,
    first: *mut TreeNode<A, F>,
    last: *mut TreeNode<A, F>,
    count: usize,
    /// The distribution of slots: each of the next `wide` nodes receives `share + 1`, and each node after them `share`.
    share: usize,
    wide: usize,
    /// Number of slots that `last` still receives.
    room: usize,
}

impl<A: NodeAlloc, const F: usize> Level<A, F> {
    /// Plans nodes for `total` slots. `before` is the number of nodes that held these slots. With `at_end` the change
    /// lies at the end of these nodes, as in ascending insertion, and the plan leaves full nodes. Otherwise two nodes
    /// are not merged if the merged node would be nearly full. The next change of that node would split it again.
    fn plan(level: u8, total: usize, before: usize, at_end: bool) -> Self {
        let least = if before > 1 && !at_end && total > crowded(F) { 2 } else { 1 };
        let nodes = total.div_ceil(F).max(least);
        let (share, wide) = if at_end && nodes > 1 { (F, 0) } else { (total / nodes, total % nodes) };
        Level { level, first: ptr::null_mut(), last: ptr::null_mut(), count: 0, share, wide, room: 0 }
    }

    fn push(&mut self, from: &Source<A, F>, start: u64, end: u64, slot: *mut (), gap: u64) -> Result<(), OutOfMemory> {
        if self.room == 0 {
            let node = from.node(self.level)?;
            if self.first.is_null() {
                self.first = node;
            } else {
                // SAFETY: `last` is a new node of this row, which only the row's change reaches.
                unsafe { (*self.last).link.set(node) };
            }
            self.last = node;
            self.count += 1;
            self.room = self.share + usize::from(self.wide > 0);
            self.wide = self.wide.saturating_sub(1);
        }
        self.room -= 1;
        // SAFETY: `last` is a new node of this row, and `room` says that it is not full.
        unsafe { TreeNode::push(self.last, start, end, slot, gap) };
        Ok(())
    }

    /// Copies slots `range` of an existing node.
    ///
    /// # Safety
    /// `node` is alive, and the caller is the writer.
    unsafe fn copy(
        &mut self,
        from: &Source<A, F>,
        node: *mut TreeNode<A, F>,
        range: core::ops::Range<usize>,
    ) -> Result<(), OutOfMemory> {
        let mut range = range;
        while !range.is_empty() {
            if self.room == 0 {
                // SAFETY: by this function's contract.
                let (n, gap) = unsafe { (&*node, TreeNode::gap(node, range.start)) };
                self.push(from, n.start(range.start), n.end(range.start), n.slot(range.start), gap)?;
                range.start += 1;
                continue;
            }
            let n = self.room.min(range.len());
            // SAFETY: `node` and the range keep to this function's contract; `last` is a new node of this row, with
            // room for `n`.
            unsafe { TreeNode::append(self.last, node, range.start..range.start + n) };
            self.room -= n;
            range.start += n;
        }
        Ok(())
    }
}

/// The source of a tree's new nodes. Only the writer uses the fields after `alloc`, and writes them at each change. So
/// the source has cache lines of its own.
#[repr(C, align(64))]
pub(super) struct Source<A: NodeAlloc, const F: usize> {
    pub alloc: A,
    /// The list of leaves and the list of inner nodes that were set aside, for a later change that must not fail.
    aside: [Cell<*mut TreeNode<A, F>>; 2],
    /// Number of commits after which the unused nodes of `aside` are freed.
    awaited: Cell<u8>,
    /// The path to the change that was prepared last. It is stored here and not in [`Change`], because a change is
    /// moved from call to call.
    path: UnsafeCell<Path<A, F>>,
    /// Number of changes prepared so far, modulo 2^32.
    number: Cell<u32>,
}

impl<A: NodeAlloc, const F: usize> Source<A, F> {
    pub fn new(alloc: A) -> Self {
        Source {
            alloc,
            aside: [Cell::new(ptr::null_mut()), Cell::new(ptr::null_mut())],
            awaited: Cell::new(0),
            path: UnsafeCell::new(Path::new()),
            number: Cell::new(0),
        }
    }

    /// The number for the next change.
    fn next(&self) -> u32 {
        self.number.set(self.number.get().wrapping_add(1));
        self.number.get()
    }

    fn node(&self, level: u8) -> Result<*mut TreeNode<A, F>, OutOfMemory> {
        let list = &self.aside[usize::from(level > 0)];
        let node = list.get();
        if node.is_null() {
            return TreeNode::new(self.alloc, level);
        }
        // SAFETY: nodes that were set aside are on this list alone, and the writer has it.
        unsafe {
            list.set((*node).link.get());
            (*node).link.set(ptr::null_mut());
            (*node).level = level;
        }
        Ok(node)
    }

    fn fill(&self, level: u8, count: usize) -> Result<(), OutOfMemory> {
        let list = &self.aside[usize::from(level > 0)];
        for _ in 0..count {
            let node = TreeNode::new(self.alloc, level)?;
            // SAFETY: `TreeNode::new` has just made the node, and no other code has its address yet.
            unsafe { (*node).link.set(list.get()) };
            list.set(node);
        }
        Ok(())
    }

    /// Counts a commit. Frees the nodes that were set aside if no later change awaits them.
    fn committed(&self) {
        match self.awaited.get() {
            0 | 1 => self.empty(),
            n => self.awaited.set(n - 1),
        }
    }

    fn empty(&self) {
        self.awaited.set(0);
        for list in &self.aside {
            let mut at = list.replace(ptr::null_mut());
            while !at.is_null() {
                // SAFETY: nodes that were set aside are on this list alone, and the writer has it.
                unsafe {
                    let next = (*at).link.get();
                    TreeNode::free(at);
                    at = next;
                }
            }
        }
    }
}

/// Appends the list that starts at `list` to `onto`.
///
/// # Safety
/// The nodes are linked, and only the caller reaches them.
unsafe fn chain<A: NodeAlloc, const F: usize>(list: *mut TreeNode<A, F>, onto: &mut *mut TreeNode<A, F>) {
    let mut at = list;
    while !at.is_null() {
        // SAFETY: by this function's contract.
        unsafe {
            let next = (*at).link.get();
            (*at).link.set(*onto);
            *onto = at;
            at = next;
        }
    }
}

/// The neighbour with which a thin node merges: `before`, `after`, or none (both null).
struct Neighbour<A: NodeAlloc, const F: usize> {
    before: *mut TreeNode<A, F>,
    after: *mut TreeNode<A, F>,
    slots: usize,
}

impl<A: NodeAlloc, const F: usize> Neighbour<A, F> {
    /// Finds the neighbour to merge with a new node of `total` slots, which replaces the nodes from `left` to `right`
    /// at `level`. There is a neighbour to merge with only if the new node is thin and both nodes fit into one.
    ///
    /// # Safety
    /// The caller is the writer, and the paths lead through its tree.
    unsafe fn of_thin(left: &Path<A, F>, right: &Path<A, F>, level: usize, total: usize) -> Self {
        let mut found = Neighbour { before: ptr::null_mut(), after: ptr::null_mut(), slots: 0 };
        if level + 1 < left.height() && total > 0 && total <= thin(F) {
            let (li, ri) = (left.index(level + 1), right.index(level + 1));
            let (lp, rp) = (left.node(level + 1), right.node(level + 1));
            // SAFETY: by this function's contract, reachable nodes stay, and only the caller changes them.
            unsafe {
                if li > 0 && (*(*lp).child(li - 1)).len() + total < F - 1 {
                    found.before = (*lp).child(li - 1);
                    found.slots = (*found.before).len();
                } else if ri + 1 < (*rp).len() && (*(*rp).child(ri + 1)).len() + total < F - 1 {
                    found.after = (*rp).child(ri + 1);
                    found.slots = (*found.after).len();
                }
            }
        }
        found
    }
}

impl<T, A: NodeAlloc, const F: usize> Change<T, A, F> {
    /// Adds `node` to the replaced nodes, if it is not null.
    ///
    /// # Safety
    /// The caller is the writer, and the node is in its tree and in no list.
    unsafe fn replace_one(&mut self, node: *mut TreeNode<A, F>) {
        if !node.is_null() {
            // SAFETY: by this function's contract.
            unsafe { (*node).link.set(self.replaced) };
            self.replaced = node;
        }
    }

    /// Adds a row of nodes of `level` to the replaced nodes: from the node on the path `from` to the node `last`.
    ///
    /// # Safety
    /// As [`replace_one`](Self::replace_one), for all of these nodes. `last` is not left of the path.
    unsafe fn replace_between(&mut self, mut from: Path<A, F>, last: *mut TreeNode<A, F>, level: usize) {
        loop {
            let node = from.node(level);
            // SAFETY: by this function's contract.
            unsafe { self.replace_one(node) };
            if node == last {
                break;
            }
            // SAFETY: by this function's contract.
            let more = unsafe { from.advance(level) };
            debug_assert!(more, "the right path lies right of the left one");
        }
    }
}

impl<T, A: NodeAlloc, const F: usize> Tree<T, A, F> {
    /// Prepares to replace the items that start in `lo..hi` by `items`: `count` disjoint items, ascending, that lie in
    /// `lo..hi` and overlap no other item. Readers see no change before the commit. After an error the tree is
    /// unchanged.
    pub fn prepare(
        &self,
        _owner: &mut Owner,
        lo: u64,
        hi: u64,
        count: usize,
        items: impl Iterator<Item = Item<T>>,
    ) -> Result<Change<T, A, F>, OutOfMemory> {
        let mut change = Change {
            built: ptr::null_mut(),
            replaced: ptr::null_mut(),
            top: ptr::null_mut(),
            parent: None,
            number: self.source.next(),
            value: ptr::null_mut(),
            delta: count as isize,
            _values: PhantomData,
        };
        debug_assert!(lo < hi);
        let mut items = items.peekable();
        let root = self.root.load(Ordering::Relaxed);
        let mut below = Level::<A, F>::plan(0, count, 1, true);
        if root.is_null() {
            self.fill(&mut change, &mut below, |row, from| row.take(from, &mut items, count))?;
            return self.crown(change, below);
        }
        if let Some(done) = self.prepare_leaf(root, lo, hi, count, &mut items)? {
            return Ok(done);
        }
        let (mut left, mut right) = (Path::new(), Path::new());
        // SAFETY: the caller is the writer (`Owner`): reachable nodes stay, and only this code changes them.
        unsafe {
            left.descend(root, |n| n.route(lo));
            right.descend(root, |n| n.route(hi.saturating_sub(1)));
            left.set(0, starting_before(&*left.node(0), lo));
            right.set(0, starting_before(&*right.node(0), hi));
            change.delta -= distance(&left, &right) as isize;
            // A change that adds items at the end is likely to be followed by another one there, as in ascending
            // insertion.
            let mut appends = change.delta > 0;
            for level in 0..left.height() {
                let (l, r) = (left.node(level), right.node(level));
                let (keep, resume) = (left.index(level), right.index(level) + usize::from(level > 0));
                let new = if level == 0 { count } else { below.count };
                let mut total = keep + new + ((*r).len() - resume);
                let Neighbour { before, after, slots } = Neighbour::of_thin(&left, &right, level, total);
                total += slots;
                appends &= resume == (*r).len();
                let at_end = appends && after.is_null();
                let mut row = Level::plan(level as u8, total, 1 + usize::from(l != r), at_end);
                self.fill(&mut change, &mut row, |row, from| {
                    if !before.is_null() {
                        row.copy(from, before, 0..(*before).len())?;
                    }
                    row.copy(from, l, 0..keep)?;
                    if level == 0 {
                        row.take(from, &mut items, count)?;
                    } else {
                        row.adopt(from, below.first)?;
                    }
                    row.copy(from, r, resume..(*r).len())?;
                    if !after.is_null() {
                        row.copy(from, after, 0..(*after).len())?;
                    }
                    Ok(())
                })
                .inspect_err(|_| chain(below.first, &mut change.built))?;
                chain(below.first, &mut change.built);
                below = row;
                change.replace_between(left, r, level);
                [before, after].into_iter().for_each(|extra| change.replace_one(extra));
                if level + 1 == left.height() {
                    break;
                }
                if !before.is_null() {
                    left.set(level + 1, left.index(level + 1) - 1);
                }
                if !after.is_null() {
                    right.set(level + 1, right.index(level + 1) + 1);
                }
                if below.count == 1
                    && left.node(level + 1) == right.node(level + 1)
                    && left.index(level + 1) == right.index(level + 1)
                {
                    change.top = below.first;
                    chain(below.first, &mut change.built);
                    change.parent = Some(level + 1);
                    *self.source.path.get() = left;
                    return Ok(change);
                }
            }
        }
        self.crown(change, below)
    }

    /// Prepares the usual changes: a leaf is replaced by one leaf, or a value by another of the same range. Returns
    /// `None` for any other change.
    #[inline]
    fn prepare_leaf(
        &self,
        root: *mut TreeNode<A, F>,
        lo: u64,
        hi: u64,
        count: usize,
        items: &mut Peekable<impl Iterator<Item = Item<T>>>,
    ) -> Result<Option<Change<T, A, F>>, OutOfMemory> {
        // SAFETY: the caller is the writer: reachable nodes stay, and only this code changes them; the path is the
        // writer's too.
        unsafe {
            let path = &mut *self.source.path.get();
            let bound = path.descend_below(root, lo);
            let leaf = path.node(0);
            let n = &*leaf;
            if hi > bound {
                return Ok(None);
            }
            let keep = starting_before(n, lo);
            let mut resume = keep;
            while resume < n.len() && n.start(resume) < hi {
                resume += 1;
            }
            if count == 1
                && resume == keep + 1
                && let Some(item) = items.next_if(|item| item.start == n.start(keep) && item.end == n.end(keep))
            {
                path.set(0, keep);
                return Ok(Some(Change {
                    built: ptr::null_mut(),
                    replaced: ptr::null_mut(),
                    top: ptr::null_mut(),
                    parent: Some(0),
                    number: self.source.next(),
                    value: item.value.as_ptr().cast(),
                    delta: 0,
                    _values: PhantomData,
                }));
            }
            let total = keep + count + n.len() - resume;
            if total > F || total == 0 || (total <= thin(F) && path.height() > 1) {
                return Ok(None);
            }
            let new = self.source.node(0)?;
            TreeNode::append(new, leaf, 0..keep);
            for item in items.take(count) {
                TreeNode::push(new, item.start, item.end, item.value.as_ptr().cast(), 0);
            }
            TreeNode::append(new, leaf, resume..n.len());
            debug_assert_eq!((*new).len(), total, "the number of items equals the announced one");
            n.link.set(ptr::null_mut());
            Ok(Some(Change {
                built: new,
                replaced: leaf,
                top: new,
                parent: (path.height() > 1).then_some(1),
                number: self.source.next(),
                value: ptr::null_mut(),
                delta: count as isize - (resume - keep) as isize,
                _values: PhantomData,
            }))
        }
    }

    /// Runs `f` to fill `row`. If that fails, the row's nodes go to the change, which frees them.
    fn fill(
        &self,
        change: &mut Change<T, A, F>,
        row: &mut Level<A, F>,
        f: impl FnOnce(&mut Level<A, F>, &Source<A, F>) -> Result<(), OutOfMemory>,
    ) -> Result<(), OutOfMemory> {
        f(row, &self.source).inspect_err(|_| {
            // SAFETY: the row's nodes are new, linked, and reached by this change alone.
            unsafe { chain(row.first, &mut change.built) };
            row.first = ptr::null_mut();
        })
    }

    /// Adds levels above `below` until one node is left. Then removes the top levels that have only one child.
    fn crown(&self, mut change: Change<T, A, F>, mut below: Level<A, F>) -> Result<Change<T, A, F>, OutOfMemory> {
        // SAFETY: the rows' nodes are new and reached by this change alone; below them hang nodes that only the writer
        // changes.
        unsafe {
            while below.count > 1 {
                let level = below.level + 1;
                if level as usize >= MAX_LEVELS {
                    chain(below.first, &mut change.built);
                    return Err(OutOfMemory);
                }
                let mut row = Level::plan(level, below.count, 1, true);
                let done = self.fill(&mut change, &mut row, |row, from| row.adopt(from, below.first));
                chain(below.first, &mut change.built);
                done?;
                below = row;
            }
            let mut top = below.first;
            chain(below.first, &mut change.built);
            while !top.is_null() && (*top).level > 0 && (*top).len() == 1 {
                let only = (*top).child(0);
                if !change.unbuild(top) {
                    // The node is not new, so it is retired with the replaced nodes.
                    (*top).link.set(change.replaced);
                    change.replaced = top;
                }
                top = only;
            }
            change.top = top;
        }
        Ok(change)
    }

    /// Publishes `change` by one store, updates the triples (first address, last address, largest gap) of the
    /// ancestors, and retires the replaced nodes. Cannot fail (relies on C3: the publication is a step that cannot
    /// fail).
    pub fn commit(&self, _owner: &mut Owner, mut change: Change<T, A, F>) {
        self.len.store(self.len.load(Ordering::Relaxed).wrapping_add_signed(change.delta), Ordering::Relaxed);
        debug_assert_eq!(change.number, self.source.number.get(), "a change is committed before the next is prepared");
        // SAFETY: the caller is the writer, and nothing was changed since `prepare` (the owner was borrowed for both).
        unsafe {
            let path = &*self.source.path.get();
            match change.parent {
                None => self.root.store(change.top, Ordering::Release),
                // Only a value is replaced: no triple changes.
                Some(0) => (*path.node(0)).publish(path.index(0), change.value),
                Some(level) => {
                    (*path.node(level)).publish(path.index(level), change.top.cast());
                    Self::renew_ancestors(path, level, &change);
                }
            }
            let mut at = core::mem::replace(&mut change.replaced, ptr::null_mut());
            while !at.is_null() {
                let next = (*at).link.get();
                TreeNode::retire(at);
                at = next;
            }
        }
        // From now on the new nodes belong to the tree.
        change.built = ptr::null_mut();
        self.source.committed();
    }

    /// Stores the triple (first address, end, largest gap) of `change.top` in its parent at `level`. Then updates the
    /// triples of the ancestors, upwards, until a triple does not change.
    ///
    /// # Safety
    /// The caller is the writer, and has published the change.
    unsafe fn renew_ancestors(path: &Path<A, F>, level: usize, change: &Change<T, A, F>) {
        // SAFETY: by this function's contract.
        unsafe {
            let mut new = TreeNode::summary(change.top);
            // If one leaf replaces one leaf, the old leaf was just read completely. So its triple is computed from the
            // leaf itself, without a read of its parent's arrays.
            let lone = level == 1 && (*change.replaced).link.get().is_null() && (*change.replaced).level == 0;
            let mut old = if lone {
                TreeNode::summary(change.replaced)
            } else {
                TreeNode::said(path.node(level), path.index(level))
            };
            for l in level..path.height() {
                let (node, i) = (path.node(l), path.index(l));
                TreeNode::renew(node, i, old, new);
                if old == new || l + 1 == path.height() {
                    return;
                }
                let (parent, at) = (path.node(l + 1), path.index(l + 1));
                if (old.first, old.last) == (new.first, new.last) {
                    // The child's ends did not change, nor did the holes beside it, so only its gap matters. `old` and
                    // `new` keep equal ends for the next level.
                    let own = TreeNode::gap(parent, at);
                    let gap = if new.gap >= own {
                        new.gap
                    } else if old.gap < own {
                        return;
                    } else {
                        TreeNode::summary(node).gap
                    };
                    (old, new) = (Summary { gap: own, ..old }, Summary { gap, ..old });
                } else {
                    let own = TreeNode::said(parent, at);
                    new = TreeNode::summary_after(node, i, own, old, new);
                    old = own;
                }
            }
        }
    }

    /// Replaces the item that has exactly the range of `item`, by one store: a reader finds the old item or the new
    /// one. Returns the old value. If no item has the range, returns `None` and changes nothing. Allocates nothing.
    pub(crate) fn replace(&self, _owner: &mut Owner, item: Item<T>) -> Option<NonNull<T>> {
        let mut node = self.root.load(Ordering::Relaxed);
        if node.is_null() {
            return None;
        }
        // SAFETY: the caller is the writer, so reachable nodes stay.
        unsafe {
            while (*node).level > 0 {
                node = (*node).child((*node).route(item.start));
            }
            let i = (*node).count_starting_at_or_before(item.start).checked_sub(1)?;
            if (*node).start(i) != item.start || (*node).end(i) != item.end {
                return None;
            }
            let old = (*node).item::<T>(i).value;
            (*node).publish(i, item.value.as_ptr().cast());
            Some(old)
        }
    }

    /// Sets nodes aside, so that the `prepare` of the second change after this call cannot fail. That change replaces a
    /// range by at most three items. Its commit frees the unused nodes.
    pub(crate) fn set_aside(&self, _owner: &mut Owner) -> Result<(), OutOfMemory> {
        let root = self.root.load(Ordering::Relaxed);
        // SAFETY: the caller is the writer, so the root stays.
        let height = 1 + if root.is_null() { 0 } else { unsafe { (*root).level as usize + 1 } };
        // A level needs at most the slots of two old nodes and three more slots, so three nodes suffice. A new root may
        // be added above.
        let filled = self.source.fill(0, 3).and_then(|()| self.source.fill(1, 3 * height));
        self.source.awaited.set(2);
        filled.inspect_err(|_| self.source.empty())
    }
}

impl<A: NodeAlloc, const F: usize> Level<A, F> {
    fn take<T>(
        &mut self,
        from: &Source<A, F>,
        items: &mut impl Iterator<Item = Item<T>>,
        count: usize,
    ) -> Result<(), OutOfMemory> {
        let mut n = 0;
        for item in items.take(count) {
            self.push(from, item.start, item.end, item.value.as_ptr().cast(), 0)?;
            n += 1;
        }
        debug_assert_eq!(n, count, "the number of items equals the announced one");
        Ok(())
    }

    /// Appends the new nodes of the next lower level as children.
    ///
    /// # Safety
    /// The nodes are linked, and only the caller reaches them.
    unsafe fn adopt(&mut self, from: &Source<A, F>, list: *mut TreeNode<A, F>) -> Result<(), OutOfMemory> {
        let mut child = list;
        while !child.is_null() {
            // SAFETY: by this function's contract.
            unsafe {
                let s = TreeNode::summary(child);
                self.push(from, s.first, s.last, child.cast(), s.gap)?;
                child = (*child).link.get();
            }
        }
        Ok(())
    }
}

/// The number of items in the leaf that start before `at`.
fn starting_before<A: NodeAlloc, const F: usize>(leaf: &TreeNode<A, F>, at: u64) -> usize {
    if at == 0 { 0 } else { leaf.count_starting_at_or_before(at - 1) }
}

/// The number of items between the place of the path `left` and that of `right`.
///
/// # Safety
/// The caller is the writer.
unsafe fn distance<A: NodeAlloc, const F: usize>(left: &Path<A, F>, right: &Path<A, F>) -> usize {
    let mut walk = *left;
    let mut from = left.index(0);
    let mut n = 0;
    // SAFETY: by this function's contract.
    unsafe {
        while walk.node(0) != right.node(0) {
            n += (*walk.node(0)).len() - from;
            from = 0;
            if !walk.advance(0) {
                return n;
            }
        }
    }
    n + right.index(0).saturating_sub(from)
}

impl<T, A: NodeAlloc, const F: usize> Change<T, A, F> {
    /// Removes `node` from the new nodes and frees it. Returns false if it is not a new node.
    ///
    /// # Safety
    /// No pointer refers to `node` any more.
    unsafe fn unbuild(&mut self, node: *mut TreeNode<A, F>) -> bool {
        let (mut before, mut at) = (ptr::null_mut::<TreeNode<A, F>>(), self.built);
        // SAFETY: `built` links new nodes of this change, and no reader reaches them.
        unsafe {
            while !at.is_null() && at != node {
                before = at;
                at = (*at).link.get();
            }
            if at.is_null() {
                return false;
            }
            let next = (*at).link.get();
            if before.is_null() {
                self.built = next
            } else {
                (*before).link.set(next)
            }
            TreeNode::free(at);
        }
        true
    }
}

impl<T, A: NodeAlloc, const F: usize> Drop for Change<T, A, F> {
    fn drop(&mut self) {
        let mut at = self.built;
        while !at.is_null() {
            // SAFETY: a commit empties `built`, so its nodes were never published, and only this change reaches them.
            unsafe {
                let next = (*at).link.get();
                TreeNode::free(at);
                at = next;
            }
        }
    }
}
