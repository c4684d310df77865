//! Runs programs of Debian, one machine for each script of `tests/servers`, with a root that is made of Debian
//! packages. A script's output must be that of Linux, which is in a file beside it. With `--soak` Linux runs the script
//! too, and must print the contents of that file.

use std::{fs, time::Duration};

use serde::Deserialize;

use super::{Context, verdict::Check};
use crate::{
    boot::{Kernel, On, Shape, TURNS},
    cli,
    failure::{Doing, Failure, Result},
    image::tree::Tree,
    machine::{
        outcome::Outcome,
        relay::{self, GuestOutput},
    },
    run,
};

const PLACE: &str = "tests/servers";
/// The scripts' directory in the guest.
const THERE: &str = "/servers";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Plan {
    machine: Vec<Machine>,
}

/// One machine.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Machine {
    /// The script's name without `.sh`.
    name: String,
    /// The packages, as for the option `--packages`.
    packages: String,
    /// The sources, as for the option `--sources`.
    #[serde(default)]
    sources: Option<String>,
    /// The machine's memory in MiB.
    memory: u64,
    /// The seconds after which the machine counts as hanging.
    seconds: u64,
    /// Whether the clock counts instructions, so that the run depends only on the kernel and the image. A script that
    /// computes much should not set this, because its two processors then share a core of the host.
    #[serde(default)]
    count: bool,
}

fn plan(context: &Context<'_>) -> Result<Vec<Machine>> {
    let path = context.places.root.join(PLACE).join("servers.toml");
    let text = fs::read_to_string(&path).doing(|| format!("cannot read {}", path.display()))?;
    let plan: Plan = toml::from_str(&text).map_err(|e| Failure::usage(format_args!("{}: {e}", path.display())))?;
    Ok(plan.machine)
}

/// The kernels that run a script, each with the name of its check.
fn sides(context: &Context<'_>, machine: &Machine) -> Vec<(On, String)> {
    let mut sides = vec![(On::Quire, format!("servers/{}", machine.name))];
    if context.soak {
        sides.push((On::Linux, format!("servers/linux/{}", machine.name)));
    }
    sides
}

/// The checks' names: one for each machine.
pub fn names(context: &Context<'_>) -> Result<Vec<String>> {
    Ok(plan(context)?.iter().flat_map(|m| sides(context, m)).map(|(_, name)| name).collect())
}

/// Boots a machine for each script that is selected.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    for machine in plan(context)? {
        for (on, name) in sides(context, &machine) {
            if context.selects(&name) {
                let result = boot(context, &machine, on, &name).map_err(|failure| failure.to_string());
                let result = result.and_then(|ended| judge(context, &machine, &ended));
                done(Check::of(name, result));
            }
        }
    }
    Ok(())
}

fn boot(context: &Context<'_>, machine: &Machine, on: On, name: &str) -> Result<GuestOutput> {
    let kernel = match on {
        On::Quire => Kernel::with(context.places, on, || context.kernel())?,
        On::Linux => Kernel::ready(context.places, on)?,
    };
    let mut scripts = context.places.root.join(PLACE).into_os_string();
    scripts.push(format!(":{THERE}"));
    let guest = cli::Guest {
        packages: Some(machine.packages.clone()),
        sources: machine.sources.clone(),
        copy: vec![scripts],
        ..cli::Guest::of(2, machine.memory)
    };
    // A machine with a counted clock gets no input, not even an end of file.
    let words = ["bash".into(), "-c".into(), format!("exec bash {THERE}/{}.sh </dev/null", machine.name).into()];
    let (tree, order): (Tree, _) = run::prepare(context.places, &guest, &words, false)?;
    let image = kernel.image(tree, &order)?;
    let limit = Duration::from_secs(machine.seconds);
    let shape = Shape { cpus: guest.cpus, memory: guest.memory, ..Shape::default() };
    let ended = if machine.count && on == On::Quire {
        let shape = Shape { count: true, append: TURNS.to_owned(), ..shape };
        // The limit is longer, because its processors share a core with the host's other work.
        relay::silent(kernel.start(&image, &shape)?, limit * 5)?
    } else {
        kernel.kept(&image, &shape, limit)?
    };
    let kept = [&ended.output[..], &ended.errors[..], ended.report.log_tail.as_bytes()].concat();
    fs::write(context.log_path(name), kept).doing(|| "cannot keep the output".to_string())?;
    Ok(ended)
}

fn judge(context: &Context<'_>, machine: &Machine, ended: &GuestOutput) -> Result<(), String> {
    let path = context.places.root.join(PLACE).join(format!("{}.linux.txt", machine.name));
    let expected = fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    let (said, errors) = (String::from_utf8_lossy(&ended.output), String::from_utf8_lossy(&ended.errors));
    let log = run::last_lines(&ended.report.log_tail, 20);
    let wrong = match difference(&expected, &said) {
        None if ended.report.outcome == Outcome::Exit(0) => return Ok(()),
        None => format!("{:?}", ended.report.outcome),
        Some(difference) => difference,
    };
    Err(format!("{wrong}\n{}the log ends:\n{log}", run::last_lines(&errors, 60)))
}

/// Returns the lines in which two texts differ; `None` if they are equal.
fn difference(expected: &str, found: &str) -> Option<String> {
    let missing = expected.lines().filter(|line| !found.lines().any(|l| l == *line)).map(|l| format!("- {l}"));
    let more = found.lines().filter(|line| !expected.lines().any(|l| l == *line)).map(|l| format!("+ {l}"));
    let all: Vec<String> = missing.chain(more).collect();
    match all.is_empty() {
        true if expected == found => None,
        true => Some("the lines come in another order, or more often".to_owned()),
        false => Some(all.join("\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_named() {
        assert_eq!(difference("ok a\nok b\n", "ok a\nok b\n"), None);
        assert_eq!(difference("ok a\nok b\n", "ok a\nNOT b\n").as_deref(), Some("- ok b\n+ NOT b"));
        assert!(difference("ok a\nok b\n", "ok b\nok a\n").is_some());
    }
}
