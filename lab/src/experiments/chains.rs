//! Generations of forks: what a chain holds beyond what is reachable, and what a fault costs at its end.

use super::threads::timed;
use super::{Figure, Plan, Round, Study, claim, log, number, plot};
use crate::Failure;
use crate::map::workload::Random;

use crate::memory::{Backings, Memory, PARTS, Production, Records, What};
use quire_results::{Place, Shape, Side, Source};
use quire_vm::stats::Event;
use quire_vm::{Access, PAGE_SIZE, VirtRange};

const BASE: u64 = 0x1000_0000_0000;
/// Pages of the region, and how many of them each generation stores into.
const PAGES: u64 = 2048;
const STORES: u64 = 16;

const COSTS: [Figure; 2] = [Figure::count("overhead", "ratio"), Figure::time("fault", "ns")];
const OURS: [Figure; 3] =
    [Figure::count("overhead", "ratio"), Figure::time("fault", "ns"), Figure::count("visits", "visits/generation")];

/// The experiment.
pub const STUDY: Study = Study {
    name: "chains",
    source: Source::S0,
    title: "Chains of forks",
    about: "Each generation is forked from the one before and stores into 16 random pages of a region of 2,048. What leaving=each tells: each parent \
            leaves once its child has stored; leaving=end: all leave but the last, at the end. Overhead: pages held, over pages that the last one can \
            reach. Fault: the last one's first store into each page that it has not got, on average. Before never collapses a chain; after collapses \
            an object into its shadow where nobody else refers to it.",
    caveats: &[
        "The source named collapsing deep chains and finding shadowed pages as what it had left unfinished: after is what it had.",
        "The reaper, which finds pages that nobody can reach since somebody left, runs at the end of ours with reaper=on, and not at \
         all with reaper=off: what is left then is what stores and forks alone keep down.",
    ],
    claims: || {
        vec![claim(
            "DragonFly BSD 5.6 left unfinished: collapsing deep chains, and pages that are shadowed completely",
            "overhead",
            Place::Hosted,
            &[("generations", number(100u32)), ("leaving", "end".into()), ("reaper", "on".into())],
            1.1,
            true,
        )]
    },
    plots: || {
        let of = |leaving: &str| [("leaving", leaving.into()), ("reaper", "on".into())];
        let curves = |title: &str, measure: &str, leaving: &str| {
            log(plot(title, Shape::Curves, &[Place::Hosted], measure, "generations", &of(leaving)))
        };
        vec![
            curves("Pages held over pages reachable, each parent leaves", "overhead", "each"),
            curves("Pages held over pages reachable, all leave at the end", "overhead", "end"),
            curves("A store at the end of the chain", "fault", "end"),
            log(plot(
                "Pages looked at for each generation",
                Shape::Curves,
                &[Place::Hosted],
                "visits",
                "generations",
                &of("end"),
            )),
        ]
    },
    cases,
};

fn cases(plan: &Plan) -> Vec<Round> {
    let scale = plan.scale;
    let mut all = Vec::new();
    let generations: &[u64] = scale.of(&[5, 10], &[10, 100], &[10, 100, 1000]);
    for &generations in generations {
        // Each generation that is alive has its pages, its tables, and copies of what it sees.
        let mib = 64 + generations;
        for (leaving, each) in [("each", true), ("end", false)] {
            let line = Line { generations, each };
            let at = |reaper: &'static str| {
                [("generations", number(generations)), ("leaving", leaving.into()), ("reaper", reaper.into())]
            };
            // What no design of theirs has is on for the comparison.
            all.push(Round::new(Side::Before, Place::Hosted, at("on"), &COSTS, move || {
                line.costs(Records::boot(1, mib, PARTS)?, true)
            }));
            all.push(Round::new(Side::After, Place::Hosted, at("on"), &COSTS, move || {
                line.costs(Backings::boot(1, mib, PARTS)?, true)
            }));
            for (reaper, reaps) in [("on", true), ("off", false)] {
                all.push(Round::new(Side::Ours, Place::Hosted, at(reaper), &OURS, move || {
                    let production = Production::boot(1, mib);
                    let [overhead, fault] = line.costs(production, reaps)?;
                    let count = |e| production.0.stats().total(e) as f64;
                    let visits = count(Event::PageMoved) + count(Event::PageCopiedUp);
                    Ok([overhead, fault, visits / generations as f64])
                }));
            }
        }
    }
    all
}

#[derive(Clone, Copy)]
struct Line {
    generations: u64,
    /// Whether each parent leaves once its child has stored.
    each: bool,
}

impl Line {
    fn costs<M: Memory>(self, memory: M, reaps: bool) -> Result<[f64; 2], Failure> {
        let _cpu = memory.attach(0);
        // What will be stored into has been given by the host before.
        drop(memory.take_zeroed(2 * PAGES + 2 * self.generations * STORES)?);
        let mut random = Random(88_172_645_463_325_252);
        let store = |space: &M::Space, page: u64| memory.fault(space, BASE + page * PAGE_SIZE, Access::Write);
        let first = memory.space()?;
        memory.map(&first, VirtRange { start: BASE, end: BASE + PAGES * PAGE_SIZE }, What::Private)?;
        (0..PAGES).try_for_each(|page| store(&first, page))?;
        let mut alive = vec![first];
        // What the last one has stored into since it was forked.
        let mut own = Vec::new();
        for _ in 0..self.generations {
            let Some(parent) = alive.last() else { break };
            let child = memory.fork(parent)?;
            own = (0..STORES).map(|_| random.below(PAGES)).collect();
            own.iter().try_for_each(|page| store(&child, *page))?;
            if self.each {
                alive.clear();
                if reaps {
                    memory.reap();
                }
            }
            alive.push(child);
        }
        let last = alive.pop().ok_or_else(|| Failure::Wrong("nobody is left".into()))?;
        alive.clear();
        if reaps {
            memory.reap();
        }
        let overhead = memory.held() as f64 / PAGES as f64;
        own.sort_unstable();
        let others: Vec<u64> = random.shuffled(PAGES as usize).into_iter().map(u64::from).collect();
        let others: Vec<u64> = others.into_iter().filter(|page| own.binary_search(page).is_err()).collect();
        let (done, seconds) = timed(|| others.iter().try_for_each(|page| store(&last, *page)));
        done?;
        Ok([overhead, seconds * 1e9 / others.len() as f64])
    }
}
