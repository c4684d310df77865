//! The scheduler, futexes and locks with priority inheritance, on CPUs that run in parallel. The tests check facts that
//! hold for any interleaving. They do not read the host's clock. Other tests check the order of single steps, in
//! virtual time.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::undocumented_unsafe_blocks)] // all memory is the test's own
mod parallel;

use parallel::{Sim, memory};
use quire_sync::cpuset::CpuMask;
use quire_task::futex::ANY;
use quire_task::futex::pi::{PiLock, PiWord};
use quire_task::{FutexTable, FutexWait, Machine, Thread, ThreadRef};
use std::convert::Infallible;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

fn table(buckets: usize) -> &'static FutexTable<Sim> {
    let memory = memory(FutexTable::<Sim>::bytes(buckets));
    Box::leak(Box::new(unsafe { FutexTable::new(memory, buckets) }))
}

#[test]
fn every_thread_runs_exits_and_is_reaped() {
    let sim = Sim::new(4);
    let ran = Arc::new(AtomicUsize::new(0));
    for i in 0..200 {
        let ran = ran.clone();
        sim.spawn(&format!("t{i}"), move || {
            sim.poll();
            ran.fetch_add(1, SeqCst);
        });
    }
    sim.finish();
    assert_eq!((ran.load(SeqCst), sim.scheduler().threads()), (200, 0));
}

#[test]
fn pairs_that_park_and_unpark_each_other_never_lose_a_wake_up() {
    for cpus in [1, 2, 4] {
        let sim = Sim::new(cpus);
        for pair in 0..4 {
            let turn = Arc::new(AtomicU64::new(0));
            let partner: Arc<[Mutex<Option<ThreadRef<Sim>>>; 2]> = Arc::default();
            for side in 0..2u64 {
                let (turn, table) = (turn.clone(), partner.clone());
                let t = sim.spawn(&format!("pair{pair}.{side}"), move || {
                    let s = sim.scheduler();
                    let partner = loop {
                        if let Some(p) = table[1 - side as usize].lock().unwrap().clone() {
                            break p;
                        }
                        s.yield_now();
                    };
                    for round in 0..500u64 {
                        while turn.load(SeqCst) != round * 2 + side {
                            s.park(None);
                        }
                        turn.fetch_add(1, SeqCst);
                        s.unpark(&partner);
                    }
                });
                *partner[side as usize].lock().unwrap() = Some(t);
            }
        }
        sim.finish();
    }
}

#[test]
fn a_running_and_a_waiting_thread_are_moved_by_another() {
    let sim = Sim::new(3);
    let (at, stop) = (Arc::new([AtomicUsize::new(9), AtomicUsize::new(9)]), Arc::new(AtomicBool::new(false)));
    let hogs: Vec<_> = (0..2)
        .map(|i| {
            let (at, stop) = (at.clone(), stop.clone());
            sim.spawn_at(Some(0), &format!("hog{i}"), move || {
                while !stop.load(SeqCst) {
                    sim.poll();
                    at[i].store(quire_sync::current_cpu(), SeqCst);
                }
            })
        })
        .collect();
    sim.spawn_at(Some(2), "mover", move || {
        let s = sim.scheduler();
        s.set_affinity(&s.current(), &CpuMask::only(2));
        for round in 0..40 {
            for cpu in [1, 0] {
                s.set_affinity(&hogs[round % 2], &CpuMask::only(cpu));
                while at[round % 2].load(SeqCst) != cpu {
                    sim.poll();
                }
            }
        }
        stop.store(true, SeqCst);
    });
    sim.finish();
}

/// A futex word in memory, with the futex operations on it.
struct Word(AtomicU32);

impl Word {
    fn key(&self) -> (u64, u64) {
        (7, self as *const Word as u64)
    }
    fn wait(&self, sim: &Sim, t: &FutexTable<Sim>, value: u32, deadline: Option<u64>) -> FutexWait {
        let mut same = || Ok::<_, Infallible>(self.0.load(SeqCst) == value);
        t.wait(sim.scheduler(), self.key(), ANY, deadline, &mut same, &mut || false).unwrap()
    }
}

#[test]
fn a_mutex_on_futexes_excludes_and_loses_no_waiter() {
    for (cpus, buckets) in [(1, 1), (4, 1), (4, 64)] {
        let sim = Sim::new(cpus);
        let t = table(buckets);
        let new = |_| (Word(AtomicU32::new(0)), AtomicUsize::new(0), AtomicUsize::new(0));
        let words: Arc<Vec<(Word, AtomicUsize, AtomicUsize)>> = Arc::new((0..3).map(new).collect());
        for i in 0..24 {
            let words = words.clone();
            sim.spawn(&format!("t{i}"), move || {
                for round in 0..300 {
                    // The mutex of Drepper's "Futexes Are Tricky": 0 is free, 1 is held, 2 is held and contended.
                    let (word, inside, count) = &words[(i + round) % 3];
                    if word.0.compare_exchange(0, 1, SeqCst, SeqCst).is_err() {
                        while word.0.swap(2, SeqCst) != 0 {
                            word.wait(sim, t, 2, None);
                        }
                    }
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two threads hold the lock");
                    sim.poll();
                    count.fetch_add(1, SeqCst);
                    inside.fetch_sub(1, SeqCst);
                    if word.0.swap(0, SeqCst) == 2 {
                        t.wake(sim.scheduler(), word.key(), 1, ANY).unwrap();
                    }
                }
            });
        }
        sim.finish();
        assert_eq!(words.iter().map(|w| w.2.load(SeqCst)).sum::<usize>(), 24 * 300);
    }
}

#[test]
fn a_storm_of_timed_waits_and_wakes_loses_no_waiter() {
    let sim = Sim::new(4);
    let t = table(4);
    let words: Arc<Vec<Word>> = Arc::new((0..8).map(|_| Word(AtomicU32::new(0))).collect());
    // `woke` counts the threads that wakers report as woken; `woken` counts the waits that return `Woken`.
    let (woke, woken) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for i in 0..40usize {
        let (words, woke, woken) = (words.clone(), woke.clone(), woken.clone());
        sim.spawn(&format!("t{i}"), move || {
            for round in 0..60usize {
                let word = &words[(i * 7 + round) % 8];
                if (i + round).is_multiple_of(3) {
                    word.0.fetch_add(1, SeqCst);
                    woke.fetch_add(t.wake(sim.scheduler(), word.key(), 2, ANY).unwrap(), SeqCst);
                } else {
                    let value = word.0.load(SeqCst);
                    let deadline = sim.now() + 200_000 + (i as u64 * 37 % 11) * 50_000;
                    match word.wait(sim, t, value, Some(deadline)) {
                        FutexWait::Woken => drop(woken.fetch_add(1, SeqCst)),
                        FutexWait::TimedOut => assert!(sim.now() >= deadline),
                        FutexWait::Differs => {}
                        FutexWait::Interrupted => panic!("a wait was interrupted"),
                    }
                }
                sim.poll();
            }
        });
    }
    sim.finish();
    assert_eq!(
        woke.load(SeqCst),
        woken.load(SeqCst),
        "a waiter was counted as woken and timed out, or was woken twice"
    );
}

/// Locks with priority inheritance, and the threads of a test, whose numbers begin at 1.
struct Locks {
    words: [AtomicU32; 2],
    threads: [Mutex<Option<ThreadRef<Sim>>>; 12],
    blocks: AtomicUsize,
    inside: [AtomicUsize; 2],
}

struct LockWord<'a>(&'a Locks, usize);

unsafe impl PiWord<Sim> for LockWord<'_> {
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
    fn name(&self, thread: &Thread<Sim>) -> u32 {
        let is =
            |t: &Mutex<Option<ThreadRef<Sim>>>| t.lock().unwrap().as_ref().is_some_and(|t| std::ptr::eq(&**t, thread));
        self.0.threads.iter().position(is).map_or(0, |at| at as u32 + 1)
    }
    fn find(&self, name: u32) -> Option<ThreadRef<Sim>> {
        self.0.threads.get(name as usize - 1)?.lock().unwrap().clone()
    }
    fn interrupted(&self) -> bool {
        false
    }
    fn place(&self, lock: PiLock<Sim>) -> Option<NonNull<PiLock<Sim>>> {
        self.0.blocks.fetch_add(1, SeqCst);
        Some(NonNull::from(Box::leak(Box::new(lock))))
    }
    fn discard(&self, lock: NonNull<PiLock<Sim>>) {
        self.0.blocks.fetch_sub(1, SeqCst);
        drop(unsafe { Box::from_raw(lock.as_ptr()) });
    }
}

#[test]
fn locks_with_priority_inheritance_exclude_and_leave_nothing_behind() {
    for (cpus, buckets) in [(4, 1), (4, 64)] {
        let (sim, t) = (Sim::new(cpus), table(buckets));
        let locks = Arc::new(Locks {
            words: Default::default(),
            threads: Default::default(),
            blocks: AtomicUsize::new(0),
            inside: Default::default(),
        });
        for n in 0..12 {
            let locks = locks.clone();
            sim.spawn(&format!("t{n}"), move || {
                let s = sim.scheduler();
                *locks.threads[n].lock().unwrap() = Some(s.current().to_ref());
                s.current().set_nice(n as i8 - 6);
                let key = |word: usize| (7, word as u64 * 4);
                for round in 0..100 {
                    // Some threads acquire the second lock while they hold the first, so that weights are inherited
                    // along a chain of owners.
                    let first = usize::from((n + round) % 3 == 0);
                    for word in first..2 {
                        t.pi_lock(s, key(word), &LockWord(&locks, word), None, false).unwrap();
                        assert_eq!(locks.inside[word].fetch_add(1, SeqCst), 0, "two threads hold the lock");
                        sim.poll();
                    }
                    for word in (first..2).rev() {
                        locks.inside[word].fetch_sub(1, SeqCst);
                        t.pi_unlock(s, key(word), &LockWord(&locks, word)).unwrap();
                    }
                    assert_eq!(s.current().weight_nice(), n as i8 - 6, "a thread keeps a weight that it inherited");
                }
            });
        }
        sim.finish();
        assert_eq!(locks.blocks.load(SeqCst), 0);
        assert!(locks.words.iter().all(|word| word.load(SeqCst) == 0));
        locks.threads.iter().for_each(|thread| *thread.lock().unwrap() = None);
    }
}
