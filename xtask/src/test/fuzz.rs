//! Runs each fuzz target for a few seconds. The seed and the number of inputs are fixed, so a failure repeats in the
//! next run.

use std::{
    fs,
    process::Stdio,
    time::{Duration, Instant},
};

use super::{Context, reach, verdict::Check};
use crate::{
    failure::{Doing, Result},
    fuzz::{self, TARGETS},
    machine::qemu,
    setup::sanitizer::{self, Sanitizer},
};

/// The time limit of a fuzzer. A fuzzer that takes longer hangs, or this machine is too busy.
const LIMIT: Duration = Duration::from_secs(300);

/// The checks' names: one for each target, and the check of reach.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok(TARGETS.iter().map(|t| name_of(t.name)).chain([reach::NAME.to_owned()]).collect())
}

fn name_of(target: &str) -> String {
    format!("fuzz/{target}")
}

/// Builds all selected targets and runs each.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    reach::run(context, done)?;
    let selected: Vec<_> = TARGETS.iter().filter(|t| context.selects(&name_of(t.name))).collect();
    if context.names_another("fuzz") || selected.is_empty() {
        return Ok(());
    }
    for address in [false, true] {
        let selected: Vec<_> = selected.iter().copied().filter(|t| t.address == address).collect();
        if selected.is_empty() {
            continue;
        }
        if address && let Err(missing) = sanitizer::find(Sanitizer::Address) {
            selected.iter().for_each(|t| done(Check::skipped(name_of(t.name), missing.message.clone(), false)));
            continue;
        }
        let log = context.log(if address { "fuzz-address-build" } else { "fuzz-build" })?;
        let programs = fuzz::build(context.places, &selected, address, log)?;
        for target in selected {
            let name = name_of(target.name);
            let mut command = fuzz::session(context.places, &programs, target.name)?;
            let runs = target.runs * if context.soak { 10 } else { 1 };
            command.arg(format!("-runs={runs}")).arg("-seed=1");
            done(Check::of(&name, watch(context, &name, command)));
        }
    }
    Ok(())
}

/// Runs a fuzzer until it ends. The error is the failure that it found.
fn watch(context: &Context<'_>, name: &str, mut command: std::process::Command) -> Result<(), String> {
    use std::os::unix::process::CommandExt;
    let wrong = |e: &dyn std::fmt::Display| format!("{name}: {e}");
    let log = context.log(name).map_err(|e| wrong(&e))?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).process_group(0);
    let mut child = command.spawn().doing(|| name).map_err(|e| wrong(&e))?;
    let start = Instant::now();
    let limit = LIMIT * if context.soak { 10 } else { 1 };
    let status = loop {
        if let Some(status) = child.try_wait().map_err(|e| wrong(&e))? {
            break status;
        }
        if start.elapsed() > limit {
            qemu::kill_group(&mut child);
            return Err(format!("stopped after {} s; log: {}", limit.as_secs(), context.log_path(name).display()));
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    if status.success() {
        return Ok(());
    }
    let text = fs::read_to_string(context.log_path(name)).unwrap_or_default();
    Err(format!("{}\nlog: {}", found(&text), context.log_path(name).display()))
}

/// Extracts the fuzzer's report of a failure: the panic and the input.
fn found(log: &str) -> String {
    let mut lines = log.lines().skip_while(|l| !l.contains("panicked at") && !l.contains("ERROR:"));
    let mut said: Vec<&str> = lines.by_ref().take(3).collect();
    said.extend(lines.filter(|l| l.contains("Test unit written to")));
    if said.is_empty() { "it failed".to_owned() } else { said.join("\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_the_panic_and_the_input() {
        let log = "#1 NEW\n\nthread 'x' panicked at a.rs:1:\nwrong\nnote\n==1== ERROR: libFuzzer\n#0 f\n\
                   artifact_prefix='p'; Test unit written to p-crash\n";
        assert_eq!(
            found(log),
            "thread 'x' panicked at a.rs:1:\nwrong\nnote\nartifact_prefix='p'; Test unit written to p-crash"
        );
        assert_eq!(found("#1 NEW\n"), "it failed");
    }
}
