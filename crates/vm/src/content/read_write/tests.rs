//! Tests of reads and writes around the end of a file, on the test machine.

use crate::object::ObjectRef;
use crate::object::index::Slot;
use crate::paging::memory_store::FaultPlan;
use crate::testing::{TestMachine, memory_store, page};
use crate::tests::{load, range, show, store, system};
use crate::types::{PAGE_SIZE, Prot};
use crate::{Access, FaultError, Space};

fn write(file: &ObjectRef<TestMachine>, at: u64, bytes: &[u8]) {
    let n = file.write(at, bytes.len(), &mut |b| -> Result<_, ()> {
        b.copy_from(bytes);
        Ok(b.len())
    });
    assert_eq!(n, Ok(bytes.len()));
}

fn read(file: &ObjectRef<TestMachine>, at: u64, len: usize) -> Vec<u8> {
    let mut seen = vec![];
    let n = file.read(at, len, &mut |b| -> Result<_, ()> {
        let at = seen.len();
        seen.resize(at + b.len(), 0);
        Ok(b.copy_to(&mut seen[at..]))
    });
    assert_eq!(n, Ok(seen.len()));
    seen
}

#[test]
fn calls_read_from_the_pager_and_keep_the_rest_of_a_page() {
    let late = FaultPlan { delay: 3, window: 4, seed: 11, ..FaultPlan::default() };
    for plan in [FaultPlan::default(), late] {
        let m = system();
        let disk = memory_store(40, plan);
        m.vm.poll_with(disk).unwrap();
        let file = ObjectRef::with_pager(m.vm, disk, 40 * PAGE_SIZE).unwrap();
        (0..40).for_each(|n| write(&file, n * PAGE_SIZE, &[n as u8 + 1; 100]));
        file.page_out(0..40);
        assert_eq!(file.resident(), 0);
        assert_eq!(read(&file, 3 * PAGE_SIZE + 98, 4), [4, 4, 0, 0]);
        write(&file, 30 * PAGE_SIZE + 50, &[99]);
        assert_eq!(read(&file, 30 * PAGE_SIZE + 49, 3), [31, 99, 31]);
        file.page_out(0..40);
        // The file is truncated in the middle of a page that is not resident, and extended again.
        file.set_size(20 * PAGE_SIZE + 10);
        file.set_size(40 * PAGE_SIZE);
        assert_eq!(read(&file, 20 * PAGE_SIZE + 8, 4), [21, 21, 0, 0]);
        file.page_out(0..40);
        assert_eq!(read(&file, 20 * PAGE_SIZE + 8, 4), [21, 21, 0, 0]);
        assert_eq!(file.check(true).err(), None);
    }
}

#[test]
fn zeroing_all_that_an_object_can_have_passes_over_its_holes() {
    let m = system();
    let file = ObjectRef::anonymous(m.vm, 0).unwrap();
    file.zero(0..u64::MAX).unwrap();
    let pages = [0, 7, 1 << 40];
    pages.iter().for_each(|n| write(&file, n * PAGE_SIZE, &[7, 7]));
    file.zero(1..u64::MAX).unwrap();
    assert_eq!(pages.map(|n| read(&file, n * PAGE_SIZE, 2)), [[7, 0], [0, 0], [0, 0]].map(Vec::from));
    assert_eq!((file.resident(), file.check(true).err()), (3, None));
}

#[test]
fn zeroing_reaches_pages_in_swap_and_part_of_the_last_one() {
    let m = system();
    let _store = m.swap(16, FaultPlan::default());
    let file = ObjectRef::anonymous(m.vm, 0).unwrap();
    let pages = [0, 7, 9];
    pages.iter().for_each(|n| write(&file, n * PAGE_SIZE, &[7, 7]));
    file.page_out(0..10);
    let pin = m.vm.epoch().pin();
    assert!(pages.iter().all(|n| matches!(file.index().get(*n, &pin), Slot::Swap(_))));
    drop(pin);
    file.zero(1..9 * PAGE_SIZE + 1).unwrap();
    assert_eq!(pages.map(|n| read(&file, n * PAGE_SIZE, 2)), [[7, 0], [0, 0], [0, 7]].map(Vec::from));
    assert_eq!(file.check(true).err(), None);
}

#[test]
fn bytes_stored_behind_the_end_are_zero_when_the_file_grows() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    let file = ObjectRef::anonymous(m.vm, 0).unwrap();
    show(&space, 0, 8, &file, true);
    let grow: [&dyn Fn(); 3] =
        [&|| file.set_size(3 * PAGE_SIZE), &|| write(&file, 300, &[9]), &|| write(&file, 2 * PAGE_SIZE, &[9])];
    for grow in grow {
        file.set_size(0);
        write(&file, 0, &[1; 100]);
        (100..400).for_each(|at| store(&space, page(0) + at, 77));
        grow();
        assert_eq!((load(&space, page(0) + 99), load(&space, page(0) + 100)), (1, 0));
        assert_eq!((load(&space, page(0) + 299), load(&space, page(0) + 399)), (0, 0));
        assert!(matches!(load(&space, page(0) + 300), 0 | 9));
    }
    // A write extends the file. The bytes after the end of the write are still beyond the file's end.
    file.set_size(100);
    store(&space, page(0) + 120, 77);
    write(&file, 90, &[5; 20]);
    file.set_size(PAGE_SIZE);
    assert_eq!((load(&space, page(0) + 109), load(&space, page(0) + 120)), (5, 0));
}

#[test]
fn a_private_copy_beyond_the_end_cannot_be_reached() {
    let m = system();
    let space = Space::new(m.vm).unwrap();
    let file = ObjectRef::anonymous(m.vm, 8).unwrap();
    show(&space, 0, 8, &file, false);
    (0..8).for_each(|n| store(&space, page(n), n as u8 + 1));
    let child = space.fork().unwrap();
    store(&child, page(5), 50);
    file.set_size(3 * PAGE_SIZE + 10);
    for s in [&space, &child] {
        for n in 4..8 {
            assert!(s.pmap().cached(page(n)).next().is_none(), "a translation beyond the end");
            for access in [Access::Read, Access::Write] {
                assert_eq!(s.fault(page(n), access), Err(FaultError::BeyondEnd));
            }
        }
        s.protect(range(0, 8), Prot::empty()).unwrap();
        s.protect(range(0, 8), Prot::READ | Prot::WRITE).unwrap();
        (0..4).for_each(|n| assert_eq!(load(s, page(n)), n as u8 + 1));
        let there: Vec<u64> = (0..8).filter(|n| s.pmap().peek(page(*n)).is_some()).collect();
        assert_eq!(there, [0, 1, 2, 3], "a load maps no neighbours beyond the end");
        s.check(true).unwrap();
    }
}
