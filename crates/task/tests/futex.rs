//! The futex table on a machine in virtual time.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::undocumented_unsafe_blocks)] // all memory is the test's own
mod stepped;

use proptest::prelude::*;
use quire_task::futex::ANY;
use quire_task::{Class, FutexTable, FutexWait, Machine, ThreadRef};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use stepped::{POLL, Stepped, memory};

/// The number of seeds with which each test runs.
const SEEDS: u64 = 12;
/// How often a thread acquires a lock.
const ROUNDS: usize = 60;
/// The most nanoseconds by which a thread may run after its deadline: a tick of the timer, and the polls of all other
/// threads.
const LATE: u64 = (1 << 14) + 40 * 2 * POLL;

fn table(buckets: usize) -> &'static FutexTable<Stepped> {
    let memory = memory(FutexTable::<Stepped>::bytes(buckets));
    Box::leak(Box::new(unsafe { FutexTable::new(memory, buckets) }))
}

/// A futex word in memory, with the futex operations on it.
struct Word(AtomicU32);

impl Word {
    fn key(&self) -> (u64, u64) {
        (7, self as *const Word as u64)
    }
    fn wait(
        &self,
        machine: &Stepped,
        t: &FutexTable<Stepped>,
        value: u32,
        bits: u32,
        deadline: Option<u64>,
    ) -> FutexWait {
        let mut same = || Ok::<_, Infallible>(self.0.load(SeqCst) == value);
        t.wait(machine.scheduler(), self.key(), bits, deadline, &mut same, &mut || false).unwrap()
    }
}

/// The mutex of Drepper's "Futexes Are Tricky". The word is 0 if it is free, 1 if held, 2 if held and contended.
fn lock(w: &Word, machine: &Stepped, t: &FutexTable<Stepped>) {
    if w.0.compare_exchange(0, 1, SeqCst, SeqCst).is_ok() {
        return;
    }
    while w.0.swap(2, SeqCst) != 0 {
        w.wait(machine, t, 2, ANY, None);
    }
}
fn unlock(w: &Word, machine: &Stepped, t: &FutexTable<Stepped>) {
    if w.0.swap(0, SeqCst) == 2 {
        t.wake(machine.scheduler(), w.key(), 1, ANY).unwrap();
    }
}

#[test]
fn a_mutex_on_futexes_excludes_and_loses_no_waiter() {
    for seed in 0..SEEDS {
        for (cpus, buckets) in [(1, 1), (4, 1), (4, 64)] {
            let machine = Stepped::seeded(cpus, seed);
            let t = table(buckets);
            let words: Arc<Vec<(Word, AtomicUsize, AtomicUsize)>> =
                Arc::new((0..3).map(|_| (Word(AtomicU32::new(0)), AtomicUsize::new(0), AtomicUsize::new(0))).collect());
            for i in 0..24 {
                let words = words.clone();
                machine.start(&format!("t{i}"), move || {
                    for round in 0..ROUNDS {
                        let (word, inside, count) = &words[(i + round) % 3];
                        lock(word, machine, t);
                        assert_eq!(inside.fetch_add(1, SeqCst), 0, "two threads hold the lock");
                        machine.poll();
                        count.fetch_add(1, SeqCst);
                        inside.fetch_sub(1, SeqCst);
                        unlock(word, machine, t);
                    }
                });
            }
            machine.finish();
            assert_eq!(words.iter().map(|w| w.2.load(SeqCst)).sum::<usize>(), 24 * ROUNDS);
        }
    }
}

#[test]
fn urgent_waiters_wake_first_and_equal_ones_in_the_order_of_their_waits() {
    for seed in 0..SEEDS {
        for moved in [false, true] {
            let machine = Stepped::seeded(2, seed);
            let t = table(1);
            let words: Arc<[Word; 2]> = Arc::new([Word(AtomicU32::new(0)), Word(AtomicU32::new(0))]);
            let order = Arc::new(Mutex::new(Vec::new()));
            let urgencies = [0, 7, 0, 99, 7, 1, 0, 99, 50];
            let (in_order, from) = (order.clone(), words.clone());
            machine.start("waker", move || {
                let s = machine.scheduler();
                s.set_class(&s.current(), Class::Fifo(1), false);
                for (n, urgency) in urgencies.into_iter().enumerate() {
                    let (order, word) = (in_order.clone(), from.clone());
                    let waiter = machine.start(&format!("w{n}"), move || {
                        let s = machine.scheduler();
                        if urgency > 0 {
                            s.set_class(&s.current(), Class::Fifo(urgency), false);
                        }
                        assert_eq!(word[0].wait(machine, t, 0, ANY, None), FutexWait::Woken);
                        order.lock().unwrap().push((n, urgency));
                    });
                    while waiter.is_runnable() {
                        s.park(Some(machine.now() + 100_000));
                    }
                }
                let at = if moved {
                    let mut same = || Ok::<_, Infallible>(true);
                    let done = t.requeue(s, from[0].key(), from[1].key(), 0, usize::MAX, &mut same).unwrap().unwrap();
                    assert_eq!(done, Some((0, urgencies.len())));
                    &from[1]
                } else {
                    &from[0]
                };
                for woken in 1..=urgencies.len() {
                    assert_eq!(t.wake(s, at.key(), 1, ANY), Ok(1));
                    while in_order.lock().unwrap().len() < woken {
                        s.park(Some(machine.now() + 100_000));
                    }
                }
            });
            machine.finish();
            let mut expected: Vec<(usize, u8)> = urgencies.into_iter().enumerate().collect();
            expected.sort_by_key(|(_, urgency)| core::cmp::Reverse(*urgency));
            assert_eq!(*order.lock().unwrap(), expected, "moved: {moved}");
        }
    }
}

#[test]
fn a_storm_of_timed_waits_and_wakes_loses_no_waiter() {
    for seed in 0..SEEDS {
        let machine = Stepped::seeded(4, seed);
        let t = table(4);
        let words: Arc<Vec<Word>> = Arc::new((0..8).map(|_| Word(AtomicU32::new(0))).collect());
        let (woken, timed) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        for i in 0..40usize {
            let (words, woken, timed) = (words.clone(), woken.clone(), timed.clone());
            machine.start(&format!("t{i}"), move || {
                for round in 0..60usize {
                    let word = &words[(i * 7 + round) % 8];
                    if (i + round) % 3 == 0 {
                        word.0.fetch_add(1, SeqCst);
                        t.wake(machine.scheduler(), word.key(), 2, ANY).unwrap();
                    } else {
                        let value = word.0.load(SeqCst);
                        let deadline = machine.now() + 200_000 + (i as u64 * 37 % 11) * 50_000;
                        match word.wait(machine, t, value, ANY, Some(deadline)) {
                            FutexWait::Woken => drop(woken.fetch_add(1, SeqCst)),
                            FutexWait::TimedOut => {
                                assert!((deadline..=deadline + LATE).contains(&machine.now()), "with seed {seed}");
                                timed.fetch_add(1, SeqCst);
                            }
                            FutexWait::Differs => {}
                            FutexWait::Interrupted => panic!("a wait was interrupted"),
                        }
                    }
                    machine.poll();
                }
            });
        }
        machine.finish();
        assert!(woken.load(SeqCst) > 0 && timed.load(SeqCst) > 0);
    }
}

#[test]
fn the_word_is_compared_first_and_its_error_passes_through() {
    let machine = Stepped::new(1);
    let t = table(1);
    machine.start("t", move || {
        let w = Word(AtomicU32::new(5));
        assert_eq!(w.wait(machine, t, 4, ANY, None), FutexWait::Differs);
        let out = t.wait(machine.scheduler(), w.key(), ANY, None, &mut || Err("fault"), &mut || false);
        assert_eq!(out, Err("fault"));
        let out = t.wait(machine.scheduler(), w.key(), ANY, None, &mut || Ok::<_, ()>(true), &mut || true);
        assert_eq!(out, Ok(FutexWait::Interrupted));
        assert_eq!(t.wake(machine.scheduler(), w.key(), 9, ANY), Ok(0), "no waiter is left on the list");
    });
    machine.finish();
}

fn wait_until(machine: &Stepped, condition: impl Fn() -> bool) {
    while !condition() {
        machine.scheduler().park(Some(machine.now() + 100_000));
    }
}

#[test]
fn bitsets_choose_and_order_is_first_come_first_woken() {
    for seed in 0..SEEDS {
        let machine = Stepped::seeded(2, seed);
        let t = table(1);
        let w = Arc::new(Word(AtomicU32::new(0)));
        let (asleep, order) = (Arc::new(AtomicU32::new(0)), Arc::new(std::sync::Mutex::new(Vec::new())));
        for i in 0..6u32 {
            let (w, asleep, order) = (w.clone(), asleep.clone(), order.clone());
            machine.start(&format!("t{i}"), move || {
                wait_until(machine, || asleep.load(SeqCst) == i);
                let mut same = || {
                    asleep.fetch_add(1, SeqCst);
                    Ok::<_, Infallible>(true)
                };
                let out = t.wait(machine.scheduler(), w.key(), 1 << (i % 2), None, &mut same, &mut || false);
                assert_eq!(out, Ok(FutexWait::Woken));
                order.lock().unwrap().push(i);
            });
        }
        machine.start("waker", move || {
            wait_until(machine, || asleep.load(SeqCst) == 6);
            let s = machine.scheduler();
            let mut n = 0;
            for (most, bits, expect) in [(1, 2, 1), (2, 1, 2), (9, 2, 2), (9, ANY, 1), (9, ANY, 0)] {
                assert_eq!(t.wake(s, w.key(), most, bits), Ok(expect));
                n += expect;
                wait_until(machine, || order.lock().unwrap().len() == n);
            }
            let mut seen = order.lock().unwrap().clone();
            seen[1..3].sort();
            seen[3..5].sort();
            assert_eq!(seen, [1, 0, 2, 3, 5, 4]);
        });
        machine.finish();
    }
}

#[test]
fn requeue_moves_the_rest_and_compares_first() {
    for seed in 0..SEEDS {
        for buckets in [1, 64] {
            let machine = Stepped::seeded(2, seed);
            let t = table(buckets);
            let (from, to) = (Arc::new(Word(AtomicU32::new(0))), Arc::new(Word(AtomicU32::new(0))));
            let (asleep, awake) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let timed = Arc::new(AtomicUsize::new(0));
            for i in 0..40 {
                let (from, asleep, awake, timed) = (from.clone(), asleep.clone(), awake.clone(), timed.clone());
                machine.start(&format!("t{i}"), move || {
                    let mut same = || {
                        asleep.fetch_add(1, SeqCst);
                        Ok::<_, Infallible>(true)
                    };
                    let s = machine.scheduler();
                    // Some waiters time out while they are requeued.
                    let deadline = (i % 8 == 7).then(|| machine.now() + 3_000_000 + seed * 50_000);
                    match t.wait(s, from.key(), ANY, deadline, &mut same, &mut || false).unwrap() {
                        FutexWait::Woken => drop(awake.fetch_add(1, SeqCst)),
                        out => assert_eq!((out, timed.fetch_add(1, SeqCst) < 5), (FutexWait::TimedOut, true)),
                    }
                });
            }
            machine.start("waker", move || {
                let s = machine.scheduler();
                wait_until(machine, || asleep.load(SeqCst) == 40);
                let mut no = || Ok::<_, Infallible>(false);
                assert_eq!(t.requeue(s, from.key(), to.key(), 1, 9, &mut no), Ok(Ok(None)));
                let mut yes = || Ok::<_, Infallible>(true);
                assert_eq!(t.requeue(s, from.key(), to.key(), 20, 10, &mut yes), Ok(Ok(Some((20, 10)))));
                wait_until(machine, || awake.load(SeqCst) == 20);
                // With some seeds, waiters of both queues time out during this time.
                machine.spin(seed * 400_000);
                let left = timed.load(SeqCst);
                let moved = t.wake(s, to.key(), usize::MAX, ANY).unwrap();
                let rest = t.wake(s, from.key(), usize::MAX, ANY).unwrap();
                assert!(moved <= 10 && moved + rest + left == 20, "{moved} and {rest} woken, {left} timed out");
                wait_until(machine, || awake.load(SeqCst) == 20 + moved + rest);
            });
            machine.finish();
        }
    }
}

#[test]
fn a_table_is_sized_to_the_memory() {
    assert_eq!(FutexTable::<Stepped>::buckets_for(0), 64);
    assert_eq!(FutexTable::<Stepped>::buckets_for(512 << 20), 16384);
    assert_eq!(FutexTable::<Stepped>::buckets_for(1 << 50), 1 << 20);
    assert_eq!(FutexTable::<Stepped>::bytes(64), 64 * 64);
}

/// The number of keys, which is greater than the number of buckets of the smaller table.
const KEYS: u64 = 5;

#[derive(Clone, Copy, Debug)]
enum Step {
    Wait(u64, u32),
    /// A wait that does not sleep: the word differs, or, if true, the deadline has passed.
    Pass(u64, bool),
    Wake(u64, usize, u32),
    Requeue(u64, u64, usize, usize),
    /// A waiter is interrupted.
    Leave(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let bits = || prop_oneof![2 => Just(ANY), 1 => 1..4u32];
    // `usize::MAX` also wakes more threads than fit in one batch.
    let most = || prop_oneof![3 => 0..4usize, 1 => Just(usize::MAX)];
    prop_oneof![
        8 => (0..KEYS, bits()).prop_map(|(k, b)| Step::Wait(k, b)),
        1 => (0..KEYS, any::<bool>()).prop_map(|(k, late)| Step::Pass(k, late)),
        2 => (0..KEYS, most(), bits()).prop_map(|(k, n, b)| Step::Wake(k, n, b)),
        2 => (0..KEYS, 0..KEYS, most(), most()).prop_map(|(a, b, n, m)| Step::Requeue(a, b, n, m)),
        1 => any::<usize>().prop_map(Step::Leave),
    ]
}

/// The model: for each key a queue of waiters and their bitsets, the longest waiting first.
#[derive(Default)]
struct Queues(BTreeMap<u64, Vec<(usize, u32)>>);

impl Queues {
    fn wake(&mut self, key: u64, most: usize, bits: u32) -> Vec<usize> {
        let mut woken = Vec::new();
        self.0.entry(key).or_default().retain(|(id, b)| {
            let chosen = woken.len() < most && b & bits != 0;
            woken.extend(chosen.then_some(*id));
            !chosen
        });
        woken
    }
    fn requeue(&mut self, from: u64, to: u64, most: usize) -> usize {
        let queue = self.0.entry(from).or_default();
        let moved: Vec<_> = queue.drain(..if from == to { 0 } else { most.min(queue.len()) }).collect();
        self.0.entry(to).or_default().extend(&moved);
        moved.len()
    }
    /// Removes the nth of all waiters.
    fn leave(&mut self, n: usize) -> Option<usize> {
        let all: Vec<usize> = self.0.values().flatten().map(|w| w.0).collect();
        let id = *all.get(n.checked_rem(all.len())?)?;
        self.0.values_mut().for_each(|queue| queue.retain(|w| w.0 != id));
        Some(id)
    }
}

/// Executes `steps` on a machine with one CPU, and compares the results with the model.
fn follow(machine: &'static Stepped, t: &'static FutexTable<Stepped>, steps: &[Step]) {
    let s = machine.scheduler();
    let word = |k: u64| (7, 4096 + 4 * k);
    let mut queues = Queues::default();
    // The waiters whose waits have returned, and the results.
    let ended: Arc<Mutex<Vec<(usize, FutexWait)>>> = Arc::default();
    let mut waiters: Vec<(ThreadRef<Stepped>, Arc<AtomicBool>)> = Vec::new();
    let settled = |mut wanted: Vec<(usize, FutexWait)>| {
        wanted.sort_by_key(|w| w.0);
        machine.until(|| ended.lock().unwrap().len() >= wanted.len());
        let mut got = std::mem::take(&mut *ended.lock().unwrap());
        got.sort_by_key(|w| w.0);
        assert_eq!(got, wanted);
    };
    let all_woken = |ids: Vec<usize>| settled(ids.into_iter().map(|id| (id, FutexWait::Woken)).collect());
    let last = (0..KEYS).map(|k| Step::Wake(k, usize::MAX, ANY));
    for step in steps.iter().copied().chain(last) {
        match step {
            Step::Wait(key, bits) => {
                let (id, asleep, stop) =
                    (waiters.len(), Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
                let (own, interrupted, ended) = (asleep.clone(), stop.clone(), ended.clone());
                let thread = machine.start(&format!("t{id}"), move || {
                    let mut same = || {
                        own.store(true, SeqCst);
                        Ok::<_, Infallible>(true)
                    };
                    let out = t.wait(s, word(key), bits, None, &mut same, &mut || interrupted.load(SeqCst));
                    ended.lock().unwrap().push((id, out.unwrap()));
                });
                waiters.push((thread, stop));
                // The machine has one CPU, so the new thread runs until it sleeps.
                machine.until(|| asleep.load(SeqCst));
                queues.0.entry(key).or_default().push((id, bits));
            }
            Step::Pass(key, late) => {
                let mut same = || Ok::<_, Infallible>(late);
                let out = t.wait(s, word(key), ANY, Some(0), &mut same, &mut || false);
                assert_eq!(out, Ok(if late { FutexWait::TimedOut } else { FutexWait::Differs }));
            }
            Step::Wake(key, most, bits) => {
                let woken = queues.wake(key, most, bits);
                assert_eq!(t.wake(s, word(key), most, bits), Ok(woken.len()));
                all_woken(woken);
            }
            Step::Requeue(from, to, wake, requeue) => {
                let woken = queues.wake(from, wake, ANY);
                let moved = queues.requeue(from, to, requeue);
                let mut same = || Ok::<_, Infallible>(true);
                let out = t.requeue(s, word(from), word(to), wake, requeue, &mut same);
                assert_eq!(out, Ok(Ok(Some((woken.len(), moved)))));
                all_woken(woken);
            }
            Step::Leave(n) => {
                let Some(id) = queues.leave(n) else { continue };
                waiters[id].1.store(true, SeqCst);
                s.unpark(&waiters[id].0);
                settled(vec![(id, FutexWait::Interrupted)]);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn waits_and_wakes_match_a_queue_for_each_key(
        buckets in prop_oneof![Just(1usize), Just(64)],
        steps in prop::collection::vec(step(), 1..60),
        seed in 0..1000u64,
    ) {
        let machine = Stepped::seeded(1, seed);
        let t = table(buckets);
        machine.start("driver", move || follow(machine, t, &steps));
        machine.finish();
    }
}
