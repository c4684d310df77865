//! Runs the in-guest tests on machines, runs the same programs on this Linux as a reference, and compares the results.
//!
//! The stage `guest` counts instructions as the clock (`-icount`), and boots a machine for each test. So a result
//! depends only on the kernel and the image, not on the host's load, on the test before, or on FILTER. The stage
//! `races` runs some of the tests again, with CPUs that really run at once. It boots one machine for each number of
//! CPUs.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{Read, Seek, Write},
    os::{
        fd::AsFd,
        unix::{fs::symlink, process::CommandExt, process::ExitStatusExt},
    },
    path::PathBuf,
    process::Command,
    sync::{Arc, atomic::AtomicBool},
    time::{Duration, Instant},
};

use sha2::{Digest, Sha256};
use signal_hook::consts::{SIGINT, SIGQUIT};

use super::{
    Context, races,
    session::{self, Answer, End, Session, Trouble, complaint},
    suite::{self, Case},
    verdict::Check,
};
use crate::{
    boot::{Kernel, On, Shape, TURNS},
    build,
    failure::{Doing, Result},
    image::{order::Order, root, tree::Tree},
    machine::{outcome::Outcome, relay},
    places::Places,
    programs,
};

/// The machines, by their numbers of CPUs.
const MACHINES: [u32; 3] = [1, 2, 4];
/// The machines of a test that lists none.
const EVERY: [u32; 2] = [1, 2];
/// The machines of the stage `races`.
const RACES: [u32; 2] = [2, 4];
const MEMORY: u64 = 512;
/// The most times that one machine is started. If it dies more often, its remaining tests fail.
const MOST_BOOTS: usize = 6;
const LIMIT: Duration = Duration::from_secs(60);
/// The factor of the limit of a counted machine. Such a machine shares a core with the host's other work, so its limit
/// only ends a hanging guest.
const COUNTED_LIMIT: u32 = 5;
/// The file in the guest with the order for a counted machine.
const ORDERS: &str = "/.quire/orders";

/// A test on one machine, with its full name.
struct Placed<'a> {
    name: String,
    case: &'a Case,
}

/// The test of the q35 board, which has no ports. On that board only the log and an orderly end can be observed.
const BOARD: &str = "guest/q35/4 CPUs start, a program runs, the machine powers off";

/// The check that programs of the stage `races` read no clock.
const CLOCKLESS: &str = "races/no program of a race reads a clock";

/// The kernel on which the suite runs, and how its clock works.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Suite {
    /// The shipped kernel with a counted clock, or Linux.
    Plain(On),
    /// The self-checking kernel with a counted clock.
    Checked,
    /// The shipped kernel, with CPUs that run at once.
    Races,
}

impl Suite {
    /// The first part of its tests' names.
    fn group(self) -> &'static str {
        match self {
            Suite::Plain(_) => "guest",
            Suite::Checked => "checked",
            Suite::Races => "races",
        }
    }

    /// Whether each test has a machine of its own, with a counted clock.
    fn counts(self) -> bool {
        matches!(self, Suite::Plain(On::Quire) | Suite::Checked)
    }

    fn machines(self) -> &'static [u32] {
        if self == Suite::Races { &RACES } else { &MACHINES }
    }

    fn has(self, case: &Case, cpus: u32) -> bool {
        match self {
            Suite::Races => case.races,
            _ if case.cpus.is_empty() => EVERY.contains(&cpus),
            _ => case.cpus.contains(&cpus),
        }
    }

    /// The time that a test may take. It is longer for the self-checking kernel, which is several times slower.
    fn limit(self, case: &Case) -> Duration {
        let limit = case.seconds.map_or(LIMIT, Duration::from_secs);
        let limit = if self.counts() { limit * COUNTED_LIMIT } else { limit };
        if self == Suite::Checked { limit * 4 } else { limit }
    }
}

/// The names of all tests on all machines.
pub fn names(context: &Context<'_>) -> Result<Vec<String>> {
    let mut names = vec![BOARD.to_owned()];
    names.extend(names_in(context, Suite::Plain(On::Quire))?);
    Ok(names)
}

fn names_in(context: &Context<'_>, suite: Suite) -> Result<Vec<String>> {
    let cases = suite::load(&context.places.root.join("tests/guest"))?;
    Ok(suite.machines().iter().flat_map(|cpus| placed(&cases, suite, *cpus).into_iter().map(|p| p.name)).collect())
}

/// The names of the guest tests on the self-checking kernel, which run only in a soak.
pub fn checked_names(context: &Context<'_>) -> Result<Vec<String>> {
    if context.soak { names_in(context, Suite::Checked) } else { Ok(Vec::new()) }
}

/// Runs the tests of [`checked_names`].
pub fn run_checked(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if context.soak { run_suite(context, Suite::Checked, done) } else { Ok(()) }
}

fn placed(cases: &[(String, Case)], suite: Suite, cpus: u32) -> Vec<Placed<'_>> {
    let group = suite.group();
    let here = cases.iter().filter(|(_, case)| suite.has(case, cpus));
    here.map(|(file, case)| Placed { name: format!("{group}/{cpus}cpu/{file}/{}", case.name), case }).collect()
}

/// The names of the tests that race, and of the check of their programs.
pub fn race_names(context: &Context<'_>) -> Result<Vec<String>> {
    let mut names = vec![CLOCKLESS.to_owned()];
    names.extend(names_in(context, Suite::Races)?);
    Ok(names)
}

/// Runs the tests of [`race_names`].
pub fn run_races(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if context.selects(CLOCKLESS) {
        let found = races::find_clocks(&context.places.root)?;
        done(Check::of(CLOCKLESS, if found.is_empty() { Ok(()) } else { Err(found.join("\n")) }));
    }
    run_suite(context, Suite::Races, done)
}

/// Runs the selected tests, and passes each result to `done`.
pub fn run(context: &Context<'_>, on: On, done: &mut dyn FnMut(Check)) -> Result<()> {
    run_suite(context, Suite::Plain(on), done)
}

fn run_suite(context: &Context<'_>, suite: Suite, done: &mut dyn FnMut(Check)) -> Result<()> {
    let group = suite.group();
    let cases = suite::load(&context.places.root.join("tests/guest"))?;
    let selected = |cpus| -> Vec<Placed<'_>> {
        placed(&cases, suite, cpus).into_iter().filter(|p| context.selects(&p.name)).collect()
    };
    let board = suite == Suite::Plain(On::Quire) && context.selects(BOARD);
    if !board && suite.machines().iter().all(|cpus| selected(*cpus).is_empty()) {
        return Ok(());
    }
    let bench = Bench::prepare(context.places)?;
    let kernel = Arc::new(match suite {
        Suite::Plain(on) => Kernel::with(context.places, on, || context.kernel())?,
        Suite::Races => Kernel::with(context.places, On::Quire, || context.kernel())?,
        Suite::Checked => Kernel::with(context.places, On::Quire, || build::checked_kernel(context.places))?,
    });
    if board {
        done(Check::of(BOARD, boots_on_q35(context, &kernel)));
    }
    let mut known: BTreeMap<String, Answer> = BTreeMap::new();
    for cpus in suite.machines().iter().copied() {
        let selected = selected(cpus);
        if selected.is_empty() {
            continue;
        }
        let mut machine = if suite.counts() {
            let log = context.log(&format!("{group}-{cpus}cpu"))?;
            Machine::Counted(Counted { suite, bench: &bench, kernel: &kernel, cpus, log })
        } else {
            let image = Arc::new(bench.image(&kernel, None)?);
            Machine::Shared(Shared { context, suite, kernel: &kernel, image, cpus, boots: 0, session: None })
        };
        for placed in selected {
            let key = format!("{:?}", placed.case);
            let expected = match known.get(&key) {
                _ if placed.case.expects() => None,
                Some(answer) => Some(answer.clone()),
                None => {
                    let answer = bench.on_host(placed.case)?;
                    known.insert(key, answer.clone());
                    Some(answer)
                }
            };
            let args = bench.guest_args(placed.case);
            let answer = match &mut machine {
                Machine::Counted(machine) => machine.run(&placed.name, &args, placed.case),
                Machine::Shared(machine) => machine.run(&args, placed.case),
            };
            done(match answer {
                Ok(answer) => Check::of(placed.name, judge(placed.case, &answer, expected.as_ref())),
                Err(why) => Check::failed(placed.name, why),
            });
        }
        if let Machine::Shared(machine) = machine {
            let name = format!("{group}/{cpus}cpu/power-off");
            done(match machine.finish() {
                Some(why) => Check::failed(name, why),
                None => Check::passed(name),
            });
        }
    }
    Ok(())
}

/// Boots the q35 board with a program that ends at once.
fn boots_on_q35(context: &Context<'_>, kernel: &Kernel) -> Result<(), String> {
    let order = Order { args: vec!["/bin/true".into()], env: vec![], cwd: "/".into(), ..Order::default() };
    let image = root::tree().and_then(|tree| kernel.image(tree, &order)).map_err(|e| e.to_string())?;
    let nothing = File::options().write(true).open("/dev/null").map_err(|e| e.to_string())?;
    let shape = Shape { cpus: 4, memory: 256, q35: true, verbose: true, ..Shape::default() };
    let guest = kernel.start(&image, &shape).map_err(|e| e.to_string())?;
    let log = context.log("guest-q35").map_err(|e| e.to_string())?;
    let report = relay::unattended(guest, [nothing.as_fd(); 2], Some(log), LIMIT).map_err(|e| e.to_string())?;
    // This board has no port that reports the status, so the check requires only an orderly end.
    let orderly = matches!(&report.outcome, Outcome::Died(how) if how.contains("powered off"));
    if orderly && report.log_tail.contains("4 CPUs") && !report.log_tail.contains("damaged") {
        return Ok(());
    }
    Err(format!("{:?}; the log ends:\n{}", report.outcome, crate::run::last_lines(&report.log_tail, 12)))
}

/// The machines on which tests of a suite run.
enum Machine<'a> {
    Counted(Counted<'a>),
    Shared(Shared<'a>),
}

/// Boots one machine for each test. The machine has a counted clock, and its image contains the order for the test. So
/// the host sends nothing to the guest while it runs.
struct Counted<'a> {
    suite: Suite,
    bench: &'a Bench,
    kernel: &'a Kernel,
    cpus: u32,
    log: File,
}

impl Counted<'_> {
    fn run(&mut self, name: &str, args: &[String], case: &Case) -> Result<Answer, String> {
        let append = if self.cpus > 1 { TURNS.to_owned() } else { String::new() };
        let shape = Shape { cpus: self.cpus, memory: MEMORY, count: true, append, ..Shape::default() };
        let image = self.bench.image(self.kernel, Some(session::order(args, &case.input())));
        let guest = image.and_then(|image| self.kernel.start(&image, &shape));
        let ended = guest.and_then(|guest| session::alone(guest, self.suite.limit(case)));
        let (answer, log) = ended.map_err(|e| e.to_string())?;
        // Two runs of one kernel and one image write equal logs, so a difference between their log files is meaningful.
        let said = match &answer {
            Ok(Answer { end, stdout, stderr }) => {
                format!("{end}, output {}, errors {}", digest(stdout), digest(stderr))
            }
            Err(_) => "no answer".to_owned(),
        };
        writeln!(self.log, "== {name}: {said}\n{log}").map_err(|e| format!("the log cannot be written: {e}"))?;
        answer
    }
}

/// One machine for many tests. It is started again after a test that killed it.
struct Shared<'a> {
    context: &'a Context<'a>,
    suite: Suite,
    kernel: &'a Arc<Kernel>,
    image: Arc<File>,
    cpus: u32,
    boots: usize,
    session: Option<Session>,
}

impl Shared<'_> {
    fn run(&mut self, args: &[String], case: &Case) -> Result<Answer, String> {
        let mut session = match self.session.take() {
            Some(session) => session,
            None => self.boot()?,
        };
        let limit = self.suite.limit(case);
        match session.ask(args, &case.input(), limit) {
            Ok(answer) => {
                self.session = Some(session);
                Ok(answer)
            }
            Err(trouble) => {
                let report = session.abandon();
                let log = report.as_ref().map(|r| crate::run::last_lines(&r.log_tail, 12)).unwrap_or_default();
                Err(match (trouble, &report) {
                    (Trouble::Hung, _) => {
                        format!("the guest did not answer within {} s; the log ends:\n{log}", limit.as_secs())
                    }
                    (Trouble::Garbled(line), _) => format!("the guest answered {line:?}"),
                    (Trouble::Ended, Ok(report)) => {
                        complaint(report).unwrap_or_else(|| "the machine powered off".to_owned())
                    }
                    (Trouble::Ended, Err(failure)) => failure.to_string(),
                })
            }
        }
    }

    fn boot(&mut self) -> Result<Session, String> {
        if self.boots == MOST_BOOTS {
            return Err(format!("not run, because the machine was already started {MOST_BOOTS} times"));
        }
        self.boots += 1;
        let log = self
            .context
            .log(&format!("{}-{}cpu-boot{}", self.suite.group(), self.cpus, self.boots))
            .map_err(|e| e.to_string())?;
        // Linux has ticks of its own, so a machine with Linux can have a counted clock although many tests share it.
        // While it waits for an order, its clock may skip to a timer, which no test notices.
        let count = self.suite == Suite::Plain(On::Linux);
        let shape = Shape { cpus: self.cpus, memory: MEMORY, count, ..Shape::default() };
        Session::boot(self.kernel, &self.image, shape, log).map_err(|e| e.to_string())
    }

    /// Powers off a running machine. Returns why its end was not orderly, or `None`.
    fn finish(self) -> Option<String> {
        match self.session?.finish() {
            Ok(report) => complaint(&report),
            Err(failure) => Some(failure.to_string()),
        }
    }
}

/// The programs that run both in the guest and on this host.
struct Bench {
    busybox: PathBuf,
    /// A directory on this host that has busybox under the names of all its programs.
    names: PathBuf,
    programs: BTreeMap<String, PathBuf>,
    /// The files of the guest's root.
    tree: Tree,
}

impl Bench {
    fn prepare(places: &Places) -> Result<Self> {
        let busybox = root::busybox()?;
        let names = places.target.join("busybox");
        let about = || format!("cannot fill {}", names.display());
        let _lock = places.lock("busybox")?;
        let _ = fs::remove_dir_all(&names);
        fs::create_dir_all(&names).doing(about)?;
        for applet in root::applets(&busybox)? {
            let name = applet.rsplit('/').next().unwrap_or_default();
            symlink(&busybox, names.join(name)).doing(about)?;
        }
        // A parent in the background may have set these signals to be ignored. Programs inherit ignored signals, but
        // they do not inherit handlers. So this process installs handlers.
        for signal in [SIGINT, SIGQUIT] {
            let ends = Arc::new(AtomicBool::new(true));
            signal_hook::flag::register_conditional_default(signal, ends)
                .doing(|| "cannot catch signals".to_string())?;
        }
        let testd = programs::compile(places, &places.root.join("xtask/guest/testd.c"))?;
        let programs = programs::all(places)?;
        let mut tree = root::tree()?;
        tree.host_file("/.quire/testd", &testd)?;
        programs::install(&mut tree, &programs)?;
        Ok(Self { busybox, names: names.clone(), programs, tree })
    }

    /// Returns the image of a machine. `orders` is the order that the image contains, or `None` if the machine reads
    /// its orders from the host.
    fn image(&self, kernel: &Kernel, orders: Option<Vec<u8>>) -> Result<File> {
        let mut tree = self.tree.clone();
        let mut args = vec!["/.quire/testd".into()];
        if let Some(orders) = orders {
            tree.file(ORDERS, 0o600, orders)?;
            args.push(ORDERS.into());
        }
        let env = [format!("PATH={}", root::PATH), "HOME=/root".into(), "LC_ALL=C".into()];
        let env = env.into_iter().map(Into::into).collect();
        kernel.image(tree, &Order { args, env, cwd: "/".into(), ..Order::default() })
    }

    fn guest_args(&self, case: &Case) -> Vec<String> {
        match &case.script {
            Some(script) => ["/bin/busybox", "sh", "-c", script].map(str::to_owned).to_vec(),
            None => {
                let mut args = case.run.clone();
                if self.programs.contains_key(&args[0]) {
                    args[0] = programs::in_guest(&args[0]);
                }
                args
            }
        }
    }

    /// Runs the case on this host, in an empty directory, without this process's environment.
    fn on_host(&self, case: &Case) -> Result<Answer> {
        let about = || format!("cannot run {} on this machine", case.name);
        let place = tempfile::tempdir().doing(about)?;
        let mut input = tempfile::tempfile().doing(about)?;
        input.write_all(&case.input()).and_then(|()| input.rewind()).doing(about)?;
        let (mut out, mut err) = (tempfile::tempfile().doing(about)?, tempfile::tempfile().doing(about)?);
        let mut command = match &case.script {
            Some(script) => {
                let mut command = Command::new(&self.busybox);
                command.arg0("/bin/busybox").args(["sh", "-c", script]);
                command
            }
            None => {
                let file = self.programs.get(&case.run[0]).cloned().unwrap_or_else(|| case.run[0].clone().into());
                let mut command = Command::new(file);
                command.arg0(programs::in_guest(&case.run[0])).args(&case.run[1..]);
                command
            }
        };
        command
            .env_clear()
            .env("PATH", &self.names)
            .env("HOME", "/root")
            .env("LC_ALL", "C")
            .current_dir(place.path())
            .stdin(input)
            .stdout(out.try_clone().doing(about)?)
            .stderr(err.try_clone().doing(about)?)
            .process_group(0);
        let mut child = command.spawn().doing(about)?;
        let start = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().doing(about)? {
                break status;
            }
            if start.elapsed() > LIMIT {
                crate::machine::qemu::kill_group(&mut child);
            }
            std::thread::sleep(Duration::from_millis(2));
        };
        let read = |file: &mut File| -> std::io::Result<Vec<u8>> {
            let mut bytes = Vec::new();
            file.rewind()?;
            file.read_to_end(&mut bytes)?;
            Ok(bytes)
        };
        let end = match (status.code(), status.signal()) {
            (Some(code), _) => End::Exit(u8::try_from(code).unwrap_or(u8::MAX)),
            (None, signal) => End::Signal(signal.and_then(|s| u8::try_from(s).ok()).unwrap_or(0)),
        };
        Ok(Answer { end, stdout: read(&mut out).doing(about)?, stderr: read(&mut err).doing(about)? })
    }
}

/// Compares the answer with the case's expectations, or with the answer of this Linux.
fn judge(case: &Case, got: &Answer, expected: Option<&Answer>) -> Result<(), String> {
    let text = String::from_utf8_lossy(&got.stdout);
    let end = match (case.signal, case.status) {
        (Some(n), _) => End::Signal(n),
        (None, Some(status)) => End::Exit(status),
        (None, None) => expected.map_or(End::Exit(0), |e| e.end),
    };
    let mut wrong = Vec::new();
    if got.end != end {
        wrong.push(format!("ended with {} instead of {end}", got.end));
    }
    if let Some(e) = expected {
        wrong.extend(difference("standard output", &got.stdout, &e.stdout));
        if !case.any_stderr {
            wrong.extend(difference("standard error", &got.stderr, &e.stderr));
        }
    }
    if let Some(stdout) = &case.stdout {
        wrong.extend(difference("standard output", &got.stdout, stdout.as_bytes()));
    }
    wrong.extend(case.contains.iter().filter(|c| !text.contains(*c)).map(|c| format!("{c:?} is not in the output")));
    for name in &case.lines {
        if !figure(&text, name).is_some_and(|v| v > 0.0) {
            wrong.push(format!("no line `{name} NUMBER UNIT` with a number above zero"));
        }
    }
    for bound in &case.at_least {
        let (name, least) = bound.split_once('=').unwrap_or((bound, "0"));
        match figure(&text, name) {
            Some(v) if v >= least.parse().unwrap_or(f64::MAX) => {}
            found => wrong.push(format!("{name} is {found:?}; at least {least} is required")),
        }
    }
    if wrong.is_empty() {
        return Ok(());
    }
    if expected.is_none() || got.end != end {
        wrong.push(format!("it printed: {}", shorten(&text)));
        wrong.push(format!("and on standard error: {}", shorten(&String::from_utf8_lossy(&got.stderr))));
    }
    Err(wrong.join("\n"))
}

/// Returns the number of the line `name NUMBER UNIT`.
fn figure(text: &str, name: &str) -> Option<f64> {
    text.lines().find_map(|l| {
        let mut words = l.split_whitespace();
        (words.next()? == name).then(|| words.next()?.parse().ok())?
    })
}

/// Describes the difference of two texts by hash and by the first line that differs; `None` if they are equal.
fn difference(what: &str, got: &[u8], expected: &[u8]) -> Option<String> {
    if got == expected {
        return None;
    }
    let lines = |bytes: &[u8]| String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect::<Vec<_>>();
    let (g, e) = (lines(got), lines(expected));
    let at = g.iter().zip(&e).take_while(|(a, b)| a == b).count();
    let line = |l: &[String]| l.get(at).map_or("its end".to_owned(), |l| format!("{:?}", shorten(l)));
    Some(format!(
        "{what} differs (sha256 {} instead of {}, {} bytes instead of {}): line {}: {} instead of {}",
        digest(got),
        digest(expected),
        got.len(),
        expected.len(),
        at + 1,
        line(&g),
        line(&e)
    ))
}

/// Returns the beginning of the SHA-256 of these bytes.
fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().take(6).map(|b| format!("{b:02x}")).collect()
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(300) {
        Some((at, _)) => format!("{} ...", &text[..at]),
        None => text.to_owned(),
    }
}

/// The directory of the suite's tests.
#[cfg(test)]
fn directory() -> &'static std::path::Path {
    std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/guest"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(end: End, stdout: &str, stderr: &str) -> Answer {
        Answer { end, stdout: stdout.into(), stderr: stderr.into() }
    }

    #[test]
    fn the_same_bytes_and_the_same_status_are_needed() {
        let case = Case::default();
        let right = answer(End::Exit(1), "a\nb\n", "e\n");
        assert_eq!(judge(&case, &right, Some(&right)), Ok(()));
        for wrong in [
            answer(End::Exit(0), "a\nb\n", "e\n"),
            answer(End::Signal(1), "a\nb\n", "e\n"),
            answer(End::Exit(1), "a\nb", "e\n"),
            answer(End::Exit(1), "a\nb\n", ""),
        ] {
            assert!(judge(&case, &wrong, Some(&right)).is_err(), "{wrong:?}");
        }
        let why = judge(&case, &answer(End::Exit(1), "a\nc\n", "e\n"), Some(&right)).unwrap_err();
        assert!(why.contains("line 2: \"c\" instead of \"b\""), "{why}");
    }

    #[test]
    fn the_expectation_of_a_case_is_checked() {
        let case = Case {
            lines: vec!["rate".into()],
            at_least: vec!["calls=100".into()],
            contains: vec!["ok".into()],
            ..Case::default()
        };
        assert_eq!(judge(&case, &answer(End::Exit(0), "rate 3.5 1/s\ncalls 100 n\nok\n", ""), None), Ok(()));
        for wrong in [
            "calls 100 n\nok\n",
            "rate 0 1/s\ncalls 100 n\nok\n",
            "rate 1 1/s\ncalls 99 n\nok\n",
            "rate 1 x\ncalls 100 n\n",
        ] {
            assert!(judge(&case, &answer(End::Exit(0), wrong, ""), None).is_err(), "{wrong}");
        }
        let dies = Case { signal: Some(11), ..Case::default() };
        assert!(judge(&dies, &answer(End::Signal(11), "", ""), None).is_ok());
        assert!(judge(&dies, &answer(End::Exit(0), "", ""), None).is_err());
    }

    #[test]
    fn the_suite_on_disk_is_well_formed_and_large_enough() {
        let cases = suite::load(directory()).unwrap();
        let applets = cases.iter().filter(|(file, _)| file == "applets").count();
        assert!(applets >= 50, "{applets} applets");
    }
}
