//! Per-CPU root tables of a fanned-out map: which CPUs a flush interrupts, and which entries are copied again.

use quire_hosted::{Account, Cpu, Hosted, Settings};
use quire_vm::check::Level;
use quire_vm::machine::Pmap;
use quire_vm::map::{MapRequest, Placement, Space, SpaceRef};
use quire_vm::{PAGE_SIZE, Prot, VirtRange, Vm};

type V = &'static Vm<Hosted>;

/// Makes a space that `cpus` CPUs run. The first `arenas` CPUs have arenas of their own: ranges of addresses, each with
/// its own lock.
fn fanned_out(cpus: usize, arenas: usize) -> (V, Vec<Cpu>, SpaceRef<Hosted>) {
    let vm = Hosted::boot(Settings { cpus, frames: 16 * 1024, check: Level::Always, ..Settings::default() }).unwrap();
    let cpus: Vec<Cpu> = (0..cpus).map(|id| Cpu::attach(vm, id).unwrap()).collect();
    let space = Space::new(vm).unwrap();
    cpus.iter().for_each(|c| c.enter(&space).unwrap());
    for cpu in &cpus[..arenas] {
        cpu.run(|| space.open_arena(cpu.id()));
    }
    (vm, cpus, space)
}

/// Maps `pages` pages of private memory as `cpu`, at an address that the space chooses.
fn map(cpu: &Cpu, space: &Space<Hosted>, pages: u64) -> VirtRange {
    let r = MapRequest::private(Placement::Any { hint: 0 }, pages * PAGE_SIZE);
    let start = cpu.run(|| space.map(&r)).unwrap();
    VirtRange { start, end: start + pages * PAGE_SIZE }
}

/// Maps pages, stores into each and loads it again, and unmaps them.
fn round(cpu: &Cpu, space: &Space<Hosted>, pages: u64) {
    let range = map(cpu, space, pages);
    for va in (range.start..range.end).step_by(PAGE_SIZE as usize) {
        cpu.write(space, va, !va).unwrap();
        assert_eq!(cpu.read(space, va), Ok(!va));
    }
    cpu.run(|| space.unmap(range)).unwrap();
    assert!(cpu.read(space, range.start).is_err());
}

fn interrupts(vm: V, cpus: &[Cpu]) -> u64 {
    cpus.iter().map(|c| vm.machine().interrupts(c.id())).sum()
}

#[test]
fn cpus_that_map_in_own_arenas_interrupt_no_other_cpu() {
    let (vm, cpus, space) = fanned_out(4, 4);
    cpus.iter().for_each(|c| round(c, &space, 1));
    let before = interrupts(vm, &cpus);
    // A flush drops few pages one by one, and many pages at once. Neither may interrupt another CPU.
    for pages in [1, 3, 100] {
        cpus.iter().for_each(|c| round(c, &space, pages));
    }
    assert_eq!(interrupts(vm, &cpus), before);
    space.check(true).unwrap();
}

#[test]
fn without_arenas_every_cpu_that_runs_the_space_is_asked() {
    let (vm, cpus, space) = fanned_out(2, 0);
    let before = interrupts(vm, &cpus);
    round(&cpus[0], &space, 1);
    assert!(interrupts(vm, &cpus) > before, "the counter does not count");
}

#[test]
fn a_cpu_that_reached_an_arena_is_asked_to_flush_it() {
    let (vm, cpus, space) = fanned_out(3, 3);
    cpus.iter().for_each(|c| round(c, &space, 1));
    let range = map(&cpus[0], &space, 2);
    cpus[0].write(&space, range.start, 7).unwrap();
    assert_eq!(cpus[1].read(&space, range.start), Ok(7));
    let asked = |n: usize| vm.machine().interrupts(n);
    let before = (asked(1), asked(2));
    cpus[0].run(|| space.unmap(range)).unwrap();
    assert!(asked(1) > before.0 && asked(2) == before.1);
    for cpu in &cpus {
        assert!(cpu.read(&space, range.start).is_err());
    }
}

#[test]
fn a_cpu_on_the_spaces_root_is_asked_for_everything() {
    let (_, cpus, space) = fanned_out(2, 1);
    round(&cpus[0], &space, 1);
    let range = map(&cpus[0], &space, 1);
    cpus[0].write(&space, range.start, 7).unwrap();
    // The second CPU gets a root of its own only at its first fault.
    assert_eq!(cpus[1].read(&space, range.start), Ok(7));
    cpus[0].run(|| space.unmap(range)).unwrap();
    assert!(cpus[1].read(&space, range.start).is_err());
}

#[test]
fn a_cpu_that_was_away_during_a_flush_catches_up() {
    let (vm, cpus, space) = fanned_out(2, 2);
    let other = Space::new(vm).unwrap();
    cpus.iter().for_each(|c| round(c, &space, 1));
    for idle in [false, true] {
        let range = map(&cpus[0], &space, 2);
        for va in [range.start, range.start + PAGE_SIZE] {
            cpus[0].write(&space, va, 7).unwrap();
            assert_eq!(cpus[1].read(&space, va), Ok(7));
        }
        if idle {
            // SAFETY: the CPU has loaded these page tables.
            unsafe { cpus[1].idle(space.page_tables()) };
        } else {
            cpus[1].enter(&other).unwrap();
        }
        let before = vm.machine().interrupts(1);
        // The leaves are weakened here, and removed later. Neither change interrupts a CPU that does not run the space,
        // unless table pages are freed.
        cpus[0].run(|| space.protect(range, Prot::READ)).unwrap();
        assert_eq!(vm.machine().interrupts(1), before);
        cpus[1].enter(&space).unwrap();
        assert!(cpus[1].write(&space, range.start, 8).is_err());
        if !idle {
            cpus[1].enter(&other).unwrap();
        }
        cpus[0].run(|| space.unmap(range)).unwrap();
        cpus[1].enter(&space).unwrap();
        assert!(cpus[1].read(&space, range.start).is_err());
    }
}

#[test]
fn a_fork_returns_all_cpus_to_one_root_and_frees_the_others() {
    let (vm, cpus, space) = fanned_out(4, 4);
    let all: Vec<(u64, VirtRange)> = (1..).zip(&cpus).map(|(n, c)| (n, map(c, &space, 3))).collect();
    // A CPU gets its root when it first faults.
    for (cpu, (n, range)) in cpus.iter().zip(&all) {
        cpu.write(&space, range.start, *n).unwrap();
    }
    // SAFETY: only the number of page tables is read, and nothing is changed.
    let fanned = unsafe { space.page_tables() }.table_pages(vm);
    let child = cpus[0].run(|| space.fork()).unwrap();
    // The fork has freed the four per-CPU roots.
    // SAFETY: only the number of page tables is read, and nothing is changed.
    assert_eq!(fanned - unsafe { space.page_tables() }.table_pages(vm), 4);
    for cpu in &cpus {
        for (n, range) in &all {
            assert_eq!(cpu.read(&space, range.start), Ok(*n));
            cpu.write(&space, range.start, n + 10).unwrap();
            cpu.write(&space, range.start, *n).unwrap();
        }
    }
    // The map fans out again.
    for cpu in &cpus {
        cpu.run(|| space.open_arena(cpu.id()));
        round(cpu, &space, 2);
    }
    cpus[3].enter(&child).unwrap();
    for (n, range) in &all {
        assert_eq!(cpus[3].read(&child, range.start), Ok(*n));
    }
    space.check(true).unwrap();
    child.check(true).unwrap();
}

#[test]
fn after_joining_and_dropping_tables_no_root_is_left() {
    let (vm, cpus, space) = fanned_out(3, 3);
    for cpu in &cpus {
        round(cpu, &space, 5);
        round(cpu, &space, 700);
    }
    cpus.iter().for_each(Cpu::leave);
    space.drop_tables().unwrap();
    // SAFETY: only the number of page tables is read, and nothing is changed.
    assert_eq!(unsafe { space.page_tables() }.table_pages(vm), 0);
}

#[test]
fn the_arena_memory_of_a_space_goes_with_it() {
    let vm = Hosted::boot(Settings { cpus: 2, frames: 16 * 1024, ..Settings::default() }).unwrap();
    let cpus: Vec<Cpu> = (0..2).map(|id| Cpu::attach(vm, id).unwrap()).collect();
    let before = Account::of(vm);
    for _ in 0..3 {
        let space = Space::new(vm).unwrap();
        for cpu in &cpus {
            cpu.enter(&space).unwrap();
            cpu.run(|| space.open_arena(cpu.id()));
            round(cpu, &space, 3);
            map(cpu, &space, 3);
        }
        cpus.iter().for_each(Cpu::leave);
    }
    before.assert_settled(vm);
}

#[test]
fn flushes_of_an_entry_outlast_the_roots() {
    let (vm, cpus, space) = fanned_out(2, 2);
    let other = Space::new(vm).unwrap();
    let range = map(&cpus[0], &space, 1);
    cpus[0].write(&space, range.start, 7).unwrap();
    assert_eq!(cpus[1].read(&space, range.start), Ok(7));
    cpus[1].enter(&other).unwrap();
    cpus[0].run(|| space.unmap(range)).unwrap();
    // No leaf is left that a fork would flush. So only the end of the use of per-CPU roots can interrupt the second
    // CPU.
    let _child = cpus[0].run(|| space.fork()).unwrap();
    cpus[1].enter(&space).unwrap();
    assert!(cpus[1].read(&space, range.start).is_err());
}

#[test]
fn a_space_without_a_root_fans_out_and_joins() {
    let (vm, cpus, space) = fanned_out(3, 3);
    let kept = map(&cpus[0], &space, 2);
    cpus[0].write(&space, kept.start, 7).unwrap();
    for faults_between in [false, true] {
        cpus.iter().for_each(Cpu::leave);
        cpus[0].run(|| space.drop_tables()).unwrap();
        // SAFETY: only the number of page tables is read, and nothing is changed.
        assert_eq!(unsafe { space.page_tables() }.table_pages(vm), 0);
        cpus.iter().for_each(|c| c.enter(&space).unwrap());
        cpus.iter().for_each(|c| c.run(|| space.open_arena(c.id())));
        if faults_between {
            assert_eq!(cpus[1].read(&space, kept.start), Ok(7));
        }
        // A fork joins the arenas, and all CPUs load the shared root.
        let child = cpus[2].run(|| space.fork()).unwrap();
        for cpu in &cpus {
            assert_eq!(cpu.read(&space, kept.start), Ok(7));
        }
        cpus[1].enter(&child).unwrap();
        assert_eq!(cpus[1].read(&child, kept.start), Ok(7));
        cpus[1].enter(&space).unwrap();
        cpus.iter().for_each(|c| c.run(|| space.open_arena(c.id())));
        cpus.iter().for_each(|c| round(c, &space, 2));
        cpus[0].run(|| space.check(true)).unwrap();
        cpus[1].run(|| drop(child));
    }
}

#[test]
fn a_space_fans_out_again_after_its_tables_were_dropped() {
    let (vm, cpus, space) = fanned_out(3, 3);
    cpus.iter().for_each(|c| round(c, &space, 1));
    cpus.iter().for_each(Cpu::leave);
    space.drop_tables().unwrap();
    cpus.iter().for_each(|c| c.enter(&space).unwrap());
    cpus.iter().for_each(|c| round(c, &space, 1));
    let before = interrupts(vm, &cpus);
    cpus.iter().for_each(|c| round(c, &space, 3));
    assert_eq!(interrupts(vm, &cpus), before);
}

#[test]
fn without_memory_for_roots_the_space_goes_on_with_one() {
    for n in 1..12 {
        let (vm, cpus, space) = fanned_out(2, 0);
        vm.fail_allocation(n);
        cpus[0].run(|| space.open_arena(0));
        cpus[1].run(|| space.open_arena(1));
        vm.fail_allocation(0);
        space.check(true).unwrap();
        vm.fail_allocation(n);
        cpus.iter().for_each(|c| {
            let r = MapRequest::private(Placement::Any { hint: 0 }, PAGE_SIZE);
            if let Ok(at) = c.run(|| space.map(&r)) {
                let _full = c.write(&space, at, 1);
            }
        });
        vm.fail_allocation(0);
        cpus.iter().for_each(|c| round(c, &space, 3));
        space.check(true).unwrap();
    }
}
