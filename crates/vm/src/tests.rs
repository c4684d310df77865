//! Tests of faults, objects and chains together, on the test machine.

use crate::content::IoError;
use crate::error::FaultError;
use crate::machine::Machine;
use crate::map::{MapRequest, Placement, Space, SpaceRef};
use crate::object::ObjectRef;
use crate::object::backing;
use crate::object::index::KEYS;
use crate::object::kept::KeptObject;
use crate::paging::pager::{Pager, PagerError};
use crate::phys::Config;
use crate::phys::page::FrameKind;
use crate::phys::queues::Queue;
use crate::reclaim::evict;
use crate::sleep::MaySleep;
use crate::stats::Event;
use crate::stats::FaultKind;
use crate::testing::{Boot, TestMachine, boot, boot_with, page};
use crate::types::{Access, PAGE_SIZE, Prot, VirtRange};
use proptest::prelude::*;
use quire_sync::hooks::threads::as_cpu;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) type Vm = crate::vm::Vm<TestMachine>;

pub(crate) fn system() -> Boot {
    quire_sync::hooks::threads::set_cpu(0);
    boot(2048, 2)
}

pub(crate) fn anonymous(space: &Space<TestMachine>, first: u64, pages: u64) {
    let r = MapRequest::private(Placement::Fixed(page(first)), pages * PAGE_SIZE);
    assert_eq!(space.map(&r), Ok(page(first)));
}

pub(crate) fn show(space: &Space<TestMachine>, first: u64, pages: u64, object: &ObjectRef<TestMachine>, shared: bool) {
    let r = MapRequest {
        object: Some((object, 0)),
        shared,
        ..MapRequest::private(Placement::Fixed(page(first)), pages * PAGE_SIZE)
    };
    assert_eq!(space.map(&r), Ok(page(first)));
}

/// A program's access to an address. It translates the address. If that fails, it faults and tries again.
pub(crate) fn reach<R>(
    space: &Space<TestMachine>,
    va: u64,
    access: Access,
    f: impl Fn(*mut u8) -> R,
) -> Result<R, FaultError> {
    loop {
        let at = |pfn| {
            let frame = crate::Phys::frame_ptr(space.vm().machine(), pfn);
            f(frame.wrapping_add((va % PAGE_SIZE) as usize))
        };
        if let Some(done) = space.pmap().access(va, access, at) {
            return Ok(done);
        }
        space.fault(va, access)?;
    }
}

pub(crate) fn store(space: &Space<TestMachine>, va: u64, value: u8) {
    // SAFETY: `access` calls this with a byte of a frame that a leaf maps for stores, in RAM that outlives the space.
    reach(space, va, Access::Write, |p| unsafe { p.write_volatile(value) }).unwrap()
}

pub(crate) fn load(space: &Space<TestMachine>, va: u64) -> u8 {
    // SAFETY: `access` calls this with a byte of a frame that a leaf maps for reads, in RAM that outlives the space.
    reach(space, va, Access::Read, |p| unsafe { p.read_volatile() }).unwrap()
}

/// Number of frames in use, after all memory that waits for readers was freed.
pub(crate) fn settled(vm: &'static Vm) -> u64 {
    vm.epoch().drain();
    for cpu in 0..vm.machine().cpus() {
        let caches = || vm.object_memory().caches().into_iter().chain(vm.map_memory().caches());
        // SAFETY: the caches belong to `vm`, which is passed to them, and the thread runs as the CPU whose lists are
        // drained.
        as_cpu(cpu, || caches().for_each(|c| unsafe { c.drain(vm) }));
    }
    vm.frames().total() - vm.frames().free()
}

pub(crate) fn range(first: u64, pages: u64) -> VirtRange {
    VirtRange { start: page(first), end: page(first + pages) }
}

/// Number of pages of all objects: resident ones, and those only in swap.
pub(crate) fn held(vm: &'static Vm) -> u64 {
    let pages = || vm.described().filter(|p| p.kind() == FrameKind::Object);
    let kept = pages().filter(|p| p.swap_slot().is_some()).count() as u64;
    pages().count() as u64 + vm.swap().total() - vm.swap().free() - kept
}

/// Pages out the pages of all layers of the mapping at the first page, shared layers too.
pub(crate) fn page_out(space: &Space<TestMachine>) {
    let kept: Vec<_> = {
        let pin = space.vm().epoch().pin();
        let front = space.lookup(page(0), &pin).map(|e| e.front());
        let objects = core::iter::successors(front, |b| b.behind()).filter_map(|b| b.object());
        objects.filter_map(|o| KeptObject::new(o, &pin)).collect()
    };
    kept.iter().for_each(|k| evict::push_out(k.object(), 0..KEYS, &mut MaySleep::here()));
}

#[test]
fn a_store_into_empty_memory_takes_one_zero_page_and_one_fault() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 8);
    assert_eq!(space.fault(page(3), Access::Write), Ok(FaultKind::ZeroFill));
    assert_eq!(space.fault(page(3), Access::Write), Ok(FaultKind::Spurious));
    assert_eq!(space.fault(page(3), Access::Read), Ok(FaultKind::Spurious));
    assert_eq!(load(&space, page(3) + 17), 0);
    assert_eq!(space.stats().resident_pages, 1);
    assert_eq!(m.vm.stats().faults_of(FaultKind::ZeroFill), 1);
}

#[test]
fn each_fault_is_counted_once_by_its_kind() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 8);
    for n in 0..3 {
        assert_eq!(space.fault(page(n), Access::Write), Ok(FaultKind::ZeroFill));
    }
    // A weakened leaf stays present, and a later fault restores the right.
    space.protect(range(0, 1), Prot::READ).unwrap();
    assert_eq!(space.fault(page(0), Access::Write), Err(FaultError::Protection));
    space.protect(range(0, 1), Prot::READ | Prot::WRITE).unwrap();
    assert_eq!(space.fault(page(0), Access::Write), Ok(FaultKind::Reuse));
    assert_eq!(space.fault(page(0), Access::Write), Ok(FaultKind::Spurious));
    let child = space.fork().unwrap();
    // One fault maps the resident neighbours too.
    assert_eq!(child.fault(page(0), Access::Read), Ok(FaultKind::Resident));
    assert_eq!(child.fault(page(1), Access::Write), Ok(FaultKind::Copy));
    let stats = m.vm.stats();
    let counted: Vec<_> = FaultKind::ALL.iter().map(|kind| (*kind, stats.faults_of(*kind))).collect();
    use FaultKind::*;
    assert_eq!(counted, [(Spurious, 1), (Resident, 1), (Reuse, 1), (ZeroFill, 3), (Copy, 1), (Move, 0), (PagedIn, 0)]);
    assert_eq!(stats.faults(), 7);
    assert_eq!((stats.total(Event::FaultAround), stats.total(Event::FaultRefused)), (2, 1));
}

#[test]
fn an_access_outside_or_against_the_protection_is_an_error() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    let r = MapRequest { prot: Prot::READ, ..MapRequest::private(Placement::Fixed(page(1)), PAGE_SIZE) };
    space.map(&r).unwrap();
    assert_eq!(space.fault(page(0), Access::Read), Err(FaultError::NotMapped));
    assert_eq!(space.fault(page(1), Access::Write), Err(FaultError::Protection));
    assert_eq!(space.fault(page(1), Access::Exec), Err(FaultError::Protection));
    assert_eq!(space.fault(page(1), Access::Read), Ok(FaultKind::Resident));
    for va in [0, 8, u64::MAX, 1 << 63, 0x7fff_ffff_f000] {
        assert_eq!(space.fault(va, Access::Read), Err(FaultError::NotMapped));
    }
}

#[test]
fn everything_that_a_space_took_is_free_when_it_is_gone() {
    let m = system();
    let before = settled(m.vm);
    {
        let space = Space::new(m.vm).unwrap();
        anonymous(&space, 0, 600);
        (0..600).for_each(|n| store(&space, page(n), 1));
        let child = space.fork().unwrap();
        (0..600).step_by(3).for_each(|n| store(&child, page(n), 2));
        (0..600).step_by(7).for_each(|n| store(&space, page(n), 3));
        drop(space);
        assert_eq!(load(&child, page(0)), 2);
        assert_eq!(load(&child, page(7)), 1, "the parent's stores after the fork stay private");
    }
    assert_eq!(settled(m.vm), before);
}

#[test]
fn a_private_file_mapping_copies_at_the_first_store() {
    let m = system();
    let file = ObjectRef::anonymous(m.vm, 4).unwrap();
    file.write(0, 4, &mut |b| -> Result<_, ()> {
        b.copy_from(b"file");
        Ok(4)
    })
    .unwrap();
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 4, &file, false);
    assert_eq!(space.fault(page(0), Access::Read), Ok(FaultKind::Resident));
    assert_eq!(load(&space, page(0)), b'f');
    assert_eq!(space.fault(page(0), Access::Write), Ok(FaultKind::Copy));
    store(&space, page(0), b'p');
    assert_eq!((load(&space, page(0)), load(&space, page(0) + 1)), (b'p', b'i'));
    let mut there = [0; 4];
    file.read(0, 4, &mut |b| -> Result<_, ()> {
        b.copy_to(&mut there);
        Ok(4)
    })
    .unwrap();
    assert_eq!(&there, b"file");
}

#[test]
fn a_load_from_a_file_maps_its_resident_neighbours_for_loads() {
    let m = system();
    let file = ObjectRef::anonymous(m.vm, 64).unwrap();
    for n in [0, 1, 5, 15, 16] {
        file.write(n * PAGE_SIZE, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) }).unwrap();
    }
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 64, &file, false);
    space.fault(page(1), Access::Read).unwrap();
    let mapped: Vec<u64> = (0..64).filter(|n| space.pmap().peek(page(*n)).is_some()).collect();
    assert_eq!(mapped, [0, 1, 5, 15]);
    assert!(mapped.iter().all(|n| !space.pmap().peek(page(*n)).unwrap().prot.contains(Prot::WRITE)));
}

#[test]
fn loads_of_a_child_map_shared_neighbours_read_only() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 64);
    (0..40).filter(|n| n % 3 != 1).for_each(|n| store(&space, page(n), n as u8));
    let child = space.fork().unwrap();
    store(&child, page(5), 99);
    assert_eq!(child.fault(page(2), Access::Read), Ok(FaultKind::Resident));
    let mapped: Vec<u64> = (0..64).filter(|n| child.pmap().peek(page(*n)).is_some()).collect();
    assert_eq!(mapped, (0..16).filter(|n| n % 3 != 1).collect::<Vec<u64>>());
    let writable = |n: &u64| child.pmap().peek(page(*n)).unwrap().prot.contains(Prot::WRITE);
    assert_eq!(mapped.into_iter().filter(writable).collect::<Vec<u64>>(), [5], "only its own page is writable");
    (0..40).for_each(|n| store(&child, page(n), 100 + n as u8));
    (0..40).for_each(|n| assert_eq!(load(&space, page(n)), if n % 3 != 1 { n as u8 } else { 0 }));
}

#[test]
fn truncation_unmaps_pages_and_zeroes_the_rest_of_the_last() {
    let m = system();
    let before = settled(m.vm);
    {
        let file = ObjectRef::anonymous(m.vm, 100).unwrap();
        let (a, b) = (Space::new(m.vm).unwrap(), Space::new(m.vm).unwrap());
        show(&a, 0, 100, &file, true);
        show(&b, 3, 100, &file, true);
        (0..100).for_each(|n| store(&a, page(n) + 100, n as u8 + 1));
        (0..100).for_each(|n| assert_eq!(load(&b, page(n + 3) + 100), n as u8 + 1));
        file.set_size(40 * PAGE_SIZE + 100);
        assert_eq!(file.resident(), 41);
        assert_eq!(a.fault(page(41), Access::Read), Err(FaultError::BeyondEnd));
        assert_eq!(b.fault(page(44), Access::Write), Err(FaultError::BeyondEnd));
        assert_eq!((a.stats().resident_pages, b.stats().resident_pages), (41, 41));
        file.set_size(100 * PAGE_SIZE);
        assert_eq!(load(&a, page(40) + 100), 0);
        assert_eq!(load(&a, page(39) + 100), 40);
        assert_eq!(load(&b, page(99) + 100), 0);
    }
    assert_eq!(settled(m.vm), before);
}

#[test]
fn truncation_takes_the_copies_that_private_mappings_have_made() {
    let m = system();
    let before = settled(m.vm);
    {
        let file = ObjectRef::anonymous(m.vm, 100).unwrap();
        let space = Space::new(m.vm).unwrap();
        show(&space, 0, 100, &file, false);
        let other = Space::new(m.vm).unwrap();
        show(&other, 7, 100, &file, false);
        // The copies are in three layers: the parent's, the child's, and a layer that both share.
        (0..100).for_each(|n| store(&space, page(n), 1));
        let child = space.fork().unwrap();
        (0..100).step_by(2).for_each(|n| store(&space, page(n), 2));
        (0..100).step_by(3).for_each(|n| store(&child, page(n), 3));
        (0..100).for_each(|n| store(&other, page(n + 7), 4));
        file.set_size(40 * PAGE_SIZE + 100);
        let own = |s: &Space<_>| s.stats().resident_pages;
        assert_eq!((own(&space), own(&other)), (41, 41));
        for (s, n) in [(&space, 41), (&child, 99), (&other, 60)] {
            assert_eq!(s.fault(page(n), Access::Read), Err(FaultError::BeyondEnd));
        }
        file.set_size(100 * PAGE_SIZE);
        for n in 0..100 {
            let kept = |value| if n <= 40 { value } else { 0 };
            assert_eq!(load(&space, page(n)), kept(if n % 2 == 0 { 2 } else { 1 }), "page {n}");
            assert_eq!(load(&child, page(n)), kept(if n % 3 == 0 { 3 } else { 1 }), "page {n}");
            assert_eq!(load(&other, page(n + 7)), kept(4), "page {n}");
        }
        for s in [&space, &child, &other] {
            s.check(true).unwrap();
        }
    }
    assert_eq!(settled(m.vm), before);
}

#[test]
fn a_thousand_forks_keep_a_short_chain_and_copy_little() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 64);
    (0..64).for_each(|n| store(&space, page(n), n as u8));
    let before = settled(m.vm);
    for i in 0..1000u64 {
        let child = space.fork().unwrap();
        store(&child, page(i % 64), 99);
        store(&space, page((i + 1) % 64), (i + 1) as u8);
        drop(child);
        store(&space, page((i + 2) % 64), (i + 2) as u8);
    }
    let copies = m.vm.stats().faults_of(FaultKind::Copy);
    assert!(copies <= 2000, "only stores while the child lives, and the child's own, copy: {copies}");
    let pin = m.vm.epoch().pin();
    let depth = backing::depth(space.lookup(page(0), &pin).unwrap().front());
    assert!(depth <= 3, "the chain is {depth} deep");
    drop(pin);
    for n in 0..64u64 {
        let last = (0..1000u64).flat_map(|i| [i + 1, i + 2]).filter(|k| k % 64 == n).max().unwrap();
        assert_eq!(load(&space, page(n)), last as u8);
    }
    assert!(settled(m.vm) <= before + 8, "{} frames, {before} before", settled(m.vm));
}

#[test]
fn unmapping_a_part_frees_its_pages_and_keeps_the_others() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 300);
    (0..300).for_each(|n| store(&space, page(n), n as u8));
    let before = settled(m.vm);
    space.unmap(range(100, 100)).unwrap();
    assert!(settled(m.vm) + 98 <= before, "{} frames, {before} before", settled(m.vm));
    (0..100).chain(200..300).for_each(|n| assert_eq!(load(&space, page(n)), n as u8));
    anonymous(&space, 100, 100);
    (100..200).for_each(|n| assert_eq!(load(&space, page(n)), 0));
}

#[test]
fn a_fault_without_memory_is_an_error_and_leaks_nothing() {
    let m = system();
    let file = ObjectRef::anonymous(m.vm, 200).unwrap();
    file.write(130 * PAGE_SIZE, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) }).unwrap();
    for access in [Access::Read, Access::Write] {
        for shared in [false, true] {
            let space = Space::new(m.vm).unwrap();
            show(&space, 0, 200, &file, shared);
            for at in [130, 10] {
                let before = settled(m.vm);
                let mut failed = 0;
                for n in 1.. {
                    m.vm.fail_allocation(n);
                    match space.fault(page(at), access) {
                        Ok(_) => break,
                        Err(e) => assert_eq!(e, FaultError::OutOfMemory),
                    }
                    failed += 1;
                    assert!(settled(m.vm) <= before + 4, "a failed fault keeps memory");
                }
                m.vm.fail_allocation(0);
                assert!(failed < 10);
            }
        }
        file.discard(0..200);
        file.write(130 * PAGE_SIZE, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) }).unwrap();
    }
}

#[test]
fn a_fault_without_memory_fails_and_leaves_the_kernel_reserve() {
    let m = boot(600, 2);
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 1000);
    let stopped = (0..1000).find(|n| space.fault(page(*n), Access::Write).is_err()).unwrap();
    assert_eq!(space.fault(page(stopped), Access::Write), Err(FaultError::OutOfMemory));
    assert!(m.vm.frames().free() >= m.vm.frames().reserve() - 2);
    space.unmap(range(0, 500)).unwrap();
    assert!(space.fault(page(stopped), Access::Write).is_ok());
}

struct Disk {
    fills: AtomicUsize,
    released: AtomicUsize,
}
impl Pager for Disk {
    fn name(&self, to: &mut dyn core::fmt::Write) -> core::fmt::Result {
        to.write_str("/disk")
    }
    fn ident(&self) -> (u64, u64) {
        (1, 2)
    }
    fn in_memory(&self) -> bool {
        false
    }
    fn takes_writes(&self) -> bool {
        false
    }
    fn fill(&self, page: u64, frame: &mut [u8; PAGE_SIZE as usize]) -> Result<(), PagerError> {
        self.fills.fetch_add(1, Ordering::Relaxed);
        if page == 3 {
            return Err(PagerError::Gone);
        }
        frame.fill(page as u8 + 1);
        Ok(())
    }
    fn make_writable(&self, page: u64) -> Result<(), PagerError> {
        if page == 2 { Err(PagerError::NoRoom) } else { Ok(()) }
    }
    fn released(&self) {
        self.released.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn a_pager_is_asked_once_a_page_and_refusals_reach_the_fault() {
    let m = system();
    let before = settled(m.vm);
    let disk: &'static Disk = Box::leak(Box::new(Disk { fills: AtomicUsize::new(0), released: AtomicUsize::new(0) }));
    {
        let file = ObjectRef::with_pager(m.vm, disk, 5 * PAGE_SIZE).unwrap();
        let (shared, private) = (Space::new(m.vm).unwrap(), Space::new(m.vm).unwrap());
        show(&shared, 0, 6, &file, true);
        show(&private, 0, 6, &file, false);
        assert_eq!(shared.fault(page(0), Access::Read), Ok(FaultKind::PagedIn));
        assert_eq!(private.fault(page(0), Access::Read), Ok(FaultKind::Resident));
        assert_eq!((load(&shared, page(0)), load(&private, page(0))), (1, 1));
        assert_eq!(disk.fills.load(Ordering::Relaxed), 1);
        assert_eq!(shared.fault(page(3), Access::Read), Err(FaultError::Pager(PagerError::Gone)));
        assert_eq!(shared.fault(page(2), Access::Write), Err(FaultError::Pager(PagerError::NoRoom)));
        assert_eq!(private.fault(page(2), Access::Write), Ok(FaultKind::Copy));
        store(&shared, page(0), 7);
        assert_eq!(load(&private, page(0)), 7);
        assert_eq!(shared.fault(page(5), Access::Read), Err(FaultError::BeyondEnd));
        let read = file.read(3 * PAGE_SIZE, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) });
        assert_eq!(read, Err(IoError::Pager(PagerError::Gone)));
        assert_eq!(file.ident(), (1, 2));
        assert_eq!(disk.released.load(Ordering::Relaxed), 0);
    }
    assert_eq!(disk.released.load(Ordering::Relaxed), 1);
    assert_eq!(settled(m.vm), before);
}

#[test]
fn new_pages_enter_the_active_queue_by_the_batch() {
    quire_sync::hooks::threads::set_cpu(0);
    let config = Config { poison: true, reserve: Some(4), zero_window: 0, ..Config::default() };
    let m = boot_with(2048, 2, config);
    let space = Space::new(m.vm).unwrap();
    anonymous(&space, 0, 400);
    (0..255).for_each(|n| store(&space, page(n), 1));
    assert_eq!(m.vm.queues().len(Queue::Active), 0);
    (255..400).for_each(|n| store(&space, page(n), 1));
    assert_eq!(m.vm.queues().len(Queue::Active), 256);
    m.vm.drain_queue_batches();
    assert_eq!(m.vm.queues().len(Queue::Active), 400);
    space.unmap(range(0, 150)).unwrap();
    assert_eq!(m.vm.queues().len(Queue::Active), 250);
    drop(space);
    assert_eq!(m.vm.queues().len(Queue::Active), 0);
}

/// Spawns a thread that runs `f` as CPU `cpu`.
fn on_cpu<'s, 'e>(s: &'s std::thread::Scope<'s, 'e>, cpu: usize, f: impl FnOnce() + Send + 's) {
    s.spawn(move || {
        quire_sync::hooks::threads::set_cpu(cpu);
        f();
    });
}

#[test]
fn concurrent_faults_forks_and_truncations_stay_consistent() {
    let m = system();
    let before = settled(m.vm);
    {
        let file = ObjectRef::anonymous(m.vm, 32).unwrap();
        let space: SpaceRef<TestMachine> = Space::new(m.vm).unwrap();
        anonymous(&space, 0, 64);
        show(&space, 64, 32, &file, true);
        show(&space, 96, 32, &file, false);
        std::thread::scope(|s| {
            on_cpu(s, 1, || {
                for i in 0..3000u64 {
                    let n = i * 7 % 128;
                    let access = if i % 3 == 0 { Access::Read } else { Access::Write };
                    match space.fault(page(n), access) {
                        Ok(_) | Err(FaultError::BeyondEnd) => {}
                        Err(e) => panic!("{e:?}"),
                    }
                }
            });
            for i in 0..300u64 {
                match i % 3 {
                    0 => file.set_size((i % 32) * PAGE_SIZE + i),
                    1 => file.set_size(32 * PAGE_SIZE),
                    _ => {
                        let child = space.fork().unwrap();
                        (0..64).step_by(5).for_each(|n| store(&child, page(n), i as u8));
                        (0..64).step_by(5).for_each(|n| assert_eq!(load(&child, page(n)), i as u8));
                    }
                }
            }
        });
        file.set_size(32 * PAGE_SIZE);
        // Every cached translation agrees with the leaf, and every leaf maps the page that a fault would find.
        for n in 0..128 {
            let leaf = space.pmap().peek(page(n));
            for cached in space.pmap().cached(page(n)) {
                assert_eq!(Some(cached.pfn), leaf.map(|l| l.pfn), "a stale translation is left");
            }
        }
    }
    assert_eq!(settled(m.vm), before);
}

#[derive(Clone, Debug)]
enum FileOp {
    Write(u64, Vec<u8>),
    Read(u64, usize),
    SetSize(u64),
    Discard(u64, u64),
    Store(u64, u8),
    Load(u64),
}

fn file_op() -> impl Strategy<Value = FileOp> {
    let at = 0u64..20 * PAGE_SIZE;
    prop_oneof![
        3 => (at.clone(), proptest::collection::vec(any::<u8>(), 1..9000)).prop_map(|(a, b)| FileOp::Write(a, b)),
        3 => (at.clone(), 1usize..9000).prop_map(|(a, n)| FileOp::Read(a, n)),
        2 => at.clone().prop_map(FileOp::SetSize),
        1 => (0u64..20, 1u64..5).prop_map(|(a, n)| FileOp::Discard(a, a + n)),
        2 => (at.clone(), any::<u8>()).prop_map(|(a, v)| FileOp::Store(a, v)),
        2 => at.prop_map(FileOp::Load),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn calls_and_mappings_read_a_file_as_it_was_written(ops in proptest::collection::vec(file_op(), 1..60)) {
        let m = system();
        let before = settled(m.vm);
        {
            let file = ObjectRef::anonymous(m.vm, 0).unwrap();
            let space = Space::new(m.vm).unwrap();
            show(&space, 0, 32, &file, true);
            let mut model: Vec<u8> = vec![];
            for op in ops {
                match op {
                    FileOp::Write(at, bytes) => {
                        let mut left = &bytes[..];
                        let n = file.write(at, bytes.len(), &mut |b| -> Result<_, ()> {
                            b.copy_from(left);
                            left = &left[b.len()..];
                            Ok(b.len())
                        });
                        prop_assert_eq!(n, Ok(bytes.len()));
                        let end = at as usize + bytes.len();
                        model.resize(model.len().max(end), 0);
                        model[at as usize..end].copy_from_slice(&bytes);
                    }
                    FileOp::Read(at, len) => {
                        let mut got = vec![];
                        file.read(at, len, &mut |b| -> Result<_, ()> {
                            let at = got.len();
                            got.resize(at + b.len(), 0);
                            Ok(b.copy_to(&mut got[at..]))
                        })
                        .unwrap();
                        let from = (at as usize).min(model.len());
                        prop_assert_eq!(&got[..], &model[from..(from + len).min(model.len())]);
                    }
                    FileOp::SetSize(n) => {
                        file.set_size(n);
                        model.resize(n as usize, 0);
                    }
                    FileOp::Discard(a, b) => {
                        file.discard(a..b);
                        let (a, b) = (a as usize * 4096, (b as usize * 4096).min(model.len()));
                        if a < b { model[a..b].fill(0); }
                    }
                    FileOp::Store(at, v) if (at as usize) < model.len() => {
                        store(&space, page(0) + at, v);
                        model[at as usize] = v;
                    }
                    FileOp::Load(at) if (at as usize) < model.len() => {
                        prop_assert_eq!(load(&space, page(0) + at), model[at as usize]);
                    }
                    FileOp::Store(at, _) | FileOp::Load(at) => {
                        if at / PAGE_SIZE >= (model.len() as u64).div_ceil(PAGE_SIZE) {
                            prop_assert_eq!(space.fault(page(0) + at, Access::Read), Err(FaultError::BeyondEnd));
                        }
                    }
                }
                prop_assert_eq!(file.size(), model.len() as u64);
            }
        }
        prop_assert_eq!(settled(m.vm), before);
    }
}
