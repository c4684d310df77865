//! The results of a run so far. `results.json` is written after every job, so that an interrupted run can continue
//! after its last job.

use std::{
    collections::BTreeMap,
    fs,
    io::Write as _,
    path::{Path, PathBuf},
    time::Duration,
};

use quire_results::{Case, Machine, Results, Run, VERSION};

use super::plan::{CaseId, CaseValues, Counted, Plan};
use crate::failure::{Doing, Failure, Result};

/// A run, and the file with its results.
pub struct RunFile {
    file: PathBuf,
    run: Run,
    /// The lock of the directory, held while this run measures. The results of two runs would mix in one directory.
    _lock: Lock,
}

/// A locked file, which is unlocked explicitly on drop. Closing the file would not be enough: a child process inherits
/// the descriptor, and holds it until it executes its program.
struct Lock(fs::File);

impl Drop for Lock {
    fn drop(&mut self) {
        // If the unlock fails, the lock ends when the last descriptor is closed.
        let _unlocked = self.0.unlock();
    }
}

impl RunFile {
    /// Continues the unfinished run in the directory `out`, or begins a new run. With `again` it always begins a new
    /// run. Results of an earlier run that cannot continue are renamed.
    pub fn open(out: &Path, plan: &Plan, machine: Machine, again: bool) -> Result<Self> {
        fs::create_dir_all(out).doing(|| format!("cannot make {}", out.display()))?;
        let about = || format!("cannot use {}", out.display());
        let lock = fs::File::create(out.join("lock")).doing(about)?;
        lock.try_lock().map_err(|_| Failure::usage(format_args!("another run writes to {}", out.display())))?;
        let lock = Lock(lock);
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
        let earlier = match Results::read(&file) {
            _ if !file.exists() => None,
            Ok(mut kept) => kept.runs.pop(),
            Err(_) if again => {
                rename_aside(out, "unread")?;
                None
            }
            Err(e) => return Err(Failure::usage(format_args!("{e}; --again moves the old run aside"))),
        };
        match earlier {
            Some(old) if again || old.complete => set_aside(out, &old)?,
            Some(old) => match go_on(&mut run, &old) {
                Ok(()) => eprintln!("quire: the lab continues the run of {}", run.began),
                // The old run tried every case, so it may be renamed. Only the retries of its failed cases are lost.
                Err(_) if was_tried(&old) => set_aside(out, &old)?,
                Err(what) => {
                    return Err(Failure::usage(format_args!(
                        "{} holds an unfinished run with {what}; --again moves it aside and begins a new run, --out \
                         DIR begins one in DIR",
                        out.display()
                    )));
                }
            },
            None => {}
        }
        let kept = Self { file, run, _lock: lock };
        kept.write()?;
        Ok(kept)
    }

    /// The path of `results.json`.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// The run with its results so far.
    pub fn run(&self) -> &Run {
        &self.run
    }

    fn case(&self, at: CaseId) -> &Case {
        &self.run.experiments[at.experiment].cases[at.case]
    }

    /// Whether this round of a case must still be measured. A case in trouble has no more rounds until
    /// [`RunFile::forgive`].
    pub fn lacks(&self, at: CaseId, round: u32) -> bool {
        let case = self.case(at);
        let done = case.measures.values().map(|m| m.samples.len() as u32).min().unwrap_or(0);
        case.trouble.is_none() && done <= round
    }

    /// Whether some case of a job could not be measured.
    pub fn is_in_trouble(&self, job: &Counted) -> bool {
        job.cases.iter().any(|at| self.case(*at).trouble.is_some())
    }

    /// Clears the trouble of a job's cases, so that they are tried again. The cause may have been temporary.
    pub fn forgive(&mut self, job: &Counted) {
        job.cases.iter().for_each(|at| self.run.experiments[at.experiment].cases[at.case].trouble = None);
    }

    /// The number of cases that could not be measured.
    pub fn troubles(&self) -> usize {
        self.run.experiments.iter().flat_map(|e| &e.cases).filter(|c| c.trouble.is_some()).count()
    }

    /// Whether the same command can continue this run.
    pub fn can_go_on(&self) -> bool {
        has_version(&self.run)
    }

    fn took(&mut self, cases: &[CaseId], took: Duration) {
        let each = took.as_secs_f64() / cases.len().max(1) as f64;
        cases.iter().for_each(|at| self.run.experiments[at.experiment].seconds += each);
        self.run.seconds += took.as_secs_f64();
    }

    /// Adds the values that one round of a job measured.
    pub fn add(&mut self, found: Vec<CaseValues>, took: Duration) -> Result<()> {
        self.took(&found.iter().map(|f| f.at).collect::<Vec<_>>(), took);
        for CaseValues { at, values } in found {
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
                }
            }
        }
        self.write()
    }

    /// Records that these cases of a job cannot be measured, and why.
    pub fn break_off(&mut self, job: &Counted, cases: &[CaseId], why: &str, took: Duration) -> Result<()> {
        eprintln!("quire: {}: {why}", job.name());
        self.took(cases, took);
        for at in cases {
            self.run.experiments[at.experiment].cases[at.case].trouble = Some(why.to_owned());
        }
        self.write()
    }

    /// Ends the run. The run is complete if no case is in trouble. Otherwise the same command can continue it.
    pub fn finish(&mut self) -> Result<()> {
        self.run.complete = self.troubles() == 0;
        self.write()
    }

    /// Writes the results file. The file is never partly written, because a temporary file is written first and then
    /// renamed.
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

fn has_version(run: &Run) -> bool {
    run.machine.versions.contains_key("Quire")
}

/// Whether an incomplete run tried every case: each case has figures, or a reason for having none.
fn was_tried(run: &Run) -> bool {
    let cases = || run.experiments.iter().flat_map(|e| &e.cases);
    cases().any(|c| c.trouble.is_some()) && cases().all(|c| c.trouble.is_some() || !c.measures.is_empty())
}

/// Renames the results and the page of an old run. The results of a run without samples are not kept.
fn set_aside(out: &Path, old: &Run) -> Result<()> {
    let mut measures = old.experiments.iter().flat_map(|e| &e.cases).flat_map(|c| c.measures.values());
    if measures.all(|m| m.samples.is_empty()) {
        return Ok(());
    }
    // The time is read from a file, so it may contain characters that are invalid in a file name.
    let began: String = old.began.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let kept = rename_aside(out, &began)?;
    eprintln!("quire: the run of {} is kept as {}", old.began, kept.display());
    Ok(())
}

/// Adds `began` to the names of the file and the page. Returns the new name of the file.
fn rename_aside(out: &Path, began: &str) -> Result<PathBuf> {
    let named = |what: &str, number: u32, kind: &str| match number {
        1 => out.join(format!("{what}-{began}.{kind}")),
        n => out.join(format!("{what}-{began}-{n}.{kind}")),
    };
    let free = |n: &u32| !named("results", *n, "json").exists() && !named("report", *n, "html").exists();
    let number = (1..).find(free).unwrap_or(1);
    for (what, kind) in [("results", "json"), ("report", "html")] {
        let (from, to) = (out.join(format!("{what}.{kind}")), named(what, number, kind));
        if from.exists() {
            fs::rename(&from, &to).doing(|| format!("cannot set {} aside", from.display()))?;
        }
    }
    Ok(named("results", number, "json"))
}

/// Copies the samples of an unfinished run. If the runs differ, returns the difference that forbids the copy.
fn go_on(run: &mut Run, old: &Run) -> Result<(), String> {
    if old.mode != run.mode {
        return Err("another mode".to_owned());
    }
    if old.machine != run.machine {
        return Err("another machine or version".to_owned());
    }
    // A tree outside git has no version, so its sources may have changed since the old run.
    if !has_version(old) {
        return Err("the source tree has no version".to_owned());
    }
    let names = |r: &Run| r.experiments.iter().map(|e| e.name.clone()).collect::<Vec<_>>();
    if names(old) != names(run) {
        return Err(format!("other experiments ({})", names(old).join(", ")));
    }
    let by_id = |cases: &'_ [Case]| cases.iter().map(|c| (c.id(), c.clone())).collect::<BTreeMap<_, _>>();
    for (mine, theirs) in run.experiments.iter().zip(&old.experiments) {
        let cases = by_id(&theirs.cases);
        if mine.cases.len() != cases.len() || !mine.cases.iter().all(|c| cases.contains_key(&c.id())) {
            return Err(format!("other cases of {}", mine.name));
        }
    }
    for (mine, theirs) in run.experiments.iter_mut().zip(&old.experiments) {
        let mut cases = by_id(&theirs.cases);
        mine.seconds = theirs.seconds;
        for case in &mut mine.cases {
            let Some(old) = cases.remove(&case.id()) else { continue };
            // Trouble is not copied, because its cause may have been temporary.
            for (name, measure) in old.measures {
                if let Some(mine) = case.measures.get_mut(&name) {
                    mine.samples = measure.samples;
                }
            }
        }
    }
    (run.began, run.seconds, run.seed) = (old.began.clone(), old.seconds, old.seed);
    run.remark.clone_from(&old.remark);
    Ok(())
}

/// The current time, in the format of RFC 3339.
pub fn now() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    humantime::format_rfc3339_seconds(std::time::UNIX_EPOCH + since).to_string()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::lab::{
        guest,
        plan::{Job, Plan},
    };
    use quire_results::{Mode, Side};

    pub fn machine() -> Machine {
        Machine {
            processor: "any".into(),
            cpus: 1,
            memory_mib: 1,
            system: "any".into(),
            emulator: "any".into(),
            versions: BTreeMap::from([("Quire".to_owned(), "0123456789ab".to_owned())]),
        }
    }

    /// A plan with only the calibration experiment.
    pub fn plan() -> Plan {
        let mut experiments = vec![guest::tests::calibration()];
        let jobs = guest::boots(Mode::Quick, guest::cases(Mode::Quick, &[1], true), &mut experiments);
        Plan { mode: Mode::Quick, experiments, jobs }
    }

    fn found(plan: &Plan, job: &Counted, value: f64) -> Vec<CaseValues> {
        let values = |at: &CaseId| {
            let case = &plan.experiments[at.experiment].cases[at.case];
            Ok(case.measures.keys().map(|m| (m.clone(), value)).collect())
        };
        job.cases.iter().map(|at| CaseValues { at: *at, values: values(at) }).collect()
    }

    /// The number of rounds of a job that are done.
    fn rounds_of(kept: &RunFile, job: &Counted) -> u32 {
        (0..).find(|round| job.cases.iter().any(|at| kept.lacks(*at, *round))).unwrap()
    }

    #[test]
    fn an_interrupted_run_resumes_and_a_finished_run_is_set_aside() {
        let (plan, home) = (plan(), tempfile::tempdir().unwrap());
        let open = || RunFile::open(home.path(), &plan, machine(), false);
        let mut kept = open().unwrap();
        let job = &plan.jobs[0];
        kept.add(found(&plan, job, 7.0), Duration::from_secs(2)).unwrap();
        assert!(open().is_err(), "two runs at once");
        let seed = kept.run().seed;
        drop(kept);
        let mut kept = open().unwrap();
        assert_eq!((rounds_of(&kept, job), rounds_of(&kept, &plan.jobs[1]), kept.run().seed), (1, 0, seed));
        assert_eq!(kept.run().seconds, 2.0);
        kept.finish().unwrap();
        drop(kept);
        assert_eq!(rounds_of(&open().unwrap(), job), 0);
        assert_eq!(aside(home.path()), 1);
    }

    /// The number of renamed runs. All of them must be readable.
    fn aside(home: &Path) -> usize {
        let names = fs::read_dir(home).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        let names: Vec<String> = names.filter(|n| n.starts_with("results-")).collect();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
        for name in &names {
            assert!(name.chars().all(plain), "{name}");
            Results::read(&home.join(name)).unwrap();
        }
        names.len()
    }

    #[test]
    fn results_of_runs_are_never_replaced_and_keep_their_pages() {
        let (plan, home) = (plan(), tempfile::tempdir().unwrap());
        let job = &plan.jobs[0];
        let page = home.path().join("report.html");
        // The last run is unfinished, and `--again` does not continue it.
        for (number, again) in [(0, false), (1, false), (2, false), (3, true)] {
            let mut kept = RunFile::open(home.path(), &plan, machine(), again).unwrap();
            assert_eq!((aside(home.path()), rounds_of(&kept, job), page.exists()), (number, 0, false));
            kept.add(found(&plan, job, 7.0), Duration::ZERO).unwrap();
            // All runs get the same time, as if they had begun in the same second.
            kept.run.began = "2026-11-24T03:58:05Z/..".to_owned();
            if number < 2 {
                kept.finish().unwrap()
            } else {
                kept.write().unwrap()
            }
            fs::write(&page, "page").unwrap();
        }
        let pages = fs::read_dir(home.path())
            .unwrap()
            .filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().starts_with("report-2026-11-24T03-58-05Z"));
        assert_eq!(pages.count(), 3);
        // A run without samples leaves no file.
        drop(RunFile::open(home.path(), &plan, machine(), true).unwrap());
        drop(RunFile::open(home.path(), &plan, machine(), true).unwrap());
        assert_eq!(aside(home.path()), 4);
    }

    #[test]
    fn an_unfinished_run_of_something_else_is_kept() {
        let (plan, home) = (plan(), tempfile::tempdir().unwrap());
        drop(RunFile::open(home.path(), &plan, machine(), false).unwrap());
        let other = Machine { cpus: 2, ..machine() };
        let refused = RunFile::open(home.path(), &plan, other.clone(), false).err().unwrap();
        assert!(refused.message.contains("another machine") && refused.message.contains("--again"), "{refused}");
        assert!(RunFile::open(home.path(), &plan, other, true).is_ok());
    }

    #[test]
    fn an_unfinished_run_of_another_or_no_version_is_not_resumed() {
        let of = |version: Option<&str>| {
            let versions = version.map(|v| ("Quire".to_owned(), v.to_owned())).into_iter().collect();
            Machine { versions, ..machine() }
        };
        for (before, now, why) in [
            (None, None, "has no version"),
            (Some("ab"), Some("cd"), "version"),
            (Some("ab-dirty-01"), Some("ab-dirty-02"), "version"),
        ] {
            let (plan, home) = (plan(), tempfile::tempdir().unwrap());
            drop(RunFile::open(home.path(), &plan, of(before), false).unwrap());
            let refused = RunFile::open(home.path(), &plan, of(now), false).err().unwrap();
            assert!(refused.message.contains(why), "{refused}");
        }
    }

    #[test]
    fn a_complete_run_with_trouble_does_not_block_a_later_version() {
        let (plan, home) = (plan(), tempfile::tempdir().unwrap());
        let other = Machine { versions: BTreeMap::from([("Quire".to_owned(), "cd".to_owned())]), ..machine() };
        let mut kept = RunFile::open(home.path(), &plan, machine(), false).unwrap();
        for job in &plan.jobs[1..] {
            kept.add(found(&plan, job, 7.0), Duration::ZERO).unwrap();
        }
        drop(kept);
        assert!(RunFile::open(home.path(), &plan, other.clone(), false).is_err(), "it was interrupted");
        let mut kept = RunFile::open(home.path(), &plan, machine(), false).unwrap();
        kept.break_off(&plan.jobs[0], &plan.jobs[0].cases, "no machine", Duration::from_secs(3)).unwrap();
        kept.run.remark = Some("the machine was busy".to_owned());
        kept.finish().unwrap();
        assert_eq!((kept.run().seconds, kept.run().complete, kept.can_go_on()), (3.0, false, true));
        drop(kept);
        let kept = RunFile::open(home.path(), &plan, machine(), false).unwrap();
        assert_eq!(kept.run().remark.as_deref(), Some("the machine was busy"));
        drop(kept);
        // The continued run cleared the trouble. Then its cases are in trouble again, so every case was tried. A run of
        // another version may therefore rename the old run's results.
        let mut kept = RunFile::open(home.path(), &plan, machine(), false).unwrap();
        kept.break_off(&plan.jobs[0], &plan.jobs[0].cases, "no machine", Duration::ZERO).unwrap();
        drop(kept);
        assert!(RunFile::open(home.path(), &plan, other, false).is_ok());
        assert_eq!(aside(home.path()), 1);
    }

    #[test]
    fn an_unreadable_run_is_set_aside_too() {
        let (plan, home) = (plan(), tempfile::tempdir().unwrap());
        fs::write(home.path().join("results.json"), "{\"schema\": 0, \"runs\": []}").unwrap();
        let refused = RunFile::open(home.path(), &plan, machine(), false).err().unwrap();
        assert!(refused.message.contains("--again moves the old run aside"), "{refused}");
        drop(RunFile::open(home.path(), &plan, machine(), true).unwrap());
        assert!(home.path().join("results-unread.json").exists());
    }

    #[test]
    fn a_failed_measurement_is_reported_and_retried_alone() {
        let (plan, home) = (plan(), tempfile::tempdir().unwrap());
        let open = || RunFile::open(home.path(), &plan, machine(), false).unwrap();
        let mut kept = open();
        let ours = |j: &&Counted| matches!(&j.what, Job::Guest(b) if b.name().starts_with(Side::Ours.title()));
        let job = plan.jobs.iter().find(ours).unwrap();
        let mut all = found(&plan, job, 1.0);
        all[0].values = Err("gone".into());
        kept.add(all, Duration::ZERO).unwrap();
        let lack = |kept: &RunFile, round| job.cases.iter().filter(|at| kept.lacks(**at, round)).count();
        assert_eq!((lack(&kept, 0), lack(&kept, 1), kept.troubles()), (0, job.cases.len() - 1, 1));
        let read = Results::read(kept.file()).unwrap();
        assert!(read.runs[0].experiments[0].cases.iter().any(|c| c.trouble.as_deref() == Some("gone")));
        // The same command tries this case again, and no other case of that round.
        kept.finish().unwrap();
        assert!(!kept.run().complete);
        drop(kept);
        let mut kept = open();
        assert_eq!((lack(&kept, 0), kept.troubles()), (1, 0));
        kept.break_off(job, &job.cases, "no machine", Duration::ZERO).unwrap();
        assert!(kept.is_in_trouble(job) && lack(&kept, 9) == 0);
        kept.forgive(job);
        assert!(!kept.is_in_trouble(job) && lack(&kept, 0) == 1);
        kept.add(found(&plan, job, 1.0), Duration::ZERO).unwrap();
        kept.finish().unwrap();
        assert!(kept.run().complete);
    }
}
