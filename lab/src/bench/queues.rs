//! The benchmark of page queues and frames. It compares them with the designs that they replaced: one queue with one
//! lock, one free list, one kind of frames.

use super::{Bench, Build, Line, Report};
use crate::frames::{Domains, FrameSource, GlobalList, mixed_load};
use crate::queue::{OneLock, PageQueue, Parts};
use crate::{Failure, harness, machine};
use quire_hosted::{Cpu, Hosted};
use quire_vm::map::{MapRequest, Placement, Space, SpaceRef};
use quire_vm::phys::queues::Queue;
use quire_vm::{Access, PAGE_SIZE, Vm};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const BASE: u64 = 0x1000_0000_0000;
/// The number of pages and frames of each CPU.
const EACH: usize = 4096;
/// The number of times that each page is moved in a sample.
const TURNS: usize = 64;
/// The number of pages that are taken from a queue at once, as pageout does it.
const TAKE: usize = 32;
const ROUNDS: usize = 9;

/// The times of two CPUs, and the number of large frames that are left.
pub const BASELINES: Bench = Bench {
    build: Build::Native,
    lines: &[
        Line {
            name: "queue_2cpu_one_lock",
            unit: "ns/page",
            how: "Two CPUs at once put 4,096 pages each into one queue under one lock and take them out again, 64 \
                times. Time of one page in and out, median of 9.",
        },
        Line {
            name: "queue_2cpu_ours",
            unit: "ns/page",
            how: "The same with production's inactive queue of 256 parts.",
        },
        Line {
            name: "frames_2cpu_one_list",
            unit: "ns/frame",
            how: "Two CPUs at once take 4,096 frames each from one free list under one lock and free them, 64 times. \
                Time of one frame, median of 9.",
        },
        Line { name: "frames_2cpu_ours", unit: "ns/frame", how: "The same with production's magazines and depot." },
        Line {
            name: "large_frames_left_naive",
            unit: "ratio",
            how: "Whole blocks of 2 MiB over the most possible, after programs ran eight times over 256 MiB while the \
                kernel kept a frame in 512. Production's buddy lists, with all frames taken alike.",
        },
        Line { name: "large_frames_left_ours", unit: "ratio", how: "The same with the kernel's frames kept apart." },
    ],
    run,
};

fn run(report: &mut Report) -> Result<(), Failure> {
    two_cpus(report)?;
    let vm = machine::boot(1, report.size.of(32, 256));
    let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
    for (name, groups) in [("large_frames_left_naive", false), ("large_frames_left_ours", true)] {
        let (whole, most) = mixed_load(&Domains { vm, groups }, vm.frames().free());
        report.put(name, whole as f64 / most as f64);
    }
    Ok(())
}

fn two_cpus(report: &mut Report) -> Result<(), Failure> {
    let vm = machine::boot(2, 256);
    let cpu = || Cpu::attach(vm, 0).expect("no other thread is this CPU");
    let (spaces, pages): (Vec<_>, Vec<_>) = {
        let _cpu = cpu();
        [isolated(vm, EACH as u64)?, isolated(vm, EACH as u64)?].into_iter().unzip()
    };
    let done = time(report, vm, &pages);
    // The spaces are dropped on a CPU, because only a CPU can tear them down.
    let _cpu = cpu();
    drop(spaces);
    done
}

/// Measures the times of both CPUs. Each is a thread of its own.
fn time(report: &mut Report, vm: &'static Vm<Hosted>, pages: &[Vec<u32>]) -> Result<(), Failure> {
    let (ours, one) = (Parts(vm), OneLock::new(vm.page_count() as usize));
    let (rounds, turns) = (report.size.of(1, ROUNDS), report.size.of(2, TURNS));
    let samples = harness::pairs(rounds, || queue(vm, &ours, pages, turns), || queue(vm, &one, pages, turns))?;
    let per = 1e9 / (2 * EACH * turns) as f64;
    report.put("queue_2cpu_ours", per * harness::middle(samples.iter().map(|s| s.0)));
    report.put("queue_2cpu_one_lock", per * harness::middle(samples.iter().map(|s| s.1)));
    let (ours, one) = (Domains { vm, groups: true }, GlobalList::new(4 * EACH as u32));
    let samples = harness::pairs(rounds, || frames(vm, &ours, turns), || frames(vm, &one, turns))?;
    report.put("frames_2cpu_ours", per * harness::middle(samples.iter().map(|s| s.0)));
    report.put("frames_2cpu_one_list", per * harness::middle(samples.iter().map(|s| s.1)));
    Ok(())
}

/// A space with `n` pages that are in no queue, and the numbers of their frames.
pub fn isolated(vm: &'static Vm<Hosted>, n: u64) -> Result<(SpaceRef<Hosted>, Vec<u32>), Failure> {
    let space = Space::new(vm)?;
    space.map(&MapRequest::private(Placement::Fixed(BASE), n * PAGE_SIZE))?;
    for page in 0..n {
        space.fault(BASE + page * PAGE_SIZE, Access::Write)?;
    }
    vm.drain_queue_batches();
    let mut pages = Vec::new();
    // SAFETY: the caller keeps the space of the pages, and puts the pages into a queue again.
    for part in unsafe { vm.queues().parts_of(Queue::Active) } {
        part.take(usize::MAX, &mut |page| pages.push(vm.pfn_of_page(page).0 as u32));
    }
    Ok((space, pages))
}

fn both(vm: &'static Vm<Hosted>, f: impl Fn(usize) -> Result<(), Failure> + Sync) -> Result<Duration, Failure> {
    let barrier = Barrier::new(2);
    std::thread::scope(|s| {
        let threads = [0, 1].map(|cpu| {
            let (f, barrier) = (&f, &barrier);
            s.spawn(move || {
                let _cpu = Cpu::attach(vm, cpu).expect("no other thread is this CPU");
                barrier.wait();
                let start = Instant::now();
                f(cpu).map(|()| start.elapsed())
            })
        });
        let mut times =
            threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(Failure::Wrong("a CPU failed".into()))));
        times.try_fold(Duration::ZERO, |longest, t| Ok(longest.max(t?)))
    })
}

fn queue(
    vm: &'static Vm<Hosted>,
    queue: &dyn PageQueue,
    pages: &[Vec<u32>],
    turns: usize,
) -> Result<Duration, Failure> {
    let time = both(vm, |cpu| {
        let mut mine = pages[cpu].clone();
        for _ in 0..turns {
            mine.drain(..).for_each(|p| queue.put(p));
            // A CPU may also take pages that the other CPU has put. In the end both CPUs have as many pages as they
            // put.
            while mine.len() < EACH {
                let before = mine.len();
                queue.take(TAKE.min(EACH - before), &mut |p| mine.push(p));
                if mine.len() == before {
                    break;
                }
            }
        }
        mine.drain(..).for_each(|p| queue.put(p));
        Ok(())
    })?;
    let _cpu = Cpu::attach(vm, 0).expect("no other thread is this CPU");
    let all = queue.len();
    queue.take(usize::MAX, &mut |_| {});
    if all as usize == 2 * EACH {
        Ok(time)
    } else {
        Err(Failure::Wrong(format!("{all} pages are left of {}", 2 * EACH)))
    }
}

fn frames(vm: &'static Vm<Hosted>, source: &dyn FrameSource, turns: usize) -> Result<Duration, Failure> {
    both(vm, |_| {
        let mut mine = Vec::with_capacity(EACH);
        for _ in 0..turns {
            for _ in 0..EACH {
                mine.push(source.take(false).ok_or(Failure::OutOfMemory)?);
            }
            mine.drain(..).for_each(|f| source.give(f));
        }
        Ok(())
    })
}
