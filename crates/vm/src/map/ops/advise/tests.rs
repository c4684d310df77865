//! Tests of the memory that advice frees.

use crate::error::MapError;
use crate::map::{Advice, Space};
use crate::object::ObjectRef;
use crate::paging::memory_store::FaultPlan;
use crate::stats::Event;
use crate::stats::FaultKind;
use crate::testing::{boot, memory_store, page};
use crate::tests::{anonymous, load, range, show, store, system};
use crate::types::{Access, PAGE_SIZE};

#[test]
fn discarded_pages_stay_hidden_without_memory_for_markers() {
    for n in 1.. {
        let m = system();
        let space = Space::new(m.vm).unwrap();
        anonymous(&space, 0, 400);
        (0..400).for_each(|n| store(&space, page(n), 7));
        let child = space.fork().unwrap();
        child.advise(range(0, 64), Advice::DontNeed).unwrap();
        (10..20).for_each(|n| store(&child, page(n), 8));
        // The slabs may have memory for the next objects already. Then a later allocation fails.
        m.vm.fail_allocation(n);
        let done = child.advise(range(0, 400), Advice::DontNeed);
        m.vm.fail_allocation(0);
        child.check(true).unwrap();
        (0..10).chain(20..64).for_each(|n| assert_eq!(load(&child, page(n)), 0, "old data is back"));
        (10..20).for_each(|n| assert!(matches!(load(&child, page(n)), 0 | 8), "old data is back"));
        (0..400).for_each(|n| assert_eq!(load(&space, page(n)), 7));
        if done.is_ok() {
            assert!(n > 1, "no allocation failed");
            (0..400).for_each(|n| assert_eq!(load(&child, page(n)), 0));
            break;
        }
    }
}

#[test]
fn lazily_freed_pages_last_until_pageout_or_a_store() {
    quire_sync::hooks::threads::set_cpu(0);
    // Without swap, only pages that `MADV_FREE` marked can be evicted.
    let m = boot(1024, 2);
    let (space, other) = (Space::new(m.vm).unwrap(), Space::new(m.vm).unwrap());
    anonymous(&space, 0, 200);
    anonymous(&other, 0, 960);
    (0..200).for_each(|n| store(&space, page(n), 7));
    space.advise(range(0, 200), Advice::Free).unwrap();
    assert_eq!(m.vm.stats().total(Event::LazyFree), 200);
    (0..200).for_each(|n| assert_eq!(load(&space, page(n)), 7, "memory is not short"));
    (20..40).for_each(|n| store(&space, page(n), 8));
    let free = m.vm.frames().free() - m.vm.frames().reserve();
    let stored = (0..960).take_while(|n| other.fault(page(*n), Access::Write).is_ok()).count() as u64;
    assert!(stored < 960 && stored > free + 100, "{stored} pages of {free} free ones and 180 given up");
    let now: Vec<u8> = (0..200).map(|n| load_where_possible(&space, n)).collect();
    assert!(now[20..40].iter().all(|b| *b == 8), "stores after the advice are kept");
    assert!(now.iter().filter(|b| **b == 0).count() > 100);
    assert!(now.iter().all(|b| matches!(b, 0 | 7 | 8)));
    other.unmap(range(0, 960)).unwrap();
    space.check(true).unwrap();
}

/// The content of page `n`, or zero if no frame is free to fault it in.
fn load_where_possible(space: &Space<crate::testing::TestMachine>, n: u64) -> u8 {
    if space.fault(page(n), Access::Read).is_ok() { load(space, page(n)) } else { 0 }
}

#[test]
fn discarded_pages_free_their_slots_and_show_no_older_data() {
    quire_sync::hooks::threads::set_cpu(0);
    let m = boot(1024, 2);
    m.swap(512, FaultPlan::default());
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 100);
    (0..100).for_each(|n| store(&space, page(n), 3));
    let child = space.fork().unwrap();
    (0..100).for_each(|n| store(&child, page(n), 4));
    child.advise(range(0, 60), Advice::PageOut).unwrap();
    assert_eq!(m.vm.swap().free(), 512 - 60);
    // Some of the child's pages are in swap. Others were read back and keep their slots, or were never in swap.
    (40..60).for_each(|n| assert_eq!(load(&child, page(n)), 4));
    child.advise(range(0, 100), Advice::Free).unwrap();
    assert_eq!(m.vm.swap().free(), 512);
    (0..40).for_each(|n| assert_eq!(load(&child, page(n)), 0, "the parent's data shows"));
    (40..100).for_each(|n| assert_eq!(load(&child, page(n)), 4));
    child.advise(range(0, 100), Advice::PageOut).unwrap();
    assert_eq!(m.vm.swap().free(), 512, "zeroes that came since the advice are no pages");
    (0..100).for_each(|n| assert_eq!(load(&child, page(n)), 0, "the parent's data shows"));
    (0..100).for_each(|n| assert_eq!(load(&space, page(n)), 3));
    child.check(true).unwrap();
}

#[test]
fn willneed_advice_reads_pages_and_maps_none() {
    let m = system();
    m.swap(512, FaultPlan::default());
    let disk: &'static _ = memory_store(64, FaultPlan::default());
    m.vm.poll_with(disk).unwrap();
    let file = ObjectRef::with_pager(m.vm, disk, 60 * PAGE_SIZE).unwrap();
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 100);
    (0..40).for_each(|n| store(&space, page(n), n as u8));
    show(&space, 200, 64, &file, true);
    space.advise(range(0, 100), Advice::PageOut).unwrap();
    let swapped = m.vm.swap().total() - m.vm.swap().free();
    // The number is not exact, because faults also make pages ahead.
    assert!((40..100).contains(&swapped), "{swapped}");
    assert_eq!((space.stats().resident_pages, file.resident()), (0, 0));
    // The range has a hole, and the rest of it is read ahead.
    assert_eq!(space.advise(range(10, 254), Advice::WillNeed), Err(MapError::NotMapped));
    assert_eq!((space.stats().resident_pages, file.resident()), (0, 60));
    let reads = m.vm.stats().total(Event::SwapIn);
    assert!((30..=swapped).contains(&reads), "{reads}");
    assert_eq!(space.fault(page(10), Access::Read), Ok(FaultKind::Resident));
    (10..40).for_each(|n| assert_eq!(load(&space, page(n)), n as u8));
    assert_eq!(m.vm.stats().total(Event::SwapIn), reads, "a fault reads a page again that was read ahead");
    assert_eq!(space.advise(range(200, 64), Advice::WillNeed), Ok(()));
    space.check(true).unwrap();
}

#[test]
fn reading_ahead_ends_where_memory_is_low() {
    quire_sync::hooks::threads::set_cpu(0);
    let m = boot(1024, 2);
    let disk: &'static _ = memory_store(4096, FaultPlan::default());
    m.vm.poll_with(disk).unwrap();
    let file = ObjectRef::with_pager(m.vm, disk, 4096 * PAGE_SIZE).unwrap();
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 1000, &file, true);
    assert_eq!(space.advise(range(0, 1000), Advice::WillNeed), Ok(()));
    assert!(m.vm.frames().is_low() && (100..1000).contains(&file.resident()), "{}", file.resident());
    assert!(m.vm.frames().free() > m.vm.frames().reserve(), "pageout had to make room for a hint");
}
