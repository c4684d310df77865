//! Tests of counts of mappings, weak references and kept pages, on the test machine.

use crate::Space;
use crate::object::{ObjectRef, WeakRef};
use crate::paging::memory_store::FaultPlan;
use crate::paging::pager::Pager;
use crate::testing::{TestMachine, page};
use crate::tests::{load, page_out, range, settled, show, store, system};
use crate::types::{PAGE_SIZE, Prot};
use std::boxed::Box;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

/// A pager that counts mappings, and has a weak reference to its object.
struct Segment {
    mappings: AtomicI64,
    object: WeakRef<TestMachine>,
    gone: AtomicBool,
}

impl Pager for Segment {
    fn name(&self, _: &mut dyn std::fmt::Write) -> std::fmt::Result {
        Ok(())
    }
    fn ident(&self) -> (u64, u64) {
        (1, 1)
    }
    fn in_memory(&self) -> bool {
        true
    }
    fn takes_writes(&self) -> bool {
        false
    }
    fn counts_mappings(&self) -> bool {
        true
    }
    fn mapping_noted(&self, came: bool) {
        self.mappings.fetch_add(if came { 1 } else { -1 }, Ordering::Relaxed);
    }
    fn released(&self) {
        self.object.clear();
        self.gone.store(true, Ordering::Relaxed);
    }
}

fn segment(vm: &'static crate::tests::Vm, pages: u64) -> (&'static Segment, ObjectRef<TestMachine>) {
    let segment = Segment { mappings: AtomicI64::new(0), object: WeakRef::empty(vm), gone: AtomicBool::new(false) };
    let segment: &'static Segment = Box::leak(Box::new(segment));
    let object = ObjectRef::charged(vm, segment, pages * PAGE_SIZE, None).unwrap();
    // SAFETY: the object is of `vm`, and `released` clears the reference.
    unsafe { segment.object.set(&object) };
    (segment, object)
}

#[test]
fn each_part_of_a_mapping_is_counted_in_each_space() {
    let m = system();
    let (segment, object) = segment(m.vm, 8);
    let is = |n| assert_eq!(segment.mappings.load(Ordering::Relaxed), n);
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 8, &object, true);
    is(1);
    space.unmap(range(3, 1)).unwrap();
    is(2);
    let child = space.fork().unwrap();
    is(4);
    child.protect(range(5, 1), Prot::READ).unwrap();
    is(6);
    show(&child, 0, 8, &object, false);
    is(3);
    drop(child);
    is(2);
    drop(space);
    is(0);
}

#[test]
fn a_weak_reference_finds_the_object_while_mappings_keep_it() {
    let m = system();
    let before = settled(m.vm);
    let (segment, object) = segment(m.vm, 2);
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 2, &object, true);
    drop(object);
    store(&space, page(1), 7);
    let again = segment.object.upgrade().expect("a mapping keeps it");
    let other = Space::new(m.vm).unwrap();
    show(&other, 4, 2, &again, true);
    drop((again, space));
    assert_eq!(load(&other, page(5)), 7);
    assert!(!segment.gone.load(Ordering::Relaxed));
    other.unmap(range(4, 2)).unwrap();
    assert!(segment.gone.load(Ordering::Relaxed) && segment.object.upgrade().is_none());
    drop(other);
    assert_eq!(settled(m.vm), before);
}

#[test]
fn upgrades_race_with_the_last_mapping() {
    let m = system();
    for _ in 0..200 {
        let (segment, object) = segment(m.vm, 1);
        std::thread::scope(|s| {
            s.spawn(|| {
                quire_sync::hooks::threads::set_cpu(1);
                while let Some(object) = segment.object.upgrade() {
                    assert_eq!(object.size(), PAGE_SIZE);
                }
                assert!(segment.object.upgrade().is_none());
            });
            drop(object);
        });
        assert!(segment.gone.load(Ordering::Relaxed));
    }
}

#[test]
fn kept_pages_are_not_paged_out() {
    let m = system();
    m.swap(64, FaultPlan { delay: 0, pause: 0, fail_reads: 0, fail_writes: 0, window: 0, seed: 1 });
    let (_, object) = segment(m.vm, 4);
    let space = Space::new(m.vm).unwrap();
    show(&space, 0, 4, &object, true);
    (0..4).for_each(|n| store(&space, page(n), n as u8 + 1));
    object.keep_resident(true);
    page_out(&space);
    object.page_out(0..4);
    let resident = || object.query_range(0..4).resident;
    assert_eq!((resident(), space.stats().resident_pages), (4, 4));
    object.keep_resident(false);
    object.page_out(0..4);
    assert_eq!(resident(), 0);
    (0..4).for_each(|n| assert_eq!(load(&space, page(n)), n as u8 + 1));
}
