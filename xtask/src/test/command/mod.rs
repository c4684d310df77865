//! Checks of the command `./quire` as a user sees it: streams, statuses, signals, terminals. Each check also tests that
//! the command leaves nothing behind.

mod machine;
mod program;
mod tools;

use std::{
    fs::{self},
    io::Read,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use super::{Context, cargo, verdict::Check};
use crate::failure::{Doing, Failure, Result};
use crate::places::Places;

type Body = fn(&Bench) -> Result<(), String>;

/// The name of the check that starts the lab's program.
const LAB: &str = "the lab is interrupted, continues, and draws";

const CHECKS: &[(&str, Body)] = &[
    ("exit status", program::exit_status),
    ("death by a signal", program::death_by_signal),
    ("output and error streams are separate and byte-transparent", program::streams),
    ("a slow reader loses nothing", program::slow_reader),
    ("a reader closes its end early", program::reader_goes),
    ("standard input from nowhere", program::no_input),
    ("copies, environment and directory", program::surroundings),
    ("a root nearly as large as memory", program::large_root),
    ("a dynamic program of this machine", program::dynamic),
    ("a C project builds in the guest as on this machine", program::built),
    ("programs larger than memory", program::overcommit),
    ("a program is killed for its memory", program::killed_for_memory),
    ("a user program takes all of the kernel's memory", program::exhausted),
    ("timeout", program::timeout),
    ("interrupt", program::interrupt),
    ("a second interrupt", program::second_interrupt),
    ("terminated", program::terminated),
    ("killed", program::killed),
    ("an interactive shell", program::interactive),
    ("a panic of the kernel", machine::panic),
    ("settings of the memory core", machine::settings),
    ("file systems in memory of every size", machine::file_systems),
    ("boot words with impossible values", machine::boot_words),
    ("the log names refused options", machine::refused_options),
    ("programs on a kernel that checks itself", machine::checked_programs),
    ("locks taken in both orders, on a kernel that checks itself", machine::inversion),
    ("bad input", machine::bad_input),
    ("QEMU is missing, hangs or dies", machine::bad_qemu),
    ("debugger", machine::debugger),
    ("a profile begins with the program", tools::profiled),
    ("a profile of Linux names its functions", tools::profiled_linux),
    ("comparison", tools::comparison),
    ("results as JSON", tools::json),
    ("completions and manual pages", tools::completions),
    ("a build that another ./quire holds up", tools::waits),
    ("a fresh kernel waits for no build", tools::fresh),
    ("an interrupted command names the kept work", tools::interrupted),
    ("cache lines that processors share in the guest", tools::shared_lines),
    (LAB, tools::lab),
    ("a trace of known events", tools::traced),
    ("a trace longer than its buffer", tools::cut_trace),
    ("the usual kernel has no trace code", tools::untraced),
];

/// The checks' names.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(CHECKS.iter().map(|(name, _)| format!("command/{name}")).collect())
}

/// Runs the selected checks. Each check has its own directory for temporary files, which must be empty at the end. A
/// mark in the environment identifies processes that the check left running.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    for (number, (name, body)) in CHECKS.iter().enumerate() {
        let full = format!("command/{name}");
        if !context.selects(&full) {
            continue;
        }
        if *name == LAB {
            cargo::build_lab(context)?;
        }
        let place = tempfile::tempdir().doing(|| "cannot make a temporary directory".to_string())?;
        let bench = Bench {
            kernel: context.kernel()?,
            quire: std::env::current_exe().doing(|| "cannot find this program".to_string())?,
            places: context.places.clone(),
            temporary: place.path().join("tmp"),
            place: place.path().to_owned(),
            mark: format!("QUIRE_TEST_MARK={}-{number}", std::process::id()),
        };
        fs::create_dir(&bench.temporary).doing(|| "cannot make a temporary directory".to_string())?;
        let result = body(&bench).and_then(|()| bench.nothing_left());
        done(Check::of(full, result));
    }
    Ok(())
}

struct Bench {
    kernel: PathBuf,
    quire: PathBuf,
    places: Places,
    place: PathBuf,
    temporary: PathBuf,
    mark: String,
}

#[derive(Debug)]
struct Done {
    status: i32,
    stdout: Vec<u8>,
    stderr: String,
}

impl Bench {
    fn command(&self, words: &[&str]) -> Command {
        let (name, value) = self.mark.split_once('=').unwrap_or_default();
        let mut command = Command::new(&self.quire);
        command.args(words).env("QUIRE_ROOT", &self.places.root).env("TMPDIR", &self.temporary).env(name, value);
        command.env("QUIRE_KERNEL", &self.kernel);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, words: &[&str]) -> Result<Done, String> {
        finish(self.command(words).spawn().map_err(text)?)
    }

    /// Starts a command, and waits until its program has printed `word`.
    fn until(&self, words: &[&str], word: &str) -> Result<Child, String> {
        prints(self.command(words).spawn().map_err(text)?, word)
    }

    /// Checks that the command has left neither a file nor a process.
    fn nothing_left(&self) -> Result<(), String> {
        let files: Vec<_> = fs::read_dir(&self.temporary).map_err(text)?.filter_map(|e| Some(e.ok()?.path())).collect();
        if !files.is_empty() {
            return Err(format!("left behind: {files:?}"));
        }
        // When a parent is killed, its QEMU gets a signal at once, but needs a moment to end.
        let start = Instant::now();
        loop {
            let left = self.running();
            if left.is_empty() {
                return Ok(());
            }
            if start.elapsed() > Duration::from_secs(60) {
                return Err(format!("still running: {left:?}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn running(&self) -> Vec<String> {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        let marked = |path: &Path| {
            let environment = fs::read(path.join("environ")).unwrap_or_default();
            environment.split(|b| *b == 0).any(|v| v == self.mark.as_bytes())
        };
        processes
            .filter(|p| p.file_name().to_string_lossy().bytes().all(|b| b.is_ascii_digit()) && marked(&p.path()))
            .map(|p| fs::read_to_string(p.path().join("cmdline")).unwrap_or_default().replace('\0', " "))
            .collect()
    }

    fn file(&self, name: &str, bytes: &[u8]) -> Result<PathBuf, String> {
        let path = self.place.join(name);
        fs::write(&path, bytes).map_err(text)?;
        Ok(path)
    }
}

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

/// Waits until the child has printed `word`.
fn prints(mut child: Child, word: &str) -> Result<Child, String> {
    let mut seen = Vec::new();
    let out = child.stdout.as_mut().ok_or("no standard output")?;
    while !String::from_utf8_lossy(&seen).contains(word) {
        let mut byte = [0];
        if out.read(&mut byte).map_err(text)? == 0 {
            let done = finish(child)?;
            return Err(format!("ended with {} before it printed {word:?}: {}", done.status, done.stderr));
        }
        seen.push(byte[0]);
    }
    Ok(child)
}

fn finish(child: Child) -> Result<Done, String> {
    let out = child.wait_with_output().map_err(text)?;
    let status = out.status.code().unwrap_or(-1);
    Ok(Done { status, stdout: out.stdout, stderr: String::from_utf8_lossy(&out.stderr).into_owned() })
}

/// Checks that the command ended with `status`. Otherwise the error has its output.
fn ended(done: &Done, status: i32) -> Result<(), String> {
    if done.status == status {
        return Ok(());
    }
    Err(format!("status {} instead of {status}; standard error: {}", done.status, done.stderr.trim()))
}

fn same(what: &str, got: &[u8], expected: &[u8]) -> Result<(), String> {
    if got == expected {
        return Ok(());
    }
    let show = |b: &[u8]| format!("{} bytes, {:?}", b.len(), String::from_utf8_lossy(&b[..b.len().min(80)]));
    Err(format!("{what}: {} instead of {}", show(got), show(expected)))
}

/// Returns bytes of every value, among them line ends.
fn bytes(count: usize) -> Vec<u8> {
    (0..count).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

impl From<Failure> for String {
    fn from(failure: Failure) -> Self {
        failure.message
    }
}
