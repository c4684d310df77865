//! The cases that the lab's own program measures. Each round is a process of its own.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::{Command, Stdio},
};

use quire_results::{Case, Experiment, Mode, Place};

use super::plan::{CaseId, CaseValues, Job, Plan};
use crate::{
    bench, compare,
    failure::{Doing, Failure, Result},
    places::Places,
};

/// The process of one round of a case.
pub struct Process {
    at: CaseId,
    place: Place,
    arguments: Vec<String>,
    measures: Vec<String>,
}

impl Process {
    /// The process of a planned case. The command of the case has the arguments of the lab's program.
    pub fn of(at: CaseId, case: &Case) -> Self {
        let arguments = case.command.split_whitespace().map(str::to_owned).collect();
        Self { at, place: case.place, arguments, measures: case.measures.keys().cloned().collect() }
    }

    /// The name of the process in the output for people.
    pub fn name(&self) -> String {
        self.arguments.iter().skip(1).map(String::as_str).collect::<Vec<_>>().join(" ")
    }
}

/// The estimated seconds of a round in this mode and place.
pub fn seconds(mode: Mode, place: Place) -> f64 {
    match (mode, place) {
        (Mode::Quick, Place::Cachegrind) => 3.0,
        (Mode::Quick, _) => 0.4,
        (Mode::Full, Place::Cachegrind) => 30.0,
        (Mode::Full, _) => 2.0,
    }
}

/// The experiments with their hosted cases, as the lab's program lists them for this scale.
pub fn experiments(places: &Places, scale: &str, cpus: &[u32]) -> Result<Vec<Experiment>> {
    let about = || "cannot start the lab's program to list its experiments".to_string();
    let cpus: Vec<String> = cpus.iter().map(u32::to_string).collect();
    let out = Command::new(bench::build_native(places)?)
        .args(["experiments", "--mode", scale, "--cpus", &cpus.join(",")])
        .stderr(Stdio::inherit())
        .output()
        .doing(about)?;
    if !out.status.success() {
        return Err(Failure::usage(format_args!("the lab's program did not list its experiments ({})", out.status)));
    }
    serde_json::from_slice(&out.stdout).doing(about)
}

/// The paths of the lab's programs. `recording` is built only if a job needs it.
pub struct Lab {
    native: PathBuf,
    recording: Option<PathBuf>,
}

impl Lab {
    /// Builds the programs that the plan needs.
    pub fn ready(places: &Places, plan: &Plan) -> Result<Self> {
        let records = |job: &Job| matches!(job, Job::Hosted(p) if p.place == Place::Recording);
        let recording =
            plan.jobs.iter().any(|j| records(&j.what)).then(|| bench::build_recording(places)).transpose()?;
        Ok(Self { native: bench::build_native(places)?, recording })
    }

    /// Runs the process of one round, and returns the values of its case.
    pub fn run(&self, process: &Process) -> Result<Vec<CaseValues>> {
        let program = match (process.place, &self.recording) {
            (Place::Recording, Some(recording)) => recording,
            _ => &self.native,
        };
        let out = Command::new(program)
            .args(&process.arguments)
            .stdin(Stdio::null())
            .output()
            .doing(|| "cannot run the lab".to_string())?;
        let values = if out.status.success() {
            values(&String::from_utf8_lossy(&out.stdout), &process.measures)
        } else {
            let errors = String::from_utf8_lossy(&out.stderr).into_owned();
            let last = errors.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("no word of it");
            Err(format!("{}: {last}", out.status))
        };
        Ok(vec![CaseValues { at: process.at, values }])
    }
}

/// The values of all measures in the output of the lab's program. The error names a missing measure.
fn values(text: &str, measures: &[String]) -> Result<BTreeMap<String, f64>, String> {
    let lines: BTreeMap<String, f64> = compare::parse(text).into_iter().map(|l| (l.name, l.value)).collect();
    measures
        .iter()
        .map(|m| Ok((m.clone(), *lines.get(m).ok_or_else(|| format!("the lab's program did not print {m}"))?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measure_must_be_printed() {
        let wanted = ["a".to_owned(), "b".to_owned()];
        assert_eq!(values("a 1 x\nb 2 y\nc 3 z\n", &wanted).unwrap()["b"], 2.0);
        assert_eq!(values("a 1 x\n", &wanted), Err("the lab's program did not print b".to_owned()));
    }
}
