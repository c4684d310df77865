//! The view of the conflict matrix: a row and a column for each operation, and the number of shared cache lines.

use std::collections::{BTreeMap, BTreeSet};

use quire_results::conflicts::{Conflicts, Named, Pair, Sharing};
use serde::Serialize;

/// The data of a run's matrix, for the page.
#[derive(Debug, Serialize)]
pub struct View {
    /// The number of pairs that commute, each counted in each state.
    cases: usize,
    /// The number of commuting pairs that share no line, or share lines only at stated rates.
    clean: usize,
    /// The number of pairs with each verdict.
    legend: Vec<Key>,
    /// One matrix for all states together, then one for each state.
    grids: Vec<Grid>,
    /// The reasons for shared lines.
    reasons: Vec<Reason>,
    command: String,
    ended: String,
    commit: String,
    machine: String,
    rounds: u32,
}

/// An entry of the legend.
#[derive(Debug, Serialize)]
struct Key {
    class: &'static str,
    sign: &'static str,
    count: usize,
    means: &'static str,
}

/// The matrix of one state, or of all states.
#[derive(Debug, Serialize)]
struct Grid {
    title: String,
    rows: Vec<Row>,
}

/// The row of an operation.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    about: String,
    cells: Vec<Cell>,
}

/// The cell of two operations.
#[derive(Debug, Serialize)]
struct Cell {
    class: &'static str,
    text: String,
    title: String,
}

/// A reason, and the labels of the lines to which it applies.
#[derive(Debug, Serialize)]
struct Reason {
    class: &'static str,
    reason: String,
    often: String,
    labels: String,
    cases: usize,
    example: String,
}

/// The verdicts with their CSS classes, signs and meanings, in the order of the legend.
const VERDICTS: [(Sharing, &str, &str, &str); 4] = [
    (Sharing::Free, "share-free", "", "share no line"),
    (Sharing::Amortised, "share-amortised", "~", "share lines at stated rates only"),
    (Sharing::Listed, "share-listed", "", "share lines for a stated reason"),
    (Sharing::Wrong, "share-wrong", "!", "differ from the list"),
];

fn style(verdict: Sharing) -> (&'static str, &'static str) {
    let found = VERDICTS.iter().find(|(v, ..)| *v == verdict);
    found.map_or(("share-wrong", "!"), |(_, class, sign, _)| (*class, *sign))
}

/// The view of a results file.
pub fn of(all: &Conflicts) -> View {
    let machine = all.machine.as_ref();
    let count = |verdict: Sharing| all.cases.iter().filter(|c| c.verdict == verdict).count();
    let title = "All relations between the two processes: the most lines of any".to_owned();
    let whole = Grid { title, rows: rows(all, None) };
    let each = all.states.iter().map(|s| Grid { title: first_upper(&s.about), rows: rows(all, Some(&s.name)) });
    View {
        cases: all.cases.len(),
        clean: count(Sharing::Free) + count(Sharing::Amortised),
        legend: VERDICTS.map(|(v, class, sign, means)| Key { class, sign, count: count(v), means }).into(),
        grids: std::iter::once(whole).chain(each).collect(),
        reasons: reasons(&all.cases),
        command: all.command.clone(),
        ended: all.ended.get(..10).unwrap_or(&all.ended).to_owned(),
        commit: machine.and_then(|m| m.versions.get("Quire").cloned()).unwrap_or_else(|| "unknown".to_owned()),
        machine: machine.map_or_else(|| "unknown".to_owned(), |m| format!("{}, {} CPUs", m.processor, m.cpus)),
        rounds: all.rounds,
    }
}

fn first_upper(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map(|c| c.to_uppercase().chain(letters).collect()).unwrap_or_default()
}

/// The rows of one state, or of all states together.
fn rows(all: &Conflicts, state: Option<&str>) -> Vec<Row> {
    let mut pairs: BTreeMap<(&str, &str), Vec<&Pair>> = BTreeMap::new();
    for case in all.cases.iter().filter(|c| state.is_none_or(|s| c.state == s)) {
        pairs.entry((&case.a, &case.b)).or_default().push(case);
        if case.a != case.b {
            pairs.entry((&case.b, &case.a)).or_default().push(case);
        }
    }
    let cell = |row: &Named, column: &Named| {
        cell(row, column, pairs.get(&(row.name.as_str(), column.name.as_str())).map_or(&[][..], Vec::as_slice))
    };
    let row = |row: &Named| Row {
        name: row.name.clone(),
        about: row.about.clone(),
        cells: all.operations.iter().map(|column| cell(row, column)).collect(),
    };
    all.operations.iter().map(row).collect()
}

/// The cell of a pair of operations. It shows the case with the worst verdict. If several cases have that verdict, it
/// shows the case with the most lines.
fn cell(row: &Named, column: &Named, cases: &[&Pair]) -> Cell {
    let both = format!("{} and {}", row.name, column.name);
    let Some(worst) = cases.iter().max_by_key(|c| (c.verdict, c.lines)) else {
        return Cell { class: "share-none", text: String::new(), title: format!("{both} do not commute") };
    };
    let (class, sign) = style(worst.verdict);
    let mut title = both;
    for case in cases {
        let labels: BTreeSet<&str> = case.shared.iter().map(|l| label(&l.label)).collect();
        let names = labels.into_iter().collect::<Vec<_>>().join(", ");
        let names = if names.is_empty() { names } else { format!(" ({names})") };
        title += &format!("\n{}: {}{names}", case.state, case.lines);
    }
    Cell { class, text: format!("{sign}{}", worst.lines), title }
}

fn label(label: &str) -> &str {
    if label.is_empty() { "memory without an owner" } else { label }
}

/// The labels of a reason's lines, and the pairs of operations that share them.
type Found<'a> = (BTreeSet<&'a str>, BTreeSet<String>);

/// Each reason once. Reasons without a rate come first, then the order is by the number of cases.
fn reasons(cases: &[Pair]) -> Vec<Reason> {
    let mut found: BTreeMap<(Option<u32>, &str), Found<'_>> = BTreeMap::new();
    for case in cases {
        for line in &case.shared {
            let reason = line.reason.as_deref().unwrap_or("not listed");
            let (labels, pairs) = found.entry((line.every, reason)).or_default();
            labels.insert(label(&line.label));
            pairs.insert(format!("{} + {} ({})", case.a, case.b, case.state));
        }
    }
    let mut reasons: Vec<Reason> = found
        .into_iter()
        .map(|((every, reason), (labels, pairs))| Reason {
            class: match (every, reason) {
                (Some(_), _) => "share-amortised",
                (None, "not listed") => "share-wrong",
                (None, _) => "share-listed",
            },
            reason: first_upper(reason),
            often: every.map_or_else(|| "always".to_owned(), |n| format!("at most once in {n} operations")),
            labels: labels.into_iter().collect::<Vec<_>>().join(", "),
            cases: pairs.len(),
            example: pairs.into_iter().next().unwrap_or_default(),
        })
        .collect();
    reasons.sort_by_key(|r| (r.class == "share-amortised", std::cmp::Reverse(r.cases)));
    reasons
}
