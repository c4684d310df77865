//! Random operations from several CPUs, checked against a model of memory's contents, with every translation checked
//! and the consistency checker on.
//!
//! Every run prints the command that repeats it. `QUIRE_SEED=n` runs with that seed. With one CPU the whole run
//! repeats, to the last event count. With more CPUs, the n-th operation of each CPU is of the same kind and uses the
//! same random numbers. But the host decides the interleaving, and so where CPUs meet (see `reproduce`).
//!
//! `QUIRE_STEPS=n` sets the operations of each CPU. `QUIRE_SOAK=n` makes every run n times as long. `QUIRE_MUTANT=Name`
//! leaves out a step of a protocol.
//!
//! All configurations together do a million operations on x86-64, and a tenth of that on RISC-V.

mod access;
mod apart;
mod memory;
#[cfg(mutants)]
mod mutants;
mod paging;
mod reproduce;
mod worker;
mod world;

use quire_hosted::{Account, Cpu, Settings, Simulate, Simulated, Sv39, X86_64};
use quire_sync::hooks::threads::set_clock;
use quire_vm::check::Level;
use quire_vm::paging::memory_store::FaultPlan;
use quire_vm::stats::Event;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};
use worker::{History, Worker};
use world::{ANYWHERE, COPIES, DISCARDS, ENDS, EVERYTHING, FRONTS, MUCH, Mix, SOURCES, STALE, World};

quire_hosted::of_each_architecture!(
    one_cpu_reads_its_own_stores,
    four_cpus_read_their_own_stores,
    eight_cpus_read_their_own_stores,
    without_pcids,
    with_little_memory,
    with_allocations_that_fail,
    faults_against_discards,
    copies_by_several_cpus,
    faults_beyond_an_end_that_moves,
    leaves_that_are_gone_and_not_flushed,
    copies_from_pages_that_other_cpus_discard,
    copies_with_dropped_leaves,
    mappings_without_an_address,
    one_cpu_with_more_than_memory_holds,
    four_cpus_with_more_than_memory_holds,
    against_a_store_that_is_late_and_out_of_order,
    against_a_store_that_fails_at_times,
    eight_cpus_with_more_than_memory_holds,
);

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn seed() -> u64 {
    let fresh = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64 % 1_000_000_007);
    from_environment("QUIRE_SEED").unwrap_or_else(fresh)
}

#[derive(Clone, Copy)]
struct Plan {
    cpus: usize,
    frames: u64,
    pcid: bool,
    /// The number of operations of each CPU.
    steps: usize,
    /// One of every `starve` allocations fails; 0: none fails.
    starve: u32,
    /// If set, pages are swapped to a store with these faults, and memory is so small that this happens.
    swap: Option<FaultPlan>,
    mix: &'static Mix,
}

/// The faults of the disk of a plan that has no swap.
const DISK: FaultPlan = FaultPlan { delay: 1, window: 3, ..paging::PROMPT };

const PLAN: Plan = Plan { cpus: 1, frames: 16_384, pcid: true, steps: 0, starve: 0, swap: None, mix: &EVERYTHING };

/// The part of a plan that runs on one architecture.
trait Reduced: Simulate {
    /// Whether CPUs that contend for a space get arenas of their own: ranges of addresses, each with its own lock.
    const ARENAS: bool;
    /// The number of operations of each CPU.
    fn part(plan: &Plan) -> usize;
}

impl Reduced for X86_64 {
    const ARENAS: bool = true;
    fn part(plan: &Plan) -> usize {
        plan.steps
    }
}

/// RISC-V runs fewer steps, because the runs of x86-64 find all errors that do not depend on the format of page tables.
impl Reduced for Sv39 {
    // User addresses of RISC-V end below the addresses of arenas.
    const ARENAS: bool = false;
    fn part(plan: &Plan) -> usize {
        // With fewer than half of the steps, memory would not be overcommitted.
        plan.steps / if plan.swap.is_some() { 2 } else { 15 }
    }
}

/// A barrier at which CPUs serve interrupts while they wait.
struct Barrier {
    missing: AtomicUsize,
}

impl Barrier {
    fn new(cpus: usize) -> Barrier {
        Barrier { missing: AtomicUsize::new(cpus) }
    }

    fn wait<F: Simulate>(&self, cpu: &Cpu<F>) {
        self.missing.fetch_sub(1, Ordering::SeqCst);
        while self.missing.load(Ordering::SeqCst) != 0 && !cpu.vm().machine().has_failed() {
            cpu.interrupts();
            std::thread::yield_now();
        }
    }
}

/// The results of a run, for comparison with another one.
#[derive(PartialEq, Eq, Debug)]
struct Outcome {
    /// The history of each CPU.
    histories: Vec<History>,
    counts: String,
    in_arenas: u64,
    /// The number of each event that the core counted.
    events: Vec<(&'static str, u64)>,
    settled: Account,
    /// The number of operations of each CPU.
    steps: usize,
}

fn run<F: Reduced>(plan: Plan) -> Outcome {
    let soak = from_environment("QUIRE_SOAK").unwrap_or(1) as usize;
    let steps = from_environment("QUIRE_STEPS").map_or(F::part(&plan) * soak, |n| n as usize);
    run_with::<F>(plan, seed(), steps)
}

fn run_with<F: Reduced>(plan: Plan, seed: u64, steps: usize) -> Outcome {
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    println!(
        "to repeat: QUIRE_SEED={seed} QUIRE_STEPS={steps} cargo test -p quire-hosted --test random -- --exact {name}"
    );
    // A run with one CPU must not depend on its speed, but the clock decides which spaces are idle. So that run has a
    // simulated clock.
    let alone = plan.cpus == 1;
    set_clock(alone.then_some(0));
    #[cfg(mutants)]
    let mutant = mutants::from_environment();
    // A run with one CPU has no daemon threads, so that it can be repeated: the CPU does the daemons' work itself.
    let daemons = if plan.swap.is_some() && plan.cpus > 1 { paging::DAEMONS.len() } else { 0 };
    let vm = Simulated::<F>::boot(Settings {
        cpus: plan.cpus + daemons,
        frames: plan.frames,
        pcid: plan.pcid,
        reserve: plan.swap.map(|_| paging::RESERVE),
        device_frames: plan.cpus as u64 * world::DEVICE_PART,
        #[cfg(mutants)]
        check: if mutant.is_some() { Level::Never } else { Level::AtRelease },
        #[cfg(not(mutants))]
        check: Level::AtRelease,
        // With few spaces, chains seldom become longer.
        layers: 3,
        ..Settings::default()
    })
    .unwrap();
    let cpu = Cpu::attach(vm, 0).unwrap();
    let swap = plan.swap.map(|bad| paging::add_swap(vm, FaultPlan { seed, ..bad }));
    let before = Account::of(vm);
    let hoard = if plan.swap.is_some() { paging::hoard(plan.cpus) } else { 0 };
    let disk = FaultPlan { seed, ..plan.swap.unwrap_or(DISK) };
    // After a CPU has failed, pages stay busy for ever. Then the world is leaked, and the run ends.
    let world = ManuallyDrop::new(World::new(&cpu, plan.cpus, 8, plan.mix, hoard, disk));
    drop(cpu);
    if plan.starve != 0 {
        vm.fail_allocations(plan.starve, seed);
    }
    #[cfg(mutants)]
    mutants::switch_on(mutant);
    let threads = (daemons > 0).then(|| paging::start_daemons(vm, plan.cpus));
    let least = AtomicU64::new(u64::MAX);
    let filled = Barrier::new(plan.cpus);
    let histories = std::thread::scope(|s| {
        let start = |id| {
            let (world, least, filled) = (&world, &least, &filled);
            // A debugger shows this name if a thread hangs.
            let named = std::thread::Builder::new().name(format!("{id} {seed}"));
            let work = move || {
                set_clock(alone.then_some(u64::MAX / 4));
                let cpu = Cpu::attach(vm, id).unwrap();
                let mut worker = Worker::new(world, &cpu, id, seed);
                worker.fill_hoard();
                filled.wait(&cpu);
                for _ in 0..steps.div_ceil(50) {
                    worker.work(50);
                    least.fetch_min(paging::in_swap(vm), Ordering::Relaxed);
                }
                worker.look_at_hoard();
                worker.history()
            };
            named.spawn_scoped(s, work).expect("a thread")
        };
        let threads: Vec<_> = (0..plan.cpus).map(start).collect();
        threads.into_iter().map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e))).collect()
    });
    // The daemons end. From here on each CPU does its own paging work.
    if let Some(threads) = threads {
        paging::stop_daemons(vm, threads);
    }
    #[cfg(mutants)]
    mutants::switch_on(None);
    vm.fail_allocation(0);
    let cpu = Cpu::attach(vm, 0).unwrap();
    set_clock(alone.then_some(u64::MAX / 2));
    println!("{:?}", world.counts);
    assert!(world.counts.accesses.load(Ordering::Relaxed) > steps as u64 / 4, "the test touches memory");
    for n in 0..world.spaces.len() {
        if let Some(model) = world.slot(n) {
            cpu.enter(&model.space).unwrap();
            for lane in 0..plan.cpus {
                Worker::new(&world, &cpu, lane, seed).look_at_all(&model);
            }
            cpu.leave();
        }
    }
    vm.finish_io(&mut quire_vm::sleep::MaySleep::here());
    for model in (0..world.spaces.len()).filter_map(|n| world.slot(n)) {
        model.space.check(true).unwrap_or_else(|broken| panic!("{broken}"));
    }
    for object in world.shared.iter().map(|s| &s.object).chain([&world.file_on_disk]) {
        object.check(true).unwrap_or_else(|broken| panic!("{broken}"));
    }
    let counts = format!("{:?}", world.counts);
    let in_arenas = world.counts.in_arenas.load(Ordering::Relaxed);
    drop(ManuallyDrop::into_inner(world));
    if let Some(swap) = swap {
        let _kept = (steps >= F::part(&plan)).then(|| paging::finish(vm, swap, least.into_inner()));
    }
    before.assert_settled(vm);
    let events = Event::ALL.iter().map(|e| (e.name(), vm.stats().total(*e))).collect();
    Outcome { histories, counts, in_arenas, events, settled: Account::of(vm), steps }
}

fn one_cpu_reads_its_own_stores<F: Reduced>() {
    let _done = run::<F>(Plan { frames: 8192, steps: 320_000, ..PLAN });
}

fn four_cpus_read_their_own_stores<F: Reduced>() {
    let _done = run::<F>(Plan { cpus: 4, steps: 40_000, ..PLAN });
}

fn eight_cpus_read_their_own_stores<F: Reduced>() {
    let _done = run::<F>(Plan { cpus: 8, frames: 32_768, steps: 12_000, ..PLAN });
}

fn without_pcids<F: Reduced>() {
    let _done = run::<F>(Plan { cpus: 3, pcid: false, steps: 30_000, ..PLAN });
}

fn with_little_memory<F: Reduced>() {
    let _done = run::<F>(Plan { cpus: 3, frames: 1_536, steps: 30_000, ..PLAN });
}

fn with_allocations_that_fail<F: Reduced>() {
    let _done = run::<F>(Plan { cpus: 2, frames: 8_192, steps: 40_000, starve: 37, ..PLAN });
}

fn faults_against_discards<F: Reduced>() {
    let _done = run::<F>(Plan { cpus: 4, frames: 8_192, steps: 20_000, mix: &DISCARDS, ..PLAN });
}

fn copies_by_several_cpus<F: Reduced>() {
    const STEPS: usize = 12_000;
    let done = run::<F>(Plan { cpus: 4, steps: STEPS, mix: &COPIES, ..PLAN });
    let copied_up = done.events.iter().find(|(name, _)| *name == Event::PageCopiedUp.name());
    let deep = copied_up.is_some_and(|(_, n)| *n > 0);
    assert!(deep || done.steps < STEPS, "deep chains are put to the test");
}

fn faults_beyond_an_end_that_moves<F: Reduced>() {
    let _done = run::<F>(Plan { cpus: 4, frames: 8_192, steps: 3_000, mix: &ENDS, ..PLAN });
}

fn leaves_that_are_gone_and_not_flushed<F: Reduced>() {
    let _done = run::<F>(Plan { cpus: 4, frames: 8_192, steps: 3_000, mix: &STALE, ..PLAN });
}

fn copies_from_pages_that_other_cpus_discard<F: Reduced>() {
    let _done = run::<F>(Plan { cpus: 4, frames: 8_192, steps: 3_000, mix: &SOURCES, ..PLAN });
}

fn copies_with_dropped_leaves<F: Reduced>() {
    let _done = run::<F>(Plan { cpus: 4, frames: 8_192, steps: 3_000, mix: &FRONTS, ..PLAN });
}

fn mappings_without_an_address<F: Reduced>() {
    let done = run::<F>(Plan { cpus: 4, frames: 8_192, steps: 10_000, mix: &ANYWHERE, ..PLAN });
    assert_eq!(done.in_arenas > 0, F::ARENAS, "CPUs that contend get arenas of their own");
}

/// A run in which programs use four times the memory, on `cpus` CPUs, with a swap store that has the faults `bad`.
fn overcommitted<F: Reduced>(cpus: usize, steps: usize, bad: FaultPlan) {
    let _done = run::<F>(Plan { cpus, frames: paging::frames(cpus), steps, swap: Some(bad), mix: &MUCH, ..PLAN });
}

fn one_cpu_with_more_than_memory_holds<F: Reduced>() {
    overcommitted::<F>(1, 15_000, FaultPlan { delay: 1, window: 3, ..paging::PROMPT });
}

fn four_cpus_with_more_than_memory_holds<F: Reduced>() {
    overcommitted::<F>(4, 5_000, paging::PROMPT);
}

fn against_a_store_that_is_late_and_out_of_order<F: Reduced>() {
    overcommitted::<F>(4, 4_000, FaultPlan { delay: 3, window: 8, ..paging::PROMPT });
}

fn against_a_store_that_fails_at_times<F: Reduced>() {
    overcommitted::<F>(3, 4_000, FaultPlan { delay: 1, window: 4, fail_reads: 50, fail_writes: 7, ..paging::PROMPT });
}

fn eight_cpus_with_more_than_memory_holds<F: Reduced>() {
    overcommitted::<F>(8, 2_500, FaultPlan { window: 4, ..paging::PROMPT });
}
