//! The benchmark of the search for space among 100,000 kernel stacks that are mapped and unmapped. It compares
//! production's tree without hints, the same tree with hints, and the linear list for which the hints were invented.

use super::{Bench, Build, Line, Report, Size};
use crate::map::hinted::Hinted;
use crate::map::linear::Linear;
use crate::map::ours::Ours;
use crate::map::workload::Random;
use crate::map::{AddressMap, PAGE};
use crate::{Failure, harness};
use quire_vm::map::FAN_OUT;

/// The number of ranges.
const STACKS: usize = 100_000;
/// The number of times that one range is unmapped and another is mapped.
const OPERATIONS: usize = 50_000;
/// The lowest address of the simulated kernel map.
const LO: u64 = 1 << 40;

/// The addresses in which space is searched.
#[derive(Clone, Copy)]
pub struct Window {
    lo: u64,
    hi: u64,
}

impl Window {
    /// A window with more than enough space for this many ranges.
    pub fn of(ranges: usize) -> Window {
        Window { lo: LO, hi: LO + (ranges as u64 * 4 * STACK).next_power_of_two().max(1 << 36) }
    }
}

/// The window of the kernel map.
const KERNEL: Window = Window { lo: LO, hi: LO + (1 << 36) };
/// The sizes of a stack and of a buffer in bytes. A stack has a guard page and four pages, a buffer a guard page and
/// one page.
const STACK: u64 = 5 * PAGE;
const BUFFER: u64 = 2 * PAGE;

/// The nodes visited and the times, with and without hints.
pub const HINTS: Bench = Bench {
    build: Build::Native,
    lines: &[
        Line {
            name: "findspace_nodes_churn",
            unit: "nodes",
            how: "Production's tree with 100,000 ranges: stacks of four pages and buffers of one, guards included, of \
                which every third was unmapped. Then, 50,000 times, a random range is unmapped and a new one takes the \
                lowest hole; every fourth is a buffer. Mean number of nodes that a search visits.",
        },
        Line {
            name: "findspace_nodes_churn_hints",
            unit: "nodes",
            how: "The same behind four hints by size and alignment.",
        },
        Line {
            name: "findspace_entries_churn_linear",
            unit: "entries",
            how: "Entries that a linear scan behind the same hints visits, mean of 1,000 searches.",
        },
        Line {
            name: "findspace_time_churn",
            unit: "ns/op",
            how: "Median time of one unmapping and mapping, without hints.",
        },
        Line { name: "findspace_time_churn_hints", unit: "ns/op", how: "The same with hints." },
    ],
    run: |report| {
        let size = report.size;
        let nodes = |find: &mut dyn FnMut(u64) -> u64, n: &mut (u64, u64), len| {
            n.0 += 1;
            n.1 += find(len);
        };
        let mut plain = Ours::<FAN_OUT>::new();
        let mut n = (0, 0);
        churn(&mut plain, size, OPERATIONS, |map, len| {
            nodes(&mut |len| map.first_fit_visits(len, PAGE, KERNEL.lo, KERNEL.hi).1, &mut n, len);
        });
        report.put("findspace_nodes_churn", n.1 as f64 / n.0 as f64);
        let mut hinted = Hinted::<FAN_OUT>::new();
        let mut n = (0, 0);
        churn(&mut hinted, size, OPERATIONS, |map, len| {
            nodes(&mut |len| map.first_fit_visits(len, PAGE, KERNEL.lo, KERNEL.hi).1, &mut n, len);
        });
        report.put("findspace_nodes_churn_hints", n.1 as f64 / n.0 as f64);
        let mut linear = Linear::new();
        let mut n = (0, 0);
        churn(&mut linear, size, 1000, |map, len| {
            map.first_fit(len, PAGE, KERNEL.lo, KERNEL.hi);
            n = (n.0 + 1, n.1 + map.visits());
        });
        report.put("findspace_entries_churn_linear", n.1 as f64 / n.0 as f64);
        timed(report, "findspace_time_churn", Ours::<FAN_OUT>::new)?;
        timed(report, "findspace_time_churn_hints", Hinted::<FAN_OUT>::new)
    },
};

fn timed<M: AddressMap>(report: &mut Report, name: &str, new: impl Fn() -> M) -> Result<(), Failure> {
    let (stacks, operations) = (report.size.of(1000, STACKS), report.size.of(1000, OPERATIONS));
    let prepared = || {
        let mut map = new();
        let places = fill(&mut map, stacks);
        (map, places)
    };
    let seconds = harness::median(report.size, name, prepared, |(mut map, mut places)| {
        come_and_go(&mut map, &mut places, KERNEL, operations, |_, _| ());
        map
    })?;
    report.put(name, seconds * 1e9 / operations as f64);
    Ok(())
}

fn churn<M: AddressMap>(map: &mut M, size: Size, operations: usize, before: impl FnMut(&mut M, u64)) {
    let mut places = fill(map, size.of(1000, STACKS));
    come_and_go(map, &mut places, KERNEL, size.of(1000, operations), before);
}

fn length(n: usize) -> u64 {
    if n.is_multiple_of(4) { BUFFER } else { STACK }
}

/// A different protection for each address, so that neighbours are not merged. Regions of a kernel map are not merged
/// either.
fn prot(at: u64) -> u32 {
    (at / PAGE) as u32
}

/// Fills the map, then removes every third range. Returns the remaining ranges.
pub fn fill(map: &mut impl AddressMap, ranges: usize) -> Vec<(u64, u64)> {
    let mut places = Vec::with_capacity(ranges);
    let mut at = LO;
    for n in 0..ranges {
        let end = at + length(n);
        map.insert(at, end, prot(at)).expect("nothing is there");
        places.push((at, end));
        at = end;
    }
    let mut n = 0;
    places.retain(|&(start, end)| {
        n += 1;
        let goes = n % 3 == 0;
        if goes {
            map.remove(start, end);
        }
        !goes
    });
    places
}

/// Unmaps a random range and maps another in the lowest hole, `operations` times. Calls `before` with the length of the
/// new range before each search.
pub fn come_and_go<M: AddressMap>(
    map: &mut M,
    places: &mut [(u64, u64)],
    window: Window,
    operations: usize,
    mut before: impl FnMut(&mut M, u64),
) {
    let mut random = Random(0x57ac);
    for n in 0..operations {
        let i = random.below(places.len() as u64) as usize;
        let (start, end) = places[i];
        map.remove(start, end);
        let len = length(n);
        before(map, len);
        let at = map.first_fit(len, PAGE, window.lo, window.hi).expect("the window is large enough");
        map.insert(at, at + len, prot(at)).expect("a hole was found there");
        places[i] = (at, at + len);
    }
}
