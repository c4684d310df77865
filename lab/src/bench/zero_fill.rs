//! The benchmark of first touches: the time of a fault, compared with the time to zero its frame.

use super::{Bench, Build, Line, Report, Size};
use crate::cachegrind::Workload;
use crate::{Failure, harness, machine};
use quire_hosted::{Cpu, Hosted};
use quire_vm::map::{MapRequest, Placement, Space, SpaceRef};
use quire_vm::phys::frames::{Fill, For, Frame};
use quire_vm::{Access, PAGE_SIZE, Phys, Vm};
use std::hint::black_box;
use std::sync::Barrier;
use std::time::Duration;

const BASE: u64 = 0x1000_0000_0000;
/// The number of frames for each CPU in the cold case: 512 MiB, or eight last-level caches of 64 MiB.
const COLD: Frames = Frames { short: 1024, whole: 128 * 1024 };
/// The number of frames in the hot case: 1 MiB, which fits into a second-level cache.
const HOT: Frames = Frames { short: 256, whole: 256 };
/// The number of pairs of samples.
const ROUNDS: usize = 15;

/// A number of frames, for the short and the whole size of the bench.
#[derive(Clone, Copy)]
struct Frames {
    short: u64,
    whole: u64,
}

/// Faults compared with zeroing, on one CPU and on all CPUs, and the gain by a second CPU.
pub const SHARE: Bench = Bench {
    build: Build::Native,
    lines: &[
        Line {
            name: "zero_fill_share_of_limit",
            unit: "ratio",
            how: "Hosted, one CPU: rate of zero-fill faults, over the rate at which that CPU takes the same frames \
                from the allocator and zeroes them. The faults are of Space::fault in a fresh private mapping of 512 \
                MiB, without stock and poison. Frames are in random order, and no other frame is free. By the thread's \
                CPU time; median of 15 pairs of samples.",
        },
        Line {
            name: "zero_fill_share_of_limit_hot",
            unit: "ratio",
            how: "The same with 1 MiB repeatedly, which stays in the cache.",
        },
        Line {
            name: "zero_fill_share_of_limit_all_cpus",
            unit: "ratio",
            how: "The same on every CPU of this machine at once, each with 512 MiB in its own mapping of one space. \
                The limit is the rate at which all CPUs take and zero frames at once.",
        },
        Line { name: "zero_fill_rate", unit: "faults/s", how: "Hosted, one CPU: zero-fill faults of the cold case." },
        Line {
            name: "zero_fill_rate_hot",
            unit: "faults/s",
            how: "Hosted, one CPU: zero-fill faults of the hot case.",
        },
        Line {
            name: "zeroing_rate",
            unit: "frames/s",
            how: "Hosted, one CPU: frames taken and zeroed, cold case: the limit.",
        },
        Line {
            name: "zero_fill_scaling_2cpu",
            unit: "ratio",
            how: "Hosted: rate of zero-fill faults of two CPUs at once over the rate of one of them. Each has 512 MiB \
                in its own mapping of one space. By the CPU time of the slower one.",
        },
    ],
    run,
};

fn run(report: &mut Report) -> Result<(), Failure> {
    let cold = measure(report.size, 1, COLD, 1)?;
    report.put("zero_fill_share_of_limit", cold.share);
    report.put("zero_fill_rate", cold.faults);
    report.put("zeroing_rate", cold.limit);
    let hot = measure(report.size, 1, HOT, report.size.of(2, 256))?;
    report.put("zero_fill_share_of_limit_hot", hot.share);
    report.put("zero_fill_rate_hot", hot.faults);
    let cpus = std::thread::available_parallelism().map_or(1, |n| n.get()).min(64);
    let all = if cpus == 1 { cold.share } else { measure(report.size, cpus, COLD, 1)?.share };
    report.put("zero_fill_share_of_limit_all_cpus", all);
    report.put("zero_fill_scaling_2cpu", scaling(report.size)?);
    Ok(())
}

/// The workload of zero-fill faults, for counters of instructions and misses.
pub const FAULTS: Workload = Workload { name: "zero_fill", run: faults };

fn faults(count: usize, size: Size) {
    let m = Machine::new(1, COLD, size);
    let cpu = Cpu::attach(m.vm, 0).expect("no other thread is this CPU");
    let space: SpaceRef<Hosted> = Space::new(m.vm).expect("a fresh machine has enough memory");
    let bytes = (count as u64 + 1) * PAGE_SIZE;
    space.map(&MapRequest::private(Placement::Fixed(BASE), bytes)).expect("nothing is mapped there");
    cpu.enter(&space).expect("the space belongs to this machine");
    for page in 0..count as u64 {
        space.fault(BASE + page * PAGE_SIZE, Access::Write).expect("the count is less than there is memory");
    }
}

struct Rates {
    /// The medians of the pages a second, for all CPUs together.
    faults: f64,
    limit: f64,
    /// The median of the ratios of the pairs.
    share: f64,
}

/// The CPU time of this thread, which does not include the host's other work.
fn cpu_time() -> Duration {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

/// Puts the free frames into random order: allocates all frames and frees them in random order. Then the
/// magazines (the free frames that one CPU keeps) have that order. The caller must run as a CPU.
pub fn shuffle(vm: &'static Vm<Hosted>, seed: &mut u64) {
    vm.epoch().drain();
    vm.drain_magazines();
    let mut frames: Vec<Frame> = Vec::new();
    while let Ok(frame) = vm.alloc_frame(Fill::Any, For::User) {
        frames.push(frame);
    }
    for i in (1..frames.len()).rev() {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        frames.swap(i, (*seed % (i as u64 + 1)) as usize);
    }
    frames.into_iter().for_each(|f| vm.free_frame(f).expect("the frame is the machine's"));
}

/// A machine on which only `frames` frames for each CPU are free for programs.
struct Machine {
    vm: &'static Vm<Hosted>,
    frames: u64,
}

fn measure(size: Size, cpus: usize, frames: Frames, repeat: u32) -> Result<Rates, Failure> {
    let m = Machine::new(cpus, frames, size);
    let samples = harness::pairs(size.of(1, ROUNDS), || m.touch(cpus, repeat), || m.zero(cpus, repeat))?;
    let pages = (cpus as u64 * m.frames * repeat as u64) as f64;
    Ok(Rates {
        faults: pages / harness::middle(samples.iter().map(|s| s.0)),
        limit: pages / harness::middle(samples.iter().map(|s| s.1)),
        share: harness::middle(samples.iter().map(|s| s.1 / s.0)),
    })
}

fn scaling(size: Size) -> Result<f64, Failure> {
    let m = Machine::new(2, COLD, size);
    let samples = harness::pairs(size.of(1, ROUNDS), || m.touch(1, 1), || m.touch(2, 1))?;
    Ok(2.0 * harness::middle(samples.iter().map(|s| s.0 / s.1)))
}

impl Machine {
    fn new(cpus: usize, frames: Frames, size: Size) -> Machine {
        let frames = size.of(frames.short, frames.whole);
        let vm = machine::boot(cpus, cpus as u64 * frames / 256);
        Machine { vm, frames }
    }

    /// Lets `cpus` CPUs fault at once, each on a fresh mapping of its own in one space. Returns the time of the slowest
    /// CPU.
    fn touch(&self, cpus: usize, repeat: u32) -> Result<Duration, Failure> {
        let cpu = || Cpu::attach(self.vm, 0).expect("no other thread is this CPU");
        let space: SpaceRef<Hosted> = {
            let _cpu = cpu();
            Space::new(self.vm)?
        };
        let time = self.sample(cpus, repeat, |_, cpu, frames, barrier| {
            let at = BASE + cpu.id() as u64 * (1 << 32);
            // The new mapping replaces the old one, so the pages touched before are freed.
            space.map(&MapRequest::private(Placement::Fixed(at), frames * PAGE_SIZE))?;
            cpu.enter(&space).expect("the space belongs to this machine");
            barrier.wait();
            let start = cpu_time();
            for page in 0..frames {
                space.fault(at + page * PAGE_SIZE, Access::Write)?;
            }
            Ok(cpu_time() - start)
        });
        // The space is dropped on a CPU, because only a CPU can tear it down.
        let _cpu = cpu();
        drop(space);
        time
    }

    /// Lets each CPU allocate and zero as many frames as `touch` touches pages. Returns the time of the slowest CPU.
    fn zero(&self, cpus: usize, repeat: u32) -> Result<Duration, Failure> {
        self.sample(cpus, repeat, |vm, _, frames, barrier| {
            let mut taken = Vec::with_capacity(frames as usize);
            barrier.wait();
            let start = cpu_time();
            for _ in 0..frames {
                let frame = vm.alloc_frame(Fill::Any, For::User)?;
                // SAFETY: the frame was just allocated, so only this CPU uses it.
                unsafe { vm.machine().zero_frame(frame.pfn()) };
                taken.push(frame);
            }
            let time = cpu_time() - start;
            black_box(&taken);
            taken.into_iter().for_each(|f| vm.free_frame(f).expect("the frame is the machine's"));
            Ok(time)
        })
    }

    fn sample(
        &self,
        cpus: usize,
        repeat: u32,
        f: impl Fn(&'static Vm<Hosted>, &Cpu, u64, &Barrier) -> Result<Duration, Failure> + Sync,
    ) -> Result<Duration, Failure> {
        let mut seed = 0x9e37_79b9_7f4a_7c15;
        if repeat == 1 {
            let _cpu = Cpu::attach(self.vm, 0).expect("no other thread is this CPU");
            shuffle(self.vm, &mut seed);
        }
        let barrier = Barrier::new(cpus);
        std::thread::scope(|s| {
            let threads: Vec<_> = (0..cpus)
                .map(|cpu| {
                    let (f, barrier) = (&f, &barrier);
                    s.spawn(move || {
                        let cpu = Cpu::attach(self.vm, cpu).expect("no other thread is this CPU");
                        (0..repeat).map(|_| f(self.vm, &cpu, self.frames, barrier)).sum::<Result<Duration, Failure>>()
                    })
                })
                .collect();
            let mut times =
                threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err(Failure::Wrong("a CPU failed".into()))));
            times.try_fold(Duration::ZERO, |longest, t| Ok(longest.max(t?)))
        })
    }
}
