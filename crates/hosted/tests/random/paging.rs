//! Memory that is short: a swap store, the daemons on CPUs of their own, and what must be left at the end.

use quire_hosted::{Cpu, Simulate, Simulated};
use quire_vm::daemon::Daemon;
use quire_vm::memory_store::{FaultPlan, MemoryStore};
use quire_vm::stats::Event;
use quire_vm::{PAGE_SIZE, Vm};
use std::ptr::NonNull;
use std::thread::JoinHandle;

/// A store that does everything at once.
pub const PROMPT: FaultPlan = FaultPlan { delay: 0, pause: 0, fail_reads: 0, fail_writes: 0, window: 0, seed: 1 };

/// Each on a CPU of its own.
pub const DAEMONS: [Daemon; 2] = [Daemon::Completion, Daemon::Pageout];

/// Frames kept back for the core's own structures.
pub const RESERVE: u64 = 64;

/// Slots: more than all spaces together can hold.
const SLOTS: u64 = 64 * 1024;

/// Frames of a machine whose memory is overcommitted about four times by [`MUCH`](crate::world::MUCH) on `cpus` CPUs.
pub const fn frames(cpus: usize) -> u64 {
    // Tables, the core's own structures and what sits in magazines take about half.
    450 + 120 * cpus as u64
}

/// Gives `vm` a swap store.
pub fn add_swap<F: Simulate>(vm: &'static Vm<Simulated<F>>, bad: FaultPlan) -> &'static MemoryStore {
    let bytes = memmap2::MmapMut::map_anon((SLOTS * PAGE_SIZE) as usize).expect("the host gives memory for swap");
    let at = NonNull::new(Box::leak(Box::new(bytes)).as_mut_ptr()).expect("not null");
    // SAFETY: leaked, and nobody else's.
    let store = Box::leak(Box::new(unsafe { MemoryStore::new(at, SLOTS, bad) }));
    vm.add_polled_swap(store).expect("there is no other swap");
    store
}

/// Starts the daemons on the CPUs from `first` on.
pub fn start_daemons<F: Simulate>(vm: &'static Vm<Simulated<F>>, first: usize) -> Vec<JoinHandle<()>> {
    let start = |(i, daemon)| {
        std::thread::spawn(move || {
            let _cpu = Cpu::attach(vm, first + i);
            vm.daemon_run(daemon);
        })
    };
    DAEMONS.into_iter().enumerate().map(start).collect()
}

/// Pages in memory and in swap now.
pub fn demand<F: Simulate>(vm: &'static Vm<Simulated<F>>) -> u64 {
    let swap = vm.swap();
    // What is free is a sum over moving parts: while others run it may come out too large.
    swap.total() - swap.free() + vm.frames().total().saturating_sub(vm.frames().free())
}

/// Ends the daemons.
pub fn stop_daemons<F: Simulate>(vm: &'static Vm<Simulated<F>>, daemons: Vec<JoinHandle<()>>) {
    vm.stop_daemons();
    for daemon in daemons {
        daemon.join().expect("no daemon fails");
    }
}

/// Everything that was in swap has gone with the spaces.
pub fn finish<F: Simulate>(vm: &'static Vm<Simulated<F>>, swap: &MemoryStore, peak: u64) {
    let total = |e| vm.stats().total(e);
    println!(
        "{} frames, {peak} pages at the peak; {} pages out, {} in, {} freed, {} writes failed; {} passes; {:?}",
        vm.frames().total(),
        total(Event::SwapOut),
        total(Event::SwapIn),
        total(Event::Steal),
        total(Event::WriteFailed),
        vm.pageout().passes(),
        swap.counts(),
    );
    assert!(2 * peak > 3 * vm.frames().total(), "memory is overcommitted");
    vm.finish_io(&mut quire_vm::sleep::MaySleep::here());
    vm.queues().check(true).expect("the queues' invariants hold");
    assert_eq!(vm.swap().free(), vm.swap().total(), "swap slots are lost");
}
