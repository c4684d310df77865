//! Figures as a table with colours, instead of many bars of which many are zero.

use quire_results::{Plot, Shape, Side};
use serde::Serialize;

use super::series::{Panel, across};
use crate::{number, words};

/// A table with colours.
#[derive(Debug, Serialize)]
pub struct Heat {
    /// The sides.
    pub columns: Vec<Column>,
    /// From the top.
    pub rows: Vec<Row>,
}

/// A side.
#[derive(Debug, Serialize)]
pub struct Column {
    /// As the file has it.
    pub key: &'static str,
    /// For people.
    pub title: &'static str,
}

/// A row.
#[derive(Debug, Serialize)]
pub struct Row {
    /// In words.
    pub name: String,
    /// One for each side.
    pub cells: Vec<Option<Cell>>,
}

/// A figure.
#[derive(Debug, Serialize)]
pub struct Cell {
    /// The series.
    pub series: String,
    /// The side.
    pub side: &'static str,
    /// The figure.
    pub text: String,
    /// The degree of the colour, from 0 (zero) to 4.
    pub degree: u8,
    /// The series and its figure in words.
    pub title: String,
}

/// A panel becomes a table with more bars than `MANY`, if at least one in `NOTHING` of them is zero.
const MANY: usize = 9;
const NOTHING: usize = 3;

/// Whether a panel of bars reads better as a table: many bars, a third of them zero.
pub fn fits(panel: &Panel<'_>, plot: &Plot) -> bool {
    let all: Vec<f64> = panel.series.iter().flat_map(|s| &s.points).map(|p| p.at.middle).collect();
    let nothing = all.iter().filter(|v| **v == 0.0).count();
    plot.shape == Shape::Bars && all.len() > MANY && nothing * NOTHING >= all.len()
}

/// The table: a row for each value across and each name, a column for each side.
pub fn of(panel: &Panel<'_>, plot: &Plot, experiment: &str) -> Heat {
    let mut sides: Vec<Side> = panel.series.iter().map(|s| s.side).collect();
    sides.sort();
    sides.dedup();
    let most = panel.series.iter().flat_map(|s| &s.points).map(|p| p.at.middle).fold(0.0, f64::max);
    // Equal steps of the logarithm, from a thousandth of the largest.
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
