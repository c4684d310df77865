//! The kernel memory that a space uses, counted by a walk over its structures. No counter is kept, so that faults and
//! map operations have no cost for it.
//!
//! After forks, backings of several spaces may share a private object. The object's bytes are divided evenly between
//! its backings, so that the sum over all spaces counts each object once. Divisions round down. Files and shared memory
//! belong to no space and are not counted.

use crate::machine::{Machine, Pmap};
use crate::map::entry::piece::layers;
use crate::map::space::Space;
use crate::object::index::NodeCount;
use crate::types::PAGE_SIZE;

/// Number of entries, or of nodes of an index, that are counted under one pin of the epoch (an RCU read section).
const COUNTED: usize = 256;

/// Bytes that a space uses, including its share of the slabs' waste.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Structures {
    /// Page-table pages, the root included.
    pub tables: u64,
    /// The space and its arenas.
    pub space: u64,
    /// Entries of the map, and the nodes of its trees.
    pub entries: u64,
    /// Backings.
    pub backings: u64,
    /// The space's share of private objects.
    pub objects: u64,
    /// The space's share of the nodes of its objects' indexes.
    pub index: u64,
}

impl Structures {
    /// The sum of all parts.
    pub fn total(&self) -> u64 {
        self.tables + self.space + self.entries + self.backings + self.objects + self.index
    }
}

impl<M: Machine> Space<M> {
    /// Counts the structures of the space. The result is exact if no structure changes during the call. The cost
    /// follows the entries, their layers, and the nodes of their indexes. May sleep; the caller holds no lock.
    pub fn structures(&self) -> Structures {
        let memory = self.vm().map_memory();
        let objects = self.vm().object_memory();
        let (leaf, inner) = memory.node_shares();
        let mut found = Structures {
            tables: self.pmap().table_pages(self.vm()) * PAGE_SIZE,
            space: memory.spaces.cache().share(),
            ..Structures::default()
        };
        if self.arenas.fanned_out() {
            // The home arena (the space's first) is embedded in the space's structure, so it is not counted again.
            let more = self.arenas.all().count() as u64 - 1;
            found.space += memory.fans.cache().share() + more * memory.arenas.cache().share();
        }
        for arena in self.arenas.all() {
            let pin = self.vm().epoch().pin();
            let [leaves, inners] = arena.nodes(&pin);
            found.entries += leaves * leaf + inners * inner;
        }
        let mut at = 0;
        'all: loop {
            let pin = self.vm().epoch().pin();
            for _ in 0..COUNTED {
                let Some(entry) = self.arenas.next(at, &pin) else { break 'all };
                found.entries += memory.entries.cache().share();
                found.backings += layers(entry.front()).count() as u64 * objects.backings.cache().share();
                at = entry.range().end;
            }
        }
        let (object_share, node_share) = (objects.objects.cache().share(), objects.node_share());
        let _holes = self.each_layer(
            M::Pmap::USER,
            |_, object, _| object.is_private(),
            |object, keys, may| {
                let sharers = object.shards().len().max(1);
                let mut count = NodeCount::new(keys);
                while !count.go_on(object.index(), COUNTED, &may.pin(self.vm().epoch())) {}
                found.objects += object_share / sharers;
                found.index += count.nodes() * node_share / sharers;
            },
        );
        found
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::Structures;
    use crate::Space;
    use crate::testing::{Boot, boot, page};
    use crate::tests::{anonymous, settled, store};

    /// Bytes of all objects that the slabs of maps and objects have handed out.
    fn handed_out(m: &Boot) -> u64 {
        settled(m.vm);
        let (maps, objects) = (m.vm.map_memory().caches(), m.vm.object_memory().caches());
        // SAFETY: the caches are those of `m.vm`, and no other thread uses them.
        maps.iter().chain(&objects).map(|cache| unsafe { cache.in_use(m.vm) }.unwrap() * cache.share()).sum()
    }

    #[test]
    fn relatives_divide_the_objects_that_they_show() {
        quire_sync::hooks::threads::set_cpu(0);
        let m = boot(1024, 1);
        let space = Space::new(m.vm).unwrap();
        let empty = space.structures();
        assert_eq!((empty.entries, empty.backings, empty.objects, empty.index), (0, 0, 0, 0));
        anonymous(&space, 0, 8);
        store(&space, page(7), 1);
        let one = space.structures();
        assert_eq!(one.objects, m.vm.object_memory().objects.cache().share());
        assert!(one.index >= m.vm.object_memory().node_share(), "the page is not the first");
        let child = space.fork().unwrap();
        for of in [space.structures(), child.structures()] {
            assert_eq!((of.objects, of.index), (one.objects / 2, one.index / 2));
        }
        drop(child);
        assert_eq!(space.structures().objects, one.objects);
    }

    #[test]
    fn the_sum_over_all_spaces_is_what_the_slabs_have_handed_out() {
        quire_sync::hooks::threads::set_cpu(0);
        let m = boot(4096, 1);
        let before = handed_out(&m);
        let parent = Space::new(m.vm).unwrap();
        (0..30).for_each(|n| anonymous(&parent, 10 * n, 5));
        let children: Vec<_> = (0..20)
            .map(|n| {
                store(&parent, page(10 * n), 1);
                let child = parent.fork().unwrap();
                store(&child, page(10 * n + 1), 2);
                child
            })
            .collect();
        let taken = handed_out(&m) - before;
        let all = children.iter().chain([&parent]).map(|space| {
            let found = space.structures();
            found.total() - found.tables
        });
        let sum: u64 = all.sum();
        // Each backing has two divisions, and each rounds down by less than a byte.
        let rounded = 2 * 21 * 30 * 22;
        assert!(sum <= taken && sum + rounded >= taken, "{sum} of {taken}: {:?}", parent.structures());
        let none = Structures::default();
        assert_eq!(none.total(), 0);
    }
}
