//! Compiling the small C programs that run in guests: static, with musl, once for each change.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    failure::{Doing, Failure, Result},
    image::tree::Tree,
    places::Places,
};

/// Compiles one file to a static program under `target/programs`, if it is stale, and returns where that is.
pub fn compile(places: &Places, source: &Path) -> Result<PathBuf> {
    let stem = source.file_stem().unwrap_or_default();
    let home = places.target.join("programs");
    fs::create_dir_all(&home).doing(|| format!("cannot make {}", home.display()))?;
    let program = home.join(stem);
    let _lock = places.lock("programs")?;
    if newer(&program, source) {
        return Ok(program);
    }
    // Under another name first: what stands under the right name is always whole.
    let fresh = program.with_extension("new");
    let out = Command::new("musl-gcc")
        .args(["-static", "-O2", "-g", "-std=gnu11", "-Wall", "-Wextra", "-pthread", "-o"])
        .arg(&fresh)
        .arg(source)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Failure::usage(format_args!("musl-gcc: {e}; run ./quire setup")))?;
    if !out.status.success() {
        eprint!("{}", String::from_utf8_lossy(&out.stderr));
        return Err(Failure::usage(format_args!("{} did not compile: see above", source.display())));
    }
    fs::rename(&fresh, &program).doing(|| format!("cannot keep {}", program.display()))?;
    Ok(program)
}

fn newer(program: &Path, source: &Path) -> bool {
    let time = |p: &Path| fs::metadata(p).and_then(|m| m.modified()).ok();
    matches!((time(program), time(source)), (Some(made), Some(written)) if made > written)
}

/// All of `programs/`, by name, compiled.
pub fn all(places: &Places) -> Result<BTreeMap<String, PathBuf>> {
    let home = places.root.join("programs");
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(&home).into_iter().flatten() {
        let path = entry.doing(|| format!("cannot read {}", home.display()))?.path();
        if path.extension().is_some_and(|e| e == "c") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            found.insert(name, compile(places, &path)?);
        }
    }
    Ok(found)
}

/// The program of `programs/` that has this plain name, compiled.
pub fn named(places: &Places, word: &OsStr) -> Result<Option<(String, PathBuf)>> {
    let Some(name) = word.to_str().filter(|w| !w.is_empty() && !w.contains('/')) else { return Ok(None) };
    let source = places.root.join("programs").join(format!("{name}.c"));
    if !source.is_file() {
        return Ok(None);
    }
    Ok(Some((name.to_owned(), compile(places, &source)?)))
}

/// Where a guest finds a program of `programs/`.
pub fn in_guest(name: &str) -> String {
    format!("/programs/{name}")
}

/// Puts one into a guest's tree.
pub fn install(tree: &mut Tree, name: &str, file: &Path) -> Result<()> {
    tree.host_file(&in_guest(name), file)
}
