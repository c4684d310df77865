//! Keeps names of tests from the last build, for `./quire test --list`. These tests are known only once they are
//! compiled.
//!
//! Each list is kept in `target/test-names/` with a digest of the sources. If the sources have changed since, the list
//! is printed with a note. If the user asked for exactly this stage, its tests are compiled instead, with an
//! announcement.

use std::{
    fs,
    path::{Path, PathBuf},
};

use sha2::{Digest as _, Sha256};

use super::Context;
use crate::{
    failure::{Doing, Result},
    places::Places,
    progress::Step,
};

/// The stages whose names are known only once they are compiled.
const COMPILED: [&str; 3] = ["unit", "model", "record"];

/// The directories with the sources of the tests.
const SOURCES: [&str; 5] = ["crates", "lab", "xtask", "plugin", "examples"];

/// A digest of all sources that can add or remove a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Key(String);

impl Key {
    /// Reads the sources, which takes some tenths of a second.
    pub fn of(root: &Path) -> Result<Self> {
        let mut files = Vec::new();
        SOURCES.iter().try_for_each(|folder| sources(&root.join(folder), &mut files))?;
        files.push(root.join("Cargo.lock"));
        files.sort_unstable();
        let mut digest = Sha256::new();
        for file in files {
            let bytes = fs::read(&file).doing(|| format!("cannot read {}", file.display()))?;
            digest.update(file.strip_prefix(root).unwrap_or(&file).as_os_str().as_encoded_bytes());
            digest.update((bytes.len() as u64).to_le_bytes());
            digest.update(bytes);
        }
        Ok(Self(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()))
    }
}

/// Collects the Rust sources and manifests below `folder`, without build results.
fn sources(folder: &Path, found: &mut Vec<PathBuf>) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(folder).doing(|| format!("cannot read {}", folder.display()))? {
        let path = entry.doing(|| format!("cannot read {}", folder.display()))?.path();
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "target") {
                sources(&path, found)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs" || e == "toml") {
            found.push(path);
        }
    }
    Ok(())
}

fn list_of(places: &Places, stage: &str) -> PathBuf {
    places.target.join("test-names").join(stage)
}

/// Keeps the names of a stage's tests, which were compiled from the sources of `key`. An error is ignored, because it
/// only makes a later listing slower.
pub fn keep(places: &Places, stage: &str, key: &Key, names: &[String]) {
    let path = list_of(places, stage);
    let _ = path.parent().map(fs::create_dir_all);
    // The rename is atomic, so that a concurrent listing reads a complete list.
    let fresh = path.with_extension(format!("new-{}", std::process::id()));
    let _ = fs::write(&fresh, format!("{}\n{}\n", key.0, names.join("\n"))).and_then(|()| fs::rename(&fresh, &path));
}

/// The knowledge about a stage's names.
#[derive(Debug, PartialEq, Eq)]
enum Known {
    /// The names in the present sources.
    Now(Vec<String>),
    /// The names in earlier sources.
    Before(Vec<String>),
    /// No names are known.
    Nothing,
}

fn known(places: &Places, stage: &str, key: &Key) -> Known {
    let Ok(text) = fs::read_to_string(list_of(places, stage)) else { return Known::Nothing };
    let mut lines = text.lines().map(str::to_owned);
    match lines.next() {
        Some(of) if of == key.0 => Known::Now(lines.collect()),
        Some(_) => Known::Before(lines.collect()),
        None => Known::Nothing,
    }
}

/// Prints the names of the checks that the filter selects, stage by stage. `compiled` finds the names of a stage by a
/// build.
pub fn print<'s>(
    context: &Context<'_>,
    stages: impl Iterator<Item = &'s str>,
    compiled: impl Fn(&str) -> Result<Vec<String>>,
) -> Result<()> {
    let key = Key::of(&context.places.root)?;
    let asked = context.filter.as_deref().map(|filter| filter.split('/').next().unwrap_or_default());
    let (mut old, mut unknown) = (Vec::new(), Vec::new());
    for stage in stages {
        let names = if !COMPILED.contains(&stage) {
            compiled(stage)?
        } else if context.names_another(stage) {
            continue;
        } else {
            match known(context.places, stage, &key) {
                Known::Now(names) => names,
                _ if asked == Some(stage) => {
                    let what = format!("compiling the tests of {stage}, whose names are not known");
                    let _step = Step::sized(what, "some 10 min the first time");
                    compiled(stage)?
                }
                Known::Before(names) => {
                    old.push(stage);
                    names
                }
                Known::Nothing => {
                    unknown.push(stage);
                    vec![format!("{stage}/...")]
                }
            }
        };
        // Unknown names may match the filter, so their placeholder is printed.
        let unknown = |name: &str| name.ends_with("/...") && !context.names_another(stage);
        names.iter().filter(|name| context.selects(name) || unknown(name)).for_each(|name| println!("{name}"));
    }
    let note = |stages: &[&str], what: &str| {
        if let Some(first) = stages.first() {
            let all = stages.join(", ");
            eprintln!("quire: the names of {all} {what}; ./quire test --list {first} compiles them (some minutes)");
        }
    };
    note(&old, "are those of the last build, and the sources have changed since");
    note(&unknown, "are not known, because no test was built here");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(home: &Path) -> Places {
        Places { root: home.to_owned(), cache: home.join("cache"), target: home.join("target") }
    }

    #[test]
    fn a_kept_list_is_old_once_a_source_changes() {
        let home = tempfile::tempdir().unwrap();
        let (places, source) = (places(home.path()), home.path().join("lab/src/a.rs"));
        fs::create_dir_all(source.parent().unwrap()).unwrap();
        fs::write(home.path().join("Cargo.lock"), "").unwrap();
        fs::write(&source, "#[test] fn a() {}").unwrap();
        let key = Key::of(home.path()).unwrap();
        assert_eq!(known(&places, "unit", &key), Known::Nothing);
        let names = vec!["unit/lab/a".to_owned(), "unit/lab/b".to_owned()];
        keep(&places, "unit", &key, &names);
        assert_eq!(known(&places, "unit", &key), Known::Now(names.clone()));
        assert_eq!(known(&places, "model", &key), Known::Nothing);
        // A file that is not a source, and a file of a build, do not change the digest.
        fs::write(home.path().join("lab/notes.md"), "x").unwrap();
        fs::create_dir(home.path().join("lab/target")).unwrap();
        fs::write(home.path().join("lab/target/b.rs"), "x").unwrap();
        assert_eq!(Key::of(home.path()).unwrap(), key);
        fs::write(&source, "#[test] fn b() {}").unwrap();
        let changed = Key::of(home.path()).unwrap();
        assert_eq!(known(&places, "unit", &changed), Known::Before(names));
    }
}
