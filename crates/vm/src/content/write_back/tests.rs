//! Tests of write-back to a store in memory.

use super::State;
use crate::MapError;
use crate::object::ObjectRef;
use crate::object::index::Slot;
use crate::paging::io::Request;
use crate::paging::memory_store::{FaultPlan, MemoryStore};
use crate::paging::pager::{Pager, PagerError};
use crate::phys::frames::{Fill, For};
use crate::sleep::MaySleep;
use crate::stats::Event;
use crate::testing::{Boot, TestMachine, memory_store, page};
use crate::tests::{load, range, show, store, system};
use crate::types::PAGE_SIZE;
use crate::{Access, Space};
use std::sync::OnceLock;

const LATE: FaultPlan = FaultPlan { delay: 4, pause: 0, fail_reads: 0, fail_writes: 0, window: 5, seed: 99 };

fn file(m: &Boot, pages: u64, plan: FaultPlan) -> (ObjectRef<TestMachine>, &'static MemoryStore) {
    let disk = memory_store(pages, plan);
    m.vm.poll_with(disk).unwrap();
    (ObjectRef::with_pager(m.vm, disk, pages * PAGE_SIZE).unwrap(), disk)
}

#[test]
fn only_dirty_pages_are_visited_and_written_in_clusters() {
    for plan in [FaultPlan::default(), LATE] {
        let m = system();
        let (file, disk) = file(&m, 600, plan);
        let space = Space::new(m.vm).unwrap();
        show(&space, 0, 600, &file, true);
        (0..600).for_each(|n| assert_eq!(load(&space, page(n)), 0));
        // Dirty two clusters of neighbours, and a single page.
        (100..132).chain([500]).for_each(|n| store(&space, page(n), n as u8));
        let visits = m.vm.stats().total(Event::RangeVisit);
        assert_eq!(file.write_back(0..400), Ok(32));
        assert_eq!(disk.counts().writes, 2);
        let walked = m.vm.stats().total(Event::RangeVisit) - visits;
        assert!(walked <= 32 + 4 + 400 + 8, "one walk over dirty pages, one over resident pages: {walked}");
        assert_eq!(file.query_range(0..600).dirty, 1);
        assert_eq!(space.sync(range(0, 600)), Ok(()));
        assert_eq!((disk.counts().writes, file.query_range(0..600).dirty), (3, 0));
        assert_eq!(file.write_back(0..600), Ok(0));
        store(&space, page(100), 7);
        assert_eq!(file.query_range(0..600).dirty, 1, "a store after the write is seen");
        file.page_out(0..600);
        assert_eq!((load(&space, page(100)), load(&space, page(131)), load(&space, page(500))), (7, 131, 500u64 as u8));
    }
}

#[test]
fn a_write_that_fails_is_an_error_and_leaves_the_page_dirty() {
    let m = system();
    let (file, disk) = file(&m, 64, FaultPlan::default());
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 64, &file, true);
    (0..40).for_each(|n| store(&space, page(n), 3));
    disk.set_plan(FaultPlan { fail_writes: 1, seed: 5, ..FaultPlan::default() });
    assert_eq!(file.write_back(0..64), Err(PagerError::Failed));
    assert_eq!(space.sync(range(0, 64)), Err(MapError::Pager(PagerError::Failed)));
    assert_eq!(file.query_range(0..64).dirty, 40);
    disk.set_plan(FaultPlan::default());
    assert_eq!(file.write_back(0..64), Ok(40));
    assert_eq!(file.query_range(0..64).dirty, 0);
    assert_eq!(space.sync(range(60, 8)), Err(MapError::NotMapped));
}

#[test]
fn each_follower_learns_of_a_failed_background_write_once() {
    use crate::object::WritesFailed;
    let m = system();
    let (file, disk) = file(&m, 64, LATE);
    let (a, b) = (file.write_errors().follow(), file.write_errors().follow());
    file.write(0, 1, &mut |to| -> Result<_, ()> { Ok(to.len()) }).unwrap();
    disk.set_plan(FaultPlan { fail_writes: 1, seed: 5, ..FaultPlan::default() });
    file.page_out(0..64);
    disk.set_plan(FaultPlan::default());
    assert_eq!(file.write_back(0..64), Ok(1), "it is still dirty, and is written now");
    let report = |reader| (file.write_errors().report(reader), file.write_errors().report(reader));
    assert_eq!((report(&a), report(&b)), ((Err(WritesFailed), Ok(())), (Err(WritesFailed), Ok(()))));
    assert_eq!(report(&file.write_errors().follow()), (Ok(()), Ok(())));
}

#[test]
fn a_store_during_a_write_is_written_or_leaves_the_page_dirty() {
    let m = system();
    let (file, _disk) = file(&m, 64, LATE);
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 64, &file, true);
    std::thread::scope(|s| {
        let (space, file) = (&space, &file);
        s.spawn(move || {
            quire_sync::hooks::threads::set_cpu(1);
            for i in 0..4000u64 {
                store(space, page(i * 7 % 64), (i / 64) as u8);
                if i % 5 == 0 {
                    let at = (i * 11 % 64) * PAGE_SIZE + 8;
                    file.write(at, 1, &mut |b| -> Result<_, ()> {
                        b.copy_from(&[i as u8]);
                        Ok(1)
                    })
                    .unwrap();
                }
            }
        });
        for _ in 0..60 {
            file.write_back(0..64).unwrap();
        }
    });
    file.write_back(0..64).unwrap();
    let before: Vec<(u8, u8)> = (0..64).map(|n| (load(&space, page(n)), load(&space, page(n) + 8))).collect();
    file.page_out(0..64);
    assert_eq!(file.resident(), 0);
    let after: Vec<(u8, u8)> = (0..64).map(|n| (load(&space, page(n)), load(&space, page(n) + 8))).collect();
    assert_eq!(before, after, "the backing store differs from memory");
    space.fault(page(0), Access::Read).unwrap();
}

#[test]
fn a_caller_that_does_not_wait_finds_the_writes_begun() {
    let m = system();
    let (file, disk) = file(&m, 64, LATE);
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 64, &file, true);
    (0..40).for_each(|n| store(&space, page(n), 3));
    assert_eq!(space.start_sync(range(60, 8)), Err(MapError::NotMapped));
    assert_eq!((disk.counts().writes, file.query_range(0..64).dirty), (0, 40));
    assert_eq!(space.start_sync(range(0, 64)), Ok(()));
    assert_eq!(file.query_range(0..64).dirty, 0, "all of them are on their way");
    assert_eq!(space.sync(range(0, 64)), Ok(()));
    assert_eq!(disk.counts().writes, 40u64.div_ceil(crate::paging::io::CLUSTER as u64), "nothing is written twice");
}

#[test]
fn a_wait_for_a_held_page_does_not_block_readers_of_records() {
    let m = system();
    let (file, _disk) = file(&m, 64, FaultPlan::default());
    file.write(0, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) }).unwrap();
    let waits = file.clone();
    let (begun, begin) = std::sync::mpsc::channel();
    let waiter = std::thread::spawn(move || {
        quire_sync::hooks::threads::set_cpu(1);
        begin.recv().unwrap();
        waits.write_back(0..1)
    });
    // The writer has a hold on the page while it reads its source, which may fault.
    let visits = || m.vm.stats().total(Event::RangeVisit);
    let until = |done: &dyn Fn() -> bool| {
        while !done() {
            std::thread::yield_now();
        }
    };
    file.write(0, 1, &mut |b| -> Result<_, ()> {
        let before = visits();
        begun.send(()).unwrap();
        until(&|| visits() > before);
        until(&|| m.vm.io().free() == crate::paging::io::RECORDS);
        Ok(b.len())
    })
    .unwrap();
    assert_eq!(waiter.join().unwrap(), Ok(1));
}

#[test]
fn a_frame_reused_by_another_object_has_no_state_for_this_one() {
    let m = system();
    let (file, _disk) = file(&m, 64, FaultPlan::default());
    let other = ObjectRef::anonymous(m.vm, 1).unwrap();
    file.write(0, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) }).unwrap();
    let Slot::Page(pfn) = file.index().get(0, &m.vm.epoch().pin()) else { panic!("it was written to") };
    let page = m.vm.page(pfn);
    assert!(file.state_of(0, page).is_some() && file.state_of(1, page).is_none());
    file.discard(0..64);
    assert!(file.state_of(0, page).is_none());
    // Allocate frames until this page's old frame is allocated again.
    while m.vm.alloc_frame(Fill::Any, For::User).unwrap().into_pfn() != pfn {}
    m.vm.assume_page(page, other.address(), 0, State::VALID | State::DIRTY);
    assert!(file.state_of(0, page).is_none() && other.state_of(0, page).is_some());
    m.vm.release_page(page);
}

/// A store that, when its object is dropped, records the number of writes in progress.
struct Last {
    disk: &'static MemoryStore,
    vm: &'static crate::tests::Vm,
    left: OnceLock<u64>,
}

impl Pager for Last {
    fn name(&self, to: &mut dyn core::fmt::Write) -> core::fmt::Result {
        Pager::name(self.disk, to)
    }
    fn ident(&self) -> (u64, u64) {
        (1, 1)
    }
    fn in_memory(&self) -> bool {
        false
    }
    fn takes_writes(&self) -> bool {
        true
    }
    fn start(&self, request: Request) {
        Pager::start(self.disk, request);
    }
    fn released(&self) {
        self.vm.finish_completed(&mut MaySleep::here());
        self.left.set(self.vm.io().in_flight()).unwrap();
    }
}

#[test]
fn an_object_ends_with_its_last_write_after_all_done_writes() {
    let m = system();
    let late = FaultPlan { window: 2, ..FaultPlan::default() };
    let (other, _disk) = file(&m, 64, late);
    let disk = memory_store(64, late);
    // Completions are processed last in, first out, and stores are polled in order. So this store's write is completed
    // first.
    m.vm.poll_with(disk).unwrap();
    let last: &'static Last = Box::leak(Box::new(Last { disk, vm: m.vm, left: OnceLock::new() }));
    let file = ObjectRef::with_pager(m.vm, last, 64 * PAGE_SIZE).unwrap();
    for f in [&file, &other] {
        f.write(0, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) }).unwrap();
    }
    assert_eq!([&file, &other].map(|f| f.start_write_back(0..64)), [1, 1]);
    drop(file);
    assert_eq!((m.vm.io().in_flight(), last.left.get()), (2, None), "its write keeps it");
    m.vm.poll_pagers();
    assert_eq!(m.vm.finish_completed(&mut MaySleep::here()), 2);
    assert_eq!(last.left.get(), Some(&0), "a complete write was left unfinished");
    assert_eq!(other.write_back(0..64), Ok(0));
}
