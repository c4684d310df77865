//! The matrix plot: Quire compared with the best other design. A column is a value of the parameter `Plot::across`, and
//! a row is a value of the parameter `Plot::split`.

use quire_results::{Comparison, Experiment, Parameter, Place, Plot, Side, Verdict};
use serde::Serialize;

use crate::number;

/// A table of coloured cells.
#[derive(Debug, Serialize)]
pub struct Matrix {
    /// The names of the columns.
    pub columns: Vec<String>,
    /// The rows from the top.
    pub rows: Vec<Row>,
}

/// A row of the table.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The value of the split for this row.
    pub name: String,
    /// The cells in the order of the columns. `None` if nothing was compared.
    pub cells: Vec<Option<Cell>>,
}

/// The comparison of one cell.
#[derive(Debug, Serialize)]
pub struct Cell {
    /// The CSS class, which shows the size of the difference: `ahead-2`, `none`, `behind-1`.
    pub class: String,
    /// A sign for readers who do not see the colours.
    pub sign: &'static str,
    /// The factor by which Quire is better or worse.
    pub text: String,
    /// The comparison in words.
    pub title: String,
}

/// The matrix of one place.
pub fn of(experiment: &Experiment, plot: &Plot, place: Place) -> Matrix {
    let comparisons = experiment.comparisons();
    let fits = |c: &&Comparison<'_>| {
        c.measure == plot.measure
            && c.ours.place == place
            && plot.only.iter().all(|(k, v)| c.ours.parameters.get(k) == Some(v))
    };
    let mut columns: Vec<Parameter> = Vec::new();
    let mut rows: Vec<Parameter> = Vec::new();
    let mut best: Vec<(Parameter, Parameter, &Comparison<'_>)> = Vec::new();
    for comparison in comparisons.iter().filter(fits) {
        let of = |name: Option<&String>| {
            let value = name.and_then(|n| comparison.ours.parameters.get(n));
            value.cloned().unwrap_or(Parameter::Text(String::new()))
        };
        let (column, row) = (of(Some(&plot.across)), of(plot.split.as_ref()));
        add(&mut columns, &column);
        add(&mut rows, &row);
        match best.iter_mut().find(|(c, r, _)| (c, r) == (&column, &row)) {
            Some(old) if better(comparison, old.2) => old.2 = comparison,
            Some(_) => {}
            None => best.push((column, row, comparison)),
        }
    }
    let rows = rows.iter().map(|row| {
        let cell = |column: &Parameter| {
            best.iter().find(|(c, r, _)| (c, r) == (column, row)).map(|(_, _, comparison)| cell(comparison))
        };
        Row { name: name(experiment, plot.split.as_deref(), row), cells: columns.iter().map(cell).collect() }
    });
    Matrix { rows: rows.collect(), columns: columns.iter().map(|c| name(experiment, Some(&plot.across), c)).collect() }
}

/// Inserts a value at its place in the ascending order, unless the list has it.
fn add(all: &mut Vec<Parameter>, one: &Parameter) {
    if !all.contains(one) {
        let at = all.iter().position(|p| matches!((p, one), (Parameter::Number(a), Parameter::Number(b)) if b < a));
        all.insert(at.unwrap_or(all.len()), one.clone());
    }
}

fn name(experiment: &Experiment, axis: Option<&str>, value: &Parameter) -> String {
    crate::words::value(&experiment.name, axis.unwrap_or_default(), value)
}

/// Whether Quire is worse by a larger factor in the comparison `a` than in `b`.
fn better(a: &Comparison<'_>, b: &Comparison<'_>) -> bool {
    a.worse_by() > b.worse_by()
}

fn cell(comparison: &Comparison<'_>) -> Cell {
    let worse = comparison.worse_by();
    let factor = if worse > 1.0 { worse } else { 1.0 / worse };
    let degree = match factor {
        f if f >= 4.0 => 3,
        f if f >= 1.5 => 2,
        _ => 1,
    };
    let (class, sign, word) = match comparison.verdict {
        Verdict::Ahead => (format!("ahead-{degree}"), "▲", "better"),
        Verdict::None => ("none".to_owned(), "=", "either way, less than the interval"),
        Verdict::Behind => (format!("behind-{degree}"), "▼", "worse"),
    };
    let side: Side = comparison.other.side;
    let text = match comparison.verdict {
        Verdict::None => "none".to_owned(),
        _ => number::times(factor),
    };
    Cell { class, sign, text, title: format!("{} {word}, against {}", number::times(factor), side.title()) }
}
