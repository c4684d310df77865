//! Pictures of an experiment as SVG. The page's style sheet determines their colours.

pub mod axis;
mod curves;
mod heat;
pub mod marker;
pub mod matrix;
mod rows;
pub mod series;
mod svg;

use quire_results::{Better, Experiment, Parameter, Plot, Shape, Side};
use serde::Serialize;

use heat::Heat;
use matrix::Matrix;
use series::{Panel, Series};

use crate::words;

/// The figure of one plot in the page.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// The figure's unique identifier in the page, for links.
    pub id: String,
    /// The title of the plot.
    pub title: String,
    /// One panel for each place.
    pub panels: Vec<Drawn>,
    /// The sides in the figure, for its legend.
    pub sides: Vec<Key>,
    /// The names that distinguish several series of one design, for the legend. The list may be empty.
    pub names: Vec<Key>,
    /// The cases that are missing in the figure, with the reasons.
    pub missing: Vec<Missing>,
}

/// The panel of a plot: its cases of one place.
#[derive(Debug, Serialize)]
pub struct Drawn {
    /// The place where its cases ran.
    pub place: &'static str,
    /// The quantity on the vertical axis, or along the bars.
    pub up: String,
    /// Whether the scale of that quantity is logarithmic.
    pub log_up: bool,
    /// The parameter on the horizontal axis. It is empty if rows have names instead.
    pub across: String,
    /// The pictures as SVG that is safe in a page: one picture, or one for each name.
    pub pictures: Vec<Picture>,
    /// A table of coloured ratios, instead of pictures.
    pub matrix: Option<Matrix>,
    /// A table of coloured figures, instead of pictures.
    pub heat: Option<Heat>,
    /// The number of series in the panel.
    pub series: usize,
}

/// A picture.
#[derive(Debug, Serialize)]
pub struct Picture {
    /// The common name of the picture's series, if the panel has many pictures.
    pub title: Option<String>,
    /// The picture as SVG that is safe in a page.
    pub svg: String,
}

/// The least number of names with which each name gets a picture of its own.
const MANY: usize = 4;

/// An entry of a legend.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Key {
    /// The value of the attribute `data-series` that the series has in the page.
    pub key: String,
    /// The text of the entry.
    pub title: String,
    /// A small picture of the series' marker.
    pub sample: String,
}

/// A case of the plot without figures.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The name of the case.
    pub case: String,
    /// The side of the case.
    pub side: &'static str,
    /// The reason why the figures are missing.
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
    // A table needs no legend, because its columns have names.
    if plot.shape == Shape::Matrix || panels.iter().all(|p| heat::fits(p, plot)) {
        sides.clear();
        names.clear();
    }
    // If there are several pictures, each has its name as its title.
    if plot.shape == Shape::Curves && panels.iter().all(multiples) {
        names.clear();
    }
    let missing = experiment
        .cases
        .iter()
        .filter(|c| series::belongs(c, plot) && !c.measures.contains_key(&plot.measure))
        .filter_map(|c| {
            let reason = c.trouble.clone()?;
            Some(Missing { case: crate::case_name(&experiment.name, c), side: c.side.title(), reason })
        })
        .collect();
    let panels = panels
        .iter()
        .enumerate()
        .map(|(i, panel)| {
            let id = format!("{id}-{i}");
            let draws = heat::fits(panel, plot);
            let curves = plot.shape == Shape::Curves && !draws && panel.series.iter().any(joins);
            let one = |svg| (vec![Picture { title: None, svg }], None);
            let name = &experiment.name;
            let (pictures, matrix) = match plot.shape {
                _ if draws => (Vec::new(), None),
                Shape::Matrix => (Vec::new(), Some(matrix::of(experiment, plot, panel.place))),
                Shape::Curves if curves && multiples(panel) => (apart(panel, plot, &id), None),
                Shape::Curves if curves => one(curves::draw(panel, plot, &id)),
                Shape::Curves | Shape::Bars => one(rows::draw(panel, plot, name, &id, false)),
                Shape::Distribution => one(rows::draw(panel, plot, name, &id, true)),
            };
            let heat = draws.then(|| heat::of(panel, plot, name));
            let series = if matrix.is_some() { 1 } else { panel.series.len() };
            Drawn {
                place: panel.place.name(),
                up: measured(plot, panel, name),
                log_up: !pictures.is_empty() && is_log(plot, panel),
                across: if curves && plot.log_across {
                    format!("{}, logarithmic scale", words::axis(&plot.across))
                } else if curves {
                    words::axis(&plot.across)
                } else {
                    String::new()
                },
                pictures,
                matrix,
                heat,
                series,
            }
        })
        .collect();
    Figure { id: id.to_owned(), title: plot.title.clone(), panels, sides, names, missing }
}

/// Whether each name of a panel gets a picture of its own.
fn multiples(panel: &Panel<'_>) -> bool {
    names(panel).len() >= MANY
}

/// The names of a panel's series, each once.
fn names<'a>(panel: &'a Panel<'_>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for series in &panel.series {
        if !names.contains(&&series.name[..]) {
            names.push(&series.name);
        }
    }
    names
}

/// One picture for each name of a panel.
fn apart(panel: &Panel<'_>, plot: &Plot, id: &str) -> Vec<Picture> {
    let of = |(at, name): (usize, &str)| {
        let series = panel.series.iter().filter(|s| s.name == name).map(Series::alone).collect();
        let part = Panel { place: panel.place, series, unit: panel.unit, better: panel.better };
        Picture { title: Some(name.to_owned()), svg: curves::small(&part, plot, &format!("{id}-{at}")) }
    };
    names(panel).into_iter().enumerate().map(of).collect()
}

/// Whether the scale of the figures is logarithmic. It is not if all values are zero.
fn is_log(plot: &Plot, panel: &Panel<'_>) -> bool {
    let all = panel.series.iter().flat_map(|s| &s.points);
    axis::Axis::new(all.flat_map(|p| [p.at.middle, p.at.low, p.at.high]), plot.log_up, 5).is_log()
}

/// The measure, unit and better direction of a picture: `rate, faults/s, more is better`.
fn measured(plot: &Plot, panel: &Panel<'_>, experiment: &str) -> String {
    let better = match panel.better {
        Better::Less => "less is better",
        Better::More => "more is better",
    };
    let measure = words::measure(experiment, &plot.measure);
    if plot.measure == panel.unit || panel.unit.is_empty() {
        format!("{measure}, {better}")
    } else {
        format!("{measure}, {}, {better}", panel.unit)
    }
}

/// Whether a line can join the points of a series.
fn joins(series: &series::Series<'_>) -> bool {
    series.points.iter().any(|p| matches!(p.across, Some(Parameter::Number(n)) if n.is_finite()))
}

/// The description of a picture for screen readers.
fn told(panel: &Panel<'_>, plot: &Plot) -> String {
    let names: Vec<String> = panel.series.iter().take(12).map(series::Series::title).collect();
    let more = panel.series.len().saturating_sub(names.len());
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!(
        "{} over {}, {}: {}{more}. The table of the experiment has the figures.",
        measured(plot, panel, ""),
        words::axis(&plot.across),
        panel.place.name(),
        names.join(", ")
    )
}
