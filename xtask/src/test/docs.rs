//! What the documents say of the code is there: files and functions that the walkthrough names, and items that the README names.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{Context, models, verdict::Check};
use crate::failure::{Doing, Result};

const NAME: &str = "docs/the walkthrough names code that is there";
const README: &str = "docs/the README names items that are there";
const MUTANTS: &str = "docs/every step that models leave out is in the models' table";

/// Their names.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok([NAME, README, MUTANTS].map(str::to_owned).to_vec())
}

/// Looks every name up.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if context.selects(MUTANTS) {
        let wrong = models::undocumented(&context.places.root)?;
        done(if wrong.is_empty() { Check::passed(MUTANTS) } else { Check::failed(MUTANTS, wrong.join("\n")) });
    }
    if context.selects(README) {
        let path = context.places.root.join("README.md");
        let text = fs::read_to_string(&path).doing(|| format!("cannot read {}", path.display()))?;
        let mut missing = Vec::new();
        for (krate, item) in items(&text) {
            let mut code = String::new();
            collect(&context.places.root.join("crates").join(directory(krate)).join("src"), &mut code)?;
            if !declares(&code, item) {
                missing.push(format!("quire_{krate}::{item}"));
            }
        }
        done(if missing.is_empty() {
            Check::passed(README)
        } else {
            Check::failed(README, format!("not in the code: {}", missing.join(", ")))
        });
    }
    if !context.selects(NAME) {
        return Ok(());
    }
    let path = context.places.root.join("docs/walkthrough.md");
    let text = fs::read_to_string(&path).doing(|| format!("cannot read {}", path.display()))?;
    let crates = context.places.root.join("crates");
    let mut code = String::new();
    for krate in ["sync", "vm", "pmap", "pmap-x86_64"] {
        collect(&crates.join(krate).join("src"), &mut code)?;
    }
    let mut missing = Vec::new();
    for name in quoted(&text) {
        let there = match named(name) {
            Named::File => candidates(&crates, name).iter().any(|p| p.exists()),
            Named::Function(f) => code.contains(&format!("fn {f}(")) || code.contains(&format!("fn {f}<")),
            Named::Type(t) => ["struct", "enum", "trait"].iter().any(|k| code.contains(&format!("{k} {t}"))),
            Named::Other => true,
        };
        if !there {
            missing.push(name);
        }
    }
    done(if missing.is_empty() {
        Check::passed(NAME)
    } else {
        Check::failed(NAME, format!("not in the code: {}", missing.join(", ")))
    });
    Ok(())
}

/// All Rust text below `directory`.
fn collect(directory: &Path, code: &mut String) -> Result<()> {
    for entry in fs::read_dir(directory).doing(|| format!("cannot read {}", directory.display()))? {
        let path = entry.doing(|| directory.display().to_string())?.path();
        if path.is_dir() {
            collect(&path, code)?;
        } else if path.extension().is_some_and(|e| e == "rs") {
            code.push_str(&fs::read_to_string(&path).doing(|| path.display().to_string())?);
        }
    }
    Ok(())
}

/// What stands between backquotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// The items between backquotes that begin with one of our crates' names, with the crate's directory. Blocks of code are compiled.
fn items(text: &str) -> Vec<(&str, &str)> {
    let prose = text.split("```").step_by(2);
    let paths = prose.flat_map(quoted).filter_map(|name| name.strip_prefix("quire_")?.split_once("::"));
    paths.map(|(krate, path)| (krate, path.rsplit("::").next().unwrap_or(path).trim_end_matches('!'))).collect()
}

/// The directory of a crate that Rust calls so, without `quire_`: the first underscore stands for a dash.
fn directory(krate: &str) -> String {
    krate.replacen('_', "-", 1)
}

/// Whether the text has an item of that name.
fn declares(code: &str, item: &str) -> bool {
    let kinds = ["struct ", "enum ", "trait ", "type ", "fn ", "mod ", "const ", "macro_rules! "];
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_');
    kinds.iter().any(|kind| {
        let wanted = format!("{kind}{item}");
        code.match_indices(&wanted).any(|(at, _)| ends(&code[at + wanted.len()..]))
    })
}

#[derive(Debug, PartialEq, Eq)]
enum Named<'a> {
    File,
    Function(&'a str),
    Type(&'a str),
    Other,
}

/// What kind of thing a quoted name is: paths have a slash or an ending, types begin with a capital.
fn named(name: &str) -> Named<'_> {
    if name.contains('/') || name.ends_with(".rs") {
        return Named::File;
    }
    let last = name.rsplit("::").next().unwrap_or(name);
    if !last.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') || last.len() < 3 {
        return Named::Other;
    }
    if last.starts_with(|c: char| c.is_ascii_uppercase()) {
        return Named::Type(last);
    }
    // A crate's own name is no function.
    if ["linux", "pmap", "kernel"].contains(&last) { Named::Other } else { Named::Function(last) }
}

/// Where a path may lie: below the core's sources, or below those of the crate that it begins with.
fn candidates(crates: &Path, name: &str) -> Vec<PathBuf> {
    let mut found = vec![crates.join("vm/src").join(name), crates.join(name)];
    if let Some((krate, rest)) = name.split_once('/') {
        found.push(crates.join(krate).join("src").join(rest));
    }
    if name.starts_with("crates/") {
        found.push(crates.join("..").join(name));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_our_crates_are_found_outside_of_code() {
        let text = "`quire_vm::map::Space` and `Other`\n```rust\nlet `quire_no::No`;\n```\n`quire_sync::provide!`";
        assert_eq!(items(text), [("vm", "Space"), ("sync", "provide")]);
        assert_eq!(["vm", "pmap_x86_64"].map(directory), ["vm", "pmap-x86_64"]);
        assert!(declares("pub struct Space<M>", "Space") && declares("macro_rules! provide {", "provide"));
        assert!(!declares("pub struct Spaces;", "Space") && !declares("// Space", "Space"));
    }

    #[test]
    fn names_are_told_apart() {
        assert_eq!(quoted("a `b` c `d::e`"), ["b", "d::e"]);
        assert_eq!(named("map/tree"), Named::File);
        assert_eq!(named("fault.rs"), Named::File);
        assert_eq!(named("At::walk"), Named::Function("walk"));
        assert_eq!(named("Spare"), Named::Type("Spare"));
        assert_eq!(named("two words"), Named::Other);
    }
}
