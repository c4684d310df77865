//! Tests that compare every core with a simple model: a value for each page of each space. Some pages are shared.

use super::{Backings, Memory, Production, Records, Target};
use crate::Failure;
use proptest::prelude::*;
use quire_vm::{PAGE_SIZE, VirtRange};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Numbers of pages: of the model's spaces, and of its file.
const PAGES: u64 = 48;
const FILE: u64 = 16;
/// The start address is chosen so that the range crosses the border of a table page.
const BASE: u64 = (1 << 40) + (512 - 20) * PAGE_SIZE;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Private,
    Shared,
    Copied,
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Map(usize, u64, u64, Kind),
    Unmap(usize, u64, u64),
    Protect(usize, u64, u64, bool),
    Store(usize, u64, u64),
    Load(usize, u64),
    Fork(usize),
    Exit(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let (space, page, pages) = (0usize..6, 0..PAGES, 1u64..12);
    let kind = prop_oneof![Just(Kind::Private), Just(Kind::Shared), Just(Kind::Copied)];
    prop_oneof![
        3 => (space.clone(), page.clone(), pages.clone(), kind).prop_map(|(s, p, n, k)| Op::Map(s, p, n, k)),
        2 => (space.clone(), page.clone(), pages.clone()).prop_map(|(s, p, n)| Op::Unmap(s, p, n)),
        1 => (space.clone(), page.clone(), pages, any::<bool>()).prop_map(|(s, p, n, w)| Op::Protect(s, p, n, w)),
        8 => (space.clone(), page.clone(), 1u64..1000).prop_map(|(s, p, v)| Op::Store(s, p, v)),
        8 => (space.clone(), page).prop_map(|(s, p)| Op::Load(s, p)),
        2 => space.clone().prop_map(Op::Fork),
        1 => space.prop_map(Op::Exit),
    ]
}

/// A mapped page of the model: `Own` has a private value, and `File` the value of a file's page. `Until` is a private
/// page of a file before its first store, and shows the file's value.
#[derive(Clone)]
enum Page {
    Own(u64),
    File(Rc<Cell<u64>>),
    Until(Rc<Cell<u64>>),
}

type Model = BTreeMap<u64, (Page, bool)>;

const ALL: [Kind; 3] = [Kind::Private, Kind::Shared, Kind::Copied];

impl Page {
    fn value(&self) -> u64 {
        match self {
            Page::Own(v) => *v,
            Page::File(v) | Page::Until(v) => v.get(),
        }
    }
}

/// A core whose memory can be loaded from and stored to word by word.
trait Words: Memory {
    fn load(self, cpu: &Self::Cpu, space: &Self::Space, va: u64) -> Result<u64, Failure>;
    fn store(self, cpu: &Self::Cpu, space: &Self::Space, va: u64, value: u64) -> Result<(), Failure>;
}

impl Words for Production {
    fn load(self, cpu: &Self::Cpu, space: &Self::Space, va: u64) -> Result<u64, Failure> {
        cpu.enter(space).unwrap();
        let value = cpu.read(space, va);
        cpu.leave();
        Ok(value?)
    }
    fn store(self, cpu: &Self::Cpu, space: &Self::Space, va: u64, value: u64) -> Result<(), Failure> {
        cpu.enter(space).unwrap();
        let done = cpu.write(space, va, value);
        cpu.leave();
        Ok(done?)
    }
}

impl Words for Records {
    fn load(self, _cpu: &Self::Cpu, space: &Self::Space, va: u64) -> Result<u64, Failure> {
        space.load(va)
    }
    fn store(self, _cpu: &Self::Cpu, space: &Self::Space, va: u64, value: u64) -> Result<(), Failure> {
        space.store(va, value)
    }
}

impl Words for Backings {
    fn load(self, _cpu: &Self::Cpu, space: &Self::Space, va: u64) -> Result<u64, Failure> {
        space.load(va)
    }
    fn store(self, _cpu: &Self::Cpu, space: &Self::Space, va: u64, value: u64) -> Result<(), Failure> {
        space.store(va, value)
    }
}

fn range(page: u64, pages: u64) -> VirtRange {
    VirtRange { start: BASE + page * PAGE_SIZE, end: BASE + (page + pages) * PAGE_SIZE }
}

/// Runs the operations on a core and on the model, and compares them. `only` has the kinds of mappings that are
/// allowed.
fn agrees<M: Words>(memory: M, ops: &[Op], only: &[Kind]) -> Result<(), TestCaseError> {
    let cpu = memory.attach(0);
    let file = memory.file(FILE).unwrap();
    let content: Vec<Rc<Cell<u64>>> = (0..FILE).map(|_| Rc::default()).collect();
    let mut spaces: Vec<(M::Space, Model)> = vec![(memory.space().unwrap(), Model::new())];
    for op in ops {
        match *op {
            Op::Map(s, page, n, kind) => {
                let count = spaces.len();
                let (space, model) = &mut spaces[s % count];
                let of = page % FILE;
                let kind = if only.contains(&kind) { kind } else { Kind::Private };
                let n = if matches!(kind, Kind::Private) { n } else { n.min(FILE - of) };
                let target = match kind {
                    Kind::Private => Target::Private,
                    Kind::Shared => Target::Shared(file.clone(), of),
                    Kind::Copied => Target::Copied(file.clone(), of),
                };
                memory.map(space, range(page, n), target).unwrap();
                for i in 0..n {
                    let shown = || content[((of + i) % FILE) as usize].clone();
                    let new = match kind {
                        Kind::Private => Page::Own(0),
                        Kind::Shared => Page::File(shown()),
                        Kind::Copied => Page::Until(shown()),
                    };
                    model.insert(page + i, (new, true));
                }
            }
            Op::Unmap(s, page, n) => {
                let count = spaces.len();
                let (space, model) = &mut spaces[s % count];
                memory.unmap(space, range(page, n)).unwrap();
                model.retain(|p, _| !(page..page + n).contains(p));
            }
            Op::Protect(s, page, n, stores) => {
                let count = spaces.len();
                let (space, model) = &mut spaces[s % count];
                // `protect` is not tested on ranges with holes, because production refuses them.
                if (page..page + n).all(|p| model.contains_key(&p)) {
                    memory.protect(space, range(page, n), stores).unwrap();
                    model.range_mut(page..page + n).for_each(|(_, p)| p.1 = stores);
                }
            }
            Op::Store(s, page, value) => {
                let count = spaces.len();
                let (space, model) = &mut spaces[s % count];
                let done = memory.store(&cpu, space, range(page, 1).start, value).is_ok();
                let may = model.get(&page).is_some_and(|p| p.1);
                prop_assert_eq!(done, may, "{:?}", op);
                if let Some((at, _)) = model.get_mut(&page).filter(|_| may) {
                    match at {
                        Page::File(v) => v.set(value),
                        other => *other = Page::Own(value),
                    }
                }
            }
            Op::Load(s, page) => {
                let (space, model) = &spaces[s % spaces.len()];
                let value = memory.load(&cpu, space, range(page, 1).start).ok();
                prop_assert_eq!(value, model.get(&page).map(|p| p.0.value()), "{:?}", op);
            }
            Op::Fork(s) => {
                if spaces.len() < 6 {
                    let (space, model) = &spaces[s % spaces.len()];
                    let child = (memory.fork(space).unwrap(), model.clone());
                    spaces.push(child);
                }
            }
            Op::Exit(s) => {
                if spaces.len() > 1 {
                    spaces.swap_remove(s % spaces.len());
                }
            }
        }
    }
    // All pages are checked once more, and then everything is dropped.
    for (space, model) in &spaces {
        for page in 0..PAGES + 12 {
            let value = memory.load(&cpu, space, range(page, 1).start).ok();
            prop_assert_eq!(value, model.get(&page).map(|p| p.0.value()), "page {} at the end", page);
        }
    }
    drop(spaces);
    drop(file);
    prop_assert_eq!(memory.held(), 0, "frames are left");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_record_for_each_page_agrees_with_the_model(ops in prop::collection::vec(op(), 1..150)) {
        for parts in [1, 7] {
            agrees(Records::boot(1, 2, parts).unwrap(), &ops, &ALL)?;
        }
    }

    /// Once the chain of a private file mapping was cut, the mapping no longer shows other spaces' stores to the file.
    /// So no case of this test has both private and shared mappings of a file.
    #[test]
    fn a_backing_for_each_mapping_does_too(ops in prop::collection::vec(op(), 1..150)) {
        for only in [[Kind::Private, Kind::Shared], [Kind::Private, Kind::Copied]] {
            agrees(Backings::boot(1, 4, 7).unwrap(), &ops, &only)?;
        }
    }

    #[test]
    fn production_agrees_with_the_model(ops in prop::collection::vec(op(), 1..150)) {
        agrees(Production::boot(1, 4), &ops, &ALL)?;
    }
}

/// The number of pages that are held for a process whose ancestors have all exited. Each ancestor exited after its
/// child had stored into 8 of 32 pages. The second number is counted after the process has stored into all pages.
fn held_after_a_line_of_forks<M: Memory>(memory: M, generations: u64) -> [u64; 2] {
    let _cpu = memory.attach(0);
    let store = |space: &_, page| memory.fault(space, range(page, 1).start, quire_vm::Access::Write).unwrap();
    let mut space = memory.space().unwrap();
    memory.map(&space, range(0, 32), Target::Private).unwrap();
    (0..32).for_each(|page| store(&space, page));
    for generation in 0..generations {
        let child = memory.fork(&space).unwrap();
        (0..8).for_each(|page| store(&child, (generation + page) % 32));
        space = child;
    }
    let held = memory.held();
    (0..32).for_each(|page| store(&space, page));
    [held, memory.held()]
}

#[test]
fn a_line_of_forks_holds_pages_that_its_design_cannot_free() {
    let records = |generations| held_after_a_line_of_forks(Records::boot(1, 1, 4).unwrap(), generations);
    let backings = |generations| held_after_a_line_of_forks(Backings::boot(1, 1, 4).unwrap(), generations);
    // An object with only one object in front of it is collapsed: its pages move to that object.
    assert_eq!(records(10), [32, 32]);
    // Hidden pages stay until a fork finds five objects behind the front object.
    assert_eq!(backings(3), [32 + 3 * 8, 32 + 2 * 8 + 32]);
    assert_eq!(backings(5), [32 + 5 * 8, 32 + 4 * 8 + 32]);
    assert_eq!(backings(6), [32 + 8, 32 + 32]);
    assert_eq!(backings(8), [32 + 3 * 8, 32 + 2 * 8 + 32]);
}

/// The next fork drops all pages behind a front object whose every page was stored into, because the front hides them.
#[test]
fn a_front_that_hides_all_is_cut_at_a_fork() {
    let memory = Backings::boot(1, 1, 4).unwrap();
    let _cpu = memory.attach(0);
    let store = |space: &_, page| memory.fault(space, range(page, 1).start, quire_vm::Access::Write).unwrap();
    let first = memory.space().unwrap();
    memory.map(&first, range(0, 8), Target::Private).unwrap();
    (0..8).for_each(|page| store(&first, page));
    let second = memory.fork(&first).unwrap();
    (0..8).for_each(|page| store(&second, page));
    drop(first);
    assert_eq!(memory.held(), 16);
    drop(memory.fork(&second).unwrap());
    assert_eq!(memory.held(), 8);
}

/// Clean pages are paged out, even if a space maps them. All other pages stay.
#[test]
fn a_stored_files_pages_are_paged_out() {
    fn pages_out<M: Memory>(memory: M) {
        let _cpu = memory.attach(0);
        let file = memory.stored_file(32).unwrap();
        let spaces: Vec<M::Space> = (0..3).map(|_| memory.space().unwrap()).collect();
        for space in &spaces {
            memory.map(space, range(0, 32), Target::Shared(file.clone(), 0)).unwrap();
            (0..32).for_each(|page| memory.fault(space, range(page, 1).start, quire_vm::Access::Read).unwrap());
        }
        let held = memory.held();
        memory.page_out(&file, 4..20);
        assert_eq!(held - memory.held(), 16);
    }
    pages_out(Records::boot(1, 2, 4).unwrap());
    pages_out(Backings::boot(1, 2, 4).unwrap());
    pages_out(Production::boot(1, 4));
}

/// Threads fault, fork and exit on one file and one space, while another thread reclaims the file's pages.
fn many_threads_leave_nothing_behind<M: Words>(memory: M) {
    let cpu = memory.attach(0);
    let file = memory.file(64).unwrap();
    let space = memory.space().unwrap();
    memory.map(&space, range(0, 64), Target::Shared(file.clone(), 0)).unwrap();
    memory.map(&space, range(64, 256), Target::Private).unwrap();
    std::thread::scope(|s| {
        for id in 0..3u64 {
            let (space, file) = (&space, &file);
            s.spawn(move || {
                let cpu = memory.attach(id as usize);
                let at = |page: u64| range(page, 1).start;
                for round in 0..200 {
                    for page in 0..32 {
                        memory.fault(space, at((page * 7 + id) % 64), quire_vm::Access::Write).unwrap();
                        memory.store(&cpu, space, at(64 + id * 80 + page), round * 1000 + page).unwrap();
                    }
                    let child = memory.fork(space).unwrap();
                    for page in 0..32 {
                        let value = memory.load(&cpu, &child, at(64 + id * 80 + page)).unwrap();
                        assert_eq!(value, round * 1000 + page, "the child has what its parent had");
                        memory.store(&cpu, &child, at(64 + id * 80 + page), 1).unwrap();
                    }
                    if id == 0 {
                        memory.remove(file, round % 64..round % 64 + 1);
                    }
                }
            });
        }
    });
    drop(space);
    drop(file);
    assert_eq!(memory.held(), 0);
    drop(cpu);
}

/// The MiB of memory of the machine. While a child lives, the pages that were stored into since its fork stay
/// allocated. There are at most 3 * 200 * 32 such pages.
const ENOUGH: u64 = 80;

#[test]
fn many_threads_leave_nothing_behind_with_records() {
    many_threads_leave_nothing_behind(Records::boot(4, ENOUGH, 4).unwrap());
}

#[test]
fn many_threads_leave_nothing_behind_with_backings() {
    many_threads_leave_nothing_behind(Backings::boot(4, ENOUGH, 4).unwrap());
}
