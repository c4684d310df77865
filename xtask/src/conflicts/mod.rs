//! `./quire conflicts`: which pairs of operations that commute share a written cache line. The memory core's: builds the lab so that
//! it records, and lets it print the matrix. The kernel's: [`guest`].

mod guest;

pub use guest::{build as build_plugin, plain};

use std::process::Command;

use crate::{
    bench, cli,
    failure::{Doing, Result},
    places::Places,
};

/// Prints the matrix that is asked for; the status is 1 where it is not as its list says.
pub fn command(places: &Places, options: &cli::Conflicts) -> Result<u8> {
    if options.guest {
        return guest::command(places, options);
    }
    let lab = bench::build_recording(places)?;
    let mut command = Command::new(lab);
    command.arg("conflicts").args(&options.operations);
    if let Some(file) = &options.html {
        command.arg("--html").arg(file);
    }
    if options.scale {
        command.arg("--scale");
    }
    if options.verbose {
        command.arg("--verbose");
    }
    let status = command.status().doing(|| "cannot run the lab".to_string())?;
    Ok(status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1))
}
