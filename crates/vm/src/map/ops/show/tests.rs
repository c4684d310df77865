//! Tests of changes of the pages that a part of a shared mapping shows.

use crate::MapError;
use crate::map::Space;
use crate::object::ObjectRef;
use crate::testing::page;
use crate::tests::{load, range, show, store, system};

#[test]
fn pages_of_a_shared_object_are_shown_in_another_order() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    let object = ObjectRef::anonymous(m.vm, 4).unwrap();
    show(&space, 10, 4, &object, true);
    (0..4).for_each(|n| store(&space, page(10 + n), n as u8 + 1));
    space.show_from(range(10, 1), 3, false).unwrap();
    space.show_from(range(13, 1), 0, true).unwrap();
    assert_eq!([10, 11, 12, 13].map(|n| load(&space, page(n))), [4, 2, 3, 1]);
    // Adjoining mappings of the object with the same attributes are changed together.
    space.show_from(range(10, 4), 0, false).unwrap();
    assert_eq!([10, 11, 12, 13].map(|n| load(&space, page(n))), [1, 2, 3, 4]);
    space.check(true).unwrap();
}

#[test]
fn only_one_shared_object_without_a_hole_is_shown_anew() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    let [object, other] = [0, 1].map(|_| ObjectRef::anonymous(m.vm, 4).unwrap());
    show(&space, 0, 2, &object, true);
    show(&space, 2, 2, &other, true);
    show(&space, 6, 2, &object, false);
    let refused = Err(MapError::Invalid);
    assert_eq!(space.show_from(range(0, 4), 0, false), refused, "two objects");
    assert_eq!(space.show_from(range(3, 2), 0, false), refused, "a hole");
    assert_eq!(space.show_from(range(6, 1), 0, false), refused, "a private mapping");
    assert_eq!(space.show_from(range(20, 1), 0, false), refused, "nothing there");
    assert_eq!(space.show_from(range(0, 1), u64::MAX, false), refused, "no such page");
    space.seal(range(0, 2)).unwrap();
    assert_eq!(space.show_from(range(0, 1), 1, false), Err(MapError::Sealed));
    space.check(true).unwrap();
}
