//! `quire-report OUT.html A.json [B.json...]`: draws one page from one or several runs of the lab.
#![forbid(unsafe_code)]

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use quire_results::Results;

/// Draws what one or several runs of the lab found, as one page of HTML that needs nothing else.
#[derive(Parser)]
struct Arguments {
    /// The page to be written.
    page: PathBuf,
    /// Files of results; several machines are shown side by side.
    #[arg(required = true)]
    results: Vec<PathBuf>,
}

fn main() -> ExitCode {
    match write(&Arguments::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("quire-report: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write(arguments: &Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let files = arguments.results.iter().map(|f| Results::read(f)).collect::<Result<Vec<_>, _>>()?;
    let page = quire_report::render(&Results::merge(files))?;
    std::fs::write(&arguments.page, page).map_err(|e| format!("{}: {e}", arguments.page.display()))?;
    Ok(())
}
