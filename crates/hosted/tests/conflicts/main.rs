//! Tests of scalability: which cache lines are shared by operations of different CPUs, and which locks and allocations
//! a fault needs. They need the recording build: `RUSTFLAGS="--cfg recording" cargo test -p quire-hosted`.
#![cfg(recording)]

mod flush;

use quire_hosted::{Cpu, Hosted, Settings};
use quire_sync::record::{Coherence, Record, scope};
use quire_sync::{Quota, Rank};
use quire_vm::check::Level;
use quire_vm::machine::FrameBytesMut;
use quire_vm::map::{MapRequest, Placement, Space, SpaceRef};
use quire_vm::stats::Event;
use quire_vm::{Access, FaultKind, ObjectRef, PAGE_SIZE, Prot, Vm};
use std::collections::BTreeSet;

const BASE: u64 = 0x5000_0000_0000;
/// The number of pages that one last-level table page covers.
const REGION: u64 = 512;

fn boot(cpus: usize, frames: u64) -> (&'static Vm<Hosted>, Vec<Cpu>) {
    // The checker is off, because it reads the cache lines of all CPUs.
    boot_with(Settings { cpus, frames, check: Level::Never, zero_window: 0, ..Settings::default() })
}

fn boot_with(settings: Settings) -> (&'static Vm<Hosted>, Vec<Cpu>) {
    let cpus = settings.cpus;
    let vm = Hosted::boot(settings).unwrap();
    (vm, (0..cpus).map(|id| Cpu::attach(vm, id).unwrap()).collect())
}

/// Makes one space for all CPUs, with `regions` regions of private memory for each. The returned function gives the
/// first page of CPU `n`.
fn shared_space(cpus: &[Cpu], regions: u64) -> (SpaceRef<Hosted>, impl Fn(usize) -> u64 + use<>) {
    let space = Space::new(cpus[0].vm()).unwrap();
    cpus.iter().for_each(|c| c.enter(&space).unwrap());
    let len = cpus.len() as u64 * regions * REGION * PAGE_SIZE;
    assert_eq!(space.map(&MapRequest::private(Placement::Fixed(BASE), len)), Ok(BASE));
    (space, move |n| n as u64 * regions * REGION)
}

/// Returns the record of one fault of `cpu` at `page`, which must be of kind `kind`.
fn fault(cpu: &Cpu, space: &Space<Hosted>, page: u64, access: Access, kind: FaultKind) -> Record {
    let (got, record) = scope(|| cpu.run(|| space.fault(BASE + page * PAGE_SIZE, access)));
    assert_eq!(got, Ok(kind));
    record
}

/// Returns the labels of the lines that one CPU wrote and another one accessed.
fn conflicts(record: &Record) -> BTreeSet<&'static str> {
    record.conflicts().iter().map(|c| c.label()).collect()
}

/// The conflicts as text, for the message of a failed test.
fn text(record: &Record) -> String {
    record.conflicts().iter().map(|c| c.to_string()).collect()
}

/// Several CPUs make zero-fill faults in turn, each in regions of its own. Returns how many shared lines each fault
/// writes on average.
fn zero_fill_shared_lines(cpus: usize) -> f64 {
    let (_, cpus) = boot(cpus, cpus as u64 * 4 * REGION + 16 * 1024);
    let (space, first) = shared_space(&cpus, 3);
    let mut caches = Coherence::new();
    let (mut shared, mut faults) = (0, 0);
    for n in 0..3 * REGION {
        for cpu in &cpus {
            let one = fault(cpu, &space, first(cpu.id()) + n, Access::Write, FaultKind::ZeroFill);
            let lines = caches.shared_lines_written(&one);
            // Faults in the first region only warm the caches.
            if n >= REGION {
                (shared, faults) = (shared + lines, faults + 1);
            }
        }
    }
    shared as f64 / faults as f64
}

#[test]
fn zero_fill_faults_write_one_shared_line_in_32_at_most() {
    for cpus in [2, 5, 16] {
        let lines = zero_fill_shared_lines(cpus);
        println!("{cpus} CPUs: {lines:.4} shared lines written a fault");
        assert!(lines <= 1.0 / 32.0, "{cpus} CPUs: {lines}");
    }
}

/// A file in memory.
struct Plain;

impl quire_vm::paging::pager::Pager for Plain {
    fn name(&self, _: &mut dyn std::fmt::Write) -> std::fmt::Result {
        Ok(())
    }
    fn ident(&self) -> (u64, u64) {
        (1, 1)
    }
    fn in_memory(&self) -> bool {
        true
    }
    fn takes_writes(&self) -> bool {
        false
    }
}

/// CPUs write pages in turn, each of a file of its own. All files are charged to one quota.
#[test]
fn file_page_writes_share_at_most_one_line_in_16() {
    for cpus in [2, 5, 16] {
        let (vm, cpus) = boot(cpus, cpus as u64 * 4 * REGION + 16 * 1024);
        let quota: &'static Quota = Box::leak(Box::new(Quota::leaked(cpus.len(), 1 << 30)));
        let file = |cpu: &Cpu| cpu.run(|| ObjectRef::charged(vm, &Plain, 0, Some(quota)).unwrap());
        let files: Vec<ObjectRef<Hosted>> = cpus.iter().map(file).collect();
        let mut caches = Coherence::new();
        let (mut shared, mut pages) = (0, 0);
        for n in 0..3 * REGION {
            for (cpu, file) in cpus.iter().zip(&files) {
                let mut source = |to: FrameBytesMut<'_>| -> Result<usize, ()> { Ok(to.len()) };
                let (got, record) = scope(|| cpu.run(|| file.write(n * PAGE_SIZE, PAGE_SIZE as usize, &mut source)));
                assert_eq!(got, Ok(PAGE_SIZE as usize));
                let lines = caches.shared_lines_written(&record);
                if n >= REGION {
                    (shared, pages) = (shared + lines, pages + 1);
                }
            }
        }
        assert_eq!(quota.taken(), 3 * REGION * cpus.len() as u64);
        let lines = shared as f64 / pages as f64;
        println!("{} CPUs: {lines:.4} shared lines written a page", cpus.len());
        assert!(lines <= 1.0 / 16.0, "{} CPUs: {lines}", cpus.len());
    }
}

#[test]
fn pages_made_ahead_share_no_more_lines_than_others() {
    for cpus in [2, 16] {
        let frames = cpus as u64 * 4 * REGION + 16 * 1024;
        let (vm, cpus) = boot_with(Settings { cpus, frames, check: Level::Never, ..Settings::default() });
        let (space, first) = shared_space(&cpus, 3);
        let mut caches = Coherence::new();
        let mut shared = 0;
        for n in 0..3 * REGION {
            for cpu in &cpus {
                let page = first(cpu.id()) + n;
                if cpu.store_word(BASE + page * PAGE_SIZE, n).is_err() {
                    let one = fault(cpu, &space, page, Access::Write, FaultKind::ZeroFill);
                    let lines = caches.shared_lines_written(&one);
                    shared += if n < REGION { 0 } else { lines };
                    assert_eq!(cpu.store_word(BASE + page * PAGE_SIZE, n), Ok(()));
                }
            }
        }
        let pages = 2 * REGION * cpus.len() as u64;
        let (faults, ahead) = (vm.stats().faults_of(FaultKind::ZeroFill), vm.stats().total(Event::FaultAhead));
        println!("{} CPUs: {shared} shared lines written for {pages} pages", cpus.len());
        assert_eq!(faults + ahead, 3 * REGION * cpus.len() as u64);
        assert!(faults * 16 < ahead, "{faults} faults, {ahead} pages ahead");
        assert!(shared <= pages as usize / 32, "{shared} lines for {pages} pages");
    }
}

#[test]
fn two_zero_fill_faults_share_only_batch_refills() {
    let (_, cpus) = boot(2, 16 * 1024);
    let (space, first) = shared_space(&cpus, 1);
    let all = |range: std::ops::Range<u64>| {
        scope(|| {
            for n in range {
                for cpu in &cpus {
                    fault(cpu, &space, first(cpu.id()) + n, Access::Write, FaultKind::ZeroFill);
                }
            }
        })
        .1
    };
    all(0..2);
    // Between two refills of a CPU's magazines no line is shared.
    let few = all(2..60);
    assert_eq!(conflicts(&few), BTreeSet::new(), "{}", text(&few));
    // New index nodes are linked into a shared node and come from a depot, as frames do. Once in 1024 pages a CPU adds
    // its count of mapped pages to the space's count.
    let many = all(60..REGION);
    let listed = BTreeSet::from(["index-node", "vm", "page", "frame-depot", "space"]);
    assert!(conflicts(&many).is_subset(&listed), "{}", text(&many));
}

#[test]
fn a_resident_fault_takes_one_lock_and_shares_nothing() {
    let (vm, cpus) = boot(3, 16 * 1024);
    let object = ObjectRef::anonymous(vm, REGION).unwrap();
    let spaces: Vec<SpaceRef<Hosted>> = cpus.iter().map(|_| Space::new(vm).unwrap()).collect();
    for (cpu, space) in cpus.iter().zip(&spaces) {
        cpu.enter(space).unwrap();
        let request = MapRequest {
            shared: true,
            object: Some((&object, 0)),
            ..MapRequest::private(Placement::Fixed(BASE), REGION * PAGE_SIZE)
        };
        assert_eq!(space.map(&request), Ok(BASE));
    }
    // The first CPU fills the object; the others find its pages, each in a space of its own.
    for n in 0..REGION {
        fault(&cpus[0], &spaces[0], n, Access::Write, FaultKind::ZeroFill);
    }
    for n in [1, 2] {
        fault(&cpus[n], &spaces[n], 0, Access::Read, FaultKind::Resident);
    }
    // The faults are at every second window of fault-around, so that no fault in between maps ahead.
    let mut counted_space = 0;
    let ((), record) = scope(|| {
        for page in (32..REGION).step_by(32) {
            for n in [1, 2] {
                let one = fault(&cpus[n], &spaces[n], page, Access::Read, FaultKind::Resident);
                assert_eq!(one.lock_takes_by_rank(), [(Some(Rank::TABLE), 1)].into(), "{one}");
                // A fault writes only the CPU's own counters, its epoch slot, its table page and that page's
                // descriptor.
                let written = one.only(|a| a.kind.writes());
                let mut labels: BTreeSet<&str> =
                    written.accesses().iter().filter_map(|a| a.place).map(|p| p.label).collect();
                // Sometimes the CPU adds its count of mapped pages to its space's count.
                counted_space += labels.remove("space") as u32;
                let own = [
                    "page",
                    "quire_pmap::mmu::CpuMmu",
                    "quire_sync::epoch::Slot",
                    "quire_vm::stats::Counters",
                    "table",
                ];
                assert_eq!(labels, own.into(), "{written}");
                assert!(written.accesses().iter().all(|a| a.place.is_some()), "{written}");
            }
        }
    });
    assert_eq!(conflicts(&record), BTreeSet::new(), "{}", text(&record));
    // Each CPU maps 15 windows of 16 pages.
    assert!(counted_space <= 2 * (15 * 16 / 1024 + 1), "{counted_space} faults updated their space's count of pages");
}

#[test]
fn a_zero_fill_fault_takes_one_frame_and_three_own_locks() {
    let (_, cpus) = boot(1, 16 * 1024);
    let (space, _) = shared_space(&cpus, 1);
    fault(&cpus[0], &space, 0, Access::Write, FaultKind::ZeroFill);
    fault(&cpus[0], &space, 1, Access::Write, FaultKind::ZeroFill);
    let one = fault(&cpus[0], &space, 2, Access::Write, FaultKind::ZeroFill);
    let expected = [(Some(Rank::TABLE), 1), (Some(Rank::QUEUE_BATCH), 1), (Some(Rank::MAGAZINE), 1)];
    assert_eq!(one.lock_takes_by_rank(), expected.into(), "{one}");
}

#[test]
fn map_changes_in_different_spaces_share_only_the_epoch() {
    let (vm, cpus) = boot(2, 16 * 1024);
    let spaces: Vec<SpaceRef<Hosted>> = cpus.iter().map(|_| Space::new(vm).unwrap()).collect();
    cpus.iter().zip(&spaces).for_each(|(c, s)| c.enter(s).unwrap());
    let round = |n: u64| {
        for (cpu, space) in cpus.iter().zip(&spaces) {
            let at = BASE + n % 4 * 2 * REGION * PAGE_SIZE;
            cpu.run(|| {
                let request = MapRequest {
                    prot: Prot::READ | Prot::WRITE,
                    ..MapRequest::private(Placement::Fixed(at), 4 * PAGE_SIZE)
                };
                assert_eq!(space.map(&request), Ok(at));
                assert_eq!(space.fault(at, Access::Write), Ok(FaultKind::ZeroFill));
                space.unmap(quire_vm::VirtRange { start: at, end: at + 4 * PAGE_SIZE }).unwrap();
            });
        }
    };
    // These calls of `round` fill the stocks, until memory that was retired three epochs ago is reused.
    (0..200).for_each(round);
    // About once in a hundred retired structures a CPU reads the epochs of all CPUs, and advances the global epoch.
    let listed = BTreeSet::from(["quire_sync::epoch::Slot", "vm"]);
    let mut quiet = 0;
    for n in 200..232 {
        let ((), record) = scope(|| round(n));
        assert!(conflicts(&record).is_subset(&listed), "{}", text(&record));
        quiet += conflicts(&record).is_empty() as u32;
    }
    assert!(quiet >= 24, "only {quiet} of 32 rounds shared nothing");
}

#[test]
fn map_changes_in_separate_arenas_share_only_the_epoch() {
    for touched in [false, true] {
        let (vm, cpus) = boot(3, 16 * 1024);
        let space = Space::new(vm).unwrap();
        cpus.iter().for_each(|c| c.enter(&space).unwrap());
        cpus.iter().for_each(|c| c.run(|| space.open_arena(c.id())));
        let round = || {
            for cpu in &cpus {
                cpu.run(|| {
                    let request = MapRequest::private(Placement::Any { hint: 0 }, 4 * PAGE_SIZE);
                    let at = space.map(&request).unwrap();
                    if touched {
                        assert_eq!(space.fault(at, Access::Write), Ok(FaultKind::ZeroFill));
                    }
                    space.unmap(quire_vm::VirtRange { start: at, end: at + 4 * PAGE_SIZE }).unwrap();
                });
            }
        };
        (0..200).for_each(|_| round());
        let listed = BTreeSet::from(["quire_sync::epoch::Slot", "vm"]);
        let mut quiet = 0;
        for _ in 0..32 {
            let ((), record) = scope(round);
            assert!(conflicts(&record).is_subset(&listed), "touched: {touched}\n{}", text(&record));
            quiet += conflicts(&record).is_empty() as u32;
        }
        assert!(quiet >= 24, "only {quiet} of 32 rounds shared nothing");
    }
}
