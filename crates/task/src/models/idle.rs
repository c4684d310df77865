//! The idle set: CPUs that become idle, against wakers that search for an idle CPU.

use super::machine::with_memory;
use crate::scheduler::idle::IdleCpus;
use quire_sync::cpuset::CpuMask;
use quire_sync::explore::thread;
use quire_sync::hooks::threads::set_cpu;
use quire_sync::protocol;
use std::ptr;

/// A CPU that was idle recently becomes idle again, while a waker searches for an idle CPU.
fn idle_against_search() {
    with_memory(IdleCpus::bytes(2), |memory| {
        // SAFETY: the memory lives as long as the threads, which end in this function.
        let idle = unsafe { IdleCpus::new(memory, 2) };
        // SAFETY: the threads that use the reference end in this function, before `idle` does.
        let idle: &'static IdleCpus = unsafe { &*ptr::from_ref(&idle) };
        let all = CpuMask::first(2);
        idle.insert(1);
        assert!(idle.take(1));
        let t = thread::spawn(move || {
            set_cpu(0);
            idle.take_any(0, &all)
        });
        set_cpu(1);
        idle.insert(1);
        let first = t.join().unwrap();
        let then = idle.take_any(0, &all);
        assert_eq!(first.or(then), Some(1), "an idle CPU is not found");
        assert_ne!(first, then, "an idle CPU is taken twice");
    });
}

protocol! {
    a_cpu_that_is_idle_again_is_found_by_one = idle_against_search, Some(3);
    ForgetNoLook: "an idle CPU is not found";
    #[cfg(loom)]
    IdleNoFence: "an idle CPU is not found";
}
