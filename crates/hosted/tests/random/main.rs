//! Random operations from several CPUs, checked against a model of what memory must contain, with every translation watched.
//!
//! Every run prints its seed. `QUIRE_SEED=n` runs with that one: each CPU then issues the same operations in the same order
//! (with one CPU the whole run repeats; with more the interleaving is the host's). `QUIRE_STEPS=n` sets the operations a CPU.

mod access;
mod worker;
mod world;

use quire_hosted::{Cpu, Hosted, Settings};
use quire_pmap_x86_64::X86;
use quire_vm::Vm;
use std::sync::atomic::Ordering;
use std::time::{SystemTime, UNIX_EPOCH};
use worker::Worker;
use world::{COPIES, DISCARDS, EVERYTHING, Mix, World};

fn from_environment(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn seed() -> u64 {
    let fresh = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |d| d.as_nanos() as u64 % 1_000_000_007);
    from_environment("QUIRE_SEED").unwrap_or_else(fresh)
}

/// Frames that are free or cached where they can be taken back at once: everything when nothing is in use.
fn settle(vm: &'static Vm<Hosted>) -> u64 {
    for _ in 0..3 {
        vm.epoch().drain();
    }
    vm.map_memory().caches().iter().for_each(|c| c.drain(vm));
    vm.object_memory().caches().iter().for_each(|c| c.drain(vm));
    vm.machine().mmu().drain(vm);
    vm.frames().free()
}

struct Plan {
    cpus: usize,
    frames: u64,
    pcid: bool,
    steps: usize,
    /// Make every n-th allocation or so fail.
    starve: bool,
    mix: &'static Mix,
}

fn run(plan: Plan) {
    let seed = seed();
    let steps = from_environment("QUIRE_STEPS").map_or(plan.steps, |n| n as usize);
    println!("QUIRE_SEED={seed} QUIRE_STEPS={steps} on {} CPUs, {} frames", plan.cpus, plan.frames);
    let vm = Hosted::boot(Settings { cpus: plan.cpus, frames: plan.frames, pcid: plan.pcid, poison: true });
    let cpu = Cpu::attach(vm, 0);
    let before = settle(vm);
    let world = World::new(&cpu, plan.cpus, 8, plan.mix);
    drop(cpu);
    std::thread::scope(|s| {
        for id in 0..plan.cpus {
            let world = &world;
            s.spawn(move || {
                let cpu = Cpu::attach(vm, id);
                let mut worker = Worker::new(world, &cpu, id, seed);
                for _ in 0..steps / 50 {
                    if plan.starve {
                        vm.fail_allocation(1 + seed % 37);
                    }
                    worker.work(50);
                }
            });
        }
    });
    vm.fail_allocation(0);
    let cpu = Cpu::attach(vm, 0);
    println!("{:?}", world.counts);
    assert!(world.counts.accesses.load(Ordering::Relaxed) > steps as u64 / 4, "the test touches memory");
    for n in 0..world.spaces.len() {
        if let Some(model) = world.slot(n) {
            cpu.enter(&model.space);
            for lane in 0..plan.cpus {
                Worker::new(&world, &cpu, lane, seed).look_at_all(&model);
            }
            model.space.check(true).expect("the map's invariants hold");
            println!("space {}: {:?}", model.space.id(), model.space.stats());
        }
    }
    cpu.leave();
    drop(world);
    let after = settle(vm);
    for cache in vm.map_memory().caches().iter().chain(&vm.object_memory().caches()) {
        assert_eq!(cache.frames(), 0, "objects of slab {} are lost", cache.label());
    }
    assert_eq!(after, before, "frames are lost");
}

#[test]
fn one_cpu_sees_what_it_wrote() {
    run(Plan { cpus: 1, frames: 8192, pcid: true, steps: 6_000, starve: false, mix: &EVERYTHING });
}

#[test]
fn four_cpus_see_what_they_wrote() {
    run(Plan { cpus: 4, frames: 16_384, pcid: true, steps: 6_000, starve: false, mix: &EVERYTHING });
}

#[test]
fn without_pcids() {
    run(Plan { cpus: 3, frames: 16_384, pcid: false, steps: 3_000, starve: false, mix: &EVERYTHING });
}

#[test]
fn with_little_memory() {
    run(Plan { cpus: 3, frames: 1_536, pcid: true, steps: 3_000, starve: false, mix: &EVERYTHING });
}

#[test]
fn with_allocations_that_fail() {
    run(Plan { cpus: 2, frames: 8_192, pcid: true, steps: 4_000, starve: true, mix: &EVERYTHING });
}

#[test]
fn faults_against_discards() {
    run(Plan { cpus: 4, frames: 8_192, pcid: true, steps: 6_000, starve: false, mix: &DISCARDS });
}

#[test]
fn copies_by_several_cpus() {
    run(Plan { cpus: 4, frames: 16_384, pcid: true, steps: 6_000, starve: false, mix: &COPIES });
}
