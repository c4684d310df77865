//! `./quire conflicts`: finds pairs of commutative operations that share a written cache line. For the memory core, it
//! builds and runs the lab's recording build, which prints the matrix. The module [`guest`] makes the matrix of the
//! whole kernel.

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

/// Prints the selected matrix. The exit status is 1 if the matrix differs from its list.
pub fn command(places: &Places, options: &cli::Conflicts) -> Result<u8> {
    if options.guest {
        return guest::command(places, options);
    }
    let lab = bench::build_recording(places)?;
    let mut command = Command::new(lab);
    command.arg("conflicts").args(&options.operations);
    let about = || "cannot keep the matrix".to_string();
    let wanted = options.json.is_some() || options.html.is_some();
    let kept = wanted.then(tempfile::NamedTempFile::new).transpose().doing(about)?;
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
    if let Some(kept) = &kept
        && kept.as_file().metadata().doing(about)?.len() > 0
    {
        write(places, Conflicts::read(kept.path()).map_err(Failure::usage)?, "memory core", options)?;
    }
    Ok(status.code().and_then(|c| u8::try_from(c).ok()).unwrap_or(1))
}

/// Adds the machine, the commit and the time to a matrix, and writes the requested files. The commit is read before the
/// write, because a changed file in `lab/runs` makes the tree another version.
fn write(places: &Places, mut matrix: Conflicts, whose: &str, options: &cli::Conflicts) -> Result<()> {
    matrix.machine = Some(lab::describe(places)?);
    matrix.ended = lab::now();
    let about = |file: &Path| format!("cannot write {}", file.display());
    if let Some(file) = &options.json {
        fs::write(file, matrix.text().doing(|| about(file))?).doing(|| about(file))?;
    }
    if let Some(file) = &options.html {
        // If the run tested only some operations, the rows of the other operations are left out.
        let tested = |name: &str| matrix.cases.iter().any(|case| case.a == name || case.b == name);
        let rows = matrix.operations.iter().filter(|operation| tested(&operation.name)).cloned().collect();
        matrix.operations = rows;
        let title = format!("Quire: the {whose}'s conflict matrix");
        let page = quire_report::matrix_page(&title, &matrix).doing(|| "cannot draw the page".to_string())?;
        fs::write(file, page).doing(|| about(file))?;
    }
    Ok(())
}
