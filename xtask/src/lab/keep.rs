//! What was found so far: in `results.json` after every job, so that a run that is interrupted goes on where it was.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use quire_results::{Machine, Results, Run, VERSION};

use super::plan::{At, Counted, Found, Plan};
use crate::failure::{Doing, Failure, Result};

/// A run and its file.
pub struct Kept {
    file: PathBuf,
    run: Run,
    /// Held as long as this is measured: two runs into one directory would mix.
    _lock: fs::File,
}

impl Kept {
    /// Goes on with the unfinished run in the directory `out`, or begins one; a finished one is replaced.
    pub fn open(out: &Path, plan: &Plan, machine: Machine, again: bool) -> Result<Self> {
        fs::create_dir_all(out).doing(|| format!("cannot make {}", out.display()))?;
        let about = || format!("cannot use {}", out.display());
        let lock = fs::File::create(out.join("lock")).doing(about)?;
        lock.try_lock().map_err(|_| Failure::usage(format_args!("another run writes to {}", out.display())))?;
        let file = out.join("results.json");
        let mut run = Run {
            machine,
            began: now(),
            seconds: 0.0,
            mode: plan.mode,
            seed: fastrand::u64(..),
            experiments: plan.experiments.clone(),
            complete: false,
            remark: None,
        };
        if !again && file.exists() {
            let mut kept =
                Results::read(&file).map_err(|e| Failure::usage(format_args!("{e}; --again replaces it")))?;
            if let Some(old) = kept.runs.pop().filter(|r| !r.complete) {
                go_on(&mut run, old).map_err(|what| {
                    Failure::usage(format_args!(
                        "{} holds an unfinished run with {what}; --again begins a new one there, --out DIR elsewhere",
                        out.display()
                    ))
                })?;
                eprintln!("quire: going on with the run of {}", run.began);
            }
        }
        let kept = Self { file, run, _lock: lock };
        kept.write()?;
        Ok(kept)
    }

    /// The file.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// What was found.
    pub fn run(&self) -> &Run {
        &self.run
    }

    /// How many rounds of a job were done: every measure of its cases has so many samples.
    pub fn rounds_of(&self, job: &Counted) -> u32 {
        let samples = |at: &At| {
            let case = &self.run.experiments[at.experiment].cases[at.case];
            // What cannot be measured keeps nothing else waiting.
            (case.trouble.is_none()).then(|| case.measures.values().map(|m| m.samples.len() as u32).min().unwrap_or(0))
        };
        job.cases.iter().filter_map(samples).min().unwrap_or(0)
    }

    /// Whether nothing of a job can be measured.
    pub fn is_broken(&self, job: &Counted) -> bool {
        job.cases.iter().all(|at| self.run.experiments[at.experiment].cases[at.case].trouble.is_some())
    }

    /// Adds what a round found; true where something is missing.
    pub fn add(&mut self, job: &Counted, found: Vec<Found>, took: Duration) -> Result<bool> {
        let mut missing = false;
        for Found { at, values } in found {
            let case = &mut self.run.experiments[at.experiment].cases[at.case];
            match values {
                Ok(values) => {
                    for (name, value) in values {
                        if let Some(measure) = case.measures.get_mut(&name) {
                            measure.samples.push(value);
                        }
                    }
                }
                Err(why) => {
                    eprintln!("quire: {}: {why}", case.id());
                    case.trouble = Some(why);
                    missing = true;
                }
            }
        }
        let each = took.as_secs_f64() / job.cases.len().max(1) as f64;
        job.cases.iter().for_each(|at| self.run.experiments[at.experiment].seconds += each);
        self.run.seconds += took.as_secs_f64();
        self.write()?;
        Ok(missing)
    }

    /// Notes that a job cannot be done.
    pub fn break_off(&mut self, job: &Counted, why: &str) -> Result<()> {
        eprintln!("quire: {}: {why}", job.name());
        for at in &job.cases {
            self.run.experiments[at.experiment].cases[at.case].trouble = Some(why.to_owned());
        }
        self.write()
    }

    /// Everything was tried.
    pub fn finish(&mut self) -> Result<()> {
        self.run.complete = true;
        self.write()
    }

    /// The file is always whole: it is written beside and then takes the other's place.
    fn write(&self) -> Result<()> {
        let about = || format!("cannot write {}", self.file.display());
        let mut run = self.run.clone();
        for case in run.experiments.iter_mut().flat_map(|e| &mut e.cases) {
            case.measures.retain(|_, m| !m.samples.is_empty());
        }
        let directory = self.file.parent().unwrap_or(Path::new("."));
        let mut fresh = tempfile::NamedTempFile::new_in(directory).doing(about)?;
        let text = Results { schema: VERSION, runs: vec![run] }.to_json();
        fresh.write_all(text.as_bytes()).doing(about)?;
        fresh.persist(&self.file).map_err(|e| e.error).doing(about)?;
        Ok(())
    }
}

/// Takes over what an unfinished run found, or tells in what it differs.
fn go_on(run: &mut Run, old: Run) -> Result<(), String> {
    if old.mode != run.mode {
        return Err("another mode".to_owned());
    }
    if old.machine != run.machine {
        return Err("another machine or version".to_owned());
    }
    // What is not kept by git has no version, and may have changed.
    if !old.machine.versions.contains_key("Quire") {
        return Err("a tree without a version".to_owned());
    }
    let names = |r: &Run| r.experiments.iter().map(|e| e.name.clone()).collect::<Vec<_>>();
    if names(&old) != names(run) {
        return Err(format!("other experiments ({})", names(&old).join(", ")));
    }
    for (mine, theirs) in run.experiments.iter_mut().zip(old.experiments) {
        let mut cases: BTreeMap<String, _> = theirs.cases.into_iter().map(|c| (c.id(), c)).collect();
        let same = mine.cases.len() == cases.len() && mine.cases.iter().all(|c| cases.contains_key(&c.id()));
        if !same {
            return Err(format!("other cases of {}", mine.name));
        }
        mine.seconds = theirs.seconds;
        for case in &mut mine.cases {
            let Some(old) = cases.remove(&case.id()) else { continue };
            // Trouble may have been of the moment: it is tried again.
            for (name, measure) in old.measures {
                if let Some(mine) = case.measures.get_mut(&name) {
                    mine.samples = measure.samples;
                }
            }
        }
    }
    (run.began, run.seconds, run.seed) = (old.began, old.seconds, old.seed);
    Ok(())
}

/// The time, as RFC 3339 writes it.
fn now() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + since).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::{
        guest,
        plan::{Job, Plan},
    };
    use quire_results::{Mode, Side};

    fn machine() -> Machine {
        Machine {
            processor: "any".into(),
            cpus: 1,
            memory_mib: 1,
            system: "any".into(),
            emulator: "any".into(),
            versions: BTreeMap::from([("Quire".to_owned(), "0123456789ab".to_owned())]),
        }
    }

    /// The calibration alone.
    fn plan() -> Plan {
        let mut experiments = vec![guest::calibration()];
        let jobs = guest::boots(Mode::Quick, guest::cases(Mode::Quick, &[1], true), &mut experiments);
        Plan { mode: Mode::Quick, experiments, jobs }
    }

    fn found(plan: &Plan, job: &Counted, value: f64) -> Vec<Found> {
        let values = |at: &At| {
            let case = &plan.experiments[at.experiment].cases[at.case];
            Ok(case.measures.keys().map(|m| (m.clone(), value)).collect())
        };
        job.cases.iter().map(|at| Found { at: *at, values: values(at) }).collect()
    }

    #[test]
    fn a_run_that_was_interrupted_goes_on_where_it_was_and_a_finished_one_is_replaced() {
        let (plan, home) = (plan(), tempfile::tempdir().unwrap());
        let open = || Kept::open(home.path(), &plan, machine(), false);
        let mut kept = open().unwrap();
        let job = &plan.jobs[0];
        kept.add(job, found(&plan, job, 7.0), Duration::from_secs(2)).unwrap();
        assert!(open().is_err(), "two runs at once");
        let seed = kept.run().seed;
        drop(kept);
        let mut kept = open().unwrap();
        assert_eq!((kept.rounds_of(job), kept.rounds_of(&plan.jobs[1]), kept.run().seed), (1, 0, seed));
        assert_eq!(kept.run().seconds, 2.0);
        kept.finish().unwrap();
        drop(kept);
        assert_eq!(open().unwrap().rounds_of(job), 0);
    }

    #[test]
    fn an_unfinished_run_of_something_else_is_kept() {
        let (plan, home) = (plan(), tempfile::tempdir().unwrap());
        drop(Kept::open(home.path(), &plan, machine(), false).unwrap());
        let other = Machine { cpus: 2, ..machine() };
        let refused = Kept::open(home.path(), &plan, other.clone(), false).err().unwrap();
        assert!(refused.message.contains("another machine") && refused.message.contains("--again"), "{refused}");
        assert!(Kept::open(home.path(), &plan, other, true).is_ok());
    }

    #[test]
    fn an_unfinished_run_of_another_version_or_of_none_is_not_gone_on_with() {
        let of = |version: Option<&str>| {
            let versions = version.map(|v| ("Quire".to_owned(), v.to_owned())).into_iter().collect();
            Machine { versions, ..machine() }
        };
        for (before, now, why) in [
            (None, None, "without a version"),
            (Some("ab"), Some("cd"), "version"),
            (Some("ab-dirty-01"), Some("ab-dirty-02"), "version"),
        ] {
            let (plan, home) = (plan(), tempfile::tempdir().unwrap());
            drop(Kept::open(home.path(), &plan, of(before), false).unwrap());
            let refused = Kept::open(home.path(), &plan, of(now), false).err().unwrap();
            assert!(refused.message.contains(why), "{refused}");
        }
    }

    #[test]
    fn what_cannot_be_measured_is_told_and_keeps_nothing_waiting() {
        let (plan, home) = (plan(), tempfile::tempdir().unwrap());
        let mut kept = Kept::open(home.path(), &plan, machine(), false).unwrap();
        let ours = |j: &&Counted| matches!(&j.what, Job::Guest(b) if b.name().starts_with(Side::Ours.title()));
        let job = plan.jobs.iter().find(ours).unwrap();
        let mut all = found(&plan, job, 1.0);
        all[0].values = Err("gone".into());
        assert!(kept.add(job, all, Duration::ZERO).unwrap());
        assert_eq!((kept.rounds_of(job), kept.is_broken(job)), (1, false));
        kept.break_off(job, "no machine").unwrap();
        assert!(kept.is_broken(job));
        let read = Results::read(kept.file()).unwrap();
        assert!(read.runs[0].experiments[0].cases.iter().any(|c| c.trouble.as_deref() == Some("no machine")));
    }
}
