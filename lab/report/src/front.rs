//! The beginning of the page: the operations that Quire wins and loses, the losses, and the comparison with the designs
//! of the sources. Each operation appears once.

use quire_results::{
    Kind, Run, Side, Verdict,
    operation::{Operation, Tally},
    statistics,
};
use serde::Serialize;

use crate::{number, table, words};

/// The beginning of the page, for one run.
#[derive(Debug, Serialize)]
pub struct Front {
    /// The index of the run, from 0.
    pub run: usize,
    /// The operations compared with Linux, then with Linux with large pages, as far as they were measured.
    pub against: Vec<Against>,
    /// The operations in which Quire is behind a kernel, the largest loss first.
    pub behind: Vec<Row>,
    /// The operations compared with the designs of the sources.
    pub baselines: Against,
    /// The number of timed comparisons.
    pub timed: usize,
    /// The number of verdicts on timed comparisons that chance would give if all designs were equally fast.
    pub chance: usize,
}

/// All operations compared with one side.
#[derive(Debug, Serialize)]
pub struct Against {
    /// The side's name in the results file.
    pub key: &'static str,
    /// The side's title for readers.
    pub title: &'static str,
    /// The number of operations that Quire wins.
    pub ahead: usize,
    /// The number of operations without a difference.
    pub equal: usize,
    /// The number of operations that Quire loses.
    pub behind: usize,
    /// The operations, the worst for Quire first.
    pub rows: Vec<Row>,
}

/// An operation of the page's beginning.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The index of the run, from 0.
    pub run: usize,
    /// The link to the experiment in the page.
    pub href: String,
    /// The operation's name in words.
    pub name: String,
    /// The CSS class: `ahead`, `none` or `behind`.
    pub class: &'static str,
    /// A sign for readers who do not see the colours.
    pub sign: &'static str,
    /// The factor by which Quire is better or worse, in the deciding comparison.
    pub factor: String,
    /// The interval of the factor.
    pub spread: String,
    /// The measure, the place and the parameters of the deciding comparison.
    pub measure: String,
    /// The side's title for readers.
    pub title: String,
    /// Quire's figure in the deciding comparison.
    pub ours: String,
    /// The other side's figure in the deciding comparison.
    pub other: String,
    /// The number of comparisons of the operation.
    pub comparisons: usize,
    /// The factors by which Quire is better, once for counts and once for times.
    pub ranges: Vec<Span>,
    #[serde(skip)]
    times: f64,
}

/// The range from the least to the largest factor.
#[derive(Debug, Clone, Serialize)]
pub struct Span {
    /// The kind of the figures: `counted` or `timed`.
    pub kind: &'static str,
    /// The range as text, for example `2.5–2.9×`.
    pub text: String,
    /// The position of the least factor on the scale, in percent.
    pub from: f64,
    /// The width of the range on the scale, in percent.
    pub width: f64,
}

/// The ends of the scale as powers of two: a quarter, and sixty-four times.
const SCALE: (f64, f64) = (-2.0, 6.0);

/// The labels of the scale: the text, and the position in percent.
pub fn scale() -> Vec<(String, f64)> {
    let at = |power: i32| {
        let text = if power < 0 { format!("1/{}", 1 << -power) } else { format!("{}", 1 << power) };
        (format!("{text}×"), place(2f64.powi(power)))
    };
    [-2, 0, 2, 4, 6].map(at).into()
}

/// The position of a factor on the scale, in percent.
fn place(times: f64) -> f64 {
    let power = if times > 0.0 { times.log2() } else { SCALE.0 };
    ((power.clamp(SCALE.0, SCALE.1) - SCALE.0) / (SCALE.1 - SCALE.0) * 1000.0).round() / 10.0
}

/// The beginning of the page for a run. `href` returns the link to an experiment in the page.
pub fn of(run: &Run, number: usize, href: impl Fn(&str) -> String) -> Front {
    let rows =
        |operations: &[Operation<'_>]| operations.iter().map(|o| row(o, number, href(&o.experiment.name))).collect();
    let against = |key, title, operations: &[Operation<'_>]| {
        let Tally { ahead, equal, behind } = Tally::of(operations);
        Against { key, title, ahead, equal, behind, rows: rows(operations) }
    };
    let kernels: Vec<Against> = [Side::Linux, Side::LinuxLarge]
        .map(|side| against(side.name(), side.title(), &run.operations(side)))
        .into_iter()
        .filter(|a| !a.rows.is_empty())
        .collect();
    let mut behind: Vec<Row> = kernels.iter().flat_map(|a| &a.rows).filter(|r| r.class == "behind").cloned().collect();
    behind.sort_by(|a, b| a.times.total_cmp(&b.times));
    let behind = once(behind);
    let (mut timed, mut chance) = (0, 0.0);
    for comparison in run.experiments.iter().flat_map(|e| e.comparisons()) {
        let of = |case: &quire_results::Case| case.measures.get(comparison.measure).map(|m| (m.kind, m.samples.len()));
        if let (Some((Kind::Time, a)), Some((Kind::Time, b))) = (of(comparison.ours), of(comparison.other)) {
            timed += 1;
            chance += statistics::by_chance(a.min(b));
        }
    }
    let baselines = against("before", "the sources' designs", &run.baselines());
    Front { run: number, against: kernels, behind, baselines, timed, chance: f64::round(chance) as usize }
}

/// The rows with each operation once. A row keeps the largest loss, and names all kernels to which Quire loses.
fn once(rows: Vec<Row>) -> Vec<Row> {
    let mut all: Vec<Row> = Vec::new();
    for row in rows {
        match all.iter_mut().find(|r| (&r.name, &r.href) == (&row.name, &row.href)) {
            Some(same) => same.title = format!("{}; {}", same.title, row.title),
            None => all.push(row),
        }
    }
    all
}

fn row(operation: &Operation<'_>, run: usize, href: String) -> Row {
    let (class, sign) = match operation.verdict {
        Verdict::Ahead => ("ahead", "▲"),
        Verdict::None => ("none", "="),
        Verdict::Behind => ("behind", "▼"),
    };
    let times = operation.times();
    let factor = match operation.verdict {
        Verdict::Ahead => format!("{} better", number::times(times)),
        Verdict::Behind => format!("{} worse", number::times(1.0 / times)),
        Verdict::None => "equal".to_owned(),
    };
    let mut row = Row {
        run,
        href,
        name: words::operation(operation),
        class,
        sign,
        factor,
        spread: String::new(),
        measure: String::new(),
        title: String::new(),
        ours: String::new(),
        other: String::new(),
        comparisons: operation.comparisons.len(),
        ranges: [(Kind::Count, "counted"), (Kind::Time, "timed")]
            .into_iter()
            .filter_map(|(kind, name)| Some(span(name, operation.range(kind)?)))
            .collect(),
        times,
    };
    if let Some(worst) = operation.worst() {
        let experiment = &operation.experiment.name;
        let figure = |case: &quire_results::Case| {
            let measure = case.measures.get(worst.measure)?;
            let value = number::value(measure.interval()?.middle, &measure.unit);
            let unit = if number::tells_unit(&measure.unit) { String::new() } else { format!(" {}", measure.unit) };
            Some(value + &unit)
        };
        let mut measure = vec![words::measure(experiment, worst.measure), worst.ours.place.name().to_owned()];
        let rest = worst.ours.parameters.iter().filter(|(name, _)| *name != "what");
        measure.extend(rest.map(|(name, value)| words::parameter(experiment, name, value)));
        row.measure = measure.join(", ");
        row.spread = table::compared(worst).spread;
        row.title = worst.other.side.title().to_owned();
        (row.ours, row.other) = (figure(worst.ours).unwrap_or_default(), figure(worst.other).unwrap_or_default());
    }
    row
}

fn span(kind: &'static str, (least, most): (f64, f64)) -> Span {
    let text = match (number::times(least), number::times(most)) {
        (a, b) if a == b => a,
        (a, b) => format!("{}–{b}", a.trim_end_matches('×')),
    };
    let (from, to) = (place(least), place(most));
    Span { kind, text, from, width: ((to - from) * 10.0).round() / 10.0 }
}
