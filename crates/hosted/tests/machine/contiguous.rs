//! Allocation of consecutive frames from memory that programs use at the same time.

use quire_hosted::{Cpu, Settings, Simulate, Simulated};
use quire_vm::map::{Advice, MapRequest, Placement, Space, SpaceRef, Wire};
use quire_vm::phys::frames::{Contiguous, For, Frame};
use quire_vm::sleep::MaySleep;
use quire_vm::stats::Event;
use quire_vm::{OutOfMemory, PAGE_SIZE, VirtRange, Vm};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

quire_hosted::of_each_architecture!(
    large_frames_are_made_while_programs_fault,
    an_immovable_page_ends_the_attempt_and_changes_nothing,
    a_failing_allocation_at_any_depth_loses_nothing,
);

type V<F> = &'static Vm<Simulated<F>>;

const BASE: u64 = 0x1000_0000;
const LARGE: Contiguous = Contiguous { align: 512, ..ANYWHERE };
const ANYWHERE: Contiguous = Contiguous {
    count: 512,
    align: 1,
    within: quire_vm::PhysRange { start: quire_vm::Pfn(0), end: quire_vm::Pfn(u32::MAX as u64) },
};

fn boot<F: Simulate>(frames: u64) -> V<F> {
    Simulated::<F>::boot(Settings { cpus: 3, frames, reserve: Some(256), ..Settings::default() }).unwrap()
}

fn va(page: u64) -> u64 {
    BASE + page * PAGE_SIZE
}

fn range(page: u64, pages: u64) -> VirtRange {
    VirtRange { start: va(page), end: va(page + pages) }
}

/// A space in which two of three pages are resident, so that no large run of frames is free. Page n holds n.
fn fragmented<F: Simulate>(cpu: &Cpu<F>, pages: u64) -> SpaceRef<Simulated<F>> {
    let vm = cpu.vm();
    let space = Space::new(vm).unwrap();
    cpu.enter(&space).unwrap();
    space.map(&MapRequest::private(Placement::Fixed(BASE), pages * PAGE_SIZE)).unwrap();
    (0..pages).for_each(|n| cpu.write(&space, va(n), n).unwrap());
    (0..pages).step_by(3).for_each(|n| space.advise(range(n, 1), Advice::DontNeed).unwrap());
    vm.drain_magazines();
    space
}

fn resident(pages: u64) -> impl Iterator<Item = u64> {
    (0..pages).filter(|n| !n.is_multiple_of(3))
}

fn free<F: Simulate>(vm: V<F>) -> u64 {
    vm.drain_magazines();
    vm.frames().free()
}

fn large<F: Simulate>(vm: V<F>) -> Result<Frame, OutOfMemory> {
    vm.alloc_contiguous_reclaiming(LARGE, For::User, &mut MaySleep::here())
}

/// Ends the other threads when it is dropped.
struct StopOnDrop<'s, F: Simulate>(&'s AtomicBool, &'s Cpu<F>);

impl<F: Simulate> Drop for StopOnDrop<'_, F> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
        self.1.leave();
    }
}

fn large_frames_are_made_while_programs_fault<F: Simulate>() {
    const PAGES: u64 = 6000;
    let vm = boot::<F>(8192);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = fragmented(&cpu, PAGES);
    let mut blocks: Vec<Frame> = core::iter::from_fn(|| vm.alloc_contiguous(LARGE, For::User).ok()).collect();
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|s| {
        for id in 1..3 {
            let (space, stop, rounds) = (&space, &stop, &rounds);
            s.spawn(move || {
                let cpu = Cpu::attach(vm, id as usize).unwrap();
                cpu.disturb(id);
                cpu.enter(space).unwrap();
                // Each thread counts its own pages up, and must read its own counts.
                let mut round = 0;
                while !stop.load(Ordering::Acquire) {
                    for n in resident(PAGES).filter(|n| n % 2 == id % 2) {
                        assert_eq!(cpu.read(space, va(n)), Ok(n + round), "page {n}");
                        cpu.write(space, va(n), n + round + 1).unwrap();
                    }
                    round += 1;
                    rounds.fetch_add(1, Ordering::Release);
                }
                resident(PAGES).filter(|n| n % 2 == id % 2).for_each(|n| {
                    assert_eq!(cpu.read(space, va(n)), Ok(n + round), "page {n}");
                });
                cpu.leave();
            });
        }
        // Stops the other threads even if this one panics, because the scope waits for them.
        let _stop = StopOnDrop(&stop, &cpu);
        for _ in 0..2 {
            let block = large(vm).expect("there is memory for it, in pieces");
            let first = block.pfn().0;
            assert!(first.is_multiple_of(512));
            assert!(blocks.iter().all(|b| !(b.pfn().0..b.pfn().0 + 512).contains(&first)));
            blocks.push(block);
            let seen = rounds.load(Ordering::Acquire);
            while rounds.load(Ordering::Acquire) < seen + 2 {
                cpu.interrupts();
                std::thread::yield_now();
            }
        }
    });
    assert!(vm.stats().total(Event::Migrated) > 500, "{} pages moved", vm.stats().total(Event::Migrated));
    // SAFETY: each block was allocated as 512 frames, and is not used any more.
    blocks.into_iter().for_each(|block| unsafe { vm.free_contiguous(block, 512) });
    vm.drain_magazines();
    assert_eq!(vm.frames().check(), Ok(()));
    space.check(true).unwrap();
    vm.queues().check(true).unwrap();
}

fn an_immovable_page_ends_the_attempt_and_changes_nothing<F: Simulate>() {
    const PAGES: u64 = 3000;
    let vm = boot::<F>(4096);
    let cpu = Cpu::attach(vm, 0).unwrap();
    let space = fragmented(&cpu, PAGES);
    let whole: Vec<Frame> = core::iter::from_fn(|| vm.alloc_contiguous(LARGE, For::User).ok()).collect();
    // After this, every run of 512 frames has a wired page.
    space.wire(range(0, PAGES), Wire::OnFault).unwrap();
    let before = free(vm);
    assert!(large(vm).map(Frame::into_pfn).is_err());
    assert_eq!(free(vm), before);
    assert_eq!(vm.frames().check(), Ok(()));
    resident(PAGES).for_each(|n| assert_eq!(cpu.read(&space, va(n)), Ok(n)));
    space.wire(range(0, PAGES), Wire::No).unwrap();
    let block = large(vm).expect("nothing is wired any more");
    // SAFETY: the block was allocated as 512 frames, and is not used any more.
    unsafe { vm.free_contiguous(block, 512) };
    resident(PAGES).for_each(|n| assert_eq!(cpu.read(&space, va(n)), Ok(n)));
    // SAFETY: each block was allocated as 512 frames, and is not used any more.
    whole.into_iter().for_each(|block| unsafe { vm.free_contiguous(block, 512) });
    cpu.leave();
}

fn a_failing_allocation_at_any_depth_loses_nothing<F: Simulate>() {
    const PAGES: u64 = 2000;
    let mut failed = 0;
    for seed in 1..9 {
        let vm = boot::<F>(3072);
        let cpu = Cpu::attach(vm, 0).unwrap();
        let space = fragmented(&cpu, PAGES);
        let whole: Vec<Frame> = core::iter::from_fn(|| vm.alloc_contiguous(LARGE, For::User).ok()).collect();
        let before = free(vm);
        // In some attempts all allocations fail, in others few.
        vm.fail_allocations([1, 2, 30, 400][seed as usize % 4], seed);
        let block = large(vm);
        vm.fail_allocation(0);
        failed += u32::from(block.is_err());
        // SAFETY: the block was allocated as 512 frames, and is not used any more.
        block.into_iter().for_each(|block| unsafe { vm.free_contiguous(block, 512) });
        assert_eq!(free(vm), before, "frames are lost");
        assert_eq!(vm.frames().check(), Ok(()));
        resident(PAGES).for_each(|n| assert_eq!(cpu.read(&space, va(n)), Ok(n)));
        // SAFETY: each block was allocated as 512 frames, and is not used any more.
        whole.into_iter().for_each(|block| unsafe { vm.free_contiguous(block, 512) });
        space.check(true).unwrap();
        vm.queues().check(true).unwrap();
        cpu.leave();
    }
    assert!((1..8).contains(&failed), "{failed} of eight attempts failed");
}
