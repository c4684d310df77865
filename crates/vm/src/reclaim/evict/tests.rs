//! Tests of paging out and in again, on the test machine.

use crate::map::Advice;
use crate::object::ObjectRef;
use crate::object::index::Slot;
use crate::paging::io::{CLUSTER, Direction, Request};
use crate::paging::memory_store::{FaultPlan, MemoryStore};
use crate::paging::pager::{Pager, PagerError, SwapStore};
use crate::stats::Event;
use crate::testing::{Boot, memory_store, page};
use crate::tests::{anonymous, load, range, settled, show, store, system};
use crate::types::{Access, PAGE_SIZE};
use crate::{FaultError, Space};

const PROMPT: FaultPlan = FaultPlan { delay: 0, pause: 0, fail_reads: 0, fail_writes: 0, window: 0, seed: 1 };
const AWKWARD: FaultPlan = FaultPlan { delay: 5, window: 7, seed: 4711, ..PROMPT };

/// The number of free slots. All I/O is finished.
fn free_slots(m: &Boot) -> u64 {
    assert_eq!(m.vm.io().in_flight(), 0, "nothing is under way");
    m.vm.swap().free()
}

fn resident(object: &ObjectRef<crate::testing::TestMachine>) -> u64 {
    object.query_range(0..u64::MAX).resident
}

#[test]
fn private_memory_comes_back_from_swap_as_it_was() {
    for plan in [PROMPT, AWKWARD] {
        let m = system();
        m.swap(512, plan);
        let before = settled(m.vm);
        {
            let space = Space::new(m.vm).unwrap();
            anonymous(&space, 0, 300);
            (0..300).for_each(|n| store(&space, page(n) + n, n as u8 ^ 85));
            let used = settled(m.vm);
            space.advise(range(0, 300), Advice::PageOut).unwrap();
            assert_eq!(space.stats().resident_pages, 0);
            assert_eq!(free_slots(&m), 212);
            assert!(settled(m.vm) + 299 <= used, "the frames are free");
            (0..300).for_each(|n| assert_eq!(load(&space, page(n) + n), n as u8 ^ 85));
            assert_eq!(m.vm.stats().total(Event::SwapIn), 300);
        }
        assert_eq!(free_slots(&m), 512);
        assert_eq!(settled(m.vm), before);
    }
}

#[test]
fn neighbours_are_read_together() {
    let m = system();
    let swap = m.swap(512, PROMPT);
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 64);
    (0..64).for_each(|n| store(&space, page(n), n as u8 + 1));
    space.advise(range(0, 64), Advice::PageOut).unwrap();
    assert_eq!(swap.counts().writes, 4, "clusters of sixteen");
    (0..64).for_each(|n| assert_eq!(load(&space, page(n)), n as u8 + 1));
    assert_eq!(swap.counts().reads, 8, "clusters of eight");
}

#[test]
fn a_page_that_was_only_read_goes_again_without_a_write() {
    let m = system();
    let swap = m.swap(512, PROMPT);
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 32);
    (0..32).for_each(|n| store(&space, page(n), n as u8 + 1));
    space.advise(range(0, 32), Advice::PageOut).unwrap();
    (0..32).for_each(|n| assert_eq!(load(&space, page(n)), n as u8 + 1));
    store(&space, page(5), 99);
    let writes = m.vm.stats().total(Event::SwapOut);
    space.advise(range(0, 32), Advice::PageOut).unwrap();
    assert_eq!(m.vm.stats().total(Event::SwapOut), writes + 1);
    assert_eq!((swap.counts().writes, space.stats().resident_pages), (3, 0));
    assert_eq!((load(&space, page(5)), load(&space, page(6))), (99, 7));
    assert_eq!(free_slots(&m), 512 - 32);
}

#[test]
fn zeroes_that_were_never_stored_into_need_no_slot() {
    let m = system();
    m.swap(64, PROMPT);
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 8);
    space.protect(range(0, 8), crate::Prot::READ).unwrap();
    // A wired mapping has pages of its own.
    space.wire(range(0, 8), crate::map::Wire::Now).unwrap();
    space.make_resident(range(0, 8)).unwrap();
    space.wire(range(0, 8), crate::map::Wire::No).unwrap();
    (0..8).for_each(|n| assert_eq!(load(&space, page(n)), 0));
    assert_eq!((space.stats().resident_pages, m.vm.stats().faults_of(crate::FaultKind::ZeroFill)), (8, 8));
    space.advise(range(0, 8), Advice::PageOut).unwrap();
    assert_eq!((space.stats().resident_pages, free_slots(&m)), (0, 64));
    (0..8).for_each(|n| assert_eq!(load(&space, page(n)), 0));
}

#[test]
fn shared_memory_and_file_operations_reach_pages_in_swap() {
    for plan in [PROMPT, AWKWARD] {
        let m = system();
        m.swap(256, plan);
        let before = settled(m.vm);
        {
            let file = ObjectRef::anonymous(m.vm, 100).unwrap();
            let space = Space::new(m.vm).unwrap();
            show(&space, 0, 100, &file, true);
            (0..100).for_each(|n| store(&space, page(n) + 7, n as u8 + 1));
            space.advise(range(0, 100), Advice::PageOut).unwrap();
            assert_eq!(resident(&file), 0);
            let mut seen = 0u8;
            let read = |at: u64, seen: &mut u8| {
                file.read(at, 1, &mut |b| -> Result<_, ()> {
                    *seen = b.get(0).unwrap();
                    Ok(1)
                })
            };
            assert_eq!(read(3 * PAGE_SIZE + 7, &mut seen), Ok(1));
            assert_eq!(seen, 4);
            file.write(40 * PAGE_SIZE, 1, &mut |b| -> Result<_, ()> {
                b.copy_from(&[200]);
                Ok(1)
            })
            .unwrap();
            assert_eq!((load(&space, page(40)), load(&space, page(40) + 7)), (200, 41));
            // The file is cut short inside page 50, which is in swap, and made longer again.
            space.advise(range(0, 100), Advice::PageOut).unwrap();
            file.set_size(50 * PAGE_SIZE + 5);
            file.set_size(100 * PAGE_SIZE);
            space.advise(range(0, 100), Advice::PageOut).unwrap();
            assert_eq!((load(&space, page(50) + 7), load(&space, page(51) + 7)), (0, 0));
            assert_eq!(load(&space, page(49) + 7), 50);
            file.discard(10..20);
            assert_eq!((load(&space, page(10) + 7), load(&space, page(20) + 7)), (0, 21));
        }
        assert_eq!((free_slots(&m), settled(m.vm)), (256, before));
    }
}

#[test]
fn a_page_in_swap_behind_a_fork_is_read_once_for_all_sharers() {
    let m = system();
    m.swap(256, PROMPT);
    let before = settled(m.vm);
    {
        let space = Space::new(m.vm).unwrap();
        anonymous(&space, 0, 40);
        (0..40).for_each(|n| store(&space, page(n), n as u8 + 1));
        space.advise(range(0, 40), Advice::PageOut).unwrap();
        let child = space.fork().unwrap();
        let grandchild = child.fork().unwrap();
        assert_eq!(load(&child, page(3)), 4);
        let read = m.vm.stats().total(Event::SwapIn);
        assert_eq!((load(&space, page(3)), load(&grandchild, page(3))), (4, 4));
        assert_eq!(m.vm.stats().total(Event::SwapIn), read, "it was there");
        store(&child, page(30), 99);
        store(&space, page(31), 98);
        assert_eq!((load(&space, page(30)), load(&child, page(31)), load(&grandchild, page(30))), (31, 32, 31));
        assert_eq!((load(&space, page(31)), load(&child, page(30))), (98, 99));
        drop(space);
        drop(grandchild);
        // The fork merges the layers. Some of their pages are in swap.
        drop(child.fork().unwrap());
        (0..40).filter(|n| *n != 30).for_each(|n| assert_eq!(load(&child, page(n)), n as u8 + 1));
        child.advise(range(0, 20), Advice::DontNeed).unwrap();
        assert_eq!((load(&child, page(19)), load(&child, page(20))), (0, 21));
    }
    assert_eq!((free_slots(&m), settled(m.vm)), (256, before));
}

#[test]
fn unmapping_frees_the_swap_slots_of_its_pages() {
    let m = system();
    m.swap(256, PROMPT);
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 100);
    (0..100).for_each(|n| store(&space, page(n), n as u8 + 1));
    space.advise(range(0, 100), Advice::PageOut).unwrap();
    assert_eq!(free_slots(&m), 156);
    space.unmap(range(10, 20)).unwrap();
    assert_eq!(free_slots(&m), 176);
    space.advise(range(50, 10), Advice::DontNeed).unwrap();
    assert_eq!((free_slots(&m), load(&space, page(55))), (186, 0));
    let to = crate::map::Move::To(page(200));
    space.remap(range(60, 40), 40 * PAGE_SIZE, to, false).unwrap();
    assert_eq!((load(&space, page(200)), load(&space, page(239))), (61, 100));
}

#[test]
fn a_failed_write_leaves_the_page_and_is_tried_again() {
    let m = system();
    let swap = m.swap(256, FaultPlan { fail_writes: 1, ..PROMPT });
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 40);
    (0..40).for_each(|n| store(&space, page(n), n as u8 + 1));
    space.advise(range(0, 40), Advice::PageOut).unwrap();
    assert_eq!((space.stats().resident_pages, free_slots(&m)), (40, 256));
    assert_eq!(m.vm.stats().total(Event::WriteFailed), 40);
    swap.set_plan(PROMPT);
    space.advise(range(0, 40), Advice::PageOut).unwrap();
    assert_eq!((space.stats().resident_pages, free_slots(&m)), (0, 216));
    (0..40).for_each(|n| assert_eq!(load(&space, page(n)), n as u8 + 1));
}

#[test]
fn a_failed_read_fails_that_access_and_can_be_retried() {
    let m = system();
    let swap = m.swap(256, PROMPT);
    let before = settled(m.vm);
    {
        let space = Space::new(m.vm).unwrap();
        anonymous(&space, 0, 40);
        (0..40).for_each(|n| store(&space, page(n), n as u8 + 1));
        space.advise(range(0, 40), Advice::PageOut).unwrap();
        swap.set_plan(FaultPlan { fail_reads: 1, ..PROMPT });
        assert_eq!(space.fault(page(7), Access::Read), Err(FaultError::Pager(PagerError::Failed)));
        assert_eq!((space.stats().resident_pages, free_slots(&m)), (0, 216));
        swap.set_plan(PROMPT);
        (0..40).for_each(|n| assert_eq!(load(&space, page(n)), n as u8 + 1));
    }
    assert_eq!((free_slots(&m), settled(m.vm)), (256, before));
}

/// A store that fails each read of the page `bad`.
struct Spotted {
    disk: &'static MemoryStore,
    bad: u64,
}

impl Spotted {
    fn start(&self, request: Request) {
        let range = request.first()..request.first() + request.len() as u64;
        match request.direction() == Direction::Read && range.contains(&self.bad) {
            true => request.complete(Err(PagerError::Failed)),
            false => Pager::start(self.disk, request),
        }
    }
}

impl SwapStore for Spotted {
    fn slots(&self) -> u64 {
        self.disk.slots()
    }
    fn start(&self, request: Request) {
        self.start(request);
    }
}

impl Pager for Spotted {
    fn name(&self, to: &mut dyn core::fmt::Write) -> core::fmt::Result {
        to.write_str("spotted")
    }
    fn ident(&self) -> (u64, u64) {
        (1, 3)
    }
    fn in_memory(&self) -> bool {
        false
    }
    fn takes_writes(&self) -> bool {
        false
    }
    fn cluster(&self) -> usize {
        CLUSTER
    }
    fn start(&self, request: Request) {
        self.start(request);
    }
}

#[test]
fn an_unreadable_neighbour_does_not_fail_the_wanted_page() {
    let m = system();
    let spotted = |pages, bad| Box::leak(Box::new(Spotted { disk: memory_store(pages, PROMPT), bad }));
    m.vm.add_swap(spotted(64, 5)).unwrap();
    let before = settled(m.vm);
    {
        let file = ObjectRef::with_pager(m.vm, spotted(40, 9), 40 * PAGE_SIZE).unwrap();
        let space = Space::new(m.vm).unwrap();
        show(&space, 0, 40, &file, true);
        anonymous(&space, 100, 40);
        (100..140).for_each(|n| store(&space, page(n), n as u8));
        space.advise(range(100, 40), Advice::PageOut).unwrap();
        let failed: Vec<u64> = (0..40).filter(|n| space.fault(page(*n), Access::Read).is_err()).collect();
        assert_eq!(failed, [9]);
        let read = |n: &u64| space.fault(page(*n), Access::Read) != Err(FaultError::Pager(PagerError::Failed));
        let failed: Vec<u64> = (100..140).filter(|n| !read(n)).collect();
        assert_eq!(failed.len(), 1, "{failed:?}");
        (100..140).filter(|n| !failed.contains(n)).for_each(|n| assert_eq!(load(&space, page(n)), n as u8));
        assert_eq!((resident(&file), space.stats().resident_pages), (39, 39 + 39));
    }
    assert_eq!((free_slots(&m), settled(m.vm)), (64, before));
}

#[test]
fn a_file_behind_a_store_is_written_back_and_read_in_clusters() {
    for plan in [PROMPT, AWKWARD] {
        let m = system();
        let disk = memory_store(64, plan);
        m.vm.poll_with(disk).unwrap();
        let file = ObjectRef::with_pager(m.vm, disk, 64 * PAGE_SIZE).unwrap();
        let space = Space::new(m.vm).unwrap();
        show(&space, 0, 64, &file, true);
        (0..64).for_each(|n| store(&space, page(n), n as u8 + 1));
        let reads = disk.counts().reads;
        assert_eq!(reads, 4);
        space.advise(range(0, 64), Advice::PageOut).unwrap();
        assert_eq!((resident(&file), disk.counts().writes), (0, 4));
        (0..64).for_each(|n| assert_eq!(load(&space, page(n)), n as u8 + 1));
        assert_eq!(disk.counts().reads, reads + 4);
        space.advise(range(0, 64), Advice::PageOut).unwrap();
        assert_eq!((resident(&file), disk.counts().writes), (0, 4), "nothing was changed");
    }
}

#[test]
fn full_swap_keeps_pages_in_memory_and_slots_in_use() {
    let m = system();
    m.swap(16, PROMPT);
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 40);
    (0..40).for_each(|n| store(&space, page(n), n as u8 + 1));
    space.advise(range(0, 40), Advice::PageOut).unwrap();
    assert_eq!((space.stats().resident_pages, free_slots(&m)), (24, 0));
    (0..40).for_each(|n| assert_eq!(load(&space, page(n)), n as u8 + 1));
    (0..40).for_each(|n| store(&space, page(n), n as u8 + 2));
    space.advise(range(0, 40), Advice::PageOut).unwrap();
    // Pages that were read while slots were scarce gave up their slots at scattered places. The number of pages that
    // are evicted again equals the number of slots.
    assert_eq!((space.stats().resident_pages, free_slots(&m)), (24, 0));
    (0..40).for_each(|n| assert_eq!(load(&space, page(n)), n as u8 + 2));
}

#[test]
fn page_out_uses_every_slot_wherever_it_is() {
    let m = system();
    m.swap(16, PROMPT);
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 40);
    (0..40).for_each(|n| store(&space, page(n), n as u8 + 1));
    space.advise(range(0, 16), Advice::PageOut).unwrap();
    // Every second slot is free, so no two neighbouring slots are free.
    (0..16).step_by(2).for_each(|n| space.unmap(range(n, 1)).unwrap());
    assert_eq!((space.stats().resident_pages, free_slots(&m)), (24, 8));
    space.advise(range(16, 24), Advice::PageOut).unwrap();
    assert_eq!((space.stats().resident_pages, free_slots(&m)), (16, 0));
    (1..16).step_by(2).chain(16..40).for_each(|n| assert_eq!(load(&space, page(n)), n as u8 + 1));
}

#[test]
fn a_page_under_a_copy_is_not_written_and_stays() {
    let m = system();
    m.swap(16, PROMPT);
    let file = ObjectRef::anonymous(m.vm, 1).unwrap();
    file.write(0, 2, &mut |b| -> Result<_, ()> {
        b.copy_from(&[1]);
        // While the source is asked for its bytes, the page is only held if it was already resident.
        Ok(2)
    })
    .unwrap();
    file.write(0, 2, &mut |b| -> Result<_, ()> {
        file.page_out(0..1);
        b.copy_from(&[2]);
        Ok(2)
    })
    .unwrap();
    let pin = m.vm.epoch().pin();
    assert!(matches!(file.index().get(0, &pin), Slot::Page(_)));
    drop(pin);
    file.page_out(0..1);
    let pin = m.vm.epoch().pin();
    assert!(matches!(file.index().get(0, &pin), Slot::Swap(_)));
    drop(pin);
    let mut seen = 0;
    file.read(0, 1, &mut |b| -> Result<_, ()> {
        seen = b.get(0).unwrap();
        Ok(1)
    })
    .unwrap();
    assert_eq!(seen, 2);
}

#[test]
fn a_completion_daemon_finishes_requests_of_waiting_threads() {
    let m = system();
    m.swap(512, AWKWARD);
    let space = Space::new(m.vm).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| {
            quire_sync::hooks::threads::set_cpu(1);
            m.vm.daemon_run(crate::reclaim::daemon::Daemon::Completion);
        });
        anonymous(&space, 0, 200);
        (0..200).for_each(|n| store(&space, page(n), n as u8));
        for _ in 0..3 {
            space.advise(range(0, 200), Advice::PageOut).unwrap();
            (0..200).for_each(|n| assert_eq!(load(&space, page(n)), n as u8));
            store(&space, page(9), 9);
        }
        m.vm.stop_daemons();
    });
    assert_eq!(free_slots(&m), 312);
}
