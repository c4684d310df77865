//! Frames and slabs on the hosted machine: nothing is allocated twice, nothing is lost, and the reserve holds.

use quire_hosted::{Cpu, Hosted, Settings, Simulate, Simulated};
use quire_sync::hooks::threads::as_cpu;
use quire_vm::map::{MapRequest, Placement, Space};
use quire_vm::paging::memory_store::{FaultPlan, MemoryStore};
use quire_vm::phys::frames::{CHAIN, Fill, For, Frame};
use quire_vm::reclaim::daemon::Daemon;
use quire_vm::sleep::MaySleep;
use quire_vm::stats::Event;
use quire_vm::{FaultError, OutOfMemory, PAGE_SIZE, Phys, Vm};
use std::alloc::Layout;
use std::sync::atomic::{AtomicU32, Ordering};

fn boot(cpus: usize, frames: u64) -> &'static Vm<Hosted> {
    Hosted::boot(Settings { cpus, frames, ..Settings::default() }).unwrap()
}

/// Random numbers that are determined by the seed.
struct Random(fastrand::Rng);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0.u64(..n)
    }
}

fn frames_that_are_free(vm: &'static Vm<Hosted>) -> u64 {
    // No thread is attached to a CPU, so this thread acts as CPU 0.
    as_cpu(0, || vm.drain_magazines());
    vm.frames().free()
}

#[test]
fn no_frame_has_two_owners_and_all_come_back() {
    let vm = boot(4, 4096);
    let before = frames_that_are_free(vm);
    let owners: Vec<AtomicU32> = (0..vm.page_count()).map(|_| AtomicU32::new(0)).collect();
    std::thread::scope(|s| {
        for cpu in 0..4 {
            let owners = &owners;
            s.spawn(move || {
                let _cpu = Cpu::attach(vm, cpu).unwrap();
                let mut random = Random(fastrand::Rng::with_seed(cpu as u64));
                let mut mine: Vec<(Frame, u8)> = Vec::new();
                for _ in 0..20_000 {
                    if random.below(100) < 52 && mine.len() < 600 {
                        let order = if random.below(50) == 0 { random.below(4) as u8 } else { 0 };
                        let got = match order {
                            0 => vm.alloc_frame(Fill::Any, For::User),
                            _ => vm.alloc_run(order, For::Kernel),
                        };
                        let Ok(frame) = got else { continue };
                        let first = frame.pfn().0;
                        assert_eq!(first % (1 << order), 0, "a run is aligned to its size");
                        for pfn in first..first + (1 << order) {
                            assert_eq!(owners[pfn as usize].swap(1, Ordering::AcqRel), 0, "frame {pfn} is owned twice");
                        }
                        mine.push((frame, order));
                    } else if !mine.is_empty() {
                        let (frame, order) = mine.swap_remove(random.below(mine.len() as u64) as usize);
                        give_back(vm, owners, frame, order);
                    }
                }
                mine.into_iter().for_each(|(frame, order)| give_back(vm, owners, frame, order));
            });
        }
    });
    assert_eq!(frames_that_are_free(vm), before);
}

fn give_back(vm: &'static Vm<Hosted>, owners: &[AtomicU32], frame: Frame, order: u8) {
    let first = frame.pfn().0;
    (first..first + (1 << order)).for_each(|pfn| owners[pfn as usize].store(0, Ordering::Release));
    match order {
        0 => vm.free_frame(frame).unwrap(),
        // SAFETY: the frames were allocated as a run of that order, and are not used any more.
        _ => unsafe { vm.free_run(frame, order) },
    }
}

#[test]
fn programs_meet_an_error_before_the_kernel_does() {
    let vm = boot(1, 2048);
    let _cpu = Cpu::attach(vm, 0).unwrap();
    let before = frames_that_are_free(vm);
    let mut taken = Vec::new();
    while let Ok(frame) = vm.alloc_frame(Fill::Any, For::User) {
        taken.push(frame);
    }
    assert!(
        taken.len() as u64 + vm.frames().reserve() + 2 * CHAIN as u64 >= before,
        "programs get all but the reserve"
    );
    for _ in 0..vm.frames().reserve() / 2 {
        taken.push(vm.alloc_frame(Fill::Any, For::Kernel).expect("the reserve is the kernel's"));
    }
    assert!(matches!(vm.alloc_frame(Fill::Any, For::User), Err(OutOfMemory)));
    taken.into_iter().for_each(|f| vm.free_frame(f).unwrap());
    assert_eq!(frames_that_are_free(vm), before);
    vm.free_frame(vm.alloc_frame(Fill::Any, For::User).expect("programs get memory again")).unwrap();
}

#[test]
fn a_zeroed_frame_is_zero_though_freed_frames_are_poisoned() {
    let vm = boot(1, 1024);
    let _cpu = Cpu::attach(vm, 0).unwrap();
    for _ in 0..3 * CHAIN {
        let frame = vm.alloc_frame(Fill::Zeroed, For::User).expect("memory");
        // SAFETY: the frame belongs to this test.
        let bytes = unsafe { std::slice::from_raw_parts(vm.machine().frame_ptr(frame.pfn()), PAGE_SIZE as usize) };
        assert!(bytes.iter().all(|b| *b == 0));
        vm.free_frame(frame).unwrap();
    }
}

#[test]
fn one_exchange_with_the_depot_serves_a_chain_of_allocations() {
    let vm = boot(1, 8192);
    let _cpu = Cpu::attach(vm, 0).unwrap();
    let before = vm.stats().total(Event::DepotExchange);
    let frames: Vec<Frame> = (0..8 * CHAIN).map(|_| vm.alloc_frame(Fill::Any, For::User).expect("memory")).collect();
    frames.into_iter().for_each(|f| vm.free_frame(f).unwrap());
    let exchanges = vm.stats().total(Event::DepotExchange) - before;
    assert!(exchanges <= 2 * 8, "{exchanges} exchanges for {} operations", 16 * CHAIN);
}

#[test]
fn large_blocks_come_back_together() {
    let vm = boot(1, 4096);
    let _cpu = Cpu::attach(vm, 0).unwrap();
    let order = 9;
    let count = |vm: &'static Vm<Hosted>| {
        let blocks: Vec<Frame> = std::iter::from_fn(|| vm.alloc_run(order, For::Kernel).ok()).collect();
        let n = blocks.len();
        // SAFETY: the frames were allocated as runs of that order, and are not used any more.
        blocks.into_iter().for_each(|b| unsafe { vm.free_run(b, order) });
        n
    };
    let before = count(vm);
    assert!(before >= 4);
    let single: Vec<Frame> = std::iter::from_fn(|| vm.alloc_frame(Fill::Any, For::Kernel).ok()).collect();
    single.into_iter().for_each(|f| vm.free_frame(f).unwrap());
    assert_eq!(count(vm), before, "frames that were split apart are joined again");
}

#[test]
fn the_heap_gives_every_size_aligned_and_gives_all_frames_back() {
    let vm = boot(2, 8192);
    let before = frames_that_are_free(vm);
    std::thread::scope(|s| {
        for cpu in 0..2 {
            s.spawn(move || {
                let _cpu = Cpu::attach(vm, cpu).unwrap();
                let mut random = Random(fastrand::Rng::with_seed(7 + cpu as u64));
                let mut mine: Vec<(std::ptr::NonNull<u8>, Layout, u8)> = Vec::new();
                for round in 0..20_000u32 {
                    if random.below(2) == 0 && mine.len() < 300 {
                        let size = 1 + random.below(if round % 100 == 0 { 40_000 } else { 3000 }) as usize;
                        let align = 1usize << random.below(8);
                        let layout = Layout::from_size_align(size, align).expect("a layout");
                        // SAFETY: the heap belongs to `vm`, which it gets as an argument.
                        let Ok(memory) = (unsafe { vm.heap().alloc(vm, layout) }) else { continue };
                        assert_eq!(memory.as_ptr() as usize % align, 0, "{layout:?} is misaligned");
                        let mark = round as u8;
                        // SAFETY: the heap has allocated `size` bytes there.
                        unsafe { memory.write_bytes(mark, size) };
                        mine.push((memory, layout, mark));
                    } else if !mine.is_empty() {
                        let (memory, layout, mark) = mine.swap_remove(random.below(mine.len() as u64) as usize);
                        // SAFETY: the memory was allocated above, and is still this thread's.
                        let bytes = unsafe { std::slice::from_raw_parts(memory.as_ptr(), layout.size()) };
                        assert!(bytes.iter().all(|b| *b == mark), "another writer stored into this object");
                        // SAFETY: the heap allocated this memory with this layout to this thread, which does not use it
                        // any more.
                        unsafe { vm.heap().free(vm, memory, layout) };
                    }
                }
                for (memory, layout, _) in mine {
                    // SAFETY: the heap allocated this memory with this layout to this thread, which does not use it any
                    // more.
                    unsafe { vm.heap().free(vm, memory, layout) };
                }
            });
        }
    });
    for cpu in 0..2 {
        // SAFETY: the caches belong to `vm`, which they get as an argument.
        as_cpu(cpu, || vm.heap().caches().iter().for_each(|c| unsafe { c.drain(vm) }));
    }
    assert_eq!(frames_that_are_free(vm), before);
}

#[test]
fn a_chosen_allocation_fails_and_the_next_does_not() {
    let vm = boot(1, 1024);
    let _cpu = Cpu::attach(vm, 0).unwrap();
    vm.fail_allocation(2);
    let first = vm.alloc_frame(Fill::Any, For::Kernel).expect("the first allocation");
    assert!(matches!(vm.alloc_frame(Fill::Any, For::Kernel), Err(OutOfMemory)));
    let third = vm.alloc_frame(Fill::Any, For::Kernel).expect("the third allocation");
    vm.free_frame(first).unwrap();
    vm.free_frame(third).unwrap();
}

#[test]
fn an_idle_cpu_zeroes_frames_for_first_touches_if_enabled() {
    for zero_stock in [0, 40] {
        let vm = Hosted::boot(Settings { cpus: 2, frames: 4096, zero_stock, ..Settings::default() }).unwrap();
        let cpu = Cpu::attach(vm, 1).unwrap();
        let space = quire_vm::Space::new(vm).unwrap();
        cpu.enter(&space).unwrap();
        // SAFETY: the CPU has loaded these page tables.
        unsafe { cpu.idle(space.page_tables()) };
        assert_eq!(vm.zero_stock(), zero_stock);
        let frame = vm.alloc_frame(Fill::Zeroed, For::User).unwrap();
        assert_eq!(vm.zero_stock(), zero_stock.saturating_sub(1));
        vm.free_frame(frame).unwrap();
        assert_eq!(vm.frames().check(), Ok(()));
        cpu.leave();
    }
}

quire_hosted::of_each_architecture!(memory_serves_programs_wherever_ram_begins,);

/// RAM that begins at 2 GiB, as on many boards, and at 256 GiB. Pages are written, forked, written out and read back.
fn memory_serves_programs_wherever_ram_begins<F: Simulate>() {
    let mut costs = Vec::new();
    for first_frame in [0x100, 0x8_0000, 0x400_0000] {
        let settings = Settings { cpus: 2, frames: 8192, first_frame, ..Settings::default() };
        let vm = Simulated::<F>::boot(settings).unwrap();
        costs.push(8192 - vm.frames().free());
        let cpu = Cpu::attach(vm, 0).unwrap();
        let bytes = vec![[0u8; PAGE_SIZE as usize]; 8192].leak();
        // SAFETY: the memory is leaked, large enough, and has no other user.
        let store = unsafe { MemoryStore::new(std::ptr::NonNull::from(bytes).cast(), 8192, FaultPlan::default()) };
        vm.add_swap(Box::leak(Box::new(store))).unwrap();
        let space = Space::new(vm).unwrap();
        let pages = 10_000;
        let at = space.map(&MapRequest::private(Placement::Any { hint: 0 }, pages * PAGE_SIZE)).unwrap();
        cpu.enter(&space).unwrap();
        for n in 0..pages {
            cpu.write(&space, at + n * PAGE_SIZE, n ^ first_frame).unwrap();
        }
        assert!(vm.stats().total(Event::SwapOut) > 0);
        let child = space.fork().unwrap();
        cpu.write(&space, at, 1).unwrap();
        cpu.enter(&child).unwrap();
        for n in 0..pages {
            assert_eq!(cpu.read(&child, at + n * PAGE_SIZE), Ok(n ^ first_frame));
        }
        cpu.leave();
        drop((space, child));
        vm.epoch().drain();
        vm.check(true).unwrap();
    }
    assert!(costs.iter().all(|cost| cost.abs_diff(costs[0]) <= 16), "frames used at boot: {costs:?}");
}

/// The last handle of a space goes while pageout writes the space's pages. Pageout then tears objects down.
#[test]
fn settle_waits_for_objects_that_pageout_tears_down() {
    let vm = Hosted::boot(Settings { cpus: 2, frames: 4096, ..Settings::default() }).unwrap();
    let cpu = Cpu::attach(vm, 0).unwrap();
    let bytes = vec![[0u8; PAGE_SIZE as usize]; 8192].leak();
    // SAFETY: the memory is leaked, large enough, and has no other user.
    let store = unsafe { MemoryStore::new(std::ptr::NonNull::from(bytes).cast(), 8192, FaultPlan::default()) };
    vm.add_swap(vm.leak(store).unwrap()).unwrap();
    let daemon = std::thread::spawn(move || {
        let _cpu = Cpu::attach(vm, 1).unwrap();
        vm.daemon_run(Daemon::Pageout);
    });
    let mut least = None;
    for _ in 0..6 {
        let space = Space::new(vm).unwrap();
        let at = space.map(&MapRequest::private(Placement::Any { hint: 0 }, 5000 * PAGE_SIZE)).unwrap();
        cpu.enter(&space).unwrap();
        for n in 0..5000 {
            // Where the host delays the daemon, a write may give up its wait for memory. Any other error is wrong.
            while let Err(e) = cpu.write(&space, at + n * PAGE_SIZE, n) {
                assert!(matches!(e, FaultError::OutOfMemory), "page {n}: {e:?}");
            }
        }
        cpu.leave();
        drop(space);
        vm.settle(&mut MaySleep::here());
        // The first round fills the caches of structures.
        let free = vm.frames().free();
        assert!(free + 16 >= *least.get_or_insert(free), "{free} frames are free, {least:?} were before");
        assert_eq!(vm.swap().free(), vm.swap().total());
    }
    vm.stop_daemons();
    while !daemon.is_finished() {
        cpu.interrupts();
        std::thread::yield_now();
    }
    daemon.join().unwrap();
}
