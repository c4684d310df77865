//! Pagers of an embedder that writes no `unsafe` code, and that panic, fail, forget or keep their requests. Other pagers
//! and other pages go on.
#![forbid(unsafe_code)]

use quire_hosted::{Cpu, Hosted, Settings};
use quire_vm::map::{MapRequest, Placement, Space};
use quire_vm::paging::io::Request;
use quire_vm::paging::pager::{Pager, PagerError};
use quire_vm::{FaultError, ObjectRef, PAGE_SIZE, Vm};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

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
            How::Fail => request.complete(Err(PagerError)),
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
                Ok(read) => assert_eq!(read, Err(FaultError::Pager), "{how:?}"),
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
    assert_eq!(object.write_back(0..4), Err(PagerError));
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
            kept.into_iter().for_each(|request| request.complete(Err(PagerError)));
        }
        until(&|| readers.iter().all(|reader| reader.is_finished()));
        let ends = readers.into_iter().map(|reader| reader.join().unwrap());
        assert_eq!(ends.filter(|read| *read == Err(FaultError::Pager)).count(), 48);
    });
    cpu.leave();
    drop((space, objects));
    vm.epoch().drain();
    vm.check(true).unwrap();
}
