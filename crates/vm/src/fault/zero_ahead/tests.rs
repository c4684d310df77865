//! Tests of zero-ahead: the number of pages that are made ahead, and the cases in which none is made.

use crate::map::{MapRequest, Placement, Space, SpaceRef, Wire};
use crate::object::ObjectRef;
use crate::phys::Config;
use crate::phys::frames::{Fill, For};
use crate::stats::Event;
use crate::stats::FaultKind;
use crate::testing::{Boot, SPAN, TestMachine, boot_with, page};
use crate::tests::{anonymous, load, range, settled, show, store, system};
use crate::types::{PAGE_SIZE, Prot};
use proptest::prelude::*;
use std::ops::Range;

/// The number of zero-fill faults, and the number of pages that were made ahead.
fn made(m: &Boot) -> (u64, u64) {
    (m.vm.stats().faults_of(FaultKind::ZeroFill), m.vm.stats().total(Event::FaultAhead))
}

/// Stores into pages one by one. Returns the increase of both numbers of [`made`].
fn touch(m: &Boot, space: &Space<TestMachine>, pages: impl Iterator<Item = u64>) -> (u64, u64) {
    let before = made(m);
    pages.for_each(|n| store(space, page(n), 1));
    let now = made(m);
    (now.0 - before.0, now.1 - before.1)
}

fn mapped(space: &Space<TestMachine>, pages: Range<u64>) -> Vec<u64> {
    pages.filter(|n| space.pmap().peek(page(*n)).is_some()).collect()
}

fn private(pages: u64) -> (Boot, SpaceRef<TestMachine>) {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, pages);
    (m, space)
}

#[test]
fn as_many_pages_are_made_as_lie_in_a_row_before() {
    assert_eq!(SPAN, 64);
    let (m, space) = private(128);
    assert_eq!(touch(&m, &space, 0..8), (8, 0));
    assert_eq!(touch(&m, &space, 8..9), (1, 7));
    assert_eq!(mapped(&space, 0..128), (0..16).collect::<Vec<_>>());
    assert_eq!(touch(&m, &space, 9..17), (1, 15));
    assert_eq!(touch(&m, &space, 17..33), (1, 31));
    // In each table page the count of touched pages begins at 0.
    assert_eq!(touch(&m, &space, 33..128), (8 + 3, 7 + 15 + 31));
    assert_eq!(space.stats().resident_pages, 128);
    assert!((0..128).all(|n| load(&space, page(n)) == 1 && load(&space, page(n) + 1) == 0));
}

#[test]
fn loads_of_fresh_memory_make_no_pages() {
    let (m, space) = private(256);
    let taken = settled(m.vm);
    assert!((0..256).all(|n| load(&space, page(n)) == 0));
    // In each table page, the first load maps the frame of zeroes at the pages around its own. Each later fault maps a
    // longer window, from its page on.
    assert_eq!(made(&m), (0, 0));
    assert!(m.vm.stats().faults_of(FaultKind::Resident) < 256 / 16);
    assert!(taken - settled(m.vm) < 8, "only table pages");
    // A store replaces the zeroes at its address alone.
    for n in [0, 7, 63, 255] {
        store(&space, page(n), 1);
    }
    assert!((0..256).all(|n| load(&space, page(n)) == u8::from([0, 7, 63, 255].contains(&n))));
    assert_eq!(made(&m), (4, 0));
    space.check(true).unwrap();
    // A child sees the stores and the zeroes. After the fork, each space sees only its own stores.
    let child = space.fork().unwrap();
    store(&space, page(1), 2);
    store(&child, page(2), 3);
    assert_eq!([0, 1, 2, 3].map(|n| load(&child, page(n))), [1, 0, 3, 0]);
    assert_eq!([0, 1, 2, 3].map(|n| load(&space, page(n))), [1, 2, 0, 0]);
    space.check(true).unwrap();
    child.check(true).unwrap();
}

#[test]
fn no_page_is_made_beyond_the_mapping_or_over_another() {
    let (m, space) = private(12);
    anonymous(&space, 13, 50);
    assert_eq!(touch(&m, &space, 0..9), (9, 3));
    assert_eq!(mapped(&space, 0..64), (0..12).collect::<Vec<_>>());

    let (m, space) = private(64);
    store(&space, page(12), 9);
    assert_eq!(touch(&m, &space, 0..9), (9, 3));
    assert_eq!(load(&space, page(12)), 9);
    // Page 12 was mapped by a store before. From here on it counts as a touched page.
    assert_eq!(touch(&m, &space, (9..12).chain(13..17)), (4, 15));
}

#[test]
fn touches_that_are_not_in_a_row_make_their_own_page() {
    let (m, space) = private(64);
    assert_eq!(touch(&m, &space, 0..9), (9, 7));
    // The last page of the line that was made ahead was not touched.
    assert_eq!(touch(&m, &space, (16..64).step_by(8)), (6, 0));
    // A line counts if its last page was touched. A line before it that was made ahead and not touched does not count.
    let (m, space) = private(64);
    assert_eq!(touch(&m, &space, (0..9).chain([15, 16])), (10, 7 + 15));
    assert_eq!(touch(&m, &space, [31, 32].into_iter()), (1, 7));
    let (m, space) = private(512);
    assert_eq!(touch(&m, &space, (0..512).rev()), (512, 0));
    let (m, space) = private(512);
    assert_eq!(touch(&m, &space, (0..512).step_by(8).chain((0..512).step_by(8).map(|n| n + 1))), (128, 0));
}

#[test]
fn shared_read_only_and_partly_wired_pages_are_made_singly() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    let request = || MapRequest::private(Placement::Fixed(page(0)), 64 * PAGE_SIZE);
    space.map(&MapRequest { prot: Prot::READ, ..request() }).unwrap();
    space.wire(range(0, 64), Wire::Now).unwrap();
    assert!((0..64).all(|n| load(&space, page(n)) == 0));
    assert_eq!(made(&m), (64, 0));

    let file = ObjectRef::anonymous(m.vm, 64).unwrap();
    show(&space, 64, 64, &file, true);
    assert_eq!(touch(&m, &space, 64..128), (64, 0));

    anonymous(&space, 128, 64);
    space.wire(range(128, 64), Wire::OnFault).unwrap();
    assert_eq!(touch(&m, &space, 128..192), (64, 0));
}

#[test]
fn a_system_may_make_none_or_fewer() {
    for (window, expected) in [(0, (64, 0)), (1, (64, 0)), (8, (8 + 7, 49)), (16, (8 + 4, 52)), (1000, (8 + 3, 53))] {
        quire_sync::hooks::threads::set_cpu(0);
        let config = Config { poison: true, reserve: Some(4), zero_window: window, ..Config::default() };
        let m = boot_with(2048, 2, config);
        let space = Space::new(m.vm).unwrap();
        anonymous(&space, 0, 64);
        assert_eq!(touch(&m, &space, 0..64), expected, "a window of {window}");
    }
}

#[test]
fn nothing_is_made_ahead_while_memory_is_low() {
    let (m, space) = private(64);
    let mut taken = Vec::new();
    while !m.vm.frames().is_low() {
        taken.push(m.vm.alloc_frame(Fill::Any, For::Kernel).unwrap());
    }
    assert_eq!(touch(&m, &space, 0..9), (9, 0));
    taken.into_iter().for_each(|f| m.vm.return_frame(f));
}

#[test]
fn pages_made_ahead_do_not_hide_inherited_pages() {
    let (m, parent) = private(64);
    store(&parent, page(20), 7);
    let child = parent.fork().unwrap();
    assert_eq!(touch(&m, &child, 0..17), (8 + 2, 7 + 3));
    assert_eq!(load(&child, page(20)), 7);
    assert_eq!(mapped(&parent, 0..64), [20]);
    // A page that `MADV_DONTNEED` discarded stays zero, and no page is made ahead in its place.
    let (m, parent) = private(64);
    store(&parent, page(12), 7);
    let child = parent.fork().unwrap();
    child.advise(range(12, 1), crate::map::Advice::DontNeed).unwrap();
    assert_eq!(touch(&m, &child, 0..9), (9, 3));
    assert_eq!(load(&child, page(12)), 0);
    assert_eq!(load(&parent, page(12)), 7);
}

#[test]
fn frames_that_are_zeroed_already_are_taken_first() {
    for stock in [3, 5, 24] {
        let (m, space) = private(64);
        touch(&m, &space, 0..8);
        // Freed frames that were not zeroed hold other bytes.
        let frames: Vec<_> = (0..500).map(|_| m.vm.alloc_frame(Fill::Any, For::User).unwrap()).collect();
        frames.into_iter().for_each(|f| m.vm.return_frame(f));
        assert!(m.vm.idle_zero(stock) && m.vm.zero_stock() == stock);
        assert_eq!(touch(&m, &space, 8..64), (3, 53));
        assert_eq!(m.vm.zero_stock(), 0);
        assert!((0..64).all(|n| load(&space, page(n)) == 1 && load(&space, page(n) + PAGE_SIZE - 1) == 0));
    }
}

#[test]
fn a_window_may_lie_across_two_nodes_of_the_index() {
    let m = system();
    let before = settled(m.vm);
    let space = Space::new(m.vm).unwrap();
    // The mapping begins at page 52, so key 64 of its object is page 116.
    anonymous(&space, 52, 76);
    assert_eq!(touch(&m, &space, 64..97), (8 + 3, 7 + 15 + 31));
    assert_eq!(touch(&m, &space, 97..128), (0, 0));
    drop(space);
    assert_eq!(settled(m.vm), before);
}

#[test]
fn a_failed_allocation_ahead_does_not_fail_the_touch() {
    // The first allocation is that of the touched page. If a later one fails, the touch succeeds nevertheless, and no
    // frame is lost.
    for n in 2..8 {
        let m = system();
        let before = settled(m.vm);
        let space = Space::new(m.vm).unwrap();
        anonymous(&space, 52, 76);
        touch(&m, &space, 64..96);
        m.vm.fail_allocation(n);
        assert_eq!(
            touch(&m, &space, 96..97),
            (
                1,
                match n {
                    // The second allocation is that of the frames ahead. Later ones are for a new node of the index,
                    // which the pages need from page 116 on.
                    2 => 0,
                    3 | 4 => 19,
                    _ => 31,
                }
            )
        );
        m.vm.fail_allocation(0);
        store(&space, page(96), 5);
        assert_eq!(load(&space, page(96)), 5);
        (97..128).for_each(|n| store(&space, page(n), 6));
        assert_eq!(space.stats().resident_pages, 64);
        space.check(true).unwrap();
        drop(space);
        assert_eq!(settled(m.vm), before, "allocation {n}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// After any touches, memory has the stored values, and zeroes elsewhere.
    #[test]
    fn memory_holds_the_stored_values(runs in prop::collection::vec((0u64..192, 1u64..48, any::<bool>()), 1..24)) {
        let (m, space) = private(192);
        let before = settled(m.vm);
        let mut stored = [0u8; 192];
        for (n, (first, len, forget)) in runs.into_iter().enumerate() {
            let end = (first + len).min(192);
            if forget {
                space.advise(range(first, end - first), crate::map::Advice::DontNeed).unwrap();
                stored[first as usize..end as usize].fill(0);
            } else {
                for at in first..end {
                    store(&space, page(at), n as u8 + 1);
                    stored[at as usize] = n as u8 + 1;
                }
                let touched = stored.iter().filter(|s| **s != 0).count() as u64;
                prop_assert!(space.stats().resident_pages >= touched);
            }
        }
        for (n, expected) in stored.iter().enumerate() {
            prop_assert_eq!(load(&space, page(n as u64)), *expected);
        }
        space.check(true).unwrap();
        space.unmap(range(0, 192)).unwrap();
        prop_assert!(settled(m.vm) <= before);
    }
}
