//! Checks `./quire doctor` on this host, and in an environment where parts are missing. The command must report the
//! state, and its status must say whether guests can run.

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

use super::{Context, verdict::Check};
use crate::failure::{Doing, Result};

const HERE: &str = "doctor/this machine runs guests, and one screen reports it";
const MISSING: &str = "doctor/without a working QEMU, the status is 1 and the missing parts are named";

/// The checks' names.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok([HERE, MISSING].map(str::to_owned).to_vec())
}

/// Runs the selected checks.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    for (name, body) in [(HERE, here as fn(&Context<'_>) -> Result<(), String>), (MISSING, missing)] {
        if context.selects(name) {
            done(Check::of(name, body(context)));
        }
    }
    Ok(())
}

/// Runs the command with `variables` set. The caller provides a temporary cache, so that nothing is left behind.
fn doctor(context: &Context<'_>, cache: &Path, variables: &[(&str, &str)]) -> Result<(Output, String), String> {
    let quire = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = Command::new(quire);
    command.arg("doctor").stdin(Stdio::null()).env("QUIRE_ROOT", &context.places.root).env("QUIRE_CACHE", cache);
    command.env_remove("QUIRE_ACCEL").envs(variables.iter().copied());
    let out = command.output().map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    Ok((out, text))
}

fn expect(out: &Output, text: &str, status: i32, parts: &[&str]) -> Result<(), String> {
    let missing: Vec<_> = parts.iter().filter(|part| !text.contains(**part)).collect();
    if out.status.code() == Some(status) && missing.is_empty() && out.stderr.is_empty() {
        return Ok(());
    }
    let errors = String::from_utf8_lossy(&out.stderr);
    Err(format!("{:?} instead of {status}, {missing:?} are missing, errors {errors:?}, in:\n{text}", out.status.code()))
}

fn place() -> Result<tempfile::TempDir, String> {
    tempfile::tempdir().doing(|| "cannot make a temporary directory".to_string()).map_err(|e| e.message)
}

fn here(context: &Context<'_>) -> Result<(), String> {
    let place = place()?;
    let (out, text) = doctor(context, place.path(), &[])?;
    let parts = ["Processor  ", "KVM        ", "QEMU       ", "Memory     ", "Rust       ", "\nGuests run with "];
    expect(&out, &text, 0, &parts)?;
    match text.lines().count() {
        0..=24 => Ok(()),
        lines => Err(format!("{lines} lines are more than a screen:\n{text}")),
    }
}

fn missing(context: &Context<'_>) -> Result<(), String> {
    let place = place()?;
    for (qemu, why) in [("/no/such/qemu", "QUIRE_QEMU=/no/such/qemu"), ("/bin/true", "/bin/true is no QEMU")] {
        let (out, text) = doctor(context, place.path(), &[("QUIRE_QEMU", qemu)])?;
        expect(&out, &text, 1, &["Guests cannot run yet.\nNeeded: ", why])?;
    }
    let (out, text) = doctor(context, place.path(), &[("QUIRE_ACCEL", "tcg")])?;
    expect(&out, &text, 0, &["Guests run with TCG (emulation), because $QUIRE_ACCEL says so."])
}
