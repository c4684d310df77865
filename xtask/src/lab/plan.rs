//! The plan of a run. It has the experiments with their cases, from the lab's program and from [`guest`], and the jobs
//! that measure the cases. A job is one process or one boot. A boot measures many cases.

use std::collections::BTreeMap;

use quire_results::{Case, Experiment, Kind, Mode, Place, Side};

use super::{guest, hosted, servers};
use crate::{failure::Result, places::Places};

/// All work of a run.
pub struct Plan {
    /// How thoroughly the run measures.
    pub mode: Mode,
    /// The experiments, with cases that have no samples yet.
    pub experiments: Vec<Experiment>,
    /// The jobs that measure the samples.
    pub jobs: Vec<Counted>,
}

/// A job, and the number of times that it is done.
pub struct Counted {
    /// The job.
    pub what: Job,
    /// The number of its rounds.
    pub rounds: u32,
    /// The estimated seconds of one round. The countdown corrects it by the time of earlier rounds.
    pub seconds: f64,
    /// The cases that the job measures.
    pub cases: Vec<CaseId>,
}

/// The work of one round of a job: one process, or one boot.
pub enum Job {
    /// A process of the lab's program, which measures one case.
    Hosted(hosted::Process),
    /// A boot of a guest, which measures one or more cases.
    Guest(guest::Boot),
}

impl Job {
    /// Splits these cases of the job into groups that can be measured separately: one group for each program.
    pub fn apart(&self, cases: &[CaseId]) -> Vec<Vec<CaseId>> {
        match self {
            Job::Hosted(_) => vec![cases.to_vec()],
            Job::Guest(boot) => boot.apart(cases),
        }
    }
}

/// The position of a case in the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CaseId {
    /// The index in [`Plan::experiments`].
    pub experiment: usize,
    /// The index in the experiment's cases.
    pub case: usize,
}

/// The values of one round for one case.
#[derive(Debug, PartialEq)]
pub struct CaseValues {
    /// The case that was measured.
    pub at: CaseId,
    /// A value for each measure, or the reason why the values are missing.
    pub values: Result<BTreeMap<String, f64>, String>,
}

impl Counted {
    /// The job's name in the output for people.
    pub fn name(&self) -> String {
        match &self.what {
            Job::Hosted(process) => process.name(),
            Job::Guest(boot) => boot.name(),
        }
    }
}

/// The seconds after which a full run begins no further round, except the first [`LEAST`] rounds of each case. On two
/// CPUs, the run then ends within an hour and a half, including the builds and the page. It takes longer only if these
/// first rounds take longer.
pub const ENOUGH: f64 = 60.0 * 60.0;

/// The least number of samples for times, except those of builds. This number does not depend on the time that a round
/// takes.
pub const LEAST: u32 = 3;

/// The number of rounds of a case in this place, if the time is sufficient ([`ENOUGH`]).
pub fn rounds(mode: Mode, place: Place, case: &Case) -> u32 {
    let counted = case.measures.values().all(|m| m.kind == Kind::Count);
    match (mode, place) {
        // A quick run should end within ten minutes. Therefore Linux with large pages gets one round, and the other
        // sides get three.
        (Mode::Quick, Place::GuestCounted) if case.side == Side::LinuxLarge => 1,
        // Counts are exactly equal in each round, but counts of guests vary by some percent.
        (_, Place::GuestCounted) => LEAST,
        (_, _) if counted => 1,
        (Mode::Quick, Place::Guest) => 3,
        (Mode::Quick, _) => 3,
        (Mode::Full, Place::Guest) => 5,
        (Mode::Full, _) => 15,
    }
}

impl Plan {
    /// Plans the experiments with these names, or all. The calibration is always planned too.
    pub fn make(places: &Places, mode: Mode, cpus: &[u32], linux: bool, names: &[String]) -> Result<Self> {
        let scale = if mode == Mode::Full { "full" } else { "quick" };
        let experiments = hosted::experiments(places, scale, cpus)?;
        Ok(Self::of(mode, experiments, guest::cases(mode, cpus, linux), names))
    }

    /// Plans one round of the smallest cases, without Linux.
    pub fn short(places: &Places, cpus: &[u32], names: &[String]) -> Result<Self> {
        let experiments = hosted::experiments(places, "tiny", cpus)?;
        let mut plan = Self::of(Mode::Quick, experiments, guest::smallest(cpus), names);
        plan.jobs.iter_mut().for_each(|job| job.rounds = 1);
        Ok(plan)
    }

    fn of(mode: Mode, mut experiments: Vec<Experiment>, guests: Vec<guest::Planned>, names: &[String]) -> Self {
        guest::claims(&mut experiments);
        let asked = |name: &str| names.is_empty() || names.iter().any(|n| name.contains(n.as_str()));
        let any = experiments.iter().any(|e| asked(&e.name));
        // A server takes minutes. So a quick run includes a server only if its name is given.
        let short = |name: &str| mode == Mode::Full || !names.is_empty() || !servers::is_one(name);
        experiments.retain(|e| any && (asked(&e.name) && short(&e.name) || e.name == guest::CALIBRATION));
        let mut jobs = Vec::new();
        for (experiment, e) in experiments.iter_mut().enumerate() {
            e.command = format!("./quire lab {}{}", e.name, if mode == Mode::Full { " --full" } else { "" });
            for (case, c) in e.cases.iter().enumerate() {
                jobs.push(Counted {
                    rounds: rounds(mode, c.place, c),
                    seconds: hosted::seconds(mode, c.place),
                    what: Job::Hosted(hosted::Process::of(CaseId { experiment, case }, c)),
                    cases: vec![CaseId { experiment, case }],
                });
            }
        }
        jobs.extend(guest::boots(mode, guests, &mut experiments));
        Self { mode, experiments, jobs }
    }

    /// The largest number of rounds of a job.
    pub fn most_rounds(&self) -> u32 {
        self.jobs.iter().map(|j| j.rounds).max().unwrap_or(0)
    }
}
