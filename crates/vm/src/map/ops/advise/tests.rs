//! What advice frees, when memory is short.

use crate::map::{Advice, Space};
use crate::paging::memory_store::FaultPlan;
use crate::stats::Event;
use crate::testing::{boot, page};
use crate::tests::{anonymous, load, range, store, system};
use crate::types::Access;

#[test]
fn what_was_given_up_stays_hidden_where_memory_for_the_cuts_is_missing() {
    for n in 1.. {
        let m = system();
        let space = Space::new(m.vm).unwrap();
        anonymous(&space, 0, 400);
        (0..400).for_each(|n| store(&space, page(n), 7));
        let child = space.fork().unwrap();
        child.advise(range(0, 64), Advice::DontNeed).unwrap();
        (10..20).for_each(|n| store(&child, page(n), 8));
        // Memory for the slabs' next objects may be there already; then a later allocation is the one that fails.
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
fn what_was_given_up_lazily_stays_until_memory_is_short_and_a_store_revives_it() {
    quire_sync::hooks::threads::set_cpu(0);
    // There is no swap: only what was given up can go.
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
    assert!(now[20..40].iter().all(|b| *b == 8), "what was stored after the advice is there");
    assert!(now.iter().filter(|b| **b == 0).count() > 100);
    assert!(now.iter().all(|b| matches!(b, 0 | 7 | 8)));
    other.unmap(range(0, 960)).unwrap();
    space.check(true).unwrap();
}

/// What page `n` holds: zero where there is no frame for what would be zeroes.
fn load_where_possible(space: &Space<crate::testing::TestMachine>, n: u64) -> u8 {
    if space.fault(page(n), Access::Read).is_ok() { load(space, page(n)) } else { 0 }
}

#[test]
fn what_is_given_up_loses_its_swap_slots_and_never_shows_what_lies_behind() {
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
    // Of the child's pages some lie in swap, some have come back and keep their slots, some were never there.
    (40..60).for_each(|n| assert_eq!(load(&child, page(n)), 4));
    child.advise(range(0, 100), Advice::Free).unwrap();
    assert_eq!(m.vm.swap().free(), 512);
    (0..40).for_each(|n| assert_eq!(load(&child, page(n)), 0, "the parent's data shows"));
    (40..100).for_each(|n| assert_eq!(load(&child, page(n)), 4));
    child.advise(range(0, 100), Advice::PageOut).unwrap();
    assert_eq!(m.vm.swap().free(), 512 - 40, "only the zeroes that came since the advice are worth a write");
    (0..100).for_each(|n| assert_eq!(load(&child, page(n)), 0, "the parent's data shows"));
    (0..100).for_each(|n| assert_eq!(load(&space, page(n)), 3));
    child.check(true).unwrap();
}
