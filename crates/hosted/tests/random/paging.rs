//! Too little memory: a swap store, the daemons on CPUs of their own, and the checks at the end.

use quire_hosted::{Cpu, Simulate, Simulated};
use quire_vm::paging::memory_store::{FaultPlan, MemoryStore};
use quire_vm::reclaim::daemon::Daemon;
use quire_vm::stats::Event;
use quire_vm::{PAGE_SIZE, Vm};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// A store that completes every request at once and never fails.
pub const PROMPT: FaultPlan = FaultPlan { delay: 0, pause: 0, fail_reads: 0, fail_writes: 0, window: 0, seed: 1 };

/// The daemons, each on a CPU of its own.
pub const DAEMONS: [Daemon; 2] = [Daemon::Completion, Daemon::Pageout];

/// The frames that are reserved for the core's own structures.
pub const RESERVE: u64 = 64;

/// The number of swap slots, more than all spaces together can use.
const SLOTS: u64 = 64 * 1024;

/// The frames of a machine with `cpus` CPUs and little memory. Tables, the core's own structures and the magazines use
/// about half of them.
pub const fn frames(cpus: usize) -> u64 {
    450 + 120 * cpus as u64
}

/// The pages of each lane's own program. Together these programs store to four times the number of frames.
pub const fn hoard(cpus: usize) -> usize {
    (OVERCOMMIT * frames(cpus)).div_ceil(cpus as u64) as usize
}

/// The pages in use for each frame.
const OVERCOMMIT: u64 = 4;

/// A store and its memory.
pub struct Disk {
    pub store: &'static MemoryStore,
    bytes: NonNull<u8>,
    pages: u64,
}

// SAFETY: the memory belongs to the process for ever; it is read as atomics.
unsafe impl Send for Disk {}
// SAFETY: a shared disk reaches its memory, which is never freed, through atomics only.
unsafe impl Sync for Disk {}

impl Disk {
    /// Makes an empty store with the faults `bad`.
    pub fn new(pages: u64, bad: FaultPlan) -> Disk {
        let bytes = memmap2::MmapMut::map_anon((pages * PAGE_SIZE) as usize).expect("the host gives memory for a disk");
        let bytes = NonNull::new(Box::leak(Box::new(bytes)).as_mut_ptr()).expect("not null");
        // SAFETY: the memory is leaked, so nothing else writes there.
        Disk { store: Box::leak(Box::new(unsafe { MemoryStore::new(bytes, pages, bad) })), bytes, pages }
    }

    /// Returns the first word of a page that is not being written.
    pub fn word(&self, page: u64) -> u64 {
        assert!(page < self.pages);
        // SAFETY: the word is the aligned start of a page of the store.
        unsafe { &*self.bytes.as_ptr().add((page * PAGE_SIZE) as usize).cast::<AtomicU64>() }.load(Ordering::Acquire)
    }
}

/// Makes a swap store and adds it to `vm`.
pub fn add_swap<F: Simulate>(vm: &'static Vm<Simulated<F>>, bad: FaultPlan) -> &'static MemoryStore {
    let store = Disk::new(SLOTS, bad).store;
    vm.add_polled_swap(store).expect("there is no other swap");
    store
}

/// Starts the daemons on the CPUs from `first` on.
pub fn start_daemons<F: Simulate>(vm: &'static Vm<Simulated<F>>, first: usize) -> Vec<JoinHandle<()>> {
    let start = |(i, daemon)| {
        std::thread::spawn(move || {
            let _cpu = Cpu::attach(vm, first + i).unwrap();
            vm.daemon_run(daemon);
        })
    };
    DAEMONS.into_iter().enumerate().map(start).collect()
}

/// Returns the number of pages that have a swap slot now. At least that many pages are in use.
pub fn in_swap<F: Simulate>(vm: &'static Vm<Simulated<F>>) -> u64 {
    vm.swap().total() - vm.swap().free()
}

/// Ends the daemons.
pub fn stop_daemons<F: Simulate>(vm: &'static Vm<Simulated<F>>, daemons: Vec<JoinHandle<()>>) {
    vm.stop_daemons();
    for daemon in daemons {
        daemon.join().expect("no daemon fails");
    }
}

/// Checks that memory was overcommitted all the time, with at least `least` pages in swap. Checks that all pages were
/// freed with their spaces.
pub fn finish<F: Simulate>(vm: &'static Vm<Simulated<F>>, swap: &MemoryStore, least: u64) {
    let total = |e| vm.stats().total(e);
    println!(
        "{} frames, {least} pages in swap at least; {} pages out, {} in, {} freed, {} writes failed; {} passes; {:?}",
        vm.frames().total(),
        total(Event::SwapOut),
        total(Event::SwapIn),
        total(Event::Evict),
        total(Event::WriteFailed),
        vm.pageout().passes(),
        swap.counts(),
    );
    // All pages that do not fit into memory are in swap.
    assert!(least >= (OVERCOMMIT - 1) * vm.frames().total(), "memory is not overcommitted {OVERCOMMIT} times");
    vm.finish_io(&mut quire_vm::sleep::MaySleep::here());
    vm.queues().check(true).expect("the queues' invariants hold");
    assert_eq!(vm.swap().free(), vm.swap().total(), "swap slots are lost");
}
