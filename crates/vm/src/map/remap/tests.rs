//! Moving private mappings of files.

use crate::map::{Move, Space};
use crate::object::ObjectRef;
use crate::testing::page;
use crate::tests::{load, range, show, store, system};
use crate::types::PAGE_SIZE;

#[test]
fn a_private_mapping_of_a_file_that_moves_away_leaves_the_file_as_it_is() {
    let m = system();
    let file = ObjectRef::anonymous(m.vm, 8).unwrap();
    file.write(0, 8 * PAGE_SIZE as usize, &mut |b| -> Result<_, ()> {
        b.fill(3);
        Ok(b.len())
    })
    .unwrap();
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 8, &file, false);
    (0..4).for_each(|n| store(&space, page(n), 9));
    assert_eq!(space.remap(range(2, 4), 4 * PAGE_SIZE, Move::To(page(100)), true), Ok(page(100)));
    assert_eq!([100, 101, 102, 103].map(|n| load(&space, page(n))), [9, 9, 3, 3]);
    assert_eq!([0, 1, 2, 3, 4, 5].map(|n| load(&space, page(n))), [9, 9, 3, 3, 3, 3]);
    (2..6).for_each(|n| store(&space, page(n), 5));
    assert_eq!([100, 101, 102, 103].map(|n| load(&space, page(n))), [9, 9, 3, 3]);
    space.check(true).unwrap();
}
