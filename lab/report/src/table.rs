//! The tables of an experiment, one for each measure and place. A table has a row for each set of parameters and a
//! column for each side (design or kernel). Counts come before times.

use std::collections::BTreeMap;

use quire_results::{Better, Case, Comparison, Experiment, Kind, Measure, Parameter, Place, Side, Verdict, statistics};
use serde::Serialize;

use crate::{number, words};

/// The figures of one measure in one place.
#[derive(Debug, Serialize)]
pub struct Table {
    /// The measure's name.
    pub measure: String,
    /// The measure's unit.
    pub unit: String,
    /// The place where the cases ran.
    pub place: &'static str,
    /// The kind of the figures: `counted` or `timed`.
    pub kind: &'static str,
    /// Whether less or more is better.
    pub better: &'static str,
    /// The names of the parameters.
    pub parameters: Vec<String>,
    /// The sides that have figures in this table.
    pub sides: Vec<Head>,
    /// The sides that Quire is compared with.
    pub against: Vec<Head>,
    /// The rows, one for each set of parameters.
    pub rows: Vec<Row>,
}

/// The head of a column.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Head {
    /// The side's name in the results file.
    pub key: &'static str,
    /// The side's title for readers.
    pub title: &'static str,
}

/// The figures of all sides with one set of parameters.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The parameters' values in the order of the table's names. A value is empty if the row does not have the
    /// parameter.
    pub parameters: Vec<String>,
    /// The figures in the order of the table's sides.
    pub figures: Vec<Figure>,
    /// The comparisons, in the order of the sides that Quire is compared with.
    pub against: Vec<Option<Against>>,
}

/// One figure.
#[derive(Debug, Serialize)]
#[serde(tag = "state", rename_all = "lowercase")]
pub enum Figure {
    /// The case was measured.
    Measured {
        /// The median.
        middle: String,
        /// The interval of the median. It is empty if all samples are equal, and `None` with one sample.
        spread: Option<String>,
        /// The number of samples.
        samples: usize,
        /// The confidence of an interval of this number of samples, in words.
        sure: String,
    },
    /// The case could not be measured.
    Missing {
        /// The reason.
        reason: String,
    },
    /// There is no such case.
    Absent,
}

/// Quire compared with another side.
#[derive(Debug, Serialize)]
pub struct Against {
    /// The CSS class: `ahead`, `none` or `behind`.
    pub class: &'static str,
    /// A sign for readers who do not see the colours.
    pub sign: &'static str,
    /// The text of the comparison, for example `2.1× better` or `none`.
    pub text: String,
    /// The interval of the ratio.
    pub spread: String,
}

/// The sides that an experiment should have.
const EXPECTED: [Side; 4] = [Side::Before, Side::After, Side::Ours, Side::Linux];

/// The expected sides without a case.
pub fn absent(experiment: &Experiment) -> Vec<&'static str> {
    let has = |side: &Side| experiment.cases.iter().any(|c| c.side == *side);
    EXPECTED.iter().filter(|s| !has(s)).map(|s| s.title()).collect()
}

/// All tables of an experiment.
pub fn tables(experiment: &Experiment, comparisons: &[Comparison<'_>]) -> Vec<Table> {
    let mut kinds: Vec<(Kind, &str, Place, &Measure)> = Vec::new();
    for case in &experiment.cases {
        for (name, measure) in &case.measures {
            if !kinds.iter().any(|(_, n, p, _)| n == name && *p == case.place) {
                kinds.push((measure.kind, name, case.place, measure));
            }
        }
    }
    kinds.sort_by_key(|(kind, name, place, _)| (*kind, *name, *place));
    kinds.iter().map(|(_, name, place, first)| table(experiment, comparisons, name, *place, first)).collect()
}

fn table(experiment: &Experiment, comparisons: &[Comparison<'_>], name: &str, place: Place, first: &Measure) -> Table {
    let cases: Vec<&Case> = experiment.cases.iter().filter(|c| c.place == place).collect();
    let measured = |c: &&&Case| c.measures.contains_key(name);
    // A case in trouble without any measure gets a row and a column too. A case in trouble with other measures appears
    // only if another side has the row.
    let shown = |c: &&&Case| c.measures.contains_key(name) || (c.trouble.is_some() && c.measures.is_empty());
    let mut sides: Vec<Side> = cases.iter().filter(measured).map(|c| c.side).collect();
    sides.extend(cases.iter().filter(shown).map(|c| c.side));
    sides.sort();
    sides.dedup();
    let mut names: Vec<String> = cases.iter().filter(shown).flat_map(|c| c.parameters.keys().cloned()).collect();
    names.sort();
    names.dedup();
    let mut sets: Vec<&BTreeMap<String, Parameter>> = Vec::new();
    for case in cases.iter().filter(shown) {
        if !sets.contains(&&case.parameters) {
            sets.push(&case.parameters);
        }
    }
    sets.sort_by(|a, b| order(a, b, &names));
    let here: Vec<&Comparison<'_>> =
        comparisons.iter().filter(|c| c.measure == name && c.ours.place == place).collect();
    let mut against: Vec<Side> = here.iter().map(|c| c.other.side).collect();
    against.sort_by_key(|s| (*s != Side::Linux, *s != Side::LinuxLarge, *s));
    against.dedup();
    let rows = sets.iter().map(|set| Row {
        parameters: names
            .iter()
            .map(|n| set.get(n).map(|v| words::value(&experiment.name, n, v)).unwrap_or_default())
            .collect(),
        figures: sides
            .iter()
            .map(|side| {
                let mut of = cases.iter().filter(|c| c.side == *side && c.parameters == **set);
                of.find_map(|c| figure(c, name)).unwrap_or(Figure::Absent)
            })
            .collect(),
        against: against
            .iter()
            .map(|side| {
                let found = here.iter().find(|c| c.other.side == *side && c.ours.parameters == **set);
                found.map(|c| compared(c))
            })
            .collect(),
    });
    let head = |side: &Side| Head { key: side.name(), title: side.title() };
    Table {
        measure: words::measure(&experiment.name, name),
        unit: first.unit.clone(),
        place: place.name(),
        kind: match first.kind {
            Kind::Count => "counted",
            Kind::Time => "timed",
        },
        better: match first.better {
            Better::Less => "less is better",
            Better::More => "more is better",
        },
        rows: rows.collect(),
        parameters: names.iter().map(|n| words::axis(n)).collect(),
        sides: sides.iter().map(head).collect(),
        against: against.iter().map(head).collect(),
    }
}

fn order(a: &BTreeMap<String, Parameter>, b: &BTreeMap<String, Parameter>, names: &[String]) -> std::cmp::Ordering {
    use std::cmp::Ordering;
    // Texts are compared first, then numbers, so that the rows of one operation are adjacent and in ascending order.
    for text in [true, false] {
        for name in names {
            let order = match (a.get(name), b.get(name)) {
                (Some(Parameter::Text(a)), Some(Parameter::Text(b))) if text => a.cmp(b),
                (Some(Parameter::Number(a)), Some(Parameter::Number(b))) if !text => a.total_cmp(b),
                (None, Some(_)) => Ordering::Less,
                (Some(_), None) => Ordering::Greater,
                _ => Ordering::Equal,
            };
            if order != Ordering::Equal {
                return order;
            }
        }
    }
    Ordering::Equal
}

fn figure(case: &Case, name: &str) -> Option<Figure> {
    let Some(measure) = case.measures.get(name) else {
        return case.trouble.clone().map(|reason| Figure::Missing { reason });
    };
    let Some(interval) = measure.interval() else {
        return Some(Figure::Missing { reason: "it has no samples".to_owned() });
    };
    let (middle, spread) = number::interval(&interval, |v| number::value(v, &measure.unit));
    let samples = measure.samples.len();
    Some(Figure::Measured { middle, spread, samples, sure: statistics::told(samples) })
}

/// A comparison in words and with its class.
pub fn compared(comparison: &Comparison<'_>) -> Against {
    let worse = comparison.worse_by();
    let (low, high) = (comparison.ratio.low, comparison.ratio.high);
    let more = comparison.ours.measures.get(comparison.measure).is_some_and(|m| m.better == Better::More);
    // The ratio as it is shown: times better, or times worse.
    let flip = (comparison.verdict == Verdict::Behind) == more;
    let (from, to) = if flip { (1.0 / high, 1.0 / low) } else { (low, high) };
    let spread = if !(from.is_finite() && to.is_finite() && from != to && low.is_finite() && high.is_finite()) {
        String::new()
    } else {
        format!("{}–{}", number::short(from), number::short(to))
    };
    let (class, sign, text) = match comparison.verdict {
        Verdict::Ahead => ("ahead", "▲", format!("{} better", number::times(1.0 / worse))),
        Verdict::Behind => ("behind", "▼", format!("{} worse", number::times(worse))),
        Verdict::None => ("none", "=", "none".to_owned()),
    };
    Against { class, sign, text, spread: if comparison.verdict == Verdict::None { String::new() } else { spread } }
}
