//! `./quire test` runs all checks in three lanes, and ends with one line that counts the results.
//!
//! A stage reports each check by its full name, and FILTER selects by a part of that name. One lane compiles and runs
//! the checks on this host. The second lane runs the checks in guests. Both run their stages in order. The third lane
//! takes stages that no lane has begun, the last stage first. A lane that has run all its own stages then takes stages
//! as the third lane does. Two lanes would leave a quarter of two processors idle, because many stages wait for one
//! thread.

mod allocation;
pub mod api;
mod atomics;
mod attack;
mod cargo;
mod clocks;
mod command;
mod contract;
mod counts;
mod cpus;
mod docs;
mod doctor;
mod embed;
mod fuzz;
mod guest;
mod kvm;
mod layers;
mod lint;
mod memory;
pub mod miri;
mod models;
mod names;
mod packages;
mod processes;
mod proofs;
mod prose;
mod races;
mod reach;
mod readme;
mod refusals;
mod safety;
mod sanitize;
mod servers;
mod session;
mod sizes;
mod suite;
mod users;
mod verdict;
mod watchdog;

use std::{
    collections::VecDeque,
    fs::{self, File},
    io::IsTerminal,
    path::PathBuf,
    sync::{Mutex, OnceLock},
    thread,
    time::{Duration, Instant},
};

use indicatif::{ProgressBar, ProgressStyle};

use crate::{
    boot::On,
    build, cli,
    failure::{Doing, Failure, Result},
    places::Places,
    progress,
};
use verdict::{Check, Outcome, Skip, summary};

/// The state that all stages share.
pub struct Context<'a> {
    /// The directories.
    pub places: &'a Places,
    filter: Option<String>,
    /// Whether this is a soak: the random tests of the memory core run ten times as long.
    pub soak: bool,
    /// The minutes that a soak of the stage `attack` lasts; `seed` is the seed of its only round, if given.
    pub minutes: u32,
    pub seed: Option<u64>,
    /// Whether the sanitizers run for long.
    pub sanitize: bool,
    /// Whether Miri runs all of its programs.
    pub miri: bool,
    logs: PathBuf,
    kernel: OnceLock<Result<PathBuf>>,
}

impl Context<'_> {
    /// Whether FILTER selects the check of this name.
    pub fn selects(&self, name: &str) -> bool {
        self.filter.as_deref().is_none_or(|f| name.contains(f))
    }

    /// Whether FILTER begins with the name of another stage. Then this stage need not compile to find out that it has
    /// no selected check.
    pub fn names_another(&self, stage: &str) -> bool {
        let Some(filter) = self.filter.as_deref() else { return false };
        let word = filter.split('/').next().unwrap_or_default();
        word != stage && HERE.iter().chain(GUESTS).any(|s| s.name == word)
    }

    /// The path of the kernel under test. It is built once and copied, so that it does not change during the tests.
    pub fn kernel(&self) -> Result<PathBuf> {
        let built = self.kernel.get_or_init(|| {
            let built = build::kernel(self.places)?;
            let kept = self.places.target.join("kernel-under-test");
            if fs::canonicalize(&built).ok() == fs::canonicalize(&kept).ok() {
                return Ok(kept);
            }
            // The rename is atomic, so that another run at the same time boots a complete kernel.
            let fresh = kept.with_extension(format!("new-{}", std::process::id()));
            fs::copy(built, &fresh)
                .and_then(|_| fs::rename(&fresh, &kept))
                .doing(|| "cannot keep the kernel".to_string())?;
            Ok(kept)
        });
        built.clone()
    }

    /// Makes a log file that is kept after the run.
    pub fn log(&self, name: &str) -> Result<File> {
        let path = self.log_path(name);
        File::create(&path).doing(|| format!("cannot make {}", path.display()))
    }

    /// The path of the log file of that name.
    pub fn log_path(&self, name: &str) -> PathBuf {
        self.logs.join(format!("{}.log", name.replace('/', "-")))
    }
}

/// A group of checks. `names` finds their names without running them; `run` runs them.
struct Stage {
    name: &'static str,
    names: fn(&Context<'_>) -> Result<Vec<String>>,
    run: fn(&Context<'_>, &mut dyn FnMut(Check)) -> Result<()>,
}

/// The stages that compile and run on this host. No stage needs the results of an earlier one.
const HERE: &[Stage] = &[
    Stage { name: "format", names: lint::format_names, run: lint::format },
    Stage { name: "layers", names: layers::names, run: layers::run },
    Stage { name: "docs", names: docs::names, run: docs::run },
    Stage { name: "prose", names: prose::names, run: prose::run },
    Stage { name: "lint", names: lint::names, run: lint::run },
    Stage { name: "unit", names: cargo::unit_names, run: cargo::unit },
    Stage { name: "doc", names: cargo::doc_names, run: cargo::doc },
    Stage { name: "model", names: cargo::model_names, run: cargo::models },
    Stage { name: "packages", names: packages::names, run: packages::run },
    Stage { name: "record", names: cargo::record_names, run: cargo::records },
    Stage { name: "proofs", names: proofs::names, run: proofs::run },
    Stage { name: "fuzz", names: fuzz::names, run: fuzz::run },
    Stage { name: "sanitize", names: sanitize::names, run: sanitize::run },
    Stage { name: "dependencies", names: lint::dependency_names, run: lint::dependencies },
    MIRI,
];

/// The stage that runs alone, and in full, with `--miri`.
const MIRI: Stage = Stage { name: "miri", names: miri::names, run: miri::run };

/// The stages that boot machines.
const GUESTS: &[Stage] = &[
    Stage { name: "guest", names: guest::names, run: |context, done| guest::run(context, On::Quire, done) },
    Stage { name: "races", names: guest::race_names, run: guest::run_races },
    Stage { name: "counts", names: counts::names, run: counts::run },
    Stage { name: "allocation", names: allocation::names, run: allocation::run },
    Stage { name: "refusals", names: refusals::names, run: refusals::run },
    Stage { name: "checked", names: guest::checked_names, run: guest::run_checked },
    Stage { name: "sizes", names: sizes::names, run: sizes::run },
    Stage { name: "command", names: command::names, run: command::run },
    Stage { name: "cpus", names: cpus::names, run: cpus::run },
    Stage { name: "memory", names: memory::names, run: memory::run },
    Stage { name: "processes", names: processes::names, run: processes::run },
    Stage { name: "servers", names: servers::names, run: servers::run },
    Stage { name: "users", names: users::names, run: users::run },
    Stage { name: "watchdog", names: watchdog::names, run: watchdog::run },
    Stage { name: "attack", names: attack::names, run: attack::run },
    Stage { name: "doctor", names: doctor::names, run: doctor::run },
    Stage { name: "kvm", names: kvm::names, run: kvm::run },
    Stage { name: "embed", names: embed::names, run: embed::run },
    Stage { name: "readme", names: readme::names, run: readme::run },
];

/// Runs the selected checks. The exit status is 1 if a check failed.
pub fn command(places: &Places, options: &cli::Test) -> Result<u8> {
    let logs = places.target.join("test-logs");
    fs::create_dir_all(&logs).doing(|| format!("cannot make {}", logs.display()))?;
    let context = Context {
        places,
        filter: options.filter.clone(),
        soak: options.soak,
        minutes: options.minutes,
        seed: options.seed,
        sanitize: options.sanitize,
        miri: options.miri,
        logs,
        kernel: OnceLock::new(),
    };
    if options.graph {
        if options.filter.as_deref() != Some("layers") {
            return Err(Failure::usage("--graph needs the filter layers: ./quire test layers --graph"));
        }
        return layers::show(places).map(|()| 0);
    }
    if options.table {
        if options.filter.as_deref() != Some("prose") {
            return Err(Failure::usage("--table needs the filter prose: ./quire test prose --table"));
        }
        return prose::show(places).map(|()| 0);
    }
    if options.list {
        let stages = || HERE.iter().chain(GUESTS);
        let names = |name: &str| match stages().find(|stage| stage.name == name) {
            Some(stage) => (stage.names)(&context),
            None => Ok(Vec::new()),
        };
        names::print(&context, stages().map(|stage| stage.name), names)?;
        return Ok(0);
    }
    progress::keeps(format!("builds are kept, and logs in {}", context.logs.display()));
    // Programs on this host must have the umask that they have in the guest, because their results are compared.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let strict = std::env::var("CI").is_ok_and(|v| v == "true" || v == "1");
    let board = Board::new(strict, options);
    let only = |name| HERE.iter().filter(|stage| stage.name == name).for_each(|stage| board.run(stage, &context));
    if options.model {
        only("model");
    } else if options.sanitize {
        only("sanitize");
    } else if options.miri {
        board.run(&MIRI, &context);
    } else if options.linux {
        board.run(&Stage { run: |context, done| guest::run(context, On::Linux, done), ..GUESTS[0] }, &context);
    } else {
        let left = [HERE, GUESTS].map(|stages| Mutex::new(stages.iter().collect::<VecDeque<_>>()));
        let first = |of: usize| left[of].lock().ok()?.pop_front();
        let last = |of: usize| left[of].lock().ok()?.pop_back();
        let lane = |next: &dyn Fn() -> Option<&'static Stage>| {
            while let Some(stage) = next() {
                board.run(stage, &context);
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| lane(&|| first(1).or_else(|| last(0))));
            scope.spawn(|| lane(&|| last(0).or_else(|| last(1))));
            lane(&|| first(0).or_else(|| last(1)));
        });
    }
    let (again, longest) = (board.again.clone(), board.longest());
    if longest.is_some() {
        let path = context.log_path("times");
        // A failed write does not end the run, because the results matter more than this list.
        if let Err(e) = fs::write(&path, board.long()) {
            eprintln!("quire: cannot write {}: {e}", path.display());
        }
    }
    let checks = board.close();
    for check in &checks {
        match &check.outcome {
            Outcome::Failed(why) => {
                let why = why.trim_end().replace('\n', "\n    ");
                println!("FAILED {}: {}\n    {why}", check.name, again.of(&check.name));
            }
            Outcome::Skipped(Skip { why, .. }) => println!("skipped {}: {why}", check.name),
            Outcome::Passed => {}
        }
    }
    if checks.is_empty() {
        eprintln!("quire: no check has a name with these words; ./quire test --list prints all names");
    }
    if let Some(longest) = longest {
        println!("{longest}");
    }
    println!("{}", summary(&checks));
    if options.model {
        let passed = checks.iter().filter(|c| c.outcome == Outcome::Passed).map(|c| c.name.as_str());
        println!("{}", models::Models::of(passed).summary());
    }
    Ok(u8::from(checks.iter().any(|c| matches!(c.outcome, Outcome::Failed(_))) || checks.is_empty()))
}

/// Makes the commands that repeat a check.
#[derive(Clone)]
struct Again {
    /// The options of this run that change its checks.
    options: String,
}

impl Again {
    fn new(options: &cli::Test) -> Self {
        let given = [
            ("--soak ", options.soak),
            ("--sanitize ", options.sanitize),
            ("--model ", options.model),
            ("--miri ", options.miri),
            ("--linux ", options.linux),
        ];
        let words: String = given.iter().filter(|(_, on)| *on).map(|(word, _)| *word).collect();
        Self { options: words + &options.seed.map(|seed| format!("--seed {seed} ")).unwrap_or_default() }
    }

    /// Returns the command for the check of this name, quoted for the shell.
    fn of(&self, name: &str) -> String {
        format!("./quire test {}'{}'", self.options, name.replace('\'', r"'\''"))
    }
}

/// Collects and shows the results of all lanes: a line for each stage, and a progress bar on a terminal.
struct Board {
    checks: Mutex<Vec<Check>>,
    /// The seconds of each stage that ran.
    times: Mutex<Vec<(&'static str, f32)>>,
    /// The seconds between two consecutive results of a stage, with the name of the second check.
    between: Mutex<Vec<(f32, String)>>,
    again: Again,
    strict: bool,
    bar: ProgressBar,
    start: Instant,
}

impl Board {
    fn new(strict: bool, options: &cli::Test) -> Self {
        let bar = if std::io::stderr().is_terminal() {
            let bar = ProgressBar::new_spinner();
            if let Ok(style) = ProgressStyle::with_template("{spinner} [{elapsed}] {pos} checks, {wide_msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(120));
            bar
        } else {
            ProgressBar::hidden()
        };
        let (checks, times, between) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { checks, times, between, again: Again::new(options), strict, bar, start: Instant::now() }
    }

    fn run(&self, stage: &Stage, context: &Context<'_>) {
        let start = Instant::now();
        let mut mine: Vec<Check> = Vec::new();
        let mut last = start;
        let result = (stage.run)(context, &mut |check| {
            let waited = last.elapsed().as_secs_f32();
            last = Instant::now();
            if let Ok(mut between) = self.between.lock() {
                between.push((waited, check.name.clone()));
            }
            let check = if self.strict { check.strict() } else { check };
            self.bar.inc(1);
            self.bar.set_message(check.name.clone());
            if let Outcome::Failed(why) = &check.outcome {
                let (first, again) = (why.lines().next().unwrap_or_default(), self.again.of(&check.name));
                self.say(&format!("FAILED {}: {first}: {again}", check.name));
            }
            mine.push(check);
        });
        if let Err(failure) = result {
            self.say(&format!("FAILED {}: {failure}: {}", stage.name, self.again.of(stage.name)));
            mine.push(Check::failed(stage.name, failure.message));
        }
        if !mine.is_empty() {
            let (took, at) = (start.elapsed().as_secs_f32(), self.start.elapsed().as_secs());
            self.say(&format!("[{at:4} s] {}: {} ({took:.1} s)", stage.name, summary(&mine)));
            if let Ok(mut times) = self.times.lock() {
                times.push((stage.name, took));
            }
        }
        if let Ok(mut all) = self.checks.lock() {
            all.append(&mut mine);
        }
    }

    /// Returns the stage that took longest, and the time of the whole run; `None` for a run of one stage.
    fn longest(&self) -> Option<String> {
        let times = self.times.lock().ok().filter(|times| times.len() > 1)?;
        let (name, took) = times.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
        Some(format!("the longest stage is {name}: {took:.0} s of {} s", self.start.elapsed().as_secs()))
    }

    /// Returns a line for each check whose result came a second or more after the previous result of its stage, the
    /// longest first. A test program reports all its results at its end, so its whole time is beside its first test.
    fn long(&self) -> String {
        let mut all = self.between.lock().map(|all| all.clone()).unwrap_or_default();
        all.retain(|(waited, _)| *waited >= 1.0);
        all.sort_by(|a, b| b.0.total_cmp(&a.0));
        all.iter().map(|(waited, name)| format!("{waited:7.1} s  {name}\n")).collect()
    }

    /// Prints a line, above the progress bar if there is one.
    fn say(&self, line: &str) {
        if self.bar.is_hidden() { eprintln!("{line}") } else { self.bar.println(line) }
    }

    fn close(self) -> Vec<Check> {
        self.bar.finish_and_clear();
        self.checks.into_inner().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_check_names_the_command_that_repeats_it() {
        let again = |options: &str| Again { options: options.to_owned() };
        assert_eq!(again("").of("guest/1cpu/shell/a b"), "./quire test 'guest/1cpu/shell/a b'");
        assert_eq!(again("--soak ").of("readme/sh 'a' b"), r"./quire test --soak 'readme/sh '\''a'\'' b'");
    }
}
