//! A file that many processes map and touch whole: the cost of their mappings in memory and time.

use super::counted::counted;
use super::threads::timed;
use super::{Figure, Plan, Round, Study, claim, log, number, plot};
use crate::Failure;

use crate::memory::{Backings, Memory, PARTS, Production, Records, Target};
use quire_results::{Place, Shape, Side, Source};
use quire_vm::{Access, PAGE_SIZE, VirtRange};

const BASE: u64 = 0x1000_0000_0000;
/// Pages that are removed one by one.
const REMOVED: u64 = 64;
/// Resident pages that a load maps: so a program faults once in so many.
const AROUND: u64 = 16;

const COSTS: [Figure; 5] = [
    Figure::count("bytes", "bytes/page"),
    Figure::time("attach", "us"),
    Figure::time("exit", "us"),
    Figure::time("remove", "us/page"),
    Figure::time("pageout", "us/page"),
];
const LOCKS: [Figure; 2] = [Figure::count("locks", "locks/page"), Figure::count("locks_remove", "locks/page")];

/// The experiment.
pub const STUDY: Study = Study {
    name: "sharing",
    source: Source::S0,
    title: "Many processes share a file",
    about: "Processes map one resident file, as those of a database do, and touch all of it, one after the other. Bytes: what reverse mapping takes of the \
            kernel's memory for each page that each of them maps. Attach: the time that the last of them takes to map and touch it. Exit: the time in which \
            it goes. Remove: the time to take one page away from all of them, one by one. Pageout: the same where 64 neighbours are paged out \
            that nobody has changed. Locks: spin locks taken for each page of an attach, and for one removal.",
    caveats: &[
        "After takes a mark for each leaf that it sets, which is counted as a lock; and so are the locks of maps and lists that many may hold.",
        "After looks for a page along the backings of its object and asks the tables of each, as ours does; before follows the page's own list.",
        "No translation caches are flushed in before and after; production looks for CPUs that run the spaces, and finds none.",
        "A record of before has 32 bytes and stands in its table page's pool; in the kernels that had them they took 24 to over 100.",
        "A page that is paged out was referenced: production lets it go nonetheless, as it is asked to; before and after have no such marks.",
        "All map what is resident around a page that is loaded: sixteen pages a fault.",
        "In guests kernel bytes are page tables and small structures, as /proc/meminfo tells them.",
        "In guests a page is taken away by cutting the file: Linux pages out none on request (MADV_PAGEOUT) that another process maps.",
    ],
    claims: || {
        vec![claim(
            "DragonFly BSD 5.6: no record for a mapped page is left, so none is allocated, locked or searched",
            "bytes",
            Place::Hosted,
            &[("spaces", number(10u32))],
            10.0,
            true,
        )]
    },
    plots: || {
        let curves =
            |title: &str, measure: &str| log(plot(title, Shape::Curves, &[Place::Hosted], measure, "spaces", &[]));
        vec![
            plot(
                "Bytes of reverse mapping for each mapped page",
                Shape::Curves,
                &[Place::Hosted],
                "bytes",
                "spaces",
                &[],
            ),
            curves("The last one attaches", "attach"),
            curves("And exits", "exit"),
            curves("A page is taken away from all", "remove"),
            curves("A page is paged out, one of 64", "pageout"),
            plot("Locks for each page of an attach", Shape::Bars, &[Place::Recording], "locks", "spaces", &[]),
        ]
    },
    cases,
};

fn cases(plan: &Plan) -> Vec<Round> {
    let scale = plan.scale;
    let mut all = Vec::new();
    let spaces: &[usize] = scale.of(&[2, 5], &[1, 10, 100], &[1, 10, 100, 1000]);
    for &spaces in spaces {
        let pages = scale.of(128, 2048, 4096);
        // Page tables, and the rest of a space.
        let mib = pages / 256 + 8 + spaces as u64 * (1 + pages / 1024) / 8;
        let at = || [("spaces", number(spaces))];
        all.push(Round::new(Side::Before, Place::Hosted, at(), &COSTS, move || {
            costs(Records::boot(1, mib, PARTS)?, spaces, pages)
        }));
        all.push(Round::new(Side::After, Place::Hosted, at(), &COSTS, move || {
            costs(Backings::boot(1, mib, PARTS)?, spaces, pages)
        }));
        all.push(Round::new(Side::Ours, Place::Hosted, at(), &COSTS, move || {
            costs(Production::boot(1, mib), spaces, pages)
        }));
    }
    let counted: &[usize] = scale.of(&[2, 10], &[1, 10], &[1, 10, 100]);
    for &spaces in counted {
        let mib = 16 + spaces as u64 / 4;
        let at = || [("spaces", number(spaces))];
        all.push(Round::new(Side::Before, Place::Recording, at(), &LOCKS, move || {
            locks(Records::boot(1, mib, PARTS)?, spaces)
        }));
        all.push(Round::new(Side::After, Place::Recording, at(), &LOCKS, move || {
            locks(Backings::boot(1, mib, PARTS)?, spaces)
        }));
        all.push(Round::new(Side::Ours, Place::Recording, at(), &LOCKS, move || {
            locks(Production::boot(1, mib), spaces)
        }));
    }
    all
}

fn range(pages: u64) -> VirtRange {
    VirtRange { start: BASE, end: BASE + pages * PAGE_SIZE }
}

/// Maps the file and touches all of it: a program faults where there is no leaf yet.
fn attach<M: Memory>(memory: M, space: &M::Space, file: &M::File, pages: u64) -> Result<(), Failure> {
    memory.map(space, range(pages), Target::Shared(file.clone(), 0))?;
    (0..pages).step_by(AROUND as usize).try_for_each(|p| memory.fault(space, BASE + p * PAGE_SIZE, Access::Read))
}

fn costs<M: Memory>(memory: M, spaces: usize, pages: u64) -> Result<[f64; 5], Failure> {
    let _cpu = memory.attach(0);
    let file = memory.stored_file(pages)?;
    // One attaches and goes, so that the host has given its memory.
    attach(memory, &memory.space()?, &file, pages)?;
    let none = memory.overhead(&[]);
    let mut all = Vec::with_capacity(spaces);
    let mut last = 0.0;
    for _ in 0..spaces {
        let space = memory.space()?;
        let (done, seconds) = timed(|| attach(memory, &space, &file, pages));
        done?;
        last = seconds;
        all.push(space);
    }
    let bytes = memory.overhead(&all).saturating_sub(none) as f64 / (spaces as u64 * pages) as f64;
    let removed = REMOVED.min(pages / 2);
    let ((), remove) = timed(|| (0..removed).for_each(|page| memory.remove(&file, page..page + 1)));
    let ((), pageout) = timed(|| memory.page_out(&file, removed..2 * removed));
    let ((), exit) = timed(|| drop(all.pop()));
    drop(all);
    let page = 1e6 / removed as f64;
    Ok([bytes, last * 1e6, exit * 1e6, remove * page, pageout * page])
}

fn locks<M: Memory>(memory: M, spaces: usize) -> Result<[f64; 2], Failure> {
    const PAGES: u64 = 512;
    let _cpu = memory.attach(0);
    let file = memory.file(PAGES)?;
    let mut all = Vec::with_capacity(spaces);
    let mut takes = 0;
    for _ in 0..spaces {
        let space = memory.space()?;
        let (done, counts) = counted(|| attach(memory, &space, &file, PAGES))?;
        done?;
        takes = counts.takes;
        all.push(space);
    }
    let ((), counts) = counted(|| (0..REMOVED).for_each(|page| memory.remove(&file, page..page + 1)))?;
    Ok([takes as f64 / PAGES as f64, counts.takes as f64 / REMOVED as f64])
}
