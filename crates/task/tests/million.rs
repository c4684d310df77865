//! A million threads that sleep until deadlines of their own: each wakes in time, and a wake-up costs the same
//! interrupts as among a thousand.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::undocumented_unsafe_blocks)] // all memory is the test's own
mod stepped;

use quire_task::ThreadRef;
use stepped::{Does, Stepped};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// Between two wake-ups of the machine.
const EVERY: u64 = MS / 2;
/// The work of a wake-up.
const WORK: u64 = 5 * US;

/// `count` threads wake by turns, 2,000 times a second in all, once each. Returns how often a CPU set its timer, and
/// how often it interrupted another, in a thousand wake-ups.
fn by_turns(cpus: usize, count: u64) -> [u64; 2] {
    let machine = Stepped::new(cpus);
    let user = machine.user();
    let period = count * EVERY;
    let spawn = |i: u64| {
        let thread = machine.spawn(i as usize % cpus, Some(user), 0, Does::Timed { after: WORK, sleep: period - WORK });
        machine.run(EVERY);
        thread
    };
    let threads: Vec<ThreadRef<Stepped>> = (0..count).map(spawn).collect();
    let runs = || threads.iter().map(|thread| thread.payload().runs.get());
    assert!(runs().all(|n| n == 1), "a thread has not begun, or woke early");
    let before = machine.interrupts();
    machine.run(period + (period / 2).min(10 * MS));
    // A deadline is rounded to the wheel's ticks, so the first ones may come a second time.
    assert!(runs().all(|n| (2..=3).contains(&n)), "a thread missed a turn");
    let woken = runs().sum::<u64>() - count;
    assert!(woken <= count + count / 50 + 20, "{woken} wake-ups of {count} threads");
    let after = machine.interrupts();
    [0, 1].map(|i| (after[i] - before[i]) * 1000 / woken)
}

/// `count` threads whose deadlines come at one moment all run, and a thread of the kernel's share gets its turns
/// meanwhile.
fn at_once(cpus: usize, count: u64) {
    let machine = Stepped::new(cpus);
    let user = machine.user();
    let at = machine.time() + count * WORK * 4;
    let spawn = |i: u64| {
        let cpu = i as usize % cpus;
        let thread = machine.spawn(cpu, Some(user), 0, Does::Timed { after: WORK, sleep: at - machine.time() });
        machine.run(WORK);
        thread
    };
    let threads: Vec<ThreadRef<Stepped>> = (0..count).map(spawn).collect();
    let other = machine.spawn(0, None, 0, Does::Timed { after: WORK, sleep: MS });
    machine.run(at - machine.time() + MS);
    let (before, crowd) = (other.payload().runs.get(), count * WORK / cpus as u64);
    // While the crowd runs: afterwards nothing could keep the other thread from its turns.
    let part = crowd * 9 / 10;
    machine.run(part);
    let turns = other.payload().runs.get() - before;
    assert!(2 * turns >= part / MS, "{turns} turns of the other thread in {part} ns beside the crowd");
    machine.run(crowd);
    assert!(threads.iter().all(|thread| thread.payload().runs.get() >= 2), "a thread was not woken");
}

#[test]
fn a_wake_up_costs_the_same_among_a_million() {
    let (few, many) = (by_turns(64, 1 << 10), by_turns(64, 1 << 20));
    println!("{few:?} and {many:?} in a thousand wake-ups");
    assert!(many[0] <= few[0] + few[0] / 5, "a CPU sets its timer more often: {few:?} and {many:?}");
    assert!(many[1] <= few[1] + 50, "a CPU interrupts others more often: {few:?} and {many:?}");
}

#[test]
fn a_million_deadlines_at_one_moment() {
    at_once(1, 1 << 20);
    at_once(64, 1 << 16);
}

#[test]
fn one_deadline_and_none() {
    assert!(by_turns(1, 1)[0] > 0);
    let machine = Stepped::new(64);
    let before = machine.interrupts();
    machine.run(1_000_000 * MS);
    assert_eq!(machine.interrupts(), before, "an idle machine needs no interrupt");
}
