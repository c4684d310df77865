//! Tests of shared memory segments, whose memory is only a counter.

use super::*;
use crate::owner::{Change, READ, WRITE};
use crate::shm::{Attaches, Memory, Segments};
use crate::{Caller, Name};
use quire_heap::Arc as Counted;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, Weak};

/// The memory of a segment. The drop of its last handle reports that the memory is gone.
pub struct Pages {
    id: i32,
    attaches: Counted<Attaches>,
    all: Weak<Fixture>,
}

impl Drop for Pages {
    fn drop(&mut self) {
        if let Some(all) = self.all.upgrade() {
            all.0.memory_gone(self.id, &self.attaches);
        }
    }
}

pub struct TestMemory(Mutex<Option<Arc<Pages>>>, Weak<Pages>);

impl Memory for TestMemory {
    type Handle = Arc<Pages>;
    fn handle(&self) -> Option<Arc<Pages>> {
        let own = self.0.lock().unwrap().clone();
        own.or_else(|| self.1.upgrade())
    }
    fn give_up(&self) {
        let own = self.0.lock().unwrap().take();
        drop(own);
    }
    fn resident(&self) -> u64 {
        1
    }
    fn keep_resident(&self, _keep: bool) {}
}

pub struct Fixture(pub Segments<TestHost, TestMemory>, pub TestHost);

pub fn segments() -> Arc<Fixture> {
    let host = TestHost::new();
    Arc::new(Fixture(Segments::new(host.clone()).unwrap(), host))
}

/// Returns a function that makes the memory of a segment of `all`.
pub fn make(all: &Arc<Fixture>) -> impl FnOnce(&Name, &Counted<Attaches>) -> Result<TestMemory, Error> + use<> {
    let all = Arc::downgrade(all);
    move |name, attaches| {
        let pages = Arc::new(Pages { id: name.id(), attaches: attaches.clone(), all });
        Ok(TestMemory(Mutex::new(Some(pages.clone())), Arc::downgrade(&pages)))
    }
}

fn open(all: &Arc<Fixture>, key: i32, size: u64, how: Open) -> Result<i32, Error> {
    all.0.open(&ME, key, size, how, make(all))
}

#[test]
fn sizes_are_limited_one_by_one_and_in_sum() {
    let all = segments();
    for bad in [0, u64::MAX] {
        assert_eq!(open(&all, PRIVATE, bad, NEW), Err(Error::Invalid));
    }
    all.0.limits().size.store(u64::MAX, Ordering::Relaxed);
    assert_eq!(open(&all, PRIVATE, u64::MAX, NEW), Err(Error::NoSpace));
    all.0.limits().pages.store(3, Ordering::Relaxed);
    let id = open(&all, 1, 4097, NEW).unwrap();
    assert_eq!(open(&all, PRIVATE, 4097, NEW), Err(Error::NoSpace));
    assert_eq!(all.0.sums().unwrap().pages, 2);
    assert_eq!((open(&all, 1, 4097, FIND), open(&all, 1, 4098, FIND)), (Ok(id), Err(Error::Invalid)));
    all.0.remove(&ME, id).unwrap();
    // The pages of the removed segment no longer count.
    assert!(open(&all, PRIVATE, 3 * 4096, NEW).is_ok());
}

#[test]
fn a_removed_segment_goes_with_its_last_mapping() {
    let all = segments();
    let id = open(&all, 1, 1, NEW).unwrap();
    let segment = all.0.find(id).unwrap();
    let mapped = segment.attach(&ME, READ | WRITE).unwrap();
    segment.attaches().note(true, &all.1);
    all.0.remove(&ME, id).unwrap();
    all.0.remove(&ME, id).unwrap();
    let status = segment.status(Some(&ME)).unwrap();
    assert_eq!((status.removed, status.key, status.attaches, status.attached), (true, PRIVATE, 1, 1000));
    assert_eq!(open(&all, 1, 1, FIND), Err(Error::NotFound));
    drop(segment);
    let again = all.0.find(id).unwrap().attach(&ME, READ).unwrap();
    drop(mapped);
    assert!(all.0.find(id).is_ok());
    drop(again);
    assert_eq!((all.0.find(id).err(), all.0.registry().used(), all.1.charged()), (Some(Error::Invalid), 0, 0));
}

#[test]
fn rights_locks_and_changes() {
    let all = segments();
    let id = open(&all, PRIVATE, 4096, NEW).unwrap();
    let segment = all.0.find(id).unwrap();
    let other = Caller { user: 8, group: 8, in_group: &|_| false, ..ME };
    assert_eq!(segment.attach(&other, READ).err(), Some(Error::Denied));
    assert_eq!(segment.status(Some(&other)).err(), Some(Error::Denied));
    for caller in [&other, &Caller { administers: true, ..other }] {
        assert_eq!(all.0.lock(caller, id, true), Err(Error::NotPermitted));
    }
    let before = all.1.charged();
    all.1.limit(before + 4095);
    assert_eq!(all.0.lock(&ME, id, true), Err(Error::OutOfMemory));
    all.1.limit(u64::MAX);
    for _ in 0..2 {
        assert_eq!(all.0.lock(&ME, id, true), Ok(()));
        assert!(segment.status(None).unwrap().locked);
        assert_eq!(all.1.charged(), before + 4096);
    }
    assert_eq!(all.0.lock(&Caller { locks: true, ..other }, id, false), Ok(()));
    assert_eq!(all.1.charged(), before);
    assert_eq!(all.0.change(&other, id, Change { user: 8, group: 8, mode: 0 }), Err(Error::NotPermitted));
    assert_eq!(all.0.change(&ME, id, Change { user: 8, group: 8, mode: 0o400 }), Ok(()));
    assert!(segment.attach(&other, READ).is_ok());
    assert_eq!(all.0.remove(&other, id), Ok(()));
}

#[test]
fn attaches_race_with_removals() {
    let all = segments();
    for _ in 0..300 {
        let id = open(&all, 1, 1, NEW).unwrap();
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    while let Ok(segment) = all.0.find(id) {
                        match segment.attach(&ME, READ) {
                            Ok(handle) => drop(handle),
                            Err(e) => assert_eq!(e, Error::Removed),
                        }
                    }
                });
            }
            s.spawn(|| all.0.remove(&ME, id).unwrap());
        });
        assert_eq!((all.0.registry().used(), all.1.charged()), (0, 0));
    }
}
