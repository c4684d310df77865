//! Page tables that are freed, with the last mapping or while no CPU runs the space, and made again.

use proptest::prelude::*;
use quire_hosted::{Account, Cpu, Settings, Simulate, Simulated};
use quire_vm::map::{Advice, MapRequest, Placement, SMALL, Space, SpaceRef, Wire};
use quire_vm::object::ObjectRef;
use quire_vm::paging::memory_store::{FaultPlan, MemoryStore};
use quire_vm::reclaim::daemon::Daemon;
use quire_vm::stats::Event;
use quire_vm::{Access, FaultError, PAGE_SIZE, Pmap, Prot, VirtRange, Vm};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

quire_hosted::of_each_architecture!(
    one_fault_brings_all_residents_of_a_small_space_back,
    a_large_space_comes_back_page_by_page,
    before_memory_is_out_idle_spaces_give_up_their_tables,
    a_space_idle_for_a_second_gives_up_its_tables_when_memory_is_short,
    spaces_without_tables_are_not_looked_at_again,
    forks_take_the_tables_of_idle_spaces_while_memory_is_scarce,
    returning_tables_replace_idle_ones_while_memory_is_scarce,
    without_a_store_the_daemon_takes_idle_tables,
    shared_pages_of_a_child_come_back_and_are_copied_as_before,
    a_space_that_runs_keeps_its_tables,
    stored_pages_stay_dirty_and_referenced_without_their_tables,
    after_unmapping_everything_the_root_is_left,
    after_unmapping_everything_under_faults_the_root_is_left,
    contents_stay_while_tables_are_dropped_under_faults,
    a_space_without_a_root_runs_until_a_fault_makes_one,
    a_cpu_that_has_a_dropped_root_loaded_leaves_it,
    cpus_that_run_a_space_load_the_root_that_one_makes,
    a_space_without_a_root_ends_forks_and_is_looked_at,
    tables_that_a_failed_fault_leaves_are_dropped_again,
);

type V<F> = &'static Vm<Simulated<F>>;
type S<F> = SpaceRef<Simulated<F>>;

/// Addresses in different last-level table pages.
const PLACES: [u64; 3] = [0x1000_0000, 0x1020_0000 - 5 * PAGE_SIZE, 0x3f_0000_0000];

fn boot<F: Simulate>(cpus: usize) -> V<F> {
    Simulated::<F>::boot(Settings { cpus, frames: 16 * 1024, ..Settings::default() }).unwrap()
}

fn map<F: Simulate>(space: &Space<Simulated<F>>, start: u64, pages: u64) {
    let r = MapRequest::private(Placement::Fixed(start), pages * PAGE_SIZE);
    assert_eq!(space.map(&r), Ok(start));
}

fn pages(start: u64, pages: u64) -> impl Iterator<Item = u64> {
    (start..start + pages * PAGE_SIZE).step_by(PAGE_SIZE as usize)
}

fn range(start: u64, pages: u64) -> VirtRange {
    VirtRange { start, end: start + pages * PAGE_SIZE }
}

/// Makes a space with private memory at each place, some of it read-only, and with shared memory. All pages are
/// touched.
fn small<F: Simulate>(cpu: &Cpu<F>) -> S<F> {
    let vm = cpu.vm();
    let space = Space::new(vm).unwrap();
    cpu.enter(&space).unwrap();
    for at in PLACES {
        map(&space, at, 40);
        pages(at, 40).for_each(|va| cpu.write(&space, va, va + 1).unwrap());
    }
    space.protect(range(PLACES[0], 10), Prot::READ).unwrap();
    let object = ObjectRef::anonymous(vm, 30).unwrap();
    let r = MapRequest {
        object: Some((&object, 0)),
        shared: true,
        ..MapRequest::private(Placement::Fixed(SHARED), 30 * PAGE_SIZE)
    };
    space.map(&r).unwrap();
    pages(SHARED, 30).for_each(|va| cpu.write(&space, va, va + 1).unwrap());
    space
}

const SHARED: u64 = 0x2000_0000;

/// Checks all words that [`small`] wrote. Returns the number of faults that the reads caused.
fn look<F: Simulate>(cpu: &Cpu<F>, space: &Space<Simulated<F>>) -> u64 {
    let faults = || cpu.vm().stats().faults();
    let before = faults();
    let all = PLACES.into_iter().flat_map(|at| pages(at, 40)).chain(pages(SHARED, 30));
    for va in all {
        assert_eq!(cpu.read(space, va), Ok(va + 1));
        if va >= PLACES[0] + 10 * PAGE_SIZE {
            cpu.write(space, va, va + 1).unwrap();
        }
    }
    faults() - before
}

fn one_fault_brings_all_residents_of_a_small_space_back<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = small(&cpu);
    assert_eq!(look(&cpu, &space), 0, "all is mapped");
    for _ in 0..3 {
        cpu.leave();
        let dropped = space.drop_tables().expect("no CPU has it loaded");
        assert_eq!(dropped.leaves, 150);
        let stats = space.stats();
        assert_eq!((stats.table_pages, stats.resident_pages), (0, 120), "private pages count without leaves");
        cpu.enter(&space).unwrap();
        assert_eq!(look(&cpu, &space), 1, "one fault");
        assert_eq!(space.stats().resident_pages, 150);
    }
    assert!(vm.stats().total(Event::FaultAll) > 3 * 100, "not by the neighbours of one page alone");
    cpu.leave();
    space.check(true).unwrap();
}

fn a_large_space_comes_back_page_by_page<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = small(&cpu);
    let at = 0x5000_0000;
    map(&space, at, SMALL);
    pages(at, SMALL).for_each(|va| cpu.write(&space, va, va).unwrap());
    cpu.leave();
    assert_eq!(space.drop_tables().unwrap().leaves, SMALL + 150);
    assert_eq!(space.stats().table_pages, 0);
    cpu.enter(&space).unwrap();
    assert!(look(&cpu, &space) > 10);
    pages(at, SMALL).for_each(|va| assert_eq!(cpu.read(&space, va), Ok(va)));
    assert_eq!(vm.stats().total(Event::FaultAll), 0);
    cpu.leave();
}

fn before_memory_is_out_idle_spaces_give_up_their_tables<F: Simulate>() {
    const SPACES: usize = 12;
    let vm = Simulated::<F>::boot(Settings { cpus: 2, frames: 4096, ..Settings::default() }).unwrap();
    let other = Cpu::attach(vm, 1).unwrap();
    let running = small(&other);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let dropped = || vm.stats().total(Event::TablesDropped);
    let idle: Vec<_> = (0..SPACES).map(|_| small(&cpu)).collect();
    let hog = Space::new(vm).unwrap();
    cpu.enter(&hog).unwrap();
    let at = 0x7000_0000;
    map(&hog, at, 4096);
    let stored = pages(at, 4096).take_while(|va| cpu.write(&hog, *va, *va).is_ok()).count() as u64;
    assert!((100..4000).contains(&stored), "{stored}: there is no swap");
    let tables: u64 = idle.iter().map(|s| s.stats().table_pages).sum();
    assert_eq!((tables, dropped() > 6 * SPACES as u64), (0, true), "{}", dropped());
    assert_eq!(running.stats().resident_pages, 150, "a CPU runs it");
    // The memory of the freed tables was used.
    assert!(vm.frames().free() < vm.frames().reserve() + 8, "{} free", vm.frames().free());
    pages(at, stored).for_each(|va| assert_eq!(cpu.read(&hog, va), Ok(va)));
    hog.clear();
    for space in &idle {
        cpu.enter(space).unwrap();
        assert_eq!(look(&cpu, space), 1, "one fault maps all");
        space.check(true).unwrap();
    }
    cpu.leave();
    other.leave();
}

fn a_space_idle_for_a_second_gives_up_its_tables_when_memory_is_short<F: Simulate>() {
    let vm = Simulated::<F>::boot(Settings { cpus: 2, frames: 4096, ..Settings::default() }).unwrap();
    let cpu = Cpu::attach(vm, 0).unwrap();
    let bytes = vec![0u8; 8192 * PAGE_SIZE as usize].leak();
    // SAFETY: the memory is leaked, so nothing else uses it.
    let store = unsafe { MemoryStore::new(std::ptr::NonNull::from(bytes).cast(), 8192, FaultPlan::default()) };
    vm.add_swap(Box::leak(Box::new(store))).unwrap();
    let idle: Vec<_> = (0..3).map(|_| small(&cpu)).collect();
    // The pages are wired, so they and their tables stay.
    idle.iter().for_each(|space| space.wire_all(Wire::Now).unwrap());
    let hog = Space::new(vm).unwrap();
    cpu.enter(&hog).unwrap();
    let at = 0x7000_0000;
    map(&hog, at, 6000);
    let begin = std::time::Instant::now();
    // Touches more pages than there are frames, again and again. So pageout always runs, and always finds pages.
    while vm.stats().total(Event::TablesDropped) == 0 {
        assert!(begin.elapsed().as_secs() < 60, "the idle tables are never dropped");
        pages(at, 6000).for_each(|va| cpu.write(&hog, va, va).unwrap());
    }
    assert!(begin.elapsed().as_secs() >= 1, "the tables were dropped too early");
    hog.clear();
    let read = vm.stats().total(Event::SwapIn);
    for space in &idle {
        cpu.enter(space).unwrap();
        look(&cpu, space);
    }
    assert_eq!(vm.stats().total(Event::SwapIn), read, "the pages were paged out with the tables");
    cpu.leave();
}

fn spaces_without_tables_are_not_looked_at_again<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let visits = || {
        let before = vm.stats().total(Event::SpacesVisited);
        vm.give_back_kept();
        vm.stats().total(Event::SpacesVisited) - before
    };
    let mut spaces: Vec<_> = (0..9).map(|_| small(&cpu)).collect();
    let never_touched = Space::new(vm).unwrap();
    cpu.leave();
    assert_eq!(visits(), 10);
    assert_eq!(spaces.iter().map(|space| space.stats().table_pages).max(), Some(0));
    assert_eq!(visits(), 0, "none has tables");
    for space in &spaces[..3] {
        cpu.enter(space).unwrap();
        assert_eq!(look(&cpu, space), 1);
    }
    cpu.leave();
    assert_eq!(visits(), 3, "those that a CPU ran");
    // Drops three spaces: one was not run after the first visit, one was run, and one was never touched.
    spaces.remove(8);
    spaces.remove(1);
    drop(never_touched);
    assert_eq!(visits(), 2);
    cpu.enter(&spaces[4]).unwrap();
    assert_eq!(look(&cpu, &spaces[4]), 1);
    cpu.leave();
    assert_eq!(visits(), 3);
    drop(spaces);
    assert_eq!(visits(), 0);
}

fn forks_take_the_tables_of_idle_spaces_while_memory_is_scarce<F: Simulate>() {
    let vm = Simulated::<F>::boot(Settings { cpus: 1, frames: 16384, ..Settings::default() }).unwrap();
    let cpu = Cpu::attach(vm, 0).unwrap();
    let idle: Vec<_> = (0..3).map(|_| small(&cpu)).collect();
    let parent = small(&cpu);
    let fork = || drop(parent.fork().unwrap());
    (0..100).for_each(|_| fork());
    assert_eq!(vm.stats().total(Event::SpacesVisited), 0, "there is memory");
    let _hog = fill_until(&cpu, || vm.frames().is_scarce());
    let begin = std::time::Instant::now();
    while idle.iter().any(has_tables) {
        assert!(begin.elapsed().as_secs() < 60, "the idle tables are never dropped");
        fork();
    }
    assert!(begin.elapsed().as_secs() >= 1, "the tables were dropped too early");
    assert_eq!((vm.frames().is_low(), vm.pageout().passes()), (false, 0), "long before pageout");
    for space in &idle {
        cpu.enter(space).unwrap();
        assert_eq!(look(&cpu, space), 1, "one fault maps all");
    }
    cpu.leave();
}

fn returning_tables_replace_idle_ones_while_memory_is_scarce<F: Simulate>() {
    let vm = Simulated::<F>::boot(Settings { cpus: 1, frames: 16384, ..Settings::default() }).unwrap();
    let cpu = Cpu::attach(vm, 0).unwrap();
    let idle: Vec<_> = (0..3).map(|_| small(&cpu)).collect();
    let woken = small(&cpu);
    let _hog = fill_until(&cpu, || vm.frames().is_scarce());
    let begin = std::time::Instant::now();
    while idle.iter().any(has_tables) {
        assert!(begin.elapsed().as_secs() < 60, "the idle tables are never dropped");
        woken.drop_tables().expect("no CPU has it loaded");
        cpu.enter(&woken).unwrap();
        assert_eq!(look(&cpu, &woken), 1, "one fault maps all");
        cpu.leave();
    }
    assert!(begin.elapsed().as_secs() >= 1, "the tables were dropped too early");
    assert_eq!((vm.frames().is_low(), vm.pageout().passes()), (false, 0), "long before pageout");
}

fn without_a_store_the_daemon_takes_idle_tables<F: Simulate>() {
    let vm = Simulated::<F>::boot(Settings { cpus: 2, frames: 16384, ..Settings::default() }).unwrap();
    let cpu = Cpu::attach(vm, 0).unwrap();
    let idle: Vec<_> = (0..40).map(|_| small(&cpu)).collect();
    let daemon = std::thread::spawn(move || {
        let _daemon = Cpu::attach(vm, 1).unwrap();
        vm.daemon_run(Daemon::Pageout);
    });
    let begin = std::time::Instant::now();
    while idle.iter().any(has_tables) {
        assert!(begin.elapsed().as_secs() < 60, "the idle tables are never dropped");
        // The daemon is woken each time that free memory becomes low.
        let hog = fill_until(&cpu, || vm.frames().is_low());
        hog.clear();
    }
    assert!(begin.elapsed().as_secs() >= 1, "the tables were dropped too early");
    assert_eq!(vm.pageout().passes(), 0, "no page can go");
    vm.stop_daemons();
    daemon.join().unwrap();
    for space in &idle {
        cpu.enter(space).unwrap();
        assert_eq!(look(&cpu, space), 1, "one fault maps all");
        space.check(true).unwrap();
    }
    cpu.leave();
}

fn has_tables<F: Simulate>(space: &S<F>) -> bool {
    space.stats().table_pages > 0
}

/// Makes a space that stores into new pages until `done`. Panics if its memory ends first.
fn fill_until<F: Simulate>(cpu: &Cpu<F>, done: impl Fn() -> bool) -> S<F> {
    let hog = Space::new(cpu.vm()).unwrap();
    cpu.enter(&hog).unwrap();
    map(&hog, 0x7000_0000, 16384);
    let mut at = pages(0x7000_0000, 16384);
    while !done() {
        let va = at.next().expect("there is less memory than this");
        cpu.write(&hog, va, va).unwrap();
    }
    cpu.leave();
    hog
}

fn shared_pages_of_a_child_come_back_and_are_copied_as_before<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = small(&cpu);
    let child = space.fork().unwrap();
    pages(PLACES[1], 20).for_each(|va| cpu.write(&space, va, 7).unwrap());
    cpu.leave();
    for s in [&space, &child] {
        s.drop_tables();
    }
    cpu.enter(&child).unwrap();
    assert_eq!(cpu.read(&child, PLACES[1]), Ok(PLACES[1] + 1));
    let faults = vm.stats().faults();
    let all = PLACES.into_iter().flat_map(|at| pages(at, 40));
    all.for_each(|va| assert_eq!(cpu.read(&child, va), Ok(va + 1)));
    // The child's tables had no leaves when they were dropped, so one fault did not map all pages again.
    assert!(vm.stats().faults() > faults);
    pages(PLACES[0] + 10 * PAGE_SIZE, 30).for_each(|va| cpu.write(&child, va, 9).unwrap());
    cpu.enter(&space).unwrap();
    pages(PLACES[0] + 10 * PAGE_SIZE, 30).for_each(|va| assert_eq!(cpu.read(&space, va), Ok(va + 1)));
    pages(PLACES[1], 20).for_each(|va| assert_eq!(cpu.read(&space, va), Ok(7)));
    cpu.leave();
    child.check(true).unwrap();
    space.check(true).unwrap();
}

fn a_space_that_runs_keeps_its_tables<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = small(&cpu);
    let before = space.stats();
    assert_eq!(space.drop_tables(), None);
    assert_eq!(space.stats(), before);
    // SAFETY: the CPU has loaded these page tables.
    unsafe { cpu.idle(space.page_tables()) };
    assert!(space.drop_tables().is_some(), "a CPU that only has it loaded does not run it");
    cpu.speculate(PLACES[0]);
    cpu.enter(&space).unwrap();
    look(&cpu, &space);
    cpu.leave();
}

fn stored_pages_stay_dirty_and_referenced_without_their_tables<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = small(&cpu);
    cpu.leave();
    let state = |va: u64| {
        let pin = vm.epoch().pin();
        // SAFETY: the space and its objects are only read, under a pin of their own system.
        let (entry, index) = unsafe {
            let entry = space.entry_at(va, &pin).unwrap();
            (entry, entry.front().object().unwrap().page_index())
        };
        match index.get(entry.front().key(va), &pin) {
            // SAFETY: the index names frames of this system, and the descriptor's state is only read.
            quire_vm::object::index::Slot::Page(pfn) => unsafe { vm.descriptor(pfn) }.state(),
            other => panic!("{va:#x} shows {other:?}"),
        }
    };
    space.drop_tables().unwrap();
    for va in pages(PLACES[2], 40).chain(pages(SHARED, 30)) {
        assert!(state(va).dirty(), "{va:#x} was stored to");
        assert!(state(va).0 & quire_vm::phys::page::State::REFERENCED != 0, "{va:#x} was touched");
    }
}

fn after_unmapping_everything_the_root_is_left<F: Simulate>() {
    let op = (0..6u8, 0..3usize, 0..60u64, 1..60u64);
    let config = ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(ops in prop::collection::vec(op, 1..40), by_parts: bool)| {
        let vm = boot::<F>(1);
        let cpu = Cpu::attach(vm, 0).unwrap();
        let space = Space::new(vm).unwrap();
        cpu.enter(&space).unwrap();
        let object = ObjectRef::anonymous(vm, 64).unwrap();
        for (op, place, first, n) in ops {
            let start = PLACES[place] + first * PAGE_SIZE;
            match op {
                0 | 1 => {
                    let shared = op == 1;
                    let object = shared.then_some((&object, 0));
                    let r = MapRequest::private(Placement::Fixed(start), n * PAGE_SIZE);
                    let r = MapRequest { object, shared, ..r };
                    space.map(&r).unwrap();
                    pages(start, n).step_by(3).for_each(|va| cpu.write(&space, va, va).unwrap());
                }
                2 => space.unmap(range(start, n)).unwrap(),
                3 => {
                    let _holes = space.advise(range(start, n), Advice::DontNeed);
                }
                4 => object.discard(first..first + n),
                _ => {
                    let _holes = space.protect(range(start, n), Prot::READ);
                }
            }
            space.check(true).unwrap();
        }
        if by_parts {
            for at in PLACES {
                space.unmap(range(at, 60)).unwrap();
                space.unmap(range(at + 60 * PAGE_SIZE, 60)).unwrap();
            }
        } else {
            space.clear();
        }
        prop_assert_eq!(space.stats().table_pages, 1);
        cpu.leave();
    });
}

fn after_unmapping_everything_under_faults_the_root_is_left<F: Simulate>() {
    let vm = boot::<F>(3);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space: S<F> = Space::new(vm).unwrap();
    cpu.disturb(5);
    for round in 0..150 {
        for at in PLACES {
            map(&space, at, 8);
        }
        let begun = AtomicBool::new(false);
        std::thread::scope(|s| {
            let faults: Vec<_> = [1, 2]
                .map(|id| {
                    let (space, begun) = (&space, &begun);
                    s.spawn(move || {
                        let cpu = Cpu::attach(vm, id).unwrap();
                        cpu.disturb(round * 2 + id as u64);
                        cpu.enter(space).unwrap();
                        let mut n = id;
                        // This loop ends when the pages are unmapped.
                        while cpu.write(space, PLACES[n % 3] + (n / 3 % 8) as u64 * PAGE_SIZE, 1).is_ok() {
                            begun.store(true, Ordering::Relaxed);
                            n += 1;
                        }
                        cpu.leave();
                    })
                })
                .into();
            while !begun.load(Ordering::Relaxed) {
                cpu.interrupts();
            }
            for at in PLACES {
                space.unmap(range(at, 8)).unwrap();
            }
            while !faults.iter().all(|f| f.is_finished()) {
                cpu.interrupts();
            }
        });
        assert_eq!(space.stats().table_pages, 1, "round {round}");
    }
}

fn contents_stay_while_tables_are_dropped_under_faults<F: Simulate>() {
    let vm = boot::<F>(3);
    let space = {
        let cpu = Cpu::attach(vm, 0).unwrap();
        let space = small(&cpu);
        cpu.leave();
        space
    };
    // The host decides when this thread runs, so the other threads continue until it has dropped tables.
    let (dropped, running) = (AtomicU64::new(0), AtomicU64::new(2));
    std::thread::scope(|s| {
        for id in 1..3 {
            let (space, dropped, running) = (&space, &dropped, &running);
            s.spawn(move || {
                let cpu = Cpu::attach(vm, id).unwrap();
                cpu.disturb(id as u64);
                for round in 0..50_000u64 {
                    if round >= 60 && dropped.load(Ordering::Relaxed) >= 10 {
                        break;
                    }
                    cpu.enter(space).unwrap();
                    // Each CPU has half of the pages, and stores the values that it checks later.
                    for va in PLACES.into_iter().skip(1).flat_map(|at| pages(at, 40)).skip(id - 1).step_by(2) {
                        if round > 0 {
                            assert_eq!(cpu.read(space, va), Ok(va + round - 1));
                        }
                        cpu.write(space, va, va + round).unwrap();
                    }
                    if round % 2 == 0 {
                        cpu.leave()
                    } else {
                        // SAFETY: the CPU has loaded these page tables.
                        unsafe { cpu.idle(space.page_tables()) }
                    }
                    cpu.speculate(PLACES[1]);
                    std::thread::yield_now();
                }
                cpu.leave();
                running.fetch_sub(1, Ordering::Relaxed);
            });
        }
        let cpu = Cpu::attach(vm, 0).unwrap();
        cpu.disturb(77);
        while running.load(Ordering::Relaxed) > 0 {
            if space.drop_tables().is_some() {
                dropped.fetch_add(1, Ordering::Relaxed);
            }
            cpu.interrupts();
        }
        assert!(dropped.load(Ordering::Relaxed) >= 10, "the space was idle at times");
    });
    let _cpu = Cpu::attach(vm, 0).unwrap();
    space.check(true).unwrap();
    // The space is dropped while the thread is a CPU.
    drop(space);
}

fn a_space_without_a_root_runs_until_a_fault_makes_one<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = small(&cpu);
    cpu.leave();
    // The root counts as a table page too.
    let tables = space.stats().table_pages;
    assert_eq!(space.drop_tables().unwrap().tables, tables);
    assert_eq!(space.drop_tables().unwrap(), quire_vm::map::Dropped::default(), "nothing is left");
    cpu.enter(&space).unwrap();
    cpu.speculate(PLACES[0]);
    assert_eq!((space.stats().table_pages, space.drop_tables()), (0, None), "it runs");
    assert!(cpu.load_word(PLACES[0]).is_err(), "the kernel's root has no user half");
    assert!(cpu.read(&space, 0x6000_0000).is_err(), "nothing is mapped");
    assert_eq!(space.stats().table_pages, 0, "that fault needs no table");
    assert_eq!(look(&cpu, &space), 1);
    assert_eq!(space.stats().table_pages, tables);
    space.check(true).unwrap();
    // Now the CPU runs other spaces in between, and keeps the space's tag.
    for _ in 0..3 {
        let other = small(&cpu);
        assert!(space.drop_tables().is_some());
        cpu.enter(&space).unwrap();
        cpu.enter(&other).unwrap();
        assert_eq!(look(&cpu, &other), 0);
        cpu.enter(&space).unwrap();
        assert_eq!(look(&cpu, &space), 1);
    }
    cpu.leave();
}

fn a_cpu_that_has_a_dropped_root_loaded_leaves_it<F: Simulate>() {
    let vm = boot::<F>(2);
    let [cpu, lazy] = [0, 1].map(|id| Cpu::attach(vm, id).unwrap());
    let space = small(&lazy);
    // SAFETY: the CPU has loaded these page tables.
    unsafe { lazy.idle(space.page_tables()) };
    assert_ne!(cpu.run(|| space.drop_tables()), None);
    assert_eq!(space.stats().table_pages, 0);
    // The simulated hardware checks at each walk that the loaded root is not freed.
    vm.epoch().drain();
    lazy.speculate(PLACES[0]);
    let other = small(&cpu);
    lazy.speculate(PLACES[0]);
    // The CPU runs the space again without a root. Only a fault makes one.
    lazy.enter(&space).unwrap();
    assert_eq!(space.stats().table_pages, 0);
    assert_eq!((look(&lazy, &space), look(&cpu, &other)), (1, 0));
    [&lazy, &cpu].into_iter().for_each(Cpu::leave);
    cpu.run(|| space.check(true)).unwrap();
    cpu.run(|| drop((space, other)));
}

fn cpus_that_run_a_space_load_the_root_that_one_makes<F: Simulate>() {
    let vm = boot::<F>(3);
    let cpus = [0, 1, 2].map(|id| Cpu::attach(vm, id).unwrap());
    let space = small(&cpus[0]);
    cpus.iter().for_each(Cpu::leave);
    cpus[0].run(|| space.drop_tables()).unwrap();
    cpus.iter().for_each(|cpu| cpu.enter(&space).unwrap());
    // SAFETY: the CPU has loaded these page tables.
    unsafe { cpus[2].idle(space.page_tables()) };
    let asked = || [1, 2].map(|cpu| vm.machine().interrupts(cpu));
    let before = asked();
    assert_eq!(look(&cpus[0], &space), 1);
    // CPU 2 does not run the space, so it is not interrupted. It finds the root when it runs the space.
    assert_eq!(asked(), [before[0] + 1, before[1]]);
    cpus[2].enter(&space).unwrap();
    for cpu in &cpus {
        // If a CPU has cached an absent entry, each page may cost one more fault.
        assert!(F::CACHES_ABSENT || look(cpu, &space) == 0, "a CPU runs on the kernel's root");
        look(cpu, &space);
    }
    cpus.iter().for_each(Cpu::leave);
    cpus[0].run(|| space.check(true)).unwrap();
    cpus[0].run(|| drop(space));
}

fn a_space_without_a_root_ends_forks_and_is_looked_at<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let before = Account::of(vm);
    for ends in [true, false] {
        let space = small(&cpu);
        cpu.leave();
        space.drop_tables().unwrap();
        space.check(true).unwrap();
        space.protect(range(PLACES[1], 3), Prot::READ).unwrap();
        space.protect(range(PLACES[1], 3), Prot::READ | Prot::WRITE).unwrap();
        space.unmap(range(PLACES[2], 0x100)).unwrap();
        map(&space, PLACES[2], 40);
        assert_eq!(space.stats().table_pages, 0, "no map operation needs a root");
        let child = space.fork().unwrap();
        assert_eq!((space.stats().table_pages, child.stats().table_pages), (0, 1), "a child will run");
        child.drop_tables().unwrap();
        cpu.enter(&child).unwrap();
        assert_eq!(cpu.read(&child, PLACES[0]), Ok(PLACES[0] + 1));
        assert_eq!(cpu.read(&child, PLACES[2]), Ok(0));
        if ends {
            cpu.leave();
            child.drop_tables().unwrap();
        } else {
            cpu.enter(&space).unwrap();
        }
        drop(child);
        cpu.leave();
        drop(space);
    }
    before.assert_settled(vm);
}

fn tables_that_a_failed_fault_leaves_are_dropped_again<F: Simulate>() {
    let vm = boot::<F>(1);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = small(&cpu);
    cpu.leave();
    space.drop_tables().unwrap();
    // The allocation of a root succeeds, and the next one fails.
    vm.fail_allocation(2);
    // SAFETY: the call below enters no leaf, so the map and its tables stay in agreement.
    let tables = unsafe { space.page_tables() };
    assert!(Pmap::<Simulated<F>>::table(tables, vm, PLACES[0], &vm.epoch().pin()).is_err());
    vm.fail_allocations(1, 1);
    assert_eq!(space.fault(PLACES[0], Access::Read), Err(FaultError::OutOfMemory));
    vm.fail_allocation(0);
    assert_eq!(space.stats().table_pages, 1, "a root");
    vm.give_back_kept();
    assert_eq!(space.stats().table_pages, 0, "a pass has visited the space");
    cpu.enter(&space).unwrap();
    assert_eq!(look(&cpu, &space), 1, "one fault still maps all");
    cpu.leave();
}
