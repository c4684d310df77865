//! Models of the requests and wake-ups between threads that wait for memory and the pageout daemon.

use super::*;
use crate::reclaim::memory_wait::Asking;
use crate::sleep::MaySleep;
use quire_sync::atomic::{AtomicBool, Ordering};

struct Memory {
    asking: Asking,
    free: AtomicBool,
    stopped: AtomicBool,
}

/// A thread waits for memory, and stops the daemon when memory is free. A pass of the daemon frees some, and then calls
/// `others` once.
fn wait_against_serve(others: fn(&AtomicBool)) {
    set_cpu(0);
    let memory = || Memory { asking: Asking::new(), free: AtomicBool::new(false), stopped: AtomicBool::new(false) };
    let here = Arc::new(memory());
    let there = here.clone();
    let daemon = thread::spawn(move || {
        set_cpu(1);
        let m = &there;
        let mut others = Some(others);
        let work = |waited_for, _: &mut MaySleep| {
            if waited_for {
                m.free.swap(true, Ordering::AcqRel);
                m.asking.pass_is_over();
                others.take().inspect(|happens| happens(&m.free));
            }
            waited_for && !m.free.load(Ordering::Acquire)
        };
        m.asking.serve(&mut MaySleep::here(), || m.stopped.load(Ordering::Acquire), || false, work);
    });
    here.asking.wait(&mut MaySleep::here(), false, || here.free.load(Ordering::Acquire));
    here.stopped.swap(true, Ordering::AcqRel);
    here.asking.wake_daemon();
    daemon.join().unwrap();
}

fn wait_for_a_pass() {
    wait_against_serve(|_| ());
}

protocol! {
    a_waiter_for_memory_is_served = wait_for_a_pass, Some(3);
    #[cfg(loom)]
    WantedForgotten: "deadlock";
}

/// Another thread allocates the memory that the pass has freed, and frees it again without a wake-up.
fn wait_for_memory_that_comes_and_goes() {
    wait_against_serve(|free| {
        free.swap(false, Ordering::AcqRel);
        free.swap(true, Ordering::AcqRel);
    });
}

protocol! {
    a_waiter_is_served_though_memory_comes_and_goes = wait_for_memory_that_comes_and_goes, Some(2);
    AskedOnce: "deadlock";
}
