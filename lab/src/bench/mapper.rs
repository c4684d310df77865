//! The benchmark of the address map: 200,000 ranges with gaps between them are mapped and unmapped in random order. It
//! compares production's tree, the two splay trees and the standard library's ordered tree.

use super::{Bench, Build, Line, Report, Size};
use crate::cachegrind::{self, Workload};
use crate::map::AddressMap;
use crate::map::ordered::Ordered;
use crate::map::ours::Ours;
use crate::map::splay::{After, Before};
use crate::map::workload::{Plan, Sizes};
use crate::{Failure, harness};
use quire_vm::map::FAN_OUT;

/// The number of ranges.
const ENTRIES: usize = 200_000;

fn entries(size: Size) -> usize {
    size.of(1000, ENTRIES)
}

fn plan(size: Size, sizes: Sizes) -> Plan {
    Plan::new(entries(size), sizes, 0x5eed)
}

/// The work for cachegrind: a map with equal sizes, then one with mixed sizes. With `count` 0 only the plans are made.
fn work<M: AddressMap>(count: usize, size: Size, new: impl Fn(usize) -> M) {
    for sizes in [Sizes::Equal, Sizes::Mixed] {
        let (plan, mut map) = (plan(size, sizes), new(entries(size)));
        if count > 0 {
            plan.run(&mut map);
        }
    }
}

/// The work on the splay tree *before* FreeBSD's change (`map/splay.rs`), for cachegrind.
pub const BEFORE: Workload = Workload { name: "before", run: |n, size| work(n, size, Before::with_capacity) };
/// The work on the splay tree *after* FreeBSD's change (`map/splay.rs`), for cachegrind.
pub const AFTER: Workload = Workload { name: "after", run: |n, size| work(n, size, After::with_capacity) };
/// The work on production's tree, for cachegrind.
pub const OURS: Workload = Workload { name: "ours", run: |n, size| work(n, size, |_| Ours::<FAN_OUT>::new()) };
/// The work on the standard library's tree, for cachegrind.
pub const ORDERED: Workload = Workload { name: "ordered", run: |n, size| work(n, size, Ordered::with_capacity) };

macro_rules! misses {
    ($first:literal, $last:literal, $workload:expr, $what:literal) => {
        Bench {
            build: Build::Native,
            lines: &[
                Line {
                    name: $first,
                    unit: "misses/op",
                    how: concat!("Cachegrind, first level of 32 KiB, data loads and stores; ", $what),
                },
                Line { name: $last, unit: "misses/op", how: concat!("Cachegrind, last level of 8 MiB; ", $what) },
            ],
            run: |report| missed(report, $first, $last, &$workload),
        }
    };
}

/// The cache misses of *before*.
pub const MISSES_BEFORE: Bench = misses!(
    "mapper_misses_before",
    "mapper_misses_ll_before",
    BEFORE,
    "splay that keeps the largest gap by reading both children of each node on its path. 200,000 ranges with gaps \
     between them are mapped, touched, protected and unmapped in random orders, with equal and mixed sizes."
);
/// The cache misses of *after*.
pub const MISSES_AFTER: Bench = misses!(
    "mapper_misses_after",
    "mapper_misses_ll_after",
    AFTER,
    "splay that infers the child off the path from the parent's value (FreeBSD D19826); the same work as mapper_misses_before."
);
/// The cache misses of production's tree.
pub const MISSES_OURS: Bench = misses!(
    "mapper_misses_ours",
    "mapper_misses_ll_ours",
    OURS,
    "production's tree, entries and reclamation included; the same work as mapper_misses_before."
);
/// The cache misses of the standard library's tree.
pub const MISSES_ORDERED: Bench = misses!(
    "mapper_misses_ordered",
    "mapper_misses_ll_ordered",
    ORDERED,
    "the standard library's BTreeMap, which keeps no gaps; the same work as mapper_misses_before."
);

fn missed(report: &mut Report, first: &str, last: &str, workload: &Workload) -> Result<(), Failure> {
    let misses = cachegrind::misses(workload, 1, report.size)?;
    let operations = 2.0 * plan(report.size, Sizes::Equal).operations() as f64;
    report.put(first, misses.first as f64 / operations);
    report.put(last, misses.last as f64 / operations);
    Ok(())
}

/// The times of all four trees.
pub const TIME: Bench = Bench {
    build: Build::Native,
    lines: &[
        Line {
            name: "mapper_time_before",
            unit: "ns/op",
            how: "Median time of the work of mapper_misses_before, mixed sizes, by the splay that reads both children.",
        },
        Line {
            name: "mapper_time_after",
            unit: "ns/op",
            how: "The same by the splay that infers the child off the path.",
        },
        Line {
            name: "mapper_time_ours",
            unit: "ns/op",
            how: "The same by production's tree, entries and reclamation included.",
        },
        Line {
            name: "mapper_time_ordered",
            unit: "ns/op",
            how: "The same by the standard library's BTreeMap, without gaps.",
        },
    ],
    run: |report| {
        timed(report, "mapper_time_before", Before::with_capacity)?;
        timed(report, "mapper_time_after", After::with_capacity)?;
        timed(report, "mapper_time_ours", |_| Ours::<FAN_OUT>::new())?;
        timed(report, "mapper_time_ordered", Ordered::with_capacity)
    },
};

fn timed<M: AddressMap>(report: &mut Report, name: &str, new: impl Fn(usize) -> M) -> Result<(), Failure> {
    let (plan, ranges) = (plan(report.size, Sizes::Mixed), entries(report.size));
    let seconds = harness::median(
        report.size,
        name,
        || new(ranges),
        |mut map| {
            plan.run(&mut map);
            map
        },
    )?;
    report.put(name, seconds * 1e9 / plan.operations() as f64);
    Ok(())
}

/// How often the splay tree *after* FreeBSD's change reads a child that is not on the search path.
pub const ASKED: Bench = Bench {
    build: Build::Native,
    lines: &[
        Line {
            name: "mapper_after_reads",
            unit: "%",
            how: "Off-path values for which the inferring splay read the child, over all that it needed (source: 1.07 \
                G of 1.89 G, 57 %).",
        },
        Line {
            name: "mapper_after_declines",
            unit: "%",
            how: "Off-path values inferred from values that decline along the path (source: 821 M of 1.89 G, 43 %).",
        },
        Line {
            name: "mapper_after_zeros",
            unit: "%",
            how: "Off-path values read although the node's own value was zero, which the source's first version tested \
                (97 M, 5 %).",
        },
    ],
    run: |report| {
        let (mut reads, mut declines, mut zeros) = (0, 0, 0);
        for sizes in [Sizes::Equal, Sizes::Mixed] {
            let mut map = After::with_capacity(entries(report.size));
            plan(report.size, sizes).run(&mut map);
            let asked = map.asked();
            (reads, declines, zeros) = (reads + asked.reads, declines + asked.declines, zeros + asked.zeros);
        }
        let share = |n: u64| 100.0 * n as f64 / (reads + declines) as f64;
        report.put("mapper_after_reads", share(reads));
        report.put("mapper_after_declines", share(declines));
        report.put("mapper_after_zeros", share(zeros));
        Ok(())
    },
};

/// The number of cache lines that an operation touches.
pub const TOUCHED: Bench = Bench {
    build: Build::Recording,
    lines: &[
        Line {
            name: "mapper_lines_before",
            unit: "lines/op",
            how: "Recording build: different lines that an operation of mapper_misses_before touches, with mixed \
                sizes; every 64th operation is counted. Each line is a node of the splay that reads both children.",
        },
        Line { name: "mapper_lines_after", unit: "lines/op", how: "The same: nodes of the splay that infers." },
        Line {
            name: "mapper_lines_ours",
            unit: "lines/op",
            how: "The same: lines of production's nodes (an inner node is seven, a leaf five), entries' records and the epoch.",
        },
    ],
    run: touched,
};

#[cfg(not(recording))]
fn touched(_report: &mut Report) -> Result<(), Failure> {
    Err(Failure::Build)
}

#[cfg(recording)]
fn touched(report: &mut Report) -> Result<(), Failure> {
    let plan = plan(report.size, Sizes::Mixed);
    report.put("mapper_lines_before", lines(&plan, Before::with_capacity(entries(report.size))));
    report.put("mapper_lines_after", lines(&plan, After::with_capacity(entries(report.size))));
    report.put("mapper_lines_ours", lines(&plan, Ours::<FAN_OUT>::new()));
    Ok(())
}

#[cfg(recording)]
pub(crate) use recorded::lines;

#[cfg(recording)]
mod recorded {
    use super::Plan;
    use crate::map::{AddressMap, MapRange, Taken};
    use quire_sync::record::scope;

    /// A map that records its accesses in a sample of the operations.
    struct Counted<M> {
        map: M,
        operations: usize,
        counted: usize,
        lines: usize,
    }

    const EVERY: usize = 64;

    impl<M: AddressMap> Counted<M> {
        fn operation<R>(&mut self, f: impl FnOnce(&mut M) -> R) -> R {
            self.operations += 1;
            if !self.operations.is_multiple_of(EVERY) {
                return f(&mut self.map);
            }
            let (done, record) = scope(|| f(&mut self.map));
            self.counted += 1;
            self.lines += record.lines();
            done
        }
    }

    impl<M: AddressMap> AddressMap for Counted<M> {
        fn lookup(&mut self, at: u64) -> Option<MapRange> {
            self.operation(|m| m.lookup(at))
        }
        fn insert(&mut self, start: u64, end: u64, prot: u32) -> Result<(), Taken> {
            self.operation(|m| m.insert(start, end, prot))
        }
        fn remove(&mut self, start: u64, end: u64) {
            self.operation(|m| m.remove(start, end));
        }
        fn protect(&mut self, start: u64, end: u64, prot: u32) {
            self.operation(|m| m.protect(start, end, prot));
        }
        fn first_fit(&mut self, len: u64, align: u64, lo: u64, hi: u64) -> Option<u64> {
            self.operation(|m| m.first_fit(len, align, lo, hi))
        }
        fn all(&self) -> Vec<MapRange> {
            self.map.all()
        }
        fn check(&self) -> Result<(), String> {
            self.map.check()
        }
    }

    /// The number of different lines that an operation of `plan` touches, on average.
    pub fn lines(plan: &Plan, map: impl AddressMap) -> f64 {
        let mut counted = Counted { map, operations: 0, counted: 0, lines: 0 };
        plan.run(&mut counted);
        counted.lines as f64 / counted.counted as f64
    }
}
