//! `./quire compare`: runs one program on Quire and on Debian's Linux alternately, in the same QEMU with the same
//! files. The command prints the resources that the program used, and the figures that the program printed, side by
//! side. In the guest, `xtask/guest/measure.c` starts the program and measures it.

mod table;
pub mod used;

use std::{
    collections::BTreeMap,
    hash::{BuildHasher as _, RandomState},
    io::Write as _,
    os::fd::AsRawFd,
    path::PathBuf,
    time::{Duration, Instant},
};

use serde::Serialize;

use crate::{
    boot::{Kernel, On, Shape},
    cli,
    conflicts::build_plugin,
    failure::{Doing, Failure, Result},
    image::{order::Order, tree::Tree},
    machine::{
        accel::Accelerator,
        boot_words,
        outcome::Outcome,
        qemu,
        relay::{GuestOutput, Report, content},
    },
    places::Places,
    programs,
    progress::Step,
    run,
};
use table::{Row, table};
use used::{End, RESOURCES, SplitErrors, Used};

/// The time limit of one run on one side, without `--timeout`.
const LIMIT: Duration = Duration::from_secs(1200);
/// The path of the measuring program in the guest.
pub const MEASURE: &str = "/.quire/measure";
/// The time in milliseconds between two samples of memory while the program runs. A sample takes some tenths of a
/// millisecond in the emulator.
const LOOK_MS: u32 = 50;

/// The least time in milliseconds at which a program's time is meaningful in the emulator. In a shorter run, most of
/// the time is the translation of the program's and the kernel's code. The side whose boot took longer has already
/// translated more of its kernel.
const SHORT_MS: f64 = 200.0;

/// A line that the program printed: `name value unit`.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
pub struct Line {
    /// The name of the figure.
    pub name: String,
    /// The figure's value.
    pub value: f64,
    /// The figure's unit.
    pub unit: String,
}

/// A program, ready to run on either side.
struct Job<'a> {
    tree: Tree,
    order: Order,
    shape: Shape,
    /// The emulator's plugin; `None` if no instructions are counted.
    plugin: Option<PathBuf>,
    options: &'a cli::Compare,
}

/// The results of one run on one side.
#[derive(Debug, Serialize)]
struct Run {
    kernel: String,
    /// The resources that the program used.
    used: Used,
    /// The figures that the program printed.
    lines: Vec<Line>,
}

/// All figures, in the format for other tools (docs/commands.md, "Results as JSON").
#[derive(Serialize)]
struct Json<'a> {
    version: u32,
    command: Vec<String>,
    kernels: [&'a str; 2],
    cpus: u32,
    memory_mib: u64,
    accelerator: String,
    counted: bool,
    seed: u64,
    /// The runs, in the order in which they were made.
    runs: &'a [Run],
    resources: &'a [Row],
    lines: &'a [Row],
}

/// Runs both sides and prints the table.
pub fn command(places: &Places, options: &cli::Compare) -> Result<u8> {
    if options.count && options.guest.cpus > 1 {
        return Err(Failure::usage("--count needs one CPU; leave out --cpus"));
    }
    boot_words::check_for_both(&options.append)?;
    let (mut tree, order) = run::prepare(places, &options.guest, &options.program, false)?;
    // Linux is busy with its own work right after boot, so its first program waits this number of seconds.
    tree.file("/.quire/settle", 0o400, "2\n")?;
    let sides = [Kernel::ready(places, On::Quire)?, Kernel::ready(places, On::Linux)?];
    let shape = Shape {
        cpus: options.guest.cpus,
        memory: options.guest.memory,
        count: options.count,
        append: options.append.clone(),
        ..Shape::default()
    };
    let limit = options.guest.timeout.unwrap_or(LIMIT);
    let step = Step::new("comparing");
    if options.same {
        let [ours, theirs] = sides.each_ref().map(|kernel| {
            step.doing(&kernel.name);
            let text = success(boot(kernel, &tree, &order, &shape, limit)?, kernel)?;
            Ok::<_, Failure>(String::from_utf8_lossy(&text).into_owned())
        });
        let (ours, theirs) = (ours?, theirs?);
        drop(step);
        return Ok(match difference(&ours, &theirs) {
            None => {
                println!("{} and {} printed the same {} lines", sides[0].name, sides[1].name, ours.lines().count());
                0
            }
            Some((line, [ours, theirs])) => {
                println!("line {line} differs\n{}: {ours}\n{}: {theirs}", sides[0].name, sides[1].name);
                1
            }
        });
    }
    tree.host_file(MEASURE, &programs::compile(places, &places.root.join("xtask/guest/measure.c"))?)?;
    let plugin = if options.count { Some(build_plugin(places)?) } else { None };
    let mut job = Job { tree, order, shape, plugin, options };
    let seed = options.seed.unwrap_or_else(|| RandomState::new().hash_one(()) & 0xffff);
    // The sides alternate. The seed decides which side is first.
    let all_runs = |job: &Job<'_>, runs: &mut Vec<Run>, most: u32| {
        for n in runs.len() as u32..most {
            let kernel = &sides[((u64::from(n) + seed) % 2) as usize];
            step.doing(&format!("run {} of {}, {}", n / 2 + 1, options.repeat, kernel.name));
            runs.push(job.run(kernel)?);
        }
        Ok::<_, Failure>(())
    };
    let mut runs = Vec::new();
    all_runs(&job, &mut runs, 2)?;
    let emulated = sides[0].accelerator() == Accelerator::Tcg;
    let short = emulated && !options.count && !options.time && is_short(&runs);
    if short && job.shape.cpus == 1 {
        job.shape.count = true;
        job.plugin = Some(build_plugin(places)?);
        runs.clear();
    }
    all_runs(&job, &mut runs, 2 * options.repeat)?;
    drop(step);
    let names = sides.each_ref().map(|kernel| kernel.name.as_str());
    let (resources, lines) = (resources(&runs, names), lines(&runs, names));
    if let Some(file) = &options.json {
        let everything = Json {
            version: 1,
            command: options.program.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            kernels: names,
            cpus: job.shape.cpus,
            memory_mib: job.shape.memory,
            accelerator: sides[0].accelerator().to_string(),
            counted: job.shape.count,
            seed,
            runs: &runs,
            resources: &resources,
            lines: &lines,
        };
        let about = || format!("cannot write {}", file.display());
        let text = serde_json::to_vec_pretty(&everything).map_err(std::io::Error::from).doing(about)?;
        std::fs::write(file, text).doing(about)?;
    }
    let how = if job.shape.count { ", instructions counted (8 ns of guest time each)" } else { "" };
    println!(
        "{} against {}: {} CPU(s), {} MiB, {}{how}; medians of {}, alternating, {} first (seed {seed})",
        names[0],
        names[1],
        job.shape.cpus,
        job.shape.memory,
        sides[0].accelerator(),
        options.repeat,
        names[(seed % 2) as usize],
    );
    if short {
        println!("{}", short_sentence(job.shape.count));
    }
    println!("{}", table("resource", &resources));
    if !lines.is_empty() {
        println!("\n{}", table("printed", &lines));
    }
    Ok(0)
}

/// Whether the program ran for so short a time on both sides that its time says little in the emulator.
fn is_short(runs: &[Run]) -> bool {
    runs.iter().all(|run| run.used.get("wall_time").is_some_and(|ms| *ms < SHORT_MS))
}

/// A sentence for a short program: why instructions are counted, or why its times say little.
fn short_sentence(counted: bool) -> String {
    let why = format!("The program runs for less than {SHORT_MS} ms, mostly for the emulator's translation of code");
    match counted {
        true => format!("{why}, so its instructions are counted; --time measures its time."),
        false => format!("{why}. Times say little; with one CPU its instructions would be counted."),
    }
}

/// The resources of both sides, in the order of [`RESOURCES`]. A resource without figures is left out, unless the table
/// always shows it.
fn resources(runs: &[Run], names: [&str; 2]) -> Vec<Row> {
    let of = |side: &str, name| {
        let runs = runs.iter().filter(|run| run.kernel == side);
        runs.filter_map(|run| run.used.get(name).copied()).collect()
    };
    let rows = RESOURCES.iter().map(|(name, unit, always)| {
        let [quire, linux] = names.map(|side| of(side, name));
        (Row { name: (*name).to_owned(), unit: (*unit).to_owned(), quire, linux }, *always)
    });
    rows.filter(|(row, always)| row.says_something() || *always).map(|(row, _)| row).collect()
}

/// The figures that both sides printed, in the order of their first appearance.
fn lines(runs: &[Run], names: [&str; 2]) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for run in runs {
        for line in &run.lines {
            let at = rows.iter().position(|row| row.name == line.name).unwrap_or_else(|| {
                rows.push(Row { name: line.name.clone(), unit: line.unit.clone(), ..Row::default() });
                rows.len() - 1
            });
            let row = &mut rows[at];
            if run.kernel == names[0] { row.quire.push(line.value) } else { row.linux.push(line.value) }
        }
    }
    rows
}

impl Job<'_> {
    /// Boots one side, runs the program once, and returns the measured values.
    fn run(&self, kernel: &Kernel) -> Result<Run> {
        let about = || "cannot keep the counts".to_string();
        // The tag marks the line of the measuring program. It is random, so that the program itself does not print it.
        let tag = format!("measured-{:016x}", RandomState::new().hash_one(Instant::now()));
        let look = if self.shape.count { 0 } else { LOOK_MS };
        let mut order = self.order.clone();
        order.args.splice(0..0, [MEASURE.into(), tag.clone().into(), look.to_string().into()]);
        let mut shape = self.shape.clone();
        let mut counts = None;
        if let Some(plugin) = &self.plugin {
            let file = qemu::memory_file("counts").doing(about)?;
            let fd = file.as_raw_fd();
            let words = format!("file={},profile=count,out=/proc/self/fd/{fd}", plugin.display());
            shape.extra.extend(["-plugin".into(), words.into()]);
            shape.inherit.push(fd);
            counts = Some(file);
        }
        let limit = self.options.guest.timeout.unwrap_or(LIMIT);
        let ended = boot(kernel, &self.tree, &order, &shape, limit)?;
        let split = SplitErrors::find(&ended.errors, &tag)?;
        let Some(report) = split.report else {
            return Err(match success(ended, kernel) {
                Err(failure) => failure,
                Ok(_) => Failure::machine(format_args!("on {} nothing was measured", kernel.name)),
            });
        };
        if report.end != End::Exit(0) {
            let _ = std::io::stderr().write_all(split.errors);
        }
        match report.end {
            End::Exit(0) => {}
            End::Exit(status) => {
                let message = format!("on {} the program ended with {status}", kernel.name);
                return Err(Failure { status, message });
            }
            End::Signal(n) => {
                let message = format!("on {} signal {n} killed the program", kernel.name);
                return Err(Failure { status: Outcome::Signal(n).status(), message });
            }
        }
        let counted = counts.map(|mut file| counted(&content(&mut file)?)).transpose()?;
        Ok(Run {
            kernel: kernel.name.clone(),
            used: report.used(shape.cpus, counted),
            lines: parse(&String::from_utf8_lossy(&ended.output)),
        })
    }
}

/// The plugin's counts: instructions of the kernel, and instructions of programs.
fn counted(bytes: &[u8]) -> Result<[u64; 2]> {
    let text = String::from_utf8_lossy(bytes);
    let words: Vec<&str> = text.split_whitespace().collect();
    let ["counted", kernel, programs] = words[..] else {
        return Err(Failure::machine(format_args!("the emulator's plugin wrote no count: {text:?}")));
    };
    let number = |word: &str| {
        word.parse()
            .map_err(|_| Failure::machine(format_args!("the emulator's plugin wrote {word:?}, which is not a count")))
    };
    Ok([number(kernel)?, number(programs)?])
}

/// Boots one side with the tree and runs the order.
fn boot(kernel: &Kernel, tree: &Tree, order: &Order, shape: &Shape, limit: Duration) -> Result<GuestOutput> {
    let image = kernel.image(tree.clone(), order)?;
    kernel.kept(&image, shape, limit)
}

/// The program's output, if its exit status was 0.
fn success(ended: GuestOutput, kernel: &Kernel) -> Result<Vec<u8>> {
    let Report { outcome, log_tail, .. } = ended.report;
    if outcome == Outcome::Exit(0) {
        return Ok(ended.output);
    }
    let _ = std::io::stderr().write_all(&ended.errors);
    eprint!("{}", run::last_lines(&log_tail, 20));
    Err(match outcome {
        Outcome::Exit(status) => {
            Failure { status, message: format!("on {} the program ended with {status}", kernel.name) }
        }
        Outcome::Signal(n) => {
            Failure { status: outcome.status(), message: format!("on {} signal {n} killed the program", kernel.name) }
        }
        Outcome::TimedOut => Failure::timed_out(format_args!("on {} the program exceeded its time limit", kernel.name)),
        other => Failure::machine(format_args!("on {}: {}", kernel.name, other.to_failure())),
    })
}

/// All lines of the form `name value unit`. Other lines are skipped.
pub fn parse(text: &str) -> Vec<Line> {
    let line = |l: &str| {
        let words: Vec<&str> = l.split_whitespace().collect();
        let [name, value, unit @ ..] = &words[..] else { return None };
        let value = value.parse().ok().filter(|v: &f64| v.is_finite())?;
        Some(Line { name: (*name).to_owned(), value, unit: unit.join(" ") })
    };
    let mut seen = BTreeMap::new();
    text.lines().filter_map(line).filter(|l| seen.insert(l.name.clone(), ()).is_none()).collect()
}

/// The number of the first line that differs (from 1), and both versions of the line.
fn difference<'a>(ours: &'a str, theirs: &'a str) -> Option<(usize, [&'a str; 2])> {
    let (mut ours, mut theirs) = (ours.lines(), theirs.lines());
    (1..)
        .map_while(|line| match (ours.next(), theirs.next()) {
            (None, None) => None,
            pair => Some((line, pair)),
        })
        .find(|(_, (a, b))| a != b)
        .map(|(line, (a, b))| (line, [a, b].map(|side| side.unwrap_or("(nothing)"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_lines_with_a_name_and_a_number_count() {
        let lines = parse("zerofill 1234.5 pages/s\nplain text here\nforks 3\n\nx nan u\nzerofill 9 again\n");
        let names: Vec<_> = lines.iter().map(|l| (l.name.as_str(), l.value, l.unit.as_str())).collect();
        assert_eq!(names, [("zerofill", 1234.5, "pages/s"), ("forks", 3.0, "")]);
    }

    #[test]
    fn the_first_line_that_differs_is_reported() {
        assert_eq!(difference("a\nb\n", "a\nb\n"), None);
        assert_eq!(difference("a\nb\nd", "a\nc\nd"), Some((2, ["b", "c"])));
        assert_eq!(difference("a\n", "a\nb\n"), Some((2, ["(nothing)", "b"])));
        assert_eq!(difference("", "a"), Some((1, ["(nothing)", "a"])));
    }

    fn run(kernel: &str, used: &[(&'static str, f64)], lines: &[&str]) -> Run {
        Run { kernel: kernel.into(), used: used.iter().copied().collect(), lines: parse(&lines.join("\n")) }
    }

    #[test]
    fn a_program_is_short_if_both_sides_are() {
        let of = |ms: &[f64]| ms.iter().map(|ms| run("Q", &[("wall_time", *ms)], &[])).collect::<Vec<_>>();
        assert!(is_short(&of(&[2.0, 199.0])));
        assert!(!is_short(&of(&[2.0, 200.0])) && !is_short(&[run("Q", &[], &[])]));
        assert!(short_sentence(true).contains("counted; --time") && short_sentence(false).contains("one CPU"));
    }

    #[test]
    fn rows_gather_the_runs_of_each_side_whichever_came_first() {
        let runs = [
            run("L", &[("wall_time", 2.0), ("shootdowns_received", 0.0)], &["rate 10 1/s", "only 1"]),
            run("Q", &[("wall_time", 1.0), ("faults_zero", 5.0), ("faults_copy", 0.0)], &["rate 30 1/s"]),
            run("L", &[("wall_time", 3.0)], &["rate 20 1/s"]),
        ];
        let rows = resources(&runs, ["Q", "L"]);
        assert_eq!(
            (&rows[0].name[..], &rows[0].quire[..], &rows[0].linux[..]),
            ("wall_time", &[1.0][..], &[2.0, 3.0][..])
        );
        let named = |name: &str| rows.iter().find(|row| row.name == name);
        assert_eq!(named("faults_zero").unwrap().quire, [5.0]);
        // A row without figures is left out, unless the table always shows it.
        assert_eq!(named("faults_copy"), None);
        assert_eq!(named("shootdowns_received").unwrap().linux, [0.0]);
        let lines = lines(&runs, ["Q", "L"]);
        assert_eq!(
            (&lines[0].quire[..], &lines[0].linux[..], &lines[0].unit[..]),
            (&[30.0][..], &[10.0, 20.0][..], "1/s")
        );
        assert_eq!((&lines[1].name[..], lines[1].quire.len()), ("only", 0));
    }

    #[test]
    fn the_plugins_counts_are_read_or_refused() {
        assert_eq!(counted(b"counted 12 30\n").unwrap(), [12, 30]);
        for bad in [&b""[..], b"counted 1\n", b"counted a 2\n", b"counted 1 2\ncounted 3 4\n"] {
            assert!(counted(bad).is_err());
        }
    }
}
