//! Map operations in sequence, or while related spaces exit and fault. The tests check the resulting contents of a
//! range.

use quire_hosted::{Cpu, Settings, Simulate, Simulated};
use quire_vm::map::{Advice, MapRequest, Move, Placement, Space, SpaceRef};
use quire_vm::stats::Event;
use quire_vm::{Access, FaultKind, MapError, PAGE_SIZE, Prot, VirtRange, Vm};
use std::cell::RefCell;
use std::time::{Duration, Instant};

quire_hosted::of_each_architecture!(
    growth_of_a_read_only_mapping_after_a_fork_is_its_own,
    memory_mapped_where_a_child_just_let_go_is_empty,
    the_end_of_a_process_has_a_constant_cost_per_entry,
    forgotten_memory_is_empty_though_relatives_still_have_it,
    memory_without_stores_that_is_given_up_stays_a_childs,
    lengths_that_no_address_space_has_are_refused,
    the_peak_of_residents_is_known_after_they_went,
    the_peak_counts_no_zeroes_and_a_childs_the_pages_of_its_parent,
    a_fork_visits_only_leaves_stored_into_since_the_last,
    whole_table_pages_lose_and_regain_their_stores_at_once,
    pages_cleaned_under_store_protection_are_dirty_at_a_store,
    write_only_memory_is_unreadable_once_stores_are_forbidden,
);

const BASE: u64 = 0x20_0000_0000;
const ANY: Prot = Prot::all();

fn boot<F: Simulate>(cpus: usize) -> &'static Vm<Simulated<F>> {
    Simulated::boot(Settings { cpus, frames: 48 * 1024, ..Settings::default() }).unwrap()
}

fn page(n: u64) -> u64 {
    BASE + n * PAGE_SIZE
}

fn range(first: u64, pages: u64) -> VirtRange {
    VirtRange { start: page(first), end: page(first + pages) }
}

fn map<F: Simulate>(space: &Space<Simulated<F>>, first: u64, pages: u64) {
    let r = MapRequest::private(Placement::Fixed(page(first)), pages * PAGE_SIZE);
    assert_eq!(space.map(&r), Ok(page(first)));
}

fn entries<F: Simulate>(space: &Space<Simulated<F>>) -> usize {
    let mut n = 0;
    space.entries(0, &mut |_| {
        n += 1;
        true
    });
    n
}

fn growth_of_a_read_only_mapping_after_a_fork_is_its_own<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = Space::new(vm).unwrap();
    cpu.enter(&space).unwrap();
    map(&space, 0, 2);
    (0..2).for_each(|n| cpu.write(&space, page(n), 7 + n).unwrap());
    space.protect(range(0, 2), Prot::READ).unwrap();
    let first = space.fork().unwrap();
    assert_eq!(space.remap(range(0, 2), 4 * PAGE_SIZE, Move::No, false), Ok(page(0)));
    space.check(true).unwrap();
    let second = space.fork().unwrap();
    for s in [&space, &second] {
        cpu.enter(s).unwrap();
        assert_eq!([0, 1, 2, 3].map(|n| cpu.read(s, page(n)).unwrap()), [7, 8, 0, 0]);
        s.protect(range(0, 4), Prot::READ | Prot::WRITE).unwrap();
        (0..4).for_each(|n| cpu.write(s, page(n), 20 + n).unwrap());
        s.check(true).unwrap();
    }
    cpu.enter(&first).unwrap();
    assert_eq!(cpu.read(&first, page(0)), Ok(7));
    cpu.leave();
}

fn memory_mapped_where_a_child_just_let_go_is_empty<F: Simulate>() {
    const PAGES: u64 = 300;
    let vm = boot::<F>(2);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = Space::new(vm).unwrap();
    for round in 0..60 {
        cpu.enter(&space).unwrap();
        map(&space, 0, 2 * PAGES);
        (PAGES..2 * PAGES).for_each(|n| cpu.write(&space, page(n), 1 + n).unwrap());
        // Two entries map one object. No page of the lower entry's part exists.
        space.protect(range(PAGES, PAGES), ANY).unwrap();
        let child: SpaceRef<Simulated<F>> = space.fork().unwrap();
        space.unmap(range(PAGES, PAGES)).unwrap();
        std::thread::scope(|s| {
            let exit = s.spawn(move || {
                let _cpu = Cpu::attach(vm, 1).unwrap();
                drop(child);
            });
            let mut late = 0;
            while !exit.is_finished() && late < 20 {
                map(&space, PAGES, PAGES);
                for n in (PAGES..2 * PAGES).step_by(7) {
                    assert_eq!(
                        cpu.read(&space, page(n)),
                        Ok(0),
                        "round {round}: page {n} shows another mapping's content"
                    );
                }
                space.unmap(range(PAGES, PAGES)).unwrap();
                late += 1;
            }
            while !exit.is_finished() {
                cpu.interrupts();
            }
        });
        space.check(true).unwrap();
        space.unmap(range(0, 2 * PAGES)).unwrap();
    }
    cpu.leave();
}

fn the_end_of_a_process_has_a_constant_cost_per_entry<F: Simulate>() {
    let vm = boot::<F>(1);
    let _cpu = Cpu::attach(vm, 0).unwrap();
    let exit = |pages: u64| -> Duration {
        let space = Space::new(vm).unwrap();
        map(&space, 0, pages);
        (0..pages).for_each(|n| assert!(space.fault(page(n), Access::Write).is_ok()));
        for n in (0..pages).step_by(2) {
            space.protect(range(n, 1), Prot::READ).unwrap();
        }
        assert_eq!(entries(&space), pages as usize);
        let child = space.fork().unwrap();
        let start = Instant::now();
        drop(child);
        start.elapsed()
    };
    let best = |pages| (0..3).map(|_| exit(pages)).min().unwrap_or_default();
    // Both spaces are too large for the caches. A quadratic exit would cost 12 times as much, and take seconds. Other
    // load of the host may spoil a measurement or two.
    let mut measured = Vec::new();
    let flat = (0..5).any(|_| {
        let (some, more) = (best(8_000), best(28_000));
        measured.push((some, more));
        more < some * 8
    });
    assert!(flat, "8000 entries and 28000 entries: {measured:?}");
}

fn forgotten_memory_is_empty_though_relatives_still_have_it<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = Space::new(vm).unwrap();
    cpu.enter(&space).unwrap();
    map(&space, 0, 1000);
    (0..1000).for_each(|n| cpu.write(&space, page(n), 1 + n).unwrap());
    let child = space.fork().unwrap();
    (0..1000).step_by(3).for_each(|n| cpu.write(&space, page(n), 5000 + n).unwrap());
    for _ in 0..2 {
        space.advise(range(100, 800), Advice::DontNeed).unwrap();
        space.check(true).unwrap();
        for n in 0..1000 {
            let expected = match n {
                100..900 => 0,
                n if n % 3 == 0 => 5000 + n,
                n => 1 + n,
            };
            assert_eq!(cpu.read(&space, page(n)), Ok(expected), "page {n}");
        }
    }
    cpu.enter(&child).unwrap();
    (0..1000).for_each(|n| assert_eq!(cpu.read(&child, page(n)), Ok(1 + n)));
    cpu.leave();
}

fn memory_without_stores_that_is_given_up_stays_a_childs<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = Space::new(vm).unwrap();
    cpu.enter(&space).unwrap();
    map(&space, 0, 4);
    (0..4).for_each(|n| cpu.write(&space, page(n), 1 + n).unwrap());
    space.protect(range(0, 4), Prot::READ).unwrap();
    let child = space.fork().unwrap();
    space.advise(range(0, 4), Advice::Free).unwrap();
    space.advise(range(0, 4), Advice::PageOut).unwrap();
    cpu.enter(&child).unwrap();
    assert_eq!([0, 1, 2, 3].map(|n| cpu.read(&child, page(n)).unwrap()), [1, 2, 3, 4]);
    cpu.leave();
}

fn lengths_that_no_address_space_has_are_refused<F: Simulate>() {
    let vm = boot::<F>(1);
    let _cpu = Cpu::attach(vm, 0).unwrap();
    let space = Space::new(vm).unwrap();
    map(&space, 0, 4);
    map(&space, 10, 4);
    for len in [u64::MAX - PAGE_SIZE + 1, 1 << 63, 1 << 47, (1 << 47) - PAGE_SIZE] {
        for how in [Move::No, Move::May, Move::To(page(100))] {
            let got = space.remap(range(0, 4), len, how, false);
            assert!(matches!(got, Err(MapError::Invalid | MapError::NoSpace)), "{len:#x} {how:?}: {got:?}");
        }
    }
    assert_eq!(space.stats().mapped_bytes, 8 * PAGE_SIZE);
}

fn a_fork_visits_only_leaves_stored_into_since_the_last<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = Space::new(vm).unwrap();
    cpu.enter(&space).unwrap();
    // The range covers no table page as a whole.
    map(&space, 1, 500);
    (1..501).for_each(|n| cpu.write(&space, page(n), n).unwrap());
    let fork = || {
        let before = vm.stats().total(Event::RangeVisit);
        drop(space.fork().unwrap());
        vm.stats().total(Event::RangeVisit) - before
    };
    assert_eq!(fork(), 500);
    assert_eq!(fork(), 0);
    // Leaves are visited by the cache line, eight at a time.
    for n in [11, 12, 400] {
        cpu.write(&space, page(n), 1).unwrap();
    }
    assert_eq!(fork(), 16);
    assert_eq!(fork(), 0);
    // A call that removes store rights visits the writable leaves too, but only once.
    let protect = |prot| {
        let before = vm.stats().total(Event::RangeVisit);
        space.protect(range(1, 500), prot).unwrap();
        vm.stats().total(Event::RangeVisit) - before
    };
    (8..72).for_each(|n| cpu.write(&space, page(n), 1).unwrap());
    assert_eq!(protect(Prot::READ), 64);
    assert_eq!(protect(Prot::READ | Prot::WRITE), 0);
    assert_eq!(protect(Prot::READ), 0);
    assert!(cpu.write(&space, page(3), 1).is_err());
}

/// Calls `f` and returns how many leaves, or entries above them, it visited.
fn visits<F: Simulate>(vm: &'static Vm<Simulated<F>>, f: impl FnOnce()) -> u64 {
    let before = vm.stats().total(Event::RangeVisit);
    f();
    vm.stats().total(Event::RangeVisit) - before
}

/// The number of faults of the three kinds that a store after a fork may cause: more rights for the leaf, a copy, a
/// move.
fn stored<F: Simulate>(vm: &'static Vm<Simulated<F>>, f: impl FnOnce()) -> [u64; 3] {
    let now = || [FaultKind::Reuse, FaultKind::Copy, FaultKind::Move].map(|kind| vm.stats().faults_of(kind));
    let before = now();
    f();
    let after = now();
    core::array::from_fn(|n| after[n] - before[n])
}

/// Whole table pages are store-protected and opened again at once, if the format can express that.
fn whole_table_pages_lose_and_regain_their_stores_at_once<F: Simulate>() {
    let vm = boot::<F>(2);
    let (cpu, other) = (Cpu::attach(vm, 0).unwrap(), Cpu::attach(vm, 1).unwrap());
    let space = Space::new(vm).unwrap();
    cpu.enter(&space).unwrap();
    other.enter(&space).unwrap();
    map(&space, 0, 1536);
    let fill = |to| (0..1536).for_each(|n| cpu.write(&space, page(n), to + n).unwrap());
    fill(1);
    (0..1536).for_each(|n| assert_eq!(other.read(&space, page(n)), Ok(1 + n)));
    let store_protected = F::STORES_BELOW != 0;
    let child = RefCell::new(None);
    let fork = || *child.borrow_mut() = Some(space.fork().unwrap());
    assert_eq!(visits(vm, fork), if store_protected { 3 } else { 1536 });
    // No CPU can store through a translation that it cached before the fork.
    assert!(cpu.store_word(page(5), 9).is_err() && other.store_word(page(1000), 9).is_err());
    space.check(true).unwrap();
    // While the child exists, a store makes a copy.
    assert_eq!(stored(vm, || cpu.write(&space, page(5), 9).unwrap()), [0, 1, 0]);
    assert_eq!(stored(vm, || other.write(&space, page(6), 9).unwrap()), [0, 1, 0]);
    let kept = child.borrow_mut().take().unwrap();
    cpu.enter(&kept).unwrap();
    (0..1536).for_each(|n| assert_eq!(cpu.read(&kept, page(n)), Ok(1 + n)));
    cpu.enter(&space).unwrap();
    space.check(true).unwrap();
    drop(kept);

    // Once the child is gone, the first store to each untouched table page restores its store rights as a whole.
    let faults = stored(vm, || (512..1536).for_each(|n| cpu.write(&space, page(n), n).unwrap()));
    assert_eq!(faults, if store_protected { [0; 3] } else { [1024, 0, 0] });
    space.check(true).unwrap();
    fill(7);
    assert_eq!(visits(vm, fork), if store_protected { 3 } else { 1536 });
    assert_eq!(visits(vm, || drop(space.fork().unwrap())), 0);
    child.borrow_mut().take();
    fill(9);

    // Protection of a range removes and restores the rights of whole table pages too.
    let protect = |prot| visits(vm, || space.protect(range(0, 1536), prot).unwrap());
    assert_eq!(protect(Prot::READ), if store_protected { 3 } else { 1536 });
    assert!(cpu.write(&space, page(3), 1).is_err() && other.write(&space, page(1030), 1).is_err());
    assert_eq!(cpu.read(&space, page(3)), Ok(12));
    assert_eq!(protect(Prot::READ | Prot::WRITE), 0);
    let faults = stored(vm, || cpu.write(&space, page(3), 1).unwrap());
    assert_eq!(faults, if store_protected { [0; 3] } else { [1, 0, 0] });
    // A load from read-only memory does not restore the rights of its table page.
    assert_eq!(protect(Prot::READ), if store_protected { 1 } else { 8 });
    space.advise(range(7, 1), Advice::DontNeed).unwrap();
    assert_eq!(cpu.read(&space, page(7)), Ok(0));
    assert!(cpu.store_word(page(8), 1).is_err() && other.store_word(page(8), 1).is_err());
    space.check(true).unwrap();
    assert_eq!(protect(Prot::READ | Prot::WRITE), 0);
    cpu.write(&space, page(3), 1).unwrap();
    // If a part of a table page becomes writable, the rest does not.
    assert_eq!(protect(Prot::READ), 8);
    space.protect(range(600, 100), Prot::READ | Prot::WRITE).unwrap();
    cpu.write(&space, page(650), 1).unwrap();
    assert!(cpu.write(&space, page(599), 1).is_err() && cpu.write(&space, page(1001), 1).is_err());
    space.check(true).unwrap();
    cpu.leave();
    other.leave();
}

/// Pages that were cleaned or dropped while their table page was store-protected must be made dirty again before a
/// store.
fn pages_cleaned_under_store_protection_are_dirty_at_a_store<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = Space::new(vm).unwrap();
    cpu.enter(&space).unwrap();
    map(&space, 0, 512);
    (0..512).for_each(|n| cpu.write(&space, page(n), 1 + n).unwrap());
    drop(space.fork().unwrap());
    space.advise(range(8, 8), Advice::Free).unwrap();
    space.check(true).unwrap();
    cpu.write(&space, page(0), 7).unwrap();
    // The checker must find no leaf that allows stores to a clean page.
    space.check(true).unwrap();
    cpu.write(&space, page(9), 8).unwrap();
    space.advise(range(0, 512), Advice::PageOut).unwrap();
    assert_eq!([0, 9, 16].map(|n| cpu.read(&space, page(n)).unwrap()), [7, 8, 17]);
    assert!(matches!(cpu.read(&space, page(10)), Ok(0 | 11)));
    space.check(true).unwrap();
    cpu.leave();
}

fn write_only_memory_is_unreadable_once_stores_are_forbidden<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = Space::new(vm).unwrap();
    cpu.enter(&space).unwrap();
    map(&space, 0, 2);
    space.protect(range(0, 2), Prot::WRITE).unwrap();
    (0..2).for_each(|n| cpu.write(&space, page(n), 7).unwrap());
    // Hardware cannot allow stores without loads.
    assert_eq!(cpu.read(&space, page(0)), Ok(7));
    space.protect(range(0, 2), Prot::empty()).unwrap();
    for n in 0..2 {
        assert!(cpu.read(&space, page(n)).is_err());
        assert!(cpu.write(&space, page(n), 8).is_err());
    }
    space.protect(range(0, 2), Prot::READ).unwrap();
    assert_eq!(cpu.read(&space, page(1)), Ok(7));
    space.check(true).unwrap();
}

fn the_peak_of_residents_is_known_after_they_went<F: Simulate>() {
    let vm = boot::<F>(1);
    let _cpu = Cpu::attach(vm, 0).unwrap();
    let space = Space::new(vm).unwrap();
    let mut most = 0;
    for pages in [3_000, 9_000, 6_000] {
        map(&space, 0, pages);
        (0..pages).for_each(|n| assert!(space.fault(page(n), Access::Write).is_ok()));
        (0..pages).step_by(100).for_each(|n| space.unmap(range(n, 100)).unwrap());
        most = most.max(pages);
        let peak = space.stats().peak_resident;
        assert!(peak <= most && peak > most - 128, "{peak} of {most}");
    }
    // `restart_peak` sets the peak to the present number of pages.
    map(&space, 0, 500);
    (0..500).for_each(|n| assert!(space.fault(page(n), Access::Write).is_ok()));
    space.restart_peak();
    assert_eq!(space.stats().peak_resident, 500);
    space.unmap(range(0, 400)).unwrap();
    assert_eq!((space.stats().peak_resident, space.peak_resident()), (500, 500));
    space.restart_peak();
    let peak = space.peak_resident();
    assert!((100..100 + 128).contains(&peak), "{peak} of 100");
}

fn the_peak_counts_no_zeroes_and_a_childs_the_pages_of_its_parent<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = Space::new(vm).unwrap();
    cpu.enter(&space).unwrap();
    map(&space, 0, 12_000);
    (0..6_000).for_each(|n| assert_eq!(cpu.read(&space, page(n)), Ok(0)));
    assert_eq!((space.peak_resident(), space.stats().peak_resident), (0, 0), "the frame of zeroes is no page");
    // A store replaces a leaf of zeroes, and memory that shows zeroes goes.
    (0..4_000).rev().for_each(|n| cpu.write(&space, page(n), 1).unwrap());
    assert_eq!(space.peak_resident(), 4_000);
    space.unmap(range(4_000, 2_000)).unwrap();
    map(&space, 4_000, 2_000);
    (4_000..4_100).rev().for_each(|n| cpu.write(&space, page(n), 1).unwrap());
    assert_eq!(space.peak_resident(), 4_100, "a removal of zeroes lowered the count");

    let child = space.fork().unwrap();
    assert_eq!((child.peak_resident(), child.stats().peak_resident), (4_100, 4_100));
    cpu.enter(&child).unwrap();
    // The child has these pages already, when it first reads them and when it copies them.
    (0..500).for_each(|n| assert_eq!(cpu.read(&child, page(n)), Ok(1)));
    (300..900).for_each(|n| cpu.write(&child, page(n), 2).unwrap());
    assert_eq!((child.peak_resident(), child.stats().resident_pages), (4_100, 4_100));
    (8_000..8_050).rev().for_each(|n| cpu.write(&child, page(n), 2).unwrap());
    assert_eq!((child.peak_resident(), child.stats().resident_pages), (4_150, 4_150));
    // Pages that go without a leaf count no more.
    child.unmap(range(0, 4_100)).unwrap();
    (9_000..9_060).rev().for_each(|n| cpu.write(&child, page(n), 2).unwrap());
    assert_eq!((child.peak_resident(), child.stats().resident_pages), (4_150, 110));
    (0..4_041).rev().for_each(|n| assert!(child.fault(page(n), Access::Write).is_err()));
    map(&child, 0, 4_100);
    (0..4_090).rev().for_each(|n| cpu.write(&child, page(n), 3).unwrap());
    assert_eq!((child.peak_resident(), child.stats().resident_pages), (4_200, 4_200));
    child.check(true).unwrap();
    cpu.enter(&space).unwrap();
    drop(child);
    assert_eq!(space.peak_resident(), 4_100);
    space.check(true).unwrap();
    cpu.leave();
}
