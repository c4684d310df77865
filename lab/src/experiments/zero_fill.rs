//! The experiment about first touches by several CPUs. It measures the rate, its share of the rate of zeroing alone,
//! and the number of cache lines that move.

use super::counted::Caches;
use super::threads::on_cpus;
use super::{Figure, Plan, Round, Study, claim, log, number, plot};
use crate::Failure;

use crate::memory::{Backings, Memory, PARTS, Production, Records, Target};
use quire_results::{Place, Shape, Side, Source};
use quire_vm::{Access, PAGE_SIZE, VirtRange};
use std::time::Duration;

const BASE: u64 = 0x1000_0000_0000;
/// The distance between the regions of two CPUs in bytes. At this distance, the regions share no page table except the
/// root.
const APART: u64 = 1 << 32;

const RATES: [Figure; 2] = [Figure::time("rate", "pages/s").more(), Figure::time("share", "ratio of the limit").more()];
const LIMIT: [Figure; 1] = [Figure::time("rate", "pages/s").more()];
const LINES: [Figure; 1] = [Figure::count("lines", "lines/fault")];

/// The experiment.
pub const STUDY: Study = Study {
    name: "zero-fill",
    source: Source::S0,
    title: "Zero-fill faults",
    about: "CPUs touch fresh private memory page by page, as threads of one process in their own regions, or as \
        processes. The rate is that of all CPUs together. The limit is the rate at which the same CPUs take the same \
        frames and zero them. Frames are free in random order. In the recording build CPUs take turns, and the lines \
        that a fault takes from another CPU are counted. Before is a memory core with a record for each mapped page. \
        After has a backing for each mapping. Both have free frames and queues in 256 parts, as their source had at \
        that time.",
    caveats: &[
        "The memory is at least eight times a CPU's own cache, but not eight times the last-level cache of a large \
         server.",
        "Before and after do no work for translation caches, epochs or lock order, and their leaves are not in a \
         hardware format. They are as fast as their designs can be.",
        "After moves three lines a fault, and its source reports four. The three are the map's count, a mark for the \
         leaf, and the count of residents. Before omits the lock and the count of all leaves of a space that designs \
         of its kind had. Therefore after is behind before here.",
        "In guests a fault is the workload of the source: mmap, a store into each page, a load of one page in 61, and \
         munmap. The figure is that time divided by the pages, not the time of the fault alone.",
        "Ours makes up to 32 pages a fault where touches are in ascending order. The hosted cases and the zero-fill \
         fault of guests touch pages from the last to the first. There ours makes one page a fault, as all others do. \
         The row `first touch, in a row` touches pages in ascending order.",
        "A CPU of the hosted machine is a thread. With more threads than the host has CPUs, the rate means nothing.",
    ],
    claims: || {
        vec![claim(
            "DragonFly BSD 5.6, 64 threads: 6.4 million zero-fill faults a second, with 4 cache lines moved a fault",
            "lines",
            Place::Recording,
            &[("cpus", number(64u32)), ("what", "threads".into())],
            2.0,
            true,
        )]
    },
    plots: || {
        let threads = [("what", "threads".into())];
        let processes = [("what", "processes".into())];
        vec![
            plot("Pages a second, threads", Shape::Curves, &[Place::Hosted], "rate", "cpus", &threads),
            plot("Pages a second, processes", Shape::Curves, &[Place::Hosted], "rate", "cpus", &processes),
            log(plot("Lines moved a fault", Shape::Curves, &[Place::Recording], "lines", "cpus", &threads)),
        ]
    },
    cases,
};

fn cases(plan: &Plan) -> Vec<Round> {
    let scale = plan.scale;
    let mut all = Vec::new();
    for &cpus in &plan.cpus {
        for (what, spaces) in [("threads", Spaces::One), ("processes", Spaces::Each)] {
            let at = || [("cpus", number(cpus)), ("what", what.into())];
            let of = move || Work { cpus, frames: scale.of(512, 16 * 1024, 128 * 1024), spaces };
            all.push(Round::new(Side::Before, Place::Hosted, at(), &RATES, move || {
                of().rates(Records::boot(cpus, of().mib(), PARTS)?)
            }));
            all.push(Round::new(Side::After, Place::Hosted, at(), &RATES, move || {
                of().rates(Backings::boot(cpus, of().mib(), PARTS)?)
            }));
            all.push(Round::new(Side::Ours, Place::Hosted, at(), &RATES, move || {
                of().rates(Production::boot(cpus, of().mib()))
            }));
            all.push(Round::new(Side::Limit, Place::Hosted, at(), &LIMIT, move || {
                let machine = Production::boot(cpus, of().mib());
                of().zero(machine)?;
                let time = of().zero(machine)? + of().zero(machine)?;
                Ok([2.0 * of().pages() as f64 / time.as_secs_f64()])
            }));
        }
    }
    let cpus: &[usize] = scale.of(&[1, 2, 4], &[1, 2, 4, 16, 64, 256], &[1, 2, 4, 8, 16, 32, 64, 128, 256]);
    for &cpus in cpus {
        let at = || [("cpus", number(cpus)), ("what", "threads".into())];
        all.push(Round::new(Side::Before, Place::Recording, at(), &LINES, move || {
            lines(Records::boot(cpus, 8 + 2 * cpus as u64, PARTS)?, cpus)
        }));
        all.push(Round::new(Side::After, Place::Recording, at(), &LINES, move || {
            lines(Backings::boot(cpus, 8 + 2 * cpus as u64, PARTS)?, cpus)
        }));
        all.push(Round::new(Side::Ours, Place::Recording, at(), &LINES, move || {
            lines(Production::boot(cpus, 16 + 4 * cpus as u64), cpus)
        }));
    }
    all
}

#[derive(Clone, Copy)]
enum Spaces {
    /// All CPUs run one process.
    One,
    /// Each CPU has its own process.
    Each,
}

/// The work of a round: each CPU touches `frames` pages. The machine has little more free memory than these pages need.
#[derive(Clone, Copy)]
pub(super) struct Work {
    cpus: usize,
    frames: u64,
    spaces: Spaces,
}

impl Work {
    /// The work where each CPU has its own process.
    pub(super) fn processes(cpus: usize, frames: u64) -> Work {
        Work { cpus, frames, spaces: Spaces::Each }
    }

    fn pages(self) -> u64 {
        self.cpus as u64 * self.frames
    }

    pub(super) fn mib(self) -> u64 {
        self.pages().div_ceil(256)
    }

    /// The rate in pages a second, and its share of the limit. The limit is the rate of allocating and zeroing frames
    /// without faults. Both rates are measured alternately.
    pub(super) fn rates<M: Memory>(self, memory: M) -> Result<[f64; 2], Failure> {
        let [rate, share, _] = self.rates_and_waits(memory)?;
        Ok([rate, share])
    }

    /// Measures the two figures of [`Work::rates`], and how often a CPU waited for another CPU's lock, per thousand
    /// pages.
    pub(super) fn rates_and_waits<M: Memory>(self, memory: M) -> Result<[f64; 3], Failure> {
        let (mut faults, mut limit, mut waits) = (Duration::ZERO, Duration::ZERO, 0);
        // The first two runs are not measured. They make the host allocate the memory of frames, tables and maps.
        self.zero(memory)?;
        self.touch(memory)?;
        for _ in 0..2 {
            let before = memory.waits();
            faults += self.touch(memory)?;
            waits += memory.waits() - before;
            limit += self.zero(memory)?;
        }
        let pages = 2.0 * self.pages() as f64;
        let (time, share) = (faults.as_secs_f64(), limit.as_secs_f64() / faults.as_secs_f64());
        Ok([pages / time, share, waits as f64 * 1e3 / pages])
    }

    fn touch<M: Memory>(self, memory: M) -> Result<Duration, Failure> {
        memory.shuffle();
        let one = match self.spaces {
            Spaces::One => {
                let _cpu = memory.attach(0);
                Some(memory.space()?)
            }
            Spaces::Each => None,
        };
        let prepare = |cpu: usize, this: &M::Cpu| -> Result<Region<M>, Failure> {
            let start = BASE + cpu as u64 * APART;
            let own = if one.is_some() { None } else { Some(memory.space()?) };
            let space = one.as_ref().or(own.as_ref());
            let space = space.ok_or_else(|| Failure::Wrong("there is no space".into()))?;
            let range = VirtRange { start, end: start + self.frames * PAGE_SIZE };
            memory.map(space, range, Target::Private)?;
            memory.enter(this, space);
            Ok(Region { own, start })
        };
        let time = on_cpus(memory, self.cpus, prepare, |_, region| {
            let space = one.as_ref().or(region.own.as_ref());
            let space = space.ok_or_else(|| Failure::Wrong("there is no space".into()))?;
            (0..self.frames).try_for_each(|page| memory.fault(space, region.start + page * PAGE_SIZE, Access::Write))
        });
        let _cpu = memory.attach(0);
        drop(one);
        time
    }

    /// Lets `self.cpus` CPUs allocate and zero `self.frames` frames each, without faults. Returns the time of the
    /// slowest CPU.
    fn zero<M: Memory>(self, memory: M) -> Result<Duration, Failure> {
        memory.shuffle();
        on_cpus(
            memory,
            self.cpus,
            |_, _| Ok(None),
            |_, taken| {
                *taken = Some(memory.take_zeroed(self.frames)?);
                Ok(())
            },
        )
    }
}

/// The region that a CPU touches, and the CPU's own space if it has one.
struct Region<M: Memory> {
    own: Option<M::Space>,
    start: u64,
}

/// The number of cache lines that a fault fetches from other CPUs, while threads of one process take turns.
pub(super) fn lines<M: Memory>(memory: M, cpus: usize) -> Result<[f64; 1], Failure> {
    let cpus: Vec<M::Cpu> = (0..cpus).map(|id| memory.attach(id)).collect();
    let space = memory.space()?;
    // Some work is done once for up to 256 frames, such as the refill of a CPU's magazine of free frames. So 256 faults
    // are counted, and contain that work at its true rate.
    let (warm, counted) = (32, 256);
    for id in 0..cpus.len() as u64 {
        let start = BASE + id * APART;
        memory.map(&space, VirtRange { start, end: start + (warm + counted) * PAGE_SIZE }, Target::Private)?;
    }
    cpus.iter().for_each(|cpu| memory.enter(cpu, &space));
    let mut caches = Caches::default();
    let mut shared = 0;
    for n in 0..warm + counted {
        for (id, cpu) in cpus.iter().enumerate() {
            let va = BASE + id as u64 * APART + n * PAGE_SIZE;
            let (done, _, lines) = caches.counted(|| memory.on(cpu, || memory.fault(&space, va, Access::Write)))?;
            done?;
            shared += if n < warm { 0 } else { lines };
        }
    }
    Ok([shared as f64 / (counted * cpus.len() as u64) as f64])
}
