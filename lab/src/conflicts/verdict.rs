//! Compares measurements with the list of known shared lines.

use super::Case;
use super::expected::{EXPECTED, Expected};
use super::measure::{Line, Measured, Seen};

/// The verdict on a case.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Verdict {
    /// No line was shared in any round.
    Free,
    /// Lines were shared, but only at listed rates.
    Amortised,
    /// Lines are shared for listed reasons.
    Listed,
    /// A line is shared but not listed, or shared more often than listed, or listed but not shared.
    Wrong,
}

/// A shared line of a case.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The line.
    pub line: Line,
    /// The measured sharing of the line.
    pub seen: Seen,
    /// The entry of the list for the line. `None` if the line is not listed.
    pub expected: Option<&'static Expected>,
}

/// A measured case with its verdict.
#[derive(Clone)]
pub struct Judged {
    /// The case.
    pub case: Case,
    /// The verdict.
    pub verdict: Verdict,
    /// The lines that were shared.
    pub shared: Vec<Shared>,
    /// The number of shared lines in the round that shared the most.
    pub most: u32,
    /// The entries of the list whose lines should be shared but are not.
    pub gone: Vec<&'static Expected>,
}

/// Compares the measurement of a case with the list.
pub fn judge(case: Case, measured: &Measured) -> Judged {
    let covering = || EXPECTED.iter().filter(|e| e.covers(case.a, case.b, case.state));
    let shared: Vec<Shared> = measured
        .lines
        .iter()
        .map(|(line, seen)| {
            let allows = |e: &&Expected| e.names(line) && e.allows(seen.rounds, measured.rounds);
            // An entry with a rate is preferred, because it is more exact than an entry without one.
            let expected = covering().filter(allows).min_by_key(|e| e.every.is_none());
            Shared { line: line.clone(), seen: seen.clone(), expected }
        })
        .collect();
    let there = |e: &Expected| shared.iter().any(|s| e.names(&s.line));
    let gone: Vec<_> = covering().filter(|e| e.every.is_none() && !there(e)).collect();
    let verdict = if !gone.is_empty() || shared.iter().any(|s| s.expected.is_none()) {
        Verdict::Wrong
    } else if shared.iter().any(|s| s.expected.is_some_and(|e| e.every.is_none())) {
        Verdict::Listed
    } else if shared.is_empty() {
        Verdict::Free
    } else {
        Verdict::Amortised
    };
    Judged { case, verdict, shared, most: measured.most, gone }
}

/// The entries of the list that have a rate, but whose line no case has shared.
pub fn unmet(all: &[Judged]) -> Vec<&'static Expected> {
    let met = |e: &Expected| all.iter().flat_map(|j| &j.shared).any(|s| s.expected.is_some_and(|m| std::ptr::eq(m, e)));
    EXPECTED.iter().filter(|e| e.every.is_some() && !met(e)).collect()
}
