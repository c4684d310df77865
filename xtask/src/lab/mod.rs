//! `./quire lab`: reruns the experiment of each *source*, a published design, with four designs. They are the design
//! that the source replaced (*before*), the source's own (*after*), Quire and Linux. The command keeps every sample in
//! `results.json`, and draws `report.html` with the crate `quire-report`. [`plan`] lists the cases. [`guest`] and
//! [`hosted`] do one round of a case. [`keep`] holds the results, and [`table`] prints them. The document `docs/lab.md`
//! describes how to read and extend the lab.

mod guest;
mod hosted;
mod keep;
pub mod kept;
mod machine;
mod plan;
mod servers;
mod status;
mod table;

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    time::Instant,
};

use quire_report::Beside;
use quire_results::{Mode, Results, conflicts::Conflicts, profile::Profile};

use crate::{
    cli,
    failure::{Doing, Failure, Result},
    places::Places,
    progress::{self, Countdown, Step},
};
use keep::RunFile;
pub use keep::now;
pub use machine::describe;
use plan::{CaseId, CaseValues, Job, Plan};

/// Runs the part of the lab that the options name.
pub fn command(places: &Places, options: &cli::Lab) -> Result<u8> {
    match &options.part {
        Some(cli::LabPart::List(options)) => list(places, options),
        Some(cli::LabPart::Report(options)) => report(places, options),
        Some(cli::LabPart::Picture(options)) => picture(places, options),
        Some(cli::LabPart::Status) => status::write(places),
        None => measure(places, options),
    }
}

/// The texts of one experiment in `lab/experiments.json`. A test of the lab keeps that file equal to the experiments'
/// own texts.
#[derive(serde::Deserialize)]
struct Text {
    name: String,
    source: String,
    title: String,
    about: String,
}

/// Prints the name of each experiment and what it measures. It builds nothing.
fn list(places: &Places, options: &cli::LabList) -> Result<u8> {
    if options.names {
        texts(places)?.iter().for_each(|experiment| println!("{}", experiment.name));
    } else {
        print!("{}", descriptions(&texts(places)?, &["quick", "full"].map(|mode| (mode, last(places, mode)))));
    }
    Ok(0)
}

/// The list of experiments, without the times of their last runs.
pub fn listed(places: &Places) -> Result<String> {
    Ok(descriptions(&texts(places)?, &[]))
}

fn texts(places: &Places) -> Result<Vec<Text>> {
    let texts = places.root.join("lab/experiments.json");
    let text = std::fs::read_to_string(&texts).doing(|| format!("cannot read {}", texts.display()))?;
    serde_json::from_str(&text).doing(|| texts.display().to_string())
}

/// Two lines for each experiment: its name with the times of its last runs by mode, and what it measures.
fn descriptions(experiments: &[Text], taken: &[(&str, Option<quire_results::Run>)]) -> String {
    let mut described = String::new();
    for experiment in experiments {
        let mut time = String::new();
        for (mode, run) in taken {
            let took = run.as_ref().and_then(|run| run.experiments.iter().find(|e| e.name == experiment.name));
            if let Some(e) = took {
                let seconds = if e.seconds < 100.0 {
                    format!("{:.0} s", e.seconds)
                } else {
                    format!("{:.0} min", e.seconds / 60.0)
                };
                time += &format!(", {seconds} with --{mode}");
            }
        }
        described += &format!("{} [{}{time}]: {}\n", experiment.name, experiment.source, experiment.title);
        described += &format!("    {}\n", experiment.about);
    }
    described
}

/// The newest kept run of this mode. It shows the time that each experiment takes.
fn last(places: &Places, mode: &str) -> Option<quire_results::Run> {
    Results::read(&status::newest(places, &format!("-{mode}.json"))?).ok()?.runs.pop()
}

/// Reads runs of one or several machines and draws one page of them.
fn report(places: &Places, options: &cli::LabReport) -> Result<u8> {
    let step = Step::sized("merging the runs", "some seconds a run");
    let files: Result<Vec<Results>> = options.files.iter().map(|f| Results::read(f).map_err(Failure::usage)).collect();
    let runs = Results::merge(files?).runs;
    let mut text = String::new();
    for run in &runs {
        text += &format!("{} ({} CPUs), {}\n", run.machine.processor, run.machine.cpus, run.began);
        run.experiments.iter().for_each(|e| text += &format!("\n{}\n{}\n", e.title, table::of(e)));
    }
    for (number, run) in runs.iter().enumerate().skip(1) {
        text += &format!("\nRun {} against the first:\n{}\n", number + 1, table::against(run, &runs[0]));
    }
    drop(step);
    print!("{text}");
    draw(places, &options.out, &options.files)?;
    Ok(0)
}

/// Draws the picture of a run that a document shows.
fn picture(places: &Places, options: &cli::LabPicture) -> Result<u8> {
    let none = || Failure::usage("lab/runs has no full run; name a results.json file");
    let file = options.file.clone().or_else(|| status::newest(places, "-full.json")).ok_or_else(none)?;
    let results = Results::read(&file).map_err(Failure::usage)?;
    let picture = results.runs.iter().find_map(quire_report::faults);
    let picture = picture.ok_or_else(|| {
        Failure::usage(format_args!("{} has no zero-fill faults of the hosted and the recording build", file.display()))
    })?;
    std::fs::write(&options.out, picture).doing(|| format!("cannot write {}", options.out.display()))?;
    println!("{}", options.out.display());
    Ok(0)
}

/// Measures the chosen experiments, prints the results and draws the page.
fn measure(places: &Places, options: &cli::Lab) -> Result<u8> {
    let mode = if options.full { Mode::Full } else { Mode::Quick };
    let cpus = match &options.cpus[..] {
        [] if options.short => vec![1, 2],
        [] => machine::cpus_to_try(),
        asked => each_once(asked),
    };
    if cpus.last().is_some_and(|most| *most > guest::MOST_CPUS) {
        eprintln!(
            "quire: a guest has at most {} CPUs; larger numbers are measured only in hosted cases",
            guest::MOST_CPUS
        );
    }
    let plan = if options.short {
        Plan::short(places, &cpus, &options.names)?
    } else {
        Plan::make(places, mode, &cpus, !options.no_linux, &options.names)?
    };
    if plan.experiments.is_empty() {
        return Err(Failure::usage("no experiment has a name with these words; ./quire lab list prints all names"));
    }
    let benches = Benches::ready(places, &plan)?;
    let name = match mode {
        _ if options.short => "short",
        Mode::Full => "full",
        Mode::Quick => "quick",
    };
    let out = options.out.clone().unwrap_or_else(|| places.target.join("lab-runs").join(name));
    let mut kept = RunFile::open(&out, &plan, machine::describe(places)?, options.again)?;
    progress::keeps(format!("{} keeps the samples, and the same command continues the run", kept.file().display()));
    rounds(&plan, &benches, &mut kept)?;
    kept.finish()?;
    for experiment in &kept.run().experiments {
        println!("\n{}\n{}", experiment.title, table::of(experiment));
    }
    println!("{}", table::summary(kept.run()));
    let page = out.join("report.html");
    draw(places, &page, &[kept.file().to_owned()])?;
    println!("{}\n{}", kept.file().display(), page.display());
    match kept.troubles() {
        0 => Ok(0),
        n => {
            let again = if kept.can_go_on() { "; run the same command to try them again" } else { "" };
            eprintln!("quire: {n} cases could not be measured{again}");
            Ok(1)
        }
    }
}

/// The numbers in ascending order, each once.
fn each_once(numbers: &[u32]) -> Vec<u32> {
    numbers.iter().copied().collect::<BTreeSet<u32>>().into_iter().collect()
}

/// The programs and kernels that do the measurements.
struct Benches {
    hosted: hosted::Lab,
    guest: guest::Guests,
}

impl Benches {
    fn ready(places: &Places, plan: &Plan) -> Result<Self> {
        Ok(Self { hosted: hosted::Lab::ready(places, plan)?, guest: guest::Guests::ready(places, plan)? })
    }

    /// Does one round of these cases of a job. Returns a value for each measure, or the reason why it is missing.
    fn run(&self, job: &Job, cases: &[CaseId]) -> Result<Vec<CaseValues>> {
        match job {
            Job::Hosted(case) => self.hosted.run(case),
            Job::Guest(boot) => self.guest.run(boot, cases),
        }
    }
}

/// Does all rounds of all jobs. Failed jobs are then tried once more, because a busy machine may have made a boot fail.
fn rounds(plan: &Plan, benches: &Benches, kept: &mut RunFile) -> Result<()> {
    all_rounds(plan, kept, &|job, cases| benches.run(job, cases))
}

/// A function that does one round of these cases of a job.
type Run<'a> = &'a dyn Fn(&Job, &[CaseId]) -> Result<Vec<CaseValues>>;

fn all_rounds(plan: &Plan, kept: &mut RunFile, run: Run<'_>) -> Result<()> {
    let all: Vec<usize> = (0..plan.jobs.len()).collect();
    pass(plan, &all, kept, run, false)?;
    let failed: Vec<usize> = all.into_iter().filter(|j| kept.is_in_trouble(&plan.jobs[*j])).collect();
    if failed.is_empty() {
        return Ok(());
    }
    eprintln!("quire: the lab tries the failed cases once more");
    failed.iter().for_each(|j| kept.forgive(&plan.jobs[*j]));
    pass(plan, &failed, kept, run, true)
}

/// Does the rounds that these jobs lack. Each round has a random order of its own, so that drift of the machine's speed
/// affects all sides alike. With `alone`, each program has its own boot, so that a program that crashes the machine
/// affects no other.
fn pass(plan: &Plan, jobs: &[usize], kept: &mut RunFile, run: Run<'_>, alone: bool) -> Result<()> {
    let mut left: Vec<(u32, usize)> = Vec::new();
    let mut random = fastrand::Rng::with_seed(kept.run().seed);
    let lacking = |kept: &RunFile, round: u32, job: usize| -> Vec<CaseId> {
        plan.jobs[job].cases.iter().copied().filter(|at| kept.lacks(*at, round)).collect()
    };
    for round in 0..plan.most_rounds() {
        let mut order: Vec<usize> = jobs.iter().copied().filter(|j| plan.jobs[*j].rounds > round).collect();
        random.shuffle(&mut order);
        left.extend(order.into_iter().map(|job| (round, job)).filter(|(r, j)| !lacking(kept, *r, *j).is_empty()));
    }
    let mut countdown = Countdown::new("measuring", left.iter().map(|(_, j)| plan.jobs[*j].seconds).collect());
    let mut dropped = 0;
    for (round, number) in left {
        let job = &plan.jobs[number];
        if plan.mode == Mode::Full && round >= plan::LEAST && kept.run().seconds > plan::ENOUGH {
            dropped += 1;
            countdown.skip();
            continue;
        }
        let cases = lacking(kept, round, number);
        if cases.is_empty() {
            countdown.skip();
            continue;
        }
        countdown.doing(&job.name());
        for cases in if alone { job.what.apart(&cases) } else { vec![cases] } {
            let start = Instant::now();
            match run(&job.what, &cases) {
                Ok(found) => kept.add(found, start.elapsed())?,
                Err(failure) => kept.break_off(job, &cases, &failure.message, start.elapsed())?,
            }
        }
        countdown.done();
    }
    if dropped > 0 {
        eprintln!("quire: the time limit was reached; {dropped} further rounds were left out");
    }
    Ok(())
}

/// Draws the page of these files. The page also shows the history, the newest conflict matrix and the newest profile of
/// `lab/runs`.
fn draw(places: &Places, page: &Path, files: &[PathBuf]) -> Result<()> {
    let step = Step::sized("drawing the page", "some seconds a run");
    let results: Result<Vec<Results>> = files.iter().map(|f| Results::read(f).map_err(Failure::usage)).collect();
    let kept = Results::merge(status::kept(places).iter().filter_map(|f| Results::read(f).ok()));
    let conflicts = status::newest(places, "-conflicts.json").map(|f| Conflicts::read(&f));
    let profile = status::newest(places, "-profile.json").map(|f| Profile::read(&f));
    let beside = Beside {
        kept,
        conflicts: conflicts.transpose().map_err(Failure::usage)?,
        profile: profile.transpose().map_err(Failure::usage)?,
    };
    let text =
        quire_report::render_beside(&Results::merge(results?), &beside).doing(|| "cannot draw the page".to_string())?;
    std::fs::write(page, text).doing(|| format!("cannot write {}", page.display()))?;
    drop(step);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{cell::RefCell, collections::BTreeMap};

    #[test]
    fn a_number_of_cpus_that_is_named_twice_is_tried_once() {
        assert_eq!(each_once(&[2, 1, 1, 8, 2]), [1, 2, 8]);
    }

    /// Runs the calibration. `fails` says for each call, numbered from 0, whether it fails. Returns the number of cases
    /// in trouble, the number of missing rounds, and the cases of each call.
    fn measured(fails: impl Fn(usize) -> bool) -> (usize, usize, Vec<Vec<CaseId>>) {
        let (plan, home) = (keep::tests::plan(), tempfile::tempdir().unwrap());
        let mut kept = RunFile::open(home.path(), &plan, keep::tests::machine(), false).unwrap();
        let calls: RefCell<Vec<Vec<CaseId>>> = RefCell::default();
        all_rounds(&plan, &mut kept, &|_, cases| {
            calls.borrow_mut().push(cases.to_vec());
            if fails(calls.borrow().len() - 1) {
                return Err(Failure::machine("no boot"));
            }
            let values = |at: &CaseId| -> BTreeMap<String, f64> {
                let case = &plan.experiments[at.experiment].cases[at.case];
                case.measures.keys().map(|m| (m.clone(), 1.0)).collect()
            };
            Ok(cases.iter().map(|at| CaseValues { at: *at, values: Ok(values(at)) }).collect())
        })
        .unwrap();
        let lacking = plan.jobs.iter().flat_map(|j| j.cases.iter().map(move |at| (*at, j.rounds - 1)));
        let lacking = lacking.filter(|(at, last)| kept.lacks(*at, *last)).count();
        (kept.troubles(), lacking, calls.into_inner())
    }

    #[test]
    fn only_a_failed_boot_is_repeated() {
        let (_, _, calls) = measured(|_| false);
        let (troubles, lacking, again) = measured(|n| n == 2);
        assert_eq!((troubles, lacking, again.len()), (0, 0, calls.len() + 1));
    }

    #[test]
    fn a_boot_that_always_fails_is_tried_twice() {
        let jobs = keep::tests::plan().jobs.len();
        let (troubles, _, calls) = measured(|_| true);
        assert!(troubles > 0);
        assert_eq!(calls.len(), 2 * jobs);
    }
}
