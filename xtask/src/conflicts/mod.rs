//! `./quire conflicts`: the pairs of commutative operations that share a written cache line. For the memory core it
//! builds the lab in the recording build, which prints the matrix. For the whole kernel see [`guest`].

mod guest;

pub use guest::{build as build_plugin, plain};

use std::{fs, path::Path, process::Command};

use quire_results::conflicts::Conflicts;

use crate::{
    bench, cli,
    failure::{Doing, Failure, Result},
    lab,
    places::Places,
};

/// Prints the selected matrix. The status is 1 if the matrix differs from its list.
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
    let about = || "cannot keep the matrix".to_string();
    let kept = options.json.is_some().then(tempfile::NamedTempFile::new).transpose().doing(about)?;
    if let Some(kept) = &kept {
        command.arg("--json").arg(kept.path());
    }
    if options.scale {
        command.arg("--scale");
    }
    if options.verbose {
        command.arg("--verbose");
    }
    let status = command.status().doing(|| "cannot run the lab".to_string())?;
    if let (Some(kept), Some(file)) = (&kept, &options.json)
        && kept.as_file().metadata().doing(about)?.len() > 0
    {
        describe(places, kept.path(), file)?;
    }
    Ok(status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1))
}

/// Adds the machine, the commit and the time to the lab's file `from`, and writes it to `file`. The commit is read before
/// the write, because a changed file in `lab/runs` makes the commit another version.
fn describe(places: &Places, from: &Path, file: &Path) -> Result<()> {
    let mut matrix = Conflicts::read(from).map_err(Failure::usage)?;
    matrix.machine = Some(lab::describe(places)?);
    matrix.ended = lab::now();
    let about = || format!("cannot write {}", file.display());
    fs::write(file, matrix.text().doing(about)?).doing(about)
}
