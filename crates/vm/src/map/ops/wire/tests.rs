//! Tests of wiring, on the test machine.

use super::Wire;
use crate::error::MapError;
use crate::map::{Advice, MapRequest, Move, Placement, Space};
use crate::object::ObjectRef;
use crate::paging::memory_store::FaultPlan;
use crate::stats::Event;
use crate::testing::{TestMachine, page};
use crate::tests::{anonymous, load, range, show, store, system};
use crate::types::{PAGE_SIZE, Prot, VirtRange};

fn resident(space: &Space<TestMachine>, first: u64, pages: u64) -> usize {
    let mut n = 0;
    space.resident(range(first, pages), &mut |_, there| n += there as usize).unwrap();
    n
}

#[test]
fn wired_pages_stay_in_memory_until_they_are_unwired() {
    let m = system();
    m.swap(512, FaultPlan::default());
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 100);
    (0..40).for_each(|n| store(&space, page(n), n as u8));
    space.wire(range(20, 40), Wire::Now).unwrap();
    space.make_resident(range(20, 40)).unwrap();
    assert_eq!((resident(&space, 20, 40), space.wired_bytes()), (40, 40 * PAGE_SIZE));
    space.check(true).unwrap();
    space.advise(range(0, 100), Advice::PageOut).unwrap();
    assert_eq!((resident(&space, 0, 20), resident(&space, 20, 40)), (0, 40));
    (0..40).for_each(|n| assert_eq!(load(&space, page(n)), n as u8));
    space.wire(range(0, 100), Wire::No).unwrap();
    space.check(true).unwrap();
    space.advise(range(0, 100), Advice::PageOut).unwrap();
    assert_eq!((resident(&space, 0, 100), space.wired_bytes()), (0, 0));
}

#[test]
fn wiring_and_unwiring_look_at_no_page() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 600);
    (0..600).for_each(|n| store(&space, page(n), 1));
    let (visits, flushes) = (m.vm.stats().total(Event::RangeVisit), m.vm.stats().total(Event::Flush));
    space.wire(range(100, 300), Wire::Now).unwrap();
    space.wire(range(0, 600), Wire::No).unwrap();
    assert_eq!(m.vm.stats().total(Event::RangeVisit), visits);
    assert_eq!(m.vm.stats().total(Event::Flush), flushes);
    let mut entries = 0;
    space.entries(0, &mut |_| {
        entries += 1;
        true
    });
    assert_eq!(entries, 1, "clipped entries are joined again");
}

#[test]
fn a_child_does_not_inherit_wiring_and_the_parent_keeps_it() {
    let m = system();
    m.swap(512, FaultPlan::default());
    let file = ObjectRef::anonymous(m.vm, 20).unwrap();
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 20);
    show(&space, 20, 20, &file, true);
    show(&space, 40, 20, &file, false);
    (0..60).for_each(|n| store(&space, page(n), n as u8));
    space.wire(range(0, 60), Wire::Now).unwrap();
    let child = space.fork().unwrap();
    assert_eq!((child.wired_bytes(), space.wired_bytes()), (0, 60 * PAGE_SIZE));
    (0..20).step_by(2).for_each(|n| store(&space, page(n), 100));
    (0..20).for_each(|n| store(&child, page(n), 200));
    space.check(true).unwrap();
    child.check(true).unwrap();
    child.advise(range(0, 60), Advice::PageOut).unwrap();
    space.advise(range(0, 60), Advice::PageOut).unwrap();
    assert_eq!(resident(&space, 0, 60), 60);
    assert_eq!(resident(&child, 0, 20), 0);
    (0..20).for_each(|n| assert_eq!(load(&space, page(n)), if n % 2 == 0 { 100 } else { n as u8 }));
}

#[test]
fn later_mappings_and_growth_are_wired_too() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    space.wire_future(Wire::Now);
    anonymous(&space, 0, 10);
    assert_eq!(resident(&space, 0, 10), 10);
    assert_eq!(space.remap(range(0, 10), 20 * PAGE_SIZE, Move::No, false), Ok(page(0)));
    assert_eq!((resident(&space, 0, 20), space.wired_bytes()), (20, 20 * PAGE_SIZE));
    space.wire_future(Wire::OnFault);
    anonymous(&space, 30, 10);
    assert_eq!(resident(&space, 30, 10), 0);
    store(&space, page(35), 1);
    space.advise(range(30, 10), Advice::PageOut).unwrap();
    assert_eq!((resident(&space, 30, 10), space.wired_in(range(30, 5))), (1, 5 * PAGE_SIZE));
    space.wire_future(Wire::No);
    anonymous(&space, 50, 10);
    assert_eq!(space.wired_bytes(), 30 * PAGE_SIZE);
    space.wire_all(Wire::No).unwrap();
    assert_eq!(space.wired_bytes(), 0);
    space.check(true).unwrap();
}

#[test]
fn wiring_stops_at_a_hole_and_reports_unreachable_pages() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 4);
    anonymous(&space, 6, 4);
    assert_eq!(space.wire(range(2, 6), Wire::Now), Err(MapError::NotMapped));
    assert_eq!(space.wired_bytes(), 2 * PAGE_SIZE);
    assert_eq!(space.wire(range(4, 2), Wire::Now), Err(MapError::NotMapped));
    let none = MapRequest { prot: Prot::empty(), ..MapRequest::private(Placement::Fixed(page(20)), 2 * PAGE_SIZE) };
    space.map(&none).unwrap();
    assert_eq!(space.wire(range(20, 2), Wire::Now), Ok(()));
    assert_eq!(space.make_resident(range(20, 2)), Err(MapError::Protection));
    for n in 1.. {
        m.vm.fail_allocation(n);
        let done = space.wire(range(7, 2), Wire::OnFault);
        m.vm.fail_allocation(0);
        space.check(true).unwrap();
        if done.is_ok() {
            break;
        }
        assert_eq!((done, space.wired_in(range(6, 4))), (Err(MapError::OutOfMemory), 0));
    }
}

#[test]
fn a_page_that_cannot_be_resident_fails_and_others_are_served() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 4);
    anonymous(&space, 6, 4);
    let reversed = VirtRange { start: page(3), end: page(1) };
    let misaligned = VirtRange { start: page(0) + 1, end: page(2) };
    let outside = VirtRange { start: 0, end: PAGE_SIZE };
    for range in [reversed, misaligned, outside, range(1, 0)] {
        assert_eq!(space.make_resident(range), Err(MapError::Invalid), "{range:?}");
    }
    assert_eq!(space.make_resident(range(20, 4)), Err(MapError::NotMapped));
    assert_eq!(space.make_resident(range(2, 6)), Err(MapError::NotMapped));
    assert_eq!((resident(&space, 2, 2), resident(&space, 6, 4)), (2, 2));
    assert_eq!(space.make_resident(range(8, 4)), Err(MapError::NotMapped));
    assert_eq!(resident(&space, 6, 4), 4);
    assert_eq!(space.make_resident(range(0, 4)), Ok(()));
}
