//! Tests of the operations that a seal refuses, and of those that it allows.

use crate::map::{Advice, Inherit, MapRequest, Move, Placement, Space};
use crate::testing::page;
use crate::tests::{load, range, store, system};
use crate::types::{PAGE_SIZE, Prot};
use crate::{MapError, object::ObjectRef};

fn request<M: crate::Machine>(at: u64, pages: u64) -> MapRequest<'static, M> {
    MapRequest::private(Placement::Fixed(page(at)), pages * PAGE_SIZE)
}

#[test]
fn a_sealed_range_keeps_its_mapping_and_its_protection() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    space.map(&request(0, 8)).unwrap();
    store(&space, page(3), 7);
    space.seal(range(2, 4)).unwrap();
    space.seal(range(2, 4)).unwrap();
    let sealed = Err(MapError::Sealed);
    assert_eq!(space.unmap(range(0, 8)), sealed);
    assert_eq!(space.unmap(range(3, 1)), sealed);
    assert_eq!(space.map(&request(1, 2)), Err(MapError::Sealed));
    let other = MapRequest { at: Placement::FixedNoReplace(page(1)), ..request(1, 2) };
    assert_eq!(space.map(&other), Err(MapError::Exists));
    assert_eq!(space.protect(range(0, 8), Prot::READ), sealed);
    assert_eq!(space.remap(range(2, 1), 2 * PAGE_SIZE, Move::May, false), Err(MapError::Sealed));
    assert_eq!(space.remap(range(3, 2), PAGE_SIZE, Move::No, false), Err(MapError::Sealed));
    assert_eq!(space.remap(range(7, 1), PAGE_SIZE, Move::To(page(2)), false), Err(MapError::Sealed));
    assert_eq!(load(&space, page(3)), 7);
    // The range before the sealed one was changed, and the unsealed rest can be unmapped.
    space.protect(range(0, 2), Prot::READ | Prot::WRITE).unwrap();
    space.unmap(range(6, 2)).unwrap();
    space.check(true).unwrap();
}

#[test]
fn a_hole_keeps_a_range_from_being_sealed() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    space.map(&request(0, 2)).unwrap();
    space.map(&request(4, 2)).unwrap();
    assert_eq!(space.seal(range(0, 6)), Err(MapError::NotMapped));
    space.unmap(range(0, 6)).unwrap();
    space.check(true).unwrap();
}

#[test]
fn advice_drops_sealed_content_only_where_stores_could() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    space.map(&request(0, 4)).unwrap();
    store(&space, page(0), 1);
    store(&space, page(2), 2);
    space.protect(range(2, 2), Prot::READ).unwrap();
    space.seal(range(0, 4)).unwrap();
    space.advise(range(0, 2), Advice::DontNeed).unwrap();
    assert_eq!(load(&space, page(0)), 0);
    for advice in [Advice::DontNeed, Advice::Free, Advice::Remove] {
        assert_eq!(space.advise(range(2, 2), advice), Err(MapError::Sealed), "{advice:?}");
    }
    assert_eq!(space.inherit(range(2, 2), Inherit::NONE), Err(MapError::Sealed));
    assert_eq!(space.inherit(range(2, 2), Inherit::ZERO), Err(MapError::Sealed));
    assert_eq!(load(&space, page(2)), 2);
    space.check(true).unwrap();
}

#[test]
fn sealed_files_and_shared_memory_may_be_dropped_and_read_again() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    let object = ObjectRef::anonymous(m.vm, 2).unwrap();
    let shared = MapRequest { shared: true, object: Some((&object, 0)), ..request(0, 2) };
    space.map(&shared).unwrap();
    store(&space, page(0), 5);
    space.protect(range(0, 2), Prot::READ).unwrap();
    space.seal(range(0, 2)).unwrap();
    space.advise(range(0, 2), Advice::DontNeed).unwrap();
    assert_eq!(load(&space, page(0)), 5);
    space.check(true).unwrap();
}
