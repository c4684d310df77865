use super::*;
use crate::testing::{Boot, KERNEL, TestMachine, boot};
use std::collections::BTreeMap;

const STACK: u64 = 4 * PAGE_SIZE;

fn map(b: &Boot) -> &'static KernelMap<TestMachine> {
    // SAFETY: this is the machine's only kernel map, and nothing else is mapped at `KERNEL`.
    Box::leak(Box::new(unsafe { KernelMap::new(b.vm, KERNEL, STACK) }.unwrap()))
}

fn free(b: &Boot) -> u64 {
    b.vm.epoch().drain();
    // SAFETY: the caches belong to `b.vm`, which is passed to them.
    b.vm.map_memory().caches().iter().for_each(|c| unsafe { c.drain(b.vm) });
    b.vm.frames().free()
}

#[test]
fn ranges_have_memory_of_their_own_and_an_unmapped_page_below() {
    let b = boot(4096, 1);
    let map = map(&b);
    let leaf = |va| b.vm.machine().kernel_leaf(va);
    let ranges: Vec<_> = (1..6).map(|n| map.buffer(n * PAGE_SIZE - 1).unwrap()).collect();
    let mut seen = BTreeMap::new();
    for (n, r) in ranges.iter().enumerate() {
        assert_eq!(r.range().len(), (n as u64 + 1) * PAGE_SIZE);
        assert_eq!(leaf(r.range().start - PAGE_SIZE), None, "the guard");
        for va in r.pages() {
            assert_eq!(seen.insert(leaf(va).unwrap(), va), None, "a frame of two addresses");
        }
    }
    let mut last = 0;
    map.each(|range, purpose, guard| {
        assert!(range.start - guard >= last && purpose == Purpose::Buffer);
        last = range.end;
    });
    assert_eq!(map.buffer(0).err(), Some(MapError::Invalid));
    assert_eq!(map.buffer(u64::MAX).err(), Some(MapError::Invalid));
    assert_eq!(map.buffer(KERNEL.len()).err(), Some(MapError::NoSpace));
}

#[test]
fn idle_stacks_stay_mapped_and_return_without_table_work() {
    let b = boot(4096, 1);
    let map = map(&b);
    map.stock().unwrap();
    let first = map.stack().unwrap().range();
    let frames = b.vm.machine().kernel_leaf(first.start);
    for _ in 0..10 {
        let again = map.stack().unwrap();
        assert_eq!((again.range(), b.vm.machine().kernel_leaf(first.start)), (first, frames));
    }
    assert_eq!(map.generation(), 0);
    assert!(map.reclaim());
    assert_eq!((map.len(), map.generation()), (1, 1), "all but the last are given back when memory is short");
    assert_eq!(b.vm.machine().kernel_leaf(first.start), None);
}

#[test]
fn the_last_idle_stack_is_only_for_a_switch() {
    quire_sync::hooks::threads::set_cpu(0);
    let b = boot(4096, 1);
    let map = map(&b);
    assert!(map.last_stack().is_none(), "a CPU has none before it is stocked");
    map.stock().unwrap();
    let other = map.stack().unwrap().range();
    assert!(!map.reclaim() || !map.is_empty());
    let last = map.last_stack().expect("set aside");
    assert_ne!(last.range(), other);
    assert!(map.last_stack().is_none());
    map.put_by(last);
    assert!(map.last_stack().is_some(), "a stack that was put by serves the next switch");
}

#[test]
fn stacks_put_by_above_the_limit_go_when_interrupts_are_on() {
    quire_sync::hooks::threads::set_cpu(0);
    let b = boot(16384, 1);
    let map = map(&b);
    let stacks: Vec<_> = (0..KEEP + 10).map(|_| map.stack().unwrap()).collect();
    stacks.into_iter().for_each(|stack| map.put_by(stack));
    assert_eq!(map.len(), KEEP + 10, "nothing is given back during a switch");
    map.stock().unwrap();
    map.settle();
    assert_eq!(map.len(), KEEP);
    // All idle stacks can be used again.
    let again: Vec<_> = std::iter::from_fn(|| map.last_stack()).collect();
    assert_eq!(again.len(), KEEP);
}

#[test]
fn a_refused_stock_leaves_nothing_behind() {
    quire_sync::hooks::threads::set_cpu(0);
    let b = boot(4096, 1);
    let map = map(&b);
    map.settle();
    let before = (map.len(), free(&b));
    for n in 1..40 {
        b.vm.fail_allocation(n);
        let stocked = map.stock();
        b.vm.fail_allocation(0);
        if stocked.is_ok() {
            assert!(n > 1, "no allocation was refused");
            return;
        }
        map.settle();
        assert_eq!((map.len(), free(&b)), before, "the {n}th allocation failed");
    }
    panic!("a stock needs fewer than 40 allocations");
}

#[test]
fn one_generation_serves_many_ranges() {
    let b = boot(4096, 1);
    let map = map(&b);
    let ranges: Vec<_> = (0..4 * BATCH).map(|_| map.buffer(PAGE_SIZE).unwrap()).collect();
    let before: Vec<_> = ranges.iter().map(|r| r.range()).collect();
    drop(ranges);
    assert_eq!(map.generation(), 4);
    assert_eq!(map.len(), 0);
    let again = map.buffer(PAGE_SIZE).unwrap();
    assert_eq!(again.range(), before[0], "the lowest hole that fits");
}

#[test]
fn addresses_and_frames_that_wait_come_back_when_they_run_out() {
    let b = boot(4096, 1);
    let map = map(&b);
    let whole = KERNEL.len() / PAGE_SIZE - 1;
    let half = map.buffer(whole / 2 * PAGE_SIZE).unwrap();
    drop(half);
    let before = map.generation();
    let most = map.buffer(whole * 3 / 4 * PAGE_SIZE);
    assert!(most.is_ok(), "the addresses of what was given up");
    assert!(map.generation() >= before);
}

#[test]
fn a_device_window_has_the_devices_frames_and_keeps_them() {
    let b = boot(2048, 1);
    let map = map(&b);
    let before = free(&b);
    let frames = PhysRange { start: Pfn(1 << 30), end: Pfn((1 << 30) + 3) };
    // SAFETY: the frames lie beyond RAM, so no other code uses them, and the test reaches none of them.
    let window = unsafe { map.device(frames, MemoryType::Uncached) }.unwrap();
    let shown: Vec<_> = window.pages().map(|va| b.vm.machine().kernel_leaf(va).unwrap()).collect();
    assert_eq!(shown, [Pfn(1 << 30), Pfn((1 << 30) + 1), Pfn((1 << 30) + 2)]);
    drop(window);
    map.settle();
    assert_eq!(free(&b), before);
    // SAFETY: the range has no frames, so nothing is mapped.
    let none = unsafe { map.device(PhysRange { start: Pfn(7), end: Pfn(7) }, MemoryType::Uncached) };
    assert_eq!(none.err(), Some(MapError::Invalid));
}

#[test]
fn a_failed_allocation_leaves_nothing_behind() {
    let b = boot(4096, 1);
    let map = map(&b);
    let warm = map.buffer(PAGE_SIZE).unwrap();
    map.settle();
    let before = (map.len(), free(&b));
    for n in 1..40 {
        b.vm.fail_allocation(n);
        let made = map.buffer(5 * PAGE_SIZE);
        b.vm.fail_allocation(0);
        let failed = made.is_err();
        drop(made);
        map.reclaim();
        assert_eq!((map.len(), free(&b)), before, "the {n}th allocation failed: {failed}");
        if !failed && n > 12 {
            break;
        }
    }
    drop(warm);
}

#[test]
fn finding_room_between_many_stacks_visits_a_few_nodes() {
    let b = boot(6144, 1);
    let map = map(&b);
    let mut ranges: Vec<_> = (0..700).map(|_| map.buffer(PAGE_SIZE).unwrap()).collect();
    // Every second range is released, which leaves 350 holes that are too small for a stack.
    let mut n = 0;
    ranges.retain(|_| {
        n += 1;
        n % 2 == 0
    });
    map.settle();
    let _stack = map.stack().unwrap();
    assert!(map.visits_for_a_stack() <= 4, "{} nodes", map.visits_for_a_stack());
}

#[test]
fn idle_stacks_are_given_back_before_memory_is_out() {
    quire_sync::hooks::threads::set_cpu(0);
    let b = boot(1024, 1);
    let map = map(&b);
    b.vm.reclaim_from(map);
    let stacks: Vec<_> = (0..KEEP / 2).map(|_| map.stack().unwrap()).collect();
    drop(stacks);
    let space = crate::Space::new(b.vm).unwrap();
    crate::tests::anonymous(&space, 0, 960);
    let before = b.vm.frames().free() - b.vm.frames().reserve();
    let stored = (0..960).take_while(|n| space.fault(crate::testing::page(*n), crate::Access::Write).is_ok()).count();
    assert_eq!(map.len(), 1);
    assert!(stored as u64 > before, "{stored} pages where {before} were free: stacks' frames are memory too");
}

#[test]
fn the_addresses_of_idle_stacks_serve_other_ranges() {
    let b = boot(8192, 1);
    let map = map(&b);
    drop((0..KEEP / 2).map(|_| map.stack().unwrap()).collect::<Vec<_>>());
    assert_eq!(map.len(), KEEP / 2, "idle stacks are kept");
    // One idle stack stays set aside, with its guard.
    let all = KERNEL.len() - 2 * PAGE_SIZE - (STACK + PAGE_SIZE);
    assert_eq!(map.buffer(all).map(|r| r.range().len()), Ok(all));
}
