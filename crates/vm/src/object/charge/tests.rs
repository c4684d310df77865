//! Quotas to which files in memory are charged.

use crate::content::IoError;
use crate::map::{Advice, MapRequest, Placement, Wire};
use crate::object::ObjectRef;
use crate::paging::memory_store::FaultPlan;
use crate::testing::{Boot, MemoryFile, TestMachine, page};
use crate::tests::{load, range, settled, show, store, system};
use crate::types::{Access, PAGE_SIZE};
use crate::{FaultError, Space};
use quire_sync::Quota;
use quire_sync::hooks::threads::set_cpu;
use std::boxed::Box;

type File = ObjectRef<TestMachine>;

fn quota(limit: u64) -> &'static Quota {
    Box::leak(Box::new(Quota::leaked(4, limit)))
}

fn file(m: &Boot, bytes: u64, quota: &'static Quota) -> File {
    ObjectRef::charged(m.vm, &MemoryFile { timed: false }, bytes, Some(quota)).unwrap()
}

/// Writes `len` bytes of `value` at `at`.
fn write(file: &File, at: u64, len: u64, value: u8) -> Result<usize, IoError<()>> {
    file.write(at, len as usize, &mut |to| {
        to.fill(value);
        Ok(to.len())
    })
}

#[test]
fn each_page_is_charged_and_uncharged_exactly_once() {
    let m = system();
    let before = settled(m.vm);
    {
        let quota = quota(100);
        let file = file(&m, 64 * PAGE_SIZE, quota);
        let space = Space::new(m.vm).unwrap();
        show(&space, 0, 64, &file, true);
        let same = |n: u64| assert_eq!((quota.taken(), file.resident()), (n, n));
        assert_eq!(write(&file, 100, 1, 1), Ok(1));
        assert_eq!(write(&file, 0, 2 * PAGE_SIZE, 1), Ok(2 * PAGE_SIZE as usize));
        same(2);
        store(&space, page(5), 5);
        assert_eq!(load(&space, page(6)), 0, "a load through a shared mapping fills the hole, as on Linux");
        store(&space, page(5), 6);
        same(4);
        file.allocate(0..10).unwrap();
        same(10);
        file.set_size(200 * PAGE_SIZE);
        same(10);
        file.discard(1..3);
        same(8);
        file.zero(0..3 * PAGE_SIZE).unwrap();
        same(8);
        file.set_size(PAGE_SIZE + 1);
        same(1);
        assert_eq!(load(&space, page(0)), 0);
        drop(file);
        assert_eq!(quota.taken(), 1, "the mapping keeps it");
        drop(space);
        assert_eq!(quota.taken(), 0);
    }
    assert_eq!(settled(m.vm), before);
}

#[test]
fn private_mappings_charge_nothing() {
    let m = system();
    let quota = quota(1);
    let file = file(&m, 8 * PAGE_SIZE, quota);
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 8, &file, false);
    (0..8).for_each(|n| store(&space, page(n), load(&space, page(n)) + 1));
    assert_eq!((quota.taken(), file.resident()), (0, 0));
    write(&file, 0, 1, 3).unwrap();
    assert_eq!((quota.taken(), load(&space, page(0))), (1, 1));
}

#[test]
fn a_wired_private_mapping_fills_holes_and_charges_them() {
    let m = system();
    let quota = quota(5);
    let file = file(&m, 8 * PAGE_SIZE, quota);
    let space = Space::new(m.vm).unwrap();
    let wired = MapRequest {
        object: Some((&file, 0)),
        wire: Wire::Now,
        ..MapRequest::private(Placement::Fixed(page(0)), 4 * PAGE_SIZE)
    };
    space.map(&wired).unwrap();
    space.make_resident(range(0, 4)).unwrap();
    assert_eq!((quota.taken(), file.resident()), (4, 4));
    drop((space, file));
    assert_eq!(quota.taken(), 0);
}

#[test]
fn a_write_without_room_is_refused_and_takes_nothing() {
    let m = system();
    let quota = quota(3);
    let (file, other) = (file(&m, 8 * PAGE_SIZE, quota), file(&m, 0, quota));
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 8, &file, true);
    assert_eq!(write(&other, 0, 8 * PAGE_SIZE, 9), Ok(3 * PAGE_SIZE as usize), "a write gets as far as there is room");
    assert_eq!(other.size(), 3 * PAGE_SIZE);
    let before = settled(m.vm);
    assert_eq!(write(&file, 0, 1, 1), Err(IoError::NoRoom));
    assert_eq!(space.fault(page(2), Access::Write), Err(FaultError::NoRoom));
    assert_eq!(space.fault(page(2), Access::Read), Err(FaultError::NoRoom));
    assert_eq!(file.allocate(0..1), Err(IoError::NoRoom));
    assert_eq!((file.resident(), quota.taken(), settled(m.vm)), (0, 3, before));
    other.set_size(2 * PAGE_SIZE);
    assert_eq!(file.allocate(3..5), Err(IoError::NoRoom), "all or none");
    assert_eq!((file.resident(), quota.taken()), (0, 2));
    store(&space, page(2), 7);
    assert_eq!((load(&space, page(2)), quota.taken()), (7, 3));
    file.allocate(2..3).unwrap();
    assert_eq!(write(&other, 0, 1, 4), Ok(1), "present pages can be written without room");
    assert_eq!(write(&other, 2 * PAGE_SIZE, 1, 4), Err(IoError::NoRoom));
}

#[test]
fn pages_in_swap_stay_charged_and_clean_zeroes_become_holes() {
    let m = system();
    m.swap(64, FaultPlan::default());
    let quota = quota(50);
    let file = file(&m, 20 * PAGE_SIZE, quota);
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 20, &file, true);
    space.protect(range(8, 4), crate::Prot::READ).unwrap();
    write(&file, 0, 8 * PAGE_SIZE, 3).unwrap();
    (8..12).for_each(|n| assert_eq!(load(&space, page(n)), 0));
    file.allocate(10..14).unwrap();
    assert_eq!(quota.taken(), 14);
    space.advise(range(0, 20), Advice::PageOut).unwrap();
    assert_eq!(space.stats().resident_pages, 0);
    // Pages 8 and 9 were only read, so the page-out makes them holes. Pages that `allocate` has reserved stay charged.
    assert_eq!((quota.taken(), file.resident()), (12, 12));
    (0..8).for_each(|n| assert_eq!(load(&space, page(n)), 3));
    assert_eq!(quota.taken(), 12);
    space.advise(range(0, 20), Advice::PageOut).unwrap();
    file.set_size(5 * PAGE_SIZE);
    assert_eq!(quota.taken(), 5);
    drop((file, space));
    assert_eq!(quota.taken(), 0);
}

/// Writers, faulting threads and removers use files of one quota that is full most of the time. At the end the charge
/// equals the number of pages.
#[test]
fn charges_are_exact_under_races() {
    const LIMIT: u64 = 40;
    let m = system();
    let quota = quota(LIMIT);
    {
        let shared = file(&m, 32 * PAGE_SIZE, quota);
        std::thread::scope(|scope| {
            for cpu in 0..2 {
                let (m, shared) = (&m, shared.clone());
                scope.spawn(move || {
                    set_cpu(cpu);
                    let own = file(m, 0, quota);
                    let space = Space::new(m.vm).unwrap();
                    show(&space, 0, 32, &shared, true);
                    for round in 0..3000u64 {
                        let n = (round * 7 + cpu as u64) % 32;
                        assert!(quota.taken() <= LIMIT);
                        match round % 6 {
                            0 | 1 => {
                                let _full = write(&own, n * PAGE_SIZE, 3 * PAGE_SIZE, 1);
                            }
                            2 | 3 => match space.fault(page(n), Access::Write) {
                                Ok(_) | Err(FaultError::NoRoom) => {}
                                Err(e) => panic!("{e:?}"),
                            },
                            4 => shared.discard(n..n + 9),
                            _ => own.set_size(n * PAGE_SIZE),
                        }
                    }
                });
            }
        });
        assert_eq!(quota.taken(), shared.resident());
        shared.check(true).unwrap();
    }
    assert_eq!(quota.taken(), 0);
}
