//! Real-time threads on a machine in virtual time.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::undocumented_unsafe_blocks)] // all memory is the test's own
mod stepped;

use quire_sync::cpuset::CpuMask;
use quire_task::{Bound, Class, ThreadRef};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use stepped::{Does, Stepped};

const MS: u64 = 1_000_000;
const SEEDS: u64 = 20;

/// Starts threads that run until the flag is set, one on each CPU. Returns the count of the threads that run.
fn hogs(machine: &'static Stepped, cpus: usize, class: Class, stop: &Arc<AtomicBool>) -> Arc<AtomicUsize> {
    let running = Arc::new(AtomicUsize::new(0));
    for cpu in 0..cpus {
        let (stop, counted) = (stop.clone(), running.clone());
        machine.start_at(Some(cpu), &format!("hog{cpu}"), move || {
            let s = machine.scheduler();
            s.set_affinity(&s.current(), &CpuMask::only(cpu));
            s.set_class(&s.current(), class, false);
            counted.fetch_add(1, SeqCst);
            while !stop.load(SeqCst) {
                machine.poll();
            }
        });
    }
    running
}

/// Executes until `done` returns true, without a yield.
fn until(machine: &Stepped, done: impl Fn() -> bool) {
    while !done() {
        machine.poll();
    }
}

#[test]
fn woken_threads_run_in_the_order_of_their_priorities() {
    for seed in 0..SEEDS {
        let machine = Stepped::seeded(1, seed);
        let order = Arc::new(Mutex::new(Vec::new()));
        let sleepers: Arc<Mutex<Vec<ThreadRef<Stepped>>>> = Arc::default();
        for priority in [0, 3, 99, 50, 1] {
            let order = order.clone();
            let thread = machine.start(&format!("p{priority}"), move || {
                machine.scheduler().park(None);
                order.lock().unwrap().push(priority);
            });
            sleepers.lock().unwrap().push(thread);
        }
        let woken = order.clone();
        machine.start("waker", move || {
            let s = machine.scheduler();
            s.set_class(&s.current(), Class::Fifo(60), false);
            let sleepers = sleepers.lock().unwrap();
            for (thread, priority) in sleepers.iter().zip([0, 3, 99, 50, 1]) {
                while thread.is_runnable() {
                    s.park(Some(machine.time() + MS));
                }
                if priority > 0 {
                    s.set_class(thread, Class::Fifo(priority), false);
                }
            }
            for thread in sleepers.iter() {
                s.unpark(thread);
                machine.poll();
            }
            assert_eq!(*woken.lock().unwrap(), [99], "only a more urgent thread preempts");
        });
        machine.finish();
        assert_eq!(*order.lock().unwrap(), [99, 50, 3, 1, 0]);
    }
}

#[test]
fn a_woken_thread_preempts_the_least_urgent_cpu_that_it_may_use() {
    for seed in 0..SEEDS {
        let machine = Stepped::seeded(2, seed);
        let stop = Arc::new(AtomicBool::new(false));
        let running = hogs(machine, 2, Class::Normal, &stop);
        let ran_on = Arc::new(Mutex::new(Vec::new()));
        let runs = ran_on.clone();
        let sleeper = machine.start("sleeper", move || {
            let s = machine.scheduler();
            s.set_class(&s.current(), Class::Fifo(10), false);
            for _ in 0..2 {
                s.park(None);
                runs.lock().unwrap().push((quire_sync::current_cpu(), machine.time()));
            }
        });
        machine.start_at(Some(0), "spinner", move || {
            let s = machine.scheduler();
            s.set_affinity(&s.current(), &CpuMask::only(0));
            until(machine, || running.load(SeqCst) == 2 && !sleeper.is_runnable());
            // This thread becomes more urgent than the sleeper, so CPU 0 runs a more urgent thread from now on.
            s.set_class(&s.current(), Class::Fifo(20), false);
            for (round, allowed) in [CpuMask::first(2), CpuMask::only(1)].into_iter().enumerate() {
                s.set_affinity(&sleeper, &allowed);
                let woken = machine.time();
                s.unpark(&sleeper);
                until(machine, || ran_on.lock().unwrap().len() > round);
                let (cpu, at) = ran_on.lock().unwrap()[round];
                assert_eq!(cpu, 1, "it does not wait for CPU 0");
                assert!(at - woken <= 10_000, "{} ns until it ran", at - woken);
                until(machine, || round == 1 || !sleeper.is_runnable());
            }
            stop.store(true, SeqCst);
        });
        machine.finish();
    }
}

#[test]
fn a_thread_that_spins_cannot_take_a_cpu_for_ever() {
    let machine = Stepped::new(1);
    let (period, rest) = (20 * MS, 2 * MS);
    machine.scheduler().set_bound(Bound { runtime: period - rest, period, turn: 5_000_000 });
    let hog = machine.spawn(0, None, 0, Does::Runs);
    machine.set_class(&hog, Class::Fifo(99));
    let normal = machine.spawn(0, None, 0, Does::Runs);
    let had = || normal.payload().ran.get();
    // The windows of the bound begin when the thread becomes real-time.
    machine.run(period);
    for round in 0..200 {
        let before = had();
        machine.run(period);
        assert_eq!(had() - before, rest, "in period {round}");
    }
    machine.scheduler().set_bound(Bound { runtime: period, period, turn: 5_000_000 });
    machine.run(2 * period);
    let before = had();
    machine.run(1000 * period);
    assert_eq!(had(), before, "without a bound, the most urgent thread has all the time");
}

#[test]
fn a_class_that_changes_while_the_thread_waits_takes_effect_at_once() {
    for seed in 0..SEEDS {
        let machine = Stepped::seeded(1, seed);
        let stop = Arc::new(AtomicBool::new(false));
        let running = hogs(machine, 1, Class::Normal, &stop);
        let ran = Arc::new(AtomicBool::new(false));
        let runs = ran.clone();
        machine.start("spinner", move || {
            let s = machine.scheduler();
            until(machine, || running.load(SeqCst) == 1);
            s.set_class(&s.current(), Class::Fifo(5), false);
            let other = machine.start("waiting", move || runs.store(true, SeqCst));
            for _ in 0..100 {
                machine.spin(MS / 10);
            }
            assert!(!ran.load(SeqCst), "a thread of another class waits");
            s.set_class(&other, Class::RoundRobin(5), false);
            machine.spin(10 * MS);
            assert!(!ran.load(SeqCst), "a thread of the same priority waits");
            s.set_class(&other, Class::RoundRobin(6), false);
            machine.poll();
            assert!(ran.load(SeqCst), "a more urgent thread runs");
            stop.store(true, SeqCst);
            s.set_class(&s.current(), Class::Normal, false);
        });
        machine.finish();
    }
}
