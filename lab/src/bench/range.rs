//! The benchmark of operations on ranges: the number of entries that they visit.

use super::{Bench, Build, Line, Report};
use crate::{Failure, machine};
use quire_hosted::{Cpu, Hosted};
use quire_vm::map::{MapRequest, Placement, Space};
use quire_vm::object::index::Slot;
use quire_vm::stats::Event;
use quire_vm::{Access, ObjectRef, PAGE_SIZE, VirtRange, Vm};

const BASE: u64 = 0x1000_0000_0000;
/// The number of resident pages, for every length of the range.
const RESIDENTS: u64 = 100;

/// The visits of a munmap of 100 resident pages, in a short range and in a long range.
pub const VISITS: Bench = Bench {
    build: Build::Native,
    lines: &[
        Line {
            name: "munmap_visits_1mib",
            unit: "visits",
            how: "Hosted, one CPU: leaves and index slots that Space::unmap visits for 1 MiB of private memory in \
                which 100 pages, evenly spread, were written. Each is a leaf to clear and a page to free.",
        },
        Line { name: "munmap_visits_1tib", unit: "visits", how: "The same with 1 TiB and the same 100 pages." },
        Line {
            name: "discard_visits_1tib",
            unit: "visits",
            how: "Hosted, one CPU: index slots that ObjectRef::discard visits for 1 TiB of shared memory with 100 \
                pages.",
        },
        Line {
            name: "discard_lookups_1tib_by_offset",
            unit: "lookups",
            how: "The same object with each of its offsets looked up in its index in turn, which iteration by range \
                replaced.",
        },
    ],
    run: visits,
};

fn visits(report: &mut Report) -> Result<(), Failure> {
    let vm = machine::boot(1, 64);
    let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
    let looked = || vm.stats().total(Event::RangeVisit);
    for (name, bytes) in [("munmap_visits_1mib", 1 << 20), ("munmap_visits_1tib", 1 << 40)] {
        let space = Space::new(vm)?;
        space.map(&MapRequest::private(Placement::Fixed(BASE), bytes))?;
        for page in spread(bytes) {
            space.fault(BASE + page * PAGE_SIZE, Access::Write)?;
        }
        let before = looked();
        space.unmap(VirtRange { start: BASE, end: BASE + bytes })?;
        report.put(name, (looked() - before) as f64);
    }
    let bytes: u64 = report.size.of(1 << 30, 1 << 40);
    let object = sparse(vm, bytes)?;
    let (mut lookups, mut found) = (0u64, 0);
    // One pin of the epoch covers a limited number of lookups. A pin during the whole walk would delay the freeing of
    // retired memory for long.
    for first in (0..bytes / PAGE_SIZE).step_by(1 << 16) {
        let pin = vm.epoch().pin();
        for key in first..first + (1 << 16) {
            lookups += 1;
            // SAFETY: the index is only read, under a pin of the object's `Vm`.
            found += matches!(unsafe { object.page_index() }.get(key, &pin), Slot::Page(_)) as u64;
        }
    }
    let before = looked();
    object.discard(0..bytes / PAGE_SIZE);
    report.put("discard_visits_1tib", (looked() - before) as f64);
    if found != RESIDENTS || object.resident() != 0 {
        return Err(Failure::Wrong(format!("{found} pages were found")));
    }
    report.put("discard_lookups_1tib_by_offset", lookups as f64);
    Ok(())
}

fn spread(bytes: u64) -> impl Iterator<Item = u64> {
    (0..RESIDENTS).map(move |n| n * (bytes / PAGE_SIZE / RESIDENTS))
}

fn sparse(vm: &'static Vm<Hosted>, bytes: u64) -> Result<ObjectRef<Hosted>, Failure> {
    let object = ObjectRef::anonymous(vm, bytes / PAGE_SIZE)?;
    for page in spread(bytes) {
        let written = object.write(page * PAGE_SIZE, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) });
        written.map_err(|e| Failure::Wrong(format!("{e:?}")))?;
    }
    Ok(object)
}
