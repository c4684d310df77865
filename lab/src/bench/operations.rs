//! The cost of map operations on a whole space, in instructions. Cachegrind counts them, so the numbers are the same in
//! each run and on each machine, unlike times. They include the instructions of the simulated hardware. A change
//! between versions comes from the map.

use super::{Bench, Build, Line, Report, Size};
use crate::cachegrind::{self, Workload};
use crate::map::workload::Random;
use crate::{Failure, machine};
use quire_hosted::{Cpu, Hosted};
use quire_vm::map::{MapRequest, Placement, Space, SpaceRef};
use quire_vm::{Access, PAGE_SIZE, Prot, VirtRange};

const BASE: u64 = 0x1000_0000_0000;
/// The distance in bytes from one of many mappings to the next. The gaps keep them from being merged.
const SLOT: u64 = 32 * PAGE_SIZE;
/// The number of operations of the small workloads, and the number of mappings of the large ones.
const OPERATIONS: usize = 10_000;

/// The instructions of the common operations.
pub const INSTRUCTIONS: Bench = Bench {
    build: Build::Native,
    lines: &[
        Line {
            name: "instructions_map_unmap",
            unit: "instructions/op",
            how: "Hosted, one CPU, cachegrind: a page is mapped without an address and unmapped again, untouched, \
                beside ten other mappings. The figure is for both together.",
        },
        Line {
            name: "instructions_protect",
            unit: "instructions/op",
            how: "Hosted, one CPU, cachegrind: the middle 16 of 48 resident pages are made read-only and writable \
                again in turn.",
        },
        Line {
            name: "instructions_create",
            unit: "instructions/op",
            how: "Hosted, one CPU, cachegrind: 10,000 ranges of one page with gaps between them are mapped at fixed addresses, \
                  in random order.",
        },
        Line {
            name: "instructions_remove",
            unit: "instructions/op",
            how: "Hosted, one CPU, cachegrind: the same 10,000 ranges, each touched, are unmapped in random order.",
        },
    ],
    run: |report| {
        counted(report, "instructions_map_unmap", &MAP_UNMAP)?;
        counted(report, "instructions_protect", &PROTECT)?;
        counted(report, "instructions_create", &CREATE)?;
        counted(report, "instructions_remove", &REMOVE)
    },
};

fn operations(size: Size) -> usize {
    size.of(100, OPERATIONS)
}

fn counted(report: &mut Report, name: &str, workload: &Workload) -> Result<(), Failure> {
    let counts = cachegrind::misses(workload, operations(report.size), report.size)?;
    report.put(name, counts.instructions as f64 / operations(report.size) as f64);
    Ok(())
}

/// A page is mapped and unmapped, repeatedly.
pub const MAP_UNMAP: Workload = Workload { name: "map_unmap", run: |n, _| done(map_unmap(n)) };
/// The write permission of a range is removed and restored, repeatedly.
pub const PROTECT: Workload = Workload { name: "protect", run: |n, _| done(protect(n)) };
/// Very many mappings are made.
pub const CREATE: Workload = Workload { name: "create", run: |n, size| done(create(n, size).map(leave)) };
/// Very many mappings are made and touched, and then some are unmapped.
pub const REMOVE: Workload = Workload { name: "remove", run: |n, size| done(remove(n, size)) };

fn done(result: Result<(), Failure>) {
    result.expect("a fresh machine has enough memory for the workload");
}

fn range(start: u64, pages: u64) -> VirtRange {
    VirtRange { start, end: start + pages * PAGE_SIZE }
}

fn fixed(start: u64, pages: u64) -> MapRequest<'static, Hosted> {
    MapRequest::private(Placement::FixedNoReplace(start), pages * PAGE_SIZE)
}

fn map_unmap(count: usize) -> Result<(), Failure> {
    let vm = machine::boot(1, 64);
    let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
    let space = Space::new(vm)?;
    for n in 0..10 {
        space.map(&fixed(BASE + n * SLOT, 1))?;
    }
    for _ in 0..count {
        let at = space.map(&MapRequest::private(Placement::Any { hint: 0 }, PAGE_SIZE))?;
        space.unmap(range(at, 1))?;
    }
    Ok(())
}

fn protect(count: usize) -> Result<(), Failure> {
    let vm = machine::boot(1, 64);
    let cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
    let space = Space::new(vm)?;
    space.map(&fixed(BASE, 48))?;
    cpu.enter(&space).expect("the space belongs to this machine");
    for page in 0..48 {
        cpu.write(&space, BASE + page * PAGE_SIZE, 1)?;
    }
    let prots = [Prot::READ, Prot::READ | Prot::WRITE];
    // The first change splits the mapping into three entries. It is not repeated.
    space.protect(range(BASE + 16 * PAGE_SIZE, 16), prots[0])?;
    for n in 0..count {
        space.protect(range(BASE + 16 * PAGE_SIZE, 16), prots[(n + 1) % 2])?;
    }
    cpu.leave();
    Ok(())
}

/// The addresses of all slots in random order.
fn order(seed: u64, size: Size) -> Vec<u64> {
    Random(seed).shuffled(operations(size)).into_iter().map(|slot| BASE + u64::from(slot) * SLOT).collect()
}

fn create(count: usize, size: Size) -> Result<SpaceRef<Hosted>, Failure> {
    let vm = machine::boot(1, 256);
    // The CPU is never detached, because the space is used until the process ends.
    std::mem::forget(Cpu::attach(vm, 0).expect("no other thread is this CPU"));
    let space = Space::new(vm)?;
    for start in order(1, size).into_iter().take(count) {
        space.map(&fixed(start, 1))?;
    }
    Ok(space)
}

/// Leaks the space, so that its teardown is not counted. It ends with the process.
fn leave(space: SpaceRef<Hosted>) {
    std::mem::forget(space);
}

fn remove(count: usize, size: Size) -> Result<(), Failure> {
    let space = create(operations(size), size)?;
    for start in order(2, size) {
        space.fault(start, Access::Write)?;
    }
    for start in order(3, size).into_iter().take(count) {
        space.unmap(range(start, 1))?;
    }
    leave(space);
    Ok(())
}
