//! Tests of semaphore arrays.

use super::*;
use crate::Caller;
use crate::owner::Change;
use crate::sem::{Array, Arrays, Operation, Undos, VALUE_MAX, Wait};
use quire_heap::Arc as Counted;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

pub type Semaphores = Counted<Array<TestHost>>;

pub fn arrays() -> (Arrays<TestHost>, TestHost) {
    let host = TestHost::new();
    (Arrays::new(host.clone()).unwrap(), host)
}

pub fn array(all: &Arrays<TestHost>, n: usize) -> Semaphores {
    all.find(all.open(&ME, PRIVATE, n, NEW).unwrap()).unwrap()
}

/// An operation that may wait.
pub fn op(number: u16, change: i16) -> Operation {
    Operation { number, change, no_wait: false, undo: false }
}

fn now(number: u16, change: i16) -> Operation {
    Operation { no_wait: true, ..op(number, change) }
}

fn undone(number: u16, change: i16) -> Operation {
    Operation { undo: true, ..now(number, change) }
}

pub fn operate(array: &Semaphores, operations: &[Operation], undos: Option<&Undos<TestHost>>) -> Result<(), Error> {
    let operations = quire_heap::Vec::try_copy(operations)?;
    Array::operate(array, &ME, operations, undos, &Wait { deadline: None, interrupted: QUIET })
}

fn values(array: &Semaphores) -> std::vec::Vec<u16> {
    array.values(&ME).unwrap().to_vec()
}

/// Waits until `n` calls wait for a semaphore to be larger, or to be 0 (`for_zero`).
fn until(array: &Semaphores, number: i32, for_zero: bool, n: usize) {
    while array.waiting(&ME, number, for_zero).unwrap() != n {
        std::thread::yield_now();
    }
}

#[test]
fn operations_are_done_together_or_not_at_all() {
    let (all, _) = arrays();
    let array = array(&all, 300);
    assert_eq!(operate(&array, &[now(0, 5), now(299, 1)], None), Ok(()));
    assert_eq!(operate(&array, &[now(0, -1), now(1, -1)], None), Err(Error::WouldBlock));
    assert_eq!(operate(&array, &[now(0, -1), now(299, 0)], None), Err(Error::WouldBlock));
    assert_eq!(operate(&array, &[now(0, -1), now(299, VALUE_MAX as i16)], None), Err(Error::Range));
    assert_eq!(operate(&array, &[now(300, 1)], None), Err(Error::TooLarge));
    assert_eq!((array.value(&ME, 0), array.value(&ME, 299)), (Ok(5), Ok(1)));
    assert_eq!(operate(&array, &[now(0, -5), now(0, 0), now(0, 3), now(0, -1)], None), Ok(()));
    assert_eq!(array.value(&ME, 0), Ok(2));
    assert!(array.pid(&ME, 0).unwrap() != 0 && array.pid(&ME, 1) == Ok(0));
    for bad in [-1, 300] {
        assert_eq!(array.value(&ME, bad), Err(Error::Invalid));
        assert_eq!(array.set(&ME, bad, 1), Err(Error::Invalid));
    }
    assert_eq!(array.set(&ME, 0, VALUE_MAX + 1), Err(Error::Range));
    assert_eq!(array.set(&ME, 0, -1), Err(Error::Range));
}

#[test]
fn the_sum_of_semaphores_is_limited_and_charged() {
    let (all, host) = arrays();
    all.limits().of_all.store(10, Ordering::Relaxed);
    all.limits().of_array.store(8, Ordering::Relaxed);
    assert_eq!(all.open(&ME, PRIVATE, 9, NEW), Err(Error::Invalid));
    assert_eq!(all.open(&ME, PRIVATE, 0, NEW), Err(Error::Invalid));
    let id = all.open(&ME, 3, 8, NEW).unwrap();
    assert_eq!((all.open(&ME, 3, 8, FIND), all.open(&ME, 3, 0, FIND)), (Ok(id), Ok(id)));
    assert_eq!(all.open(&ME, PRIVATE, 3, NEW), Err(Error::NoSpace));
    let other = Caller { user: 8, group: 8, in_group: &|_| false, ..ME };
    assert_eq!(all.remove(&other, id), Err(Error::NotPermitted));
    assert_eq!(all.find(id).unwrap().value(&other, 0), Err(Error::Denied));
    assert_eq!(all.find(id).unwrap().change(&ME, Change { user: 8, group: 8, mode: 0o700 }), Ok(()));
    assert_eq!(all.find(id).unwrap().value(&other, 0), Ok(0));
    assert!(host.charged() > 0);
    host.limit(host.charged());
    all.limits().of_all.store(100, Ordering::Relaxed);
    assert_eq!(all.open(&ME, PRIVATE, 3, NEW), Err(Error::OutOfMemory));
    assert_eq!(all.remove(&ME, id), Ok(()));
    assert_eq!((all.semaphores(), host.charged()), (0, 0));
}

#[test]
fn the_oldest_call_that_can_goes_on() {
    let (all, _) = arrays();
    let array = &array(&all, 3);
    let order = &AtomicU32::new(0);
    let waits = |operations: &'static [Operation]| {
        move || {
            operate(array, operations, None).unwrap();
            order.fetch_add(1, Ordering::SeqCst)
        }
    };
    static SEVERAL: [Operation; 2] = [
        Operation { number: 0, change: -1, no_wait: false, undo: false },
        Operation { number: 1, change: -1, no_wait: false, undo: false },
    ];
    static TWO: [Operation; 1] = [Operation { number: 0, change: -2, no_wait: false, undo: false }];
    static ONE: [Operation; 1] = [Operation { number: 0, change: -1, no_wait: false, undo: false }];
    std::thread::scope(|s| {
        let two = s.spawn(waits(&TWO));
        until(array, 0, false, 1);
        let several = s.spawn(waits(&SEVERAL));
        until(array, 0, false, 2);
        let one = s.spawn(waits(&ONE));
        until(array, 0, false, 3);
        // `two` cannot proceed yet. `several` now waits for semaphore 1, so `one` gets the unit.
        operate(array, &[op(0, 1)], None).unwrap();
        assert_eq!(one.join().unwrap(), 0);
        operate(array, &[op(1, 1)], None).unwrap();
        assert!(!several.is_finished());
        operate(array, &[op(0, 2)], None).unwrap();
        assert_eq!(two.join().unwrap(), 1);
        assert!(!several.is_finished());
        operate(array, &[op(0, 1)], None).unwrap();
        assert_eq!(several.join().unwrap(), 2);
    });
    assert_eq!(values(array), [0, 0, 0]);
}

#[test]
fn calls_that_wait_for_zero_go_on_together() {
    let (all, _) = arrays();
    let array = &array(&all, 2);
    array.set_all(&ME, &[2, 0]).unwrap();
    std::thread::scope(|s| {
        for _ in 0..5 {
            s.spawn(|| operate(array, &[op(0, 0)], None).unwrap());
        }
        // This call also waits until semaphore 0 is 0, and then increments both semaphores.
        s.spawn(|| operate(array, &[op(0, 0), op(1, 1), op(0, 1)], None).unwrap());
        until(array, 0, true, 6);
        operate(array, &[op(0, -2)], None).unwrap();
    });
    assert_eq!(values(array), [1, 1]);
}

#[test]
fn signals_deadlines_and_removals_end_a_wait() {
    let (all, host) = arrays();
    let array = &array(&all, 1);
    let wait = |deadline, interrupted| {
        let operations = quire_heap::Vec::try_copy(&[op(0, -1)]).unwrap();
        Array::operate(array, &ME, operations, None, &Wait { deadline, interrupted })
    };
    assert_eq!(wait(Some(0), QUIET), Err(Error::WouldBlock));
    assert_eq!(wait(None, &|| true), Err(Error::Interrupted));
    assert_eq!(array.waiting(&ME, 0, false), Ok(0));
    std::thread::scope(|s| {
        let waiting = s.spawn(|| operate(array, &[op(0, -1)], None));
        let several = s.spawn(|| operate(array, &[op(0, 1), op(0, -2)], None));
        until(array, 0, false, 2);
        all.remove(&ME, crate::registry::Named::name(&**array).id()).unwrap();
        assert_eq!((waiting.join().unwrap(), several.join().unwrap()), (Err(Error::Removed), Err(Error::Removed)));
    });
    assert_eq!(operate(array, &[op(0, 1)], None), Err(Error::Removed));
    assert_eq!(array.set(&ME, 0, 1), Err(Error::Removed));
    assert!(host.charged() > 0);
}

#[test]
fn a_removed_array_gives_its_memory_back_before_its_processes_end() {
    let (all, host) = arrays();
    let undos = all.undos().unwrap();
    let array = array(&all, 1000);
    let before = host.charged();
    operate(&array, &[undone(0, 3)], Some(&undos)).unwrap();
    all.remove(&ME, crate::registry::Named::name(&*array).id()).unwrap();
    drop(array);
    assert!(host.charged() < before / 10, "{} of {before}", host.charged());
    drop(undos);
    assert_eq!(host.charged(), 0);
}

#[test]
fn the_last_thread_of_a_process_reverts_its_changes() {
    let (all, host) = arrays();
    let (one, two) = (array(&all, 2), array(&all, 1));
    let before = host.charged();
    let undos = all.undos().unwrap();
    one.set_all(&ME, &[5, 5]).unwrap();
    operate(&one, &[undone(0, -3), undone(1, 4), now(1, -9)], Some(&undos)).unwrap();
    operate(&two, &[undone(0, 7)], Some(&undos)).unwrap();
    operate(&two, &[now(0, -5)], Some(&undos)).unwrap();
    let thread = undos.share();
    drop(undos);
    assert_eq!((values(&one), values(&two)), (vec![2, 0], vec![2]));
    // A value that was set is not reverted. The other values are reverted, and stay in their range.
    one.set(&ME, 0, 1).unwrap();
    drop(thread);
    assert_eq!((values(&one), values(&two)), (vec![1, 0], vec![0]));
    assert_eq!(host.charged(), before);
    // An adjustment has a range too, and a failed call leaves no adjustment.
    let undos = all.undos().unwrap();
    let too_far = [undone(0, VALUE_MAX as i16), now(0, -VALUE_MAX as i16), undone(0, 2)];
    assert_eq!(operate(&two, &too_far, Some(&undos)), Err(Error::Range));
    drop(undos);
    assert_eq!(values(&two), [0]);
    // The end of a process lets waiting calls proceed.
    let undos = all.undos().unwrap();
    two.set(&ME, 0, 1).unwrap();
    operate(&two, &[undone(0, -1)], Some(&undos)).unwrap();
    std::thread::scope(|s| {
        s.spawn(|| operate(&two, &[op(0, -1)], None).unwrap());
        until(&two, 0, false, 1);
        drop(undos);
    });
    assert_eq!(values(&two), [0]);
}

#[test]
fn undos_of_removed_arrays_take_no_memory() {
    let (all, host) = arrays();
    let undos = all.undos().unwrap();
    for _ in 0..100 {
        let id = all.open(&ME, PRIVATE, 1000, NEW).unwrap();
        operate(&all.find(id).unwrap(), &[undone(0, 1)], Some(&undos)).unwrap();
        all.remove(&ME, id).unwrap();
    }
    // Removed arrays stay on the list of undos until further arrays are added.
    assert!(host.charged() < 10 * 1000 * 64, "{}", host.charged());
    drop(undos);
    assert_eq!((host.charged(), all.semaphores()), (0, 0));
}

#[test]
fn threads_pass_a_token_and_lose_none() {
    const ROUNDS: usize = 3000;
    let (all, _) = arrays();
    let array = &array(&all, 4);
    let stop = &AtomicBool::new(false);
    array.set(&ME, 0, 1).unwrap();
    std::thread::scope(|s| {
        let ring: std::vec::Vec<_> = (0..4u16)
            .map(|n| {
                s.spawn(move || {
                    (0..ROUNDS).for_each(|_| operate(array, &[op(n, -1), op((n + 1) % 4, 1)], None).unwrap());
                })
            })
            .collect();
        // While the other threads run, further calls begin to wait and are interrupted.
        s.spawn(|| {
            let mut signals = 0;
            while !stop.load(Ordering::Relaxed) {
                let operations = quire_heap::Vec::try_copy(&[op(signals % 4, -2)]).unwrap();
                let wait = Wait { deadline: None, interrupted: &|| true };
                let ended = Array::operate(array, &ME, operations, None, &wait);
                assert_eq!(ended, Err(Error::Interrupted));
                signals = signals.wrapping_add(1);
            }
        });
        ring.into_iter().for_each(|thread| thread.join().unwrap());
        stop.store(true, Ordering::Relaxed);
    });
    assert_eq!(values(array), [1, 0, 0, 0]);
}
