//! First touches by several CPUs: how fast, how near to what zeroing alone costs, and how many lines move.

use super::counted::moves;
use super::threads::on_cpus;
use super::{Figure, Plan, Round, Scale, Study, claim, log, number, plot};
use crate::bench::zero_fill::shuffle;
use crate::{Failure, machine};
use quire_hosted::{Cpu, Hosted};
use quire_results::{Place, Shape, Side, Source};
use quire_vm::frames::{Fill, For, Frame};
use quire_vm::map::{MapRequest, Placement, Space, SpaceRef};
use quire_vm::{Access, PAGE_SIZE, Phys, Vm};
use std::time::Duration;

const BASE: u64 = 0x1000_0000_0000;
/// From one CPU's region to the next: they share no page table but the root.
const APART: u64 = 1 << 32;

const RATES: [Figure; 2] = [Figure::time("rate", "pages/s").more(), Figure::time("share", "ratio of the limit").more()];
const LIMIT: [Figure; 1] = [Figure::time("rate", "pages/s").more()];
const LINES: [Figure; 1] = [Figure::count("lines", "lines/fault")];

/// The experiment.
pub const STUDY: Study = Study {
    name: "zero-fill",
    source: Source::S0,
    title: "Zero-fill faults",
    about: "CPUs touch fresh private memory page by page: threads of one process in regions of their own, and processes. The rate is \
            of all CPUs together; the limit is the rate at which the same CPUs take the same frames and zero them; frames are free in random order. \
            In the recording build CPUs take turns, and the lines that a fault takes from another CPU are counted.",
    caveats: &[
        "The memory is eight times a CPU's own cache and more, not eight times the last-level cache of a large server.",
        "A CPU of the hosted machine is a thread: with more of them than the host has CPUs, the rate says nothing.",
    ],
    claims: || {
        vec![claim(
            "DragonFly BSD 5.6, 64 threads: 6.4 million zero-fill faults a second, with 4 cache lines moved a fault",
            "lines",
            Place::Recording,
            &[("cpus", number(64u32)), ("what", "threads".into())],
            2.0,
            false,
        )]
    },
    plots: || {
        let threads = [("what", "threads".into())];
        let processes = [("what", "processes".into())];
        vec![
            plot("Pages a second, threads", Shape::Curves, &[Place::Hosted], "rate", "cpus", &threads),
            plot("Pages a second, processes", Shape::Curves, &[Place::Hosted], "rate", "cpus", &processes),
            log(plot("Lines moved a fault", Shape::Curves, &[Place::Recording], "lines", "cpus", &threads)),
            plot("In the guest, threads", Shape::Curves, &[Place::Guest], "rate", "cpus", &threads),
            plot("In the guest, processes", Shape::Curves, &[Place::Guest], "rate", "cpus", &processes),
            plot("Instructions a fault", Shape::Bars, &[Place::GuestCounted], "instructions", "what", &[]),
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
            all.push(Round::new(Side::Ours, Place::Hosted, at(), &RATES, move || {
                Machine::new(cpus, scale)?.rates(spaces)
            }));
            all.push(Round::new(Side::Limit, Place::Hosted, at(), &LIMIT, move || {
                let machine = Machine::new(cpus, scale)?;
                let pages = machine.pages() as f64;
                Ok([2.0 * pages / (machine.zero()? + machine.zero()?).as_secs_f64()])
            }));
        }
    }
    let cpus: &[usize] = scale.of(&[2, 4], &[1, 2, 4, 16, 64, 256], &[1, 2, 4, 8, 16, 32, 64, 128, 256]);
    for &cpus in cpus {
        let at = [("cpus", number(cpus)), ("what", "threads".into())];
        all.push(Round::new(Side::Ours, Place::Recording, at, &LINES, move || {
            Ok([moves("zero-fill faults of threads of one process", cpus)?])
        }));
    }
    all
}

#[derive(Clone, Copy)]
enum Spaces {
    /// All CPUs run one.
    One,
    /// Each has its own.
    Each,
}

/// A machine on which little but `frames` frames for each CPU is free, all of which the host has given already.
struct Machine {
    vm: &'static Vm<Hosted>,
    cpus: usize,
    frames: u64,
}

impl Machine {
    fn new(cpus: usize, scale: Scale) -> Result<Machine, Failure> {
        let frames = scale.of(512, 16 * 1024, 128 * 1024);
        let machine = Machine { vm: machine::boot(cpus, (cpus as u64 * frames).div_ceil(256)), cpus, frames };
        machine.zero()?;
        Ok(machine)
    }

    fn pages(&self) -> u64 {
        self.cpus as u64 * self.frames
    }

    fn shuffle(&self) {
        let _cpu = Cpu::attach(self.vm, 0);
        shuffle(self.vm, &mut 0x9e37_79b9_7f4a_7c15);
    }

    /// The rate of faults, and its share of the limit, taken in turns.
    fn rates(&self, spaces: Spaces) -> Result<[f64; 2], Failure> {
        let (mut faults, mut limit) = (Duration::ZERO, Duration::ZERO);
        // Once for the memory of page tables and the map.
        self.touch(spaces)?;
        for _ in 0..2 {
            faults += self.touch(spaces)?;
            limit += self.zero()?;
        }
        Ok([2.0 * self.pages() as f64 / faults.as_secs_f64(), limit.as_secs_f64() / faults.as_secs_f64()])
    }

    fn touch(&self, spaces: Spaces) -> Result<Duration, Failure> {
        self.shuffle();
        let one = match spaces {
            Spaces::One => Some(Space::new(self.vm)?),
            Spaces::Each => None,
        };
        let prepare = |cpu: usize| -> Result<(SpaceRef<Hosted>, u64), Failure> {
            let space = match &one {
                Some(space) => space.handle(),
                None => Space::new(self.vm)?,
            };
            let at = BASE + cpu as u64 * APART;
            space.map(&MapRequest::private(Placement::Fixed(at), self.frames * PAGE_SIZE))?;
            Ok((space, at))
        };
        let time = on_cpus(self.vm, self.cpus, prepare, |_, (space, at)| {
            for page in 0..self.frames {
                space.fault(*at + page * PAGE_SIZE, Access::Write)?;
            }
            Ok(())
        });
        let _cpu = Cpu::attach(self.vm, 0);
        drop(one);
        time
    }

    /// The same number of frames taken and zeroed, by as many CPUs.
    fn zero(&self) -> Result<Duration, Failure> {
        self.shuffle();
        let none = |_| Ok(Taken { vm: self.vm, frames: Vec::with_capacity(self.frames as usize) });
        on_cpus(self.vm, self.cpus, none, |_, taken| {
            for _ in 0..self.frames {
                let frame = self.vm.alloc_frame(Fill::Any, For::User)?;
                // SAFETY: the frame was just taken.
                unsafe { self.vm.machine().zero_frame(frame.pfn()) };
                taken.frames.push(frame);
            }
            Ok(())
        })
    }
}

/// Frames that go back when this is dropped.
struct Taken {
    vm: &'static Vm<Hosted>,
    frames: Vec<Frame>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.frames.drain(..).for_each(|f| self.vm.free_frame(f));
    }
}
