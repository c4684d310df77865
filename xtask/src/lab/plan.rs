//! The plan of a run: experiments with their cases, from the lab's program and from [`guest`], and the jobs that
//! measure them. A job is one process or one boot. A boot serves many cases.

use std::collections::BTreeMap;

use quire_results::{Case, Experiment, Kind, Mode, Place, Side};

use super::{guest, hosted, servers};
use crate::{failure::Result, places::Places};

/// Everything that a run does.
pub struct Plan {
    /// How thoroughly.
    pub mode: Mode,
    /// With cases that have no samples yet.
    pub experiments: Vec<Experiment>,
    /// The jobs that give the samples.
    pub jobs: Vec<Counted>,
}

/// A job, and how often it is done.
pub struct Counted {
    /// The job.
    pub what: Job,
    /// The number of its rounds.
    pub rounds: u32,
    /// The estimated seconds of one round. The countdown corrects it by the time of earlier rounds.
    pub seconds: f64,
    /// The cases that it gives samples to.
    pub cases: Vec<CaseId>,
}

/// One process, or one boot.
pub enum Job {
    /// A case of the lab's program.
    Hosted(hosted::Process),
    /// A boot.
    Guest(guest::Boot),
}

impl Job {
    /// These of its cases, in groups that can be measured separately: one for each program.
    pub fn apart(&self, cases: &[CaseId]) -> Vec<Vec<CaseId>> {
        match self {
            Job::Hosted(_) => vec![cases.to_vec()],
            Job::Guest(boot) => boot.apart(cases),
        }
    }
}

/// A case of the plan: the experiment's place in it, and the case's there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CaseId {
    /// Of [`Plan::experiments`].
    pub experiment: usize,
    /// Of its cases.
    pub case: usize,
}

/// The values of one round for one case.
#[derive(Debug, PartialEq)]
pub struct CaseValues {
    /// Which.
    pub at: CaseId,
    /// A value for each measure, or the reason for its absence.
    pub values: Result<BTreeMap<String, f64>, String>,
}

impl Counted {
    /// For people.
    pub fn name(&self) -> String {
        match &self.what {
            Job::Hosted(process) => process.name(),
            Job::Guest(boot) => boot.name(),
        }
    }
}

/// After this number of seconds, a full run begins no further round beyond [`LEAST`]. On two CPUs the run then ends
/// within an hour and a half, builds and page included. It takes longer where three rounds do.
pub const ENOUGH: f64 = 60.0 * 60.0;

/// The least number of samples for times, except those of builds. It does not depend on the time that they take.
pub const LEAST: u32 = 3;

/// The number of rounds of a case in this place, if time allows ([`ENOUGH`]).
pub fn rounds(mode: Mode, place: Place, case: &Case) -> u32 {
    let counted = case.measures.values().all(|m| m.kind == Kind::Count);
    match (mode, place) {
        // A quick run should end within ten minutes. One round of a Linux with large pages stands beside three of ours.
        (Mode::Quick, Place::GuestCounted) if case.side == Side::LinuxLarge => 1,
        // Counts repeat exactly, but those of guests only to some percent.
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
        // A server takes minutes, so a quick run has one only where its name is given.
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
