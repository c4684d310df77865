//! Counts the cache lines that CPUs fetch from each other, by number of CPUs. The subjects are page queues and frames:
//! the production design, and one lock.
//!
//! Times on two CPUs do not show the gain of several queues. A line that moves between just two CPUs costs less than
//! the work on a second queue. So lines are counted instead, while the CPUs take turns on one thread. A line counts if
//! an operation writes it and another CPU had it before. With more CPUs, each CPU would wait for these lines.

use super::{Bench, Build, Line, Report};
use crate::Failure;

const BEFORE: &str = "Recording build, CPUs in turn put a page into one queue under one lock. Mean number of lines \
    that the operation writes and another CPU had before.";
const FRAMES: &str = "Recording build, CPUs in turn take 300 frames each from one free list under one lock and free \
    them. Mean number of lines that one of these operations writes and another CPU had before.";
const OURS: &str = "The same in production.";

/// The shared lines that operations write.
pub const LINES: Bench = Bench {
    build: Build::Recording,
    lines: &[
        Line { name: "queue_transfers_before_2cpu", unit: "lines/page", how: BEFORE },
        Line { name: "queue_transfers_before_16cpu", unit: "lines/page", how: BEFORE },
        Line { name: "queue_transfers_before_64cpu", unit: "lines/page", how: BEFORE },
        Line { name: "queue_transfers_ours_2cpu", unit: "lines/page", how: OURS },
        Line { name: "queue_transfers_ours_16cpu", unit: "lines/page", how: OURS },
        Line { name: "queue_transfers_ours_64cpu", unit: "lines/page", how: OURS },
        Line { name: "frames_transfers_before_2cpu", unit: "lines/op", how: FRAMES },
        Line { name: "frames_transfers_before_16cpu", unit: "lines/op", how: FRAMES },
        Line { name: "frames_transfers_before_64cpu", unit: "lines/op", how: FRAMES },
        Line { name: "frames_transfers_ours_2cpu", unit: "lines/op", how: OURS },
        Line { name: "frames_transfers_ours_16cpu", unit: "lines/op", how: OURS },
        Line { name: "frames_transfers_ours_64cpu", unit: "lines/op", how: OURS },
    ],
    run,
};

#[cfg(not(recording))]
fn run(_report: &mut Report) -> Result<(), Failure> {
    Err(Failure::Build)
}

#[cfg(recording)]
fn run(report: &mut Report) -> Result<(), Failure> {
    const NAMES: [(usize, [&str; 4]); 3] = [
        (
            2,
            [
                "queue_transfers_before_2cpu",
                "queue_transfers_ours_2cpu",
                "frames_transfers_before_2cpu",
                "frames_transfers_ours_2cpu",
            ],
        ),
        (
            16,
            [
                "queue_transfers_before_16cpu",
                "queue_transfers_ours_16cpu",
                "frames_transfers_before_16cpu",
                "frames_transfers_ours_16cpu",
            ],
        ),
        (
            64,
            [
                "queue_transfers_before_64cpu",
                "queue_transfers_ours_64cpu",
                "frames_transfers_before_64cpu",
                "frames_transfers_ours_64cpu",
            ],
        ),
    ];
    for (cpus, names) in NAMES {
        for (name, n) in names.into_iter().zip(lines(cpus)?) {
            report.put(name, n);
        }
    }
    Ok(())
}

#[cfg(recording)]
pub(crate) use recorded::lines;

#[cfg(recording)]
mod recorded {
    use crate::bench::queues::isolated;
    use crate::frames::{Domains, FrameSource, GlobalList};
    use crate::queue::{OneLock, PageQueue, Parts};
    use crate::{Failure, machine};
    use quire_hosted::Cpu;
    use quire_sync::record::{Coherence, scope};

    /// The number of pages of each CPU. The first half of them is for the warm-up.
    const PAGES: usize = 128;
    /// The number of frames that each CPU holds at once, more than its magazines (its cache of free frames) hold.
    const FRAMES: usize = 300;

    /// The mean number of lines that an operation writes and another CPU had before. The four values are for one queue,
    /// production's queues, one free list, and production's frames.
    pub fn lines(cpus: usize) -> Result<[f64; 4], Failure> {
        let vm = machine::boot(cpus, 256 + 4 * cpus as u64);
        let cpus: Vec<Cpu> = (0..cpus).map(|id| Cpu::attach(vm, id).expect("no other thread is this CPU")).collect();
        let (space, pages) = isolated(vm, (PAGES * cpus.len()) as u64)?;
        let one = OneLock::new(vm.page_count() as usize);
        let queues = [queue(&one, &cpus, &pages), queue(&Parts(vm), &cpus, &pages)];
        let list = GlobalList::new(2 * (FRAMES * cpus.len()) as u32);
        let frames = [frames(&list, &cpus)?, frames(&Domains { vm, groups: true }, &cpus)?];
        drop(space);
        Ok([queues[0], queues[1], frames[0], frames[1]])
    }

    fn queue(queue: &dyn PageQueue, cpus: &[Cpu], pages: &[u32]) -> f64 {
        let mut caches = Coherence::new();
        let (mut shared, mut puts) = (0, 0);
        for (n, turn) in pages.chunks(cpus.len()).enumerate() {
            for (cpu, page) in cpus.iter().zip(turn) {
                let ((), record) = scope(|| cpu.run(|| queue.put(*page)));
                let lines = caches.shared_lines_written(&record);
                if n >= PAGES / 2 {
                    (shared, puts) = (shared + lines, puts + 1);
                }
            }
        }
        shared as f64 / puts as f64
    }

    fn frames(source: &dyn FrameSource, cpus: &[Cpu]) -> Result<f64, Failure> {
        let mut caches = Coherence::new();
        let mut held: Vec<Vec<u32>> = cpus.iter().map(|_| Vec::new()).collect();
        let (mut shared, mut operations) = (0, 0);
        for round in 0..2 {
            for n in 0..2 * FRAMES {
                for (cpu, held) in cpus.iter().zip(&mut held) {
                    let (done, record) = scope(|| {
                        cpu.run(|| match n < FRAMES {
                            true => source.take(false).map(|f| held.push(f)),
                            false => held.pop().map(|f| source.give(f)),
                        })
                    });
                    done.ok_or(Failure::OutOfMemory)?;
                    let lines = caches.shared_lines_written(&record);
                    if round != 0 {
                        (shared, operations) = (shared + lines, operations + 1);
                    }
                }
            }
        }
        Ok(shared as f64 / operations as f64)
    }
}
