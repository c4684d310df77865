//! Tests in which allocations fail. For each operation the first allocation fails, then the second, and so on until the
//! operation succeeds. Other runs fail allocations at random. After each failure the checker must find no error, and
//! nothing may be lost. Memory must have the contents that the operation's contract states. If the operation reports
//! the failure, these are the old contents.
//!
//! The table of operations is in `operations`; a new operation is one line there. `QUIRE_SEED=n` repeats the random
//! runs.

mod operations;
mod world;

use operations::{Operation, operations};
use quire_hosted::{Account, Cpu, Settings, Simulate, Simulated};
use quire_vm::Vm;
use quire_vm::check::Level;
use quire_vm::paging::memory_store::FaultPlan;
use world::{Failed, World};

quire_hosted::of_each_architecture!(
    a_failed_allocation_loses_nothing_and_changes_nothing,
    allocations_that_fail_at_random_lose_nothing,
    nor_do_they_where_the_pager_is_late_and_reorders,
    a_write_that_fails_leaves_the_page_where_it_is,
    a_failed_read_is_an_error_and_a_later_read_succeeds,
);

fn boot<F: Simulate>(plan: FaultPlan) -> &'static Vm<Simulated<F>> {
    let settings = Settings {
        cpus: 1,
        frames: 4096,
        device_frames: world::DEVICE_FRAMES,
        check: Level::AtRelease,
        ..Settings::default()
    };
    let vm = Simulated::<F>::boot(settings).unwrap();
    let _cpu = Cpu::attach(vm, 0).unwrap();
    vm.add_polled_swap(world::store(1024, plan)).expect("the first store");
    vm
}

/// The most failures of one operation. After that the test fails.
const MOST: u64 = 400;

/// Runs `operation` in new worlds, with the n-th allocation failing, for n = 1, 2, ... Returns the number of
/// allocations that the operation makes.
fn each_allocation<F: Simulate>(vm: &'static Vm<Simulated<F>>, cpu: &Cpu<F>, operation: &Operation<F>) -> u64 {
    for n in 1..MOST {
        let before = Account::of(vm);
        let mut world = World::new(cpu);
        (operation.prepare)(&mut world);
        vm.fail_allocation(n);
        let result = (operation.run)(&mut world);
        let done = vm.failure_is_pending();
        vm.fail_allocation(0);
        let context = format!("{}, allocation {n}", operation.name);
        match result {
            Ok(()) => (operation.effect)(&mut world.expected),
            Err(Failed::Memory) => assert!(!done, "{context}: out of memory, although no allocation failed"),
            Err(Failed::Other(e)) => panic!("{context}: {e}"),
        }
        world.verify(&context);
        drop(world);
        let lost = before.lost(&Account::of(vm));
        assert!(lost.is_empty(), "{context}: {lost:?}");
        if done {
            return n - 1;
        }
    }
    panic!("{}: more than {MOST} allocations", operation.name);
}

fn a_failed_allocation_loses_nothing_and_changes_nothing<F: Simulate>() {
    let vm = boot::<F>(FaultPlan::default());
    let cpu = Cpu::attach(vm, 0).unwrap();
    for operation in operations() {
        let allocations = each_allocation(vm, &cpu, &operation);
        println!("{:<40} {allocations} allocations", operation.name);
        assert!(
            operation.allocates.is_none_or(|a| a == (allocations > 0)),
            "{}: {allocations} allocations",
            operation.name
        );
    }
}

fn seed() -> u64 {
    std::env::var("QUIRE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(1, |d| d.as_nanos() as u64 % 1_000_000_007)
    })
}

/// Runs operations in sequence in one world, with random failures. Each is repeated until no allocation fails.
fn at_random<F: Simulate>(plan: FaultPlan) {
    let seed = seed();
    println!("QUIRE_SEED={seed}");
    let vm = boot::<F>(FaultPlan { seed, ..plan });
    let cpu = Cpu::attach(vm, 0).unwrap();
    let before = Account::of(vm);
    let operations = operations::<F>();
    let mut random = seed | 1;
    for round in 0..150u64 {
        let mut world = World::new(&cpu);
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        let operation = &operations[(random >> 16) as usize % operations.len()];
        (operation.prepare)(&mut world);
        vm.fail_allocations(2 + (random >> 40) as u32 % 12, random);
        let context = format!("QUIRE_SEED={seed}, round {round}: {}", operation.name);
        for tries in 0.. {
            let result = (operation.run)(&mut world);
            if tries == 50 {
                vm.fail_allocation(0);
            }
            match result {
                Ok(()) => {
                    (operation.effect)(&mut world.expected);
                    break;
                }
                Err(Failed::Memory) => {}
                Err(Failed::Other(e)) => panic!("{context}: {e}"),
            }
        }
        vm.fail_allocation(0);
        world.verify(&context);
    }
    let lost = before.lost(&Account::of(vm));
    assert!(lost.is_empty(), "QUIRE_SEED={seed}: {lost:?}");
}

fn allocations_that_fail_at_random_lose_nothing<F: Simulate>() {
    at_random::<F>(FaultPlan::default());
}

fn nor_do_they_where_the_pager_is_late_and_reorders<F: Simulate>() {
    at_random::<F>(FaultPlan { delay: 2, window: 5, ..FaultPlan::default() });
}

fn a_write_that_fails_leaves_the_page_where_it_is<F: Simulate>() {
    at_random::<F>(FaultPlan { fail_writes: 3, delay: 1, window: 3, ..FaultPlan::default() });
}

fn a_failed_read_is_an_error_and_a_later_read_succeeds<F: Simulate>() {
    let vm = boot::<F>(FaultPlan { fail_reads: 3, seed: 7, ..FaultPlan::default() });
    let cpu = Cpu::attach(vm, 0).unwrap();
    let before = Account::of(vm);
    let world = World::new(&cpu);
    assert!(world.page_out_everything().is_ok());
    let failed = world.read_until_it_goes("reads that fail");
    assert!(failed > 0, "no read failed");
    world.verify("after reads that failed");
    drop(world);
    before.assert_settled(vm);
}
