//! The experiment about the address map: very many ranges with gaps between them, and the search for space among stacks
//! that are mapped and unmapped.

use super::threads::timed;
use super::{Figure, Plan, Round, Scale, Study, claim, log, number, plot};
use crate::Failure;
use crate::bench::Size;
use crate::bench::find_space::{Window, come_and_go, fill};
use crate::cachegrind;
use crate::map::ordered::Ordered;
use crate::map::ours::Ours;
use crate::map::splay::{After, Before};
use crate::map::workload::{Plan as Work, Sizes};
use crate::map::{AddressMap, MapFootprint};
use quire_results::{Place, Shape, Side, Source};
use quire_vm::map::FAN_OUT;

const TIME: [Figure; 1] = [Figure::time("time", "ns/op")];
const TIME_AND_NODES: [Figure; 3] =
    [Figure::time("time", "ns/op"), Figure::count("nodes", "nodes/1000_ranges"), Figure::count("bytes", "bytes/range")];
const LINES: [Figure; 1] = [Figure::count("lines", "lines/op")];
const MISSES: [Figure; 3] = [
    Figure::count("misses", "misses/op"),
    Figure::count("misses_last", "misses/op"),
    Figure::count("instructions", "instructions/op"),
];

/// The maps and their sides.
const SIDES: [(Side, Which); 4] = [
    (Side::Before, Which::Before),
    (Side::After, Which::After),
    (Side::Ours, Which::Ours),
    (Side::Plain, Which::Plain),
];
const SIZES: [(&str, Sizes); 2] = [("equal", Sizes::Equal), ("mixed", Sizes::Mixed)];

/// The experiment.
pub const STUDY: Study = Study {
    name: "map",
    source: Source::S2,
    title: "The address map",
    about: "The work maps ranges with gaps between them, touches and protects them, unmaps half of them, maps that \
        half again, and unmaps all. Each step has its own random order. Sizes are equal or mixed. The search for room \
        starts with ranges of two sizes in a row, of which every third is unmapped. Then a random range is unmapped \
        and a new one takes the lowest hole, repeatedly. Before is a splay tree that reads both children of each node \
        on its path to keep the largest gap. After infers the value of the child off the path. Plain is the standard \
        library's ordered tree, which keeps no gaps and finds room by a linear scan.",
    caveats: &[
        "Cachegrind counts the misses with caches of 32 KiB and 8 MiB, so they are equal on every machine. Times \
         depend on the host's caches.",
        "Nodes and bytes are those of all ranges, mapped in a random order. Production has a record of one cache line \
         for each range beside its nodes. A splay's node is also the record.",
        "Production's tree pays for readers without locks, which the other trees lack: it replaces nodes and reclaims \
         them through an epoch.",
        "In the guest, programs use the map through system calls, and the figures include these calls.",
    ],
    claims: || {
        vec![claim(
            "FreeBSD D19826: data-cache misses 10 to 14 % fewer, time 5 to 7 % less, on map and unmap",
            "misses",
            Place::Cachegrind,
            &[("entries", number(10_000u32)), ("sizes", "mixed".into())],
            1.1,
            true,
        )]
    },
    plots: || {
        let (mixed, equal) = ([("sizes", "mixed".into())], [("sizes", "equal".into())]);
        vec![
            log(plot(
                "Cache misses an operation, mixed sizes",
                Shape::Curves,
                &[Place::Cachegrind],
                "misses",
                "entries",
                &mixed,
            )),
            log(plot("Time of an operation, mixed sizes", Shape::Curves, &[Place::Hosted], "time", "entries", &mixed)),
            log(plot("Time of an operation, equal sizes", Shape::Curves, &[Place::Hosted], "time", "entries", &equal)),
            plot(
                "Memory of the map for a range, mixed sizes",
                Shape::Curves,
                &[Place::Hosted],
                "bytes",
                "entries",
                &mixed,
            ),
            log(plot(
                "Cache lines an operation, mixed sizes",
                Shape::Curves,
                &[Place::Recording],
                "lines",
                "entries",
                &mixed,
            )),
            log(plot(
                "Finding room among ranges that come and go",
                Shape::Curves,
                &[Place::Hosted],
                "time",
                "ranges",
                &[],
            )),
        ]
    },
    cases,
};

fn cases(plan: &Plan) -> Vec<Round> {
    let scale = plan.scale;
    let mut all = Vec::new();
    let timed: &[usize] = scale.of(&[200], &[1_000, 10_000, 100_000], &[1_000, 10_000, 100_000, 1_000_000]);
    let counted: &[usize] = scale.of(&[200], &[1_000, 10_000], &[1_000, 10_000, 100_000]);
    let ranges: &[usize] = scale.of(&[100], &[1_000, 10_000, 100_000], &[1_000, 10_000, 100_000, 1_000_000]);
    for (side, which) in SIDES {
        for (name, sizes) in SIZES {
            let at = |entries: usize| [("entries", number(entries)), ("sizes", name.into())];
            // With very many ranges, equal and mixed sizes differ little, so only mixed sizes are measured.
            for &entries in timed.iter().filter(|n| sizes == Sizes::Mixed || **n < 100_000) {
                let work = move || which.with(entries, Timed { entries, sizes });
                // The standard library's tree reports neither its nodes nor the lines that it touches.
                if which == Which::Plain {
                    all.push(Round::new(side, Place::Hosted, at(entries), &TIME, move || Ok([work().0])));
                    continue;
                }
                all.push(Round::new(side, Place::Hosted, at(entries), &TIME_AND_NODES, move || {
                    let (time, kept) = work();
                    let kept = kept.ok_or_else(|| Failure::Wrong("the map does not report its nodes".into()))?;
                    let per = |n: usize| n as f64 / entries as f64;
                    Ok([time, 1e3 * per(kept.nodes), per(kept.bytes)])
                }));
            }
            for &entries in counted {
                all.push(Round::new(side, Place::Cachegrind, at(entries), &MISSES, move || {
                    let misses = cachegrind::misses_of(&workload_name(which, sizes, entries), 1, Size::Whole)?;
                    let per = |n: u64| n as f64 / (4 * entries + 2 * (entries / 2)) as f64;
                    Ok([per(misses.first), per(misses.last), per(misses.instructions)])
                }));
            }
            for &entries in counted.iter().filter(|_| which != Which::Plain) {
                all.push(Round::new(side, Place::Recording, at(entries), &LINES, move || {
                    which.with(entries, Lines { entries, sizes }).map(|l| [l])
                }));
            }
        }
        for &ranges in ranges {
            all.push(Round::new(side, Place::Hosted, [("ranges", number(ranges))], &TIME, move || {
                Ok([which.with(ranges, Room { ranges, scale })])
            }));
        }
    }
    all
}

/// The kind of a map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Which {
    Before,
    After,
    Ours,
    Plain,
}

/// A task that can be done on a map of any type.
trait Do {
    type Out;
    fn with<M: AddressMap>(self, new: impl Fn() -> M) -> Self::Out;
}

impl Which {
    fn with<D: Do>(self, entries: usize, what: D) -> D::Out {
        match self {
            Which::Before => what.with(|| Before::with_capacity(entries)),
            Which::After => what.with(|| After::with_capacity(entries)),
            Which::Ours => what.with(Ours::<FAN_OUT>::new),
            Which::Plain => what.with(|| Ordered::with_capacity(entries)),
        }
    }
}

/// Measures the nanoseconds of an operation, and the memory of the map with all ranges.
struct Timed {
    entries: usize,
    sizes: Sizes,
}

impl Do for Timed {
    type Out = (f64, Option<MapFootprint>);
    fn with<M: AddressMap>(self, new: impl Fn() -> M) -> Self::Out {
        let work = Work::new(self.entries, self.sizes, 0x5eed);
        // Small maps are filled several times, each in the memory that the map before it freed.
        let times = (50_000 / self.entries).max(1);
        (0..times.min(2)).for_each(|_| work.run(&mut new()));
        let ((), seconds) = timed(|| (0..times).for_each(|_| work.run(&mut new())));
        let mut full = new();
        work.fill(&mut full);
        (seconds * 1e9 / (times * work.operations()) as f64, full.kept())
    }
}

/// Counts the cache lines that an operation touches.
struct Lines {
    entries: usize,
    sizes: Sizes,
}

impl Do for Lines {
    type Out = Result<f64, Failure>;
    #[cfg(not(recording))]
    fn with<M: AddressMap>(self, _new: impl Fn() -> M) -> Self::Out {
        let _recording_only = (self.entries, self.sizes);
        Err(Failure::Build)
    }
    #[cfg(recording)]
    fn with<M: AddressMap>(self, new: impl Fn() -> M) -> Self::Out {
        Ok(crate::bench::mapper::lines(&Work::new(self.entries, self.sizes, 0x5eed), new()))
    }
}

/// Measures the nanoseconds to unmap one range and map another.
struct Room {
    ranges: usize,
    scale: Scale,
}

impl Do for Room {
    type Out = f64;
    fn with<M: AddressMap>(self, new: impl Fn() -> M) -> f64 {
        let window = Window::of(self.ranges);
        let (mut map, mut operations) = (new(), self.scale.of(20, 1000, 5000));
        let mut places = fill(&mut map, self.ranges);
        loop {
            let ((), seconds) = timed(|| come_and_go(&mut map, &mut places, window, operations, |_, _| ()));
            // For a map that scans, a few operations take long enough. For other maps, the number grows until the time
            // is measurable.
            if seconds > self.scale.of(0.0, 0.05, 0.5) {
                return seconds * 1e9 / operations as f64;
            }
            operations *= 4;
        }
    }
}

fn workload_name(which: Which, sizes: Sizes, entries: usize) -> String {
    format!("map:{which:?}:{sizes:?}:{entries}")
}

/// Does the workload of that name `count` times, for cachegrind. Returns `None` if there is no such workload.
pub fn workload(name: &str, count: usize) -> Option<()> {
    let of = name.strip_prefix("map:")?;
    let entries: usize = of.rsplit(':').next()?.parse().ok()?;
    let which = SIDES.iter().flat_map(|(_, w)| SIZES.map(|(_, s)| (*w, s)));
    let (which, sizes) = which.into_iter().find(|(w, s)| workload_name(*w, *s, entries) == name)?;
    which.with(entries, Counted { work: Work::new(entries, sizes, 0x5eed), count });
    Some(())
}

/// Does the work `count` times. With 0 only the plan is made.
struct Counted {
    work: Work,
    count: usize,
}

impl Do for Counted {
    type Out = ();
    fn with<M: AddressMap>(self, new: impl Fn() -> M) {
        let mut map = new();
        (0..self.count).for_each(|_| self.work.run(&mut map));
    }
}
