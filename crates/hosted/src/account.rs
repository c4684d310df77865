//! A count of the resources of an idle memory system, by which tests detect leaks.

use crate::machine::Simulated;
use crate::simulate::Simulate;
use quire_sync::hooks::threads::run_as_cpu;
use quire_vm::sleep::MaySleep;
use quire_vm::{Machine, Pmap, Vm};
use std::fmt;

/// The numbers of free frames, free swap slots, and objects of each slab, as counted by [`Account::of`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Account {
    /// The number of free frames.
    pub free: u64,
    /// The number of free swap slots.
    pub free_slots: u64,
    /// The objects in use, with the name of their slab.
    pub objects: Vec<(&'static str, u64)>,
}

impl Account {
    /// Finishes all pending work, then counts. The pending work is: reads and writes, memory retired to the epoch, the
    /// CPUs' caches of free objects, and pages for the reaper. The calling thread is a CPU that holds nothing. All
    /// other CPUs are idle.
    ///
    /// # Panics
    /// If a slab or a queue is inconsistent, or if another thread is attached to a CPU.
    pub fn of<F: Simulate>(vm: &'static Vm<Simulated<F>>) -> Account {
        let mut may = MaySleep::here();
        vm.finish_io(&mut may);
        while vm.reapable() {
            vm.reap(u64::MAX, &mut may);
        }
        vm.epoch().drain();
        <Simulated<F> as Machine>::Pmap::reclaim_tables(vm);
        let caches =
            || vm.map_memory().caches().into_iter().chain(vm.object_memory().caches()).chain(vm.heap().caches());
        for cpu in 0..vm.machine().cpus() {
            // Each cache is read as its own CPU, which no other thread may be meanwhile.
            let was_own = vm.machine().is_own(cpu);
            if !was_own && let Err(error) = vm.machine().attach(cpu) {
                panic!("CPU {cpu} is not idle: {error}");
            }
            // SAFETY: this thread is attached to the CPU. The caches belong to `vm`, which they get as an argument.
            unsafe {
                run_as_cpu(cpu, || {
                    caches().for_each(|c| c.check(vm).unwrap_or_else(|broken| panic!("{broken}")));
                    caches().for_each(|c| c.drain(vm));
                });
            }
            if !was_own {
                vm.machine().detach(cpu);
            }
        }
        vm.check(true).unwrap_or_else(|broken| panic!("{broken}"));
        let count = |c: &quire_vm::phys::slab::Cache| {
            // SAFETY: the cache belongs to `vm`, which it gets as an argument.
            unsafe { c.in_use(vm) }.unwrap_or_else(|broken| panic!("{broken}"))
        };
        Account {
            free: vm.frames().free(),
            free_slots: vm.swap().free(),
            objects: caches().map(|c| (c.label(), count(c))).collect(),
        }
    }

    /// Returns the differences of `now` from this account, one line for each. The list is empty if nothing was lost or
    /// gained.
    pub fn lost(&self, now: &Account) -> Vec<String> {
        let mut lost = Vec::new();
        let mut compare = |name: &dyn fmt::Display, before: u64, now: u64| {
            if before != now {
                lost.push(format!("{name}: {before} before, {now} now"));
            }
        };
        for ((label, before), (_, now)) in self.objects.iter().zip(&now.objects) {
            compare(&format_args!("objects in use of slab {label}"), *before, *now);
        }
        compare(&"free frames", self.free, now.free);
        compare(&"free swap slots", self.free_slots, now.free_slots);
        lost
    }

    /// Counts again and compares with this account.
    ///
    /// # Panics
    /// If a count has changed; the message lists the differences.
    #[track_caller]
    pub fn assert_settled<F: Simulate>(&self, vm: &'static Vm<Simulated<F>>) {
        let lost = self.lost(&Account::of(vm));
        assert!(lost.is_empty(), "something is lost: {lost:?}");
    }
}
