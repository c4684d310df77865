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
    image::{
        libraries::{self, SearchPath},
        tree::Tree,
    },
    places::Places,
};

/// How a program is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Linked {
    /// With musl, alone.
    Static,
    /// With this machine's C library.
    Dynamic,
}

/// Compiles one file to a static program under `target/programs`, if it is stale, and returns its path.
pub fn compile(places: &Places, source: &Path) -> Result<PathBuf> {
    compile_as(places, source, &source.file_stem().unwrap_or_default().to_string_lossy(), Linked::Static)
}

fn compile_as(places: &Places, source: &Path, name: &str, linked: Linked) -> Result<PathBuf> {
    let home = places.target.join("programs");
    fs::create_dir_all(&home).doing(|| format!("cannot make {}", home.display()))?;
    let program = home.join(name);
    let _lock = places.lock("programs")?;
    if newer(&program, source) {
        return Ok(program);
    }
    // Under another name first: the file under the right name is always whole.
    let fresh = home.join(format!("{name}.new"));
    let (compiler, how): (_, &[&str]) = match linked {
        Linked::Static => ("musl-gcc", &["-static"]),
        Linked::Dynamic => ("gcc", &[]),
    };
    let out = Command::new(compiler)
        .args(how)
        .args(["-O2", "-g", "-std=gnu11", "-Wall", "-Wextra", "-pthread", "-o"])
        .arg(&fresh)
        .arg(source)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| Failure::usage(format_args!("{compiler}: {e}; run ./quire setup")))?;
    if !out.status.success() {
        eprint!("{}", String::from_utf8_lossy(&out.stderr));
        return Err(Failure::usage(format_args!("{} did not compile: see above", source.display())));
    }
    fs::rename(&fresh, &program).doing(|| format!("cannot keep {}", program.display()))?;
    Ok(program)
}

/// Whether the program is newer than its source and every header beside that.
fn newer(program: &Path, source: &Path) -> bool {
    let time = |p: &Path| fs::metadata(p).and_then(|m| m.modified()).ok();
    let Some(made) = time(program) else { return false };
    let beside = source.parent().map(fs::read_dir).into_iter().flatten().flatten().flatten().map(|e| e.path());
    beside
        .filter(|p| p == source || p.extension().is_some_and(|e| e == "h"))
        .all(|p| time(&p).is_some_and(|written| made > written))
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
    let child = home.join("child.c");
    if child.exists() {
        found.insert("child-dynamic".into(), compile_as(places, &child, "child-dynamic", Linked::Dynamic)?);
    }
    Ok(found)
}

/// Whether this plain word is the name of a program of `programs/`.
pub fn is_named(places: &Places, word: &OsStr) -> bool {
    word.to_str().is_some_and(|w| {
        !w.is_empty() && !w.contains('/') && places.root.join("programs").join(format!("{w}.c")).is_file()
    })
}

/// Whether this program of `programs/` needs a compiler and a project beside it.
pub fn builds(word: &OsStr) -> bool {
    word == "build"
}

/// The guest's path of a program of `programs/`.
pub fn in_guest(name: &str) -> String {
    format!("/programs/{name}")
}

/// Puts all of `programs/` into a guest's tree, with the library that the dynamic one needs.
pub fn install(tree: &mut Tree, programs: &BTreeMap<String, PathBuf>) -> Result<()> {
    for (name, file) in programs {
        tree.host_file(in_guest(name), file)?;
        for (at, library) in libraries::closure(file, &SearchPath::of_host()).doing(|| name.clone())? {
            tree.host_file(&at, &library)?;
        }
    }
    Ok(())
}
