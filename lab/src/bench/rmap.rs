//! The benchmark of reverse mapping: the cost of a page's mapping in memory and in locks.

use super::{Bench, Build, Line, Report};
use crate::{Failure, machine};
use quire_hosted::{Cpu, Hosted};
use quire_vm::map::{MapRequest, Placement, Space};
use quire_vm::{Access, ObjectRef, PAGE_SIZE, Vm};

const BASE: u64 = 0x1000_0000_0000;

/// The bytes for one further mapping of a page.
pub const BYTES: Bench = Bench {
    build: Build::Native,
    lines: &[Line {
        name: "rmap_bytes_per_extra_mapping",
        unit: "bytes",
        how: "Hosted, one CPU: one range of a space maps a page of shared memory, then 1,000 ranges map it. Bytes of \
            frames taken in between, without page-table pages, for each of the 999.",
    }],
    run: bytes,
};

fn bytes(report: &mut Report) -> Result<(), Failure> {
    const MAPPINGS: u64 = 1000;
    let vm = machine::boot(1, 64);
    let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
    let object = ObjectRef::anonymous(vm, 1)?;
    let space = Space::new(vm)?;
    let at = |n: u64| BASE + n * (2 << 20);
    for n in 0..MAPPINGS {
        let one = MapRequest::private(Placement::Fixed(at(n)), PAGE_SIZE);
        space.map(&MapRequest { shared: true, object: Some((&object, 0)), ..one })?;
    }
    let used = |vm: &'static Vm<Hosted>| {
        vm.epoch().drain();
        // SAFETY: the caches belong to `vm`, which is passed to them.
        vm.object_memory().caches().iter().for_each(|c| unsafe { c.drain(vm) });
        // SAFETY: the caches belong to `vm`, which is passed to them.
        vm.map_memory().caches().iter().for_each(|c| unsafe { c.drain(vm) });
        vm.frames().total() - vm.frames().free() - space.stats().table_pages
    };
    space.fault(at(0), Access::Read)?;
    let once = used(vm);
    for n in 1..MAPPINGS {
        space.fault(at(n), Access::Read)?;
    }
    if space.stats().resident_pages != MAPPINGS {
        return Err(Failure::Wrong("a mapping has no leaf".into()));
    }
    let more = used(vm).saturating_sub(once) * PAGE_SIZE;
    report.put("rmap_bytes_per_extra_mapping", more as f64 / (MAPPINGS - 1) as f64);
    Ok(())
}

/// The locks that are acquired to map and to unmap 1 GiB.
pub const LOCKS: Bench = Bench {
    build: Build::Recording,
    lines: &[
        Line {
            name: "rmap_lock_takes_1gib_before",
            unit: "locks",
            how: "Recording build, one CPU: locks taken to map all 262,144 resident pages of a file, sixteen a fault, \
                and to unmap them. Each mapped page has a record under the page's lock (the lab's record_per_page).",
        },
        Line {
            name: "rmap_lock_takes_1gib_faults",
            unit: "locks",
            how: "Hosted, recording build, one CPU: locks of every kind. Space::map maps a resident file of 1 GiB, a \
                read fault maps each window of sixteen pages, and Space::unmap unmaps it.",
        },
        Line {
            name: "rmap_lock_takes_1gib_ours",
            unit: "locks",
            how: "The same, mapped by Space::map with populate. A walk over the object enters all leaves of a table \
                page with few takes of its lock.",
        },
    ],
    run: locks,
};

#[cfg(not(recording))]
fn locks(_report: &mut Report) -> Result<(), Failure> {
    Err(Failure::Build)
}

#[cfg(recording)]
fn locks(report: &mut Report) -> Result<(), Failure> {
    use crate::rmap::record_per_page::RecordPerPage;
    use quire_sync::record::scope;
    let pages: u64 = report.size.of(4096, 262_144);
    const AROUND: usize = 16;
    /// The number of faults in one record of accesses. A record of all faults would be too large.
    const PART: usize = 1024;

    let before = RecordPerPage::new(pages as usize);
    let mut takes = 0;
    let windows: Vec<usize> = (0..pages as usize).step_by(AROUND).collect();
    for part in windows.chunks(PART) {
        takes += scope(|| part.iter().for_each(|p| before.fault(*p))).1.lock_takes();
    }
    takes += scope(|| before.unmap()).1.lock_takes();
    report.put("rmap_lock_takes_1gib_before", takes as f64);

    let vm = machine::boot(1, pages / 256 + 64);
    let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
    let object = ObjectRef::anonymous(vm, pages)?;
    for page in 0..pages {
        let written = object.write(page * PAGE_SIZE, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) });
        written.map_err(|e| Failure::Wrong(format!("{e:?}")))?;
    }
    let request = |populate| MapRequest {
        shared: true,
        populate,
        object: Some((&object, 0)),
        ..MapRequest::private(Placement::Fixed(BASE), pages * PAGE_SIZE)
    };
    let range = quire_vm::VirtRange { start: BASE, end: BASE + pages * PAGE_SIZE };
    for (name, populate) in [("rmap_lock_takes_1gib_faults", false), ("rmap_lock_takes_1gib_ours", true)] {
        let space = Space::new(vm)?;
        let (mapped, record) = scope(|| space.map(&request(populate)));
        mapped?;
        let mut takes = record.lock_takes();
        for part in windows.chunks(PART) {
            if !populate {
                let fault = |p: &usize| space.fault(BASE + *p as u64 * PAGE_SIZE, Access::Read).map(drop);
                let (done, record) = scope(|| part.iter().try_for_each(fault));
                done?;
                takes += record.lock_takes();
            }
        }
        if space.stats().resident_pages != pages {
            return Err(Failure::Wrong("not all pages are mapped".into()));
        }
        let (unmapped, record) = scope(|| space.unmap(range));
        unmapped?;
        report.put(name, (takes + record.lock_takes()) as f64);
    }
    Ok(())
}
