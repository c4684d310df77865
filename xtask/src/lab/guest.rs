//! Guest cases: programs of `programs/` that run on Quire and on Linux. One boot runs many programs, one after the
//! other. The boot's script prints a line before the output of each program, and the program's exit status after it.

use std::{cell::RefCell, collections::BTreeMap, time::Duration};

use quire_results::{
    Better, Case, Claim, Experiment, Kind, Measure, Mode, Parameter, Place, Plot, Reading, Shape as Drawn, Side,
};

use super::plan::{self, CaseId, CaseValues, Counted, Job, Plan};
use super::servers::{self, SERVERS};
use crate::{
    boot::{Kernel, On, Shape},
    cli, compare,
    failure::{Failure, Result},
    image::{order::Order, tree::Tree},
    machine::{outcome::Outcome, relay::GuestOutput},
    places::Places,
    programs, run,
};

/// The experiment that measures how fast the machines themselves are.
pub const CALIBRATION: &str = "calibration";
/// The experiment with the longest cases: each case does several builds in one boot.
const BUILD: &str = "build";
/// The most rounds of a build case in a run.
const BUILD_ROUNDS: u32 = 2;
/// The object files that a quick run builds: small ones, and enough of them for two jobs.
const QUICK_GOALS: [&str; 4] = ["lzio.o", "lctype.o", "linit.o", "lopcodes.o"];
/// The estimated seconds of a boot before its first program runs: on Quire, and on Linux, which gets time to settle.
const BOOT: (f64, f64) = (2.0, 6.0);
/// The most CPUs of a guest.
pub const MOST_CPUS: u32 = 64;
/// The time limit of a boot.
const LIMIT: Duration = Duration::from_secs(1800);
/// The memory of a guest in MiB: without a compiler, and with one.
const MEMORY: (u64, u64) = (1024, 2048);
/// The least memory for each CPU in MiB, because a process on each CPU touches 64 MiB, or 100 large pages. The size
/// `MEMORY.1` marks a guest with a compiler, so it must not be a multiple of this number.
const MEMORY_A_CPU: u64 = 240;

fn memory(command: &str, cpus: u32) -> u64 {
    let builds = programs::builds(command.split(' ').next().unwrap_or_default().as_ref());
    if builds { MEMORY.1 } else { MEMORY.0.max(u64::from(cpus) * MEMORY_A_CPU) }
}

/// The estimated seconds of one case of the builds in a boot. Builds with one number of jobs give two cases, so each
/// case gets half of the builds' time.
fn build_seconds(mode: Mode, place: Place, cpus: u32) -> f64 {
    let all = if mode == Mode::Full { 160.0 } else { 16.0 };
    all / if place == Place::Guest { f64::from(cpus.min(2)) } else { 1.0 } / 2.0
}

/// The names and values of a case's parameters.
type Of = &'static [(&'static str, &'static str)];

/// One program of an experiment, and the lines of its output that the lab reads.
struct Thing {
    experiment: &'static str,
    /// The command. `planned` replaces `{cpus}`, `{seconds}`, `{goal}` and `{builds}` by their values.
    command: &'static str,
    /// The names of output lines, without the suffix `_rate` or `_instructions`, and the parameters of their cases.
    lines: &'static [(&'static str, Of)],
    /// Further lines of runs that count instructions: their names, measures, units and parameters.
    other: &'static [(&'static str, &'static str, &'static str, Of)],
    /// Further lines of timed runs: their names, measures, units and parameters.
    times: &'static [(&'static str, &'static str, &'static str, Of)],
    /// Whether the program also runs, on one CPU, in a guest that counts instructions.
    counted: bool,
    /// The numbers of CPUs at which the program also runs in real time.
    timed: Timed,
    /// Whether the program also runs on a Linux with large pages.
    large: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Timed {
    Never,
    /// At one CPU.
    Once,
    /// At each number of CPUs.
    Scaled,
}

const ZERO_FILL: Of = &[("what", "zero-fill fault")];

/// A `Thing` in which `$n` processes map one file.
macro_rules! sharing {
    ($n:literal) => {
        Thing {
            experiment: "sharing",
            command: concat!("sharing --sharers ", $n, " --megabytes 16"),
            lines: &[
                ("attach_last", &[("what", "last attach, a page"), ("processes", $n)]),
                ("take_away", &[("what", "take away, a mapping"), ("processes", $n)]),
                ("exit", &[("what", "exit, a process"), ("processes", $n)]),
            ],
            other: &[(
                "kernel_bytes",
                "kernel_bytes",
                "bytes/page",
                &[("what", "kernel memory, a mapping"), ("processes", $n)],
            )],
            times: &[],
            counted: true,
            timed: Timed::Never,
            large: false,
        }
    };
}

/// All programs that run in guests.
#[rustfmt::skip] // A thing a paragraph.
const THINGS: &[Thing] = &[
    Thing {
        experiment: CALIBRATION, command: "calibrate --seconds {seconds}",
        lines: &[("spin", &[("what", "spin")]), ("memset_page", &[("what", "memset of a page")]),
                 ("system_call", &[("what", "system call")]), ("pipe_byte", &[("what", "byte through a pipe")])],
        other: &[], times: &[], counted: true, timed: Timed::Once, large: true,
    },
    Thing {
        experiment: "zero-fill", command: "zerofill --megabytes 16 --seconds {seconds} --processes {cpus}",
        lines: &[("zerofill", &[("what", "first touch, in a row"), ("as", "processes")])],
        other: &[], times: &[], counted: true, timed: Timed::Scaled, large: true,
    },
    Thing {
        experiment: "zero-fill", command: "zerofill --megabytes 16 --seconds {seconds} --threads {cpus}",
        lines: &[("zerofill", &[("what", "first touch, in a row"), ("as", "threads")])],
        other: &[], times: &[], counted: false, timed: Timed::Scaled, large: true,
    },
    Thing {
        experiment: "zero-fill", command: "zerofill --backward 1 --megabytes 16 --seconds {seconds} --processes {cpus}",
        lines: &[("zerofill", &[("what", "zero-fill fault"), ("as", "processes")])],
        other: &[], times: &[], counted: true, timed: Timed::Scaled, large: false,
    },
    Thing {
        experiment: "zero-fill", command: "micro --seconds {seconds} --only file_ --processes {cpus}",
        lines: &[("file_read_fault", &[("what", "read fault, shared file"), ("as", "processes")]),
                 ("file_write_fault", &[("what", "write fault, shared file"), ("as", "processes")])],
        other: &[], times: &[], counted: true, timed: Timed::Scaled, large: false,
    },
    Thing {
        experiment: "exec-fork", command: "forkexec --seconds {seconds} --processes {cpus}",
        lines: &[("fork_exit", &[("what", "fork + exit")]), ("fork_64MiB_exit", &[("what", "fork of 64 MiB + exit")]),
                 ("fork_1GiB_mapped_exit", &[("what", "fork of 1 GiB with 100 pages + exit")]),
                 ("fork_exec_static", &[("what", "fork + exec, static")]),
                     ("vfork_exec_static", &[("what", "vfork + exec, static")]),
                 ("fork_exec_dynamic", &[("what", "fork + exec, dynamic")]),
                     ("vfork_exec_dynamic", &[("what", "vfork + exec, dynamic")])],
        other: &[], times: &[], counted: true, timed: Timed::Scaled, large: true,
    },
    Thing {
        experiment: "exec-fork", command: "forkexec --seconds {seconds} --copies 1 --only vfork --processes {cpus}",
        lines: &[("vfork_exec_static", &[("what", "vfork + exec, static copies")]),
            ("vfork_exec_dynamic", &[("what", "vfork + exec, dynamic copies")])],
        other: &[], times: &[], counted: false, timed: Timed::Scaled, large: false,
    },
    sharing!("10"),
    sharing!("100"),
    sharing!("1000"),
    Thing {
        experiment: "chains", command: "cowchain --seconds {seconds} --processes {cpus}",
        lines: &[("cowchain_gone", &[("what", "chain, parents gone")]),
            ("cowchain_kept", &[("what", "chain, parents alive")]),
                 ("cowchain_siblings", &[("what", "children of one parent")])],
        other: &[("cowchain_gone_memory", "memory", "ratio", &[("what", "chain, parents gone")]),
                 ("cowchain_kept_memory", "memory", "ratio", &[("what", "chain, parents alive")])],
        times: &[], counted: true, timed: Timed::Scaled, large: true,
    },
    Thing {
        experiment: "chains", command: "micro --seconds {seconds} --only cow_fault --processes {cpus}",
        lines: &[("cow_fault", &[("what", "copy-on-write fault")])],
        other: &[], times: &[], counted: true, timed: Timed::Scaled, large: true,
    },
    Thing {
        experiment: "queues", command: "zerofill --backward 1 --megabytes 16 --seconds {seconds} --processes {cpus}",
        lines: &[("zerofill", ZERO_FILL)],
        // No timed run, because the experiment `zero-fill` already has the rates of this program.
        other: &[], times: &[], counted: true, timed: Timed::Never, large: false,
    },
    Thing {
        experiment: "map", command: "mapper --mappings 20000 --seconds 0",
        lines: &[("mapper_equal_create", &[("what", "create")]), ("mapper_equal_touch", &[("what", "touch")]),
                 ("mapper_equal_protect", &[("what", "protect")]), ("mapper_equal_remove", &[("what", "remove")]),
                 ("mapper_mixed_create", &[("what", "create, mixed")]),
                     ("mapper_mixed_remove", &[("what", "remove, mixed")]),
                 ("mapper_fragmented", &[("what", "munmap + mmap in a hole")])],
        other: &[], times: &[], counted: true, timed: Timed::Once, large: false,
    },
    Thing {
        experiment: "map", command: "micro --seconds {seconds} --only m --threads {cpus}",
        lines: &[("mmap_munmap", &[("what", "mmap + munmap")]), ("mmap_touch_munmap",
            &[("what", "mmap + touch + munmap")]),
                 ("mprotect_16_pages", &[("what", "mprotect of 16 pages")])],
        other: &[], times: &[], counted: true, timed: Timed::Scaled, large: false,
    },
    Thing {
        experiment: "processes", command: "sleepers --sleepers 100 --seconds {seconds}",
        lines: &[("create", &[("what", "create"), ("processes", "100")]),
            ("wake", &[("what", "timed sleep and wake-up"), ("processes", "100")]),
                 ("kill", &[("what", "kill"), ("processes", "100")])],
        // The program's memory is not measured, because the kernel's other memory would be a large part of it for 100
        // processes.
        other: &[], times: &[], counted: true, timed: Timed::Never, large: false,
    },
    Thing {
        experiment: "processes", command: "sleepers --sleepers 1000 --seconds {seconds}",
        lines: &[("create", &[("what", "create"), ("processes", "1000")]),
            ("wake", &[("what", "timed sleep and wake-up"), ("processes", "1000")]),
                 ("kill", &[("what", "kill"), ("processes", "1000")])],
        other: &[("memory", "memory", "bytes/process", &[("what", "asleep"), ("processes", "1000")]),
                 ("kernel_memory", "kernel_memory", "bytes/process", &[("what", "asleep"), ("processes", "1000")])],
        times: &[("wake_interrupts", "interrupts", "interrupts/wake-up",
            &[("what", "timed sleep and wake-up"), ("processes", "1000")])],
        counted: true, timed: Timed::Scaled, large: false,
    },
    Thing {
        experiment: "processes", command: "sleepers --sleepers 4000 --period 10 --seconds {seconds}",
        lines: &[("create", &[("what", "create"), ("processes", "4000")]),
            ("wake", &[("what", "timed sleep and wake-up"), ("processes", "4000")]),
                 ("kill", &[("what", "kill"), ("processes", "4000")])],
        other: &[],
        times: &[("memory", "memory", "bytes/process", &[("what", "asleep"), ("processes", "4000")]),
                 ("kernel_memory", "kernel_memory", "bytes/process", &[("what", "asleep"), ("processes", "4000")]),
                 ("wake_interrupts", "interrupts", "interrupts/wake-up",
                     &[("what", "timed sleep and wake-up"), ("processes", "4000")])],
        counted: false, timed: Timed::Scaled, large: false,
    },
    Thing {
        experiment: "processes", command: "micro --seconds {seconds} --only thread_create_join --threads {cpus}",
        lines: &[("thread_create_join", &[("what", "thread create + join")])],
        other: &[], times: &[], counted: true, timed: Timed::Scaled, large: false,
    },
    Thing {
        experiment: "ranges", command: "remap --seconds {seconds} --processes {cpus}",
        lines: &[("remap", &[("what", "munmap + mmap + write")])],
        other: &[], times: &[], counted: true, timed: Timed::Scaled, large: false,
    },
    Thing {
        experiment: "ranges", command: "remap --residents 100 --seconds {seconds}",
        lines: &[
            ("remap_1MiB", &[("what", "munmap + mmap + write, 100 pages"), ("size", "1")]),
            ("remap_64MiB", &[("what", "munmap + mmap + write, 100 pages"), ("size", "64")]),
            ("remap_4GiB", &[("what", "munmap + mmap + write, 100 pages"), ("size", "4096")]),
            ("remap_64GiB", &[("what", "munmap + mmap + write, 100 pages"), ("size", "65536")]),
            ("remap_1TiB", &[("what", "munmap + mmap + write, 100 pages"), ("size", "1048576")]),
        ],
        other: &[], times: &[], counted: true, timed: Timed::Never, large: false,
    },
    Thing {
        experiment: "ranges", command: "sparse --seconds {seconds}",
        lines: &[
            ("unmap_1MiB", &[("what", "unmap, 100 pages"), ("size", "1")]),
            ("truncate_1MiB", &[("what", "truncate, 100 pages"), ("size", "1")]),
            ("unmap_64MiB", &[("what", "unmap, 100 pages"), ("size", "64")]),
            ("truncate_64MiB", &[("what", "truncate, 100 pages"), ("size", "64")]),
            ("unmap_4GiB", &[("what", "unmap, 100 pages"), ("size", "4096")]),
            ("truncate_4GiB", &[("what", "truncate, 100 pages"), ("size", "4096")]),
            ("unmap_64GiB", &[("what", "unmap, 100 pages"), ("size", "65536")]),
            ("truncate_64GiB", &[("what", "truncate, 100 pages"), ("size", "65536")]),
            ("unmap_1TiB", &[("what", "unmap, 100 pages"), ("size", "1048576")]),
            ("truncate_1TiB", &[("what", "truncate, 100 pages"), ("size", "1048576")]),
        ],
        other: &[], times: &[], counted: true, timed: Timed::Never, large: false,
    },
    Thing {
        experiment: BUILD, command: "build --builds {builds} --goal {goal} --per-cpu 1",
        lines: &[],
        other: &[
            ("build_first_instructions", "instructions", "million", &[("what", "first build"), ("jobs", "1 a CPU")]),
            ("build_later_instructions", "instructions", "million", &[("what", "later builds"), ("jobs", "1 a CPU")]),
        ],
        times: &[
            ("build_first_wall", "wall", "s", &[("what", "first build"), ("jobs", "1 a CPU")]),
            ("build_first_user", "user", "s", &[("what", "first build"), ("jobs", "1 a CPU")]),
            ("build_first_system", "system", "s", &[("what", "first build"), ("jobs", "1 a CPU")]),
            ("build_first_system_share", "system_share", "%", &[("what", "first build"), ("jobs", "1 a CPU")]),
            ("build_later_wall", "wall", "s", &[("what", "later builds"), ("jobs", "1 a CPU")]),
            ("build_later_user", "user", "s", &[("what", "later builds"), ("jobs", "1 a CPU")]),
            ("build_later_system", "system", "s", &[("what", "later builds"), ("jobs", "1 a CPU")]),
            ("build_later_system_share", "system_share", "%", &[("what", "later builds"), ("jobs", "1 a CPU")]),
        ],
        counted: true, timed: Timed::Scaled, large: true,
    },
    Thing {
        experiment: BUILD, command: "build --builds {builds} --goal {goal} --per-cpu 2",
        lines: &[],
        other: &[],
        times: &[
            ("build_first_wall", "wall", "s", &[("what", "first build"), ("jobs", "2 a CPU")]),
            ("build_first_user", "user", "s", &[("what", "first build"), ("jobs", "2 a CPU")]),
            ("build_first_system", "system", "s", &[("what", "first build"), ("jobs", "2 a CPU")]),
            ("build_first_system_share", "system_share", "%", &[("what", "first build"), ("jobs", "2 a CPU")]),
            ("build_later_wall", "wall", "s", &[("what", "later builds"), ("jobs", "2 a CPU")]),
            ("build_later_user", "user", "s", &[("what", "later builds"), ("jobs", "2 a CPU")]),
            ("build_later_system", "system", "s", &[("what", "later builds"), ("jobs", "2 a CPU")]),
            ("build_later_system_share", "system_share", "%", &[("what", "later builds"), ("jobs", "2 a CPU")]),
        ],
        counted: false, timed: Timed::Scaled, large: false,
    },
];

/// A figure that compares Quire and Linux. It is shown beside a claim of a source.
struct Counterpart {
    experiment: &'static str,
    /// The parameters that distinguish the claim from the other claims of the experiment.
    claim: Of,
    /// The measure of an operation that both kernels do, in guests that count instructions.
    measure: &'static str,
    of: Of,
}

/// For claims of sources, the figure of a guest that measures a similar operation. A claim has no such figure if no
/// program in a guest can do the operation alone. For example, a program cannot exercise only a run queue.
#[rustfmt::skip] // A table.
const READINGS: &[Counterpart] = &[
    Counterpart { experiment: "zero-fill", claim: &[("what", "threads")], measure: "instructions",
        of: &[("what", "zero-fill fault"), ("as", "processes")] },
    Counterpart { experiment: "exec-fork", claim: &[("what", "exec-dynamic")], measure: "instructions",
        of: &[("what", "fork + exec, dynamic")] },
    Counterpart { experiment: "sharing", claim: &[], measure: "kernel_bytes",
        of: &[("what", "kernel memory, a mapping"), ("processes", "100")] },
    // In the claim's measurement a second child lives, and in the guest's a parent. Either keeps the lower objects of
    // the shadow chain in use.
    Counterpart { experiment: "chains", claim: &[("leaving", "two")], measure: "instructions",
        of: &[("what", "chain, parents alive")] },
    Counterpart { experiment: "queues", claim: &[("cpus", "64")], measure: "instructions", of: ZERO_FILL },
    Counterpart { experiment: "map", claim: &[("sizes", "mixed")], measure: "instructions",
        of: &[("what", "create, mixed")] },
    Counterpart { experiment: "processes", claim: &[("what", "sleep")], measure: "instructions",
        of: &[("what", "timed sleep and wake-up"), ("processes", "1000")] },
    Counterpart { experiment: "ranges", claim: &[("what", "remap")], measure: "instructions",
        of: &[("what", "munmap + mmap + write, 100 pages"), ("size", "4096")] },
];

impl Counterpart {
    /// Whether this is the counterpart of `claim` in the experiment of that name.
    fn fits(&self, experiment: &str, claim: &Claim) -> bool {
        self.experiment == experiment && parameters(self.claim).iter().all(|(k, v)| claim.parameters.get(k) == Some(v))
    }
}

/// A case that is not yet in the plan.
pub struct Planned {
    experiment: &'static str,
    case: Case,
    cpus: u32,
    /// The machine of `tests/servers` whose script gives the figures; `None` for a program of `programs/`.
    machine: Option<&'static str>,
    /// The command line for the guest's shell.
    command: String,
    /// For each measure, the name of the output line that has its value.
    lines: BTreeMap<String, String>,
    seconds: f64,
}

/// One boot: the side, the machine, and the commands that the boot runs.
pub struct Boot {
    side: Side,
    place: Place,
    cpus: u32,
    memory: u64,
    machine: Option<&'static str>,
    commands: Vec<(String, Vec<Taken>)>,
}

/// A case, and for each of its measures the name of the output line that has the value.
struct Taken {
    at: CaseId,
    lines: BTreeMap<String, String>,
}

/// Converts parameters. A text that parses as a number becomes a number.
fn parameters(of: &[(&str, &str)]) -> BTreeMap<String, Parameter> {
    let value = |text: &str| text.parse::<f64>().map_or_else(|_| Parameter::Text(text.to_owned()), Parameter::Number);
    of.iter().map(|(name, text)| ((*name).to_owned(), value(text))).collect()
}

/// All cases that run in guests.
pub fn cases(mode: Mode, cpus: &[u32], linux: bool) -> Vec<Planned> {
    let mut all = Vec::new();
    for thing in THINGS {
        // Thousands of processes take minutes on a Linux that counts instructions. The four objects of a quick run are
        // too few for more jobs than CPUs.
        let long = ["--sleepers 4000", "--sharers 1000", "--per-cpu 2"];
        if mode == Mode::Quick && long.iter().any(|l| thing.command.contains(l)) {
            continue;
        }
        let sides = [Side::Ours, Side::Linux, Side::LinuxLarge];
        for side in sides.into_iter().filter(|s| match s {
            Side::Linux => linux,
            Side::LinuxLarge => linux && thing.large,
            _ => true,
        }) {
            if thing.counted {
                planned(thing, side, Place::GuestCounted, 1, mode, &mut all);
            }
            let counts: &[u32] = match thing.timed {
                // Timed runs would need two more boots, three times each. In a quick run, the counts alone show the
                // effect of large pages.
                _ if mode == Mode::Quick && side == Side::LinuxLarge => &[],
                Timed::Never => &[],
                Timed::Once => &[1],
                Timed::Scaled => cpus,
            };
            // Two jobs on one CPU take minutes and show little, so `--per-cpu 2` needs two CPUs.
            let least = if thing.command.contains("--per-cpu 2") { 2 } else { 1 };
            for &n in counts.iter().filter(|n| (least..=MOST_CPUS).contains(*n)) {
                planned(thing, side, Place::Guest, n, mode, &mut all);
            }
        }
    }
    let most = cpus.iter().copied().filter(|n| *n <= MOST_CPUS).max().unwrap_or(1);
    for server in SERVERS {
        for side in [Side::Ours, Side::Linux].into_iter().filter(|side| *side == Side::Ours || linux) {
            all.extend(server.cases().map(|(parameters, measures)| {
                let mut parameters = self::parameters(parameters);
                parameters.insert("cpus".to_owned(), most.into());
                let figure = |f: &servers::Figure| Measure {
                    unit: f.unit.to_owned(),
                    kind: Kind::Time,
                    better: f.better,
                    samples: Vec::new(),
                };
                Planned {
                    experiment: server.experiment,
                    case: Case {
                        side,
                        place: Place::Guest,
                        parameters,
                        command: format!("./quire lab {}", server.experiment),
                        measures: measures.iter().map(|f| (f.measure.to_owned(), figure(f))).collect(),
                        trouble: None,
                    },
                    cpus: most,
                    machine: Some(server.machine),
                    command: servers::command(server.machine),
                    lines: measures.iter().map(|f| (f.measure.to_owned(), f.line.to_owned())).collect(),
                    seconds: server.seconds,
                }
            }));
        }
    }
    all
}

/// The smallest set of cases: each program once on Quire with one CPU. Its instructions are counted where possible.
pub fn smallest(cpus: &[u32]) -> Vec<Planned> {
    let mut all = cases(Mode::Quick, cpus, false);
    let counted: Vec<String> =
        all.iter().filter(|p| p.case.place == Place::GuestCounted).map(|p| p.command.clone()).collect();
    all.retain(|p| {
        let again = counted.contains(&format!("{} --count", p.command));
        p.case.place == Place::GuestCounted || p.cpus == 1 && !again || p.machine.is_some()
    });
    all
}

fn planned(thing: &Thing, side: Side, place: Place, cpus: u32, mode: Mode, all: &mut Vec<Planned>) {
    let counted = place == Place::GuestCounted;
    let each: f64 = match (mode, counted) {
        // Seconds of the guest's clock, which advances with the instructions.
        (Mode::Quick, true) => 0.02,
        (Mode::Full, true) => 0.1,
        (Mode::Quick, false) => 0.1,
        (Mode::Full, false) => 0.5,
    };
    // A build of the whole project takes minutes in an emulator, so a quick run builds few objects.
    let (goal, builds) = if mode == Mode::Full { ("posix".to_owned(), "3") } else { (QUICK_GOALS.join(","), "2") };
    let mut command = thing.command.replace("{seconds}", &each.to_string()).replace("{cpus}", &cpus.to_string());
    command = command.replace("{goal}", &goal).replace("{builds}", builds);
    let (memory, build) = (memory(&command, cpus), thing.experiment == BUILD);
    if counted {
        command += " --count";
    }
    let first = all.len();
    let how = if counted { "--count".to_owned() } else { format!("--cpus {cpus}") };
    let mut add = |of: &[(&str, &str)], line: String, measure: &str, unit: &str, kind, better| {
        let mut parameters = parameters(of);
        parameters.insert("cpus".to_owned(), cpus.into());
        if build && mode == Mode::Quick {
            parameters.insert("objects".to_owned(), (QUICK_GOALS.len() as u32).into());
        }
        let figure = Measure { unit: unit.to_owned(), kind, better, samples: Vec::new() };
        let line = (measure.to_owned(), line);
        // Several output lines may belong to one case, so a line may add a measure to an earlier case.
        let same = |p: &&mut Planned| p.command == command && p.case.parameters == parameters;
        if let Some(planned) = all[first..].iter_mut().find(same) {
            planned.case.measures.insert(measure.to_owned(), figure);
            planned.lines.extend([line]);
            return;
        }
        let case = Case {
            side,
            place,
            parameters,
            command: format!("./quire compare {how} --memory {memory}M -- {command}"),
            measures: BTreeMap::from([(measure.to_owned(), figure)]),
            trouble: None,
        };
        all.push(Planned {
            experiment: thing.experiment,
            case,
            cpus,
            machine: None,
            command: command.clone(),
            lines: BTreeMap::from([line]),
            seconds: if build { build_seconds(mode, place, cpus) } else { each.max(0.1) * 2.0 },
        });
    };
    for (line, of) in thing.lines {
        if counted {
            add(of, format!("{line}_instructions"), "instructions", "instructions/op", Kind::Count, Better::Less);
        } else {
            add(of, format!("{line}_rate"), "rate", "op/s", Kind::Time, Better::More);
        }
    }
    let (printed, kind) = if counted { (thing.other, Kind::Count) } else { (thing.times, Kind::Time) };
    for (line, measure, unit, of) in printed {
        add(of, (*line).to_owned(), measure, unit, kind, Better::Less);
    }
}

/// Adds to each claim its counterpart ([`READINGS`]), and to each experiment the plots of the guests' figures.
pub fn claims(experiments: &mut [Experiment]) {
    for experiment in experiments {
        for claim in &mut experiment.claims {
            let counterpart = READINGS.iter().find(|c| c.fits(&experiment.name, claim));
            claim.linux = counterpart.map(|c| Reading {
                measure: c.measure.to_owned(),
                place: Place::GuestCounted,
                parameters: parameters(c.of),
            });
        }
        experiment.plots.extend(plots(&experiment.name));
    }
}

fn plots(experiment: &str) -> Vec<Plot> {
    let things = || THINGS.iter().filter(|t| t.experiment == experiment);
    let plot = |title: &str, shape, place, measure: &str, across: &str, split: Option<&str>, log_across| Plot {
        title: title.to_owned(),
        shape,
        places: vec![place],
        only: BTreeMap::new(),
        measure: measure.to_owned(),
        across: across.to_owned(),
        split: split.map(str::to_owned),
        log_across,
        log_up: true,
    };
    let mut plots = Vec::new();
    // Programs that run with several sizes or numbers of processes get curves beside the bars.
    let grows = |t: &Thing| t.lines.iter().any(|(_, of)| of.iter().any(|(k, _)| ["size", "processes"].contains(k)));
    if things().any(|t| t.counted) {
        let title = if experiment == BUILD {
            "Instructions a build, in a guest"
        } else {
            "Instructions an operation, in a guest"
        };
        plots.push(plot(title, Drawn::Bars, Place::GuestCounted, "instructions", "what", None, false));
    }
    if let Some(grown) = things().find(|t| grows(t)) {
        let by = if grown.experiment == "ranges" { "size" } else { "processes" };
        let title = format!(
            "Instructions an operation, by {}",
            if by == "size" { "the file's size in MiB" } else { "how many processes there are" }
        );
        plots.push(plot(&title, Drawn::Curves, Place::GuestCounted, "instructions", by, Some("what"), true));
    }
    if things().any(|t| t.timed == Timed::Scaled) {
        let (title, measure) = match experiment {
            BUILD => ("Seconds a build, in a guest", "wall"),
            _ => ("Operations a second, in a guest", "rate"),
        };
        plots.push(plot(title, Drawn::Curves, Place::Guest, measure, "cpus", Some("what"), true));
    }
    plots
}

/// Adds the cases to their experiments, and returns the boots that measure them.
pub fn boots(mode: Mode, planned: Vec<Planned>, experiments: &mut [Experiment]) -> Vec<Counted> {
    let mut boots: Vec<Counted> = Vec::new();
    for p in planned {
        let Some(experiment) = experiments.iter().position(|e| e.name == p.experiment) else { continue };
        let (side, place) = (p.case.side, p.case.place);
        // A round of the experiment `build` is several builds already, and takes minutes in a full run.
        let most = match (mode, p.experiment, place) {
            // The instructions of a build are the same in each round.
            (_, BUILD, Place::GuestCounted) => 1,
            (_, BUILD, _) => BUILD_ROUNDS,
            _ if p.machine.is_some() => servers::ROUNDS,
            _ => u32::MAX,
        };
        let rounds = plan::rounds(mode, place, &p.case).min(most);
        let at = CaseId { experiment, case: experiments[experiment].cases.len() };
        experiments[experiment].cases.push(p.case);
        // The memory of a server's guest is in the server's files, not in the plan.
        let memory = if p.machine.is_some() { 0 } else { memory(&p.command, p.cpus) };
        let of = (side, place, p.cpus, memory, p.machine);
        let fits =
            |b: &Counted| matches!(&b.what, Job::Guest(b) if (b.side, b.place, b.cpus, b.memory, b.machine) == of);
        let index = boots.iter().position(fits).unwrap_or_else(|| {
            boots.push(Counted {
                what: Job::Guest(Boot { side, place, cpus: p.cpus, memory, machine: p.machine, commands: Vec::new() }),
                rounds,
                seconds: if side == Side::Ours { BOOT.0 } else { BOOT.1 },
                cases: Vec::new(),
            });
            boots.len() - 1
        });
        let counted = &mut boots[index];
        counted.seconds += p.seconds;
        counted.cases.push(at);
        let Job::Guest(boot) = &mut counted.what else { continue };
        let taken = Taken { at, lines: p.lines };
        match boot.commands.iter_mut().find(|(c, _)| *c == p.command) {
            Some((_, all)) => all.push(taken),
            None => boot.commands.push((p.command, vec![taken])),
        }
    }
    boots
}

impl Boot {
    /// The boot's name in the output for people.
    pub fn name(&self) -> String {
        let how =
            if self.place == Place::GuestCounted { ", counted".to_owned() } else { format!(", {} CPU(s)", self.cpus) };
        let of = self.machine.map_or(String::new(), |machine| format!(" with {machine}"));
        format!("{} in a guest{of}{how}", self.side.title())
    }

    /// The given cases, grouped by the command that measures them.
    pub fn apart(&self, cases: &[CaseId]) -> Vec<Vec<CaseId>> {
        let of = |all: &[Taken]| all.iter().map(|t| t.at).filter(|at| cases.contains(at)).collect::<Vec<_>>();
        self.commands.iter().map(|(_, all)| of(all)).filter(|cases| !cases.is_empty()).collect()
    }

    /// The server's machine of `tests/servers`; `None` if the boot runs programs of `programs/`.
    pub fn machine(&self) -> Option<&'static str> {
        self.machine
    }

    /// The indices of the commands that measure these cases.
    fn needed(&self, cases: &[CaseId]) -> Vec<usize> {
        let gives = |number: &usize| self.commands[*number].1.iter().any(|t| cases.contains(&t.at));
        (0..self.commands.len()).filter(gives).collect()
    }
}

/// The two kernels, and the files of their guests.
pub struct Guests {
    ours: Option<Kernel>,
    linux: Option<Kernel>,
    tree: Tree,
    /// The tree with a compiler and with sources to build.
    compiler: Option<Tree>,
    order: Order,
    servers: servers::Machines,
    random: RefCell<fastrand::Rng>,
}

impl Guests {
    /// Builds and fetches the kernels and files that the plan needs.
    pub fn ready(places: &Places, plan: &Plan) -> Result<Self> {
        let needs =
            |linux: bool| plan.jobs.iter().any(|j| matches!(&j.what, Job::Guest(b) if (b.side != Side::Ours) == linux));
        let guest = cli::Guest::of(1, MEMORY.1);
        let prepare = |program: &str| run::prepare(places, &guest, &[program.into(), "/script".into()], false);
        let (mut tree, mut order) = prepare("sh")?;
        order.cwd = "/programs".into();
        let all = programs::all(places)?;
        programs::install(&mut tree, &all)?;
        let builds = |j: &Counted| matches!(&j.what, Job::Guest(b) if b.memory == MEMORY.1);
        let mut compiler = plan.jobs.iter().any(builds).then(|| prepare("build")).transpose()?.map(|(tree, _)| tree);
        compiler.iter_mut().try_for_each(|tree| programs::install(tree, &all))?;
        Ok(Self {
            ours: needs(false).then(|| Kernel::ready(places, On::Quire)).transpose()?,
            linux: needs(true).then(|| Kernel::ready(places, On::Linux)).transpose().map_err(without)?,
            tree,
            compiler,
            order,
            servers: servers::Machines::ready(places, plan)?,
            random: RefCell::new(fastrand::Rng::new()),
        })
    }

    /// Does one boot with the commands that these cases need, in a random order.
    pub fn run(&self, boot: &Boot, cases: &[CaseId]) -> Result<Vec<CaseValues>> {
        if let Some(machine) = boot.machine {
            return self.serve(boot, machine, cases);
        }
        let mut order = boot.needed(cases);
        self.random.borrow_mut().shuffle(&mut order);
        let with_compiler = self.compiler.as_ref().filter(|_| boot.memory == MEMORY.1);
        let mut tree = with_compiler.unwrap_or(&self.tree).clone();
        tree.file("/script", 0o500, script(boot, &order))?;
        if boot.side != Side::Ours {
            // Linux still does work of its own right after boot. Its first program waits this number of seconds.
            tree.file("/.quire/settle", 0o400, "2\n")?;
        }
        let counted = boot.place == Place::GuestCounted;
        let append = if boot.side == Side::LinuxLarge { "transparent_hugepage=always" } else { "" };
        let shape = Shape {
            cpus: boot.cpus,
            memory: boot.memory,
            count: counted,
            append: append.to_owned(),
            ..Shape::default()
        };
        let kernel = if boot.side == Side::Ours { &self.ours } else { &self.linux };
        let Some(kernel) = kernel else { return Ok(Vec::new()) };
        let (text, errors, ended) = once(kernel, &tree, &self.order, &shape)?;
        let said = parts(&text);
        let lost = |why: String| {
            let last = errors.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or_default();
            if last.is_empty() { why } else { format!("{why}: {last}") }
        };
        let mut found = Vec::new();
        for (number, (_, all)) in boot.commands.iter().enumerate() {
            for taken in all.iter().filter(|t| cases.contains(&t.at)) {
                let values = match said.get(&number) {
                    Some((lines, Some(0))) => values(lines, &taken.lines),
                    Some((_, Some(status))) => Err(lost(format!("the program ended with {status}"))),
                    _ => Err(lost(format!("the machine ended before this case: {ended}"))),
                };
                found.push(CaseValues { at: taken.at, values });
            }
        }
        Ok(found)
    }
}

impl Guests {
    /// Does one boot of a server's machine.
    fn serve(&self, boot: &Boot, machine: &str, cases: &[CaseId]) -> Result<Vec<CaseValues>> {
        let kernel = if boot.side == Side::Ours { &self.ours } else { &self.linux };
        let Some((kernel, machine)) = kernel.as_ref().zip(self.servers.get(machine)) else { return Ok(Vec::new()) };
        let shape = Shape { cpus: boot.cpus, memory: machine.memory, ..Shape::default() };
        let (text, errors, ended) = once(kernel, &machine.tree, &machine.order, &shape)?;
        let figures = servers::figures(&text, &errors, &ended);
        let taken = boot.commands.iter().flat_map(|(_, all)| all).filter(|t| cases.contains(&t.at));
        let of = |t: &Taken| figures.clone().and_then(|figures| values(&figures, &t.lines));
        Ok(taken.map(|t| CaseValues { at: t.at, values: of(t) }).collect())
    }
}

/// Adds a hint to the message of a failure to get Linux: `--no-linux` measures the other sides.
fn without(linux: Failure) -> Failure {
    Failure { message: format!("{linux}; --no-linux measures without it"), ..linux }
}

/// The script of the guest's shell.
fn script(boot: &Boot, order: &[usize]) -> String {
    let mut text = "#!/bin/sh\n".to_owned();
    if boot.side != Side::Ours {
        text += "echo 4000000 >/proc/sys/vm/max_map_count\n";
        let pages = if boot.side == Side::LinuxLarge { "always" } else { "never" };
        text += &format!(
            "read large </sys/kernel/mm/transparent_hugepage/enabled\n\
             case $large in *\\[{pages}\\]*) ;; *) echo large pages: $large >&2; exit 3 ;; esac\n"
        );
    }
    for &number in order {
        text += &format!("echo @{number}\n/programs/{}\necho @@{number} $?\n", boot.commands[number].0);
    }
    text
}

/// The output of each command by its index, and the command's exit status if it ended.
fn parts(text: &str) -> BTreeMap<usize, (String, Option<i32>)> {
    let mut parts: BTreeMap<usize, (String, Option<i32>)> = BTreeMap::new();
    let mut at = None;
    for line in text.lines() {
        if let Some(end) = line.strip_prefix("@@") {
            let ended = end.split_once(' ').and_then(|(n, s)| Some((n.parse().ok()?, s.parse().ok()?)));
            if let Some((number, status)) = ended
                && let Some(part) = parts.get_mut(&number)
            {
                part.1 = Some(status);
            }
            at = None;
        } else if let Some(begin) = line.strip_prefix('@') {
            at = begin.parse().ok();
            at.map(|n| parts.insert(n, Default::default()));
        } else if let Some(part) = at.and_then(|n| parts.get_mut(&n)) {
            part.0.push_str(line);
            part.0.push('\n');
        }
    }
    parts
}

/// The value of each measure, read from the output line of its name.
fn values(text: &str, lines: &BTreeMap<String, String>) -> Result<BTreeMap<String, f64>, String> {
    let printed: BTreeMap<String, f64> = compare::parse(text).into_iter().map(|l| (l.name, l.value)).collect();
    let value = |line: &String| printed.get(line).copied().ok_or_else(|| format!("the program did not print {line}"));
    lines.iter().map(|(measure, line)| Ok((measure.clone(), value(line)?))).collect()
}

/// Does one boot. Returns the output, the error output, and how the machine ended in words.
fn once(kernel: &Kernel, tree: &Tree, order: &Order, shape: &Shape) -> Result<(String, String, String)> {
    let image = kernel.image(tree.clone(), order)?;
    let GuestOutput { report, output, errors } = kernel.kept(&image, shape, LIMIT)?;
    let ended = match report.outcome {
        Outcome::Exit(status) => format!("the script ended with {status}"),
        Outcome::Signal(n) => format!("signal {n} killed the script"),
        other => {
            let last = run::last_lines(&report.log_tail, 2);
            format!("{} {}", other.to_failure().message, last.replace('\n', " "))
        }
    };
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    Ok((text(output), text(errors), ended))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::lab::table;
    use quire_results::Results;

    /// The calibration experiment, to be filled with its guest cases.
    pub(in crate::lab) fn calibration() -> Experiment {
        Experiment { name: CALIBRATION.to_owned(), ..table::tests::experiment(Vec::new()) }
    }

    #[test]
    fn each_command_has_its_own_lines_and_status() {
        let parts = parts("@1\na 1 x\n@@1 0\nnoise\n@0\nb 2 y\n");
        assert_eq!(parts[&1], ("a 1 x\n".to_owned(), Some(0)));
        assert_eq!(parts[&0], ("b 2 y\n".to_owned(), None), "the machine ended before it did");
        let lines = BTreeMap::from([("rate".to_owned(), "a".to_owned())]);
        assert_eq!(values(&parts[&1].0, &lines).unwrap()["rate"], 1.0);
        assert!(values(&parts[&0].0, &lines).is_err());
    }

    #[test]
    fn a_boot_serves_all_cases_of_its_side_and_each_has_one_place() {
        let mut experiments = vec![calibration()];
        let boots = boots(Mode::Quick, cases(Mode::Quick, &[1, 2], true), &mut experiments);
        // Quire and Linux, each counted and timed, and Linux with large pages, counted only.
        assert_eq!(boots.len(), 5);
        let mut places: Vec<CaseId> = boots.iter().flat_map(|b| b.cases.clone()).collect();
        places.sort();
        places.dedup();
        assert_eq!((places.len(), experiments[0].cases.len()), (20, 20));
        let mut ids: Vec<String> = experiments[0].cases.iter().map(Case::id).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 20);
    }

    #[test]
    fn a_boot_runs_the_programs_of_its_cases() {
        let mut experiments = vec![calibration()];
        let boots = boots(Mode::Quick, cases(Mode::Quick, &[1], false), &mut experiments);
        let Job::Guest(boot) = &boots[0].what else { panic!("no boot") };
        assert_eq!((boot.needed(&boots[0].cases), boot.needed(&[])), (vec![0], vec![]));
        // For all experiments: `apart` splits the cases by program and loses none.
        let mut all: Vec<Experiment> =
            THINGS.iter().map(|t| Experiment { name: t.experiment.into(), ..calibration() }).collect();
        all.dedup_by(|a, b| a.name == b.name);
        let boots = super::boots(Mode::Quick, cases(Mode::Quick, &[1], true), &mut all);
        for counted in &boots {
            let Job::Guest(boot) = &counted.what else { panic!("no boot") };
            let (apart, mut cases) = (boot.apart(&counted.cases), counted.cases.clone());
            assert_eq!(apart.len(), boot.commands.len());
            let mut again = apart.concat();
            again.sort();
            cases.sort();
            assert_eq!(again, cases);
            assert_eq!(boot.apart(&cases[..1]), [cases[..1].to_vec()]);
        }
    }

    #[test]
    fn memory_suffices_for_each_cpu_and_decides_on_the_compiler() {
        assert_eq!((memory("remap", 1), memory("remap", 4), memory("remap", 16)), (1024, 1024, 16 * MEMORY_A_CPU));
        assert!((1..=MOST_CPUS).all(|cpus| memory("build", cpus) == MEMORY.1 && memory("remap", cpus) != MEMORY.1));
    }

    #[test]
    fn without_linux_there_is_a_way() {
        let failure = without(Failure::usage("apt lists no Linux kernel"));
        assert_eq!((failure.status, failure.message.contains("kernel; --no-linux")), (2, true));
    }

    #[test]
    fn a_quick_build_has_enough_for_two_jobs_and_one_manner_each() {
        for mode in [Mode::Quick, Mode::Full] {
            let all: Vec<Planned> = cases(mode, &[1, 2], true).into_iter().filter(|p| p.experiment == BUILD).collect();
            let twice = all.iter().any(|p| p.command.contains("--per-cpu 2"));
            assert_eq!(twice, mode == Mode::Full);
            let goals =
                |p: &Planned| p.command.split(' ').skip_while(|w| *w != "--goal").nth(1).unwrap().split(',').count();
            assert!(mode == Mode::Full || all.iter().all(|p| goals(p) == QUICK_GOALS.len()));
            assert!(all.iter().all(|p| p.case.parameters.contains_key("objects") == (mode == Mode::Quick)));
        }
    }

    #[test]
    fn programs_and_readings_exist() {
        let programs = Places::find().root.join("programs");
        let all = cases(Mode::Full, &[1, 2], true);
        for thing in THINGS {
            let name = thing.command.split(' ').next().unwrap();
            assert!(programs.join(format!("{name}.c")).exists(), "{name}");
        }
        for reading in READINGS {
            let of = parameters(reading.of);
            let fits = |p: &&Planned| {
                p.experiment == reading.experiment
                    && p.case.place == Place::GuestCounted
                    && p.case.measures.contains_key(reading.measure)
                    && of.iter().all(|(k, v)| p.case.parameters.get(k) == Some(v))
            };
            let linux = all.iter().filter(fits).filter(|p| p.case.side == Side::Linux).count();
            assert_eq!(linux, 1, "{}", reading.experiment);
        }
    }

    #[test]
    fn each_claim_has_a_counterpart_except_those_without_a_guest() {
        let kept = super::super::status::newest(&Places::find(), "-quick.json").unwrap();
        let mut experiments = Results::read(&kept).unwrap().runs.remove(0).experiments;
        for reading in READINGS {
            let of = experiments.iter().find(|e| e.name == reading.experiment).unwrap();
            let beside = of.claims.iter().filter(|c| reading.fits(&of.name, c)).count();
            assert_eq!(beside, 1, "{}: one claim has this counterpart", reading.experiment);
        }
        claims(&mut experiments);
        let of = |experiment: &str, what: &str| -> Vec<Option<String>> {
            let claims = &experiments.iter().find(|e| e.name == experiment).unwrap().claims;
            let fits = claims.iter().filter(|c| c.parameters.get("what") == Some(&what.into()));
            fits.map(|c| c.linux.as_ref().map(|r| r.parameters["what"].to_string())).collect()
        };
        assert_eq!(of("processes", "queue"), [None]);
        assert_eq!(of("processes", "sleep"), [Some("timed sleep and wake-up".to_owned())]);
        assert_eq!(of("queues", "faults"), [Some("zero-fill fault".to_owned()), None]);
    }

    #[test]
    fn no_two_cases_of_an_experiment_are_the_same() {
        let mut ids: Vec<String> =
            cases(Mode::Quick, &[1, 2], true).iter().map(|p| format!("{} {}", p.experiment, p.case.id())).collect();
        let all = ids.len();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), all);
    }
}
