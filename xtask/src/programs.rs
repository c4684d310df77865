//! Compiles the small C programs that run in guests: statically with musl, once after each change.

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
    progress::Step,
};

/// The way in which a program is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Linked {
    /// Statically, with musl.
    Static,
    /// Dynamically, with the host's C library.
    Dynamic,
}

/// Compiles one file to a static program under `target/programs`, unless that program is up to date. Returns its path.
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
    // The compiler writes to another name first. So the file with the final name is never partly written.
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

/// Whether the program is newer than its source and than every header in the source's directory.
fn newer(program: &Path, source: &Path) -> bool {
    let time = |p: &Path| fs::metadata(p).and_then(|m| m.modified()).ok();
    let Some(made) = time(program) else { return false };
    let beside = source.parent().map(fs::read_dir).into_iter().flatten().flatten().flatten().map(|e| e.path());
    beside
        .filter(|p| p == source || p.extension().is_some_and(|e| e == "h"))
        .all(|p| time(&p).is_some_and(|written| made > written))
}

/// The name of the program that is compiled from the source of `child` with a dynamic C library.
const DYNAMIC: &str = "child-dynamic";

/// Programs that start other programs of `programs/`, each with the names of the programs that it starts.
const COMPANIONS: &[(&str, &[&str])] = &[("counts", &["child", DYNAMIC])];

/// Compiles one program of `programs/`, and returns its path.
pub fn named(places: &Places, name: &str) -> Result<PathBuf> {
    let home = places.root.join("programs");
    match name {
        DYNAMIC => compile_as(places, &home.join("child.c"), DYNAMIC, Linked::Dynamic),
        _ => compile(places, &home.join(format!("{name}.c"))),
    }
}

/// Compiles one program of `programs/` and the programs that it starts. Returns their paths by name.
pub fn with_companions(places: &Places, name: &OsStr) -> Result<BTreeMap<String, PathBuf>> {
    let name = name.to_string_lossy();
    let others = COMPANIONS.iter().filter(|(of, _)| *of == name).flat_map(|(_, others)| others.iter().copied());
    let all = std::iter::once(&*name).chain(others);
    all.map(|name| Ok((name.to_owned(), named(places, name)?))).collect()
}

/// Compiles all programs of `programs/`. Returns their paths by name.
pub fn all(places: &Places) -> Result<BTreeMap<String, PathBuf>> {
    let home = places.root.join("programs");
    let step = Step::sized("compiling the guest's programs", "about a minute the first time");
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(&home).into_iter().flatten() {
        let path = entry.doing(|| format!("cannot read {}", home.display()))?.path();
        if path.extension().is_some_and(|e| e == "c") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            step.doing(&name);
            found.insert(name, compile(places, &path)?);
        }
    }
    found.insert(DYNAMIC.into(), named(places, DYNAMIC)?);
    Ok(found)
}

/// Whether `word`, a name without a slash, is the name of a program of `programs/`.
pub fn is_named(places: &Places, word: &OsStr) -> bool {
    word.to_str().is_some_and(|w| {
        !w.is_empty() && !w.contains('/') && places.root.join("programs").join(format!("{w}.c")).is_file()
    })
}

/// Whether this program of `programs/` builds a project, so that the guest needs a compiler and sources.
pub fn builds(word: &OsStr) -> bool {
    word == "build"
}

/// The path in the guest of a program of `programs/`.
pub fn in_guest(name: &str) -> String {
    format!("/programs/{name}")
}

/// Adds programs of `programs/` to a guest's tree, with the libraries that they need.
pub fn install(tree: &mut Tree, programs: &BTreeMap<String, PathBuf>) -> Result<()> {
    for (name, file) in programs {
        tree.host_file(in_guest(name), file)?;
        for (at, library) in libraries::closure(file, &SearchPath::of_host()).doing(|| name.clone())? {
            tree.host_file(&at, &library)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn companions_are_the_programs_that_others_name() {
        let home = Places::find().root.join("programs");
        let known: Vec<String> = COMPANIONS.iter().flat_map(|(_, all)| all.iter().map(|n| in_guest(n))).collect();
        let mut seen = Vec::new();
        for entry in fs::read_dir(&home).unwrap() {
            let path = entry.unwrap().path();
            let text = fs::read_to_string(&path).unwrap_or_default();
            for rest in text.split("\"/programs/").skip(1) {
                let named = in_guest(rest.split('"').next().unwrap_or_default());
                // Only `counts` starts other programs, and its headers contain their paths.
                let of_counts = path.file_name().is_some_and(|f| f.to_string_lossy().starts_with("counts"));
                assert!(of_counts && known.contains(&named), "{} starts {named}", path.display());
                seen.push(named);
            }
        }
        assert!(known.iter().all(|name| seen.contains(name)), "{seen:?}");
    }

    #[test]
    fn one_program_is_built_with_those_that_it_starts_and_no_others() {
        let places = Places::find();
        let names = |name: &str| with_companions(&places, OsStr::new(name)).unwrap().into_keys().collect::<Vec<_>>();
        assert_eq!(names("zerofill"), ["zerofill"]);
        assert_eq!(names("counts"), ["child", "child-dynamic", "counts"]);
    }
}
