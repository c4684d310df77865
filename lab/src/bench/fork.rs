//! The benchmark of forks: of touched memory, whose PTEs are write-protected, and of mostly untouched memory.

use super::{Bench, Build, Line, Size};
use crate::{Failure, harness, machine};
use quire_hosted::{Cpu, Hosted};
use quire_vm::map::{MapRequest, Placement, Space, SpaceRef};
use quire_vm::{Access, PAGE_SIZE, Vm};

const BASE: u64 = 0x1000_0000_0000;

/// A fork of 1 GiB of private memory, with every page written.
pub const TOUCHED: Bench = Bench {
    build: Build::Native,
    lines: &[Line {
        name: "fork_1gib_touched",
        unit: "ms",
        how: "Hosted, one CPU: Space::fork of a space with one private mapping of 1 GiB whose 262,144 pages were all \
            written. Median time of the call, without the drop of the child.",
    }],
    run: |report| {
        let mib = report.size.of(16, 1024);
        let vm = machine::boot(1, mib + 64);
        let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
        let median = forks(report.size, "fork_1gib_touched", vm, mib << 20, 1)?;
        report.put("fork_1gib_touched", median * 1e3);
        Ok(())
    },
};

/// A fork of 1 TiB of private memory, with 100 pages written.
pub const MAPPED: Bench = Bench {
    build: Build::Native,
    lines: &[Line {
        name: "fork_1tib_mapped_100_touched",
        unit: "us",
        how: "Hosted, one CPU: Space::fork of a space with one private mapping of 1 TiB in which 100 pages, evenly \
            spread, were written. Median time of the call, without the drop of the child.",
    }],
    run: |report| {
        let vm = machine::boot(1, 64);
        let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
        let median = forks(report.size, "fork_1tib_mapped_100_touched", vm, 1 << 40, (1 << 40) / PAGE_SIZE / 100)?;
        report.put("fork_1tib_mapped_100_touched", median * 1e6);
        Ok(())
    },
};

/// The median time, in seconds, of a fork of `bytes` bytes, of which every `stride`-th page was written. Each sample
/// has its own space.
fn forks(size: Size, name: &str, vm: &'static Vm<Hosted>, bytes: u64, stride: u64) -> Result<f64, Failure> {
    // An error of any sample is the result of the bench.
    let mut failed = None;
    let median = harness::median(
        size,
        name,
        || touched(vm, bytes, stride),
        |space| {
            let forked = space.and_then(|s| Ok((s.fork()?, s)));
            forked.map_err(|e| failed = Some(e)).ok()
        },
    )?;
    failed.map_or(Ok(median), Err)
}

fn touched(vm: &'static Vm<Hosted>, bytes: u64, stride: u64) -> Result<SpaceRef<Hosted>, Failure> {
    let space = Space::new(vm)?;
    space.map(&MapRequest::private(Placement::Fixed(BASE), bytes))?;
    for page in (0..bytes / PAGE_SIZE).step_by(stride as usize) {
        space.fault(BASE + page * PAGE_SIZE, Access::Write)?;
    }
    Ok(space)
}
