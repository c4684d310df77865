//! A million threads that each sleep until a deadline. Each thread wakes up in time, and a wake-up needs no more
//! interrupts than with a thousand threads.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::undocumented_unsafe_blocks)] // all memory is the test's own
mod stepped;

use quire_task::ThreadRef;
use stepped::{Does, Stepped};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
/// The time between two wake-ups on the machine, in nanoseconds.
const EVERY: u64 = MS / 2;
/// How long a woken thread runs, in nanoseconds.
const WORK: u64 = 5 * US;

/// Runs `count` threads that wake up one after the other, once each, with 2,000 wake-ups per second in all. Returns how
/// often CPUs programmed their timers, and how often they interrupted other CPUs, per thousand wake-ups.
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
    // Deadlines are rounded up to ticks of the timer wheel, so the run is a little longer than a period. The first
    // threads may wake up twice in it.
    assert!(runs().all(|n| (2..=3).contains(&n)), "a thread missed a turn");
    let woken = runs().sum::<u64>() - count;
    assert!(woken <= count + count / 50 + 20, "{woken} wake-ups of {count} threads");
    let after = machine.interrupts();
    [0, 1].map(|i| (after[i] - before[i]) * 1000 / woken)
}

/// Checks that `count` threads with deadlines at the same moment all run. While they run, a thread of the kernel's
/// share must run regularly.
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
    // Count only while the many threads run, because afterwards the other thread has the CPU for itself.
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
