//! Tests of the checker. Each structure of a map is damaged in every way that the checker knows, and the checker must
//! name the damage.

use super::super::tree::TreeError;
use super::super::{Attributes, MapRequest, Placement, Space, SpaceRef, Tag};
use super::*;
use crate::check::Level;
use crate::machine::Enter;
use crate::object::ObjectRef;
use crate::object::index::KEYS;
use crate::phys::page::State;
use crate::testing::{TestMachine, boot, page};
use crate::types::Access;
use core::ptr::NonNull;

type M = TestMachine;
const RW: Prot = Prot::READ.union(Prot::WRITE);

/// The first page numbers of the mappings of [`World`].
const SINGLE: u64 = 0;
const SHARED: u64 = 200;
const PRIVATE: u64 = 300;
const READ_ONLY: u64 = 400;
const HOLE: u64 = 500;

struct World {
    space: SpaceRef<M>,
    /// A child of `space`, so that layers behind the fronts are kept.
    child: SpaceRef<M>,
    shared: ObjectRef<M>,
    other: ObjectRef<M>,
}

impl World {
    /// An undamaged space with all kinds of mappings.
    fn new() -> World {
        quire_sync::hooks::threads::set_cpu(0);
        let vm = Box::leak(Box::new(boot(4096, 1))).vm;
        vm.set_check_level(Level::Never);
        let space = Space::new(vm).unwrap();
        let request = |first, pages| MapRequest::private(Placement::Fixed(page(first)), pages * PAGE_SIZE);
        // These are enough entries for a tree of two levels.
        for n in 0..40 {
            space.map(&request(SINGLE + 2 * n, 1)).unwrap();
        }
        let [shared, other] = [0, 1].map(|_| ObjectRef::anonymous(vm, 64).unwrap());
        let map = |first, pages, object| {
            let all = MapRequest { object: Some((object, 0)), shared: true, ..request(first, pages) };
            space.map(&all).unwrap();
        };
        for n in 0..6 {
            map(SHARED + 10 * n, 4 + n, &shared);
        }
        map(SHARED + 70, 8, &other);
        space.map(&request(PRIVATE, 80)).unwrap();
        space.map(&MapRequest { prot: Prot::READ, ..request(READ_ONLY, 8) }).unwrap();
        (0..4).for_each(|n| store(&space, SHARED + n));
        store(&space, SHARED + 70);
        (0..80).for_each(|n| store(&space, PRIVATE + n));
        space.fault(page(READ_ONLY), Access::Read).unwrap();
        let child = space.fork().unwrap();
        (0..80).step_by(3).for_each(|n| store(&space, PRIVATE + n));
        space.check(true).unwrap();
        child.check(true).unwrap();
        for o in [&shared, &other] {
            o.check(true).unwrap();
        }
        World { space, child, shared, other }
    }

    fn writer(&self) -> Writer<'_, M> {
        self.space.keep_writers_out(page(0))
    }

    fn front(&self, n: u64) -> NonNull<Backing<M>> {
        NonNull::from(self.writer().get(page(n)).unwrap().front())
    }

    fn leaf(&self, n: u64) -> Leaf {
        self.space.pmap().peek(page(n)).unwrap()
    }

    fn enter(&self, n: u64, new: Enter) {
        let mut table = self.space.pmap().table(self.space.vm(), page(n), &self.space.vm().epoch().pin()).unwrap();
        let mut owed = crate::tlb::flush::Obligation::new(self.space.vm(), self.space.pmap());
        let _gone = table.remove(page(n), &mut owed);
        table.enter(page(n), new);
        drop(table);
        let _flushed = owed.discharge();
    }

    /// The checker's result for the space, and for its objects if the space is undamaged. The damaged world is leaked,
    /// because it cannot be destroyed.
    fn verdict(self) -> Result<(), Broken> {
        let result = self.space.check(true);
        let result = result.and_then(|()| self.shared.check(true).and(self.other.check(true)).map(drop));
        core::mem::forget(self);
        result
    }
}

fn store(space: &Space<M>, n: u64) {
    space.fault(page(n), Access::Write).unwrap();
}

#[test]
fn the_check_finds_overlaps_wrong_gaps_levels_and_counts() {
    for damage in [TreeError::Order(0), TreeError::Summary(0), TreeError::Shape(0), TreeError::Count] {
        let w = World::new();
        w.writer().corrupt_tree(damage);
        let Err(Broken::Tree(found)) = w.verdict() else { panic!("{damage:?} was not noticed") };
        assert_eq!(core::mem::discriminant(&found), core::mem::discriminant(&damage), "{found:?}");
    }
}

#[test]
fn a_wrong_count_of_mapped_bytes_is_noticed() {
    let w = World::new();
    w.writer().corrupt_mapped();
    assert_eq!(w.verdict(), Err(Broken::Count));
}

#[test]
fn a_wrong_count_of_data_stacks_or_code_is_noticed() {
    for (prot, flags) in [(Prot::WRITE, Flags::empty()), (Prot::READ, Flags::GROWS_DOWN), (Prot::EXEC, Flags::SHARED)] {
        let w = World::new();
        w.writer().corrupt_classes(&Attributes { prot, max_prot: Prot::all(), flags, tag: Tag::None });
        assert_eq!(w.verdict(), Err(Broken::Count));
    }
}

#[test]
fn an_entry_that_stays_stale_is_noticed() {
    let w = World::new();
    w.writer().get(page(PRIVATE)).unwrap().mark_stale();
    assert_eq!(w.verdict(), Err(Broken::Entry(page(PRIVATE))));
}

#[test]
fn the_check_finds_a_writable_leaf_in_a_read_only_entry() {
    let w = World::new();
    w.writer().get(page(PRIVATE)).unwrap().note_no_stores();
    assert_eq!(w.verdict(), Err(Broken::LeafRights(page(PRIVATE))));
}

#[test]
fn an_entry_with_rights_against_its_kind_is_noticed() {
    let w = World::new();
    // SAFETY: the entry is in the tree, and no other thread uses the space.
    unsafe { Entry::corrupt_rights(w.writer().pointer(page(SHARED)), Prot::READ) };
    assert_eq!(w.verdict(), Err(Broken::Rights(page(SHARED))));
}

#[test]
fn a_chain_that_leads_to_another_spaces_backing_is_noticed() {
    let w = World::new();
    let theirs = NonNull::from(w.child.keep_writers_out(page(0)).get(page(PRIVATE)).unwrap().front());
    // SAFETY: fronts are in published entries, and the test destroys neither space before the verdict.
    unsafe { w.front(PRIVATE).as_ref() }.corrupt_behind(theirs.as_ptr());
    assert_eq!(w.verdict(), Err(Broken::Chain(page(PRIVATE))));
}

#[test]
fn the_check_finds_a_layer_without_its_link_to_its_front() {
    let w = World::new();
    // SAFETY: both fronts are in published entries, which keep their chains; the fork left a layer behind the first.
    unsafe { w.front(PRIVATE).as_ref().behind().unwrap().corrupt_in_front(w.front(SHARED)) };
    assert_eq!(w.verdict(), Err(Broken::Chain(page(PRIVATE))));
}

#[test]
fn the_check_finds_a_chain_behind_shared_memory() {
    let w = World::new();
    // SAFETY: both fronts are in published entries of this space, which keep their backings.
    unsafe { w.front(SHARED).as_ref() }.corrupt_behind(w.front(SHARED + 10).as_ptr());
    assert_eq!(w.verdict(), Err(Broken::Chain(page(SHARED))));
}

#[test]
fn the_check_finds_a_backing_of_a_wrong_object_from_both_sides() {
    let w = World::new();
    // SAFETY: the front is in a published entry, which keeps its backing.
    unsafe { w.front(SHARED).as_ref() }.corrupt_object(&w.other);
    assert!(matches!(w.shared.check(true), Err(Broken::Stranger(at)) if at == page(SHARED)));
    assert_eq!(w.verdict(), Err(Broken::Unlisted(page(SHARED))));
}

#[test]
fn a_backing_that_is_on_no_list_is_noticed() {
    let w = World::new();
    // SAFETY: `World::new` mapped `shared` there, so the front is linked into its list, and it is removed once.
    unsafe { w.shared.shards().remove(w.front(SHARED)) };
    assert_eq!(w.verdict(), Err(Broken::Unlisted(page(SHARED))));
}

#[test]
fn a_backing_that_is_listed_twice_is_noticed() {
    for n in 0..6 {
        let w = World::new();
        w.shared.shards().insert(w.space.vm(), w.front(SHARED + 10 * n), &crate::object::References::one());
        let found = w.shared.check(true);
        let list = matches!(found, Err(Broken::ListLinks(_) | Broken::ListOrder(_) | Broken::ListCount(_)));
        assert!(list, "{found:?}");
        core::mem::forget(w);
    }
}

#[test]
fn a_backing_on_two_objects_lists_is_noticed() {
    for n in 0..6 {
        let w = World::new();
        w.other.shards().insert(w.space.vm(), w.front(SHARED + 10 * n), &crate::object::References::one());
        assert!(w.verdict().is_err());
    }
}

#[test]
fn a_wrong_largest_end_or_count_of_a_list_is_noticed() {
    let w = World::new();
    w.shared.shards().corrupt_max(w.front(SHARED + 20));
    let found = w.shared.check(true);
    assert!(matches!(found, Err(Broken::ListMax(_))), "{found:?}");
    core::mem::forget(w);
    let w = World::new();
    w.shared.shards().corrupt_count();
    assert_eq!(w.verdict(), Err(Broken::ListCount(13)), "six backings here, six in the child");
}

#[test]
fn an_object_without_references_or_of_a_wrong_size_is_noticed() {
    let w = World::new();
    w.shared.corrupt_references();
    assert_eq!(w.verdict(), Err(Broken::References(0)));
    let w = World::new();
    // SAFETY: the front is in a published entry, and the world is never destroyed.
    let front = unsafe { w.front(PRIVATE).as_ref() };
    let object = front.object().unwrap();
    object.corrupt_size();
    assert_eq!(object.check(true), Err(Broken::Kind(1)));
    core::mem::forget(w);
}

#[test]
fn a_wrong_occupancy_bit_tag_or_height_of_an_index_is_noticed() {
    for (key, damage) in [
        (2, Broken::Occupancy(2)),
        (50, Broken::Occupancy(50)),
        (50, Broken::DirtyTag(50)),
        (2, Broken::DirtyTag(2)),
        (2, Broken::NodeHeight(0)),
    ] {
        let w = World::new();
        {
            let pin = w.space.vm().epoch().pin();
            w.shared.index().corrupt(key, damage, &pin);
        }
        assert_eq!(w.shared.check(true).map(drop), Err(damage));
        core::mem::forget(w);
    }
}

#[test]
fn the_check_of_a_busy_map_finds_a_wrong_private_bitmap() {
    let w = World::new();
    // SAFETY: the front is in a published entry, and the world is never destroyed.
    let behind = unsafe { w.front(PRIVATE).as_ref() }.behind().unwrap();
    {
        let pin = w.space.vm().epoch().pin();
        behind.object().unwrap().index().corrupt(7, Broken::Occupancy(7), &pin);
    }
    assert_eq!(w.space.check(false), Err(Broken::Occupancy(7)));
    core::mem::forget(w);
}

#[test]
fn a_page_that_says_it_is_another_is_noticed() {
    for quiet in [true, false] {
        let w = World::new();
        let vm = w.space.vm();
        let p = vm.page(w.leaf(PRIVATE).pfn);
        assert!(p.try_busy(p.state().generation()));
        p.rename(p.object(), p.index() + 1);
        vm.unbusy(p);
        // SAFETY: the front is in a published entry, and the world is never destroyed.
        let object = unsafe { w.front(PRIVATE).as_ref() }.object().unwrap();
        assert_eq!(object.check_pages(0..KEYS, quiet), Err(Broken::Identity(0)));
        // The checker may find the leaf first, because the page does not have the identity of its slot any more.
        assert!(matches!(w.space.check(quiet), Err(Broken::LeafFrame(_) | Broken::Identity(0))));
        core::mem::forget(w);
    }
}

#[test]
fn a_leaf_where_nothing_is_mapped_is_noticed() {
    let w = World::new();
    w.enter(HOLE, Enter::new(w.leaf(PRIVATE).pfn, RW));
    assert_eq!(w.verdict(), Err(Broken::LeafWithoutEntry(page(HOLE))));
}

#[test]
fn a_leaf_that_allows_more_than_its_entry_is_noticed() {
    let w = World::new();
    w.enter(READ_ONLY, Enter::new(w.leaf(READ_ONLY).pfn, RW));
    assert_eq!(w.verdict(), Err(Broken::LeafRights(page(READ_ONLY))));
}

#[test]
fn the_check_of_a_busy_map_finds_a_leaf_of_another_page() {
    for quiet in [true, false] {
        let w = World::new();
        w.enter(PRIVATE + 3, Enter::new(w.leaf(PRIVATE).pfn, Prot::READ));
        assert_eq!(w.space.check(quiet), Err(Broken::LeafFrame(page(PRIVATE + 3))));
        core::mem::forget(w);
    }
}

#[test]
fn the_check_of_an_idle_map_finds_a_leaf_of_a_hidden_page() {
    let w = World::new();
    let old = w.child.fault(page(PRIVATE), Access::Read).map(|_| w.child.pmap().peek(page(PRIVATE)).unwrap());
    w.enter(PRIVATE, Enter::new(old.unwrap().pfn, Prot::READ));
    assert_eq!(w.space.check(false), Ok(()), "a fault may be about to replace it");
    assert_eq!(w.verdict(), Err(Broken::LeafFrame(page(PRIVATE))));
}

#[test]
fn a_writable_leaf_of_a_clean_page_is_noticed() {
    let w = World::new();
    let vm = w.space.vm();
    vm.page(w.leaf(PRIVATE).pfn).clear(State::DIRTY);
    assert_eq!(w.verdict(), Err(Broken::LeafClean(page(PRIVATE))));
}

#[test]
fn the_check_finds_a_removal_without_a_flush() {
    let w = World::new();
    let mut owed = crate::tlb::flush::Obligation::new(w.space.vm(), w.space.pmap());
    let mut table = w.space.pmap().table(w.space.vm(), page(PRIVATE), &w.space.vm().epoch().pin()).unwrap();
    let _gone = table.remove(page(PRIVATE), &mut owed);
    drop(table);
    core::mem::forget(owed);
    assert!(matches!(w.verdict(), Err(Broken::TableUnflushed(_))));
}
