//! Tests of moves of private mappings.

use crate::MapError;
use crate::map::{Move, Space};
use crate::object::ObjectRef;
use crate::testing::page;
use crate::tests::{anonymous, load, range, show, store, system};
use crate::types::{PAGE_SIZE, Prot, VirtRange};

#[test]
fn a_private_file_mapping_that_moves_leaves_the_file_unchanged() {
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

#[test]
fn a_failed_move_leaves_its_target_unchanged() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    let file = ObjectRef::anonymous(m.vm, 8).unwrap();
    show(&space, 20, 8, &file, false);
    store(&space, page(21), 7);
    let to = Move::To(page(20));
    assert_eq!(space.remap(range(0, 4), 4 * PAGE_SIZE, to, false), Err(MapError::NotMapped));
    show(&space, 0, 8, &file, false);
    assert_eq!(
        space.remap(range(0, 0), 4 * PAGE_SIZE, to, false),
        Err(MapError::Invalid),
        "private memory is not doubled"
    );
    assert_eq!(load(&space, page(21)), 7);
    space.check(true).unwrap();
}

#[test]
fn a_grown_private_part_shows_the_file_not_other_copies() {
    let m = system();
    let file = ObjectRef::anonymous(m.vm, 16).unwrap();
    file.write(0, 16 * PAGE_SIZE as usize, &mut |b| -> Result<_, ()> {
        b.fill(3);
        Ok(b.len())
    })
    .unwrap();
    for (how, forks) in [(Move::To(page(100)), false), (Move::No, false), (Move::To(page(100)), true), (Move::No, true)]
    {
        let space = Space::new(m.vm).unwrap();
        show(&space, 0, 8, &file, false);
        (0..8).for_each(|n| store(&space, page(n), 9));
        // After a fork the copied pages are in a layer behind an empty front.
        let _child = forks.then(|| space.fork().unwrap());
        if how == Move::No {
            // Unmap the pages after the range that is to grow, so that it can grow there. The chain had copies at these
            // addresses before.
            space.unmap(range(4, 4)).unwrap();
            (4..8).for_each(|n| assert!(space.fault(page(n), crate::Access::Read).is_err()));
        }
        let at = space.remap(range(2, 2), 6 * PAGE_SIZE, how, false).unwrap();
        let moved = |n: u64| at + n * PAGE_SIZE;
        assert_eq!([0, 1, 2, 3, 4, 5].map(|n| load(&space, moved(n))), [9, 9, 3, 3, 3, 3], "{how:?} {forks}");
        (0..6).for_each(|n| store(&space, moved(n), 5));
        assert_eq!(load(&space, page(1)), 9);
        file.read(0, 16 * PAGE_SIZE as usize, &mut |b| -> Result<_, ()> {
            assert!((0..b.len()).all(|at| b.get(at) == Some(3)), "the file stays as it is");
            Ok(b.len())
        })
        .unwrap();
        space.check(true).unwrap();
    }
}

#[test]
fn a_shrink_may_span_several_mappings() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    let one = |n: u64| n * PAGE_SIZE;
    anonymous(&space, 0, 4);
    (0..4).for_each(|n| store(&space, page(n), 9));
    space.protect(range(2, 2), Prot::READ).unwrap();
    for how in [Move::No, Move::May] {
        assert_eq!(space.remap(range(0, 4), one(4), how, false), Ok(page(0)));
    }
    // The end that a shrink removes may have holes.
    space.unmap(range(3, 1)).unwrap();
    assert_eq!(space.remap(range(0, 4), one(1), Move::No, false), Ok(page(0)));
    assert_eq!(load(&space, page(0)), 9);
    assert!((1..4).all(|n| space.fault(page(n), crate::Access::Read).is_err()));
    assert_eq!(
        space.remap(range(2, 2), one(1), Move::May, false),
        Err(MapError::NotMapped),
        "a part of the range is unmapped"
    );
    // Only the part that moves must be of one mapping. The pages beyond the new length are unmapped before.
    anonymous(&space, 10, 4);
    space.protect(range(12, 2), Prot::READ).unwrap();
    assert_eq!(space.remap(range(10, 4), one(2), Move::To(page(100)), false), Ok(page(100)));
    anonymous(&space, 10, 4);
    space.protect(range(12, 2), Prot::READ).unwrap();
    assert_eq!(space.remap(range(10, 4), one(3), Move::To(page(110)), false), Err(MapError::NotMapped));
}

#[test]
fn a_duplicate_mapping_is_made_elsewhere_or_not_at_all() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    let file = ObjectRef::anonymous(m.vm, 4).unwrap();
    show(&space, 0, 4, &file, true);
    let none = VirtRange { start: page(0), end: page(0) };
    assert_eq!(space.remap(none, 4 * PAGE_SIZE, Move::No, false), Err(MapError::NoSpace));
    assert_eq!(space.remap(none, 4 * PAGE_SIZE, Move::To(page(100)), false), Ok(page(100)));
    store(&space, page(1), 7);
    assert_eq!(load(&space, page(101)), 7);
}

/// A space in which pages 0 to 12 are one mapping of several entries: the parts have fronts of their own.
fn of_several_entries(m: &crate::testing::Boot) -> crate::SpaceRef<crate::testing::TestMachine> {
    let space = Space::new(m.vm).unwrap();
    for first in [8, 4, 0] {
        anonymous(&space, first, 4);
        (first..first + 4).for_each(|n| store(&space, page(n), n as u8 + 1));
    }
    assert!(space.stats().entries > 1, "the entries joined, and the test shows nothing");
    space
}

#[test]
fn a_mapping_of_several_entries_is_shown_as_one() {
    let m = system();
    let space = of_several_entries(&m);
    for from in [0, page(0), page(5), page(11)] {
        let mut shown = Vec::new();
        space.mappings(from, &mut |e| {
            shown.push(e.range);
            true
        });
        assert_eq!(shown, [range(0, 12)], "from {from:x}");
    }
}

#[test]
fn a_mapping_of_several_entries_moves_and_grows_as_one() {
    for (keep, len) in [(false, 12), (false, 20), (true, 12)] {
        let m = system();
        let space = of_several_entries(&m);
        assert_eq!(space.remap(range(0, 12), len * PAGE_SIZE, Move::To(page(100)), keep), Ok(page(100)));
        (0..12).for_each(|n| assert_eq!(load(&space, page(100 + n)), n as u8 + 1));
        (12..len).for_each(|n| assert_eq!(load(&space, page(100 + n)), 0));
        assert_eq!(space.is_mapped(range(0, 12)), keep);
        if keep {
            (0..12).for_each(|n| assert_eq!(load(&space, page(n)), 0));
        }
        space.check(true).unwrap();
    }
    // A part moves, and the rest stays.
    let m = system();
    let space = of_several_entries(&m);
    assert_eq!(space.remap(range(2, 8), 8 * PAGE_SIZE, Move::To(page(100)), false), Ok(page(100)));
    (0..8).for_each(|n| assert_eq!(load(&space, page(100 + n)), n as u8 + 3));
    [0, 1, 10, 11].into_iter().for_each(|n| assert_eq!(load(&space, page(n)), n as u8 + 1));
    assert!(!space.is_mapped(range(2, 8)));
    space.check(true).unwrap();
    // The whole grows in place.
    let space = of_several_entries(&m);
    assert_eq!(space.remap(range(0, 12), 16 * PAGE_SIZE, Move::No, false), Ok(page(0)));
    (0..16).for_each(|n| assert_eq!(load(&space, page(n)), if n < 12 { n as u8 + 1 } else { 0 }));
    space.check(true).unwrap();
}

#[test]
fn mappings_of_several_kinds_do_not_move_together() {
    let m = system();
    let space = of_several_entries(&m);
    space.protect(range(4, 4), Prot::READ).unwrap();
    assert_eq!(space.remap(range(0, 12), 24 * PAGE_SIZE, Move::May, false), Err(MapError::NotMapped));
    let (file, other) = (ObjectRef::anonymous(m.vm, 8).unwrap(), ObjectRef::anonymous(m.vm, 8).unwrap());
    show(&space, 20, 4, &file, true);
    show(&space, 24, 4, &other, true);
    assert_eq!(space.remap(range(20, 8), 8 * PAGE_SIZE, Move::To(page(100)), false), Err(MapError::NotMapped));
    assert_eq!(space.remap(range(0, 14), 16 * PAGE_SIZE, Move::To(page(100)), false), Err(MapError::NotMapped));
    space.check(true).unwrap();
}

#[test]
fn after_a_fork_a_mapping_of_several_entries_moves_in_the_child() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 12);
    (0..12).for_each(|n| store(&space, page(n), n as u8 + 1));
    let child = space.fork().unwrap();
    child.protect(range(4, 4), Prot::READ).unwrap();
    store(&child, page(0), 50);
    child.protect(range(4, 4), Prot::READ | Prot::WRITE).unwrap();
    store(&child, page(9), 60);
    assert_eq!(child.remap(range(0, 12), 24 * PAGE_SIZE, Move::To(page(100)), false), Ok(page(100)));
    let right = |n: u64| match n {
        0 => 50,
        9 => 60,
        n => n as u8 + 1,
    };
    (0..12).for_each(|n| assert_eq!(load(&child, page(100 + n)), right(n)));
    (0..12).for_each(|n| assert_eq!(load(&space, page(n)), n as u8 + 1));
    child.check(true).unwrap();
    space.check(true).unwrap();
}
