//! The futex table on a simulated machine.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::undocumented_unsafe_blocks)] // all memory is the test's own
mod simulated;

use quire_task::futex::ANY;
use quire_task::{FutexTable, FutexWait, Machine};
use simulated::{Sim, memory};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

fn table(buckets: usize) -> &'static FutexTable<Sim> {
    let memory = memory(FutexTable::<Sim>::bytes(buckets));
    Box::leak(Box::new(unsafe { FutexTable::new(memory, buckets) }))
}

/// A word in memory, and the system call on it.
struct Word(AtomicU32);

impl Word {
    fn key(&self) -> (u64, u64) {
        (7, self as *const Word as u64)
    }
    fn wait(&self, sim: &Sim, t: &FutexTable<Sim>, value: u32, bits: u32, deadline: Option<u64>) -> FutexWait {
        let mut same = || Ok::<_, Infallible>(self.0.load(SeqCst) == value);
        t.wait(sim.scheduler(), self.key(), bits, deadline, &mut same, &mut || false).unwrap()
    }
}

/// The mutex of "Futexes are tricky": 0 free, 1 held, 2 held and contended.
fn lock(w: &Word, sim: &Sim, t: &FutexTable<Sim>) {
    if w.0.compare_exchange(0, 1, SeqCst, SeqCst).is_ok() {
        return;
    }
    while w.0.swap(2, SeqCst) != 0 {
        w.wait(sim, t, 2, ANY, None);
    }
}
fn unlock(w: &Word, sim: &Sim, t: &FutexTable<Sim>) {
    if w.0.swap(0, SeqCst) == 2 {
        t.wake(sim.scheduler(), w.key(), 1, ANY);
    }
}

#[test]
fn a_mutex_built_on_it_excludes_and_loses_nobody() {
    for (cpus, buckets) in [(1, 1), (4, 1), (4, 64)] {
        let sim = Sim::new(cpus);
        let t = table(buckets);
        let words: Arc<Vec<(Word, AtomicUsize, AtomicUsize)>> =
            Arc::new((0..3).map(|_| (Word(AtomicU32::new(0)), AtomicUsize::new(0), AtomicUsize::new(0))).collect());
        for i in 0..24 {
            let words = words.clone();
            sim.spawn(&format!("t{i}"), move || {
                for round in 0..300 {
                    let (word, inside, count) = &words[(i + round) % 3];
                    lock(word, sim, t);
                    assert_eq!(inside.fetch_add(1, SeqCst), 0, "two are inside");
                    sim.poll();
                    count.fetch_add(1, SeqCst);
                    inside.fetch_sub(1, SeqCst);
                    unlock(word, sim, t);
                }
            });
        }
        sim.finish();
        assert_eq!(words.iter().map(|w| w.2.load(SeqCst)).sum::<usize>(), 24 * 300);
    }
}

#[test]
fn a_storm_of_timed_waits_and_wakes_leaves_nobody_behind() {
    let sim = Sim::new(4);
    let t = table(4);
    let words: Arc<Vec<Word>> = Arc::new((0..8).map(|_| Word(AtomicU32::new(0))).collect());
    let (woken, timed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    for i in 0..40usize {
        let (words, woken, timed) = (words.clone(), woken.clone(), timed.clone());
        sim.spawn(&format!("t{i}"), move || {
            for round in 0..60usize {
                let word = &words[(i * 7 + round) % 8];
                if (i + round) % 3 == 0 {
                    word.0.fetch_add(1, SeqCst);
                    t.wake(sim.scheduler(), word.key(), 2, ANY);
                } else {
                    let value = word.0.load(SeqCst);
                    let deadline = sim.now() + 200_000 + (i as u64 * 37 % 11) * 50_000;
                    match word.wait(sim, t, value, ANY, Some(deadline)) {
                        FutexWait::Woken => drop(woken.fetch_add(1, SeqCst)),
                        FutexWait::TimedOut => {
                            assert!(sim.now() >= deadline);
                            timed.fetch_add(1, SeqCst);
                        }
                        FutexWait::Differs => {}
                        FutexWait::Interrupted => panic!("nobody interrupts"),
                    }
                }
                sim.poll();
            }
        });
    }
    sim.finish();
    assert!(woken.load(SeqCst) > 0 && timed.load(SeqCst) > 0);
}

#[test]
fn the_word_is_compared_first_and_its_error_passes_through() {
    let sim = Sim::new(1);
    let t = table(1);
    sim.spawn("t", move || {
        let w = Word(AtomicU32::new(5));
        assert_eq!(w.wait(sim, t, 4, ANY, None), FutexWait::Differs);
        let out = t.wait(sim.scheduler(), w.key(), ANY, None, &mut || Err("fault"), &mut || false);
        assert_eq!(out, Err("fault"));
        let out = t.wait(sim.scheduler(), w.key(), ANY, None, &mut || Ok::<_, ()>(true), &mut || true);
        assert_eq!(out, Ok(FutexWait::Interrupted));
        assert_eq!(t.wake(sim.scheduler(), w.key(), 9, ANY), 0, "nobody is left on the list");
    });
    sim.finish();
}

fn wait_until(sim: &Sim, what: impl Fn() -> bool) {
    while !what() {
        sim.scheduler().park(Some(sim.now() + 100_000));
    }
}

#[test]
fn bitsets_choose_and_order_is_first_come_first_woken() {
    let sim = Sim::new(2);
    let t = table(1);
    let w = Arc::new(Word(AtomicU32::new(0)));
    let (asleep, order) = (Arc::new(AtomicU32::new(0)), Arc::new(std::sync::Mutex::new(Vec::new())));
    for i in 0..6u32 {
        let (w, asleep, order) = (w.clone(), asleep.clone(), order.clone());
        sim.spawn(&format!("t{i}"), move || {
            wait_until(sim, || asleep.load(SeqCst) == i);
            let mut same = || {
                asleep.fetch_add(1, SeqCst);
                Ok::<_, Infallible>(true)
            };
            let out = t.wait(sim.scheduler(), w.key(), 1 << (i % 2), None, &mut same, &mut || false);
            assert_eq!(out, Ok(FutexWait::Woken));
            order.lock().unwrap().push(i);
        });
    }
    sim.spawn("waker", move || {
        wait_until(sim, || asleep.load(SeqCst) == 6);
        sim.spin(Duration::from_millis(1));
        let s = sim.scheduler();
        let mut n = 0;
        for (most, bits, expect) in [(1, 2, 1), (2, 1, 2), (9, 2, 2), (9, ANY, 1), (9, ANY, 0)] {
            assert_eq!(t.wake(s, w.key(), most, bits), expect);
            n += expect;
            wait_until(sim, || order.lock().unwrap().len() == n);
        }
        let mut seen = order.lock().unwrap().clone();
        seen[1..3].sort();
        seen[3..5].sort();
        assert_eq!(seen, [1, 0, 2, 3, 5, 4]);
    });
    sim.finish();
}

#[test]
fn requeue_moves_the_rest_and_compares_first() {
    for buckets in [1, 64] {
        let sim = Sim::new(2);
        let t = table(buckets);
        let (from, to) = (Arc::new(Word(AtomicU32::new(0))), Arc::new(Word(AtomicU32::new(0))));
        let (asleep, awake) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for i in 0..40 {
            let (from, asleep, awake) = (from.clone(), asleep.clone(), awake.clone());
            sim.spawn(&format!("t{i}"), move || {
                let mut same = || {
                    asleep.fetch_add(1, SeqCst);
                    Ok::<_, Infallible>(true)
                };
                let s = sim.scheduler();
                // Some time out while they are moved about.
                let deadline = (i < 5).then(|| sim.now() + 3_000_000);
                t.wait(s, from.key(), ANY, deadline, &mut same, &mut || false).unwrap();
                awake.fetch_add(1, SeqCst);
            });
        }
        sim.spawn("waker", move || {
            let s = sim.scheduler();
            wait_until(sim, || asleep.load(SeqCst) == 40);
            let mut no = || Ok::<_, Infallible>(false);
            assert_eq!(t.requeue(s, from.key(), to.key(), 1, 9, &mut no), Ok(None));
            let mut yes = || Ok::<_, Infallible>(true);
            assert_eq!(t.requeue(s, from.key(), to.key(), 20, 10, &mut yes), Ok(Some((20, 10))));
            wait_until(sim, || awake.load(SeqCst) >= 20);
            let moved = t.wake(s, to.key(), usize::MAX, ANY);
            let rest = t.wake(s, from.key(), usize::MAX, ANY);
            assert!(moved <= 10 && moved + rest <= 20);
            wait_until(sim, || awake.load(SeqCst) == 40);
        });
        sim.finish();
    }
}

#[test]
fn a_table_is_sized_to_the_memory() {
    assert_eq!(FutexTable::<Sim>::buckets_for(0), 64);
    assert_eq!(FutexTable::<Sim>::buckets_for(512 << 20), 16384);
    assert_eq!(FutexTable::<Sim>::buckets_for(1 << 50), 1 << 20);
    assert_eq!(FutexTable::<Sim>::bytes(64), 64 * 64);
}
