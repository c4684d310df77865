//! `./quire conflicts`: which commuting pairs of operations share a written cache line. For the memory core it builds
//! the recording lab, which prints the matrix. The kernel's matrix is in [`guest`].

mod guest;

pub use guest::{build as build_plugin, plain};

use std::process::Command;

use crate::{
    bench, cli,
    failure::{Doing, Result},
    places::Places,
};

/// Prints the requested matrix; the status is 1 if it differs from its list.
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
