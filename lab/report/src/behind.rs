//! Where Quire is behind, the worst first; counts before times, for they repeat.

use quire_results::{Comparison, Kind, Verdict};
use serde::Serialize;

use crate::{number, table};

/// A comparison that Quire loses.
#[derive(Debug, Serialize)]
pub struct Behind {
    /// The experiment's place in the page.
    pub href: String,
    /// Its title.
    pub experiment: String,
    /// Which run, from 0.
    pub run: usize,
    /// What was measured.
    pub measure: String,
    /// On what.
    pub place: &'static str,
    /// With which parameters.
    pub parameters: String,
    /// Who does better: as the file has it, and for people.
    pub side: &'static str,
    /// For people.
    pub title: &'static str,
    /// How many times worse.
    pub factor: String,
    /// Its interval.
    pub spread: String,
    /// Our figure.
    pub ours: String,
    /// The other's.
    pub other: String,
    /// The weight's length as a bar, in percent: short where the factor is large and the figures are next to nothing.
    pub length: u32,
    /// What the order goes by ([`Comparison::weight`]).
    #[serde(skip)]
    pub weight: f64,
    /// Counted, not timed.
    #[serde(skip)]
    pub counted: bool,
}

/// Those among an experiment's comparisons.
pub fn of<'a>(
    comparisons: &'a [Comparison<'a>],
    run: usize,
    href: &'a str,
    experiment: &'a str,
) -> impl Iterator<Item = Behind> + 'a {
    comparisons.iter().filter(|c| c.verdict == Verdict::Behind).map(move |comparison| {
        let measure = comparison.ours.measures.get(comparison.measure);
        let figure = |case: &quire_results::Case| {
            let measure = case.measures.get(comparison.measure)?;
            let value = number::value(measure.interval()?.middle, &measure.unit);
            let unit = if number::tells_unit(&measure.unit) { String::new() } else { format!(" {}", measure.unit) };
            Some(value + &unit)
        };
        let (worse, weight) = (comparison.worse_by(), comparison.weight());
        Behind {
            href: href.to_owned(),
            experiment: experiment.to_owned(),
            run,
            measure: comparison.measure.to_owned(),
            place: comparison.ours.place.name(),
            parameters: crate::parameters(comparison.ours),
            side: comparison.other.side.name(),
            title: comparison.other.side.title(),
            factor: number::times(worse),
            spread: table::compared(comparison).spread,
            ours: figure(comparison.ours).unwrap_or_default(),
            other: figure(comparison.other).unwrap_or_default(),
            // Half of the way for ten times, all of it for a hundred.
            length: (weight.log10().clamp(0.01, 2.0) * 50.0) as u32,
            weight,
            counted: measure.is_some_and(|m| m.kind == Kind::Count),
        }
    })
}
