//! Pagers of an embedder that writes no `unsafe` code, and that panic, fail, forget or keep their requests. Other pagers
//! and other pages go on.
#![forbid(unsafe_code)]

use quire_hosted::{Cpu, Hosted, Settings};
use quire_vm::content::IoError;
use quire_vm::map::{MapRequest, Placement, Space};
use quire_vm::paging::io::{Direction, Request};
use quire_vm::paging::pager::{Pager, PagerError};
use quire_vm::sleep::MaySleep;
use quire_vm::{FaultError, ObjectRef, PAGE_SIZE, Vm};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The reaction of a pager to each request, until it is made good.
#[derive(Clone, Copy, PartialEq, Debug)]
enum How {
    PanicInFill,
    PanicInStart,
    KeepAndPanic,
    Drop,
    Fail,
    Keep,
}

struct Bad {
    how: How,
    is_good: AtomicBool,
    kept: Mutex<Vec<Request>>,
}

impl Bad {
    fn new(how: How) -> &'static Bad {
        Box::leak(Box::new(Bad { how, is_good: AtomicBool::new(false), kept: Mutex::default() }))
    }
    fn become_good(&self) {
        self.is_good.store(true, Ordering::Relaxed);
    }
}

impl Pager for Bad {
    fn name(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        to.write_str("bad")
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
    fn fill(&self, page: u64, frame: &mut [u8; PAGE_SIZE as usize]) -> Result<(), PagerError> {
        if !self.is_good.load(Ordering::Relaxed) {
            panic!("the pager's own panic");
        }
        frame.fill(page as u8 + 1);
        Ok(())
    }
    fn start(&self, request: Request) {
        match self.how {
            _ if self.is_good.load(Ordering::Relaxed) => request.fill_by(self),
            How::PanicInFill => request.fill_by(self),
            How::PanicInStart => panic!("the pager's own panic"),
            How::KeepAndPanic => {
                self.kept.lock().unwrap().push(request);
                panic!("the pager's own panic");
            }
            How::Keep => self.kept.lock().unwrap().push(request),
            How::Drop => drop(request),
            How::Fail => request.complete(Err(PagerError::Gone)),
        }
    }
}

fn boot(frames: u64) -> &'static Vm<Hosted> {
    Hosted::boot(Settings { cpus: 64, frames, ..Settings::default() }).unwrap()
}

/// Maps all of an object, shared.
fn show(space: &Space<Hosted>, object: &ObjectRef<Hosted>, pages: u64) -> u64 {
    let all = MapRequest::private(Placement::Any { hint: 0 }, pages * PAGE_SIZE);
    space.map(&MapRequest { shared: true, object: Some((object, 0)), ..all }).unwrap()
}

#[test]
fn a_page_can_be_read_after_its_pager_failed_in_any_way() {
    for how in [How::PanicInFill, How::PanicInStart, How::KeepAndPanic, How::Drop, How::Fail] {
        let vm = boot(4096);
        let cpu = Cpu::attach(vm, 0).unwrap();
        let space = Space::new(vm).unwrap();
        let pager = Bad::new(how);
        let object = ObjectRef::with_pager(vm, pager, 4 * PAGE_SIZE).unwrap();
        let at = show(&space, &object, 4);
        cpu.enter(&space).unwrap();
        for _ in 0..3 {
            match catch_unwind(AssertUnwindSafe(|| cpu.read(&space, at))) {
                Ok(read) => {
                    let error = if how == How::Fail { PagerError::Gone } else { PagerError::Failed };
                    assert_eq!(read, Err(FaultError::Pager(error)), "{how:?}");
                }
                Err(_) => assert!(!matches!(how, How::Drop | How::Fail), "{how:?}"),
            }
            // The reader is gone, and the kept request ends after it.
            pager.kept.lock().unwrap_or_else(|kept| kept.into_inner()).drain(..).for_each(|r| r.complete(Ok(())));
            if how == How::KeepAndPanic {
                break;
            }
        }
        pager.become_good();
        // A kept read was completed without bytes, so its page has zeroes.
        let first = if how == How::KeepAndPanic { 0 } else { 0x0101_0101_0101_0101 };
        assert_eq!(cpu.read(&space, at), Ok(first), "{how:?}");
        assert_eq!(cpu.read(&space, at + PAGE_SIZE), Ok(0x0202_0202_0202_0202), "{how:?}");
        cpu.leave();
        drop((space, object));
        vm.epoch().drain();
        vm.check(true).unwrap();
    }
}

#[test]
fn a_panic_in_the_write_of_a_page_leaves_it_dirty() {
    let vm = boot(4096);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = Space::new(vm).unwrap();
    let pager = Bad::new(How::PanicInStart);
    pager.become_good();
    let object = ObjectRef::with_pager(vm, pager, 4 * PAGE_SIZE).unwrap();
    let at = show(&space, &object, 4);
    cpu.enter(&space).unwrap();
    cpu.write(&space, at, 7).unwrap();
    pager.is_good.store(false, Ordering::Relaxed);
    assert!(catch_unwind(AssertUnwindSafe(|| object.write_back(0..4))).is_err());
    pager.become_good();
    // `fill_by` refuses writes.
    assert_eq!(object.write_back(0..4), Err(PagerError::Failed));
    assert_eq!(cpu.read(&space, at), Ok(7));
    cpu.leave();
    vm.check(true).unwrap();
}

#[test]
fn pagers_that_keep_all_their_requests_leave_records_for_others() {
    let vm = boot(16 * 1024);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = Space::new(vm).unwrap();
    let [bad, worse, good] = [How::Keep, How::Keep, How::Fail].map(Bad::new);
    good.become_good();
    let objects = [bad, worse, good].map(|pager| ObjectRef::with_pager(vm, pager, 64 * PAGE_SIZE).unwrap());
    let starts = objects.each_ref().map(|object| show(&space, object, 64));
    cpu.enter(&space).unwrap();
    std::thread::scope(|scope| {
        let mut readers = Vec::new();
        let mut reader = |page: u64, start: u64| {
            let space = space.clone();
            let id = readers.len() + 1;
            readers.push(scope.spawn(move || {
                let cpu = Cpu::attach(vm, id).unwrap();
                cpu.enter(&space).unwrap();
                let read = cpu.read(&space, start + page * PAGE_SIZE);
                cpu.leave();
                cpu.run(|| drop(space));
                read
            }));
        };
        let until = |is_true: &dyn Fn() -> bool| {
            while !is_true() {
                cpu.interrupts();
                std::thread::yield_now();
            }
        };
        let kept = |pager: &Bad| pager.kept.lock().unwrap().len();
        // Half of all records, then half of the rest at most.
        (0..40).for_each(|page| reader(page, starts[0]));
        until(&|| kept(bad) == 32);
        (0..20).for_each(|page| reader(page, starts[1]));
        until(&|| kept(worse) == 16);
        for page in 0..64 {
            let byte = page as u8 + 1;
            assert_eq!(cpu.read(&space, starts[2] + page * PAGE_SIZE), Ok(u64::from_ne_bytes([byte; 8])));
        }
        assert_eq!((kept(bad), kept(worse)), (32, 16));
        for pager in [bad, worse] {
            pager.become_good();
            let kept = std::mem::take(&mut *pager.kept.lock().unwrap());
            kept.into_iter().for_each(|request| request.complete(Err(PagerError::TimedOut)));
        }
        until(&|| readers.iter().all(|reader| reader.is_finished()));
        let ends = readers.into_iter().map(|reader| reader.join().unwrap());
        assert_eq!(ends.filter(|read| *read == Err(FaultError::Pager(PagerError::TimedOut))).count(), 48);
    });
    cpu.leave();
    drop((space, objects));
    vm.epoch().drain();
    vm.check(true).unwrap();
}

/// A store that several pagers share, without `unsafe` code. It counts its pagers.
struct Store {
    bytes: Mutex<Vec<u8>>,
    kept: Mutex<Vec<Request>>,
    keeps: AtomicBool,
    dropped: AtomicU64,
    refuses_writes: bool,
    /// Whether a frame that was to be filled had other bytes than zeroes.
    saw_old_bytes: AtomicBool,
}

struct Shared {
    store: Arc<Store>,
    fills_whole: bool,
}

impl Store {
    fn new(pages: u64, refuses_writes: bool) -> Arc<Store> {
        let bytes = (0..pages * PAGE_SIZE).map(|n| ((n / PAGE_SIZE) as u8).wrapping_add(1)).collect();
        Arc::new(Store {
            bytes: Mutex::new(bytes),
            kept: Mutex::default(),
            keeps: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
            refuses_writes,
            saw_old_bytes: AtomicBool::new(false),
        })
    }
    fn serve(&self, mut request: Request) {
        let mut bytes = self.bytes.lock().unwrap();
        let (at, len) = (request.first() as usize * PAGE_SIZE as usize, request.len() * PAGE_SIZE as usize);
        let there = &mut bytes[at..at + len];
        let copied = match request.direction() {
            Direction::Read => {
                let old = request.page_mut(0).unwrap().iter().any(|byte| *byte != 0);
                self.saw_old_bytes.fetch_or(old, Ordering::Relaxed);
                request.copy_in(0, there)
            }
            Direction::Write => request.copy_out(0, there),
        };
        assert_eq!(copied, len);
        assert_eq!(request.copy_out(len - 1, &mut [0; 2]), 1, "the pages end");
        assert_eq!(request.copy_out(len, &mut [0; 2]), 0);
        request.complete(Ok(()));
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.store.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

impl Pager for Shared {
    fn name(&self, to: &mut dyn fmt::Write) -> fmt::Result {
        to.write_str("shared")
    }
    fn ident(&self) -> (u64, u64) {
        (1, 2)
    }
    fn in_memory(&self) -> bool {
        false
    }
    fn takes_writes(&self) -> bool {
        !self.store.refuses_writes
    }
    fn fills_whole(&self) -> bool {
        self.fills_whole
    }
    fn share(&self) -> usize {
        Arc::as_ptr(&self.store).addr()
    }
    fn start(&self, request: Request) {
        match self.store.keeps.load(Ordering::Relaxed) {
            true => self.store.kept.lock().unwrap().push(request),
            false => self.store.serve(request),
        }
    }
}

fn owning(vm: &'static Vm<Hosted>, store: &Arc<Store>, pages: u64, fills_whole: bool) -> ObjectRef<Hosted> {
    ObjectRef::owning(vm, Shared { store: store.clone(), fills_whole }, pages * PAGE_SIZE, None).unwrap()
}

#[test]
fn an_object_drops_its_pager_when_nothing_can_use_it_any_more() {
    let vm = boot(4096);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let store = Store::new(8, false);
    let dropped = || store.dropped.load(Ordering::Relaxed);
    drop(owning(vm, &store, 8, false));
    assert_eq!(dropped(), 1, "an object that was never used");
    let object = owning(vm, &store, 8, false);
    let space = Space::new(vm).unwrap();
    let at = show(&space, &object, 8);
    drop(object);
    cpu.enter(&space).unwrap();
    assert_eq!(cpu.read(&space, at + PAGE_SIZE), Ok(0x0202_0202_0202_0202));
    cpu.write(&space, at, 7).unwrap();
    assert_eq!(dropped(), 1, "the mapping keeps the object");
    // A write is in progress when the last mapping goes.
    store.keeps.store(true, Ordering::Relaxed);
    space.start_sync(quire_vm::VirtRange { start: at, end: at + PAGE_SIZE }).unwrap();
    cpu.leave();
    drop(space);
    vm.epoch().drain();
    assert_eq!((dropped(), store.kept.lock().unwrap().len()), (1, 1), "the request keeps the object");
    let request = store.kept.lock().unwrap().pop().unwrap();
    store.serve(request);
    vm.settle(&mut MaySleep::here());
    assert_eq!(dropped(), 2);
    assert_eq!(store.bytes.lock().unwrap()[..8], 7u64.to_ne_bytes());
    assert_eq!(Arc::strong_count(&store), 1);
    vm.check(true).unwrap();
}

#[test]
fn frames_are_zeroed_for_pagers_that_do_not_fill_whole_pages() {
    for fills_whole in [false, true] {
        let vm = boot(2048);
        let cpu = Cpu::attach(vm, 0).unwrap();
        let store = Store::new(64, false);
        let space = Space::new(vm).unwrap();
        cpu.enter(&space).unwrap();
        let mut sum = 0;
        for _ in 0..8 {
            let object = owning(vm, &store, 64, fills_whole);
            let at = show(&space, &object, 64);
            sum += (0..64).map(|n| cpu.read(&space, at + n * PAGE_SIZE).unwrap() & 0xff).sum::<u64>();
            space.clear();
        }
        assert_eq!(sum, 8 * (1..=64).sum::<u64>());
        // Freed frames hold a pattern on this machine, and are used again.
        assert_eq!(store.saw_old_bytes.load(Ordering::Relaxed), fills_whole);
        cpu.leave();
    }
}

#[test]
fn files_that_are_never_written_leave_memory_to_others() {
    let vm = boot(1024);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let total = vm.frames().total();
    let space = Space::new(vm).unwrap();
    cpu.enter(&space).unwrap();
    let refused = FaultError::Pager(PagerError::TooManyDirty);
    let mut all = 0;
    let mut objects = Vec::new();
    for n in 0..4u64 {
        let object = owning(vm, &Store::new(1024, true), 1024, false);
        let at = show(&space, &object, 1024);
        let dirtied = (0..1024).find(|page| cpu.write(&space, at + page * PAGE_SIZE, 1) == Err(refused)).unwrap();
        // Half of what the others left.
        let left = total / 2 - all;
        assert!(dirtied.abs_diff(left / 2) <= 2, "file {n} has {dirtied} dirty pages of {left}");
        all += dirtied;
        let end = object.write::<()>(dirtied * PAGE_SIZE, 8, &mut |to| Ok(to.copy_from(b"12345678")));
        assert_eq!(end, Err(IoError::Pager(PagerError::TooManyDirty)));
        assert_eq!(cpu.write(&space, at, 2), Ok(()), "a dirty page may be stored into again");
        objects.push(object);
    }
    // A page that is removed makes room for another.
    objects[0].set_size(8 * PAGE_SIZE);
    objects[0].set_size(1024 * PAGE_SIZE);
    assert!(objects[0].write::<()>(99 * PAGE_SIZE, 8, &mut |to| Ok(to.copy_from(b"12345678"))).is_ok());
    // Private memory, and a file that is written.
    let other = Space::new(vm).unwrap();
    let at = other.map(&MapRequest::private(Placement::Any { hint: 0 }, 64 * PAGE_SIZE)).unwrap();
    cpu.enter(&other).unwrap();
    (0..64).for_each(|n| cpu.write(&other, at + n * PAGE_SIZE, n).unwrap());
    let store = Store::new(2048, false);
    let at = show(&other, &owning(vm, &store, 2048, false), 2048);
    (0..2048).for_each(|n| cpu.write(&other, at + n * PAGE_SIZE, n).unwrap());
    (0..2048).for_each(|n| assert_eq!(cpu.read(&other, at + n * PAGE_SIZE), Ok(n)));
    cpu.leave();
    drop((space, other, objects));
    vm.settle(&mut MaySleep::here());
    vm.check(true).unwrap();
}
