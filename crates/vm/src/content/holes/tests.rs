//! Tests of holes that private mappings read.

use crate::object::ObjectRef;
use crate::testing::{TestMachine, page};
use crate::tests::{load, settled, show, store, system};
use crate::types::PAGE_SIZE;
use crate::{Access, Space};
use quire_sync::atomic::Ordering;

fn write(file: &ObjectRef<TestMachine>, at: u64, value: u8) {
    let done = file.write(at * PAGE_SIZE, 1, &mut |to| -> Result<_, ()> {
        to.copy_from(&[value]);
        Ok(1)
    });
    assert_eq!(done, Ok(1));
}

#[test]
fn private_loads_of_holes_take_no_memory() {
    let m = system();
    let file = ObjectRef::anonymous(m.vm, 400).unwrap();
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 400, &file, false);
    // This load allocates the table page.
    assert_eq!(load(&space, page(0)), 0);
    let before = settled(m.vm);
    (0..100).for_each(|n| assert_eq!(load(&space, page(n)), 0));
    assert_eq!((file.resident(), settled(m.vm)), (0, before));
    space.check(true).unwrap();
    store(&space, page(7), 1);
    assert_eq!((file.resident(), load(&space, page(7))), (0, 1), "a store is the mapping's own");
    let child = space.fork().unwrap();
    assert_eq!((load(&child, page(7)), load(&child, page(8))), (1, 0));
    store(&child, page(8), 2);
    assert_eq!((load(&space, page(8)), file.resident()), (0, 0));
    space.check(true).unwrap();
}

#[test]
fn a_filled_hole_shows_in_private_mappings_that_read_it() {
    let m = system();
    let file = ObjectRef::anonymous(m.vm, 16).unwrap();
    let (space, shared) = (Space::new(m.vm).unwrap(), Space::new(m.vm).unwrap());
    show(&space, 0, 16, &file, false);
    show(&shared, 0, 16, &file, true);
    (0..16).for_each(|n| assert_eq!(load(&space, page(n)), 0));
    let child = space.fork().unwrap();
    (0..16).for_each(|n| assert_eq!(load(&child, page(n)), 0));
    store(&space, page(2), 9);
    write(&file, 1, 11);
    write(&file, 2, 12);
    store(&shared, page(3), 13);
    assert_eq!([1, 2, 3, 4].map(|n| load(&space, page(n))), [11, 9, 13, 0]);
    assert_eq!([1, 2, 3, 4].map(|n| load(&child, page(n))), [11, 12, 13, 0]);
    file.discard(0..16);
    assert_eq!([1, 2, 3, 4].map(|n| load(&space, page(n))), [0, 9, 0, 0]);
    write(&file, 3, 14);
    assert_eq!([1, 2, 3, 4].map(|n| load(&child, page(n))), [0, 0, 14, 0]);
    for s in [&space, &child, &shared] {
        s.check(true).unwrap();
    }
    file.set_size(0);
    assert_eq!(space.fault(page(4), Access::Read), Err(crate::FaultError::BeyondEnd));
}

#[test]
fn mapped_zeroes_stay_without_the_scan_for_holes() {
    use crate::mutant::{Mutant, set_mutant};
    let m = system();
    let file = ObjectRef::anonymous(m.vm, 1).unwrap();
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 1, &file, false);
    assert_eq!(load(&space, page(0)), 0);
    set_mutant(Some(Mutant::NoHoleScan));
    write(&file, 0, 1);
    set_mutant(None);
    assert_eq!(load(&space, page(0)), 0, "the other tests rely on that step");
}

#[test]
fn a_reader_that_knows_of_a_fill_never_sees_zeroes() {
    const PAGES: u64 = 600;
    let m = system();
    let file = ObjectRef::anonymous(m.vm, PAGES).unwrap();
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, PAGES, &file, false);
    let filled = quire_sync::atomic::AtomicU64::new(0);
    std::thread::scope(|s| {
        s.spawn(|| {
            quire_sync::hooks::threads::set_cpu(1);
            for n in 0..PAGES {
                write(&file, n, 1);
                filled.store(n + 1, Ordering::Release);
            }
        });
        let mut late = 0;
        for n in 0..PAGES {
            // Load repeatedly until the hole is known to be filled.
            loop {
                let known = filled.load(Ordering::Acquire) > n;
                let value = load(&space, page(n));
                assert!(value == 1 || !known, "page {n} is filled, and reads as zeroes");
                if known {
                    break;
                }
                late += 1;
            }
        }
        println!("{late} loads came first");
    });
    space.check(true).unwrap();
}
