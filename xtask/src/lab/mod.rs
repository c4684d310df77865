//! `./quire lab`: reruns the experiment of each source as *before*, *after*, ours and Linux, keeps every sample in `results.json`,
//! and draws `report.html`. [`plan`] says what is measured, [`guest`] and [`hosted`] do one round of something, [`keep`] holds what
//! was found, and [`table`] prints it. docs/lab.md tells how to read and to extend it.

mod guest;
mod hosted;
mod keep;
mod machine;
mod plan;
mod status;
mod table;

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::Instant,
};

use quire_results::{Mode, Results};

use crate::{
    cli,
    failure::{Doing, Failure, Result},
    places::Places,
    progress::Countdown,
};
use keep::Kept;
use plan::{Job, Plan};

/// Does what is asked for.
pub fn command(places: &Places, options: &cli::Lab) -> Result<u8> {
    match &options.part {
        Some(cli::LabPart::List(options)) => list(places, options),
        Some(cli::LabPart::Report(options)) => report(places, options),
        Some(cli::LabPart::Status) => status::write(places),
        None => measure(places, options),
    }
}

/// Names, and what each measures.
fn list(places: &Places, options: &cli::LabList) -> Result<u8> {
    let plan = Plan::make(places, Mode::Quick, &[1], true, &[])?;
    let taken = ["quick", "full"].map(|mode| (mode, last(places, mode)));
    for experiment in &plan.experiments {
        if options.names {
            println!("{}", experiment.name);
            continue;
        }
        let mut time = String::new();
        for (mode, run) in &taken {
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
        println!("{} [{:?}{time}]: {}", experiment.name, experiment.source, experiment.title);
        println!("    {}", experiment.about);
    }
    Ok(0)
}

/// The run in this mode that the repository keeps: it tells how long things take.
fn last(places: &Places, mode: &str) -> Option<quire_results::Run> {
    Results::read(&status::newest(places, &format!("-{mode}.json"))?).ok()?.runs.pop()
}

/// Reads runs of this or other machines and draws one page of them.
fn report(places: &Places, options: &cli::LabReport) -> Result<u8> {
    let files: Result<Vec<Results>> = options.files.iter().map(|f| Results::read(f).map_err(Failure::usage)).collect();
    let runs = Results::merge(files?).runs;
    for run in &runs {
        println!("{} ({} CPUs), {}", run.machine.processor, run.machine.cpus, run.began);
        run.experiments.iter().for_each(|e| println!("\n{}\n{}", e.title, table::of(e)));
    }
    for (number, run) in runs.iter().enumerate().skip(1) {
        println!("\nRun {} against the first:\n{}", number + 1, table::against(run, &runs[0]));
    }
    draw(places, &options.out, &options.files)?;
    Ok(0)
}

/// Measures, prints and draws.
fn measure(places: &Places, options: &cli::Lab) -> Result<u8> {
    let mode = if options.full { Mode::Full } else { Mode::Quick };
    let cpus = match &options.cpus[..] {
        [] => machine::cpus_to_try(),
        asked => asked.to_vec(),
    };
    let plan = Plan::make(places, mode, &cpus, !options.no_linux, &options.names)?;
    if plan.experiments.is_empty() {
        return Err(Failure::usage("no experiment has such a name: ./quire lab list prints all"));
    }
    let benches = Benches::ready(places, &plan)?;
    let name = if mode == Mode::Full { "full" } else { "quick" };
    let out = options.out.clone().unwrap_or_else(|| places.target.join("lab-runs").join(name));
    let mut kept = Kept::open(&out, &plan, machine::describe(places)?, options.again)?;
    let broken = rounds(&plan, &benches, &mut kept)?;
    kept.finish()?;
    for experiment in &kept.run().experiments {
        println!("\n{}\n{}", experiment.title, table::of(experiment));
    }
    println!("{}", table::summary(kept.run()));
    let page = out.join("report.html");
    draw(places, &page, &[kept.file().to_owned()])?;
    println!("{}\n{}", kept.file().display(), page.display());
    Ok(if broken { 1 } else { 0 })
}

/// What measures.
struct Benches {
    hosted: hosted::Lab,
    guest: guest::Guests,
}

impl Benches {
    fn ready(places: &Places, plan: &Plan) -> Result<Self> {
        Ok(Self { hosted: hosted::Lab::ready(places, plan)?, guest: guest::Guests::ready(places, plan)? })
    }

    /// One round of a job: a value for each measure of its cases, or why there is none.
    fn run(&self, job: &Job) -> Result<Vec<plan::Found>> {
        match job {
            Job::Hosted(case) => self.hosted.run(case),
            Job::Guest(boot) => self.guest.run(boot),
        }
    }
}

/// All rounds of everything, each in an order of its own, so that what drifts meets all sides alike. True where something
/// could not be measured.
fn rounds(plan: &Plan, benches: &Benches, kept: &mut Kept) -> Result<bool> {
    let mut left: Vec<(u32, usize)> = Vec::new();
    let mut random = fastrand::Rng::with_seed(kept.run().seed);
    for round in 0..plan.most_rounds() {
        let mut order: Vec<usize> = (0..plan.jobs.len()).filter(|j| plan.jobs[*j].rounds > round).collect();
        random.shuffle(&mut order);
        left.extend(order.into_iter().map(|job| (round, job)).filter(|(r, j)| kept.rounds_of(&plan.jobs[*j]) <= *r));
    }
    let mut countdown = Countdown::new("measuring", left.iter().map(|(_, j)| plan.jobs[*j].seconds).collect());
    let mut broken = false;
    let mut dropped = 0;
    for (round, job) in left {
        let job = &plan.jobs[job];
        if plan.mode == Mode::Full && round >= plan::LEAST && kept.run().seconds > plan::ENOUGH {
            dropped += 1;
            countdown.skip();
            continue;
        }
        if kept.is_broken(job) {
            countdown.skip();
            continue;
        }
        countdown.doing(&job.name());
        let start = Instant::now();
        match benches.run(&job.what) {
            Ok(found) => broken |= kept.add(job, found, start.elapsed())?,
            Err(failure) => {
                kept.break_off(job, &failure.message)?;
                broken = true;
            }
        }
        countdown.done();
    }
    if dropped > 0 {
        eprintln!("quire: that is long enough: {dropped} further rounds were left out");
    }
    Ok(broken)
}

/// Builds what draws and lets it draw.
fn draw(places: &Places, page: &Path, files: &[PathBuf]) -> Result<()> {
    let status = Command::new(hosted::build_report(places)?)
        .arg(page)
        .args(files)
        .status()
        .doing(|| "cannot run what draws the report".to_string())?;
    if status.success() { Ok(()) } else { Err(Failure::usage("the report could not be drawn: see above")) }
}
