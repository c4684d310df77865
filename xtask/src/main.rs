//! `./quire`: the one command of the project. It builds Quire, runs programs in it, tests it, debugs it, compares it.
//!
//! Each command is a module that reads top-down: [`run`], [`mod@test`], [`doctor`], [`debug`], [`compare`],
//! [`mod@bench`], [`lab`], [`conflicts`], [`counts`], [`profile`], [`mod@trace`], [`fuzz`], [`build`]. Below them are
//! [`image`] (the guest's files), [`machine`] (QEMU and its ports) and [`setup`] (files that are made or fetched once).
//! [`help`] keeps the help texts for machines without a compiler, and prints completions and manual pages.

mod bench;
mod boot;
mod build;
mod cli;
mod compare;
mod conflicts;
mod counts;
mod debug;
mod doctor;
mod failure;
mod fuzz;
mod help;
mod image;
mod lab;
mod machine;
mod places;
mod profile;
mod programs;
mod progress;
mod run;
mod setup;
mod test;
mod trace;

use std::process::ExitCode;

use clap::Parser;

/// Makes this process end silently if no process reads its output any more, as `head` ends other programs. Otherwise
/// printing would panic with a backtrace.
fn end_without_reader() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        let said = panic.payload_as_str().unwrap_or_default();
        if said.starts_with("failed printing to stdout") && said.contains("Broken pipe") {
            std::process::exit(i32::from(machine::outcome::Outcome::OutputClosed.status()));
        }
        usual(panic);
    }));
}

fn main() -> ExitCode {
    end_without_reader();
    let cli = cli::Cli::try_parse().unwrap_or_else(|error| cli::with_nearest(error).exit());
    let places = places::Places::find();
    // For `run` and `debug`, this process does not handle Ctrl-C, because the guest's program or gdb receives it.
    if !matches!(cli.command, cli::Command::Run(_) | cli::Command::Debug(_)) {
        progress::explain_interrupts();
    }
    let done = match cli.command {
        cli::Command::Run(options) => run::command(&places, &options),
        cli::Command::Build => build::command(&places),
        cli::Command::Setup => setup::command(&places),
        cli::Command::Test(options) => test::command(&places, &options),
        cli::Command::Doctor => doctor::command(&places),
        cli::Command::Debug(options) => debug::command(&places, &options),
        cli::Command::Compare(options) => compare::command(&places, &options),
        cli::Command::Bench(options) => bench::command(&places, &options),
        cli::Command::Lab(options) => lab::command(&places, &options),
        cli::Command::Conflicts(options) => conflicts::command(&places, &options),
        cli::Command::Counts(options) => counts::command(&places, &options),
        cli::Command::Profile(options) => profile::command(&places, &options),
        cli::Command::Trace(options) => trace::command(&places, &options),
        cli::Command::Fuzz(options) => fuzz::command(&places, &options),
        cli::Command::Completion(options) => help::completion(&options),
        cli::Command::Man(options) => help::man(&options),
        cli::Command::HelpPages => help::command(&places),
    };
    match done {
        Ok(status) => ExitCode::from(status),
        Err(failure) => {
            if !failure.message.is_empty() {
                eprintln!("quire: {failure}");
            }
            ExitCode::from(failure.status)
        }
    }
}
