//! Tests of the times of stores, on the test machine.

use super::{SKEW, TICK};
use crate::map::Advice;
use crate::object::ObjectRef;
use crate::testing::{Boot, MemoryFile, TestMachine, page};
use crate::tests::{load, range, show, store, system};
use crate::types::PAGE_SIZE;
use crate::{FaultError, Space};
use std::sync::atomic::Ordering;

/// The time at which each test starts.
const START: u64 = 1 << 40;

fn at(m: &Boot, ticks: u64) -> u64 {
    let time = START + ticks * TICK;
    m.vm.machine().store_time.store(time, Ordering::Relaxed);
    time
}

fn file(m: &Boot, pages: u64, timed: bool) -> ObjectRef<TestMachine> {
    at(m, 0);
    let pager = if timed { &MemoryFile { timed: true } } else { &MemoryFile { timed: false } };
    ObjectRef::with_pager(m.vm, pager, pages * PAGE_SIZE).unwrap()
}

#[test]
fn each_first_store_through_a_shared_mapping_is_timed() {
    let m = system();
    for pages in [1, 300] {
        let file = file(&m, pages, true);
        let (space, other) = (Space::new(m.vm).unwrap(), Space::new(m.vm).unwrap());
        show(&space, 0, pages, &file, true);
        show(&other, 0, pages, &file, true);
        assert_eq!(file.stored(), 0);
        // Stores go to holes in several leaf nodes, in any order. Then they go to the same pages, which are dirty,
        // through another mapping.
        let mut ticks = 0;
        for space in [&space, &other] {
            for n in [pages - 1, 0, pages / 2, pages / 3] {
                let there = space.pmap().peek(page(n)).is_some();
                ticks += 1;
                let (before, now) = (file.stored(), at(&m, ticks));
                store(space, page(n), 1);
                assert_eq!(file.stored(), if there { before } else { now }, "page {n} of {pages}");
            }
        }
    }
}

#[test]
fn loads_and_private_stores_have_no_time() {
    let m = system();
    let (timed, untimed) = (file(&m, 8, true), file(&m, 8, false));
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 8, &timed, false);
    show(&space, 8, 8, &timed, true);
    show(&space, 16, 8, &untimed, true);
    for n in 0..4 {
        load(&space, page(8 + n));
        store(&space, page(n), 1);
        store(&space, page(16 + n), 1);
    }
    assert_eq!(space.fault(page(30), crate::types::Access::Write), Err(FaultError::NotMapped));
    assert_eq!((timed.stored(), untimed.stored()), (0, 0));
}

#[test]
fn a_time_is_written_once_a_tick_or_after_it_was_forgotten() {
    let m = system();
    let file = file(&m, 8, true);
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 8, &file, true);
    // All pages are in one leaf node.
    let first = at(&m, 1);
    store(&space, page(1), 1);
    m.vm.machine().store_time.store(first + TICK - 1, Ordering::Relaxed);
    store(&space, page(2), 1);
    assert_eq!(file.stored(), first);
    file.forget_stores(first - 1);
    assert_eq!(file.stored(), first, "a later store stays");
    file.forget_stores(first);
    assert_eq!(file.stored(), 0);
    store(&space, page(3), 1);
    assert_eq!(file.stored(), first + TICK - 1);
}

#[test]
fn a_time_from_the_future_becomes_the_present_one() {
    let m = system();
    let file = file(&m, 300, true);
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 300, &file, true);
    let set_back = || m.vm.machine().store_time.store(START - SKEW, Ordering::Relaxed);
    let store_later = |n| {
        let later = at(&m, 1);
        store(&space, page(n), 1);
        assert_eq!(file.stored(), later);
        set_back();
    };
    // A read of the times corrects a time in the future.
    store_later(0);
    assert_eq!(file.stored(), START - SKEW);
    // A store into the same leaf node corrects a time in the future, too.
    store_later(1);
    store(&space, page(2), 1);
    assert_eq!(file.stored(), START - SKEW);
    // An explicit time replaces such a time.
    store_later(3);
    file.forget_stores(START - SKEW);
    assert_eq!(file.stored(), 0);
    // The clocks of two CPUs differ by less than `SKEW`.
    let later = at(&m, 0);
    store(&space, page(200), 1);
    m.vm.machine().store_time.store(START - SKEW, Ordering::Relaxed);
    store(&space, page(201), 1);
    assert_eq!(file.stored(), later);
}

#[test]
fn a_removal_through_a_mapping_is_timed() {
    let m = system();
    let file = file(&m, 300, true);
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 300, &file, true);
    store(&space, page(200), 1);
    let now = at(&m, 1);
    space.advise(range(128, 128), Advice::Remove).unwrap();
    assert_eq!((file.stored(), file.resident()), (now, 0));
}
