//! The experiment about process creation: forks of processes with many or few touched pages, and replays of recorded
//! execs.

use super::counted::Caches;
use super::threads::rate;
use super::{Figure, Plan, Round, Scale, Study, claim, number, plot, split};
use crate::Failure;

use crate::memory::{Backings, Memory, PARTS, Production, Records, Target};
use quire_results::{Parameter, Place, Shape, Side, Source};
use quire_vm::{Access, PAGE_SIZE, VirtRange};

const BASE: u64 = 0x1000_0000_0000;
/// The recorded execs. The head of the file describes its format.
const RECORDED: &str = include_str!("exec.txt");

const RATE: [Figure; 1] = [Figure::time("rate", "ops/s").more()];
const COUNTS: [Figure; 2] = [Figure::count("lines", "lines/op"), Figure::count("locks", "locks/op")];

/// The experiment.
pub const STUDY: Study = Study {
    name: "exec-fork",
    source: Source::S0,
    title: "Fork and exec",
    about: "A process forks and its child exits, repeatedly. The process of fork-touched has touched 16 MiB. The \
        process of fork-stored also stores into some of these pages before each fork. The process of fork-mapped maps \
        16 GiB and has touched 100 pages. An exec creates a space, makes the map operations and first touches of a \
        real program from exec to exit, and ends the space. The programs are a small static program, and ls with its \
        libraries. Several CPUs run one shared program or distinct copies.",
    caveats: &[
        "In the hosted build, an exec is only the work of the memory core. It has no system calls, no loader and no \
         file names.",
        "No side copies leaves at a fork. A child that loads an inherited page takes a fault, which the figure does \
         not include.",
        "Ours frees memory that readers may still use through epochs, which CPUs advance together, and through an \
         allocator whose lines are counted. Both cost a tenth of a line an operation. Before and after exclude readers \
         by locks and leave memory to the host, so their forks move no line here.",
        "In fork-touched and fork-mapped the parent does not store between its forks. The first fork of ours removes \
         the write permission, and later forks do not visit these leaves again. In fork-stored the parent stores into \
         64 pages before each fork, and these pages are copied or reused.",
        "Lines and locks of a fork are counted with 64 pages touched. Lines and locks of execs are counted for the \
         static program only.",
        "The copies are distinct for each CPU, not for each exec, because their pages stay resident.",
    ],
    claims: || {
        vec![claim(
            "DragonFly BSD 5.6, 64 threads: 45,000 execs a second of shared dynamic programs, 450,000 of static ones",
            "rate",
            Place::Hosted,
            &[("cpus", number(1u32)), ("programs", "shared".into()), ("what", "exec-dynamic".into())],
            1.1,
            true,
        )]
    },
    plots: || {
        let of = |what: &str| [("what", what.into())];
        vec![
            split(
                plot(
                    "Execs of ls and its libraries",
                    Shape::Curves,
                    &[Place::Hosted],
                    "rate",
                    "cpus",
                    &of("exec-dynamic"),
                ),
                "programs",
            ),
            split(
                plot(
                    "Execs of a small static program",
                    Shape::Curves,
                    &[Place::Hosted],
                    "rate",
                    "cpus",
                    &of("exec-static"),
                ),
                "programs",
            ),
            plot(
                "Forks of a process that has touched 16 MiB",
                Shape::Curves,
                &[Place::Hosted],
                "rate",
                "cpus",
                &of("fork-touched"),
            ),
            plot(
                "Forks of a process that stores into 64 pages of 4,096 before each",
                Shape::Curves,
                &[Place::Hosted],
                "rate",
                "cpus",
                &of("fork-stored"),
            ),
            plot(
                "Forks of a process that maps 16 GiB",
                Shape::Curves,
                &[Place::Hosted],
                "rate",
                "cpus",
                &of("fork-mapped"),
            ),
            split(plot("Lines moved an operation", Shape::Bars, &[Place::Recording], "lines", "what", &[]), "cpus"),
        ]
    },
    cases,
};

#[derive(Clone, Copy)]
enum Operation {
    Fork(Touched),
    Exec(Program, Programs),
}

#[derive(Clone, Copy)]
enum Touched {
    All,
    Little,
    /// All pages, and some of them are stored into again before each fork.
    Again,
}

/// The number of pages that are stored into again.
const AGAIN: u64 = 64;

#[derive(Clone, Copy)]
enum Program {
    Static,
    Dynamic,
}

#[derive(Clone, Copy)]
enum Programs {
    Shared,
    Copies,
}

const FORKS: [(&str, Touched); 3] =
    [("fork-touched", Touched::All), ("fork-mapped", Touched::Little), ("fork-stored", Touched::Again)];
const EXECS: [(&str, Program); 2] = [("exec-static", Program::Static), ("exec-dynamic", Program::Dynamic)];
const PROGRAMS: [(&str, Programs); 2] = [("shared", Programs::Shared), ("copies", Programs::Copies)];

fn operations() -> Vec<(Vec<(&'static str, Parameter)>, Operation)> {
    let forks = FORKS.into_iter().map(|(what, of)| (vec![("what", what.into())], Operation::Fork(of)));
    let execs = EXECS.into_iter().flat_map(|(what, program)| {
        PROGRAMS.into_iter().map(move |(name, programs)| {
            (vec![("what", what.into()), ("programs", name.into())], Operation::Exec(program, programs))
        })
    });
    forks.chain(execs).collect()
}

fn cases(plan: &Plan) -> Vec<Round> {
    let scale = plan.scale;
    let mut all = Vec::new();
    for (of, operation) in operations() {
        for &cpus in &plan.cpus {
            let at = || of.iter().cloned().chain([("cpus", number(cpus))]);
            all.push(Round::new(Side::Before, Place::Hosted, at(), &RATE, move || {
                Ok([operation.rate(Records::boot(cpus, mib(cpus), PARTS)?, cpus, scale)?])
            }));
            all.push(Round::new(Side::After, Place::Hosted, at(), &RATE, move || {
                Ok([operation.rate(Backings::boot(cpus, mib(cpus), PARTS)?, cpus, scale)?])
            }));
            all.push(Round::new(Side::Ours, Place::Hosted, at(), &RATE, move || {
                Ok([operation.rate(Production::boot(cpus, mib(cpus)), cpus, scale)?])
            }));
        }
        // An exec of `ls` is hundreds of operations, which are too many to record often.
        let counted: &[usize] = match operation {
            Operation::Exec(Program::Dynamic, _) => &[],
            _ => scale.of(&[2], &[2, 16], &[2, 16, 64]),
        };
        for &cpus in counted {
            let at = || of.iter().cloned().chain([("cpus", number(cpus))]);
            all.push(Round::new(Side::Before, Place::Recording, at(), &COUNTS, move || {
                operation.counts(Records::boot(cpus, mib(cpus), PARTS)?, cpus)
            }));
            all.push(Round::new(Side::After, Place::Recording, at(), &COUNTS, move || {
                operation.counts(Backings::boot(cpus, mib(cpus), PARTS)?, cpus)
            }));
            all.push(Round::new(Side::Ours, Place::Recording, at(), &COUNTS, move || {
                operation.counts(Production::boot(cpus, mib(cpus)), cpus)
            }));
        }
    }
    all
}

fn mib(cpus: usize) -> u64 {
    32 + 24 * cpus as u64
}

/// The process in which one CPU does its operations.
struct Process<M: Memory> {
    memory: M,
    parent: Option<M::Space>,
    /// The number of the parent's pages that are stored into before each fork.
    again: u64,
    files: Vec<M::File>,
    steps: Vec<Step>,
}

impl<M: Memory> Process<M> {
    fn operation(&self) -> Result<(), Failure> {
        match &self.parent {
            Some(parent) => {
                for page in 0..self.again {
                    self.memory.fault(parent, BASE + page * PAGE_SIZE, Access::Write)?;
                }
                self.memory.fork(parent).map(drop)
            }
            None => {
                let space = self.memory.space()?;
                self.steps.iter().try_for_each(|step| step.take(self.memory, &space, &self.files))
            }
        }
    }
}

impl Operation {
    fn files<M: Memory>(self, memory: M) -> Result<Vec<M::File>, Failure> {
        match self {
            Operation::Fork(_) => Ok(Vec::new()),
            Operation::Exec(program, _) => {
                let pages = lengths(&program.steps()?);
                pages.into_iter().map(|pages| memory.file(pages)).collect()
            }
        }
    }

    /// Prepares a CPU's process. `shared` has the files that other processes map too.
    fn process<M: Memory>(self, memory: M, shared: &[M::File], touched: u64) -> Result<Process<M>, Failure> {
        let none = Process { memory, parent: None, again: 0, files: Vec::new(), steps: Vec::new() };
        match self {
            Operation::Fork(how) => {
                let parent = memory.space()?;
                let (pages, apart, again) = match how {
                    Touched::All => (touched, 1, 0),
                    Touched::Little => (1 << 22, (1 << 22) / 100, 0),
                    Touched::Again => (touched, 1, AGAIN.min(touched)),
                };
                memory.map(&parent, pages_at(BASE / PAGE_SIZE, pages), Target::Private)?;
                for page in (0..pages).step_by(apart) {
                    memory.fault(&parent, BASE + page * PAGE_SIZE, Access::Write)?;
                }
                Ok(Process { parent: Some(parent), again, ..none })
            }
            Operation::Exec(program, programs) => {
                let files = match programs {
                    Programs::Shared => shared.to_vec(),
                    Programs::Copies => self.files(memory)?,
                };
                Ok(Process { files, steps: program.steps()?, ..none })
            }
        }
    }

    fn rate<M: Memory>(self, memory: M, cpus: usize, scale: Scale) -> Result<f64, Failure> {
        let shared = {
            let _cpu = memory.attach(0);
            self.files(memory)?
        };
        let touched = scale.of(64, 4096, 4096);
        let process = |_| self.process(memory, &shared, touched);
        let rate = rate(memory, cpus, scale.of(0.0, 0.1, 2.0), process, |_, process| process.operation());
        let _cpu = memory.attach(0);
        drop(shared);
        rate
    }

    /// Counts moved cache lines and acquired locks for each operation, while the CPUs take turns.
    fn counts<M: Memory>(self, memory: M, cpus: usize) -> Result<[f64; 2], Failure> {
        const WARM: usize = 16;
        // There are enough rounds to see rare work at its true rate.
        let rounds = (2048 / cpus).max(16);
        let cpus: Vec<M::Cpu> = (0..cpus).map(|id| memory.attach(id)).collect();
        let shared = self.files(memory)?;
        let processes = cpus.iter().map(|cpu| memory.on(cpu, || self.process(memory, &shared, 64)));
        let processes: Vec<Process<M>> = processes.collect::<Result<_, Failure>>()?;
        // These operations are not recorded. They run until adaptive structures have reacted to contention and each
        // CPU's caches are filled.
        let settle = 128;
        for _ in 0..settle {
            for (cpu, process) in cpus.iter().zip(&processes) {
                memory.on(cpu, || process.operation())?;
            }
        }
        let mut caches = Caches::default();
        let (mut lines, mut locks) = (0, 0);
        for round in 0..WARM + rounds {
            for (cpu, process) in cpus.iter().zip(&processes) {
                let (done, counts, moved) = caches.counted(|| memory.on(cpu, || process.operation()))?;
                done?;
                if round >= WARM {
                    (lines, locks) = (lines + moved, locks + counts.takes);
                }
            }
        }
        let n = (rounds * cpus.len()) as f64;
        Ok([lines as f64 / n, locks as f64 / n])
    }
}

fn pages_at(page: u64, pages: u64) -> VirtRange {
    VirtRange { start: page * PAGE_SIZE, end: (page + pages) * PAGE_SIZE }
}

/// One recorded step of a program. Addresses and lengths are in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    File { at: u64, pages: u64, file: usize, from: u64 },
    Anonymous { at: u64, pages: u64 },
    Protect { at: u64, pages: u64, stores: bool },
    Unmap { at: u64, pages: u64 },
    Touch { at: u64, access: Access },
}

impl Step {
    fn take<M: Memory>(self, memory: M, space: &M::Space, files: &[M::File]) -> Result<(), Failure> {
        match self {
            Step::File { at, pages, file, from } => {
                memory.map(space, pages_at(at, pages), Target::Copied(files[file].clone(), from))
            }
            Step::Anonymous { at, pages } => memory.map(space, pages_at(at, pages), Target::Private),
            Step::Protect { at, pages, stores } => memory.protect(space, pages_at(at, pages), stores),
            Step::Unmap { at, pages } => memory.unmap(space, pages_at(at, pages)),
            Step::Touch { at, access } => memory.fault(space, at * PAGE_SIZE, access),
        }
    }
}

impl Program {
    /// The program's part of the recording.
    fn steps(self) -> Result<Vec<Step>, Failure> {
        let name = match self {
            Program::Static => "program static",
            Program::Dynamic => "program dynamic",
        };
        let own = RECORDED.lines().skip_while(|l| *l != name).skip(1).take_while(|l| !l.starts_with("program"));
        let mut steps = Vec::new();
        for line in own {
            parse(line, &mut steps).ok_or_else(|| Failure::Wrong(format!("exec.txt: {line}")))?;
        }
        Ok(steps)
    }
}

fn parse(line: &str, steps: &mut Vec<Step>) -> Option<()> {
    let mut words = line.split(' ');
    let kind = words.next()?;
    let page = |word: &str| u64::from_str_radix(word, 16).ok();
    if kind == "touch" {
        for word in words {
            let (at, how) = word.split_at_checked(word.len().checked_sub(1)?)?;
            let access = match how {
                "r" => Access::Read,
                "w" => Access::Write,
                "x" => Access::Exec,
                _ => return None,
            };
            steps.push(Step::Touch { at: page(at)?, access });
        }
        return Some(());
    }
    let (at, pages) = (page(words.next()?)?, words.next()?.parse().ok()?);
    steps.push(match kind {
        "file" => {
            let _prot = words.next()?;
            Step::File { at, pages, file: words.next()?.parse().ok()?, from: words.next()?.parse().ok()? }
        }
        "anon" => Step::Anonymous { at, pages },
        "protect" => Step::Protect { at, pages, stores: words.next()?.contains('w') },
        "unmap" => Step::Unmap { at, pages },
        _ => return None,
    });
    Some(())
}

/// The length of each file in pages, as far as the steps map it.
fn lengths(steps: &[Step]) -> Vec<u64> {
    let mut lengths = Vec::new();
    for step in steps {
        if let Step::File { pages, file, from, .. } = *step {
            lengths.resize(lengths.len().max(file + 1), 1);
            lengths[file] = lengths[file].max(from + pages);
        }
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_map_can_replay_the_recording() {
        for program in [Program::Static, Program::Dynamic] {
            let steps = program.steps().unwrap();
            let touches = steps.iter().filter(|s| matches!(s, Step::Touch { .. })).count();
            assert!(touches >= 4 && steps.len() > touches, "{touches} of {}", steps.len());
            let operation = Operation::Exec(program, Programs::Copies);
            fn runs<M: Memory>(operation: Operation, memory: M) {
                let _cpu = memory.attach(0);
                let process = operation.process(memory, &[], 0).unwrap();
                process.operation().unwrap();
            }
            runs(operation, Production::boot(1, 64));
            runs(operation, Records::boot(1, 64, 4).unwrap());
            runs(operation, Backings::boot(1, 64, 4).unwrap());
        }
        assert!(Program::Dynamic.steps().unwrap().len() > 200);
    }
}
