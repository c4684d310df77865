//! The data of a plot: its cases, grouped into series.

use quire_results::{Better, Case, Experiment, Measure, Parameter, Place, Plot, Shape, Side, statistics::Interval};

use crate::words;

/// The data of one plot for one place.
pub struct Panel<'a> {
    /// The place where the cases ran.
    pub place: Place,
    /// The series, in the order of their designs, then in the order of the measurements.
    pub series: Vec<Series<'a>>,
    /// The unit of the measure.
    pub unit: &'a str,
    /// Whether less or more is better.
    pub better: Better,
}

/// The points of one curve, or of one kind of bars.
pub struct Series<'a> {
    /// The design that was measured.
    pub side: Side,
    /// The name that distinguishes several series of one design, for readers. It may be empty.
    pub name: String,
    /// The index of the name, which determines the dashes of the line.
    pub dash: usize,
    /// The points, in the order of their values on the horizontal axis if these are numbers.
    pub points: Vec<Point<'a>>,
}

/// The measure of one case.
pub struct Point<'a> {
    /// The value of the parameter across (on the horizontal axis). `None` if the case does not have that parameter.
    pub across: Option<&'a Parameter>,
    /// The median with its interval.
    pub at: Interval,
    /// All samples of the case.
    pub samples: &'a [f64],
}

impl<'a> Point<'a> {
    fn again(&self) -> Point<'a> {
        Point { across: self.across, at: self.at, samples: self.samples }
    }
}

impl<'a> Series<'a> {
    /// A copy of the series for a picture of its own, where its line has no dashes.
    pub fn alone(&self) -> Series<'a> {
        let points = self.points.iter().map(Point::again).collect();
        Series { side: self.side, name: self.name.clone(), dash: 0, points }
    }
}

impl Series<'_> {
    /// The title of the series, for example `Quire · threads`.
    pub fn title(&self) -> String {
        if self.name.is_empty() {
            self.side.title().to_owned()
        } else {
            format!("{} · {}", self.side.title(), self.name)
        }
    }

    /// The key of the series in the page: the design's name in the results file, and the series' name.
    pub fn key(&self) -> String {
        if self.name.is_empty() { self.side.name().to_owned() } else { format!("{} {}", self.side.name(), self.name) }
    }
}

/// Whether a case belongs to a plot: its place and its parameters fit.
pub fn belongs(case: &Case, plot: &Plot) -> bool {
    plot.places.contains(&case.place) && plot.only.iter().all(|(k, v)| case.parameters.get(k) == Some(v))
}

/// A panel for each place that has measured cases.
pub fn panels<'a>(experiment: &'a Experiment, plot: &'a Plot) -> Vec<Panel<'a>> {
    let mut panels: Vec<Panel<'a>> = Vec::new();
    for &place in &plot.places {
        if panels.iter().any(|p| p.place == place) {
            continue;
        }
        let cases = experiment.cases.iter().filter(|c| c.place == place && belongs(c, plot));
        let mut measured: Vec<(&Case, &Measure)> =
            cases.filter_map(|c| Some((c, c.measures.get(&plot.measure)?))).collect();
        // A curve joins cases that have the parameter of the horizontal axis. A case of `Side::Limit` without that
        // parameter is valid for all values.
        let across = |c: &Case| c.parameters.contains_key(&plot.across);
        if plot.shape == Shape::Curves && measured.iter().any(|(c, _)| across(c)) {
            measured.retain(|(c, _)| across(c) || c.side == Side::Limit);
        }
        let Some((_, first)) = measured.first() else { continue };
        let series = series(&measured, plot, &experiment.name);
        if !series.is_empty() {
            panels.push(Panel { place, series, unit: &first.unit, better: first.better });
        }
    }
    panels
}

fn series<'a>(measured: &[(&'a Case, &'a Measure)], plot: &'a Plot, experiment: &str) -> Vec<Series<'a>> {
    let mut all: Vec<Series<'a>> = Vec::new();
    let mut names: Vec<String> = Vec::new();
    // The name of a series leaves out parameters that are equal in all cases.
    let differs =
        |name: &str| measured.iter().any(|(c, _)| c.parameters.get(name) != measured[0].0.parameters.get(name));
    for (case, measure) in measured {
        let Some(at) = measure.interval().filter(|i| i.middle.is_finite()) else { continue };
        let mut rest: Vec<String> = Vec::new();
        if let Some((name, split)) = plot.split.as_ref().and_then(|s| Some((s, case.parameters.get(s)?))) {
            rest.push(words::parameter(experiment, name, split));
        }
        for (name, value) in &case.parameters {
            let drawn = *name == plot.across || plot.split.as_ref() == Some(name);
            if !drawn && differs(name) {
                rest.push(words::parameter(experiment, name, value));
            }
        }
        let name = rest.join(", ");
        let dash = names.iter().position(|n| *n == name).unwrap_or_else(|| {
            names.push(name.clone());
            names.len() - 1
        });
        let point = Point { across: case.parameters.get(&plot.across), at, samples: &measure.samples };
        match all.iter_mut().find(|s| s.side == case.side && s.name == name) {
            Some(series) => series.points.push(point),
            None => all.push(Series { side: case.side, name, dash, points: vec![point] }),
        }
    }
    all.sort_by_key(|s| (s.side, s.dash));
    for series in &mut all {
        series.points.sort_by(|a, b| across(a).total_cmp(&across(b)));
    }
    all
}

/// The position of a point on the horizontal axis. A point without a number is at infinity. So points without numbers
/// come last, and keep their order.
pub fn across(point: &Point<'_>) -> f64 {
    match point.across {
        Some(Parameter::Number(n)) => *n,
        _ => f64::INFINITY,
    }
}
