//! Intrusive doubly linked lists. The links are in the nodes, so no memory is allocated. Every operation is O(1).
//!
//! A node may be on several lists at once through several [`Links`]; an [`Adapter`] selects the links that a list uses.

use core::cell::Cell;
use core::marker::PhantomData;
use core::ptr::NonNull;
use quire_sync::record;

/// A node's links on one list. Guarded by the lock of the list.
pub struct Links<T> {
    next: Cell<Option<NonNull<T>>>,
    prev: Cell<Option<NonNull<T>>>,
}

impl<T> Links<T> {
    /// The links of a node that is on no list.
    pub const fn new() -> Self {
        Links { next: Cell::new(None), prev: Cell::new(None) }
    }

    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    fn set_next(&self, to: Option<NonNull<T>>) {
        record::wrote(&self.next);
        self.next.set(to);
    }

    #[inline(always)]
    #[cfg_attr(recording, track_caller)]
    fn set_prev(&self, to: Option<NonNull<T>>) {
        record::wrote(&self.prev);
        self.prev.set(to);
    }
}

impl<T> Default for Links<T> {
    fn default() -> Self {
        Self::new()
    }
}

// SAFETY: links are read and written only by the list's functions, whose callers hold the list's lock.
unsafe impl<T> Send for Links<T> {}
// SAFETY: shared links are read and written only by the list's functions, whose callers hold the list's lock.
unsafe impl<T> Sync for Links<T> {}

/// Selects the links of a node for one kind of list.
///
/// # Safety
/// `links` must always return the same field of the node, and no other adapter may use that field.
pub unsafe trait Adapter {
    /// The type of the nodes.
    type Node;
    /// The node's links for this kind of list.
    fn links(node: &Self::Node) -> &Links<Self::Node>;
}

/// A list. The list's owner guards the list and the links of the nodes on it.
pub struct List<A: Adapter> {
    first: Option<NonNull<A::Node>>,
    last: Option<NonNull<A::Node>>,
    _adapter: PhantomData<A>,
}

// SAFETY: a list only holds pointers. The callers of its unsafe functions vouch for the nodes.
unsafe impl<A: Adapter> Send for List<A> where A::Node: Sync {}

impl<A: Adapter> List<A> {
    /// An empty list.
    pub const fn new() -> Self {
        List { first: None, last: None, _adapter: PhantomData }
    }

    /// Whether no node is on the list.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The first node.
    pub fn first(&self) -> Option<NonNull<A::Node>> {
        self.first
    }

    /// The last node.
    pub fn last(&self) -> Option<NonNull<A::Node>> {
        self.last
    }

    /// The node after `node`.
    ///
    /// # Safety
    /// `node` is on this list.
    pub unsafe fn next(&self, node: NonNull<A::Node>) -> Option<NonNull<A::Node>> {
        // SAFETY: nodes on a list are alive.
        let links = A::links(unsafe { node.as_ref() });
        record::read(links);
        links.next.get()
    }

    /// Inserts `node` at the front.
    ///
    /// # Safety
    /// `node` is on no list of this adapter, and stays alive and in place while it is on this one.
    #[cfg_attr(recording, track_caller)]
    pub unsafe fn push_front(&mut self, node: NonNull<A::Node>) {
        // SAFETY: the node is alive by the caller's word, its neighbours because they are listed.
        let links = unsafe { A::links(node.as_ref()) };
        links.set_prev(None);
        links.set_next(self.first);
        match self.first {
            // SAFETY: the first node is on the list, so it is alive.
            Some(f) => unsafe { A::links(f.as_ref()) }.set_prev(Some(node)),
            None => self.last = Some(node),
        }
        self.first = Some(node);
    }

    /// Appends `node` at the end.
    ///
    /// # Safety
    /// As [`push_front`](Self::push_front).
    #[cfg_attr(recording, track_caller)]
    pub unsafe fn push_back(&mut self, node: NonNull<A::Node>) {
        // SAFETY: the node is alive by the caller's word, its neighbours because they are listed.
        let links = unsafe { A::links(node.as_ref()) };
        links.set_next(None);
        links.set_prev(self.last);
        match self.last {
            // SAFETY: the last node is on the list, so it is alive.
            Some(l) => unsafe { A::links(l.as_ref()) }.set_next(Some(node)),
            None => self.first = Some(node),
        }
        self.last = Some(node);
    }

    /// Inserts `node` after the node `after`, or at the front if `after` is `None`.
    ///
    /// # Safety
    /// As [`push_front`](Self::push_front), and `after` is on this list.
    #[cfg_attr(recording, track_caller)]
    pub unsafe fn insert_after(&mut self, after: Option<NonNull<A::Node>>, node: NonNull<A::Node>) {
        // SAFETY: the contract of `push_front` and `push_back` is that of this function. Nodes on a list are alive.
        unsafe {
            let Some(after) = after else { return self.push_front(node) };
            let Some(next) = A::links(after.as_ref()).next.get() else { return self.push_back(node) };
            let links = A::links(node.as_ref());
            links.set_prev(Some(after));
            links.set_next(Some(next));
            A::links(after.as_ref()).set_next(Some(node));
            A::links(next.as_ref()).set_prev(Some(node));
        }
    }

    /// Removes and returns the first node; `None` if the list is empty.
    #[cfg_attr(recording, track_caller)]
    pub fn pop_front(&mut self) -> Option<NonNull<A::Node>> {
        let node = self.first?;
        // SAFETY: `first` is on this list: it was read just now, under `&mut self`.
        unsafe { self.remove(node) };
        Some(node)
    }

    /// Removes `node`.
    ///
    /// # Safety
    /// `node` is on this list.
    #[cfg_attr(recording, track_caller)]
    pub unsafe fn remove(&mut self, node: NonNull<A::Node>) {
        // SAFETY: nodes on a list are alive, and so are their neighbours.
        unsafe {
            let links = A::links(node.as_ref());
            record::wrote(links);
            let (prev, next) = (links.prev.take(), links.next.take());
            match prev {
                Some(p) => A::links(p.as_ref()).set_next(next),
                None => self.first = next,
            }
            match next {
                Some(n) => A::links(n.as_ref()).set_prev(prev),
                None => self.last = prev,
            }
        }
    }

    /// The nodes, first to last. The list must not change during the iteration.
    pub fn iter(&self) -> impl Iterator<Item = NonNull<A::Node>> + '_ {
        let mut at = self.first;
        core::iter::from_fn(move || {
            let node = at?;
            // SAFETY: the node is on the list, which is borrowed and so does not change.
            at = unsafe { self.next(node) };
            Some(node)
        })
    }
}

impl<A: Adapter> Default for List<A> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[allow(clippy::undocumented_unsafe_blocks)] // all memory is the test's own
mod tests {
    use super::*;

    struct TestNode(u32, Links<TestNode>);
    struct Only;
    // SAFETY: a node has one field of links, and no other adapter uses it.
    unsafe impl Adapter for Only {
        type Node = TestNode;
        fn links(node: &TestNode) -> &Links<TestNode> {
            &node.1
        }
    }

    #[test]
    fn nodes_come_and_go_at_both_ends_and_in_the_middle() {
        let nodes: Vec<TestNode> = (0..5).map(|i| TestNode(i, Links::new())).collect();
        let mut list = List::<Only>::new();
        let at = |i: usize| NonNull::from(&nodes[i]);
        let order = |l: &List<Only>| l.iter().map(|n| unsafe { n.as_ref() }.0).collect::<Vec<_>>();
        unsafe {
            list.push_back(at(1));
            list.push_back(at(2));
            list.push_front(at(0));
            list.push_back(at(3));
            assert_eq!(order(&list), [0, 1, 2, 3]);
            list.remove(at(2));
            list.remove(at(0));
            list.remove(at(3));
            assert_eq!(order(&list), [1]);
            list.push_front(at(4));
            list.insert_after(Some(at(4)), at(2));
            list.insert_after(Some(at(1)), at(3));
            list.insert_after(None, at(0));
            assert_eq!(order(&list), [0, 4, 2, 1, 3]);
            for n in [3, 1, 2, 0] {
                list.remove(at(n));
            }
            assert_eq!(order(&list), [4]);
        }
        assert_eq!(list.pop_front(), Some(at(4)));
        assert!(list.is_empty() && list.pop_front().is_none());
    }
}
