//! Locks with priority inheritance on a machine in virtual time.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::undocumented_unsafe_blocks)] // all memory is the test's own
mod stepped;

use quire_task::futex::pi::{LONGEST_CHAIN, OWNER, PiLock, PiRefused, PiWord};
use quire_task::{Class, FutexTable, Thread, ThreadRef};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use stepped::{Stepped, memory};

/// The number of seeds with which each test runs.
const SEEDS: u64 = 12;

/// The locks of a test, and its threads, whose numbers begin at 1.
struct World {
    machine: &'static Stepped,
    table: FutexTable<Stepped>,
    words: Vec<AtomicU32>,
    threads: Mutex<Vec<Option<ThreadRef<Stepped>>>>,
    blocks: AtomicUsize,
    no_memory: AtomicBool,
    go: AtomicBool,
}

struct Word<'a>(&'a World, usize);

unsafe impl PiWord<Stepped> for Word<'_> {
    type Error = ();
    fn load(&self) -> Result<u32, ()> {
        Ok(self.0.words[self.1].load(SeqCst))
    }
    fn exchange(&self, old: u32, new: u32) -> Result<u32, ()> {
        Ok(self.0.words[self.1].compare_exchange(old, new, SeqCst, SeqCst).unwrap_or_else(|found| found))
    }
    fn make_present(&self) -> Result<(), ()> {
        Ok(())
    }
    fn name(&self, thread: &Thread<Stepped>) -> u32 {
        let threads = self.0.threads.lock().unwrap();
        let at = threads.iter().position(|t| t.as_ref().is_some_and(|t| std::ptr::eq(&**t, thread)));
        at.map_or(0, |at| at as u32 + 1)
    }
    fn find(&self, name: u32) -> Option<ThreadRef<Stepped>> {
        self.0.threads.lock().unwrap().get(name as usize - 1)?.clone()
    }
    fn interrupted(&self) -> bool {
        false
    }
    fn place(&self, lock: PiLock<Stepped>) -> Option<NonNull<PiLock<Stepped>>> {
        if self.0.no_memory.load(SeqCst) {
            return None;
        }
        self.0.blocks.fetch_add(1, SeqCst);
        Some(NonNull::from(Box::leak(Box::new(lock))))
    }
    fn discard(&self, lock: NonNull<PiLock<Stepped>>) {
        self.0.blocks.fetch_sub(1, SeqCst);
        drop(unsafe { Box::from_raw(lock.as_ptr()) });
    }
}

impl World {
    fn new(seed: u64, cpus: usize, buckets: usize, words: usize, threads: usize) -> Arc<World> {
        let memory = memory(FutexTable::<Stepped>::bytes(buckets));
        Arc::new(World {
            machine: Stepped::seeded(cpus, seed),
            table: unsafe { FutexTable::new(memory, buckets) },
            words: (0..words).map(|_| AtomicU32::new(0)).collect(),
            threads: Mutex::new(vec![const { None }; threads]),
            blocks: AtomicUsize::new(0),
            no_memory: AtomicBool::new(false),
            go: AtomicBool::new(false),
        })
    }
    /// Runs `body` as thread `n`.
    fn spawn(self: &Arc<World>, n: usize, body: impl FnOnce(&World) + Send + 'static) {
        let world = self.clone();
        self.machine.start(&format!("t{n}"), move || {
            world.threads.lock().unwrap()[n] = Some(world.machine.scheduler().current().to_ref());
            body(&world);
        });
    }
    fn lock(&self, word: usize, deadline: Option<u64>) -> Result<(), PiRefused<()>> {
        self.table.pi_lock(self.machine.scheduler(), (7, word as u64 * 4), &Word(self, word), deadline, false)
    }
    fn try_lock(&self, word: usize) -> Result<(), PiRefused<()>> {
        self.table.pi_lock(self.machine.scheduler(), (7, word as u64 * 4), &Word(self, word), None, true)
    }
    fn unlock(&self, word: usize) {
        self.table.pi_unlock(self.machine.scheduler(), (7, word as u64 * 4), &Word(self, word)).unwrap();
    }
    fn nice(&self, n: usize) -> i8 {
        self.threads.lock().unwrap()[n].as_ref().map_or(0, |t| t.weight_nice())
    }
    fn until(&self, what: impl Fn() -> bool) {
        self.machine.until(what);
    }
    /// Whether thread `n` sleeps, because it waits for a lock.
    fn sleeps(&self, n: usize) -> bool {
        self.threads.lock().unwrap()[n].as_ref().is_some_and(|t| !t.is_runnable())
    }
}

#[test]
fn an_owner_runs_at_the_real_time_priority_of_a_waiter() {
    for seed in 0..SEEDS {
        let world = World::new(seed, 1, 4, 1, 3);
        let class = |w: &World, priority| {
            w.machine.scheduler().set_class(&w.machine.scheduler().current(), Class::Fifo(priority), false)
        };
        let urgency = |w: &World, n: usize| w.threads.lock().unwrap()[n].as_ref().map_or(0, |t| t.urgency());
        world.spawn(0, move |w| {
            w.lock(0, None).unwrap();
            w.until(|| w.sleeps(2));
            assert_eq!(urgency(w, 0), 50);
            let spinner = w.threads.lock().unwrap()[1].clone().unwrap();
            w.machine.scheduler().set_class(&spinner, Class::Fifo(20), false);
            w.machine.spin(1_000_000);
            assert_eq!(urgency(w, 1), 20, "it waits for the owner");
            w.go.store(true, SeqCst);
            w.unlock(0);
            assert_eq!(urgency(w, 0), 0);
            w.machine.poll();
            assert_eq!(w.words[0].load(SeqCst), 0, "the waiter runs at once");
        });
        world.spawn(1, move |w| {
            while !w.go.load(SeqCst) {
                w.machine.poll();
                let may_run = urgency(w, 1) == 0 || w.go.load(SeqCst);
                assert!(may_run, "it runs before the owner, although a more urgent thread waits");
            }
        });
        world.spawn(2, move |w| {
            w.until(|| w.words[0].load(SeqCst) & OWNER == 1);
            class(w, 50);
            w.lock(0, None).unwrap();
            w.unlock(0);
        });
        world.machine.finish();
        assert_eq!(world.blocks.load(SeqCst), 0);
    }
}

#[test]
fn a_weight_goes_down_a_chain_and_comes_back() {
    for seed in 0..SEEDS {
        for (cpus, buckets) in [(1, 1), (4, 64)] {
            const LAST: usize = 12;
            let world = World::new(seed, cpus, buckets, LAST, LAST + 1);
            for n in 0..=LAST {
                world.spawn(n, move |w| {
                    if n < LAST {
                        w.lock(n, None).unwrap();
                    }
                    if n == 0 {
                        w.until(|| w.sleeps(LAST));
                        // The last thread has nice -15, which all threads of the chain inherit.
                        w.until(|| (0..=LAST).all(|n| w.nice(n) == -15));
                        let last = w.threads.lock().unwrap()[LAST].clone().unwrap();
                        last.set_nice(-3);
                        w.table.pi_renice(w.machine.scheduler(), &last);
                        assert!((0..=LAST).all(|n| w.nice(n) == -3), "a changed nice value goes down the chain");
                        w.unlock(0);
                        assert_eq!(w.nice(0), 0);
                        return;
                    }
                    w.until(|| n == 1 || w.sleeps(n - 1));
                    w.until(|| w.words[n - 1].load(SeqCst) & OWNER != 0);
                    if n == LAST {
                        w.machine.scheduler().current().set_nice(-15);
                    }
                    w.lock(n - 1, None).unwrap();
                    w.unlock(n - 1);
                    if n < LAST {
                        w.unlock(n);
                        assert_eq!(w.nice(n), 0, "a thread keeps a weight that it inherited");
                    }
                });
            }
            world.machine.finish();
            assert_eq!(world.blocks.load(SeqCst), 0);
            assert!(world.words.iter().all(|w| w.load(SeqCst) == 0));
            world.threads.lock().unwrap().clear();
        }
    }
}

#[test]
fn waiters_are_served_by_weight_and_equals_in_turn() {
    for seed in 0..SEEDS {
        let world = World::new(seed, 2, 1, 1, 6);
        let served = Arc::new(Mutex::new(Vec::new()));
        world.spawn(0, |w| {
            w.lock(0, None).unwrap();
            w.until(|| w.sleeps(5));
            assert_eq!(w.nice(0), -10);
            w.unlock(0);
        });
        for n in 1..6 {
            let served = served.clone();
            world.spawn(n, move |w| {
                w.until(|| if n == 1 { w.words[0].load(SeqCst) & OWNER != 0 } else { w.sleeps(n - 1) });
                w.machine.scheduler().current().set_nice([0, 5, 5, -10, 0][n - 1]);
                w.lock(0, None).unwrap();
                served.lock().unwrap().push(n);
                w.unlock(0);
            });
        }
        world.machine.finish();
        assert_eq!(*served.lock().unwrap(), [4, 1, 5, 2, 3]);
        world.threads.lock().unwrap().clear();
    }
}

#[test]
fn refusals_leave_nothing_behind() {
    for seed in 0..SEEDS {
        let world = World::new(seed, 1, 1, 2, 2);
        world.spawn(0, |w| {
            w.lock(0, None).unwrap();
            assert_eq!(w.lock(0, None), Err(PiRefused::Deadlock));
            w.until(|| w.go.load(SeqCst));
            w.unlock(0);
        });
        world.spawn(1, |w| {
            w.until(|| w.words[0].load(SeqCst) != 0);
            w.machine.scheduler().current().set_nice(-5);
            assert_eq!(w.try_lock(0), Err(PiRefused::Busy));
            w.no_memory.store(true, SeqCst);
            assert_eq!(w.lock(0, None), Err(PiRefused::Memory));
            w.no_memory.store(false, SeqCst);
            assert_eq!(w.lock(0, Some(0)), Err(PiRefused::TimedOut));
            assert_eq!((w.nice(0), w.blocks.load(SeqCst)), (0, 0));
            w.words[1].store(77, SeqCst);
            assert_eq!(w.lock(1, None), Err(PiRefused::NoOwner));
            w.go.store(true, SeqCst);
            w.lock(0, None).unwrap();
            w.unlock(0);
        });
        world.machine.finish();
        assert_eq!(world.words[0].load(SeqCst), 0);
        world.threads.lock().unwrap().clear();
    }
}

#[test]
fn a_chain_that_is_too_long_counts_as_a_deadlock() {
    for seed in 0..SEEDS {
        const LAST: usize = LONGEST_CHAIN + 2;
        let world = World::new(seed, 1, 64, LAST + 1, LAST + 1);
        for n in 0..=LAST {
            world.spawn(n, move |w| {
                w.lock(n, None).unwrap();
                if n == 0 {
                    w.until(|| w.go.load(SeqCst));
                } else {
                    w.until(|| n == 1 || w.sleeps(n - 1));
                    let out = w.lock(n - 1, None);
                    assert_eq!(out, if n == LAST { Err(PiRefused::Deadlock) } else { Ok(()) }, "{n}");
                    if n == LAST {
                        w.go.store(true, SeqCst);
                    } else {
                        w.unlock(n - 1);
                    }
                }
                w.unlock(n);
            });
        }
        world.machine.finish();
        assert_eq!(world.blocks.load(SeqCst), 0);
        world.threads.lock().unwrap().clear();
    }
}
