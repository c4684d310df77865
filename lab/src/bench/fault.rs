//! The cost of a fault in locks, allocations and shared cache lines. The recording build counts them, so they are
//! exact.

use super::{Bench, Build, Line, Report};
use crate::Failure;

/// Locks and allocations of common faults, and cache lines that zero-fill faults of different CPUs share.
pub const COSTS: Bench = Bench {
    build: Build::Recording,
    lines: &[
        Line {
            name: "lock_takes_per_fault",
            unit: "locks/fault",
            how: "Hosted, recording build, one CPU: spin locks taken by 4,096 zero-fill faults in ascending order \
                after a first region of 2 MiB, refills included. Except for refills, all locks belong to the CPU or \
                its table page.",
        },
        Line {
            name: "lock_takes_per_resident_fault",
            unit: "locks/fault",
            how: "The same for read faults on resident pages of shared memory that another space has filled. One fault \
                in each window of pages that a fault maps; each takes only the table page's lock.",
        },
        Line {
            name: "allocations_per_fault",
            unit: "allocations/fault",
            how: "Hosted, recording build, one CPU: frames and slab objects that the same zero-fill faults take. They \
                are the page itself, index nodes and table pages. The locks of magazines and the lists of slabs are \
                counted.",
        },
        Line {
            name: "allocations_per_resident_fault",
            unit: "allocations/fault",
            how: "The same for the same resident faults.",
        },
        Line {
            name: "shared_lines_per_fault_2cpu",
            unit: "lines/fault",
            how: "Hosted, recording build: lines that a zero-fill fault wrote and another CPU had, in a model with \
                unlimited caches. Two CPUs take turns, each with 1,024 faults in its own regions of one space, after a \
                first region.",
        },
        Line { name: "shared_lines_per_fault_16cpu", unit: "lines/fault", how: "The same with sixteen CPUs in turn." },
    ],
    run: costs,
};

#[cfg(not(recording))]
fn costs(_report: &mut Report) -> Result<(), Failure> {
    Err(Failure::Build)
}

#[cfg(recording)]
use recorded::costs;

#[cfg(recording)]
mod recorded {
    use super::{Failure, Report};
    use crate::machine;
    use quire_hosted::{Cpu, Hosted};
    use quire_sync::Rank;
    use quire_sync::record::{Coherence, Record, scope};
    use quire_vm::map::{MapRequest, Placement, Space};
    use quire_vm::phys::slab::Cache;
    use quire_vm::{Access, ObjectRef, PAGE_SIZE, Vm};

    const BASE: u64 = 0x1000_0000_0000;
    /// The number of pages that one last-level table page covers.
    const REGION: u64 = 512;

    pub(super) fn costs(report: &mut Report) -> Result<(), Failure> {
        let (takes, allocations) = zero_fill(report.size.of(1024, 4096))?;
        report.put("lock_takes_per_fault", takes);
        report.put("allocations_per_fault", allocations);
        let (takes, allocations) = resident(report.size.of(512, 4096))?;
        report.put("lock_takes_per_resident_fault", takes);
        report.put("allocations_per_resident_fault", allocations);
        report.put("shared_lines_per_fault_2cpu", shared_lines(2)?);
        report.put("shared_lines_per_fault_16cpu", shared_lines(16)?);
        Ok(())
    }

    /// The number of objects in use in all slabs.
    fn objects(vm: &Vm<Hosted>) -> Result<u64, Failure> {
        let caches = vm.map_memory().caches().into_iter().chain(vm.object_memory().caches()).chain(vm.heap().caches());
        // SAFETY: the caches belong to `vm`, which is passed to them.
        let in_use = |c: &Cache| unsafe { c.in_use(vm) }.map_err(|broken| Failure::Wrong(broken.to_string()));
        caches.map(in_use).sum()
    }

    /// The locks acquired, and the frames and objects allocated, for each of `n` faults.
    fn per(n: u64, record: &Record, objects: u64) -> (f64, f64) {
        let frames = record.lock_takes_by_rank().get(&Some(Rank::MAGAZINE)).copied().unwrap_or(0);
        (record.lock_takes() as f64 / n as f64, (frames as u64 + objects) as f64 / n as f64)
    }

    fn private(vm: &'static Vm<Hosted>, pages: u64) -> Result<quire_vm::SpaceRef<Hosted>, Failure> {
        let space = Space::new(vm)?;
        space.map(&MapRequest::private(Placement::Fixed(BASE), pages * PAGE_SIZE))?;
        Ok(space)
    }

    fn zero_fill(n: u64) -> Result<(f64, f64), Failure> {
        let vm = machine::boot(1, 64);
        let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
        let space = private(vm, REGION + n)?;
        let touch = |page: u64| space.fault(BASE + page * PAGE_SIZE, Access::Write);
        for page in 0..REGION {
            touch(page)?;
        }
        let before = objects(vm)?;
        let (done, record) = scope(|| (REGION..REGION + n).try_for_each(|p| touch(p).map(drop)));
        done?;
        Ok(per(n, &record, objects(vm)? - before))
    }

    fn resident(n: u64) -> Result<(f64, f64), Failure> {
        // The number of pages that one fault maps around its address.
        const AROUND: u64 = 16;
        let vm = machine::boot(1, 64 + (n * AROUND * PAGE_SIZE >> 20));
        let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
        let object = ObjectRef::anonymous(vm, n * AROUND)?;
        let show = || {
            let space = Space::new(vm)?;
            let object = Some((&object, 0));
            let all = MapRequest::private(Placement::Fixed(BASE), n * AROUND * PAGE_SIZE);
            space.map(&MapRequest { shared: true, object, ..all })?;
            Ok::<_, Failure>(space)
        };
        let (first, second) = (show()?, show()?);
        for page in 0..n * AROUND {
            first.fault(BASE + page * PAGE_SIZE, Access::Write)?;
        }
        let windows = |first: u64, step: usize| (first..n * AROUND).step_by(step);
        // These faults make the table pages exist before the count begins.
        for page in windows(0, REGION as usize) {
            second.fault(BASE + page * PAGE_SIZE, Access::Read)?;
        }
        let (mut faults, before) = (0, objects(vm)?);
        let (done, record) = scope(|| {
            windows(0, AROUND as usize).filter(|p| p % REGION != 0).try_for_each(|page| {
                faults += 1;
                second.fault(BASE + page * PAGE_SIZE, Access::Read).map(drop)
            })
        });
        done?;
        Ok(per(faults, &record, objects(vm)? - before))
    }

    fn shared_lines(cpus: usize) -> Result<f64, Failure> {
        const REGIONS: u64 = 3;
        let pages = cpus as u64 * REGIONS * REGION;
        let vm = machine::boot(cpus, 64 + (pages * PAGE_SIZE >> 20));
        let cpus: Vec<Cpu> = (0..cpus).map(|id| Cpu::attach(vm, id).expect("no other thread is this CPU")).collect();
        let space = private(vm, pages)?;
        cpus.iter().for_each(|c| c.enter(&space).expect("the space belongs to this machine"));
        let mut caches = Coherence::new();
        let (mut shared, mut faults) = (0, 0);
        for n in 0..REGIONS * REGION {
            for cpu in &cpus {
                let va = BASE + (cpu.id() as u64 * REGIONS * REGION + n) * PAGE_SIZE;
                let (done, record) = scope(|| cpu.run(|| space.fault(va, Access::Write)));
                done?;
                let lines = caches.shared_lines_written(&record);
                if n >= REGION {
                    (shared, faults) = (shared + lines, faults + 1);
                }
            }
        }
        Ok(shared as f64 / faults as f64)
    }
}
