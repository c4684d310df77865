//! Tests of ids and keys.

use super::*;
use crate::msg::Queues;
use crate::registry::{MOST, Named};
use std::sync::atomic::Ordering;

fn queues() -> Queues<TestHost> {
    Queues::new(TestHost::new()).unwrap()
}

#[test]
fn a_key_names_one_object() {
    let queues = queues();
    let open = |how| queues.open(&ME, 5, how);
    assert_eq!(open(FIND), Err(Error::NotFound));
    let id = open(NEW).unwrap();
    assert_eq!(open(NEW), Err(Error::Exists));
    assert_eq!((open(FIND), open(Open { exclusive: false, ..NEW })), (Ok(id), Ok(id)));
    assert_eq!(open(Open { mode: 0o100, ..FIND }), Err(Error::Denied));
    assert_ne!(queues.open(&ME, PRIVATE, NEW).unwrap(), queues.open(&ME, PRIVATE, NEW).unwrap());
    assert_eq!(queues.remove(&ME, id), Ok(()));
    assert_eq!(queues.remove(&ME, id), Err(Error::Invalid));
    assert_eq!(open(FIND), Err(Error::NotFound));
    assert_eq!(queues.registry().used(), 2);
    // No charge remains after the last object.
    queues.registry().each(|queue| queues.remove(&ME, queue.name().id())).unwrap();
    assert_eq!(queues.registry().used(), 0);
}

#[test]
fn an_old_id_names_no_new_object() {
    let queues = queues();
    let mut seen = std::collections::HashSet::new();
    for _ in 0..1000 {
        let id = queues.open(&ME, PRIVATE, NEW).unwrap();
        assert!(seen.insert(id), "{id} again");
        assert_eq!(queues.find(id).unwrap().name().id(), id);
        queues.remove(&ME, id).unwrap();
        assert_eq!(queues.find(id).err(), Some(Error::Invalid));
    }
    assert!(seen.iter().all(|id| (*id as usize & (MOST - 1)) < 64));
    for bad in [-1, i32::MIN, i32::MAX] {
        assert_eq!(queues.find(bad).err(), Some(Error::Invalid));
    }
}

#[test]
fn the_limit_refuses_and_all_indexes_can_be_used() {
    let queues = queues();
    queues.limits().count.store(300, Ordering::Relaxed);
    let all: Vec<i32> = (0..300).map(|_| queues.open(&ME, PRIVATE, NEW).unwrap()).collect();
    assert_eq!(queues.open(&ME, PRIVATE, NEW), Err(Error::NoSpace));
    assert_eq!(queues.registry().highest(), Ok(299));
    let mut listed = Vec::new();
    let list = |queue: &quire_heap::Arc<crate::msg::Queue<TestHost>>| {
        listed.push(queue.name().id());
        Ok::<(), Error>(())
    };
    queues.registry().each(list).unwrap();
    listed.sort_unstable_by_key(|id| id & (MOST as i32 - 1));
    assert_eq!(listed, all);
    queues.remove(&ME, all[17]).unwrap();
    let again = queues.open(&ME, PRIVATE, NEW).unwrap();
    assert_eq!((again as usize & (MOST - 1), queues.at(again,).unwrap().name().id()), (17, again));
    // A limit above the number of possible ids has the same effect as that number.
    queues.limits().count.store(usize::MAX, Ordering::Relaxed);
    assert!((0..MOST - 300).all(|_| queues.open(&ME, PRIVATE, NEW).is_ok()));
    assert_eq!(queues.open(&ME, PRIVATE, NEW), Err(Error::NoSpace));
}

#[test]
fn the_next_id_can_be_chosen() {
    let queues = queues();
    let id = 3 << 15 | 70;
    queues.registry().wanted().store(id, Ordering::Relaxed);
    assert_eq!(queues.open(&ME, PRIVATE, NEW), Ok(id));
    assert_eq!(queues.registry().wanted().load(Ordering::Relaxed), -1);
    queues.registry().wanted().store(id, Ordering::Relaxed);
    assert_eq!(queues.open(&ME, PRIVATE, NEW), Ok(id + 1));
    assert_eq!(queues.open(&ME, PRIVATE, NEW), Ok(0));
}

#[test]
fn threads_that_use_one_key_agree() {
    let queues = queues();
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..2000 {
                    let id = queues.open(&ME, 9, Open { exclusive: false, ..NEW }).unwrap();
                    match queues.remove(&ME, id) {
                        Ok(()) | Err(Error::Invalid | Error::Removed) => {}
                        other => panic!("{other:?}"),
                    }
                }
            });
        }
    });
    assert_eq!((queues.registry().used(), queues.open(&ME, 9, FIND)), (0, Err(Error::NotFound)));
}
