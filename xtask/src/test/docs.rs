//! What the documents say of the code is there: files that the walkthrough names, and functions.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{Context, api, models, verdict::Check};
use crate::failure::{Doing, Result};

const NAME: &str = "docs/the walkthrough names code that is there";
const MUTANTS: &str = "docs/every step that models leave out is in the models' table";

/// Three checks.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok([NAME, MUTANTS, api::NAME].map(str::to_owned).to_vec())
}

/// Looks every name up.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if context.selects(MUTANTS) {
        let wrong = models::undocumented(&context.places.root)?;
        done(if wrong.is_empty() { Check::passed(MUTANTS) } else { Check::failed(MUTANTS, wrong.join("\n")) });
    }
    api::run(context, done)?;
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
    fn names_are_told_apart() {
        assert_eq!(quoted("a `b` c `d::e`"), ["b", "d::e"]);
        assert_eq!(named("map/tree"), Named::File);
        assert_eq!(named("fault.rs"), Named::File);
        assert_eq!(named("At::walk"), Named::Function("walk"));
        assert_eq!(named("Spare"), Named::Type("Spare"));
        assert_eq!(named("two words"), Named::Other);
    }
}
