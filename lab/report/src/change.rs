//! The comparison of each further run with the first: the changes due to another machine or another version.

use quire_results::{
    Kind, Run, Side, Verdict,
    change::{Change, typical},
};
use serde::Serialize;

use crate::{number, summary::Score, words};

/// One run compared with the first.
#[derive(Debug, Serialize)]
pub struct Against {
    /// The index of the run, from 0.
    pub run: usize,
    /// Whether both runs have the same mode. Runs of different modes are not compared.
    pub alike: bool,
    /// Whether the processor and the number of CPUs equal those of the first run, so that only the version differs.
    pub same_machine: bool,
    /// The two scores of Quire's own figures: the first for counts, the second for times.
    pub scores: [Score; 2],
    /// The typical changes, one row for each experiment.
    pub rows: Vec<Row>,
    /// Quire's figures that differ: counts first, then in the order of the size of the change.
    pub changed: Vec<Changed>,
}

/// The factors by which an experiment's figures are typically better.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The link to the experiment in the page.
    pub href: String,
    /// The experiment's title.
    pub title: String,
    /// The factors for Quire's counts, for Quire's times, and for the times of the other designs.
    pub typical: [Option<String>; 3],
}

/// A figure that differs between the two runs.
#[derive(Debug, Serialize)]
pub struct Changed {
    /// The link to the experiment in the page.
    pub href: String,
    /// The experiment's title.
    pub experiment: String,
    /// The operation, measure, place and parameters.
    pub what: String,
    /// The CSS class: `ahead` or `behind`.
    pub class: &'static str,
    /// The change as text, which also helps readers who do not see the colours.
    pub text: String,
    /// The figure in this run.
    pub now: String,
    #[serde(skip)]
    counted: bool,
    #[serde(skip)]
    factor: f64,
}

/// All runs except the first, compared with the first. `href` returns the link to an experiment of that name.
pub fn against_first(runs: &[Run], href: impl Fn(&str) -> String) -> Vec<Against> {
    let Some((first, others)) = runs.split_first() else { return Vec::new() };
    let numbered = others.iter().zip(1..);
    numbered.map(|(run, number)| against(run, number, first, &href)).collect()
}

fn against(run: &Run, number: usize, first: &Run, href: &impl Fn(&str) -> String) -> Against {
    let changes = run.changes(first);
    let of =
        |ours: bool, kind: Kind| changes.iter().filter(move |c| (c.case.side == Side::Ours) == ours && c.kind == kind);
    let rows = run.experiments.iter().filter_map(|e| {
        let middle = |ours, kind| typical(of(ours, kind).filter(|c| c.experiment.name == e.name)).map(number::times);
        let typical = [middle(true, Kind::Count), middle(true, Kind::Time), middle(false, Kind::Time)];
        let row = Row { href: href(&e.name), title: e.title.clone(), typical };
        row.typical.iter().any(Option::is_some).then_some(row)
    });
    let rows = rows.collect();
    let mut changed: Vec<Changed> = changes
        .iter()
        .filter(|c| c.case.side == Side::Ours && c.verdict != Verdict::None)
        .map(|c| changed(c, href(&c.experiment.name)))
        .collect();
    changed.sort_by(|a, b| (!a.counted).cmp(&!b.counted).then(b.factor.total_cmp(&a.factor)));
    Against {
        run: number,
        alike: run.mode == first.mode,
        same_machine: (&run.machine.processor, run.machine.cpus) == (&first.machine.processor, first.machine.cpus),
        scores: [Kind::Count, Kind::Time].map(|kind| Score::of_verdicts(of(true, kind).map(|c| c.verdict))),
        rows,
        changed,
    }
}

fn changed(change: &Change<'_>, href: String) -> Changed {
    let (class, sign, word, factor) = match change.verdict {
        Verdict::Behind => ("behind", "▼", "worse", 1.0 / change.times),
        _ => ("ahead", "▲", "better", change.times),
    };
    let experiment = &change.experiment.name;
    let mut what = format!("{}, {}", words::measure(experiment, change.measure), change.case.place.name());
    let parameters = crate::parameters(experiment, change.case);
    if !parameters.is_empty() {
        what += &format!(", {parameters}");
    }
    let now = change.case.measures.get(change.measure).and_then(|m| {
        let value = number::value(m.interval()?.middle, &m.unit);
        Some(if number::tells_unit(&m.unit) { value } else { format!("{value} {}", m.unit) })
    });
    Changed {
        href,
        experiment: change.experiment.title.clone(),
        what,
        class,
        text: format!("{sign} {} {word}", number::times(factor)),
        now: now.unwrap_or_default(),
        counted: change.kind == Kind::Count,
        factor,
    }
}
