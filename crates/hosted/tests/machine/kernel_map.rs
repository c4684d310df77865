//! The kernel's map over real page tables. No CPU may access an address that was freed by another CPU and allocated by
//! a third.

use quire_hosted::{Cpu, Settings, Simulate, Simulated};
use quire_vm::map::kernel::{KernelMap, Purpose};
use quire_vm::{MemoryType, PAGE_SIZE, Vm};
use std::sync::atomic::{AtomicBool, Ordering};

quire_hosted::of_each_architecture!(
    stacks_and_buffers_come_and_go_on_all_cpus,
    a_window_on_a_device_is_reached_by_the_kernel_alone,
    a_search_for_room_among_stacks_visits_one_node_a_level,
);

type V<F> = &'static Vm<Simulated<F>>;

const STACK: u64 = 4 * PAGE_SIZE;

fn boot<F: Simulate>(cpus: usize, frames: u64) -> (V<F>, &'static KernelMap<Simulated<F>>) {
    let vm = Simulated::<F>::boot(Settings { cpus, frames, device_frames: 4, ..Settings::default() }).unwrap();
    // The thread that sets up and checks the end acts as CPU 0 while no thread is attached.
    quire_sync::hooks::threads::set_cpu(0);
    // SAFETY: this is the machine's only kernel map of that window.
    let map = unsafe { KernelMap::new(vm, Simulated::<F>::KERNEL_WINDOW, STACK) }.unwrap();
    (vm, Box::leak(Box::new(map)))
}

/// Loads the word at `va` as the kernel. If the hardware has cached an absent entry, the fault handler drops it and the
/// load is tried again.
fn load<F: Simulate>(cpu: &Cpu<F>, va: u64) -> u64 {
    cpu.kernel_load(va).or_else(|_| cpu.kernel_look_again(va).and_then(|()| cpu.kernel_load(va))).unwrap()
}

fn store<F: Simulate>(cpu: &Cpu<F>, va: u64, value: u64) {
    cpu.kernel_store(va, value)
        .or_else(|_| cpu.kernel_look_again(va).and_then(|()| cpu.kernel_store(va, value)))
        .unwrap()
}

fn stacks_and_buffers_come_and_go_on_all_cpus<F: Simulate>() {
    const CPUS: usize = 3;
    let (vm, map) = boot::<F>(CPUS, 16 * 1024);
    let shared: Vec<AtomicBool> = (0..CPUS).map(|_| AtomicBool::new(false)).collect();
    std::thread::scope(|s| {
        for id in 0..CPUS {
            let shared = &shared;
            s.spawn(move || {
                let cpu = Cpu::attach(vm, id).unwrap();
                cpu.disturb(id as u64);
                let mut held = Vec::new();
                for round in 0..150u64 {
                    let range = match round % 3 {
                        0 if round % 2 == 0 => map.stock().map(|()| map.last_stack().expect("stocked")),
                        0 => map.stack(),
                        n => map.buffer(n * (round % 7 + 1) * PAGE_SIZE),
                    }
                    .unwrap();
                    let stamp = (id as u64) << 32 | round;
                    let all = range.range();
                    (all.start..all.end).step_by(PAGE_SIZE as usize).for_each(|va| store(&cpu, va, stamp + va));
                    assert!(cpu.kernel_load(all.start - PAGE_SIZE).is_err(), "the guard");
                    held.push((range, stamp));
                    // Stacks are freed in another order than they were made, and mostly later.
                    if held.len() > 12 {
                        let (range, stamp) = held.swap_remove((round * 7 % 12) as usize);
                        let all = range.range();
                        for va in (all.start..all.end).step_by(PAGE_SIZE as usize) {
                            assert_eq!(load(&cpu, va), stamp + va, "another holder stored here");
                        }
                        if round % 5 == 0 {
                            map.put_by(range);
                        }
                    }
                    if round % 50 == 0 {
                        map.reclaim();
                    }
                    cpu.interrupts();
                }
                drop(held);
                shared[id].store(true, Ordering::Release);
                while !shared.iter().all(|s| s.load(Ordering::Acquire)) {
                    cpu.interrupts();
                    std::thread::yield_now();
                }
            });
        }
    });
    let _cpu = Cpu::attach(vm, 0).unwrap();
    assert!(map.generation() > 5);
    map.reclaim();
    assert!(map.len() <= CPUS, "all addresses are free again, but those of each CPU's last idle stack");
}

fn a_window_on_a_device_is_reached_by_the_kernel_alone<F: Simulate>() {
    let (vm, map) = boot::<F>(1, 2048);
    let cpu = Cpu::attach(vm, 0).unwrap();
    // SAFETY: these are the simulated device's own frames.
    let window = unsafe { map.device(vm.machine().devices(), MemoryType::Uncached) }.unwrap();
    let at = window.range().start;
    assert_eq!(window.range().len(), 4 * PAGE_SIZE);
    for va in (at..window.range().end).step_by(PAGE_SIZE as usize) {
        store(&cpu, va, va);
        assert_eq!(load(&cpu, va), va);
        assert!(cpu.load_word(va).is_err(), "a program reaches a device by a kernel address");
    }
    map.each(|_, purpose, guard| assert_eq!((purpose, guard), (Purpose::Device, 0)));
    drop(window);
    map.settle();
    assert!(cpu.kernel_load(at).is_err());
}

fn a_search_for_room_among_stacks_visits_one_node_a_level<F: Simulate>() {
    let (vm, map) = boot::<F>(1, 40 * 1024);
    let _cpu = Cpu::attach(vm, 0).unwrap();
    let mut buffers: Vec<_> = (0..12_000).map(|_| map.buffer(PAGE_SIZE).unwrap()).collect();
    let mut n = 0;
    buffers.retain(|_| {
        n += 1;
        n % 2 == 0
    });
    map.settle();
    // There are 6000 holes that are too small for a stack.
    assert!(map.visits_for_a_stack() <= 5, "{} nodes", map.visits_for_a_stack());
}
