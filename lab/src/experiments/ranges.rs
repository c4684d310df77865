//! The experiment about ranges of a file with few resident pages. The ranges are unmapped, truncated, discarded, or
//! written back.

use super::counted::counted;
use super::threads::timed;
use super::{Figure, Plan, Round, Scale, Study, claim, log, number, plot};
use crate::memory::store::SparseStore;
use crate::queue::{OneLock, PageQueue};
use crate::{Failure, machine};
use quire_hosted::{Cpu, Hosted};
use quire_results::{Place, Shape, Side, Source};
use quire_sync::epoch::Pinned;
use quire_vm::map::{MapRequest, Placement, Space, SpaceRef};
use quire_vm::object::index::Slot;
use quire_vm::stats::Event;
use quire_vm::{Access, ObjectRef, PAGE_SIZE, VirtRange, Vm};
use std::collections::{BTreeMap, BTreeSet};

const BASE: u64 = 0x1000_0000_0000;
/// The number of resident pages, for every length of the file.
const RESIDENTS: u64 = 100;
/// The most lookups under one pin of the epoch. A long pin would delay the freeing of all retired memory.
const PINNED: u64 = 1 << 16;

const COSTS: [Figure; 2] = [Figure::time("time", "us/op"), Figure::count("visits", "visits/op")];
const HOLDS: [Figure; 2] = [Figure::count("longest_hold", "accesses"), Figure::count("queue_locks", "locks/page")];
/// The figures of a design whose one lock is held all the time. It is acquired only once, so acquisitions are not
/// shown.
const HOLD: [Figure; 1] = [Figure::count("longest_hold", "accesses")];

/// The experiment.
pub const STUDY: Study = Study {
    name: "ranges",
    source: Source::S4,
    title: "Ranges of a file",
    about: "A file of 1 MiB to 1 TiB has 100 resident pages, evenly spread. The operations unmap the file, truncate \
        it, discard its pages, or write them back. Another one stores into one page, and then unmaps and maps the file \
        again, as for every write. Visits counts the slots and leaves that an operation visits. Before visits each \
        offset of the file. After walks an ordered tree of the file's pages.",
    caveats: &[
        "Before stops at 256 GiB in quick runs, because one pass takes half a second there.",
        "Before and after find pages by their own design and then handle each page as production does. To unmap, all \
         sides walk the page tables. Before and after then also walk the file, as their sources did. Production does \
         not need that walk, so it cannot lose there. Before looks each offset up in production's index, which costs \
         less than the source's search tree.",
        "Writing back stores into memory, so no figure includes the time of a disk.",
        "In guests, rows with 100 pages measure such files, one operation at a time. The row munmap + mmap + write \
         without 100 pages measures 64 MiB, all resident. Sizes are in MiB.",
        "Longest hold: before and after have all pages in one queue, and hold its lock during the walk of a file's \
         pages. Steps of after's tree are not counted.",
    ],
    claims: || {
        vec![claim(
            "OpenBSD 7.9: iteration by ranges makes munmap and mmap for each write of a large file cheap; a build's \
             system time falls by 15 %",
            "time",
            Place::Hosted,
            &[("mib", number(4096u32)), ("what", "remap".into())],
            2.0,
            true,
        )]
    },
    plots: || {
        let of = |what: &str| [("what", what.into())];
        let curves = |title: &str, measure: &str, what: &str| {
            log(plot(title, Shape::Curves, &[Place::Hosted], measure, "mib", &of(what)))
        };
        vec![
            curves("A store, munmap and mmap of a file", "time", "remap"),
            curves("Slots that truncating looks at", "visits", "truncate"),
            curves("Truncate", "time", "truncate"),
            curves("Writing back", "time", "flush"),
            log(plot(
                "Longest hold of a page queue's lock",
                Shape::Curves,
                &[Place::Recording],
                "longest_hold",
                "pages",
                &[],
            )),
        ]
    },
    cases,
};

fn cases(plan: &Plan) -> Vec<Round> {
    let scale = plan.scale;
    let mut all = Vec::new();
    let sizes: &[u64] =
        scale.of(&[1, 64], &[1, 64, 4096, 256 << 10, 1 << 20], &[1, 16, 256, 4096, 64 << 10, 256 << 10, 1 << 20]);
    for (side, how) in [(Side::Before, How::ByOffset), (Side::After, How::ByTree), (Side::Ours, How::Production)] {
        for (name, operation) in OPERATIONS {
            for &mib in sizes.iter().filter(|m| side != Side::Before || **m <= scale.of(64, 256 << 10, 1 << 20)) {
                let at = [("mib", number(mib)), ("what", name.into())];
                all.push(Round::new(side, Place::Hosted, at, &COSTS, move || cost(how, operation, mib, scale)));
            }
        }
    }
    let pages: &[u64] = scale.of(&[256], &[256, 1024, 4096], &[256, 1024, 4096, 16_384]);
    for &pages in pages {
        let at = |what: &'static str| [("pages", number(pages)), ("what", what.into())];
        for (what, flush) in [("discard", false), ("flush", true)] {
            all.push(Round::new(Side::Ours, Place::Recording, at(what), &HOLDS, move || holds(flush, pages)));
        }
        for (side, how) in [(Side::Before, How::ByOffset), (Side::After, How::ByTree)] {
            all.push(Round::new(side, Place::Recording, at("discard"), &HOLD, move || holds_of_one(how, pages)));
        }
    }
    all
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Operation {
    Munmap,
    Remap,
    Truncate,
    Discard,
    Flush,
}

const OPERATIONS: [(&str, Operation); 5] = [
    ("munmap", Operation::Munmap),
    ("remap", Operation::Remap),
    ("truncate", Operation::Truncate),
    ("discard", Operation::Discard),
    ("flush", Operation::Flush),
];

/// The way in which a design finds the resident pages.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// The design looks up each offset of the range.
    ByOffset,
    /// The design walks an ordered tree of the pages.
    ByTree,
    /// The iteration of the production core.
    Production,
}

/// The microseconds and the visits of one operation.
fn cost(how: How, operation: Operation, mib: u64, scale: Scale) -> Result<[f64; 2], Failure> {
    let vm = machine::boot(1, 32);
    let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
    let file = File::new(vm, mib << 20)?;
    let (mut seconds, mut visits, mut rounds) = (0.0, 0, 0u32);
    // The first round is the warm-up. Then short operations repeat until their time is long enough to measure.
    while rounds < 2 || seconds < scale.of(0.0, 0.01, 0.2) && rounds < scale.of(2, 200, 4000) {
        let (space, tree) = file.prepare(operation)?;
        let before = vm.stats().total(Event::RangeVisit);
        let (done, time) = timed(|| file.operation(how, operation, &space, &tree));
        let visited = done? + vm.stats().total(Event::RangeVisit) - before;
        if rounds == 0 {
            (seconds, visits) = (0.0, 0);
        } else {
            (seconds, visits) = (seconds + time, visits + visited);
        }
        rounds += 1;
        file.expect(operation)?;
    }
    let n = f64::from(rounds - 1);
    Ok([seconds * 1e6 / n, visits as f64 / n])
}

struct File {
    vm: &'static Vm<Hosted>,
    object: ObjectRef<Hosted>,
    bytes: u64,
}

impl File {
    fn new(vm: &'static Vm<Hosted>, bytes: u64) -> Result<File, Failure> {
        let store = Box::leak(Box::new(SparseStore::default()));
        Ok(File { vm, object: ObjectRef::with_pager(vm, store, bytes)?, bytes })
    }

    /// Stores into a page, which makes the page resident.
    fn store(&self, page: u64) -> Result<(), Failure> {
        let written = self.object.write(page * PAGE_SIZE, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) });
        written.map(drop).map_err(|e| Failure::Wrong(format!("{e:?}")))
    }

    /// The number of a page's frame, if it is resident.
    fn frame(&self, page: u64, pin: &Pinned<'_>) -> Option<u32> {
        // SAFETY: the index is only read, under a pin of the object's `Vm`.
        match unsafe { self.object.page_index() }.get(page, pin) {
            Slot::Page(frame) => Some(frame.0 as u32),
            _ => None,
        }
    }

    fn pages(&self) -> u64 {
        self.bytes / PAGE_SIZE
    }

    fn residents(&self) -> impl Iterator<Item = u64> + use<> {
        let apart = self.pages() / RESIDENTS;
        (0..RESIDENTS).map(move |n| n * apart)
    }

    fn range(&self) -> VirtRange {
        VirtRange { start: BASE, end: BASE + self.bytes }
    }

    fn map(&self, space: &Space<Hosted>) -> Result<(), Failure> {
        let request = MapRequest::private(Placement::Fixed(BASE), self.bytes);
        space.map(&MapRequest { shared: true, object: Some((&self.object, 0)), ..request })?;
        Ok(())
    }

    /// Makes all of `residents` resident and dirty. Also maps them if the operation is on a mapping. Returns a space,
    /// and a tree of the resident pages.
    fn prepare(&self, operation: Operation) -> Result<(SpaceRef<Hosted>, BTreeSet<u64>), Failure> {
        let space = Space::new(self.vm)?;
        self.object.set_size(self.bytes);
        self.residents().try_for_each(|page| self.store(page))?;
        if matches!(operation, Operation::Munmap | Operation::Remap) {
            self.map(&space)?;
            for page in self.residents() {
                space.fault(BASE + page * PAGE_SIZE, Access::Write)?;
            }
        }
        Ok((space, self.residents().collect()))
    }

    /// Does the operation. Returns the number of lookups that production's own counter does not include.
    fn operation(
        &self,
        how: How,
        operation: Operation,
        space: &Space<Hosted>,
        tree: &BTreeSet<u64>,
    ) -> Result<u64, Failure> {
        match operation {
            Operation::Munmap => {
                space.unmap(self.range())?;
                self.each(how, tree, |_| Ok(()))
            }
            Operation::Remap => {
                // No store precedes the unmapping. The pages are mapped already, so such a store would cause no fault.
                space.unmap(self.range())?;
                let visits = self.each(how, tree, |_| Ok(()))?;
                self.map(space)?;
                space.fault(BASE, Access::Write)?;
                Ok(visits)
            }
            Operation::Truncate => {
                let visits = self.each(how, tree, |page| {
                    self.object.discard(page..page + 1);
                    Ok(())
                })?;
                self.object.set_size(0);
                Ok(visits)
            }
            Operation::Discard if how == How::Production => {
                self.object.discard(0..self.pages());
                Ok(0)
            }
            Operation::Discard => self.each(how, tree, |page| {
                self.object.discard(page..page + 1);
                Ok(())
            }),
            Operation::Flush if how == How::Production => self.write_back(0..self.pages()).map(|()| 0),
            Operation::Flush => self.each(how, tree, |page| self.write_back(page..page + 1)),
        }
    }

    fn write_back(&self, pages: std::ops::Range<u64>) -> Result<(), Failure> {
        self.object.write_back(pages).map(drop).map_err(|e| Failure::Wrong(format!("{e:?}")))
    }

    /// Calls `f` on each resident page, found in the way of the design `how`. For production this function does
    /// nothing, because the operation itself finds the pages. Returns the number of lookups.
    fn each(
        &self,
        how: How,
        tree: &BTreeSet<u64>,
        mut f: impl FnMut(u64) -> Result<(), Failure>,
    ) -> Result<u64, Failure> {
        match how {
            How::Production => Ok(0),
            How::ByTree => {
                tree.range(0..self.pages()).try_for_each(|page| f(*page))?;
                Ok(tree.len() as u64)
            }
            How::ByOffset => {
                for first in (0..self.pages()).step_by(PINNED as usize) {
                    let last = (first + PINNED).min(self.pages());
                    let mut key = first;
                    while key < last {
                        let found = {
                            let pin = self.object.vm().epoch().pin();
                            // SAFETY: the index is only read, under a pin of the object's `Vm`.
                            let index = unsafe { self.object.page_index() };
                            (key..last).find(|k| matches!(index.get(*k, &pin), Slot::Page(_)))
                        };
                        let Some(page) = found else { break };
                        // No pin is held while `f` runs, because `f` may sleep.
                        f(page)?;
                        key = page + 1;
                    }
                }
                Ok(self.pages())
            }
        }
    }

    /// Checks the number of resident pages after the operation.
    fn expect(&self, operation: Operation) -> Result<(), Failure> {
        let left = match operation {
            Operation::Munmap | Operation::Remap | Operation::Flush => RESIDENTS,
            Operation::Truncate | Operation::Discard => 0,
        };
        let resident = self.object.resident();
        if resident == left { Ok(()) } else { Err(Failure::Wrong(format!("{resident} pages are left"))) }
    }
}

/// Discards or writes back a file whose `pages` are all dirty. Returns the longest hold of a queue's lock in accesses,
/// and the acquisitions of queue locks for each page.
fn holds(flush: bool, pages: u64) -> Result<[f64; 2], Failure> {
    let vm = machine::boot(1, 64 + pages / 256);
    let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
    let file = File::new(vm, pages * PAGE_SIZE)?;
    (0..pages).try_for_each(|page| file.store(page))?;
    let (done, counts) = counted(|| match flush {
        true => file.write_back(0..pages),
        false => {
            file.object.discard(0..pages);
            Ok(())
        }
    })?;
    done?;
    Ok([counts.longest_queue_hold as f64, counts.queue_takes as f64 / pages as f64])
}

/// As [`holds`], but with all pages in one queue. The queue's lock is held while the pages of a file are found and
/// removed.
fn holds_of_one(how: How, pages: u64) -> Result<[f64; 1], Failure> {
    let vm = machine::boot(1, 64 + pages / 256);
    let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
    let file = File::new(vm, pages * PAGE_SIZE)?;
    let queue = OneLock::new(vm.page_count() as usize);
    let mut tree = BTreeMap::new();
    for page in 0..pages {
        file.store(page)?;
        let frame = file
            .frame(page, &vm.epoch().pin())
            .ok_or_else(|| Failure::Wrong(format!("page {page} is not resident")))?;
        queue.put(frame);
        tree.insert(page, frame);
    }
    let ((), counts) = counted(|| {
        let mut held = queue.hold();
        match how {
            How::ByOffset => {
                let pin = vm.epoch().pin();
                (0..pages).filter_map(|page| file.frame(page, &pin)).for_each(|frame| held.remove(frame));
            }
            How::ByTree | How::Production => tree.range(0..pages).for_each(|(_, frame)| held.remove(*frame)),
        }
    })?;
    match queue.len() {
        0 => Ok([counts.longest_queue_hold as f64]),
        left => Err(Failure::Wrong(format!("{left} pages are left in the queue"))),
    }
}
