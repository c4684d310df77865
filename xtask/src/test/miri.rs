//! Runs Miri, if it is installed, to find undefined behaviour in code that needs no machine. That code is the
//! containers of `quire-heap`, the primitives of `quire-sync`, and the data structures of `quire-vm` and `quire-task`.
//! Of `quire-hosted` it runs the smallest machine.
//! `./quire test --miri` takes minutes. Each run of all tests has a small part of it.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use super::{Context, cargo::capture, verdict::Check};
use crate::{
    failure::{Doing, Result},
    progress::Step,
};

/// A crate, and those of its tests that an interpreter can run in reasonable time.
struct Program {
    package: &'static str,
    tests: &'static [&'static str],
    /// Whether it belongs to each run of all tests.
    is_short: bool,
}

const PROGRAMS: &[Program] = &[
    Program { package: "quire-hosted", tests: &["arena::", "tlb::"], is_short: true },
    Program { package: "quire-heap", tests: &["arc::", "boxed::", "deque::", "map::", "vec::"], is_short: false },
    Program { package: "quire-sync", tests: &["cpuset::", "spin::", "per_cpu::"], is_short: false },
    Program { package: "quire-task", tests: &["list::", "run_queue::", "cpu_mask::"], is_short: false },
    Program { package: "quire-vm", tests: &["interval::", "types::"], is_short: false },
];

fn name_of(program: &Program) -> String {
    format!("miri/{}", program.package)
}

/// The programs of this run: all with `--miri`, otherwise the short ones.
fn programs(context: &Context<'_>) -> impl Iterator<Item = &'static Program> {
    let all = context.miri;
    PROGRAMS.iter().filter(move |program| all || program.is_short)
}

/// The checks' names: one for each crate.
pub fn names(context: &Context<'_>) -> Result<Vec<String>> {
    Ok(programs(context).map(name_of).collect())
}

/// Runs the selected checks.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if context.names_another("miri") {
        return Ok(());
    }
    let selected: Vec<_> = programs(context).filter(|p| context.selects(&name_of(p))).collect();
    if selected.is_empty() {
        return Ok(());
    }
    let Some(toolchain) = toolchain(&context.places.root) else {
        // No Debian package has it, and rustup's nightly may be out of reach.
        let missing = "Miri is not installed: ./quire setup installs it where rustup finds its nightly";
        selected.iter().for_each(|p| done(Check::skipped(name_of(p), missing, true)));
        return Ok(());
    };
    for program in selected {
        let name = name_of(program);
        let mut command = cargo_miri(&context.places.root, toolchain);
        command.args(["test", "--locked", "-p", program.package, "--lib", "--target-dir"]);
        command.arg(context.places.target.join("miri")).arg("--").args(program.tests);
        // The interpreter is not isolated, because property tests read the clock and the random seed of the host.
        // A hosted machine lives until the process ends.
        let leaks = if program.package == "quire-hosted" { " -Zmiri-ignore-leaks" } else { "" };
        command.env("MIRIFLAGS", format!("-Zmiri-disable-isolation{leaks}")).env("PROPTEST_CASES", "4");
        let (text, ended) = capture(context, &mut command, &name)?;
        let right = ended == "exit status: 0" && !text.contains("running 0 tests");
        let log = context.log_path(&name);
        done(Check::of(
            &name,
            if right { Ok(()) } else { Err(format!("{}\n{ended}; log: {}", report(&text), log.display())) },
        ));
    }
    Ok(())
}

/// Returns the toolchain that has Miri: `Some(None)` for the current one, otherwise rustup's nightly. `None` if neither
/// has it.
fn toolchain(root: &Path) -> Option<Option<&'static str>> {
    [None, Some("+nightly")].into_iter().find(|toolchain| {
        let mut command = cargo_miri(root, *toolchain);
        command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|s| s.success())
    })
}

/// Whether rustup, which alone installs Miri, is on this machine.
fn has_rustup() -> bool {
    let version = Command::new("rustup").arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    version.is_ok_and(|status| status.success())
}

/// Installs Miri with rustup's nightly, if rustup is on this machine and no toolchain has Miri. A failure is no error,
/// because only Miri's checks need it, and they are skipped then.
pub fn install(root: &Path) -> Result<()> {
    if !has_rustup() || toolchain(root).is_some() {
        return Ok(());
    }
    let _step = Step::new("installing Miri with rustup's nightly (once)");
    let mut command = Command::new("rustup");
    command.args(["toolchain", "install", "nightly", "--profile", "minimal", "--component", "miri,rust-src"]);
    if !command.stdin(Stdio::null()).status().doing(|| "cannot run rustup".to_string())?.success() {
        eprintln!("quire: rustup could not install Miri, so its checks are skipped");
    }
    Ok(())
}

fn cargo_miri(root: &Path, toolchain: Option<&str>) -> Command {
    let mut command = Command::new("cargo");
    command.args(toolchain).arg("miri").current_dir(root).env("CARGO_TERM_COLOR", "never");
    // Rustup must not install toolchains without a request. The variables are removed, because they would select the
    // toolchain that built this program.
    command.env("RUSTUP_AUTO_INSTALL", "0").env_remove("RUSTUP_TOOLCHAIN").env_remove("RUSTC").env_remove("CARGO");
    command
}

/// Extracts the error, and the lines of our own code in its backtrace.
fn report(text: &str) -> String {
    let mut lines = text.lines().skip_while(|l| !l.starts_with("error"));
    let Some(first) = lines.next() else {
        let said: Vec<&str> =
            text.lines().filter(|l| l.contains("panicked at") || l.contains("FAILED")).take(6).collect();
        return if said.is_empty() { "it failed".into() } else { said.join("\n") };
    };
    let mut shown = vec![first];
    shown.extend(lines.filter(|l| l.contains("crates/")).take(12));
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_has_the_error_and_its_place() {
        let text = "running 1 test\nerror: Undefined Behavior: out of bounds\n  --> crates/vm/src/f.rs:1:2\n   |\n = \
            note: inside\n";
        assert_eq!(report(text), "error: Undefined Behavior: out of bounds\n  --> crates/vm/src/f.rs:1:2");
        assert_eq!(report("nothing"), "it failed");
    }
}
