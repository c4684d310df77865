//! Runs unit and property tests, documentation tests, the models under both checkers, and the tests of the recording
//! build. All run through cargo, and each test is a check with its own name.

use std::{
    fmt::Write as _,
    fs::{self, OpenOptions},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, Instant},
};

use super::{
    Context,
    models::{CHECKERS, MODELLED, Models},
    names::{self, Key},
    verdict::Check,
};
use crate::{
    failure::{Doing, Failure, Result},
    machine::qemu,
};

/// The crates whose types have checked layouts in the recording build, or whose costs are counted in it.
const RECORDED: [&str; 7] =
    ["quire-sync", "quire-lookup", "quire-vm", "quire-task", "quire-pmap", "quire-hosted", "quire-lab"];
/// The flag that compiles the memory core's mutants: a switch for each step of a protocol, which leaves the step out.
/// Tests of whole machines must fail without the step, which proves that the step is needed.
const MUTANTS: &str = "--cfg mutants";
/// The time without output after which a test program counts as hanging. Its tests without a result then fail. The
/// total time has no limit, because random tests of the hosted machine take long on a busy host.
const LIMIT: Duration = Duration::from_secs(900);
/// The time limit of the debugger, which prints where a program hangs.
const DEBUGGER: Duration = Duration::from_secs(60);
/// The factor by which random tests run longer with `--soak`.
const SOAK: u32 = 10;
/// The seed of random tests and of property tests. Only a soak and a long run of the sanitizers use new seeds.
const SEED: u64 = 1;
/// Settings with which the C library's allocator keeps freed memory, for models. Each schedule makes a new machine.
/// Without these settings, the host would have to clear the memory of each new machine.
const KEEP: [(&str, &str); 3] =
    [("MALLOC_MMAP_MAX_", "0"), ("MALLOC_TRIM_THRESHOLD_", "4294967296"), ("MALLOC_TOP_PAD_", "67108864")];

/// One compiled test program.
pub(super) struct Binary {
    /// The prefix of its tests' names: `unit/quire-vm` or, for a file of `tests/`, `unit/quire-vm/file`.
    pub(super) prefix: String,
    file: PathBuf,
    /// The directory in which cargo would run it.
    directory: PathBuf,
    /// The variables to set in its environment.
    settings: &'static [(&'static str, &'static str)],
}

/// Compiles tests and returns their programs. `group` is the first part of the tests' names.
fn build(context: &Context<'_>, group: &str, log: &str, prepare: impl FnOnce(&mut Command)) -> Result<Vec<Binary>> {
    let mut command = cargo(context);
    command.arg("test");
    prepare(&mut command);
    compile(context, group, log, command)
}

/// As `build`, but with a `cargo test` command that the caller has made.
pub(super) fn compile(context: &Context<'_>, group: &str, log: &str, mut command: Command) -> Result<Vec<Binary>> {
    command.args(["--locked", "--no-run", "--message-format=json-render-diagnostics"]).stdin(Stdio::null());
    let out = command.stderr(context.log(log)?).output().doing(|| "cannot run cargo".to_string())?;
    if !out.status.success() {
        let said = fs::read_to_string(context.log_path(log)).unwrap_or_default();
        let first = said.lines().find(|l| l.starts_with("error")).unwrap_or("see the log").to_owned();
        return Err(Failure::usage(format_args!("{first} ({})", context.log_path(log).display())));
    }
    let text = String::from_utf8_lossy(&out.stdout);
    Ok(text.lines().filter_map(|l| artifact(l, group)).collect())
}

/// Returns the test program that a line of cargo's messages announces; `None` for another line.
fn artifact(line: &str, group: &str) -> Option<Binary> {
    let message: serde_json::Value = serde_json::from_str(line).ok()?;
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return None;
    }
    let file = PathBuf::from(message["executable"].as_str()?);
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    let directory = manifest.parent()?.to_owned();
    let target = message["target"]["name"].as_str()?;
    let text = fs::read_to_string(&manifest).ok()?;
    let package = text.lines().find_map(|l| l.strip_prefix("name = "))?.trim_matches('"').to_owned();
    let own = target.replace('-', "_") == package.replace('-', "_") || message["target"]["kind"][0] == "lib";
    let prefix = if own { format!("{group}/{package}") } else { format!("{group}/{package}/{target}") };
    Some(Binary { prefix, file, directory, settings: &[] })
}

impl Binary {
    pub(super) fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        command.current_dir(&self.directory).stdin(Stdio::null()).envs(self.settings.iter().copied());
        command
    }

    /// Returns the full names of all its tests.
    fn names(&self) -> Result<Vec<String>> {
        let out = self.command().args(["--list", "--format", "terse"]).output().doing(|| self.prefix.clone())?;
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        Ok(text.lines().filter_map(|l| l.strip_suffix(": test")).map(|n| format!("{}/{n}", self.prefix)).collect())
    }

    /// Runs the selected tests.
    fn run(&self, context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
        let all = self.names()?;
        let selected: Vec<&String> = all.iter().filter(|n| context.selects(n)).collect();
        if selected.is_empty() {
            return Ok(());
        }
        let mut command = self.command();
        if selected.len() < all.len() {
            command.arg("--exact").args(selected.iter().map(|n| &n[self.prefix.len() + 1..]));
        }
        let log = context.log_path(&self.prefix);
        let (text, ended) = capture(context, &mut command, &self.prefix)?;
        let results = parse(&text);
        let in_short = ended.lines().next().unwrap_or_default();
        let mut how = ended.as_str();
        for name in selected {
            let short = &name[self.prefix.len() + 1..];
            done(match results.iter().find(|(n, _)| n == short) {
                Some((_, Said::Ok)) => Check::passed(name),
                Some((_, Said::Ignored)) => Check::skipped(name, "marked as ignored", false),
                Some((_, Said::Failed)) => {
                    Check::failed(name, format!("{}\nlog: {}", section(&text, short), log.display()))
                }
                // The backtraces of the program's threads are printed only once.
                None => {
                    let how = std::mem::replace(&mut how, in_short);
                    Check::failed(name, format!("gave no result: {how}\nlog: {}", log.display()))
                }
            });
        }
        Ok(())
    }
}

/// Runs a command until it ends or prints nothing for too long, with all output in a log. Returns the output, and how
/// the command ended.
pub(super) fn capture(context: &Context<'_>, command: &mut Command, log: &str) -> Result<(String, String)> {
    use std::os::unix::process::CommandExt;
    let file = context.log(log)?;
    let about = || log.to_owned();
    let limit = if context.soak { LIMIT * SOAK } else { LIMIT };
    if context.soak {
        command.env("QUIRE_SOAK", SOAK.to_string());
    }
    if let Some(seed) = context.seed.or((!context.soak && !context.sanitize).then_some(SEED)) {
        command.env("QUIRE_SEED", seed.to_string()).env("PROPTEST_RNG_SEED", seed.to_string());
    }
    command.stdout(file.try_clone().doing(about)?).stderr(file).process_group(0);
    let mut child = command.spawn().doing(about)?;
    let (mut looked, mut printed) = (Instant::now(), 0);
    let ended = loop {
        if let Some(status) = child.try_wait().doing(about)? {
            break Some(status);
        }
        if looked.elapsed() > limit {
            let length = fs::metadata(context.log_path(log)).doing(about)?.len();
            if length == printed {
                backtraces(child.id(), &context.log_path(log));
                qemu::kill_group(&mut child);
                break None;
            }
            (looked, printed) = (Instant::now(), length);
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let bytes = fs::read(context.log_path(log)).doing(about)?;
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let ended = ended.map_or_else(
        || format!("stopped, because it printed nothing for {} s\n{}", limit.as_secs(), stacks(&text)),
        |status| status.to_string(),
    );
    Ok((text, ended))
}

/// Shortens the debugger's backtraces in a log. Each thread has one line with its functions of this project, the
/// innermost first. These lines in a test report are enough to begin the search for an error.
fn stacks(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if let Some((_, thread)) = line.strip_prefix("Thread ").and_then(|l| l.rsplit_once("(LWP ")) {
            let name = thread.split_once(") ").map_or(thread, |(_, name)| name);
            let _ = write!(out, "\n{}:", name.trim_end_matches("):"));
        } else if !out.is_empty()
            && let Some((_, frame)) = line.strip_prefix('#').and_then(|l| l.split_once(' '))
        {
            let frame = frame.trim_start();
            let named = match frame.split_once(" in ") {
                Some((address, named)) if address.starts_with("0x") => named,
                _ => frame,
            };
            let (function, place) = (named.split(['<', ' ']).next(), named.rsplit_once(" at crates/"));
            if let (Some(function), Some((_, place))) = (function, place) {
                let _ = write!(out, " {function} ({place})");
            }
        }
    }
    out.trim_start().to_owned()
}

/// Appends to a log the backtrace of each thread of a hanging program, if the debugger can get them.
fn backtraces(pid: u32, log: &Path) {
    use std::os::unix::process::CommandExt;
    let Ok(file) = OpenOptions::new().append(true).open(log) else { return };
    let Ok(both) = file.try_clone() else { return };
    let mut gdb = Command::new("gdb");
    gdb.args(["-p", &pid.to_string(), "-batch", "-nx", "-ex", "thread apply all backtrace 40"]);
    let Ok(mut gdb) = gdb.stdin(Stdio::null()).stdout(file).stderr(both).process_group(0).spawn() else { return };
    let start = Instant::now();
    while matches!(gdb.try_wait(), Ok(None)) {
        if start.elapsed() > DEBUGGER {
            return qemu::kill_group(&mut gdb);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The result of one test, from the test harness.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Said {
    Ok,
    Failed,
    Ignored,
}

/// Reads the lines `test NAME ... RESULT`. The test's output may be between name and result.
fn parse(text: &str) -> Vec<(String, Said)> {
    let mut found = Vec::new();
    for line in text.lines() {
        let Some((name, rest)) = line.strip_prefix("test ").and_then(|l| l.split_once(" ... ")) else { continue };
        let name = name.trim_end_matches(" - should panic").to_owned();
        let said = match rest.split([' ', ',']).next_back() {
            _ if rest.starts_with("ignored") => Said::Ignored,
            _ if rest.starts_with("ok") || rest.ends_with("ok") => Said::Ok,
            _ => Said::Failed,
        };
        found.push((name, said));
    }
    found
}

/// Returns the output of a failed test.
fn section(text: &str, name: &str) -> String {
    let start = format!("---- {name} stdout ----");
    let lines = text.lines().skip_while(|l| *l != start).skip(1).take_while(|l| !l.starts_with("---- "));
    let mut out = String::new();
    for line in lines.filter(|l| !l.trim().is_empty()).take(12) {
        let _ = writeln!(out, "{line}");
    }
    if out.is_empty() { "it failed".into() } else { out.trim_end().to_owned() }
}

/// Returns a cargo command for programs of this host.
fn cargo(context: &Context<'_>) -> Command {
    let mut command = Command::new("cargo");
    command.current_dir(&context.places.root).stdin(Stdio::null()).env("CARGO_TERM_COLOR", "never");
    command
}

/// Compiles our own crates with [`MUTANTS`]. Other crates are compiled without the flag, and so need no new build:
/// `./quire` has built them before for the command itself. A flag for all crates would compile them a second time.
fn with_mutants(context: &Context<'_>, command: &mut Command) {
    command.env("RUSTC_WORKSPACE_WRAPPER", context.places.root.join("xtask/src/test/with-mutants"));
}

fn unit_binaries(context: &Context<'_>) -> Result<Vec<Binary>> {
    let target = context.places.target.clone();
    build(context, "unit", "unit-build", |command| {
        command.args(["--workspace", "--lib", "--bins", "--tests", "--target-dir"]).arg(target);
        with_mutants(context, command);
    })
}

/// The names of the unit and property tests of all crates.
pub fn unit_names(context: &Context<'_>) -> Result<Vec<String>> {
    let key = Key::of(&context.places.root)?;
    kept_names(context, "unit", &key, &unit_binaries(context)?)
}

/// Returns the names of all tests of a stage, and keeps them for `--list`. `key` is the digest of the sources before
/// the build.
fn kept_names(context: &Context<'_>, stage: &str, key: &Key, binaries: &[Binary]) -> Result<Vec<String>> {
    let names = binaries.iter().map(Binary::names).collect::<Result<Vec<_>>>()?.concat();
    names::keep(context.places, stage, key, &names);
    Ok(names)
}

/// Compiles and runs the tests of [`unit_names`].
pub fn unit(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    // Compiles only if a name can match. A name can match unless the filter names another stage.
    if context.names_another("unit") {
        return Ok(());
    }
    let key = Key::of(&context.places.root)?;
    let binaries = unit_binaries(context)?;
    kept_names(context, "unit", &key, &binaries)?;
    binaries.iter().try_for_each(|binary| binary.run(context, done))
}

/// The placeholder for the documentation's examples, whose names are known only once they are compiled.
pub fn doc_names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(vec!["doc/...".to_owned()])
}

/// Compiles and runs the examples in the documentation, the README's among them.
pub fn doc(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if context.names_another("doc") {
        return Ok(());
    }
    let mut command = cargo(context);
    command
        .args(["test", "--locked", "--doc", "--workspace", "--no-fail-fast", "--target-dir"])
        .arg(&context.places.target);
    with_mutants(context, &mut command);
    let (text, ended) = capture(context, &mut command, "doc")?;
    let results = parse(&text);
    for (short, said) in &results {
        let name = format!("doc/{short}");
        if !context.selects(&name) {
            continue;
        }
        done(match said {
            Said::Ok => Check::passed(name),
            Said::Ignored => Check::skipped(name, "marked as ignored", false),
            Said::Failed => Check::failed(name, section(&text, short)),
        });
    }
    let failed = results.iter().any(|(_, said)| *said == Said::Failed);
    if !ended.contains("exit status: 0") && !failed && context.selects("doc/build") {
        done(Check::failed("doc/build", format!("{ended}; log: {}", context.log_path("doc").display())));
    }
    Ok(())
}

const MODEL_TABLE: &str = "model/the table in docs/models.md matches the tests";

fn model_binaries(context: &Context<'_>, checker: &str) -> Result<Vec<Binary>> {
    let target = context.places.target.join(checker);
    let mut binaries = build(context, &format!("model/{checker}"), &format!("model-{checker}-build"), |command| {
        for package in MODELLED {
            command.args(["-p", package]);
        }
        command.args(["--release", "--lib", "--target-dir"]).arg(target);
        command.env("RUSTFLAGS", format!("--cfg {checker}"));
    })?;
    binaries.iter_mut().for_each(|binary| binary.settings = &KEEP);
    Ok(binaries)
}

/// The names of the protocols' models.
pub fn model_names(context: &Context<'_>) -> Result<Vec<String>> {
    let key = Key::of(&context.places.root)?;
    let mut names = Vec::new();
    for checker in CHECKERS {
        for binary in model_binaries(context, checker)? {
            names.extend(binary.names()?);
        }
    }
    Ok(kept_models(context, &key, names))
}

/// Keeps the names of the models for `--list`, together with the name of the check of their table.
fn kept_models(context: &Context<'_>, key: &Key, mut names: Vec<String>) -> Vec<String> {
    names.push(MODEL_TABLE.to_owned());
    names::keep(context.places, "model", key, &names);
    names
}

/// Compiles and runs the models of [`model_names`].
pub fn models(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if context.names_another("model") {
        return Ok(());
    }
    let key = Key::of(&context.places.root)?;
    let mut names = Vec::new();
    for checker in CHECKERS {
        for binary in model_binaries(context, checker)? {
            names.extend(binary.names()?);
            binary.run(context, done)?;
        }
    }
    let names = kept_models(context, &key, names);
    if context.selects(MODEL_TABLE) {
        let all = Models::of(names.iter().map(String::as_str));
        let differences = all.differences(&context.places.root)?;
        let log = context.log_path("models-table");
        fs::write(&log, all.table()).doing(|| format!("cannot write {}", log.display()))?;
        done(if differences.is_empty() {
            Check::passed(MODEL_TABLE)
        } else {
            Check::failed(MODEL_TABLE, format!("{}\nthe table is in {}", differences.join("\n"), log.display()))
        });
    }
    Ok(())
}

fn record_binaries(context: &Context<'_>) -> Result<Vec<Binary>> {
    let target = context.places.target.join("recording");
    build(context, "record", "record-build", |command| {
        for package in RECORDED {
            command.args(["-p", package]);
        }
        command.args(["--lib", "--test", "conflicts", "--test", "watched", "--target-dir"]).arg(target);
        command.env("RUSTFLAGS", format!("--cfg recording {MUTANTS}"));
    })
}

/// Builds the lab's program as the unit tests and the recording tests start it. If the stages of these tests have run,
/// nothing is compiled.
pub(super) fn build_lab(context: &Context<'_>) -> Result<()> {
    unit_binaries(context)?;
    record_binaries(context).map(drop)
}

/// The names of the checks of the recording build: layouts, shared lines, acquired locks.
pub fn record_names(context: &Context<'_>) -> Result<Vec<String>> {
    let key = Key::of(&context.places.root)?;
    kept_names(context, "record", &key, &record_binaries(context)?)
}

/// Compiles and runs the checks of [`record_names`].
pub fn records(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if context.names_another("record") {
        return Ok(());
    }
    let key = Key::of(&context.places.root)?;
    let binaries = record_binaries(context)?;
    kept_names(context, "record", &key, &binaries)?;
    binaries.iter().try_for_each(|binary| binary.run(context, done))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_own_functions_of_a_backtrace_are_reported() {
        let text = "running 1 test\n#0  no frame\n\nThread 12 (Thread 0x7f34 (LWP 15797) \"7 19984\"):\n\
                    #0  0x00007f34 in __GI_sched_yield () at ../sysdeps/syscall.S:120\n\
                    #1  0x000055a8 in quire_hosted::cpu::{impl#0}::disturb<u64> () at crates/hosted/src/cpu.rs:135\n\
                    #10 core::iter::call<quire> () at /rustc/5980/option.rs:24\n\
                    #11 quire_vm::fault::serve<T> (self=0x7) at crates/vm/src/fault.rs:229\n\
                    Thread 1 (Thread 0x7f35 (LWP 15790) \"random\"):\n#0  __pthread_join () at ./nptl/join.c:108\n";
        let expected = "\"7 19984\": quire_hosted::cpu::{impl#0}::disturb (hosted/src/cpu.rs:135) \
                        quire_vm::fault::serve (vm/src/fault.rs:229)\n\"random\":";
        assert_eq!(stacks(text), expected);
    }

    #[test]
    fn results_are_read_also_where_a_test_prints_between() {
        let text = "running 4 tests\ntest a::b ... ok\ntest c ... FAILED\ntest d ... ignored, slow\n\
                    test e - should panic ... ok\ntest f ... seed 17ok\n\ntest result: FAILED. 1 passed\n";
        let expected =
            [("a::b", Said::Ok), ("c", Said::Failed), ("d", Said::Ignored), ("e", Said::Ok), ("f", Said::Ok)];
        assert_eq!(parse(text), expected.map(|(n, s)| (n.to_owned(), s)));
    }

    #[test]
    fn the_output_of_a_failed_test_is_found() {
        let text = "failures:\n\n---- c stdout ----\nthread panicked\nleft: 1\n\n---- d stdout ----\nother\n";
        assert_eq!(section(text, "c"), "thread panicked\nleft: 1");
        assert_eq!(section(text, "x"), "it failed");
    }

    #[test]
    fn a_test_program_is_known_by_its_message() {
        assert!(artifact("{\"reason\":\"build-finished\"}", "unit").is_none());
        assert!(artifact("no json", "unit").is_none());
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
        let line = format!(
            "{{\"reason\":\"compiler-artifact\",\"manifest_path\":\"{manifest}\",\"profile\":{{\"test\":true}},\
             \"target\":{{\"name\":\"xtask\",\"kind\":[\"bin\"]}},\"executable\":\"/x/y\"}}"
        );
        assert_eq!(artifact(&line, "unit").unwrap().prefix, "unit/xtask");
    }
}
