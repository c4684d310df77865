//! Compares the measured conflicts with the list of known conflicts.

use std::collections::{BTreeMap, BTreeSet};

use super::{records::Case, sites::Sites};
use crate::failure::{Failure, Result};

/// The list of known conflicts. The head of the file describes its format.
pub const EXPECTED: &str = include_str!("expected");
/// The number of rounds from which a conflict counts against a case. A conflict that occurs in fewer rounds is
/// amortised: it occurs once in many operations.
const ROUNDS: usize = 2;
/// An unlisted conflict is tolerated if it occurs in at most one of this many rounds of all cases.
const SELDOM: usize = 1000;
/// The lowest address of the kernel.
const KERNEL: u64 = 1 << 63;

/// A line of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expected {
    /// The label of the conflict. A label that ends with `*` stands for all labels that begin with the text before it.
    pub label: String,
    /// If set, the conflict occurs in at most one of this many rounds of all cases, and may be absent.
    pub every: Option<usize>,
    /// The reason for the conflict.
    pub reason: String,
}

impl Expected {
    /// The length of the match with `label`, which is larger if it is more specific. `None` if the label does not
    /// match.
    fn stands_for(&self, label: &str) -> Option<usize> {
        let (start, exact) = match self.label.strip_suffix('*') {
            Some(start) => (start, false),
            None => (self.label.as_str(), true),
        };
        (if exact { start == label } else { label.starts_with(start) }).then_some(2 * start.len() + usize::from(exact))
    }
}

/// Parses the list. Its lines are `label | reason` or `label | 1 in N | reason`.
pub fn list(text: &str) -> Result<Vec<Expected>> {
    let lines = text.lines().filter(|l| !l.is_empty() && !l.starts_with('#'));
    let read = |line: &str| {
        let words: Vec<&str> = line.split(" | ").collect();
        let (label, every, reason) = match words[..] {
            [label, reason] => (label, None, reason),
            [label, rate, reason] => {
                (label, Some(rate.strip_prefix("1 in ")?.parse().ok().filter(|n| *n > 0)?), reason)
            }
            _ => return None,
        };
        Some(Expected { label: label.to_owned(), every, reason: reason.to_owned() })
    };
    let wrong =
        |line| Failure::usage(format_args!("{line:?} is neither `label | reason` nor `label | 1 in N | reason`"));
    lines.map(|line| read(line).ok_or_else(|| wrong(line))).collect()
}

/// The result of a case.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// No line was shared in any round.
    Free,
    /// Lines were shared, but each label in fewer rounds than count against the case (`ROUNDS`).
    Amortised,
    /// Lines are shared, and all their labels are listed.
    Listed,
    /// Lines are shared that are not listed.
    Wrong,
}

/// A case with its verdict.
#[derive(Debug)]
pub struct Judged<'a> {
    pub case: &'a Case,
    /// For each label, the number of the case's rounds that had it.
    pub shared: BTreeMap<String, usize>,
    pub verdict: Verdict,
}

impl Judged<'_> {
    /// The labels that count against the case.
    pub fn steady(&self) -> impl Iterator<Item = &str> {
        self.shared.iter().filter(|(_, rounds)| **rounds >= ROUNDS).map(|(label, _)| label.as_str())
    }

    pub fn is_free(&self) -> bool {
        matches!(self.verdict, Verdict::Free | Verdict::Amortised)
    }
}

/// The most specific line of the list for `label`.
pub fn reason<'e>(expected: &'e [Expected], label: &str) -> Option<&'e Expected> {
    expected.iter().filter_map(|e| Some((e.stands_for(label)?, e))).max_by_key(|(length, _)| *length).map(|(_, e)| e)
}

/// Judges a case.
pub fn judge<'a>(case: &'a Case, sites: &Sites, expected: &[Expected]) -> Judged<'a> {
    let mut shared: BTreeMap<String, usize> = BTreeMap::new();
    for round in &case.rounds {
        // Conflicts at a program's addresses are left out, because they belong to the program.
        let own = round.iter().filter(|line| line.writer.at >= KERNEL && line.toucher.at >= KERNEL);
        let labels: BTreeSet<String> = own.map(|line| sites.label(line)).collect();
        labels.into_iter().for_each(|label| *shared.entry(label).or_default() += 1);
    }
    with(case, shared, expected)
}

fn with<'a>(case: &'a Case, shared: BTreeMap<String, usize>, expected: &[Expected]) -> Judged<'a> {
    let mut judged = Judged { case, shared, verdict: Verdict::Free };
    judged.verdict = match () {
        () if judged.steady().any(|label| reason(expected, label).is_none()) => Verdict::Wrong,
        () if judged.steady().next().is_some() => Verdict::Listed,
        () if judged.shared.is_empty() => Verdict::Free,
        () => Verdict::Amortised,
    };
    judged
}

/// The number of cases with each verdict.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct Counts {
    pub free: usize,
    pub amortised: usize,
    pub listed: usize,
    pub wrong: usize,
}

impl Counts {
    pub fn of(all: &[Judged<'_>]) -> Self {
        let mut counts = Counts::default();
        for judged in all {
            *match judged.verdict {
                Verdict::Free => &mut counts.free,
                Verdict::Amortised => &mut counts.amortised,
                Verdict::Listed => &mut counts.listed,
                Verdict::Wrong => &mut counts.wrong,
            } += 1;
        }
        counts
    }

    /// The last line of the report.
    pub fn last_line(&self) -> String {
        let Counts { free, amortised, listed, wrong } = self;
        format!("{} of {} cases conflict-free", free + amortised, free + amortised + listed + wrong)
    }
}

/// The number of rounds that had a label, and the total number of rounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Share {
    pub rounds: usize,
    pub of: usize,
}

impl Share {
    /// Whether the share is more than one in `every`.
    fn exceeds(self, every: usize) -> bool {
        self.rounds * every > self.of
    }
}

/// The share of rounds that had each label, over all cases.
pub fn shares<'a>(all: &'a [Judged<'_>]) -> BTreeMap<&'a str, Share> {
    let of = all.iter().map(|j| j.case.rounds.len()).sum();
    let mut shares: BTreeMap<&str, Share> = BTreeMap::new();
    for (label, rounds) in all.iter().flat_map(|j| &j.shared) {
        shares.entry(label).or_insert(Share { rounds: 0, of }).rounds += rounds;
    }
    shares
}

/// The errors. Every run reports unexpected conflicts. Only a run of all operations (`whole`) also reports conflicts
/// above their rate, and expected conflicts that did not occur.
pub fn complaints(all: &[Judged<'_>], expected: &[Expected], whole: bool) -> Vec<String> {
    let steady: BTreeSet<&str> = all.iter().flat_map(Judged::steady).collect();
    let shares = shares(all);
    let known = |label: &str| reason(expected, label);
    let mut out: Vec<String> =
        steady.iter().filter(|label| known(label).is_none()).map(|label| format!("not expected: {label}")).collect();
    if !whole {
        return out;
    }
    for (label, share) in &shares {
        if known(label).is_none() && !steady.contains(label) && share.exceeds(SELDOM) {
            out.push(format!("not expected: {label}, in {} of {} rounds", share.rounds, share.of));
        }
    }
    for e in expected {
        let of = |label: &&str| known(label) == Some(e);
        match e.every {
            Some(every) => {
                let met: Vec<Share> = shares.iter().filter(|(label, _)| of(label)).map(|(_, share)| *share).collect();
                let all = Share { rounds: met.iter().map(|s| s.rounds).sum(), of: met.first().map_or(1, |s| s.of) };
                if all.exceeds(every) {
                    let Share { rounds, of } = all;
                    out.push(format!("more often than once in {every} rounds: {}, in {rounds} of {of}", e.label));
                }
            }
            None if !steady.iter().any(of) => out.push(format!("expected, but gone: {}", e.label)),
            None => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(rounds: usize) -> Case {
        Case { state: "apart".into(), operations: ["x".into(), "y".into()], rounds: vec![vec![]; rounds] }
    }

    fn judged<'a>(case: &'a Case, shared: &[(&str, usize)], expected: &[Expected]) -> Judged<'a> {
        with(case, shared.iter().map(|(label, n)| ((*label).to_owned(), *n)).collect(), expected)
    }

    #[test]
    fn unexpected_lines_and_missing_expected_lines_are_reported() {
        let expected = list("# comment\nknown | a reason\nold | another\nheap, a::* | a third\n").unwrap();
        let case = case(3);
        let all = [judged(&case, &[("known", 2), ("new", 3), ("heap, a::b", 2)], &expected)];
        assert_eq!(all[0].verdict, Verdict::Wrong);
        assert_eq!(complaints(&all, &expected, true), ["not expected: new", "expected, but gone: old"]);
        assert_eq!(complaints(&all, &expected, false), ["not expected: new"]);
    }

    #[test]
    fn a_rate_is_checked_over_all_rounds() {
        let expected = list("heap, a::* | 1 in 500 | a depot\nheap, a::b | 1 in 2000 | another\n").unwrap();
        let case = case(3);
        let run = |met: usize| -> Vec<Judged<'_>> {
            (0..2000).map(|i| judged(&case, if i < met { &[("heap, a::c", 1)] } else { &[] }, &expected)).collect()
        };
        assert_eq!(complaints(&run(12), &expected, true), [""; 0]);
        assert_eq!(complaints(&run(13), &expected, false), [""; 0]);
        assert_eq!(
            complaints(&run(13), &expected, true),
            ["more often than once in 500 rounds: heap, a::*, in 13 of 6000"]
        );
        let mut other = run(0);
        other[0].shared.insert("heap, a::b".into(), 3);
        other[1].shared.insert("heap, a::b".into(), 1);
        assert_eq!(
            complaints(&other, &expected, true),
            ["more often than once in 2000 rounds: heap, a::b, in 4 of 6000"],
            "the longest label decides"
        );
    }

    #[test]
    fn an_unlisted_line_may_occur_once_in_a_thousand_rounds() {
        let case = case(3);
        let run = |met: usize| -> Vec<Judged<'_>> {
            (0..1000).map(|i| judged(&case, if i < met { &[("new", 1)] } else { &[] }, &[])).collect()
        };
        let all = run(3);
        assert_eq!(Counts::of(&all), Counts { free: 997, amortised: 3, listed: 0, wrong: 0 });
        assert_eq!(Counts::of(&all).last_line(), "1000 of 1000 cases conflict-free");
        assert_eq!(complaints(&all, &[], true), [""; 0]);
        assert_eq!(complaints(&run(4), &[], true), ["not expected: new, in 4 of 3000 rounds"]);
    }

    #[test]
    fn the_list_is_well_formed() {
        assert!(list(EXPECTED).is_ok());
        for bad in ["no reason", "label | 1 in 0 | reason", "label | seldom | reason"] {
            assert!(list(bad).is_err(), "{bad}");
        }
    }
}
