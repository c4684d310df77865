//! What a memory system holds when nothing is under way: to see that nothing was lost.

use crate::machine::Simulated;
use crate::simulate::Simulate;
use quire_sync::hooks::threads::as_cpu;
use quire_vm::sleep::MaySleep;
use quire_vm::{Machine, Pmap, Vm};
use std::fmt;

/// Frames, objects of each slab, swap slots, as counted by [`Account::of`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Account {
    /// Frames that nobody has.
    pub free: u64,
    /// Swap slots that nobody has.
    pub free_slots: u64,
    /// Objects in use, by slab.
    pub objects: Vec<(&'static str, u64)>,
}

impl Account {
    /// Lets everything that is on its way arrive (reads and writes, what waits for readers, what CPUs keep for later, pages
    /// that the reaper was left), and counts. The calling thread is a CPU that holds nothing; no other CPU does anything.
    ///
    /// # Panics
    /// Where a slab or a queue is not in order.
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
            as_cpu(cpu, || {
                // What a CPU keeps it alone looks at.
                // SAFETY: the caches are those of `vm`, which they are given.
                caches().for_each(|c| unsafe {
                    c.check(vm).unwrap_or_else(|broken| panic!("{broken}"));
                });
                // SAFETY: the caches are those of `vm`, which they are given.
                caches().for_each(|c| unsafe { c.drain(vm) });
            });
        }
        vm.check(true).unwrap_or_else(|broken| panic!("{broken}"));
        let count = |c: &quire_vm::phys::slab::Cache| {
            // SAFETY: the cache is one of `vm`'s, which it is given.
            unsafe { c.in_use(vm) }.unwrap_or_else(|broken| panic!("{broken}"))
        };
        Account {
            free: vm.frames().free(),
            free_slots: vm.swap().free(),
            objects: caches().map(|c| (c.label(), count(c))).collect(),
        }
    }

    /// What is there less of in `now`, one line each: empty where nothing was lost, nor found.
    pub fn lost(&self, now: &Account) -> Vec<String> {
        let mut lost = Vec::new();
        let mut compare = |what: &dyn fmt::Display, before: u64, now: u64| {
            if before != now {
                lost.push(format!("{what}: {before} before, {now} now"));
            }
        };
        for ((label, before), (_, now)) in self.objects.iter().zip(&now.objects) {
            compare(&format_args!("objects in use of slab {label}"), *before, *now);
        }
        compare(&"free frames", self.free, now.free);
        compare(&"free swap slots", self.free_slots, now.free_slots);
        lost
    }

    /// Counts again.
    ///
    /// # Panics
    /// Where something was lost since, or found; the message says what.
    #[track_caller]
    pub fn assert_settled<F: Simulate>(&self, vm: &'static Vm<Simulated<F>>) {
        let lost = self.lost(&Account::of(vm));
        assert!(lost.is_empty(), "something is lost: {lost:?}");
    }
}
