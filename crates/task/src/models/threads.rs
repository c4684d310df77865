//! Parking, the switch to another thread, stealing, and CPUs that become idle.

use super::machine::{A, Cast, make_b};
use quire_sync::atomic::{AtomicBool, Ordering};
use quire_sync::explore::Arc;
use quire_sync::protocol;

/// A thread sleeps until a flag is set. The other CPU sets the flag before it wakes the thread.
fn park_against_wake() {
    let flag = Arc::new(AtomicBool::new(false));
    let seen = flag.clone();
    let cast = Cast::new().interrupt(1, move |machine, s| {
        seen.store(true, Ordering::Relaxed);
        s.unpark(machine.thread(A));
    });
    cast.run(|_, s| {
        while !flag.load(Ordering::Relaxed) {
            s.park(None);
        }
    });
}

protocol! {
    a_thread_that_parks_is_always_woken_and_runs_on_one_cpu = park_against_wake, Some(2);
    ParkOverToken: "a wake-up was lost";
    PlaceBeforeLeft: "two CPUs";
    QueueWithoutKick: "a wake-up was lost";
}

/// A thread yields to another on its CPU, while the other CPU has nothing to do.
fn steal_against_switch() {
    Cast::new().b(|_, _| ()).run(|machine, s| {
        make_b(machine, s, 0);
        s.yield_now();
    });
}

protocol! {
    a_thread_is_stolen_once_it_has_left_its_cpu = steal_against_switch, Some(2);
    StealBeforeLeft: "two CPUs";
    #[cfg(loom)]
    LeftRelaxed: "two CPUs";
}

/// A busy thread makes another thread runnable on its own CPU and does not yield. A CPU that is idle, or about to be,
/// must steal that thread.
fn offer_against_idle() {
    let done = Arc::new(AtomicBool::new(false));
    let finish = done.clone();
    Cast::new().b(move |_, _| finish.store(true, Ordering::Release)).run(|machine, s| {
        make_b(machine, s, 0);
        machine.wait_busily(|| done.load(Ordering::Acquire));
    });
}

protocol! {
    a_thread_that_waits_is_taken_by_a_cpu_that_goes_idle = offer_against_idle, Some(2);
    LookBeforeIdle: "a wake-up was lost";
    #[cfg(loom)]
    IdleNoFence: "a wake-up was lost";
    #[cfg(loom)]
    OfferNoFence: "a wake-up was lost";
}
