//! Figures as a table of coloured cells. It replaces a panel of many bars, of which many are zero. A *side* is a
//! measured design or kernel.

use quire_results::{Plot, Shape, Side};
use serde::Serialize;

use super::series::{Panel, across};
use crate::{number, words};

/// A table of coloured cells.
#[derive(Debug, Serialize)]
pub struct Heat {
    /// The columns, one for each side.
    pub columns: Vec<Column>,
    /// The rows from the top.
    pub rows: Vec<Row>,
}

/// The head of a side's column.
#[derive(Debug, Serialize)]
pub struct Column {
    /// The side's name in the results file.
    pub key: &'static str,
    /// The side's title for readers.
    pub title: &'static str,
}

/// A row of the table.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The row's name in words.
    pub name: String,
    /// The cells, one for each side. `None` if the side has no figure.
    pub cells: Vec<Option<Cell>>,
}

/// The cell of one figure.
#[derive(Debug, Serialize)]
pub struct Cell {
    /// The key of the series.
    pub series: String,
    /// The name of the side.
    pub side: &'static str,
    /// The figure as text.
    pub text: String,
    /// The intensity of the colour, from 0 (the figure is zero) to 4.
    pub degree: u8,
    /// The series and its figure in words.
    pub title: String,
}

/// A panel becomes a table if it has more bars than `MANY`, and if at least one in `NOTHING` of them is zero.
const MANY: usize = 9;
const NOTHING: usize = 3;

/// Whether a panel of bars should be a table, because it has many bars and a third of them are zero.
pub fn fits(panel: &Panel<'_>, plot: &Plot) -> bool {
    let all: Vec<f64> = panel.series.iter().flat_map(|s| &s.points).map(|p| p.at.middle).collect();
    let nothing = all.iter().filter(|v| **v == 0.0).count();
    plot.shape == Shape::Bars && all.len() > MANY && nothing * NOTHING >= all.len()
}

/// The table: a row for each value of `Plot::across` and each name, and a column for each side (design or kernel).
pub fn of(panel: &Panel<'_>, plot: &Plot, experiment: &str) -> Heat {
    let mut sides: Vec<Side> = panel.series.iter().map(|s| s.side).collect();
    sides.sort();
    sides.dedup();
    let most = panel.series.iter().flat_map(|s| &s.points).map(|p| p.at.middle).fold(0.0, f64::max);
    // The steps are equal on a logarithmic scale, which begins at a thousandth of the largest value.
    let degree = |value: f64| match value {
        v if v <= 0.0 => 0,
        v => (4.0 + (v / most).log10() * 4.0 / 3.0).round().clamp(1.0, 4.0) as u8,
    };
    let mut rows: Vec<(String, f64, Row)> = Vec::new();
    for series in &panel.series {
        for point in &series.points {
            let value = point.across.map(|v| words::parameter(experiment, &plot.across, v));
            let name: Vec<String> =
                value.into_iter().chain(Some(series.name.clone()).filter(|n| !n.is_empty())).collect();
            let name = name.join(", ");
            let at = sides.iter().position(|s| *s == series.side).unwrap_or_default();
            let row = match rows.iter_mut().position(|(n, ..)| *n == name) {
                Some(row) => row,
                None => {
                    let cells = sides.iter().map(|_| None).collect();
                    rows.push((name.clone(), across(point), Row { name, cells }));
                    rows.len() - 1
                }
            };
            rows[row].2.cells[at] = Some(Cell {
                series: series.key(),
                side: series.side.name(),
                text: number::value(point.at.middle, panel.unit),
                degree: degree(point.at.middle),
                title: format!("{}: {}", series.title(), super::rows::figure(point, panel.unit)),
            });
        }
    }
    rows.sort_by(|a, b| a.1.total_cmp(&b.1));
    let column = |side: &Side| Column { key: side.name(), title: side.title() };
    Heat { columns: sides.iter().map(column).collect(), rows: rows.into_iter().map(|(.., row)| row).collect() }
}
