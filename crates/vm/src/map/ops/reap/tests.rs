//! Tests of condemned spaces, on the test machine.

use super::Holdings;
use crate::paging::memory_store::FaultPlan;
use crate::testing::{Boot, boot, page};
use crate::tests::{anonymous, load, page_out, range, settled, show, store};
use crate::types::{Access, PAGE_SIZE};
use crate::{FaultError, MapError, ObjectRef, Space};

const PLAN: FaultPlan = FaultPlan { delay: 0, pause: 0, fail_reads: 0, fail_writes: 0, window: 0, seed: 1 };

fn system() -> Boot {
    quire_sync::hooks::threads::set_cpu(0);
    let m = boot(1024, 2);
    m.swap(128, PLAN);
    m
}

#[test]
fn a_reaped_space_frees_frames_and_swap_and_refuses_faults() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 64);
    anonymous(&space, 100, 64);
    let before = settled(m.vm);
    (0..64).for_each(|n| store(&space, page(n), 1));
    page_out(&space);
    assert_eq!(m.vm.swap().free(), 64);
    (100..164).for_each(|n| store(&space, page(n), 2));
    space.condemn();
    space.reap();
    assert_eq!(m.vm.swap().free(), 128);
    // Table pages stay until the space is destroyed.
    assert!(settled(m.vm) <= before + 4, "{} of {before}", settled(m.vm));
    for access in [Access::Read, Access::Write] {
        assert_eq!(space.fault(page(0), access), Err(FaultError::OutOfMemory));
        assert_eq!(space.fault(page(100), access), Err(FaultError::OutOfMemory));
    }
    assert_eq!(space.fork().err(), Some(MapError::OutOfMemory));
    // A thread of the space may still complete a map operation.
    space.unmap(range(100, 10)).unwrap();
}

#[test]
fn pages_of_other_spaces_survive_a_reaping() {
    let m = system();
    let parent = Space::new(m.vm).unwrap();
    let shared = ObjectRef::anonymous(m.vm, 8).unwrap();
    anonymous(&parent, 0, 8);
    show(&parent, 20, 8, &shared, true);
    (0..8).for_each(|n| store(&parent, page(n), 3));
    (20..28).for_each(|n| store(&parent, page(n), 4));
    let child = parent.fork().unwrap();
    store(&parent, page(0), 5);
    parent.condemn();
    parent.reap();
    (0..8).for_each(|n| assert_eq!(load(&child, page(n)), 3, "page {n}"));
    (20..28).for_each(|n| assert_eq!(load(&child, page(n)), 4, "page {n}"));
}

#[test]
fn holdings_count_pages_in_memory_and_in_swap() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    assert_eq!(space.holdings(), Holdings { resident: 0, swapped: 0, tables: space.holdings().tables });
    anonymous(&space, 0, 40);
    (0..40).for_each(|n| store(&space, page(n), 1));
    let held = space.holdings();
    assert_eq!((held.resident, held.swapped), (40, 0));
    page_out(&space);
    let held = space.holdings();
    assert_eq!((held.resident, held.swapped), (0, 40));
    (0..10).for_each(|n| store(&space, page(n), 1));
    let held = space.holdings();
    // Readahead has also read their neighbours, which no page table maps yet.
    assert!(held.resident == 10 && (20..=30).contains(&held.swapped), "{held:?}");
    assert_eq!(held.total(), held.resident + held.swapped + held.tables);
    space.unmap(crate::VirtRange { start: page(0), end: page(0) + 40 * PAGE_SIZE }).unwrap();
    assert_eq!((space.holdings().resident, space.holdings().swapped), (0, 0));
}

#[test]
fn upper_bounds_of_holdings_are_no_less_and_end_with_the_mappings() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    let within = |what: &str| {
        let (held, most) = (space.holdings(), space.most_holdings());
        assert!(held.resident <= most.resident && held.swapped <= most.swapped, "{what}: {held:?} beyond {most:?}");
        most
    };
    assert_eq!(within("empty"), Holdings::default());
    anonymous(&space, 0, 40);
    (0..40).for_each(|n| store(&space, page(n), 1));
    assert_eq!(within("resident").resident, 40);
    page_out(&space);
    assert_eq!(within("in swap").swapped, 40);
    space.unmap(crate::VirtRange { start: page(0), end: page(0) + 40 * PAGE_SIZE }).unwrap();
    assert_eq!(within("unmapped"), Holdings::default());
}
