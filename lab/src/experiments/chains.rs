//! The experiment about generations of forks. It measures the memory that a shadow chain holds beyond the reachable
//! pages, and the cost of a fault at its end.

use super::threads::timed;
use super::{Figure, Plan, Round, Study, claim, log, number, plot};
use crate::Failure;
use crate::map::workload::Random;

use crate::memory::{Backings, Memory, PARTS, Production, Records, Target};
use quire_results::{Place, Shape, Side, Source};
use quire_vm::stats::Event;
use quire_vm::{Access, PAGE_SIZE, VirtRange};
use std::collections::HashSet;

const BASE: u64 = 0x1000_0000_0000;
/// The number of pages of the region (`PAGES`), and the number of pages into which each generation stores (`STORES`).
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
    about: "Each generation is forked from the previous one and stores into 16 random pages of a region of 2,048. With \
        leaving=each, each parent exits after its child has stored. With leaving=end, all generations but the last \
        exit at the end. With leaving=two, each parent has two children, which both store into the same 16 pages, and \
        exits. The first child continues the chain, and the second child lives to the end. Overhead is the number of \
        pages held over the number of pages that a live process can reach. Fault is the mean time of the last \
        process's first store into each page that it does not own. Before collapses an object into its only shadow. \
        After has no count of shadows, and copies pages that a process reads through a chain of six.",
    caveats: &[
        "The source lists the collapse of deep chains and the search for shadowed pages as unfinished. After is the \
         source's state, and here it is behind the design that it replaced.",
        "Ours bounds the depth of a chain by copying a few pages that other processes still share (leaving=two). \
         Before lets the chain grow: it holds less memory, and each new page costs a walk of the whole chain.",
        "In guests, the overhead is all memory used since before the first fork over the reachable pages that the \
         first process lacks. The used memory includes page tables and kernel stacks of live processes.",
        "The reaper finds pages that no process can reach after an exit. It runs at the end of ours with reaper=on. \
         With reaper=off it does not run, so only stores and forks limit the overhead.",
    ],
    claims: || {
        vec![claim(
            "DragonFly BSD 5.6 left the collapse of deep chains unfinished. A store at the end of a chain of 100, in \
             which each process has a live child",
            "fault",
            Place::Hosted,
            &[("generations", number(100u32)), ("leaving", "two".into()), ("reaper", "on".into())],
            1.1,
            false,
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
            curves("Pages held over pages reachable, two children each", "overhead", "two"),
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
        // Each living generation has its pages, its tables, and copies of the pages that it sees. The core with
        // backings (the side *after*) copies all pages that a process sees every few generations.
        let mib = 64 + 4 * generations;
        for (leaving, how) in LEAVING {
            let line = Line { generations, leaving: how };
            let at = |reaper: &'static str| {
                [("generations", number(generations)), ("leaving", leaving.into()), ("reaper", reaper.into())]
            };
            // The baselines have no reaper (a daemon that destroys unreachable pages). Their cases have the value `on`
            // of `reaper` so that they are compared with Quire's cases with a reaper.
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

/// The time at which each process exits.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Leaving {
    /// Each parent exits once its child has stored.
    Each,
    /// All processes except the last exit at the end.
    End,
    /// Each parent exits once both of its children have stored. Only the first child has children.
    Two,
}

const LEAVING: [(&str, Leaving); 3] = [("each", Leaving::Each), ("end", Leaving::End), ("two", Leaving::Two)];

#[derive(Clone, Copy)]
struct Line {
    generations: u64,
    leaving: Leaving,
}

/// A process of the line. `sees` has the number of the store that it must see in each page.
struct Process<M: Memory> {
    space: M::Space,
    sees: Vec<u32>,
}

/// The memory core, and the number of stores so far.
struct Pages<M> {
    memory: M,
    stored: u32,
}

impl<M: Memory> Pages<M> {
    fn store(&mut self, by: &mut Process<M>, page: u64) -> Result<(), Failure> {
        self.stored += 1;
        by.sees[page as usize] = self.stored;
        self.memory.fault(&by.space, BASE + page * PAGE_SIZE, Access::Write)
    }

    /// Forks a child, which stores into these pages.
    fn child(&mut self, parent: &Process<M>, pages: &[u64]) -> Result<Process<M>, Failure> {
        let mut child = Process { space: self.memory.fork(&parent.space)?, sees: parent.sees.clone() };
        pages.iter().try_for_each(|page| self.store(&mut child, *page))?;
        Ok(child)
    }
}

impl Line {
    fn costs<M: Memory>(self, memory: M, reaps: bool) -> Result<[f64; 2], Failure> {
        let _cpu = memory.attach(0);
        // Allocates and frees the memory of all stores once, so that the host has allocated it before the measurement.
        // The side *after* copies all pages in each fifth generation.
        drop(memory.take_zeroed(2 * PAGES + 2 * self.generations * STORES + self.generations / 4 * PAGES)?);
        let reap = || {
            if reaps {
                memory.reap();
            }
        };
        let mut random = Random(88_172_645_463_325_252);
        let mut pages = Pages { memory, stored: 0 };
        let mut last = Process { space: memory.space()?, sees: vec![0; PAGES as usize] };
        memory.map(&last.space, VirtRange { start: BASE, end: BASE + PAGES * PAGE_SIZE }, Target::Private)?;
        (0..PAGES).try_for_each(|page| pages.store(&mut last, page))?;
        // The processes that exit at the end of the line, and those that live until the measurement has ended.
        let (mut to_the_end, mut beyond) = (Vec::new(), Vec::new());
        let mut own = Vec::new();
        for _ in 0..self.generations {
            own = (0..STORES).map(|_| random.below(PAGES)).collect();
            let child = pages.child(&last, &own)?;
            if self.leaving == Leaving::Two {
                beyond.push(pages.child(&last, &own)?);
            }
            let parent = std::mem::replace(&mut last, child);
            match self.leaving {
                Leaving::End => to_the_end.push(parent),
                Leaving::Each | Leaving::Two => {
                    drop(parent);
                    reap();
                }
            }
        }
        to_the_end.clear();
        reap();
        let seen: HashSet<u32> = beyond.iter().chain([&last]).flat_map(|p| p.sees.iter().copied()).collect();
        let overhead = memory.held() as f64 / seen.len() as f64;
        own.sort_unstable();
        let others: Vec<u64> = random.shuffled(PAGES as usize).into_iter().map(u64::from).collect();
        let others: Vec<u64> = others.into_iter().filter(|page| own.binary_search(page).is_err()).collect();
        let store = |page: &u64| memory.fault(&last.space, BASE + page * PAGE_SIZE, Access::Write);
        let (done, seconds) = timed(|| others.iter().try_for_each(store));
        done?;
        Ok([overhead, seconds * 1e9 / others.len() as f64])
    }
}
