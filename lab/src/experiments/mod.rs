//! The experiments. Each repeats the measurement of a *source*, a published design, on three *sides*. The side *before*
//! is the design that the source replaced, *after* is the source's own design, and the third is Quire. A *round* is one
//! measurement of a case, in a process of its own.
//!
//! Each experiment has a file with a [`Study`]: its texts, its claims, its plots, and a function that returns its cases
//! for a [`Plan`]. A case is a [`Round`]: its names, its figures, and the function that does one round. A driver runs
//! `quire-lab case EXPERIMENT SIDE KEY=VALUE...` once for each sample, in any order and on any machine. A round does
//! its own warm-up, and reports no spread. `./quire lab` adds the cases that run in guests, under the same names.

pub mod build;
pub mod bulk_build;
pub mod calibration;
pub mod chains;
mod counted;
pub mod exec_fork;
pub mod map;
pub mod postgres;
pub mod processes;
pub mod prometheus;
pub mod queues;
pub mod ranges;
pub mod redis;
pub mod sharing;
mod threads;
pub mod zero_fill;

use crate::Failure;
use quire_results::{Better, Case, Claim, Experiment, Kind, Measure, Parameter, Place, Plot, Shape, Side, Source};
use std::collections::BTreeMap;

/// Every experiment, in the order of the report.
#[rustfmt::skip] // One entry a line, even if several entries would fit into one line.
pub const ALL: &[&Study] = &[
    &zero_fill::STUDY,
    &exec_fork::STUDY,
    &sharing::STUDY,
    &chains::STUDY,
    &queues::STUDY,
    &map::STUDY,
    &processes::STUDY,
    &ranges::STUDY,
    &build::STUDY,
    &postgres::STUDY,
    &redis::STUDY,
    &prometheus::STUDY,
    &bulk_build::STUDY,
    &calibration::STUDY,
];

/// The amount of work in a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Scale {
    /// The least work that shows that the experiment runs: for tests.
    #[value(hide = true)]
    Tiny,
    /// Work of half a second or less.
    Quick,
    /// Work of some seconds.
    Full,
}

impl Scale {
    /// The scale's name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Scale::Tiny => "tiny",
            Scale::Quick => "quick",
            Scale::Full => "full",
        }
    }

    /// Returns the value for this scale.
    pub fn of<T>(self, tiny: T, quick: T, full: T) -> T {
        match self {
            Scale::Tiny => tiny,
            Scale::Quick => quick,
            Scale::Full => full,
        }
    }
}

/// The requested cases.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The amount of work in each round.
    pub scale: Scale,
    /// The numbers of CPUs for the timed cases.
    pub cpus: Vec<usize>,
}

/// An experiment's description.
pub struct Study {
    /// The experiment's name in `./quire lab NAME`.
    pub name: &'static str,
    /// The source of the claim.
    pub source: Source,
    /// The experiment's title in reports.
    pub title: &'static str,
    /// The measurement in words.
    pub about: &'static str,
    /// Limitations of the figures, for the reader.
    pub caveats: &'static [&'static str],
    /// The claims of the source.
    pub claims: fn() -> Vec<Claim>,
    /// The plots in the report.
    pub plots: fn() -> Vec<Plot>,
    /// The cases that need no guest.
    pub cases: fn(&Plan) -> Vec<Round>,
}

/// A figure that a case measures.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// The figure's name, in lower case.
    pub name: &'static str,
    /// The figure's unit, for instance `faults/s`.
    pub unit: &'static str,
    /// Whether the figure is counted or timed.
    pub kind: Kind,
    /// Whether a smaller or a larger value is better.
    pub better: Better,
}

impl Figure {
    /// A cost that is measured as a time. Less is better.
    const fn time(name: &'static str, unit: &'static str) -> Figure {
        Figure { name, unit, kind: Kind::Time, better: Better::Less }
    }

    /// A cost that is counted. Less is better.
    const fn count(name: &'static str, unit: &'static str) -> Figure {
        Figure { name, unit, kind: Kind::Count, better: Better::Less }
    }

    /// Returns this figure with the mark that a larger value is better.
    const fn more(self) -> Figure {
        Figure { better: Better::More, ..self }
    }
}

/// The function that does one round. It returns a value for each figure.
type Work = Box<dyn Fn() -> Result<Vec<f64>, Failure>>;

/// A case, and the function that does one round of it.
pub struct Round {
    /// The design that the case measures.
    pub side: Side,
    /// The place where the case runs: which build of the lab, and whether cachegrind counts.
    pub place: Place,
    /// The parameters that distinguish the case from the side's other cases.
    pub parameters: BTreeMap<String, Parameter>,
    /// The figures that the case measures.
    pub figures: &'static [Figure],
    work: Work,
}

impl Round {
    /// Makes a case whose rounds `work` does. `work` returns a value for each figure, in the order of `figures`.
    pub fn new<const N: usize>(
        side: Side,
        place: Place,
        parameters: impl IntoIterator<Item = (&'static str, Parameter)>,
        figures: &'static [Figure; N],
        work: impl Fn() -> Result<[f64; N], Failure> + 'static,
    ) -> Round {
        let parameters = parameters.into_iter().map(|(k, v)| (k.to_owned(), v)).collect();
        Round { side, place, parameters, figures, work: Box::new(move || work().map(Vec::from)) }
    }

    /// Does one round. Returns each figure with its value.
    pub fn run(&self) -> Result<Vec<(Figure, f64)>, Failure> {
        let recording = self.place == Place::Recording;
        if recording != cfg!(recording) {
            return Err(if recording { Failure::Build } else { Failure::Native });
        }
        let values = (self.work)()?;
        match values.iter().zip(self.figures).find(|(v, _)| !v.is_finite()) {
            Some((_, f)) => Err(Failure::Wrong(format!("{} is no number", f.name))),
            None => Ok(self.figures.iter().copied().zip(values).collect()),
        }
    }

    /// The case as it appears in results, without samples.
    fn case(&self, study: &Study, scale: Scale) -> Case {
        let mut command = format!("case {} {}", study.name, self.side.name());
        for (name, value) in &self.parameters {
            command += &format!(" {name}={value}");
        }
        if self.place == Place::Cachegrind {
            command += " --place cachegrind";
        }
        if scale != Scale::Quick {
            command += &format!(" --mode {}", scale.name());
        }
        let measure = |f: &Figure| {
            let (unit, samples) = (f.unit.to_owned(), Vec::new());
            (f.name.to_owned(), Measure { unit, kind: f.kind, better: f.better, samples })
        };
        Case {
            side: self.side,
            place: self.place,
            parameters: self.parameters.clone(),
            command,
            measures: self.figures.iter().map(measure).collect(),
            trouble: None,
        }
    }
}

impl Study {
    /// The experiment as it appears in results, with the cases of `plan`.
    pub fn experiment(&self, plan: &Plan) -> Experiment {
        Experiment {
            name: self.name.to_owned(),
            source: self.source,
            title: self.title.to_owned(),
            about: self.about.to_owned(),
            caveats: self.caveats.iter().map(|c| (*c).to_owned()).collect(),
            seconds: 0.0,
            command: format!("./quire lab {}", self.name),
            claims: (self.claims)(),
            plots: (self.plots)(),
            cases: (self.cases)(plan).iter().map(|r| r.case(self, plan.scale)).collect(),
        }
    }
}

/// All experiments with their cases, for the driver.
pub fn experiments(plan: &Plan) -> Vec<Experiment> {
    ALL.iter().map(|s| s.experiment(plan)).collect()
}

/// Finds the case of these names. `parameters` has texts `KEY=VALUE`. Without `place`, the case is for this build of
/// the lab.
pub fn find(
    name: &str,
    side: &str,
    place: Option<&str>,
    parameters: &[String],
    scale: Scale,
) -> Result<Round, Failure> {
    let none = |what: String| Failure::NoCase(what);
    let study =
        ALL.iter().find(|s| s.name == name).ok_or_else(|| none(format!("no experiment has the name {name}")))?;
    let mut wanted = BTreeMap::new();
    for text in parameters {
        let (key, value) = text.split_once('=').ok_or_else(|| none(format!("{text} is not KEY=VALUE")))?;
        let number = value.parse::<f64>().ok().filter(|n| n.is_finite());
        let value = number.map_or_else(|| Parameter::Text(value.to_owned()), Parameter::Number);
        if wanted.insert(key.to_owned(), value).is_some() {
            return Err(none(format!("{key} is given twice")));
        }
    }
    // The plan gets the requested number of CPUs, so that each number from 1 to 256 is a case of the plan.
    let cpus = match wanted.get("cpus") {
        Some(Parameter::Number(n)) if (1.0..=256.0).contains(n) => *n as usize,
        _ => 1,
    };
    let place = place.unwrap_or(if cfg!(recording) { Place::Recording } else { Place::Hosted }.name());
    let fits = |r: &Round| r.side.name() == side && r.place.name() == place && r.parameters == wanted;
    let found = (study.cases)(&Plan { scale, cpus: vec![cpus] }).into_iter().find(fits);
    found.ok_or_else(|| none(format!("{name} has no case {side} {place} {}", parameters.join(" "))))
}

fn parameters(of: &[(&str, Parameter)]) -> BTreeMap<String, Parameter> {
    of.iter().map(|(k, v)| ((*k).to_owned(), v.clone())).collect()
}

/// Converts a number to a parameter.
fn number(n: impl TryInto<u64>) -> Parameter {
    // The conversion is exact, because sizes are far below 2^53.
    Parameter::Number(n.try_into().map_or(f64::NAN, |n: u64| n as f64))
}

/// A claim of a source, and the ratio that tests it.
fn claim(headline: &str, measure: &str, place: Place, of: &[(&str, Parameter)], least: f64, reproduces: bool) -> Claim {
    let (headline, measure) = (headline.to_owned(), measure.to_owned());
    Claim { headline, measure, place, parameters: parameters(of), least, reproduces, linux: None }
}

/// A plot of one measure across one parameter.
fn plot(title: &str, shape: Shape, places: &[Place], measure: &str, across: &str, of: &[(&str, Parameter)]) -> Plot {
    Plot {
        title: title.to_owned(),
        shape,
        places: places.to_vec(),
        only: parameters(of),
        measure: measure.to_owned(),
        across: across.to_owned(),
        split: None,
        log_across: false,
        log_up: false,
    }
}

/// Returns `plot` with both axes logarithmic.
fn log(plot: Plot) -> Plot {
    Plot { log_across: true, log_up: true, ..plot }
}

/// Returns `plot` with `by` as the parameter that separates the series of one side.
fn split(plot: Plot, by: &str) -> Plot {
    Plot { split: Some(by.to_owned()), ..plot }
}

#[cfg(test)]
mod tests;
