//! The number of cache lines that move between CPUs per operation, by number of CPUs. A design scales if that number is
//! the same with 256 CPUs as with 2.
//!
//! The CPUs take turns on one thread. A model of cache coherence converts the recorded accesses into moves. For each
//! line, the model keeps the CPUs that hold it, and whether one of them has changed it. A move is a fetch of a line
//! from another CPU, or an invalidation of other CPUs' copies for a write.

use super::measure::short;
use crate::bench::transfers;
use crate::{Failure, machine};
use comfy_table::{Cell, CellAlignment, Table, presets};
use quire_hosted::{Cpu, Hosted};
use quire_sync::record::{Access as Touch, Coherence, scope, unrecorded};
use quire_vm::map::{Advice, MapRequest, Placement, Space, SpaceRef};
use quire_vm::object::ObjectRef;
use quire_vm::{Access, PAGE_SIZE, Prot, VirtRange, Vm};
use std::collections::BTreeMap;

/// The numbers of CPUs that are compared.
pub const CPUS: [usize; 5] = [2, 4, 16, 64, 256];
/// The least number of counted operations, summed over all CPUs.
const OPERATIONS: usize = 1024;
/// The least number of counted rounds. They span several epochs.
const ROUNDS: usize = 64;
/// The longest period, in rounds, of work that is done once in many operations. For example, the frames of a CPU's
/// magazine last for this many faults. The CPUs start evenly spread over the period, so that each round contains an
/// average share of that work.
const PERIOD: usize = 256;
/// The number of first rounds that are not recorded. In them, the epoch advances, so that memory retired before is free
/// again, and the CPUs' caches fill.
const SETTLE: usize = 128;
/// The number of rounds that are recorded but not counted. In them, each CPU touches all data that it uses, and all
/// pages of a shared file.
const WARM: usize = 32;
/// The number of pages that one table page covers.
const REGION: u64 = 512;
const BASE: u64 = 0x5000_0000_0000;

/// An operation that the CPUs repeat.
pub struct Workload {
    /// The workload's name.
    pub name: &'static str,
    /// The most lines that an operation may move, with any number of CPUs. A test enforces this limit. `None` for a
    /// design that was replaced, or a design that `lab bench` measures.
    pub held: Option<f64>,
    /// Measures the lines that the workload moves with this number of CPUs.
    pub moves: fn(usize) -> Result<Moves, Failure>,
}

/// Counts of cache lines that move between CPUs.
#[derive(Clone, Default, Debug)]
pub struct Moves {
    /// Lines for each operation.
    pub lines: f64,
    /// The lines for each operation by the data structure that owns them, most first. Empty if the workload does not
    /// distinguish owners.
    pub by: Vec<(&'static str, f64)>,
    /// The lines for each operation by the source line that accessed them.
    pub sites: Vec<(String, f64)>,
}

impl From<f64> for Moves {
    fn from(lines: f64) -> Moves {
        Moves { lines, ..Moves::default() }
    }
}

/// All workloads.
pub const WORKLOADS: &[Workload] = &[
    Workload { name: "zero-fill faults of threads of one process", held: Some(0.1), moves: zero_fill },
    Workload { name: "forks and exits", held: Some(0.3), moves: fork_exit },
    Workload { name: "execs of one shared program", held: Some(1.0), moves: exec },
    Workload { name: "faults on one shared file", held: Some(0.0), moves: shared_file },
    Workload { name: "mmap and munmap in one process", held: Some(0.15), moves: |n| map_unmap(n, true) },
    Workload { name: "  the same, one lock for the map", held: None, moves: |n| map_unmap(n, false) },
    Workload { name: "a page into a queue", held: None, moves: |n| Ok(transfers::lines(n)?[1].into()) },
    Workload { name: "  the same, one lock for the queue", held: None, moves: |n| Ok(transfers::lines(n)?[0].into()) },
    Workload { name: "a frame taken or given back", held: None, moves: |n| Ok(transfers::lines(n)?[3].into()) },
    Workload { name: "  the same, one list of frames", held: None, moves: |n| Ok(transfers::lines(n)?[2].into()) },
];

fn boot(cpus: usize) -> (&'static Vm<Hosted>, Vec<Cpu>) {
    let vm = machine::boot(cpus, 64 + 4 * cpus as u64);
    (vm, (0..cpus).map(|id| Cpu::attach(vm, id).expect("no other thread is this CPU")).collect())
}

/// Lets the CPUs do `operation` in turn, and counts moves. `operation` gets the CPU, and how often that CPU has done
/// it.
fn moves(cpus: &[Cpu], mut operation: impl FnMut(&Cpu, u64) -> Result<(), Failure>) -> Result<Moves, Failure> {
    let mut done = vec![0u64; cpus.len()];
    for round in 0..PERIOD + SETTLE {
        for (n, cpu) in cpus.iter().enumerate().filter(|(n, _)| round >= n * PERIOD / cpus.len()) {
            cpu.run(|| operation(cpu, done[n]))?;
            done[n] += 1;
        }
    }
    let mut caches = Coherence::new();
    let rounds = OPERATIONS.div_ceil(cpus.len()).max(ROUNDS);
    let mut operations = 0u64;
    let (mut by, mut sites) = (BTreeMap::<&str, u64>::new(), BTreeMap::<String, u64>::new());
    for round in 0..WARM + rounds {
        for cpu in cpus {
            let (result, record) = scope(|| cpu.run(|| operation(cpu, done[cpu.id()])));
            result?;
            done[cpu.id()] += 1;
            let place = |a: &Touch| (a.place.map_or("", |p| p.label), (a.site.file(), a.site.line()));
            let traffic = caches.run_by(&record, place);
            if round >= WARM {
                operations += 1;
                for ((label, (file, line)), t) in traffic.into_iter().filter(|(_, t)| t.shared() != 0) {
                    *by.entry(label).or_default() += t.shared();
                    *sites.entry(format!("{} {file}:{line}", short(label))).or_default() += t.shared();
                }
            }
        }
    }
    let (by, sites) = (most_first(by, operations), most_first(sites, operations));
    Ok(Moves { lines: by.iter().fold(0.0, |sum, (_, n)| sum + n), by, sites })
}

/// Divides the counts by the number of operations, and sorts them in descending order.
fn most_first<K>(counts: BTreeMap<K, u64>, operations: u64) -> Vec<(K, f64)> {
    let mut counts: Vec<_> = counts.into_iter().map(|(k, n)| (k, n as f64 / operations as f64)).collect();
    counts.sort_by(|a, b| b.1.total_cmp(&a.1));
    counts
}

fn region(n: u64, regions: u64) -> u64 {
    BASE + n * regions * REGION * PAGE_SIZE
}

fn zero_fill(cpus: usize) -> Result<Moves, Failure> {
    let (vm, cpus) = boot(cpus);
    let space = Space::new(vm)?;
    cpus.iter().for_each(|c| c.enter(&space).expect("the space belongs to this machine"));
    // A single CPU needs more regions, because it does all counted operations.
    let regions = if cpus.len() == 1 { 4 } else { 2 };
    space.map(&MapRequest::private(Placement::Fixed(BASE), cpus.len() as u64 * regions * REGION * PAGE_SIZE))?;
    moves(&cpus, |cpu, n| {
        let at = region(cpu.id() as u64, regions) + n * PAGE_SIZE;
        space.fault(at, Access::Write)?;
        Ok(())
    })
}

/// Makes a space for each CPU, on that CPU.
fn spaces(
    vm: &'static Vm<Hosted>,
    cpus: &[Cpu],
    make: impl Fn(&Cpu, &Space<Hosted>) -> Result<(), Failure>,
) -> Result<Vec<SpaceRef<Hosted>>, Failure> {
    let one = |cpu: &Cpu| -> Result<_, Failure> {
        let space = cpu.run(|| Space::new(vm))?;
        cpu.enter(&space).expect("the space belongs to this machine");
        cpu.run(|| make(cpu, &space))?;
        Ok(space)
    };
    cpus.iter().map(one).collect()
}

fn fork_exit(cpus: usize) -> Result<Moves, Failure> {
    let (vm, cpus) = boot(cpus);
    let spaces = spaces(vm, &cpus, |_, space| {
        for n in 0..4 {
            space.map(&MapRequest::private(Placement::Fixed(region(n, 1)), 8 * PAGE_SIZE))?;
            for page in 0..8 {
                space.fault(region(n, 1) + page * PAGE_SIZE, Access::Write)?;
            }
        }
        Ok(())
    })?;
    moves(&cpus, |cpu, _| Ok(drop(spaces[cpu.id()].fork()?)))
}

/// Makes an anonymous object of `pages` pages, all resident.
fn file(vm: &'static Vm<Hosted>, pages: u64) -> Result<ObjectRef<Hosted>, Failure> {
    let object = ObjectRef::anonymous(vm, pages)?;
    let space = Space::new(vm)?;
    let all = MapRequest::private(Placement::Fixed(BASE), pages * PAGE_SIZE);
    space.map(&MapRequest { shared: true, object: Some((&object, 0)), ..all })?;
    for page in 0..pages {
        space.fault(BASE + page * PAGE_SIZE, Access::Write)?;
    }
    Ok(object)
}

/// Maps a page of the object 1500 times, as if every program used the object. Its mapping list is then sharded: split
/// into parts with a lock each. Returns the space of the mappings.
fn crowd(cpus: &[Cpu], object: &ObjectRef<Hosted>, page: u64) -> Result<SpaceRef<Hosted>, Failure> {
    let space = Space::new(cpus[0].vm())?;
    let request = |n: u64| MapRequest {
        object: Some((&object, page * PAGE_SIZE)),
        ..MapRequest::private(Placement::Fixed(BASE + n * 2 * PAGE_SIZE), PAGE_SIZE)
    };
    for n in 0..1500 {
        cpus[n as usize % cpus.len()].run(|| space.map(&request(n)))?;
    }
    Ok(space)
}

fn exec(cpus: usize) -> Result<Moves, Failure> {
    let (vm, cpus) = boot(cpus);
    let program = file(vm, 64)?;
    let _others = crowd(&cpus, &program, 63)?;
    let text = Prot::READ | Prot::EXEC;
    let data = Prot::READ | Prot::WRITE;
    // For each segment: the first page from the base, the number of pages, the rights, and the page of the file (`None`
    // for zeroed data).
    let segments = [
        (0, 8, text, Some(0)),
        (8, 2, data, Some(8)),
        (10, 2, data, None),
        (64, 8, text, Some(16)),
        (72, 2, data, Some(24)),
        (74, 2, data, None),
        (256, 34, data, None),
    ];
    let requests: Vec<MapRequest<'_, Hosted>> = segments
        .map(|(page, pages, prot, of)| MapRequest {
            prot,
            object: of.map(|n| (&program, n * PAGE_SIZE)),
            ..MapRequest::private(Placement::Fixed(BASE + page * PAGE_SIZE), pages * PAGE_SIZE)
        })
        .into();
    moves(&cpus, |_, _| {
        let space = Space::new(vm)?;
        requests.iter().try_for_each(|r| space.map(r).map(drop))?;
        for (page, access) in [(0, Access::Exec), (8, Access::Write), (64, Access::Exec), (289, Access::Write)] {
            space.fault(BASE + page * PAGE_SIZE, access)?;
        }
        Ok(())
    })
}

fn shared_file(cpus: usize) -> Result<Moves, Failure> {
    const STEP: u64 = 32;
    let (vm, cpus) = boot(cpus);
    let object = file(vm, REGION)?;
    let all = VirtRange { start: BASE, end: BASE + REGION * PAGE_SIZE };
    let request = MapRequest {
        shared: true,
        prot: Prot::READ,
        object: Some((&object, 0)),
        ..MapRequest::private(Placement::Fixed(BASE), all.len())
    };
    let spaces = spaces(vm, &cpus, |_, space| Ok(space.map(&request).map(drop)?))?;
    moves(&cpus, |cpu, n| {
        let space = &spaces[cpu.id()];
        if n % (REGION / STEP) == 0 {
            unrecorded(|| space.advise(all, Advice::DontNeed))?;
        }
        space.fault(BASE + n % (REGION / STEP) * STEP * PAGE_SIZE, Access::Read)?;
        Ok(())
    })
}

fn map_unmap(cpus: usize, arenas: bool) -> Result<Moves, Failure> {
    let (vm, cpus) = boot(cpus);
    let space = Space::new(vm)?;
    cpus.iter().for_each(|c| c.enter(&space).expect("the space belongs to this machine"));
    if arenas {
        cpus.iter().for_each(|c| c.run(|| space.open_arena(c.id())));
    }
    moves(&cpus, |cpu, _| {
        // One lock guards all mappings outside of arenas. An arena is a part of the space with its own lock.
        let to = if arenas { Placement::Any { hint: 0 } } else { Placement::Fixed(region(cpu.id() as u64, 1)) };
        let at = space.map(&MapRequest::private(to, 4 * PAGE_SIZE))?;
        space.unmap(VirtRange { start: at, end: at + 4 * PAGE_SIZE })?;
        Ok(())
    })
}

/// Prints one line for each workload whose name contains one of `names`, or for all workloads. Also prints the owners
/// of the lines, and with `verbose` the source lines.
pub fn command(names: &[String], verbose: bool) -> Result<bool, Failure> {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
    let head = CPUS.map(|n| right(format!("{n} CPUs")));
    table.set_header([Cell::new("lines moved an operation")].into_iter().chain(head));
    let mut rest = Vec::new();
    let asked = |w: &&Workload| names.is_empty() || names.iter().any(|n| w.name.contains(n.as_str()));
    for workload in WORKLOADS.iter().filter(asked) {
        let mut row = vec![Cell::new(workload.name)];
        for cpus in CPUS {
            let moves = (workload.moves)(cpus)?;
            row.push(right(format!("{:.2}", moves.lines)));
            if moves.by.is_empty() || !verbose && cpus != CPUS[CPUS.len() - 1] {
                continue;
            }
            let most = moves.by.iter().take(4).map(|(label, n)| format!("{} {n:.2}", short(label)));
            rest.push(format!("- {}, {cpus} CPUs: {}", workload.name.trim(), most.collect::<Vec<_>>().join(", ")));
            let sites = moves.sites.iter().filter(|(_, n)| verbose && *n >= 0.005);
            rest.extend(sites.map(|(site, n)| format!("    {n:.2} {site}")));
        }
        table.add_row(row);
    }
    println!("{table}\n\nOwners of these lines:");
    rest.iter().for_each(|line| println!("{line}"));
    Ok(true)
}
