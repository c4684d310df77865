//! Results as the lab could write them. They have all nine experiments, every side and every shape of plot. One case
//! has trouble, and one side is missing.

use std::collections::BTreeMap;

use fastrand::Rng;
use quire_report::Beside;
use quire_results::{
    Better, Case, Claim, Experiment, Kind, Machine, Measure, Mode, Parameter, Place, Plot, Reading, Results, Run,
    Shape, Side, Source, VERSION,
    conflicts::{Conflicts, Line, Named, Pair, Sharing},
    profile::Profile,
};

type Parameters = Vec<(&'static str, Parameter)>;

const CPUS: [f64; 9] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// The results of one run on one machine. Another seed stands for another machine.
pub fn results(seed: u64) -> Results {
    let mut make = Make { random: Rng::with_seed(seed), pace: 1.0 + (seed % 5) as f64 * 0.3 };
    let experiments = vec![
        make.zero_fill(),
        make.exec_fork(),
        make.sharing(),
        make.chains(),
        make.queues(),
        make.map(),
        make.processes(),
        make.ranges(),
        make.build(),
    ];
    let versions =
        [("Quire", "beb3ca2"), ("rustc", "1.95.0"), ("Linux", "6.12.94+deb13-cloud-amd64"), ("QEMU", "7.2.22")];
    let machine = Machine {
        processor: ["Intel Xeon Platinum 8481C @ 2.70GHz", "AMD EPYC 9B14"][seed as usize % 2].to_owned(),
        cpus: 2 + 14 * (seed as u32 % 2),
        memory_mib: 24_033,
        system: "Debian GNU/Linux 12 (bookworm), Linux 6.1.0-32-cloud-amd64".to_owned(),
        emulator: "QEMU 7.2.22, TCG".to_owned(),
        versions: versions.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
    };
    let run = Run {
        machine,
        began: "2026-11-22T16:04:11Z".to_owned(),
        seconds: 561.0,
        complete: true,
        remark: (seed == 2).then(|| "The host did other work beside: rates are lower than they might be.".to_owned()),
        mode: Mode::Quick,
        seed,
        experiments,
    };
    Results { schema: VERSION, runs: vec![run] }
}

struct Make {
    random: Rng,
    pace: f64,
}

impl Make {
    /// A timed measure with `samples` random samples around `middle`.
    fn time(&mut self, middle: f64, unit: &str, better: Better, samples: usize) -> Measure {
        let pace = if better == Better::More { self.pace } else { 1.0 / self.pace };
        let samples = (0..samples)
            .map(|_| {
                let noise: f64 = (0..4).map(|_| self.random.f64() - 0.5).sum::<f64>() * 0.06;
                middle * pace * (1.0 + noise + if self.random.u8(..20) == 0 { 0.15 } else { 0.0 })
            })
            .collect();
        Measure { unit: unit.to_owned(), kind: Kind::Time, better, samples }
    }

    fn zero_fill(&mut self) -> Experiment {
        let mut e = experiment(
            "zero-fill",
            Source::S0,
            "Zero-fill faults",
            "Threads of one process and processes of one thread touch fresh pages, on one CPU to all. Rates stand beside the rate at \
             which the same CPUs only zero the same frames; the recording build counts cache lines that move between CPUs, up to 256 of them.",
        );
        for what in ["threads", "processes"] {
            for cpus in [1.0, 2.0] {
                for (side, rate) in [(Side::Before, 1.05e6), (Side::Ours, 2.9e6), (Side::Limit, 3.3e6)] {
                    let scale = if side == Side::Before { 1.0 + (cpus - 1.0) * 0.35 } else { cpus * 0.98 };
                    let measure = self.time(rate * scale, "faults/s", Better::More, 9);
                    e.cases.push(case(
                        side,
                        Place::Hosted,
                        vec![("cpus", cpus.into()), ("what", what.into())],
                        "rate",
                        measure,
                    ));
                }
                for (side, rate) in [(Side::Ours, 212e3), (Side::Linux, 114e3), (Side::LinuxLarge, 482e3)] {
                    let measure = self.time(rate * (1.0 + (cpus - 1.0) * 0.75), "faults/s", Better::More, 5);
                    e.cases.push(case(
                        side,
                        Place::Guest,
                        vec![("cpus", cpus.into()), ("what", what.into())],
                        "rate",
                        measure,
                    ));
                }
            }
            for cpus in CPUS {
                for (side, lines) in [(Side::Before, 4.2), (Side::Ours, 0.0)] {
                    let lines = if cpus == 1.0 {
                        0.0
                    } else {
                        lines + if side == Side::Ours { 0.014 } else { cpus.log2() * 0.4 }
                    };
                    let measure = count(lines, "lines/fault");
                    e.cases.push(case(
                        side,
                        Place::Recording,
                        vec![("cpus", cpus.into()), ("what", what.into())],
                        "transfers",
                        measure,
                    ));
                }
            }
            for (side, instructions) in [(Side::Ours, 1410.0), (Side::Linux, 3860.0), (Side::LinuxLarge, 590.0)] {
                let measure = count(instructions, "instructions/fault");
                e.cases.push(case(
                    side,
                    Place::GuestCounted,
                    vec![("cpus", 1.0.into()), ("what", what.into())],
                    "instructions",
                    measure,
                ));
            }
        }
        e.plots.push(
            plot(
                "Cache lines that move for a fault",
                Shape::Curves,
                Place::Recording,
                "transfers",
                "cpus",
                Some("what"),
            )
            .logs(true, true),
        );
        e.plots.push(plot("Faults a second", Shape::Curves, Place::Hosted, "rate", "cpus", Some("what")));
        e.plots[1].places.push(Place::Guest);
        e.plots.push(plot("Instructions for a fault", Shape::Bars, Place::GuestCounted, "instructions", "what", None));
        e.claims.push(claim(
            "6.4 M zero-fill faults/s on 64 threads; 4 shared cache-line transfers a fault",
            "rate",
            Place::Hosted,
            vec![("cpus", 2.0.into()), ("what", "threads".into())],
            1.5,
            false,
        ));
        e.claims[0].linux = Some(Reading {
            measure: "instructions".to_owned(),
            place: Place::GuestCounted,
            parameters: BTreeMap::from([("what".to_owned(), "processes".into())]),
        });
        e.caveats.push("The emulator takes one lock for each of the guest's flushes: rates of two CPUs in the guest stand beside counts.".into());
        e
    }

    fn exec_fork(&mut self) -> Experiment {
        let mut e = experiment(
            "exec-fork",
            Source::S0,
            "Exec and fork",
            "A process forks and executes a program, again and again: static or dynamic, one program that all share or a copy for each.",
        );
        let rows = [
            ("fork", 842.0, 131e3, 1.9),
            ("fork, 64 MiB touched", 113.0, 7e6, 3.1),
            ("exec static", 352.0, 267e3, 2.2),
            ("exec static, copies", 341.0, 271e3, 2.1),
            ("exec dynamic", 32.0, 1.05e6, 0.93),
        ];
        for (what, rate, instructions, better) in rows {
            for (side, factor) in [(Side::Ours, better), (Side::Linux, 1.0)] {
                let mut one = case(
                    side,
                    Place::Guest,
                    vec![("what", what.into())],
                    "rate",
                    self.time(rate * factor, "/s", Better::More, 5),
                );
                if what == "exec dynamic" && side == Side::Ours {
                    one.trouble = Some("one of five rounds ended by signal 11".into());
                }
                e.cases.push(one);
                e.cases.push(case(
                    side,
                    Place::GuestCounted,
                    vec![("what", what.into())],
                    "instructions",
                    count(instructions / factor, "instructions"),
                ));
            }
        }
        e.plots.push(
            plot("Instructions", Shape::Bars, Place::GuestCounted, "instructions", "what", None).logs(false, true),
        );
        e.plots.push(plot("Programs a second", Shape::Bars, Place::Guest, "rate", "what", None));
        e.claims.push(claim(
            "45,000 shared and 450,000 static execs/s on 64 threads",
            "rate",
            Place::Guest,
            vec![("what", "exec static".into())],
            1.5,
            false,
        ));
        e
    }

    fn sharing(&mut self) -> Experiment {
        let mut e = experiment(
            "sharing",
            Source::S0,
            "Sharing one region",
            "Processes map one large region and touch all of it, as a database's do. What does the kernel keep for each page that is mapped, and what does the last one pay to attach?",
        );
        for n in [1.0, 10.0, 100.0, 1000.0, 5000.0] {
            for (side, bytes) in [(Side::Before, 48.0), (Side::Ours, 8.1), (Side::Linux, 8.0)] {
                let place = if side == Side::Linux { Place::Guest } else { Place::Hosted };
                let mut one =
                    case(side, place, vec![("processes", n.into())], "bytes", count(bytes + 64.0 / n, "bytes/page"));
                if n == 5000.0 && side == Side::Before {
                    one.measures.clear();
                    one.trouble = Some("out of memory: 5,000 processes need 19 GiB of records".into());
                } else {
                    one.measures.insert(
                        "attach".into(),
                        self.time(if side == Side::Before { 40e3 * n.powf(0.4) } else { 22e3 }, "ns", Better::Less, 7),
                    );
                }
                e.cases.push(one);
            }
            let mut ours =
                case(Side::Ours, Place::Guest, vec![("processes", n.into())], "bytes", count(8.05, "bytes/page"));
            ours.measures.insert("attach".into(), self.time(19e3, "ns", Better::Less, 7));
            e.cases.push(ours);
        }
        e.plots.push(
            plot("Kernel memory for a mapped page", Shape::Curves, Place::Hosted, "bytes", "processes", None)
                .logs(true, false),
        );
        e.plots.push(
            plot("The last one attaches", Shape::Curves, Place::Hosted, "attach", "processes", None).logs(true, true),
        );
        e
    }

    fn chains(&mut self) -> Experiment {
        let mut e = experiment(
            "chains",
            Source::S0,
            "Chains of forks",
            "Each generation forks the next, writes a little and leaves. What is kept beyond what anybody can still reach?",
        );
        for n in [1.0f64, 5.0, 10.0, 20.0, 50.0, 100.0] {
            for shadows in ["destroyed", "kept"] {
                let bytes = 64.0 * 1048576.0 + if shadows == "kept" { n * 3.1e6 } else { n.min(5.0) * 2.2e5 };
                e.cases.push(case(
                    Side::Ours,
                    Place::Hosted,
                    vec![("generations", n.into()), ("shadowed", shadows.into())],
                    "memory",
                    count(bytes, "bytes"),
                ));
                e.cases.push(case(
                    Side::Before,
                    Place::Hosted,
                    vec![("generations", n.into()), ("shadowed", shadows.into())],
                    "memory",
                    count(bytes + n * 1.2e6, "bytes"),
                ));
            }
        }
        e.plots.push(plot(
            "Memory after the parents are gone",
            Shape::Curves,
            Place::Hosted,
            "memory",
            "generations",
            Some("shadowed"),
        ));
        e
    }

    fn queues(&mut self) -> Experiment {
        let mut e = experiment(
            "queues",
            Source::S1,
            "Fanned-out page queues",
            "The active and inactive queues have 1 to 1,024 parts, each with its own lock; threads fault as fast as they can.",
        );
        for parts in [1.0, 4.0, 16.0, 64.0, 256.0, 1024.0] {
            for (side, transfers) in
                [(Side::Before, 7.5), (Side::After, 7.5 / parts + 0.4), (Side::Ours, 0.3 / parts + 0.012)]
            {
                e.cases.push(case(
                    side,
                    Place::Recording,
                    vec![("parts", parts.into())],
                    "transfers",
                    count(transfers, "lines/fault"),
                ));
                let rate = 1.3e6 * (1.0 + (8.0 - transfers).max(0.0) / 6.0);
                e.cases.push(case(
                    side,
                    Place::Hosted,
                    vec![("parts", parts.into())],
                    "rate",
                    self.time(rate, "faults/s", Better::More, 9),
                ));
            }
        }
        e.plots.push(
            plot("Cache lines that move for a fault", Shape::Curves, Place::Recording, "transfers", "parts", None)
                .logs(true, true),
        );
        e.plots.push(
            plot("Faults a second, two threads", Shape::Curves, Place::Hosted, "rate", "parts", None).logs(true, false),
        );
        e.claims.push(claim(
            "200 to 250 thousand → 900 thousand zero-fill faults/s on 48 cores",
            "transfers",
            Place::Recording,
            vec![("parts", 256.0.into())],
            3.0,
            true,
        ));
        e
    }

    fn map(&mut self) -> Experiment {
        let mut e = experiment(
            "map",
            Source::S2,
            "The map's tree",
            "Mappings with gaps between them, all alike or mixed, are made, looked up and removed in random order.",
        );
        for entries in [1e3, 1e4, 1e5, 1e6] {
            for (op, cost) in [("insert", 260.0), ("lookup", 90.0), ("remove", 240.0), ("find space", 180.0)] {
                for (side, factor) in [
                    (Side::Before, 1.18),
                    (Side::After, 1.1),
                    (Side::Ours, if op == "lookup" { 0.62 } else { 1.08 }),
                    (Side::Plain, 0.81),
                ] {
                    let grown = cost * factor * (1.0 + (entries / 1e3_f64).log10() * 0.6);
                    let p = || vec![("entries", Parameter::from(entries)), ("operation", Parameter::from(op))];
                    let mut one = case(side, Place::Hosted, p(), "time", self.time(grown, "ns", Better::Less, 9));
                    one.measures.insert("nodes".into(), count((entries.log2() * factor * 1.2).round(), "nodes"));
                    e.cases.push(one);
                    e.cases.push(case(side, Place::Cachegrind, p(), "misses", count(grown * 0.021, "misses")));
                }
            }
        }
        e.plots.push(plot(
            "Against the best of the others, by time",
            Shape::Matrix,
            Place::Hosted,
            "time",
            "entries",
            Some("operation"),
        ));
        e.plots.push(
            plot("Time of an insertion", Shape::Curves, Place::Hosted, "time", "entries", None)
                .logs(true, false)
                .only("operation", "insert"),
        );
        e.plots.push(
            plot(
                "Cache misses of an operation, a million entries",
                Shape::Bars,
                Place::Cachegrind,
                "misses",
                "operation",
                None,
            )
            .only("entries", 1e6),
        );
        e.claims.push(claim(
            "data-cache misses 10 to 14 % fewer, time 5 to 7 % less",
            "misses",
            Place::Cachegrind,
            vec![("entries", 1e6.into()), ("operation", "insert".into())],
            1.1,
            true,
        ));
        e
    }

    fn processes(&mut self) -> Experiment {
        let mut e = experiment(
            "processes",
            Source::S3,
            "Very many processes",
            "Processes sleep on a futex with a timeout and wake; then all of them are killed at once.",
        );
        for n in [1e3, 1e4, 1e5, 4e5] {
            for (side, cost) in [(Side::Before, 900.0 + n * 0.011), (Side::Ours, 610.0)] {
                e.cases.push(case(
                    side,
                    Place::Hosted,
                    vec![("processes", n.into())],
                    "wake",
                    self.time(cost, "ns", Better::Less, 31),
                ));
            }
        }
        e.cases.push(case(
            Side::Ours,
            Place::Guest,
            vec![("processes", 5e3.into())],
            "wake",
            self.time(31e3, "ns", Better::Less, 1),
        ));
        e.cases.push(case(
            Side::Linux,
            Place::Guest,
            vec![("processes", 5e3.into())],
            "wake",
            self.time(70e3, "ns", Better::Less, 1),
        ));
        e.plots.push(
            plot("A timed sleep and its end", Shape::Curves, Place::Hosted, "wake", "processes", None).logs(true, true),
        );
        e.plots.push(
            plot("How the wake-ups spread", Shape::Distribution, Place::Hosted, "wake", "processes", None)
                .logs(false, true),
        );
        e.claims.push(claim(
            "400,000 live processes, each waking from a timed futex sleep; all killed in seconds",
            "wake",
            Place::Hosted,
            vec![("processes", 4e5.into())],
            2.0,
            false,
        ));
        e
    }

    fn ranges(&mut self) -> Experiment {
        let mut e = experiment(
            "ranges",
            Source::S4,
            "Ranges of pages",
            "A file is mapped, written once and unmapped for every write, while it grows from a MiB to a TiB with equally many pages in memory.",
        );
        for size in 0..=5 {
            let mib = 16f64.powi(size);
            for (side, cost) in
                [(Side::Before, 4e3 + mib * 90.0), (Side::After, 4.4e3), (Side::Ours, 2.1e3), (Side::Linux, 5.2e3)]
            {
                let place = if side == Side::Linux { Place::Guest } else { Place::Hosted };
                e.cases.push(case(
                    side,
                    place,
                    vec![("size", (mib * 1048576.0).into())],
                    "remap",
                    self.time(cost, "ns", Better::Less, 9),
                ));
                if side == Side::Ours {
                    e.cases.push(case(
                        side,
                        Place::Guest,
                        vec![("size", (mib * 1048576.0).into())],
                        "remap",
                        self.time(2.6e3, "ns", Better::Less, 9),
                    ));
                }
            }
        }
        e.plots.push(plot("One write", Shape::Curves, Place::Hosted, "remap", "size", None).logs(true, true));
        e.plots[0].places.push(Place::Guest);
        e.claims.push(claim(
            "system time of a build with 32 jobs 15 % less; a mapping for each write of a large file becomes cheap",
            "remap",
            Place::Hosted,
            vec![("size", (65536.0 * 1048576.0).into())],
            10.0,
            true,
        ));
        e
    }

    fn build(&mut self) -> Experiment {
        let mut e = experiment(
            "build",
            Source::All,
            "A build",
            "make -jN of a C project with Debian's compiler on tmpfs, three times in one boot, the first apart from the others.",
        );
        for jobs in [2.0, 4.0] {
            for (side, wall, system) in
                [(Side::Ours, 41.0, 7.9), (Side::Linux, 39.5, 9.9), (Side::LinuxLarge, 38.7, 8.8)]
            {
                let mut one = case(
                    side,
                    Place::Guest,
                    vec![("jobs", jobs.into())],
                    "wall",
                    self.time(wall, "s", Better::Less, 6),
                );
                one.measures.insert("system".into(), self.time(system, "s", Better::Less, 6));
                e.cases.push(one);
            }
        }
        e.plots.push(plot("Wall time", Shape::Bars, Place::Guest, "wall", "jobs", None));
        e.plots.push(plot("System time, every round", Shape::Distribution, Place::Guest, "system", "jobs", None));
        e.caveats.push("The first build of a boot reads the compiler from the image; it is left out here.".into());
        e
    }
}

fn count(value: f64, unit: &str) -> Measure {
    Measure { unit: unit.to_owned(), kind: Kind::Count, better: Better::Less, samples: vec![value; 2] }
}

fn case(side: Side, place: Place, parameters: Parameters, name: &str, measure: Measure) -> Case {
    Case {
        side,
        place,
        parameters: parameters.into_iter().map(|(k, v)| (k.to_owned(), v)).collect(),
        command: "quire-lab case".to_owned(),
        measures: BTreeMap::from([(name.to_owned(), measure)]),
        trouble: None,
    }
}

fn experiment(name: &str, source: Source, title: &str, about: &str) -> Experiment {
    Experiment {
        seconds: 40.0,
        name: name.to_owned(),
        source,
        title: title.to_owned(),
        about: about.to_owned(),
        caveats: Vec::new(),
        command: format!("./quire lab {name}"),
        claims: Vec::new(),
        plots: Vec::new(),
        cases: Vec::new(),
    }
}

fn claim(headline: &str, measure: &str, place: Place, parameters: Parameters, least: f64, reproduces: bool) -> Claim {
    let parameters = parameters.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
    Claim {
        headline: headline.to_owned(),
        measure: measure.to_owned(),
        place,
        parameters,
        least,
        reproduces,
        linux: None,
    }
}

fn plot(title: &str, shape: Shape, place: Place, measure: &str, across: &str, split: Option<&str>) -> Plot {
    Plot {
        title: title.to_owned(),
        shape,
        places: vec![place],
        only: BTreeMap::new(),
        measure: measure.to_owned(),
        across: across.to_owned(),
        split: split.map(str::to_owned),
        log_across: across == "cpus",
        log_up: false,
    }
}

/// Changes that the fixture's plots make to the plain plot.
trait Adapted {
    fn logs(self, across: bool, up: bool) -> Self;
    fn only(self, name: &str, value: impl Into<Parameter>) -> Self;
}

impl Adapted for Plot {
    fn logs(mut self, across: bool, up: bool) -> Self {
        (self.log_across, self.log_up) = (across, up);
        self
    }

    fn only(mut self, name: &str, value: impl Into<Parameter>) -> Self {
        self.only.insert(name.to_owned(), value.into());
        self
    }
}

/// A matrix with one pair of each verdict, and a profile of three functions.
pub fn beside() -> Beside {
    let named = |name: &str| Named { name: name.to_owned(), about: format!("about {name}") };
    let pair = |a: &str, b: &str, verdict, lines, shared: &[Line]| Pair {
        a: a.to_owned(),
        b: b.to_owned(),
        state: "threads".to_owned(),
        verdict,
        lines,
        shared: shared.to_vec(),
    };
    let line = |label: &str, every, reason: Option<&str>| Line {
        label: label.to_owned(),
        by: "map.rs".to_owned(),
        rounds: 3,
        lines: 1,
        every,
        reason: reason.map(str::to_owned),
    };
    let mut machine = results(1).runs.remove(0).machine;
    machine.versions.insert("Quire".to_owned(), "cafe".to_owned());
    let conflicts = Conflicts {
        schema: VERSION,
        machine: Some(machine.clone()),
        ended: "2026-11-26T00:00:00Z".to_owned(),
        command: "./quire conflicts".to_owned(),
        rounds: 64,
        operations: ["fork", "exit", "mmap"].map(named).into(),
        states: vec![named("threads")],
        cases: vec![
            pair("fork", "fork", Sharing::Free, 0, &[]),
            pair("fork", "exit", Sharing::Listed, 3, &[line("space", None, Some("a fork copies <the> map"))]),
            pair("fork", "mmap", Sharing::Amortised, 1, &[line("vm", Some(12), Some("the epoch"))]),
            pair("exit", "exit", Sharing::Wrong, 2, &[line("", None, None)]),
        ],
    };
    let stacks = BTreeMap::from([
        (vec!["quire_lab::run"], 10),
        (vec!["quire_lab::run", "quire_vm::fault<'a>"], 50),
        (vec!["quire_lab::run", "quire_vm::fault<'a>", "quire_vm::zero"], 40),
    ]);
    let (functions, stacks) = Profile::number(&stacks);
    let profile = Profile {
        schema: VERSION,
        machine,
        ended: "2026-11-26T00:00:00Z".to_owned(),
        command: "./quire profile --hosted 10 -- zero_fill".to_owned(),
        operation: "zero_fill".to_owned(),
        place: Place::Cachegrind,
        count: Some(10),
        functions,
        stacks,
    };
    Beside { kept: Results::merge([]), conflicts: Some(conflicts), profile: Some(profile) }
}
