//! What is measured: experiments with their cases, as the lab's program and [`guest`] give them, and the jobs that do
//! a round of them. A job is one process or one boot; a boot serves many cases.

use std::collections::BTreeMap;

use quire_results::{Case, Experiment, Kind, Mode, Place, Side};

use super::{guest, hosted};
use crate::{failure::Result, places::Places};

/// Everything that a run does.
pub struct Plan {
    /// How thoroughly.
    pub mode: Mode,
    /// With cases that have no samples yet.
    pub experiments: Vec<Experiment>,
    /// What is done to get them.
    pub jobs: Vec<Counted>,
}

/// A job, and how often it is done.
pub struct Counted {
    /// The job.
    pub what: Job,
    /// So often.
    pub rounds: u32,
    /// About how long one round takes, in seconds; what is told is mended by what was seen.
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
    /// These of its cases, such that what each program gives can be measured by itself.
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

/// What one round found for one case.
#[derive(Debug, PartialEq)]
pub struct CaseValues {
    /// Which.
    pub at: CaseId,
    /// A value for each measure; or why there is none.
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

/// A full run that has measured for so long, in seconds, begins no further round of what has [`LEAST`] already: so that it is
/// over, with all that comes before and after, within an hour and a half on two CPUs; where three rounds take longer, it is not.
pub const ENOUGH: f64 = 60.0 * 60.0;

/// So many samples everything but builds gets that is timed, however long it takes.
pub const LEAST: u32 = 3;

/// How often a case of this place is measured, where time allows ([`ENOUGH`]).
pub fn rounds(mode: Mode, place: Place, case: &Case) -> u32 {
    let counted = case.measures.values().all(|m| m.kind == Kind::Count);
    match (mode, place) {
        // A quick run is to be over in ten minutes; those of a Linux with large pages stand beside three of ours.
        (Mode::Quick, Place::GuestCounted) if case.side == Side::LinuxLarge => 1,
        // What is counted repeats; guests' counts do to some percent.
        (_, Place::GuestCounted) => LEAST,
        (_, _) if counted => 1,
        (Mode::Quick, Place::Guest) => 3,
        (Mode::Quick, _) => 3,
        (Mode::Full, Place::Guest) => 5,
        (Mode::Full, _) => 15,
    }
}

impl Plan {
    /// All experiments whose names are asked for, or all; the calibration comes along.
    pub fn make(places: &Places, mode: Mode, cpus: &[u32], linux: bool, names: &[String]) -> Result<Self> {
        let mut experiments = hosted::experiments(places, mode, cpus)?;
        let guests = guest::cases(mode, cpus, linux);
        guest::claims(&mut experiments);
        let asked = |name: &str| names.is_empty() || names.iter().any(|n| name.contains(n.as_str()));
        let any = experiments.iter().any(|e| asked(&e.name));
        experiments.retain(|e| any && (asked(&e.name) || e.name == guest::CALIBRATION));
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
        Ok(Self { mode, experiments, jobs })
    }

    /// Of the job that is done most often.
    pub fn most_rounds(&self) -> u32 {
        self.jobs.iter().map(|j| j.rounds).max().unwrap_or(0)
    }
}
