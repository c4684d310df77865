//! The benchmark of shadow chains: the memory that processes hold after forks and stores. In a *line*, each process is
//! forked from the one before. In a *family*, all processes are forked from one parent.

use super::{Bench, Build, Line, Report};
use crate::{Failure, machine};
use quire_hosted::{Cpu, Hosted};
use quire_vm::map::{MapRequest, Placement, Space, SpaceRef};
use quire_vm::phys::page::FrameKind;
use quire_vm::sleep::MaySleep;
use quire_vm::stats::Event;
use quire_vm::{Access, PAGE_SIZE, Vm};

const BASE: u64 = 0x1000_0000_0000;
const GENERATIONS: u64 = 1000;
/// The number of pages of a line's region (`LINE_PAGES`), and the number of pages into which each generation stores
/// (`DIRTY`).
const LINE_PAGES: u64 = 2048;
const DIRTY: u64 = 16;
const CHILDREN: u64 = 100;
/// The number of pages of a family's region: 16 MiB.
const FAMILY_PAGES: u64 = 4096;

/// A line of a thousand generations: each process is forked from the process before it.
pub const LINES: Bench = Bench {
    build: Build::Native,
    lines: &[
        Line {
            name: "chain_1000_overhead",
            unit: "ratio",
            how: "Hosted: 1,000 generations of forks, each storing into 16 random pages of a region of 2,048. All live \
                until the last has stored; then all but the last exit. Pages held by objects, over pages that the last \
                can reach.",
        },
        Line {
            name: "chain_1000_visits",
            unit: "visits/generation",
            how: "The same: pages moved, copied up or looked at by the reaper, for each generation.",
        },
        Line {
            name: "chain_1000_overhead_leaving",
            unit: "ratio",
            how: "The same where each parent exits after its child has stored.",
        },
        Line {
            name: "chain_1000_visits_leaving",
            unit: "visits/generation",
            how: "The visits of chain_1000_overhead_leaving.",
        },
    ],
    run: |report| {
        line(report, false, ["chain_1000_overhead", "chain_1000_visits"])?;
        line(report, true, ["chain_1000_overhead_leaving", "chain_1000_visits_leaving"])
    },
};

/// A family of one parent and a hundred children.
pub const FAMILY: Bench = Bench {
    build: Build::Native,
    lines: &[
        Line {
            name: "shadow_copies_100_children",
            unit: "copies",
            how: "Hosted: a parent and 100 children each store into every page of a shared region of 16 MiB, in random \
                order. Pages held by objects at the end, over pages of the region.",
        },
        Line {
            name: "shadow_copies_100_children_alone",
            unit: "copies",
            how: "The same after the parent has exited halfway and the reaper has run.",
        },
    ],
    run: |report| {
        let pages = report.size.of(64, FAMILY_PAGES);
        report.put("shadow_copies_100_children", family(pages, false)?);
        report.put("shadow_copies_100_children_alone", family(pages, true)?);
        Ok(())
    },
};

/// Pseudo-random numbers, which are the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

fn first(vm: &'static Vm<Hosted>, pages: u64) -> Result<SpaceRef<Hosted>, Failure> {
    let space = Space::new(vm)?;
    space.map(&MapRequest::private(Placement::Fixed(BASE), pages * PAGE_SIZE))?;
    (0..pages).try_for_each(|n| store(&space, n))?;
    Ok(space)
}

fn store(space: &Space<Hosted>, page: u64) -> Result<(), Failure> {
    space.fault(BASE + page * PAGE_SIZE, Access::Write)?;
    Ok(())
}

/// The number of pages that objects hold.
fn held(vm: &'static Vm<Hosted>) -> u64 {
    // SAFETY: the descriptors are only read, as `descriptors_in_use` requires.
    unsafe { vm.descriptors_in_use() }.filter(|page| page.kind() == FrameKind::Object).count() as u64
}

fn reap(vm: &'static Vm<Hosted>) -> u64 {
    let mut seen = 0;
    while vm.reapable() {
        seen += vm.reap(u64::MAX, &mut MaySleep::here());
    }
    seen
}

fn line(report: &mut Report, leaving: bool, names: [&str; 2]) -> Result<(), Failure> {
    let generations = report.size.of(20, GENERATIONS);
    let vm = machine::boot(1, report.size.of(64, 1024));
    let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
    let mut random = Random(88_172_645_463_325_252);
    let mut alive = vec![first(vm, LINE_PAGES)?];
    let mut visits = 0;
    for _ in 0..generations {
        let Some(parent) = alive.last() else { break };
        let child = parent.fork()?;
        for _ in 0..DIRTY {
            store(&child, random.below(LINE_PAGES))?;
        }
        if leaving {
            alive.clear();
            visits += reap(vm);
        }
        alive.push(child);
    }
    let Some(last) = alive.pop() else { return Ok(()) };
    alive.clear();
    visits += reap(vm);
    let count = |e| vm.stats().total(e);
    visits += count(Event::PageMoved) + count(Event::PageCopiedUp);
    report.put(names[0], held(vm) as f64 / LINE_PAGES as f64);
    report.put(names[1], visits as f64 / generations as f64);
    drop(last);
    Ok(())
}

fn family(pages: u64, leaving: bool) -> Result<f64, Failure> {
    let vm = machine::boot(1, (CHILDREN + 2) * pages / 256 + 128);
    let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
    let mut random = Random(362_436_069);
    let mut members = vec![Some(first(vm, pages)?)];
    for _ in 0..CHILDREN {
        let Some(Some(parent)) = members.first() else { break };
        let child = parent.fork()?;
        members.push(Some(child));
    }
    // Each member visits the pages in its own random order. The member of each store is chosen at random.
    let mut orders: Vec<Vec<u64>> = members.iter().map(|_| (0..pages).collect()).collect();
    for order in &mut orders {
        (1..order.len()).rev().for_each(|i| order.swap(i, random.below(i as u64 + 1) as usize));
    }
    let mut left = (CHILDREN + 1) * pages;
    let half = left / 2;
    while left > 0 {
        let who = random.below(CHILDREN + 1) as usize;
        let Some(page) = orders[who].pop() else { continue };
        if let Some(space) = &members[who] {
            store(space, page)?;
        }
        left -= 1;
        if leaving && left == half {
            members[0] = None;
        }
    }
    reap(vm);
    Ok(held(vm) as f64 / pages as f64)
}
