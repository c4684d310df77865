//! Runs ThreadSanitizer and AddressSanitizer on the programs that stress the memory core and the scheduler from many
//! threads. Every run of the tests runs each for a few seconds, and `--sanitize` runs them for long. Each program is
//! one check, and ends at its first report.

use std::process::Command;

use super::{
    Context,
    cargo::{Binary, capture, compile},
    verdict::Check,
};
use crate::{
    failure::Result,
    setup::sanitizer::{self, Sanitizer},
};

const SANITIZERS: [Sanitizer; 2] = [Sanitizer::Thread, Sanitizer::Address];

/// A test program. `all` are its tests for long runs. `smoke` are its tests for runs of a few seconds. If `smoke` is
/// empty, such runs include all tests.
struct Program {
    name: &'static str,
    all: &'static [&'static str],
    smoke: &'static [&'static str],
    /// The operations of each CPU in the random test: short and long.
    steps: [u32; 2],
}

/// The programs that `build` can build.
const PROGRAMS: &[Program] = &[
    Program {
        name: "quire-hosted/random",
        // The mutants' tests are left out, because they cause errors on purpose.
        all: &["x86_64::"],
        smoke: &[
            "x86_64::four_cpus_read_their_own_stores",
            "x86_64::copies_by_several_cpus",
            "x86_64::faults_against_discards",
            "x86_64::leaves_that_are_gone_and_not_flushed",
            "x86_64::against_a_store_that_is_late_and_out_of_order",
        ],
        steps: [3000, 500],
    },
    Program { name: "quire-sync", all: &[], smoke: &["spin::", "mutex::", "epoch::"], steps: [0; 2] },
    Program { name: "quire-lookup", all: &[], smoke: &["hold::"], steps: [0; 2] },
    Program { name: "quire-heap", all: &[], smoke: &[], steps: [0; 2] },
];

/// The exit status by which both sanitizers report a finding.
const FOUND: &str = "66";
/// A test that races on purpose. The sanitizer must find the race.
const ON_PURPOSE: &str = "spin::tests::an_unlock_that_publishes_nothing";

fn name_of(sanitizer: Sanitizer, program: &str) -> String {
    format!("sanitize/{}/{program}", sanitizer.name())
}

fn on_purpose() -> String {
    name_of(Sanitizer::Thread, "a deliberate race is found")
}

/// The checks' names: one for each program and sanitizer, and the race on purpose.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    let all = SANITIZERS.iter().flat_map(|s| PROGRAMS.iter().map(|p| name_of(*s, p.name)));
    Ok(all.chain([on_purpose()]).collect())
}

/// Builds and runs the selected programs.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if context.names_another("sanitize") {
        return Ok(());
    }
    for sanitizer in SANITIZERS {
        let selected: Vec<_> = PROGRAMS.iter().filter(|p| context.selects(&name_of(sanitizer, p.name))).collect();
        let races = sanitizer == Sanitizer::Thread && context.selects(&on_purpose());
        if selected.is_empty() && !races {
            continue;
        }
        // If the sanitizer is missing, each check is reported as skipped, because a skipped check has not passed.
        let binaries = match build(context, sanitizer) {
            Ok(binaries) => binaries,
            Err(missing) => {
                selected
                    .iter()
                    .for_each(|p| done(Check::skipped(name_of(sanitizer, p.name), missing.message.clone(), false)));
                if races {
                    done(Check::skipped(on_purpose(), missing.message, false));
                }
                continue;
            }
        };
        let binary = |name: &str| binaries.iter().find(|b| b.prefix == name_of(sanitizer, name));
        for program in selected {
            let name = name_of(sanitizer, program.name);
            let Some(binary) = binary(program.name) else {
                done(Check::failed(name, "it was not built"));
                continue;
            };
            let mut command = prepared(binary);
            let long = usize::from(!context.sanitize);
            let tests = if context.sanitize { program.all } else { program.smoke };
            command.args(tests).args(["--test-threads", "1"]);
            if program.steps[long] > 0 {
                command.env("QUIRE_STEPS", (program.steps[long] * if context.soak { 10 } else { 1 }).to_string());
            }
            let (text, ended) = capture(context, &mut command, &name)?;
            done(Check::of(&name, judge(&text, &ended, context, &name)));
        }
        if let (true, Some(binary)) = (races, binary("quire-sync")) {
            let mut command = prepared(binary);
            command.args([ON_PURPOSE, "--exact", "--ignored"]);
            let (text, ended) = capture(context, &mut command, &on_purpose())?;
            let found = ended.ends_with(FOUND) && text.contains("ThreadSanitizer: data race");
            let what = found.then_some(()).ok_or("it was not found");
            done(Check::of(on_purpose(), what));
        }
    }
    Ok(())
}

fn build(context: &Context<'_>, sanitizer: Sanitizer) -> Result<Vec<Binary>> {
    let mut command = sanitizer::find(sanitizer)?.cargo("test", "--cfg sanitized --cfg mutants");
    command.current_dir(&context.places.root).env("CARGO_TERM_COLOR", "never");
    command.args([
        "-p",
        "quire-hosted",
        "-p",
        "quire-sync",
        "-p",
        "quire-lookup",
        "-p",
        "quire-heap",
        "--lib",
        "--test",
        "random",
        "--release",
        "--target-dir",
    ]);
    command.arg(context.places.target.join("sanitize").join(sanitizer.name()));
    let group = format!("sanitize/{}", sanitizer.name());
    compile(context, &group, &format!("sanitize-{}-build", sanitizer.name()), command)
}

/// Returns the command that runs the program, with options for its reports.
fn prepared(binary: &Binary) -> Command {
    let symbols =
        sanitizer::symbolizer().map_or(String::new(), |p| format!(":external_symbolizer_path={}", p.display()));
    let mut command = binary.command();
    command.env("TSAN_OPTIONS", format!("halt_on_error=1:exitcode={FOUND}:history_size=4{symbols}"));
    // Leaks are not detected: a simulated machine is never freed, so it still holds memory at the end. The tests count
    // frames themselves.
    command.env("ASAN_OPTIONS", format!("exitcode={FOUND}:detect_leaks=0{symbols}"));
    command
}

/// Returns `Ok` for a good run, otherwise the report.
fn judge(text: &str, ended: &str, context: &Context<'_>, name: &str) -> std::result::Result<(), String> {
    // The second condition is needed, because a run whose filter selects no test also ends with status 0.
    if ended == "exit status: 0" && !text.contains("running 0 tests") {
        return Ok(());
    }
    Err(format!("{}\n{ended}; log: {}", report(text), context.log_path(name).display()))
}

/// Extracts the lines of a report that a reader needs first: its kind, and the calls in our own code.
fn report(text: &str) -> String {
    let mut lines = text.lines().skip_while(|l| !l.contains("Sanitizer: "));
    let Some(first) = lines.next() else {
        let said: Vec<&str> =
            text.lines().filter(|l| l.contains("panicked at") || l.contains("FAILED")).take(6).collect();
        return if said.is_empty() { "it failed".into() } else { said.join("\n") };
    };
    let ours = |l: &&str| (l.trim_start().starts_with('#') && l.contains("/crates/")) || l.trim_end().ends_with(':');
    let mut shown = vec![first];
    shown.extend(lines.take_while(|l| !l.contains("SUMMARY")).filter(ours).take(24));
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_its_kind_and_calls_of_ours() {
        let text = "running 1 test\n==================\nWARNING: ThreadSanitizer: data race (pid=1)\n  Write of size \
            8 at 0x7e by thread T2:\n\
                    \x20   #0 memcpy <null>\n    #1 quire_vm::f /x/crates/vm/src/f.rs:1:2\n\n  Previous read of size \
                    8 at 0x7e by thread T1:\n\
                    \x20   #0 quire_vm::g /x/crates/vm/src/g.rs:3:4\nSUMMARY: ThreadSanitizer: data race\n#1 \
                    /crates/\n";
        let shown = report(text);
        assert_eq!(shown.lines().count(), 5, "{shown}");
        assert!(shown.contains("f.rs:1:2") && shown.contains("g.rs:3:4"));
        assert_eq!(report("nothing"), "it failed");
    }
}
