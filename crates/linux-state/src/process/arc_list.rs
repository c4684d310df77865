//! Intrusive lists of reference-counted nodes. The links are inside the nodes, so every operation is O(1) and none
//! allocates.

use core::cell::Cell;
use core::ptr::NonNull;
use quire_heap::Arc;
use quire_task::list::{Adapter, Links, List};

/// The links of a node for one kind of list. The lock of the list that the node is on guards them.
pub struct ListPlace<T> {
    links: Links<T>,
    /// The id of the list that the node is on; 0: none.
    on: Cell<usize>,
}

// SAFETY: only `ArcList`'s methods access a place, and one lock guards their lists and the places of their nodes.
unsafe impl<T> Send for ListPlace<T> {}
// SAFETY: only `ArcList`'s methods access the cells of a shared place, and one lock guards their lists.
unsafe impl<T> Sync for ListPlace<T> {}

impl<T> Default for ListPlace<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> ListPlace<T> {
    /// The place of a node that is on no list.
    pub const fn new() -> Self {
        ListPlace { links: Links::new(), on: Cell::new(0) }
    }
}

/// Selects a node's [`ListPlace`] for one kind of list.
///
/// # Safety
/// `place` always returns the same field, and no other kind uses that field. The locks of all lists that a node may be
/// on ensure that two threads never access one place at the same time.
pub unsafe trait ListKind: 'static {
    /// The nodes' type.
    type Node;
    /// The place of `node` for this kind.
    fn place(node: &Self::Node) -> &ListPlace<Self::Node>;
}

struct ByKind<K>(core::marker::PhantomData<K>);
// SAFETY: by the contract of `ListKind`, `place` returns one fixed field of each node, and `links` is a field of that
// place.
unsafe impl<K: ListKind> Adapter for ByKind<K> {
    type Node = K::Node;
    fn links(node: &K::Node) -> &Links<K::Node> {
        &K::place(node).links
    }
}

/// An iteration over a list that may change between the steps. Each node that is on the list from the beginning of the
/// walk to its end is visited once. The walk is on the stack of the iterating thread, and is registered with the list.
/// A thread that removes the walk's next node advances the walk. The list's lock guards the walk.
pub struct Walk<K: ListKind> {
    links: Links<Walk<K>>,
    next: Cell<Option<NonNull<K::Node>>>,
}

// SAFETY: after the walk has begun, only the methods of its list access it. One lock guards the list and the walk.
unsafe impl<K: ListKind> Send for Walk<K> {}
// SAFETY: only the methods of its list access the cells of a shared walk. One lock guards the list and the walk.
unsafe impl<K: ListKind> Sync for Walk<K> {}

impl<K: ListKind> Default for Walk<K> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: ListKind> Walk<K> {
    /// A walk that has not begun.
    pub const fn new() -> Self {
        Walk { links: Links::new(), next: Cell::new(None) }
    }
}

struct Walks<K>(core::marker::PhantomData<K>);
// SAFETY: a walk has one field of links, and does not move while it is listed.
unsafe impl<K: ListKind> Adapter for Walks<K> {
    type Node = Walk<K>;
    fn links(node: &Walk<K>) -> &Links<Walk<K>> {
        &node.links
    }
}

/// A list that holds one reference to each node on it.
pub struct ArcList<K: ListKind> {
    list: List<ByKind<K>>,
    /// The walks that have begun and have not ended.
    walks: List<Walks<K>>,
    /// The list's id, different from the ids of other lists of its kind. An id is used because the list's address may
    /// change.
    id: usize,
    len: usize,
}

impl<K: ListKind> ArcList<K> {
    /// An empty list. `id` is not 0, and differs from the id of every other list that its nodes may be on.
    pub const fn new(id: usize) -> Self {
        ArcList { list: List::new(), walks: List::new(), id, len: 0 }
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the list has no nodes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Appends a node. Returns the node in `Err` if it is already on a list of this kind.
    pub fn push(&mut self, node: Arc<K::Node>) -> Result<(), Arc<K::Node>> {
        let place = K::place(&node);
        if place.on.get() != 0 {
            return Err(node);
        }
        place.on.set(self.id);
        self.len += 1;
        // SAFETY: the node is on no list of this kind. It does not move, because the list takes over a reference to it.
        unsafe { self.list.push_back(NonNull::new_unchecked(Arc::into_raw(node).cast_mut())) };
        Ok(())
    }

    /// Removes `node` and returns the list's reference to it; `None` if it is not on this list.
    pub fn remove(&mut self, node: &K::Node) -> Option<Arc<K::Node>> {
        let place = K::place(node);
        if place.on.get() != self.id {
            return None;
        }
        place.on.set(0);
        self.len -= 1;
        if !self.walks.is_empty() {
            self.pass_over(node);
        }
        // SAFETY: the node is on this list, which gives back the reference that it took in `push`.
        unsafe {
            self.list.remove(NonNull::from(node));
            Some(Arc::from_raw(core::ptr::from_ref(node)))
        }
    }

    /// Advances walks whose next node is `node`, which is about to be removed.
    #[cold]
    fn pass_over(&mut self, node: &K::Node) {
        for walk in self.walks.iter() {
            // SAFETY: a walk stays in place until it has ended.
            let next = unsafe { &walk.as_ref().next };
            if next.get() == Some(NonNull::from(node)) {
                // SAFETY: the node is still on the list.
                next.set(unsafe { self.list.next(NonNull::from(node)) });
            }
        }
    }

    /// Begins a walk.
    ///
    /// # Safety
    /// `walk` has begun on no list. It stays in place until [`end_walk`](Self::end_walk), and ends before the list is
    /// dropped.
    pub unsafe fn begin_walk(&mut self, walk: &Walk<K>) {
        walk.next.set(self.list.first());
        // SAFETY: the caller ensures that the walk is on no list, and does not move before `end_walk`.
        unsafe { self.walks.push_back(NonNull::from(walk)) };
    }

    /// Returns the next node of a walk over this list, with a new reference; `None` at the end.
    pub fn step(&mut self, walk: &Walk<K>) -> Option<Arc<K::Node>> {
        let node = walk.next.get()?;
        // SAFETY: a remover of the walk's next node advances the walk, so this node is on the list.
        unsafe {
            walk.next.set(self.list.next(node));
            self.counted(node.as_ref())
        }
    }

    /// Ends a walk.
    ///
    /// # Safety
    /// `walk` has begun on this list and has not ended.
    pub unsafe fn end_walk(&mut self, walk: &Walk<K>) {
        // SAFETY: the caller ensures that the walk has begun on this list and has not ended, so it is among `walks`.
        unsafe { self.walks.remove(NonNull::from(walk)) };
    }

    /// Removes the first node.
    pub fn pop(&mut self) -> Option<Arc<K::Node>> {
        let node = self.list.first()?;
        // SAFETY: nodes on the list are alive.
        self.remove(unsafe { node.as_ref() })
    }

    /// Whether `node` is on this list.
    pub fn has(&self, node: &K::Node) -> bool {
        K::place(node).on.get() == self.id
    }

    /// The first node.
    pub fn first(&self) -> Option<&K::Node> {
        // SAFETY: nodes on the list are alive while it is borrowed.
        self.list.first().map(|node| unsafe { node.as_ref() })
    }

    /// The nodes, first to last.
    pub fn iter(&self) -> impl Iterator<Item = &K::Node> + '_ {
        // SAFETY: nodes on the list are alive while it is borrowed.
        self.list.iter().map(|node| unsafe { node.as_ref() })
    }

    /// A new reference to `node`; `None` if it is not on this list.
    pub fn counted(&self, node: &K::Node) -> Option<Arc<K::Node>> {
        if !self.has(node) {
            return None;
        }
        let raw = core::ptr::from_ref(node);
        // SAFETY: the list holds a reference made by `Arc::into_raw`, so the pointer points into a live `Arc`.
        unsafe {
            Arc::increment_strong_count(raw);
            Some(Arc::from_raw(raw))
        }
    }
}

impl<K: ListKind> Drop for ArcList<K> {
    fn drop(&mut self) {
        while self.pop().is_some() {}
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    struct TestNode(u32, ListPlace<TestNode>);
    struct Only;
    // SAFETY: there is one such field, and the test has one thread.
    unsafe impl ListKind for Only {
        type Node = TestNode;
        fn place(node: &TestNode) -> &ListPlace<TestNode> {
            &node.1
        }
    }

    #[test]
    fn a_list_owns_its_members_and_refuses_others() {
        let nodes: Vec<Arc<TestNode>> =
            (0..4).map(|n| Arc::try_new(TestNode(n, ListPlace::new())).expect("memory")).collect();
        let (mut a, mut b) = (ArcList::<Only>::new(1), ArcList::<Only>::new(2));
        for node in &nodes {
            assert!(a.push(node.clone()).is_ok());
        }
        assert!(b.push(nodes[0].clone()).is_err());
        assert!(b.remove(&nodes[0]).is_none());
        assert_eq!(a.remove(&nodes[1]).map(|n| n.0), Some(1));
        assert!(b.push(nodes[1].clone()).is_ok());
        assert_eq!(a.iter().map(|n| n.0).collect::<Vec<_>>(), [0, 2, 3]);
        assert_eq!(a.pop().map(|n| n.0), Some(0));
        drop((a, b));
        assert!(nodes.iter().all(|n| Arc::strong_count(n) == 1));
    }

    #[test]
    fn a_walk_meets_each_remaining_node_once_despite_removals() {
        // Every subset of five nodes is removed after every number of steps.
        for (gone, after) in (0u32..32).flat_map(|gone| (0..=5).map(move |after| (gone, after))) {
            let nodes: Vec<Arc<TestNode>> =
                (0..5).map(|n| Arc::try_new(TestNode(n, ListPlace::new())).expect("memory")).collect();
            let (mut list, mut other) = (ArcList::<Only>::new(1), ArcList::<Only>::new(2));
            nodes.iter().for_each(|node| assert!(list.push(node.clone()).is_ok()));
            let walk = Walk::new();
            // SAFETY: the walk ends below, before the list is dropped.
            unsafe { list.begin_walk(&walk) };
            let mut met: Vec<u32> = (0..after).filter_map(|_| list.step(&walk)).map(|n| n.0).collect();
            for node in nodes.iter().filter(|node| gone >> node.0 & 1 != 0) {
                let node = list.remove(node).expect("on the list");
                assert!(other.push(node).is_ok());
            }
            met.extend(core::iter::from_fn(|| list.step(&walk)).map(|n| n.0));
            // SAFETY: the walk was begun on this list, which stayed in place, and has not ended.
            unsafe { list.end_walk(&walk) };
            let expected: Vec<u32> = (0..5).filter(|n| *n < after || gone >> n & 1 == 0).collect();
            assert_eq!(met, expected, "{gone:b} go after {after}");
        }
    }
}
