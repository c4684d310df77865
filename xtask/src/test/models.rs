//! The names of the models' tests contain facts: the protocols, the necessary steps of each, and the checkers that find
//! a missing step. The table of docs/models.md is made from these names and checked against them.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use crate::failure::{Doing, Result};

/// The crates whose protocols have models.
pub const MODELLED: [&str; 10] = [
    "quire-sync",
    "quire-lookup",
    "quire-vm",
    "quire-task",
    "quire-pmap",
    "quire-fs",
    "quire-ipc",
    "quire-net",
    "quire-linux-state",
    "quire-linux",
];
/// The two checkers. Loom models weak memory; shuttle tries more schedules.
pub const CHECKERS: [&str; 2] = ["loom", "shuttle"];
/// The document with the table.
const DOCUMENT: &str = "docs/models.md";
/// The header of a second table in the document. It lists steps whose absence no model finds, but another test does.
const OTHERS: &str = "| crate | step |";

/// A set of [`CHECKERS`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Under([bool; 2]);

impl Under {
    fn name(self) -> &'static str {
        match self.0 {
            [true, true] => "both",
            [true, false] => "loom",
            [false, true] => "shuttle",
            [false, false] => "none",
        }
    }
}

/// A protocol: the checkers under which its model runs, and for each necessary step the checkers that find its absence.
#[derive(Debug, Default, PartialEq, Eq)]
struct Protocol {
    holds: Under,
    without: BTreeMap<String, Under>,
}

/// All protocols, by crate and by the sentence that names the model.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Models(BTreeMap<(String, String), Protocol>);

impl Models {
    /// Reads names of tests, like
    /// `model/loom/quire-vm/models::a_removed_page_has_no_mapping::without::NoBusyCheck`. Other tests of the same
    /// programs do not count.
    pub fn of<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let mut all = Self::default();
        for name in names {
            let mut parts = name.split('/').skip(1);
            let (Some(checker), Some(package), Some(path)) = (parts.next(), parts.next(), parts.next()) else {
                continue;
            };
            let Some(checker) = CHECKERS.iter().position(|c| *c == checker) else { continue };
            let path: Vec<&str> = path.split("::").collect();
            let (sentence, mutant) = match path[..] {
                [.., sentence, "holds"] => (sentence, None),
                [.., sentence, "without", mutant] => (sentence, Some(mutant)),
                _ => continue,
            };
            let key = (package.trim_start_matches("quire-").to_owned(), sentence.replace('_', " "));
            let protocol = all.0.entry(key).or_default();
            let under = match mutant {
                None => &mut protocol.holds,
                Some(mutant) => protocol.without.entry(mutant.to_owned()).or_default(),
            };
            under.0[checker] = true;
        }
        all
    }

    /// Returns every step, with the checkers that find its absence in some model.
    fn mutants(&self) -> BTreeMap<(&str, &str), Under> {
        let mut all: BTreeMap<(&str, &str), Under> = BTreeMap::new();
        for ((package, _), protocol) in &self.0 {
            for (mutant, under) in &protocol.without {
                let found = all.entry((package, mutant)).or_default();
                (0..2).for_each(|i| found.0[i] |= under.0[i]);
            }
        }
        all
    }

    /// Returns `N models (N under loom, N under shuttle), N mutants: N found by both, N by loom alone, N by shuttle
    /// alone`.
    pub fn summary(&self) -> String {
        let count = |of: &dyn Fn(&Protocol) -> bool| self.0.values().filter(|p| of(p)).count();
        let mutants = self.mutants();
        let by = |name: &str| mutants.values().filter(|u| u.name() == name).count();
        format!(
            "{} models ({} under loom, {} under shuttle), {} mutants: {} found by both, {} by loom alone, {} by \
                shuttle alone",
            self.0.len(),
            count(&|p| p.holds.0[0]),
            count(&|p| p.holds.0[1]),
            mutants.len(),
            by("both"),
            by("loom"),
            by("shuttle"),
        )
    }

    /// Returns the lines of the table.
    pub fn table(&self) -> String {
        let mut out = String::from("| crate | what holds | under | but not without |\n|---|---|---|---|\n");
        for ((package, sentence), protocol) in &self.0 {
            let without: Vec<String> = protocol.without.iter().map(|(m, u)| format!("`{m}` ({})", u.name())).collect();
            let _ = writeln!(out, "| {package} | {sentence} | {} | {} |", protocol.holds.name(), without.join(", "));
        }
        out
    }

    /// Returns the lines in which the document and the tests differ.
    pub fn differences(&self, root: &Path) -> Result<Vec<String>> {
        let text = read(&root.join(DOCUMENT))?;
        let (made, there) = (self.table(), rows(&text));
        let missing = made.lines().filter(|l| !there.contains(l)).map(|l| format!("not in {DOCUMENT}: {l}"));
        let gone = there.iter().filter(|l| !made.lines().any(|m| m == **l)).map(|l| format!("no test has: {l}"));
        Ok(missing.chain(gone).collect())
    }
}

/// Returns the lines of the main table in a document.
fn rows(text: &str) -> Vec<&str> {
    below(text, "| crate | what holds |")
}

/// Returns the lines of the table with this header.
fn below<'t>(text: &'t str, header: &str) -> Vec<&'t str> {
    text.lines().skip_while(|l| !l.starts_with(header)).take_while(|l| l.starts_with('|')).collect()
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).doing(|| format!("cannot read {}", path.display()))
}

/// Returns the names in `enum Mutant` of each crate, as (crate, name).
fn declared(root: &Path) -> Result<Vec<(String, String)>> {
    let mut all = Vec::new();
    for package in MODELLED.map(|p| p.trim_start_matches("quire-")) {
        let text = read(&root.join(format!("crates/{package}/src/mutant.rs")))?;
        all.extend(variants(&text).map(|v| (package.to_owned(), v.to_owned())));
    }
    Ok(all)
}

fn variants(text: &str) -> impl Iterator<Item = &str> {
    let body = text.lines().skip_while(|l| !l.contains("enum Mutant {")).skip(1).map(str::trim);
    body.take_while(|l| *l != "}")
        .filter(|l| l.starts_with(|c: char| c.is_ascii_uppercase()))
        .filter_map(|l| l.split([',', ' ']).next())
}

/// Returns the mutants that are in no row of the document, and the mutants of rows that the code no longer has.
pub fn undocumented(root: &Path) -> Result<Vec<String>> {
    let text = read(&root.join(DOCUMENT))?;
    let mut listed = Vec::new();
    for row in rows(&text) {
        let mut cells = row.split('|').map(str::trim).skip(1);
        let (package, last) = (cells.next().unwrap_or_default(), cells.nth(2).unwrap_or_default());
        listed.extend(last.split('`').skip(1).step_by(2).map(|m| (package.to_owned(), m.to_owned())));
    }
    for row in below(&text, OTHERS).into_iter().skip(2) {
        let mut cells = row.split('|').map(|cell| cell.trim().trim_matches('`'));
        if let (Some(package), Some(step)) = (cells.nth(1), cells.next()) {
            listed.push((package.to_owned(), step.to_owned()));
        }
    }
    let declared = declared(root)?;
    let say = |what: &str, (package, m): &(String, String)| format!("{package}'s {m} {what}");
    let missing = declared.iter().filter(|d| !listed.contains(d)).map(|d| say("is in no row", d));
    let gone = listed.iter().filter(|l| !declared.contains(l)).map(|l| say("is not a mutant of the code any more", l));
    Ok(missing.chain(gone).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAMES: [&str; 6] = [
        "model/loom/quire-vm/models::a_page_is_there::holds",
        "model/shuttle/quire-vm/models::a_page_is_there::holds",
        "model/loom/quire-vm/models::a_page_is_there::without::NoFence",
        "model/loom/quire-vm/models::a_page_is_there::without::NoCheck",
        "model/shuttle/quire-vm/models::a_page_is_there::without::NoCheck",
        "model/shuttle/quire-vm/models::lists::tests::something_else",
    ];

    #[test]
    fn protocols_and_their_steps_are_read_from_the_names_of_tests() {
        let models = Models::of(NAMES);
        let rows = models.table();
        assert_eq!(rows.lines().nth(2), Some("| vm | a page is there | both | `NoCheck` (both), `NoFence` (loom) |"));
        assert_eq!(rows.lines().count(), 3);
        assert_eq!(
            models.summary(),
            "1 models (1 under loom, 1 under shuttle), 2 mutants: 1 found by both, 1 by loom alone, 0 by shuttle alone"
        );
    }

    #[test]
    fn the_steps_of_an_enum_are_found() {
        let text = "/// enum\npub enum Mutant {\n    /// One.\n    One = 1,\n    /// Two: { }.\n    Two,\n}\nenum \
            Other {\n    No,\n}\n";
        assert_eq!(variants(text).collect::<Vec<_>>(), ["One", "Two"]);
    }
}
