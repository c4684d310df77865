//! The report of the conflict matrix for a terminal.

use super::model::State;
use super::operation::{ALL, Operation};
use super::verdict::{Judged, Verdict};
use comfy_table::{Cell, CellAlignment, Table, presets};
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// The number of cases with each verdict.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counts {
    /// No line was shared.
    pub free: usize,
    /// Lines were shared only at listed rates.
    pub amortised: usize,
    /// Lines were shared for listed reasons.
    pub listed: usize,
    /// The shared lines differ from the list.
    pub wrong: usize,
}

impl Counts {
    /// Counts the verdicts of these cases.
    pub fn of(all: &[Judged]) -> Counts {
        let mut counts = Counts::default();
        for judged in all {
            match judged.verdict {
                Verdict::Free => counts.free += 1,
                Verdict::Amortised => counts.amortised += 1,
                Verdict::Listed => counts.listed += 1,
                Verdict::Wrong => counts.wrong += 1,
            }
        }
        counts
    }

    /// The number of all cases.
    pub fn all(&self) -> usize {
        self.free + self.amortised + self.listed + self.wrong
    }
}

/// The operations that appear in any case. Each is a row and a column.
fn columns(all: &[Judged]) -> Vec<&'static Operation> {
    ALL.iter().filter(|o| all.iter().any(|j| j.case.a.name == o.name || j.case.b.name == o.name)).collect()
}

/// The character that stands for a verdict.
fn mark(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Free => "·",
        Verdict::Amortised => "~",
        Verdict::Listed => "x",
        Verdict::Wrong => "!",
    }
}

/// The matrix of one state: a row and a column for each operation. A cell is empty if the two operations do not
/// commute.
fn matrix(all: &[Judged], state: State) -> String {
    let columns = columns(all);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let head = (1..=columns.len()).map(|n| Cell::new(n).set_alignment(CellAlignment::Right));
    table.set_header([Cell::new("")].into_iter().chain(head));
    for (n, row) in columns.iter().enumerate() {
        let cells = columns.iter().map(|column| {
            let found = all.iter().find(|j| {
                let (a, b) = (j.case.a.name, j.case.b.name);
                j.case.state == state && ((a, b) == (row.name, column.name) || (b, a) == (row.name, column.name))
            });
            Cell::new(found.map_or(" ", |j| mark(j.verdict))).set_alignment(CellAlignment::Right)
        });
        table.add_row([Cell::new(format!("{:>2} {}", n + 1, row.name))].into_iter().chain(cells));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    format!("{}:\n{table}", state.about())
}

/// The shared lines, each with the reason and with the cases that share it.
fn legend(all: &[Judged]) -> String {
    let mut lines: BTreeMap<(Verdict, &str, &str), Vec<String>> = BTreeMap::new();
    for judged in all {
        let (a, b) = (judged.case.a.name, judged.case.b.name);
        for shared in &judged.shared {
            let (verdict, reason) = match shared.expected {
                Some(e) if e.every.is_some() => (Verdict::Amortised, e.reason),
                Some(e) => (Verdict::Listed, e.reason),
                None => (Verdict::Wrong, "not listed, or shared more often than listed"),
            };
            let who = format!("{a} + {b} ({})", judged.case.state.name());
            lines.entry((verdict, &shared.line.label, reason)).or_default().push(who);
        }
        for gone in &judged.gone {
            let who = format!("{a} + {b} ({})", judged.case.state.name());
            lines.entry((Verdict::Wrong, gone.labels[0], "listed, but not shared any more")).or_default().push(who);
        }
    }
    let mut out = String::new();
    for ((verdict, label, reason), mut who) in lines {
        who.dedup();
        let label = if label.is_empty() { "memory that nobody owns" } else { label };
        let _ = writeln!(out, "{} {label}: {reason}\n    {} cases: {}", mark(verdict), who.len(), some(&who));
    }
    out
}

/// The first four of the names.
fn some(who: &[String]) -> String {
    const SHOWN: usize = 4;
    let mut text = who.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    if who.len() > SHOWN {
        text.push_str(", ...");
    }
    text
}

/// The whole report except its last line.
pub fn text(all: &[Judged]) -> String {
    let mut out = String::new();
    for state in State::ALL {
        if all.iter().any(|j| j.case.state == state) {
            let _ = writeln!(out, "{}\n", matrix(all, state));
        }
    }
    out.push_str(
        "· no line shared   ~ only at stated rates   x listed   ! differs from the list   empty: the two do not \
         commute\n\n",
    );
    out.push_str(&legend(all));
    for judged in all.iter().filter(|j| j.verdict == Verdict::Wrong) {
        let (a, b, state) = (judged.case.a.name, judged.case.b.name, judged.case.state.name());
        for shared in judged.shared.iter().filter(|s| s.expected.is_none()) {
            let (label, by, rounds) = (&shared.line.label, &shared.line.by, shared.seen.rounds);
            let _ = write!(
                out,
                "\nNOT LISTED {a} + {b} ({state}): {label:?}, written by {by}, in {rounds} rounds\n{}",
                shared.seen.told
            );
        }
        for gone in &judged.gone {
            let _ = writeln!(out, "\nGONE {a} + {b} ({state}): {} is not shared any more", gone.labels.join(" or "));
        }
    }
    out
}

/// The last line of the report: the number of conflict-free cases.
pub fn last_line(counts: Counts) -> String {
    format!("{} of {} cases conflict-free", counts.free + counts.amortised, counts.all())
}
