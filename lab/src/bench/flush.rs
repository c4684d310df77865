//! The benchmark of writing back and discarding pages: the locks of the page queues that are acquired, and how long
//! they are held.

use super::{Bench, Build, Line, Report};
use crate::Failure;

/// Locks of the page queues during operations on a large file.
pub const QUEUES: Bench = Bench {
    build: Build::Recording,
    lines: &[
        Line {
            name: "flush_queue_lock_takes",
            unit: "locks",
            how: "Hosted, recording build, one CPU: locks of queue parts and of the CPU's batch taken by \
                ObjectRef::write_back. The file has 16,384 resident, changed pages and a store in memory.",
        },
        Line {
            name: "invalidate_queue_lock_takes",
            unit: "locks",
            how: "The same for ObjectRef::discard of all these pages; each page leaves its queue part.",
        },
        Line {
            name: "flush_longest_queue_hold",
            unit: "accesses",
            how: "The most accesses to shared memory while a queue part's lock is held, in either.",
        },
    ],
    run: queues,
};

#[cfg(not(recording))]
fn queues(_report: &mut Report) -> Result<(), Failure> {
    Err(Failure::Build)
}

#[cfg(recording)]
fn queues(report: &mut Report) -> Result<(), Failure> {
    use crate::machine;
    use quire_hosted::Cpu;
    use quire_sync::Rank;
    use quire_sync::record::{Record, scope};
    use quire_vm::paging::memory_store::{FaultPlan, MemoryStore};
    use quire_vm::{ObjectRef, PAGE_SIZE};
    use std::ptr::NonNull;

    let pages: u64 = report.size.of(2048, 16_384);
    let vm = machine::boot(1, 128);
    let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
    let bytes = vec![0u8; (pages * PAGE_SIZE) as usize].leak();
    // SAFETY: the memory is leaked, so nothing else uses it.
    let store = unsafe { MemoryStore::new(NonNull::from(bytes).cast(), pages, FaultPlan::default()) };
    let store = Box::leak(Box::new(store));
    let wrong = |what: &dyn std::fmt::Debug| Failure::Wrong(format!("{what:?}"));
    vm.poll_with(store).map_err(|e| wrong(&e))?;
    let file = ObjectRef::with_pager(vm, store, pages * PAGE_SIZE)?;
    for page in 0..pages {
        let written = file.write(page * PAGE_SIZE, 1, &mut |b| -> Result<_, ()> { Ok(b.len()) });
        written.map_err(|e| wrong(&e))?;
    }
    // The work is done in parts, because one record of all accesses would be too large.
    const PART: u64 = 1024;
    let parts = || (0..pages).step_by(PART as usize).map(|first| first..first + PART);
    let ranks = [Rank::QUEUE, Rank::QUEUE_BATCH];
    let takes = |r: &Record| ranks.iter().filter_map(|rank| r.lock_takes_by_rank().get(&Some(*rank)).copied()).sum();
    let (mut written, mut taken, mut longest) = (0, [0usize; 2], 0);
    for part in parts() {
        let (done, record) = scope(|| file.write_back(part));
        written += done.map_err(|e| wrong(&e))?;
        let n: usize = takes(&record);
        taken[0] += n;
        longest = longest.max(record.longest_hold(Rank::QUEUE));
    }
    for part in parts() {
        let (_, record) = scope(|| file.discard(part));
        let n: usize = takes(&record);
        taken[1] += n;
        longest = longest.max(record.longest_hold(Rank::QUEUE));
    }
    if written != pages || file.resident() != 0 {
        return Err(Failure::Wrong(format!("{written} pages were written, {} are left", file.resident())));
    }
    report.put("flush_queue_lock_takes", taken[0] as f64);
    report.put("invalidate_queue_lock_takes", taken[1] as f64);
    report.put("flush_longest_queue_hold", longest as f64);
    Ok(())
}
