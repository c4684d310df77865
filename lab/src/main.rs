//! The program `quire-lab`: runs benches and prints one line `name value unit` for each figure. `./quire bench` builds
//! and runs it.

use clap::{Parser, Subcommand};
use quire_lab::Failure;
use quire_lab::bench::{ALL, Build, Report, Size, WORKLOADS, selects};
use quire_lab::experiments::{self, Plan, Scale};
use std::process::ExitCode;

/// Measures Quire's parts, and the designs that they replaced.
#[derive(Parser)]
#[command(name = "quire-lab", args_conflicts_with_subcommands = true)]
struct Options {
    /// Only lines whose name contains one of these
    names: Vec<String>,
    /// Print all lines: build, name, unit and method, separated by tabs
    #[arg(long)]
    list: bool,
    /// Do as little as shows that each bench works; the figures have no meaning
    #[arg(long)]
    short: bool,
    #[command(subcommand)]
    part: Option<Part>,
}

#[derive(Subcommand)]
enum Part {
    /// Do one workload, for a counting tool
    Workload {
        /// Its name
        name: String,
        /// How many operations; 0 prepares everything and does none
        count: usize,
        /// As part of a bench that does as little as possible
        #[arg(long)]
        short: bool,
    },
    /// Print the experiments and their cases, as JSON without samples
    Experiments {
        /// How much each round does
        #[arg(long, value_enum, default_value = "quick")]
        mode: Scale,
        /// Numbers of CPUs, separated by commas
        #[arg(long, value_delimiter = ',', default_value = "1,2", value_parser = clap::value_parser!(u16).range(1..=256))]
        cpus: Vec<u16>,
    },
    /// Do one round of one case, and print its figures
    Case {
        /// The experiment
        experiment: String,
        /// The design: before, after, ours, plain, limit
        side: String,
        /// Its parameters
        #[arg(value_name = "KEY=VALUE")]
        parameters: Vec<String>,
        /// Where it runs; without: hosted, or recording in the recording build
        #[arg(long)]
        place: Option<String>,
        /// How much the round does
        #[arg(long, value_enum, default_value = "quick")]
        mode: Scale,
    },
    /// Which commuting operations share cache lines
    Conflicts(Conflicts),
    /// Do a few operations, for a tool that watches loads and stores
    #[command(hide = true)]
    Watched {
        /// With a shared word that is not recorded
        #[arg(long)]
        plain: bool,
    },
}

/// The options of `conflicts`.
#[derive(clap::Args)]
struct Conflicts {
    /// Only pairs with one of these operations
    operations: Vec<String>,
    /// Write the matrix as JSON, without the machine
    #[arg(long, value_name = "FILE")]
    json: Option<std::path::PathBuf>,
    /// Instead: lines that move for each operation, by number of CPUs
    #[arg(long)]
    scale: bool,
    /// With --scale: which source lines needed them
    #[arg(short, long, requires = "scale")]
    verbose: bool,
}

/// The build of this program.
const BUILD: Build = if cfg!(recording) { Build::Recording } else { Build::Native };

fn main() -> ExitCode {
    let options = Options::parse();
    if let Some(Part::Conflicts(options)) = options.part {
        return conflicts(options);
    }
    if let Some(Part::Watched { plain }) = options.part {
        return watched(plain);
    }
    if let Some(Part::Workload { name, count, short }) = options.part {
        let done = match WORKLOADS.iter().find(|w| w.name == name) {
            Some(workload) => {
                (workload.run)(count, size(short));
                Some(())
            }
            None => experiments::map::workload(&name, count),
        };
        if done.is_none() {
            eprintln!("quire-lab: no workload has the name {name}");
            return ExitCode::from(2);
        }
        return ExitCode::SUCCESS;
    }
    if let Some(Part::Experiments { mode, mut cpus }) = options.part {
        cpus.sort_unstable();
        cpus.dedup();
        let plan = Plan { scale: mode, cpus: cpus.into_iter().map(usize::from).collect() };
        return planned(&plan);
    }
    if let Some(Part::Case { experiment, side, parameters, place, mode }) = options.part {
        let found = experiments::find(&experiment, &side, place.as_deref(), &parameters, mode);
        return match found.and_then(|round| round.run()) {
            Ok(figures) => {
                figures.iter().for_each(|(f, value)| println!("{} {value} {}", f.name, f.unit));
                ExitCode::SUCCESS
            }
            Err(e) => {
                eprintln!("quire-lab: {e}");
                if matches!(e, Failure::NoCase(_)) { ExitCode::from(2) } else { ExitCode::FAILURE }
            }
        };
    }
    if options.list {
        for bench in ALL {
            for line in bench.lines.iter().filter(|l| selects(&options.names, l.name)) {
                println!("{:?}\t{}\t{}\t{}", bench.build, line.name, line.unit, line.how);
            }
        }
        return ExitCode::SUCCESS;
    }
    let mut report = match Report::to_stdout(size(options.short), options.names.clone()) {
        Ok(report) => report,
        Err(e) => {
            eprintln!("quire-lab: {e}");
            return ExitCode::FAILURE;
        }
    };
    let mut failed = false;
    for bench in ALL.iter().filter(|b| b.build == BUILD && b.selected(&options.names)) {
        if let Err(e) = report.run(bench) {
            eprintln!("quire-lab: {}: {e}", bench.lines.first().map_or("a bench", |l| l.name));
            failed = true;
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn size(short: bool) -> Size {
    if short { Size::Short } else { Size::Whole }
}

fn planned(plan: &Plan) -> ExitCode {
    match serde_json::to_string_pretty(&experiments::experiments(plan)) {
        Ok(json) => {
            println!("{json}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("quire-lab: {e}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(recording)]
fn conflicts(options: Conflicts) -> ExitCode {
    let Conflicts { operations, json, scale, verbose } = options;
    let options = quire_lab::conflicts::Options { operations, json, scale, verbose };
    match quire_lab::conflicts::command(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("quire-lab: {e}");
            ExitCode::from(2)
        }
    }
}

#[cfg(recording)]
fn watched(plain: bool) -> ExitCode {
    match quire_lab::conflicts::watched::program(plain) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("quire-lab: {e}");
            ExitCode::from(2)
        }
    }
}

#[cfg(not(recording))]
fn watched(plain: bool) -> ExitCode {
    let _recording_only = plain;
    eprintln!("quire-lab: {}", quire_lab::Failure::Build);
    ExitCode::from(2)
}

#[cfg(not(recording))]
fn conflicts(options: Conflicts) -> ExitCode {
    let _recording_only = (options.operations, options.json, options.scale, options.verbose);
    eprintln!("quire-lab: {}", quire_lab::Failure::Build);
    ExitCode::from(2)
}
