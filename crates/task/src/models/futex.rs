//! The futex table: waits against wake-ups, requeues and interruptions.

use super::machine::{A, Cast, Model, with_memory};
use crate::futex::{ANY, FutexTable, Key};
use crate::{FutexWait, Scheduler, Thread, ThreadRef};
use quire_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use quire_sync::explore::Arc;
use quire_sync::protocol;
use std::cell::Cell;
use std::ptr::{self, NonNull};

const BUCKETS: usize = 2;

pub(super) type Table = FutexTable<Model>;

/// Calls `f` with a futex table, and then checks that no thread waits in it.
pub(super) fn with_table(f: impl FnOnce(&'static Table)) {
    with_memory(Table::bytes(BUCKETS), |memory| {
        // SAFETY: the memory lives as long as the table is used.
        let table = unsafe { Table::new(memory, BUCKETS) };
        // SAFETY: `f` joins all its threads and returns before the table is dropped.
        f(unsafe { &*ptr::from_ref(&table) });
        assert!(table.is_quiet(), "a waiter is left behind");
    });
}

/// Two keys that select different buckets.
pub(super) fn keys(table: &Table) -> (Key, Key) {
    let from = (1, 4);
    let to = (2..).map(|n| (n, 4)).find(|k| table.index_of(*k) != table.index_of(from));
    (from, to.unwrap())
}

/// Waits on the futex until its word is no longer 0.
fn wait_for(table: &Table, s: &Scheduler<Model>, key: Key, word: &AtomicU32) {
    let mut same = || Ok::<_, ()>(word.load(Ordering::Relaxed) == 0);
    let out = table.wait(s, key, ANY, None, &mut same, &mut || false);
    assert!(matches!(out, Ok(FutexWait::Woken | FutexWait::Differs)));
}

/// Waits until a wake-up or an interruption.
fn wait_unless(table: &Table, s: &Scheduler<Model>, key: Key, stop: &AtomicBool) -> FutexWait {
    table.wait(s, key, ANY, None, &mut || Ok::<_, ()>(true), &mut || stop.load(Ordering::Relaxed)).unwrap()
}

/// A thread waits for a word to change; the other CPU changes it and wakes.
fn wait_against_wake() {
    with_table(|table| {
        let word = Arc::new(AtomicU32::new(0));
        let changed = word.clone();
        let cast = Cast::new().interrupt(1, move |_, s| {
            changed.store(1, Ordering::Relaxed);
            table.wake(s, (1, 4), 1, ANY).unwrap();
        });
        cast.run(|_, s| wait_for(table, s, (1, 4), &word));
    });
}

protocol! {
    a_futex_waiter_is_always_woken = wait_against_wake, Some(2);
    CheckBeforeCount: "a wake-up was lost";
    #[cfg(loom)]
    CountNoFence: "a wake-up was lost";
    #[cfg(loom)]
    WakeNoFence: "a wake-up was lost";
}

/// A waiter is moved to another key, and woken there.
fn wait_against_requeue() {
    with_table(|table| {
        let (from, to) = keys(table);
        let word = Arc::new(AtomicU32::new(0));
        let changed = word.clone();
        let cast = Cast::new().interrupt(1, move |_, s| {
            changed.store(1, Ordering::Relaxed);
            let moved = table.requeue(s, from, to, 0, 1, &mut || Ok::<_, ()>(true)).unwrap().unwrap();
            let woken = table.wake(s, to, 1, ANY).unwrap();
            assert_eq!(moved, Some((0, woken)), "a moved waiter is not woken in its new bucket");
        });
        cast.run(|_, s| wait_for(table, s, from, &word));
    });
}

protocol! {
    a_waiter_that_is_moved_is_woken_where_it_is = wait_against_requeue, Some(2);
    RequeueUncounted: "a moved waiter is not woken in its new bucket";
}

/// A waiter is interrupted while a requeue moves it to another bucket. It must leave the bucket in which it is listed.
fn leave_against_requeue() {
    with_table(|table| {
        let (from, to) = keys(table);
        let stop = Arc::new(AtomicBool::new(false));
        let raise = stop.clone();
        let cast = Cast::new().interrupt(1, move |machine, s| {
            raise.store(true, Ordering::Relaxed);
            s.unpark(machine.thread(A));
            table.requeue(s, from, to, 0, 1, &mut || Ok::<_, ()>(true)).unwrap().unwrap();
        });
        cast.run(|_, s| {
            wait_unless(table, s, from, &stop);
        });
    });
}

protocol! {
    a_waiter_that_leaves_during_a_move_leaves_its_real_bucket = leave_against_requeue, Some(2);
    LeaveOldBucket: "a waiter is left behind";
}

/// A waiter is interrupted while a wake-up chooses it: both report the same outcome.
fn leave_against_wake() {
    with_table(|table| {
        let stop = Arc::new(AtomicBool::new(false));
        let woken = Arc::new(AtomicU32::new(0));
        let (raise, counts) = (stop.clone(), woken.clone());
        let mut was_woken = 0;
        let cast = Cast::new().interrupt(1, move |machine, s| {
            raise.store(true, Ordering::Relaxed);
            s.unpark(machine.thread(A));
            counts.store(table.wake(s, (1, 4), 1, ANY).unwrap() as u32, Ordering::Relaxed);
        });
        cast.run(|_, s| was_woken = u32::from(wait_unless(table, s, (1, 4), &stop) == FutexWait::Woken));
        assert_eq!(was_woken, woken.load(Ordering::Relaxed), "a wake-up is counted and lost");
    });
}

protocol! {
    a_wake_up_of_a_waiter_that_leaves_is_not_lost = leave_against_wake, Some(2);
    LeaveThoughChosen: "a wake-up is counted and lost";
}

// The number of released threads in the model that runs on this operating-system thread. A checker runs all threads of
// a model on one operating-system thread, one at a time.
std::thread_local! {
    static RELEASED: Cell<u32> = const { Cell::new(0) };
}
unsafe fn released(_: NonNull<Thread<Model>>) {
    RELEASED.set(RELEASED.get() + 1);
}

/// A woken waiter's thread exits at once, and its memory is released, while the waker still uses the waiter.
fn exit_against_wake() {
    RELEASED.set(0);
    with_table(|table| {
        let word = Arc::new(AtomicU32::new(0));
        let changed = word.clone();
        let cast = Cast::new().release(released).interrupt(1, move |_, s| {
            changed.store(1, Ordering::Relaxed);
            table.wake(s, (1, 4), 1, ANY).unwrap();
        });
        cast.run(|machine, s| {
            wait_for(table, s, (1, 4), &word);
            // SAFETY: this drops the scheduler's reference, which the scheduler would otherwise pass to `reap`.
            drop(unsafe { ThreadRef::adopt(NonNull::from(machine.thread(A))) });
        });
    });
    assert_eq!(RELEASED.get(), 1, "a thread is used after it was freed");
}

protocol! {
    a_waker_keeps_the_thread_that_it_wakes = exit_against_wake, Some(2);
    #[cfg(shuttle)]
    WokenBeforeReference: "used after it was freed";
}
