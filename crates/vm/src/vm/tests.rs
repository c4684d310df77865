//! Tests of the check level: when structures are checked, the cost of that, and the result for a damaged structure.

use crate::check::QueueError;
use crate::check::{Broken, Level};
use crate::map::{MapRequest, Placement, Space, SpaceRef};
use crate::stats::Event;
use crate::testing::{Boot, TestMachine, boot, page};
use crate::types::{Access, PAGE_SIZE, Prot, VirtRange};

fn system(level: Level) -> (Boot, SpaceRef<TestMachine>) {
    quire_sync::hooks::threads::set_cpu(0);
    let m = boot(4096, 1);
    m.vm.set_check_level(level);
    let space = Space::new(m.vm).unwrap();
    (m, space)
}

fn map(space: &Space<TestMachine>, n: u64) {
    space.map(&MapRequest::private(Placement::Fixed(page(n)), PAGE_SIZE)).unwrap();
}

fn visits(m: &Boot) -> u64 {
    m.vm.stats().total(Event::CheckVisit)
}

/// Damages the page tables: enters a writable leaf at an address where nothing is mapped.
fn corrupt(m: &Boot, space: &Space<TestMachine>) {
    use crate::machine::{Enter, Pmap, Table};
    let pfn = space.pmap().peek(page(0)).unwrap().pfn;
    space.pmap().table(m.vm, page(1), &m.vm.epoch().pin()).unwrap().enter(page(1), Enter::new(pfn, Prot::all()));
}

#[test]
fn a_broken_map_ends_the_run_at_unlock_and_is_named() {
    let (m, space) = system(Level::Always);
    map(&space, 0);
    space.fault(page(0), Access::Write).unwrap();
    corrupt(&m, &space);
    let range = VirtRange { start: page(0), end: page(1) };
    let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| space.protect(range, Prot::READ)));
    let report = end.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(*report, format!("consistency check: leaf: no entry covers it ({:#x})", page(1)));
    assert_eq!(m.vm.check_level(), Level::Never, "no check runs while the panic unwinds");
    core::mem::forget((space, m));
}

#[test]
fn with_the_knob_at_never_nothing_is_looked_at() {
    let (m, space) = system(Level::Never);
    (0..100).for_each(|n| map(&space, 2 * n));
    assert_eq!(visits(&m), 0);
    map(&space, 1);
    m.vm.set_check_level(Level::Always);
    map(&space, 3);
    assert!(visits(&m) > 0, "the level changes while the system runs");
    drop(space);
    m.vm.epoch().drain();
}

#[test]
fn checks_cost_each_update_a_constant_for_any_map_size() {
    let mut costs = vec![];
    for entries in [100, 500] {
        let (m, space) = system(Level::AtRelease);
        (0..entries).for_each(|n| map(&space, 2 * n));
        (0..entries).for_each(|n| assert!(space.fault(page(2 * n), Access::Write).is_ok()));
        let before = visits(&m);
        let updates = 20 * entries;
        for n in 0..updates {
            let at = page(2 * (n % entries));
            let prot = if n / entries % 2 == 0 { Prot::READ } else { Prot::READ | Prot::WRITE };
            space.protect(VirtRange { start: at, end: at + PAGE_SIZE }, prot).unwrap();
        }
        costs.push((visits(&m) - before) as f64 / updates as f64);
        assert!(visits(&m) - before > entries, "updates run some checks");
        drop(space);
        m.vm.epoch().drain();
    }
    assert!(costs.iter().all(|c| *c < 8.0), "things looked at for each update: {costs:?}");
}

#[test]
fn always_means_at_every_release() {
    let (m, space) = system(Level::Always);
    (0..50).for_each(|n| map(&space, 2 * n));
    let before = visits(&m);
    map(&space, 200);
    let one = visits(&m) - before;
    assert!(one >= 2 * 50, "{one} things looked at");
    drop(space);
    m.vm.epoch().drain();
}

#[test]
fn levels_have_the_numbers_that_tools_use() {
    let all = [Level::Never, Level::AtRelease, Level::Always];
    (0..3).for_each(|n| assert_eq!(Level::from_number(n), Some(all[n as usize])));
    assert_eq!(Level::from_number(3), None);
}

/// The checker's result after `corrupt` was applied to the second page of a queue of three pages.
fn of_a_queue(corrupt: impl FnOnce(&Boot, &'static crate::phys::page::Page)) -> Result<(), Broken> {
    let (m, space) = system(Level::Never);
    (0..3).for_each(|n| map(&space, n));
    (0..3).for_each(|n| assert!(space.fault(page(n), Access::Write).is_ok()));
    m.vm.drain_queue_batches();
    assert_eq!(m.vm.check(true), Ok(()));
    corrupt(&m, m.vm.page(space.pmap().peek(page(1)).unwrap().pfn));
    let result = m.vm.check(true);
    core::mem::forget((space, m));
    result
}

#[test]
fn wrong_links_and_a_wrong_length_of_a_queue_are_noticed() {
    let links = of_a_queue(|_, p| p.set_prev(None));
    assert!(matches!(links, Err(Broken::Queue(QueueError::Links(_)))), "{links:?}");
    let circle = of_a_queue(|m, p| p.set_next(Some(m.vm.pfn_of_page(p))));
    assert!(matches!(circle, Err(Broken::Queue(_))), "{circle:?}");
    let short = of_a_queue(|_, p| p.set_next(None));
    assert!(matches!(short, Err(Broken::Queue(_))), "{short:?}");
}

#[test]
fn the_check_finds_a_wrong_page_in_a_queue() {
    let none = of_a_queue(|_, p| p.set_kind(crate::phys::page::FrameKind::Unowned));
    assert!(matches!(none, Err(Broken::Queue(QueueError::NoPage(_)))), "{none:?}");
    let elsewhere = of_a_queue(|m, p| {
        // The page is removed from its queue correctly, and then linked into its old place again.
        let (next, before) = (p.next(), p.prev());
        assert!(m.vm.queues().isolate(p));
        p.set_next(next);
        p.set_prev(before);
        before.into_iter().for_each(|b| m.vm.page(b).set_next(Some(m.vm.pfn_of_page(p))));
        next.into_iter().for_each(|n| m.vm.page(n).set_prev(Some(m.vm.pfn_of_page(p))));
    });
    assert!(matches!(elsewhere, Err(Broken::Queue(_))), "{elsewhere:?}");
}

#[test]
fn a_frame_that_is_on_a_free_list_and_in_use_is_noticed() {
    let result = of_a_queue(|m, _| {
        let cached = m.vm.frame_span().map(|n| m.vm.page(crate::Pfn(n)));
        cached
            .filter(|p| p.kind() == crate::phys::page::FrameKind::Cached)
            .take(1)
            .for_each(|p| p.set_kind(crate::phys::page::FrameKind::Slab));
    });
    assert!(matches!(result, Err(Broken::Frames(_))), "{result:?}");
}

/// The checker's results for the system and for the space after `corrupt` was applied to the swap slot of a page.
fn of_swap(corrupt: impl FnOnce(&Boot, u64)) -> [Result<(), Broken>; 2] {
    let (m, space) = system(Level::Never);
    m.swap(100, Default::default());
    (0..4).for_each(|n| map(&space, n));
    (0..4).for_each(|n| assert!(space.fault(page(n), Access::Write).is_ok()));
    let out = VirtRange { start: page(0), end: page(2) };
    space.advise(out, crate::map::Advice::PageOut).unwrap();
    m.vm.finish_io(&mut crate::sleep::MaySleep::here());
    assert_eq!((m.vm.swap().free(), m.vm.check(true), space.check(true)), (98, Ok(()), Ok(())));
    let slot = (0..100).find(|slot| m.vm.swap().in_use(*slot)).unwrap();
    corrupt(&m, slot);
    let result = [m.vm.check(false), space.check(true)];
    core::mem::forget((space, m));
    result
}

#[test]
fn the_check_finds_a_lost_doubled_or_miscounted_swap_slot() {
    assert_eq!(of_swap(|m, _| m.vm.swap().corrupt_count())[0], Err(Broken::SwapCount(97)));
    // A slot that no page has is marked as used.
    assert_eq!(of_swap(|m, _| m.vm.swap().corrupt_bit(99))[0], Err(Broken::SwapCount(98)));
    // A page's slot was freed. The count of free slots is right, but the page still names the slot.
    let given = of_swap(|m, slot| m.vm.swap().release(crate::paging::swap::SwapSlots { first: slot, len: 1 }));
    assert!(matches!(given, [Ok(()), Err(Broken::SwapSlot(_))]), "{given:?}");
}
