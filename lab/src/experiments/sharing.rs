//! The experiment about a file that many processes map and touch completely: the cost of the mappings in memory and
//! time.

use super::counted::counted;
use super::threads::timed;
use super::{Figure, Plan, Round, Study, claim, log, number, plot};
use crate::Failure;

use crate::memory::{Backings, Memory, PARTS, Production, Records, Target};
use quire_results::{Place, Shape, Side, Source};
use quire_vm::{Access, PAGE_SIZE, VirtRange};

const BASE: u64 = 0x1000_0000_0000;
/// The number of pages that are removed one by one.
const REMOVED: u64 = 64;
/// The number of resident pages that one load fault maps. So a program faults once in this many pages.
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
    about: "Processes map one resident file, as those of a database do, and touch all of it in turn. Bytes is the \
        kernel memory of the reverse mapping for each page that each process maps. Attach is the time in which the \
        last process maps and touches the file. Exit is the time in which that process exits. Remove is the time to \
        remove one page from all processes, one by one. Pageout is the same for 64 neighbouring clean pages that are \
        paged out together. Locks counts the spin locks for each page of an attach, and for one removal.",
    caveats: &[
        "After takes a mark for each leaf that it sets, and the mark counts as a lock. Locks of maps and lists that \
         several threads may hold at once also count.",
        "After finds a page's leaves through the backings of its object and the page tables of each, as ours does. \
         Before walks the page's own list.",
        "Before and after flush no translation caches. Production looks for CPUs that run the spaces, and finds none.",
        "A record of before has 32 bytes and lies in the pool of its table page. In kernels with such records they \
         took 24 to over 100 bytes.",
        "A page that is paged out was referenced. Production still pages it out on request. Before and after have no \
         reference bits.",
        "All sides map the resident pages around a page that is loaded, sixteen pages a fault.",
        "In guests, kernel bytes are page tables and small structures according to /proc/meminfo.",
        "In guests, a truncation of the file removes the page. Linux does not page out on request (MADV_PAGEOUT) a \
         page that another process maps.",
    ],
    claims: || {
        vec![claim(
            "DragonFly BSD 5.6: no record for a mapped page exists, so none is allocated, locked or searched",
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
            curves("A page is removed from all processes", "remove"),
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
        // The memory includes the page tables and the other data of each space.
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

/// Maps the file and touches all of it. Loads fault only where no PTE exists yet.
fn attach<M: Memory>(memory: M, space: &M::Space, file: &M::File, pages: u64) -> Result<(), Failure> {
    memory.map(space, range(pages), Target::Shared(file.clone(), 0))?;
    (0..pages).step_by(AROUND as usize).try_for_each(|p| memory.fault(space, BASE + p * PAGE_SIZE, Access::Read))
}

fn costs<M: Memory>(memory: M, spaces: usize, pages: u64) -> Result<[f64; 5], Failure> {
    let _cpu = memory.attach(0);
    let file = memory.stored_file(pages)?;
    // One space attaches and exits first, so that the host has allocated the memory.
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
