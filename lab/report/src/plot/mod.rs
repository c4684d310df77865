//! Pictures of an experiment: SVG whose colours the page's style sheet decides.

mod axis;
mod curves;
pub mod marker;
pub mod matrix;
mod rows;
pub mod series;
mod svg;

use quire_results::{Better, Experiment, Parameter, Plot, Shape, Side};
use serde::Serialize;

use matrix::Matrix;
use series::Panel;

/// What stands in the page for one plot.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// For links, and to tell it from all others in the page.
    pub id: String,
    /// For people.
    pub title: String,
    /// A panel for each place.
    pub panels: Vec<Drawn>,
    /// Which sides it has, for its legend.
    pub sides: Vec<Key>,
    /// What tells series of one side apart, for its legend; empty where nothing does.
    pub names: Vec<Key>,
    /// Why cases are missing from it.
    pub missing: Vec<Missing>,
}

/// A plot on one place.
#[derive(Debug, Serialize)]
pub struct Drawn {
    /// What its cases ran on.
    pub place: &'static str,
    /// What is on the vertical axis, or along the bars.
    pub up: String,
    /// What is across.
    pub across: String,
    /// SVG; safe to be put into a page.
    pub svg: Option<String>,
    /// Instead of it, a table with colours.
    pub matrix: Option<Matrix>,
    /// How many series it has.
    pub series: usize,
}

/// An entry of a legend.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Key {
    /// The series' attribute.
    pub key: String,
    /// For people.
    pub title: String,
    /// A small picture of it.
    pub sample: String,
}

/// A case that should be there.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Which.
    pub case: String,
    /// What it would belong to.
    pub side: &'static str,
    /// Why.
    pub reason: String,
}

/// Draws one plot of an experiment.
pub fn draw(experiment: &Experiment, plot: &Plot, id: &str) -> Figure {
    let panels = series::panels(experiment, plot);
    let mut sides: Vec<Key> = Vec::new();
    let mut names: Vec<Key> = Vec::new();
    let of =
        |side: Side| Key { key: side.name().to_owned(), title: side.title().to_owned(), sample: marker::sample(side) };
    for series in panels.iter().flat_map(|p| &p.series) {
        if !sides.iter().any(|k| k.key == series.side.name()) {
            sides.push(of(series.side));
        }
        if !names.iter().any(|k| k.key == series.name) {
            let title = if series.name.is_empty() { "all" } else { &series.name };
            names.push(Key { key: series.name.clone(), title: title.to_owned(), sample: marker::dash(series.dash) });
        }
    }
    if names.len() < 2 || plot.shape == Shape::Matrix {
        names.clear();
    }
    if plot.shape == Shape::Matrix {
        sides.clear();
    }
    let missing = experiment
        .cases
        .iter()
        .filter(|c| series::belongs(c, plot) && !c.measures.contains_key(&plot.measure))
        .filter_map(|c| {
            let reason = c.trouble.clone()?;
            Some(Missing { case: crate::case_name(c), side: c.side.title(), reason })
        })
        .collect();
    let panels = panels
        .iter()
        .enumerate()
        .map(|(i, panel)| {
            let id = format!("{id}-{i}");
            let curves = plot.shape == Shape::Curves && panel.series.iter().any(joins);
            let (svg, matrix) = match plot.shape {
                Shape::Matrix => (None, Some(matrix::of(experiment, plot, panel.place))),
                Shape::Curves if curves => (Some(curves::draw(panel, plot, &id)), None),
                Shape::Curves | Shape::Bars => (Some(rows::draw(panel, plot, &id, false)), None),
                Shape::Distribution => (Some(rows::draw(panel, plot, &id, true)), None),
            };
            let series = if matrix.is_some() { 1 } else { panel.series.len() };
            Drawn {
                place: panel.place.name(),
                up: measured(plot, panel),
                across: plot.across.clone(),
                svg,
                matrix,
                series,
            }
        })
        .collect();
    Figure { id: id.to_owned(), title: plot.title.clone(), panels, sides, names, missing }
}

/// What a picture's figures are: `rate, faults/s, more is better`.
fn measured(plot: &Plot, panel: &Panel<'_>) -> String {
    let better = match panel.better {
        Better::Less => "less is better",
        Better::More => "more is better",
    };
    if plot.measure == panel.unit || panel.unit.is_empty() {
        format!("{}, {better}", plot.measure)
    } else {
        format!("{}, {}, {better}", plot.measure, panel.unit)
    }
}

/// Whether a line can join a series' points.
fn joins(series: &series::Series<'_>) -> bool {
    series.points.iter().any(|p| matches!(p.across, Some(Parameter::Number(n)) if n.is_finite()))
}

/// What a screen reader says of a picture.
fn told(panel: &Panel<'_>, plot: &Plot) -> String {
    let names: Vec<String> = panel.series.iter().take(12).map(series::Series::title).collect();
    let more = panel.series.len().saturating_sub(names.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "{} over {}, {}: {}{more}. The table of the experiment has the figures.",
        measured(plot, panel),
        plot.across,
        panel.place.name(),
        names.join(", ")
    )
}
