//! The experiment about page queues with one shard and with many. It measures the rate of faults, the lines that CPUs
//! fetch from each other, and how often CPUs wait for a lock.

use super::counted::transfers;
use super::zero_fill::{Work, lines};
use super::{Figure, Plan, Round, Study, claim, log, number, plot, split};

use crate::memory::{PARTS, Production, Records};
use quire_results::{Place, Shape, Side, Source};

const RATES: [Figure; 2] = [Figure::time("rate", "pages/s").more(), Figure::time("waits", "waits/1000_pages")];
const REACH: [Figure; 1] = [Figure::time("reach", "processes").more()];
const LINES: [Figure; 1] = [Figure::count("lines", "lines/page")];

/// The numbers of shards that are measured.
const SWEEP: [usize; 6] = [1, 4, 16, 64, 256, 1024];

/// The experiment.
pub const STUDY: Study = Study {
    name: "queues",
    source: Source::S1,
    title: "Page queues fan out",
    about: "Processes touch fresh memory, each on its own CPU. Each page comes from a list of free frames and joins a \
        queue. Before has one list and one queue, each with one lock. After has 256 of each, and each part has a lock. \
        The sweep is the same core with 1 to 1,024 parts. Waits counts how often another CPU held a part's lock; for \
        ours it counts any spin lock. Reach is the number of processes that keep the busier of a part's two locks \
        always held, if each faults at the rate of a single process. It is computed from the time of a fault, and from \
        the time for which a frame or a queue's entry holds its lock. Both are measured on one CPU. Lines counts the \
        cache lines that CPUs in turn take from each other. It has figures for a page put into a queue, for a frame \
        taken or freed, and for a whole fault.",
    caveats: &[
        "Two CPUs do not show the contention of 48. A lock's line that moves between two CPUs costs less than a second \
         structure. The counts of lines show the difference.",
        "Reach is computed, and assumes that a lock costs as much as without contention.",
        "Before and after also have a record for each mapped page, so their whole fault is the fault of their time.",
    ],
    claims: || {
        vec![
            claim(
                "DragonFly BSD, 2011, 48 cores: 200,000 to 250,000 zero-fill faults a second before, 900,000 after; a \
                 kernel build, 55 s instead of 101 s",
                "lines",
                Place::Recording,
                &[("cpus", number(64u32)), ("what", "faults".into())],
                3.6,
                true,
            ),
            claim(
                "The same, by the rate of two CPUs, which are far fewer than those of the source",
                "rate",
                Place::Hosted,
                &[("cpus", number(2u32)), ("what", "faults".into())],
                3.6,
                true,
            ),
        ]
    },
    plots: || {
        let of = |what: &str| [("what", what.into())];
        vec![
            plot("Pages a second", Shape::Curves, &[Place::Hosted], "rate", "cpus", &of("faults")),
            split(
                log(plot("Pages a second by parts", Shape::Curves, &[Place::Hosted], "rate", "parts", &of("sweep"))),
                "cpus",
            ),
            plot("Waits for a lock", Shape::Bars, &[Place::Hosted], "waits", "cpus", &of("faults")),
            split(
                plot("Waits for a lock by parts", Shape::Bars, &[Place::Hosted], "waits", "parts", &of("sweep")),
                "cpus",
            ),
            log(plot(
                "Processes until a lock is always held, by parts",
                Shape::Curves,
                &[Place::Hosted],
                "reach",
                "parts",
                &of("reach"),
            )),
            log(plot(
                "Lines moved for a page put into a queue",
                Shape::Curves,
                &[Place::Recording],
                "lines",
                "cpus",
                &of("queue"),
            )),
            log(plot(
                "Lines moved for a frame taken or given back",
                Shape::Curves,
                &[Place::Recording],
                "lines",
                "cpus",
                &of("frames"),
            )),
            log(plot(
                "Lines moved for a whole fault",
                Shape::Curves,
                &[Place::Recording],
                "lines",
                "cpus",
                &of("faults"),
            )),
        ]
    },
    cases,
};

fn cases(plan: &Plan) -> Vec<Round> {
    let scale = plan.scale;
    let frames = scale.of(512, 8 * 1024, 64 * 1024);
    let mut all = Vec::new();
    for &cpus in &plan.cpus {
        let work = Work::processes(cpus, frames);
        let rates = move |parts: usize| {
            let [rate, _, waits] = work.rates_and_waits(Records::boot(cpus, work.mib(), parts)?)?;
            Ok([rate, waits])
        };
        let at = || [("cpus", number(cpus)), ("what", "faults".into())];
        all.push(Round::new(Side::Before, Place::Hosted, at(), &RATES, move || rates(1)));
        all.push(Round::new(Side::After, Place::Hosted, at(), &RATES, move || rates(PARTS)));
        all.push(Round::new(Side::Ours, Place::Hosted, at(), &RATES, move || {
            let [rate, _, waits] = work.rates_and_waits(Production::boot(cpus, work.mib()))?;
            Ok([rate, waits])
        }));
        for parts in SWEEP {
            let at = [("cpus", number(cpus)), ("parts", number(parts)), ("what", "sweep".into())];
            all.push(Round::new(Side::After, Place::Hosted, at, &RATES, move || rates(parts)));
        }
    }
    for parts in SWEEP {
        let work = Work::processes(1, frames);
        let at = [("parts", number(parts)), ("what", "reach".into())];
        all.push(Round::new(Side::After, Place::Hosted, at, &REACH, move || {
            let memory = Records::boot(1, work.mib(), parts)?;
            let [rate, _] = work.rates(memory)?;
            // The seconds for which a fault holds the busier of the two locks of a shard.
            let under = memory.0.seconds_under_locks(scale.of(100, 50_000, 500_000))?;
            Ok([parts as f64 / (under * rate)])
        }));
    }
    let cpus: &[usize] = scale.of(&[2, 4], &[2, 16, 64], &[2, 4, 8, 16, 32, 64]);
    for &cpus in cpus {
        let at = |what: &'static str| [("cpus", number(cpus)), ("what", what.into())];
        for (what, [before, ours]) in [("queue", [0, 1]), ("frames", [2, 3])] {
            all.push(Round::new(Side::Before, Place::Recording, at(what), &LINES, move || {
                Ok([transfers(cpus)?[before]])
            }));
            all.push(Round::new(Side::Ours, Place::Recording, at(what), &LINES, move || Ok([transfers(cpus)?[ours]])));
        }
        let mib = 8 + 2 * cpus as u64;
        for (side, parts) in [(Side::Before, 1), (Side::After, PARTS)] {
            all.push(Round::new(side, Place::Recording, at("faults"), &LINES, move || {
                lines(Records::boot(cpus, mib, parts)?, cpus)
            }));
        }
        all.push(Round::new(Side::Ours, Place::Recording, at("faults"), &LINES, move || {
            lines(Production::boot(cpus, 2 * mib), cpus)
        }));
    }
    all
}
