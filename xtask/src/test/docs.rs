//! Checks that names in the documents exist in the code: files, functions that the walkthrough names, and items that
//! the page on embedding names. This module also runs the checks of contracts, clocks, `unsafe` comments and atomics.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{Context, api, atomics, clocks, contract, models, safety, verdict::Check};
use crate::failure::{Doing, Result};

const NAME: &str = "docs/the walkthrough names existing code";
const EMBEDDING: &str = "docs/the page on embedding names existing items";
const FILES: &str = "docs/documents name existing files";
const CONTRACTS: &str = "docs/every contract has one home";
const SAFETY: &str = "docs/every unsafe block has its argument";
const ATOMICS: &str = "docs/modelled code uses the atomics of quire-sync";
const CLOCKS: &str = "docs/no test judges by the clock of the host";
const MUTANTS: &str = "docs/every mutant is in the table of models";

/// The checks' names.
pub fn names(_: &Context<'_>) -> Result<Vec<String>> {
    Ok([NAME, EMBEDDING, FILES, CONTRACTS, CLOCKS, SAFETY, ATOMICS, MUTANTS, api::NAME].map(str::to_owned).to_vec())
}

/// Runs the selected checks.
pub fn run(context: &Context<'_>, done: &mut dyn FnMut(Check)) -> Result<()> {
    if context.selects(MUTANTS) {
        let wrong = models::undocumented(&context.places.root)?;
        done(if wrong.is_empty() { Check::passed(MUTANTS) } else { Check::failed(MUTANTS, wrong.join("\n")) });
    }
    for (name, judge) in [
        (CONTRACTS, contracts as fn(&Path) -> Result<Vec<String>>),
        (CLOCKS, clocks),
        (SAFETY, safeties),
        (ATOMICS, foreign_atomics),
        (FILES, files),
    ] {
        if context.selects(name) {
            let wrong = judge(&context.places.root)?;
            done(if wrong.is_empty() { Check::passed(name) } else { Check::failed(name, wrong.join("\n")) });
        }
    }
    if context.selects(EMBEDDING) {
        let path = context.places.root.join("docs/embedding.md");
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
            Check::passed(EMBEDDING)
        } else {
            Check::failed(EMBEDDING, format!("not in the code: {}", missing.join(", ")))
        });
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

/// Returns violations of the rules for contracts in the sources below `root`.
fn contracts(root: &Path) -> Result<Vec<String>> {
    let path = root.join("ARCHITECTURE.md");
    let text = fs::read_to_string(&path).doing(|| format!("cannot read {}", path.display()))?;
    Ok(contract::judge(&contract::table(&text), &sources(root, &["crates", "lab"])?))
}

/// Returns the files that a document names with their folder but that do not exist. Generated tables are left out,
/// because they name files without their crate.
fn files(root: &Path) -> Result<Vec<String>> {
    let mut documents: Vec<PathBuf> =
        ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"].map(|name| root.join(name)).into();
    for folder in ["docs", "docs/design"].map(|name| root.join(name)) {
        for entry in fs::read_dir(&folder).doing(|| format!("cannot read {}", folder.display()))? {
            let path = entry.doing(|| folder.display().to_string())?.path();
            let name = path.file_name().unwrap_or_default();
            if path.extension().is_some_and(|e| e == "md") && name != "status.md" && name != "api.md" {
                documents.push(path);
            }
        }
    }
    documents.sort();
    let all = sources(root, &["crates", "lab", "xtask", "fuzz", "examples"])?;
    let mut missing = Vec::new();
    for path in documents {
        let text = fs::read_to_string(&path).doing(|| format!("cannot read {}", path.display()))?;
        let names = file_names(&text).into_iter();
        // A name may be relative to the root, to a crate's folder, or to a folder below.
        let there = |name: &str| {
            let ends = format!("/{name}");
            candidates(&root.join("crates"), name).iter().any(|place| place.exists())
                || all.iter().any(|(path, _)| path == name || path.ends_with(&ends))
        };
        let shown = path.strip_prefix(root).unwrap_or(&path).display();
        missing.extend(
            names
                .filter(|name| !there(name))
                .map(|name| format!("{shown} names the file {name}, which does not exist")),
        );
    }
    Ok(missing)
}

/// Returns the Rust files that a text names between backquotes with a folder. Names with a variable part (a star or
/// `NAME`) are left out.
fn file_names(text: &str) -> Vec<&str> {
    let prose = text.split("```").step_by(2);
    prose
        .flat_map(quoted)
        .filter(|n| n.ends_with(".rs") && n.contains('/') && !n.contains(['*', ' ', '<']) && !n.contains("NAME"))
        .collect()
}

/// Returns the uses of the host's clock in tests.
fn clocks(root: &Path) -> Result<Vec<String>> {
    let sources = sources(root, &["crates", "lab", "xtask", "fuzz", "plugin", "examples"])?;
    // The examples in `clocks.rs` itself are not uses.
    let sources: Vec<_> = sources.into_iter().filter(|(path, _)| path != "xtask/src/test/clocks.rs").collect();
    Ok(clocks::judge(&sources))
}

/// Returns the comments on `unsafe` code that contain no argument.
fn safeties(root: &Path) -> Result<Vec<String>> {
    let sources = sources(root, &["crates", "lab", "fuzz", "plugin", "examples", "programs", "xtask"])?;
    // The examples in `safety.rs` itself argue for no `unsafe` code.
    let sources = sources.iter().filter(|(path, _)| path != "xtask/src/test/safety.rs");
    Ok(sources.flat_map(|(path, text)| safety::judge(path, text)).collect())
}

/// Returns the uses of atomics in modelled code that the model checkers do not replace.
fn foreign_atomics(root: &Path) -> Result<Vec<String>> {
    let sources = sources(root, &["crates"])?;
    let wrong = sources.iter().flat_map(|(path, text)| atomics::judge(path, text));
    Ok(wrong.chain(atomics::stale(&sources)).collect())
}

/// Returns all Rust files below these folders of `root`, as (path from `root`, text).
pub(super) fn sources(root: &Path, folders: &[&str]) -> Result<Vec<(String, String)>> {
    files_below(root, folders, &["rs"])
}

/// Returns all files with these endings below these folders of `root`, sorted, as (path from `root`, text).
pub(super) fn files_below(root: &Path, folders: &[&str], endings: &[&str]) -> Result<Vec<(String, String)>> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = folders.iter().map(|f| root.join(f)).collect();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).doing(|| format!("cannot read {}", folder.display()))? {
            let path = entry.doing(|| folder.display().to_string())?.path();
            if path.is_dir() {
                // Build results are not ours.
                if path.file_name().is_some_and(|name| name != "target") {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|e| endings.iter().any(|wanted| e == *wanted)) {
                let text = fs::read_to_string(&path).doing(|| path.display().to_string())?;
                found.push((path.strip_prefix(root).unwrap_or(&path).display().to_string(), text));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// Appends all Rust text below `directory` to `code`.
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

/// Returns the texts between backquotes.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

/// Returns the items between backquotes whose path begins with one of our crates, as (crate's directory, item). Blocks
/// of code are not read, because they are compiled.
fn items(text: &str) -> Vec<(&str, &str)> {
    let prose = text.split("```").step_by(2);
    let paths = prose.flat_map(quoted).filter_map(|name| name.strip_prefix("quire_")?.split_once("::"));
    paths.map(|(krate, path)| (krate, path.rsplit("::").next().unwrap_or(path).trim_end_matches('!'))).collect()
}

/// Returns the directory of a crate from its Rust name without `quire_`: a dash replaces the first underscore.
fn directory(krate: &str) -> String {
    krate.replacen('_', "-", 1)
}

/// Whether the text declares an item of that name.
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

/// Returns the kind of a quoted name. Paths contain a slash or end in `.rs`; types begin with a capital.
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
    // A crate's own name is not a function.
    if ["linux", "pmap", "kernel"].contains(&last) { Named::Other } else { Named::Function(last) }
}

/// Returns the paths at which a file may be: below the sources of `vm`, or below the sources of the crate with whose
/// name the file's name begins.
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
    fn files_are_named_with_a_folder() {
        let text =
            "`vm/fault/mod.rs`, `mod.rs`, `crates/*/src/models.rs`\n```\n`no/no.rs`\n```\n`./quire lab` `a/b.md`";
        assert_eq!(file_names(text), ["vm/fault/mod.rs"]);
    }

    #[test]
    fn names_are_distinguished() {
        assert_eq!(quoted("a `b` c `d::e`"), ["b", "d::e"]);
        assert_eq!(named("map/tree"), Named::File);
        assert_eq!(named("fault.rs"), Named::File);
        assert_eq!(named("At::walk"), Named::Function("walk"));
        assert_eq!(named("Spare"), Named::Type("Spare"));
        assert_eq!(named("two words"), Named::Other);
    }
}
