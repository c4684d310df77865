//! Real-time threads on a simulated machine.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::undocumented_unsafe_blocks)] // all memory is the test's own
mod simulated;

use quire_sync::cpuset::CpuMask;
use quire_task::{Bound, Class, ThreadRef};
use simulated::{Sim, fair_once};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Real-time threads of `sim` may take all CPU time, so that a thread that the host suspends is not bounded.
fn unbounded(sim: &Sim) {
    sim.scheduler().set_bound(Bound { runtime: Bound::USUAL.period, ..Bound::USUAL });
}

/// Threads that spin until the flag is up, one on each CPU.
fn hogs(sim: &'static Sim, cpus: usize, class: Class, stop: &Arc<AtomicBool>) -> Arc<AtomicUsize> {
    let running = Arc::new(AtomicUsize::new(0));
    for cpu in 0..cpus {
        let (stop, counted) = (stop.clone(), running.clone());
        sim.spawn_at(Some(cpu), &format!("hog{cpu}"), move || {
            let s = sim.scheduler();
            s.set_affinity(&s.current(), &CpuMask::only(cpu));
            s.set_class(&s.current(), class, false);
            counted.fetch_add(1, SeqCst);
            while !stop.load(SeqCst) {
                sim.poll();
            }
        });
    }
    running
}

fn until(sim: &Sim, done: impl Fn() -> bool) {
    while !done() {
        sim.poll();
    }
}

#[test]
fn woken_threads_run_in_the_order_of_their_priorities() {
    let sim = Sim::new(1);
    unbounded(sim);
    let order = Arc::new(Mutex::new(Vec::new()));
    let sleepers: Arc<Mutex<Vec<ThreadRef<Sim>>>> = Arc::default();
    for priority in [0, 3, 99, 50, 1] {
        let order = order.clone();
        let thread = sim.spawn(&format!("p{priority}"), move || {
            let s = sim.scheduler();
            s.set_affinity(&s.current(), &CpuMask::only(0));
            s.park(None);
            order.lock().unwrap().push(priority);
        });
        sleepers.lock().unwrap().push(thread);
    }
    let woken = order.clone();
    sim.spawn("waker", move || {
        let s = sim.scheduler();
        s.set_class(&s.current(), Class::Fifo(60), false);
        let sleepers = sleepers.lock().unwrap();
        for (thread, priority) in sleepers.iter().zip([0, 3, 99, 50, 1]) {
            until(sim, || {
                !thread.is_runnable() || {
                    s.park(Some(quire_task::Machine::now(sim) + 1_000_000));
                    !thread.is_runnable()
                }
            });
            if priority > 0 {
                s.set_class(thread, Class::Fifo(priority), false);
            }
        }
        for thread in sleepers.iter() {
            s.unpark(thread);
            sim.poll();
        }
        assert_eq!(*woken.lock().unwrap(), [99], "only a more urgent thread preempts");
    });
    sim.finish();
    assert_eq!(*order.lock().unwrap(), [99, 50, 3, 1, 0]);
}

#[test]
fn a_woken_thread_preempts_the_least_urgent_cpu_that_it_may_use() {
    let sim = Sim::new(2);
    unbounded(sim);
    let stop = Arc::new(AtomicBool::new(false));
    let running = hogs(sim, 2, Class::Normal, &stop);
    let ran_on = Arc::new(Mutex::new(Vec::new()));
    let runs = ran_on.clone();
    let sleeper = sim.spawn("sleeper", move || {
        let s = sim.scheduler();
        s.set_class(&s.current(), Class::Fifo(10), false);
        for _ in 0..2 {
            s.park(None);
            runs.lock().unwrap().push(s.current().home());
        }
    });
    sim.spawn_at(Some(0), "spinner", move || {
        let s = sim.scheduler();
        s.set_affinity(&s.current(), &CpuMask::only(0));
        until(sim, || running.load(SeqCst) == 2 && !sleeper.is_runnable());
        // CPU 0 runs a more urgent thread from now on: this one.
        s.set_class(&s.current(), Class::Fifo(20), false);
        for (round, allowed) in [CpuMask::first(2), CpuMask::only(1)].into_iter().enumerate() {
            s.set_affinity(&sleeper, &allowed);
            s.unpark(&sleeper);
            until(sim, || ran_on.lock().unwrap().len() > round);
            assert_eq!(ran_on.lock().unwrap()[round], 1, "it does not wait for CPU 0");
            until(sim, || round == 1 || !sleeper.is_runnable());
        }
        stop.store(true, SeqCst);
    });
    sim.finish();
}

#[test]
fn a_thread_that_spins_cannot_take_a_cpu_for_ever() {
    // A tenth of 400 ms, on a host that runs other tests too.
    fair_once(time_beside_a_realtime_hog, |spent| (15..200).contains(&spent.as_millis()));
}

/// The CPU time of a normal thread in 400 ms, beside a real-time thread that may take nine tenths.
fn time_beside_a_realtime_hog() -> Duration {
    let sim = Sim::new(1);
    sim.scheduler().set_bound(Bound { runtime: 18_000_000, period: 20_000_000, turn: 5_000_000 });
    let stop = Arc::new(AtomicBool::new(false));
    let running = hogs(sim, 1, Class::Fifo(99), &stop);
    let spent = Arc::new(Mutex::new(Duration::ZERO));
    let of_normal = spent.clone();
    sim.spawn("normal", move || {
        until(sim, || running.load(SeqCst) == 1);
        let (start, s) = (Instant::now(), sim.scheduler());
        let before = s.times(&s.current()).system_ns;
        until(sim, || start.elapsed() > Duration::from_millis(400));
        *of_normal.lock().unwrap() = Duration::from_nanos(s.times(&s.current()).system_ns - before);
        stop.store(true, SeqCst);
    });
    sim.finish();
    *spent.lock().unwrap()
}

#[test]
fn a_class_that_changes_while_the_thread_waits_takes_effect_at_once() {
    let sim = Sim::new(1);
    unbounded(sim);
    let stop = Arc::new(AtomicBool::new(false));
    let running = hogs(sim, 1, Class::Normal, &stop);
    let ran = Arc::new(AtomicBool::new(false));
    let runs = ran.clone();
    sim.spawn("spinner", move || {
        let s = sim.scheduler();
        until(sim, || running.load(SeqCst) == 1);
        s.set_class(&s.current(), Class::Fifo(5), false);
        let other = sim.spawn("waiting", move || runs.store(true, SeqCst));
        for _ in 0..1000 {
            sim.poll();
        }
        assert!(!ran.load(SeqCst), "a thread of another class waits");
        s.set_class(&other, Class::RoundRobin(5), false);
        sim.poll();
        assert!(!ran.load(SeqCst), "a thread of the same priority waits");
        s.set_class(&other, Class::RoundRobin(6), false);
        sim.poll();
        assert!(ran.load(SeqCst), "a more urgent thread runs");
        stop.store(true, SeqCst);
        s.set_class(&s.current(), Class::Normal, false);
    });
    sim.finish();
}
