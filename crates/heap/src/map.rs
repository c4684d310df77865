//! An ordered map whose entries are allocated one by one, before they are inserted.
//!
//! The map is a red-black tree ([`intrusive_collections`]). Removing an entry needs no memory, and inserting one needs
//! only the memory of the entry.

use crate::OutOfMemory;
use core::alloc::Layout;
use core::borrow::Borrow;
use core::fmt;
use core::mem::ManuallyDrop;
use core::ptr::NonNull;
use intrusive_collections::rbtree::{Cursor, Entry};
use intrusive_collections::{Bound, KeyAdapter, RBTree, RBTreeLink, UnsafeRef, intrusive_adapter};

/// An entry. The alignment gives each entry cache lines of its own, because holders of different maps may store into
/// entries that are neighbours in memory.
#[repr(align(64))]
struct MapNode<K, V> {
    link: RBTreeLink,
    key: K,
    value: V,
}

intrusive_adapter!(Nodes<K, V> = UnsafeRef<MapNode<K, V>>: MapNode<K, V> { link => RBTreeLink });

/// The key of a node, as the tree compares it.
struct KeyOf<'a, K>(&'a K);

/// A key to search for, in any form in which `K` can be borrowed (such as a slice of a vector).
#[repr(transparent)]
struct Sought<Q: ?Sized>(Q);

impl<Q: ?Sized> Sought<Q> {
    fn new(key: &Q) -> &Self {
        // SAFETY: `Self` is `repr(transparent)` over `Q`, so the pointers have one layout and one metadata.
        unsafe { &*(core::ptr::from_ref(key) as *const Self) }
    }
}

impl<'a, K: Borrow<Q>, Q: ?Sized> Borrow<Sought<Q>> for KeyOf<'a, K> {
    fn borrow(&self) -> &Sought<Q> {
        Sought::new(self.0.borrow())
    }
}

macro_rules! compare {
    ([$($g:tt)*] $t:ty, $a:ident => $by:expr) => {
        impl<$($g)*> PartialEq for $t {
            fn eq(&self, other: &Self) -> bool {
                self.cmp(other).is_eq()
            }
        }
        impl<$($g)*> Eq for $t {}
        impl<$($g)*> PartialOrd for $t {
            fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
                Some(self.cmp(other))
            }
        }
        impl<$($g)*> Ord for $t {
            fn cmp(&self, other: &Self) -> core::cmp::Ordering {
                let by = |$a: &Self| -> core::cmp::Ordering { $by.cmp(&other.0) };
                by(self)
            }
        }
    };
}
compare!([K: Ord] KeyOf<'_, K>, a => a.0);
compare!([Q: Ord + ?Sized] Sought<Q>, a => a.0);

impl<'a, K: Ord + 'static, V: 'static> KeyAdapter<'a> for Nodes<K, V> {
    type Key = KeyOf<'a, K>;
    fn get_key(&self, node: &'a MapNode<K, V>) -> KeyOf<'a, K> {
        KeyOf(&node.key)
    }
}

/// The memory of an entry whose key and value are written later.
pub struct SpareEntry<K, V>(NonNull<MapNode<K, V>>);

// SAFETY: the memory has no key and no value yet.
unsafe impl<K, V> Send for SpareEntry<K, V> {}

impl<K, V> SpareEntry<K, V> {
    /// The layout of an entry.
    pub const LAYOUT: Layout = Layout::new::<MapNode<K, V>>();

    /// Allocates the memory.
    pub fn try_new() -> Result<Self, OutOfMemory> {
        Ok(SpareEntry(crate::allocate(Layout::new::<MapNode<K, V>>())?.cast()))
    }

    fn fill(self, key: K, value: V) -> UnsafeRef<MapNode<K, V>> {
        let at = ManuallyDrop::new(self).0;
        // SAFETY: the memory has this layout, and only this entry uses it. `emptied` takes it back.
        unsafe {
            at.write(MapNode { link: RBTreeLink::new(), key, value });
            UnsafeRef::from_raw(at.as_ptr())
        }
    }

    /// Takes the memory, the key and the value of a node that was removed from its tree.
    fn emptied(node: UnsafeRef<MapNode<K, V>>) -> (Self, K, V) {
        let at = UnsafeRef::into_raw(node);
        // SAFETY: `fill` made the node, and the tree has released it. Only the caller has it, and its content is moved
        // out once.
        unsafe {
            let MapNode { key, value, .. } = at.read();
            (SpareEntry(NonNull::new_unchecked(at)), key, value)
        }
    }
}

impl<K, V> Drop for SpareEntry<K, V> {
    fn drop(&mut self) {
        // SAFETY: the memory came from `allocate` with this layout.
        unsafe { crate::deallocate(self.0.cast(), Layout::new::<MapNode<K, V>>()) };
    }
}

/// An ordered map, as `alloc::collections::BTreeMap`.
pub struct Map<K, V> {
    tree: RBTree<Nodes<K, V>>,
    len: usize,
}

// SAFETY: the map owns its keys and values, so sending the map is sending them.
unsafe impl<K: Send, V: Send> Send for Map<K, V> {}
// SAFETY: a shared map gives shared references only.
unsafe impl<K: Sync, V: Sync> Sync for Map<K, V> {}

impl<K, V> Map<K, V> {
    /// An empty map, which has no memory.
    pub const fn new() -> Self {
        Map { tree: RBTree::new(Nodes::NEW), len: 0 }
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// All entries, in the order of their keys.
    pub fn iter(&self) -> Iter<'_, K, V> {
        Iter(self.tree.front())
    }

    /// All values, in the order of their keys.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, v)| v)
    }

    /// All keys, in order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(k, _)| k)
    }

    /// Removes and returns the first entry.
    pub fn pop_first(&mut self) -> Option<(K, V)> {
        let (_memory, key, value) = SpareEntry::emptied(self.tree.front_mut().remove()?);
        self.len -= 1;
        Some((key, value))
    }

    /// Drops all entries.
    pub fn clear(&mut self) {
        while self.pop_first().is_some() {}
    }
}

impl<K: Ord + 'static, V: 'static> Map<K, V> {
    /// The value of `key`.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        self.tree.find(Sought::new(key)).get().map(|node| &node.value)
    }

    /// The value of `key`, mutable.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let node = self.tree.find_mut(Sought::new(key)).get_ptr()?;
        // SAFETY: the node is in the tree, which stays borrowed as long as the value is borrowed. The tree reads only
        // the node's link and key.
        Some(unsafe { &mut (*node.as_ptr()).value })
    }

    /// Whether there is an entry for `key`.
    pub fn contains_key<Q: Ord + ?Sized>(&self, key: &Q) -> bool
    where
        K: Borrow<Q>,
    {
        self.get(key).is_some()
    }

    /// Inserts an entry into memory that the caller has allocated for it. Returns the former value of `key`.
    pub fn insert(&mut self, memory: SpareEntry<K, V>, key: K, value: V) -> Option<V> {
        match self.tree.entry(Sought::new(&key)) {
            Entry::Occupied(at) => {
                // SAFETY: the node is in the tree, which is borrowed. The tree reads only the node's link and key.
                let there = at.as_cursor().get_ptr().map(|node| unsafe { &mut (*node.as_ptr()).value })?;
                Some(core::mem::replace(there, value))
            }
            Entry::Vacant(at) => {
                at.insert(memory.fill(key, value));
                self.len += 1;
                None
            }
        }
    }

    /// Inserts an entry. If there is no memory, the entry is dropped. Returns the former value of `key`.
    pub fn try_insert(&mut self, key: K, value: V) -> Result<Option<V>, OutOfMemory> {
        Ok(self.insert(SpareEntry::try_new()?, key, value))
    }

    /// Removes the entry of `key` and returns it with its memory, which another entry may use.
    pub fn take<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<(SpareEntry<K, V>, K, V)>
    where
        K: Borrow<Q>,
    {
        let taken = SpareEntry::emptied(self.tree.find_mut(Sought::new(key)).remove()?);
        self.len -= 1;
        Some(taken)
    }

    /// Removes the entry of `key` and returns its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.take(key).map(|(_memory, _, value)| value)
    }

    /// The entries from `key` on, in the order of their keys.
    pub fn iter_from<Q: Ord + ?Sized>(&self, key: &Q) -> Iter<'_, K, V>
    where
        K: Borrow<Q>,
    {
        Iter(self.tree.lower_bound(Bound::Included(Sought::new(key))))
    }
}

impl<K, V> Drop for Map<K, V> {
    fn drop(&mut self) {
        self.clear();
    }
}

impl<K, V> Default for Map<K, V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for Map<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Entries of a [`Map`], in the order of their keys.
pub struct Iter<'a, K, V>(Cursor<'a, Nodes<K, V>>);

impl<'a, K, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);
    fn next(&mut self) -> Option<Self::Item> {
        let node = self.0.get()?;
        self.0.move_next();
        Some((&node.key, &node.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Arc, refusal};
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use std::string::{String, ToString};

    /// The most operations of a test case. Under an interpreter (miri) the usual number would take seconds.
    const MOST: usize = if cfg!(miri) { 12 } else { 300 };

    proptest! {
        #[test]
        fn it_is_an_ordered_map(ops in prop::collection::vec((0..5u8, 0..30u32), 0..MOST)) {
            let (mut ours, mut model) = (Map::<u32, String>::new(), BTreeMap::<u32, String>::new());
            for (i, (op, key)) in ops.into_iter().enumerate() {
                match op {
                    0 | 1 => {
                        let old = ours.try_insert(key, i.to_string()).unwrap();
                        prop_assert_eq!(old, model.insert(key, i.to_string()));
                    }
                    2 => prop_assert_eq!(ours.remove(&key), model.remove(&key)),
                    3 => {
                        if let Some(v) = ours.get_mut(&key) {
                            v.push('x');
                        }
                        model.entry(key).and_modify(|v| v.push('x'));
                    }
                    _ => prop_assert_eq!(ours.pop_first(), model.pop_first()),
                }
                prop_assert!(ours.iter().eq(model.iter()));
                prop_assert!(ours.iter_from(&key).eq(model.range(key..)));
                prop_assert_eq!((ours.len(), ours.get(&key)), (model.len(), model.get(&key)));
            }
        }
    }

    #[test]
    fn keys_are_found_by_their_borrowed_forms() {
        let mut map = Map::<Arc<[u8]>, u32>::new();
        for (n, name) in [&b"b"[..], b"a", b""].into_iter().enumerate() {
            map.try_insert(Arc::try_copy(name).unwrap(), n as u32).unwrap();
        }
        assert_eq!((map.get(&b"a"[..]), map.get(&b"c"[..])), (Some(&1), None));
        assert!(map.keys().map(|k| &**k).eq([&b""[..], b"a", b"b"]));
        assert_eq!((map.remove(&b""[..]), map.contains_key(&b""[..])), (Some(2), false));
    }

    #[test]
    fn an_allocated_entry_and_a_removal_need_no_memory() {
        let mut map = Map::new();
        assert!(refusal::at(1, || map.try_insert(1, 1).is_err()).0);
        assert!(map.is_empty());
        let spare = SpareEntry::try_new().unwrap();
        let ((), requests) = refusal::at(1, || {
            map.insert(spare, 1, 1);
            let (spare, key, value) = map.take(&1).unwrap();
            map.insert(spare, key + 1, value);
            map.remove(&2);
        });
        assert_eq!((requests, map.len()), (0, 0));
        drop(SpareEntry::<String, String>::try_new().unwrap());
    }
}
