//! Priority inheritance: a release against a waiter that gives up, a chain of owners that grows at both ends, and the
//! exit of an owner.
#![allow(clippy::undocumented_unsafe_blocks)] // all memory is the model's own

use super::futex::{Table, keys, with_table};
use super::machine::{A, Cast, Model};
use crate::futex::pi::{OWNER, OWNER_DIED, PiLock, PiRefused, PiWord, WAITERS};
use crate::{Scheduler, Thread, ThreadRef};
use quire_sync::atomic::{AtomicBool, AtomicU32, Ordering};
use quire_sync::explore::Arc;
use quire_sync::protocol;
use std::ptr::NonNull;

const KEY: (u64, u64) = (1, 4);
/// A deadline that has passed.
const PAST: Option<u64> = Some(0);

/// The number by which a lock's word names a thread: its number in the model plus 1.
fn name(thread: usize) -> u32 {
    thread as u32 + 1
}

struct Word<'a, F: Fn() -> bool> {
    machine: &'static Model,
    word: &'a AtomicU32,
    interrupted: F,
}

unsafe impl<F: Fn() -> bool> PiWord<Model> for Word<'_, F> {
    type Error = ();
    fn load(&self) -> Result<u32, ()> {
        Ok(self.word.load(Ordering::Acquire))
    }
    fn exchange(&self, old: u32, new: u32) -> Result<u32, ()> {
        let found = self.word.compare_exchange(old, new, Ordering::AcqRel, Ordering::Acquire);
        Ok(found.unwrap_or_else(|found| found))
    }
    fn make_present(&self) -> Result<(), ()> {
        Ok(())
    }
    fn name(&self, thread: &Thread<Model>) -> u32 {
        name(*thread.payload())
    }
    fn find(&self, name: u32) -> Option<ThreadRef<Model>> {
        Some(self.machine.thread(name as usize - 1).to_ref())
    }
    fn interrupted(&self) -> bool {
        (self.interrupted)()
    }
    fn place(&self, lock: PiLock<Model>) -> Option<NonNull<PiLock<Model>>> {
        Some(NonNull::from(Box::leak(Box::new(lock))))
    }
    fn discard(&self, lock: NonNull<PiLock<Model>>) {
        drop(unsafe { Box::from_raw(lock.as_ptr()) });
    }
}

type Taken = Result<(), PiRefused<()>>;

/// The machine of a model, and its scheduler.
struct On<'s> {
    machine: &'static Model,
    scheduler: &'s Scheduler<Model>,
}

fn lock(
    table: &Table,
    on: On<'_>,
    key: (u64, u64),
    word: &AtomicU32,
    deadline: Option<u64>,
    interrupted: impl Fn() -> bool,
) -> Taken {
    table.pi_lock(on.scheduler, key, &Word { machine: on.machine, word, interrupted }, deadline, false)
}

fn unlock(table: &Table, on: On<'_>, key: (u64, u64), word: &AtomicU32) {
    table.pi_unlock(on.scheduler, key, &Word { machine: on.machine, word, interrupted: || false }).unwrap();
}

/// The owner, on CPU 1, releases the lock while the waiter is interrupted.
fn give_up_against_release() {
    with_table(|table| {
        let word = Arc::new(AtomicU32::new(name(1)));
        let stop = Arc::new(AtomicBool::new(false));
        let (theirs, raise) = (word.clone(), stop.clone());
        let cast = Cast::new().interrupt(1, move |machine, s| {
            raise.store(true, Ordering::Relaxed);
            s.unpark(machine.thread(A));
            unlock(table, On { machine, scheduler: s }, KEY, &theirs);
        });
        cast.run(|machine, s| {
            match lock(table, On { machine, scheduler: s }, KEY, &word, None, || stop.load(Ordering::Relaxed)) {
                Ok(()) => unlock(table, On { machine, scheduler: s }, KEY, &word),
                Err(why) => assert_eq!(why, PiRefused::Interrupted),
            }
        });
        assert_eq!(word.load(Ordering::Relaxed) & OWNER, 0, "a lock is lost");
    });
}

protocol! {
    a_lock_handed_to_a_waiter_that_gives_up_is_not_lost = give_up_against_release, Some(2);
    PiLeaveThoughOwner: "a lock is lost";
}

/// The owner ends while a thread begins to wait.
fn wait_against_end() {
    with_table(|table| {
        let word = Arc::new(AtomicU32::new(name(1)));
        let cast = Cast::new().interrupt(1, move |_, s| table.pi_leave(s, true));
        cast.run(|machine, s| match lock(table, On { machine, scheduler: s }, KEY, &word, None, || false) {
            Ok(()) => {
                assert_eq!(word.load(Ordering::Relaxed), OWNER_DIED | WAITERS | name(A), "the word");
                unlock(table, On { machine, scheduler: s }, KEY, &word);
            }
            Err(why) => assert_eq!(why, PiRefused::NoOwner),
        });
    });
}

protocol! {
    an_owner_that_ends_hands_its_lock_on = wait_against_end, Some(2);
    PiOwnerUnlooked: "a wake-up was lost";
}

/// CPU 1 owns one lock and begins to wait for another, whose owner is a third thread. At the same time an urgent thread
/// begins to wait for the first lock.
fn chain_from_both_ends() {
    with_table(|table| {
        let (key, other) = keys(table);
        let (first, second) = (Arc::new(AtomicU32::new(name(1))), Arc::new(AtomicU32::new(name(0))));
        let waits = Arc::new(AtomicBool::new(false));
        let (of_first, seen) = (first.clone(), waits.clone());
        let is_listed = |machine: &Model, n: usize| !machine.thread(n).blocked.load(Ordering::Relaxed).is_null();
        let cast = Cast::new().interrupt(1, move |machine, s| {
            let look = || {
                if is_listed(machine, 1) && seen.load(Ordering::Acquire) {
                    assert_eq!(machine.thread(0).weight_nice(), -10, "the weight does not reach the end of a chain");
                }
                false
            };
            let out = lock(table, On { machine, scheduler: s }, other, &second, PAST, look);
            assert_eq!(out, Err(PiRefused::TimedOut));
            assert_eq!(machine.thread(0).weight_nice(), 0, "an owner keeps a weight");
            unlock(table, On { machine, scheduler: s }, key, &of_first);
            assert_eq!(machine.thread(1).weight_nice(), 0, "an owner keeps a weight");
        });
        cast.run(|machine, s| {
            machine.thread(A).set_nice(-10);
            let note = || {
                if is_listed(machine, A) {
                    waits.store(true, Ordering::Release);
                }
                false
            };
            lock(table, On { machine, scheduler: s }, key, &first, None, note).unwrap();
            unlock(table, On { machine, scheduler: s }, key, &first);
        });
    });
}

protocol! {
    a_weight_reaches_the_end_of_a_chain_that_is_forming = chain_from_both_ends, Some(2);
    PiLevelEarly: "the weight does not reach the end of a chain";
}

/// An urgent waiter gives up while the owner hands the lock to another waiter.
fn leave_against_release() {
    with_table(|table| {
        let word = Arc::new(AtomicU32::new(name(0)));
        let (theirs, owners) = (word.clone(), word.clone());
        let cast = Cast::new()
            .interrupt(0, move |machine, s| unlock(table, On { machine, scheduler: s }, KEY, &owners))
            .interrupt(1, move |machine, s| {
                machine.thread(1).set_nice(-10);
                match lock(table, On { machine, scheduler: s }, KEY, &theirs, PAST, || false) {
                    Ok(()) => unlock(table, On { machine, scheduler: s }, KEY, &theirs),
                    Err(why) => assert_eq!(why, PiRefused::TimedOut),
                }
                for owner in [0, A] {
                    assert_eq!(machine.thread(owner).weight_nice(), 0, "an owner keeps a weight");
                }
            });
        cast.run(|machine, s| {
            lock(table, On { machine, scheduler: s }, KEY, &word, None, || false).unwrap();
            unlock(table, On { machine, scheduler: s }, KEY, &word);
        });
        assert_eq!(word.load(Ordering::Relaxed), 0, "a lock is lost");
    });
}

protocol! {
    a_weight_goes_with_the_waiter_that_gives_up = leave_against_release, Some(2);
    PiLeaveUnsettled: "an owner keeps a weight";
}
