//! The results of a run of Quire's lab. An *experiment* reruns a measurement of one of the sources. It has *cases*: one
//! design, on one machine, with one set of parameters. Each case has *measures*, and the file keeps all their raw
//! samples. The file `results.json` holds one [`Results`]; its JSON Schema is `docs/results.schema.json`.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod change;
pub mod conflicts;
pub mod operation;
pub mod profile;
pub mod statistics;
mod verdict;

use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path};

pub use verdict::{Comparison, GUESTS_COUNTS, GUESTS_ONCE, Judged, SEVERAL, Verdict};

/// The version of the file's format.
pub const VERSION: u32 = 1;

/// The content of a results file: one run, or the runs of several machines.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Results {
    /// [`VERSION`].
    pub schema: u32,
    /// The runs, one for each machine and time.
    pub runs: Vec<Run>,
}

/// The measurements of one run on one machine. The run may have been interrupted and continued.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Run {
    /// The machine that was measured.
    pub machine: Machine,
    /// The time when the run began, in UTC, in the format of RFC 3339.
    pub began: String,
    /// The seconds spent in measuring. They include the parts of the run before an interruption.
    pub seconds: f64,
    /// How thoroughly the run measured.
    pub mode: Mode,
    /// The seed of the random order of the cases in each round.
    pub seed: u64,
    /// Whether every case was measured. An incomplete run can be continued.
    #[serde(default)]
    pub complete: bool,
    /// A remark on the run as a whole, if there is one. A person writes it into a file that is kept in the repository.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remark: Option<String>,
    /// Experiments, in the order in which they are shown.
    pub experiments: Vec<Experiment>,
}

/// How thoroughly a run measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Small sizes and few rounds.
    Quick,
    /// Larger sizes and more rounds.
    Full,
}

/// The machine on which the lab measures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Machine {
    /// The processor's model.
    pub processor: String,
    /// How many CPUs there are.
    pub cpus: u32,
    /// Memory, in MiB.
    pub memory_mib: u64,
    /// The host's operating system and kernel.
    pub system: String,
    /// The emulator of the guests, and its accelerator.
    pub emulator: String,
    /// Versions by name: Quire's commit, the compiler, and the Linux that is compared with Quire.
    pub versions: BTreeMap<String, String>,
}

/// The source of an idea: a published change of a BSD kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub enum Source {
    /// DragonFly BSD, 2019: mapped pages without a record for each mapping.
    S0,
    /// DragonFly BSD, 2011: page queues split into many, each with its own lock.
    S1,
    /// FreeBSD D19826, 2019: the tree of an address map.
    S2,
    /// DragonFly BSD, 2017: as many processes as fit into memory.
    S3,
    /// OpenBSD, 2026: operations on ranges of pages.
    S4,
    /// No single source: the system as a whole, or a comparison of machines.
    All,
}

/// One experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Experiment {
    /// The name, as in `./quire lab NAME`.
    pub name: String,
    /// The source whose claim the experiment reruns.
    pub source: Source,
    /// The title in reports.
    pub title: String,
    /// The operations and the measures, in a few sentences.
    pub about: String,
    /// Limitations of the figures.
    pub caveats: Vec<String>,
    /// The command that reruns only this experiment.
    pub command: String,
    /// The seconds that its measuring took in all rounds together.
    #[serde(default)]
    pub seconds: f64,
    /// The source's claims, each with the ratio of two measured figures that tests it.
    pub claims: Vec<Claim>,
    /// The plots that the report draws.
    pub plots: Vec<Plot>,
    /// The measured cases.
    pub cases: Vec<Case>,
}

/// A design under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// The design that the source replaced.
    Before,
    /// The source's own design.
    After,
    /// Quire.
    Ours,
    /// Debian's Linux, large pages off.
    Linux,
    /// Debian's Linux, large pages on.
    LinuxLarge,
    /// A structure from a well-maintained crate, as a reference.
    Plain,
    /// The machine's own rate, which no design can exceed.
    Limit,
}

/// The place where a case runs. A comparison uses only cases of one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// The core in a process of the measuring machine.
    Hosted,
    /// As `Hosted`, with a record of each shared access. It gives counts only.
    Recording,
    /// As `Hosted`, under cachegrind. It gives counts only.
    Cachegrind,
    /// A kernel in the emulator, in real time.
    Guest,
    /// A kernel in the emulator on one CPU, with a clock that counts instructions.
    GuestCounted,
}

/// A parameter's value.
#[derive(Debug, Clone, PartialEq, PartialOrd, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Parameter {
    /// A number, which can be a position on an axis.
    Number(f64),
    /// A name.
    Text(String),
}

/// One design on one machine with one set of parameters.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Case {
    /// The design under test.
    pub side: Side,
    /// The place where it runs.
    pub place: Place,
    /// Parameters by name, for instance `cpus`, `what`, `parts`.
    pub parameters: BTreeMap<String, Parameter>,
    /// The command that runs one round.
    pub command: String,
    /// Measures by name.
    pub measures: BTreeMap<String, Measure>,
    /// The reason why measures are missing; `None` if none are missing.
    pub trouble: Option<String>,
}

/// One figure of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Measure {
    /// The unit, for instance `faults/s` or `lines/fault`.
    pub unit: String,
    /// Whether the figure is counted or timed.
    pub kind: Kind,
    /// Whether a smaller or a larger figure is better.
    pub better: Better,
    /// The samples, one for each round, in the order in which they were measured.
    pub samples: Vec<f64>,
}

/// The kind of a figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A count, which is the same in each round and does not depend on other work of the machine.
    Count,
    /// A time or a rate, which varies between rounds.
    Time,
}

/// Whether a smaller or a larger figure is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// The figure is a cost: less is better.
    Less,
    /// The figure is a rate: more is better.
    More,
}

/// A claim of a source, and the measured ratio that tests it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Claim {
    /// The source's statement, with its figures.
    pub headline: String,
    /// The experiment's measure that is compared.
    pub measure: String,
    /// The place of the cases that are compared.
    pub place: Place,
    /// Parameters of the cases that are compared.
    pub parameters: BTreeMap<String, Parameter>,
    /// The least ratio with which the claim holds in kind. For example, 1.1 means better by a tenth.
    pub least: f64,
    /// Whether the claim is about a design of the source, so that the source's ratio is shown beside Quire's. It is
    /// false if the source left the claimed work unfinished or has no design of its own here.
    pub reproduces: bool,
    /// The figure that compares Quire and Linux, if both have the operation.
    #[serde(default)]
    pub linux: Option<Reading>,
}

/// A reference to one measure of some cases.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Reading {
    /// The name of the measure.
    pub measure: String,
    /// The place of the cases.
    pub place: Place,
    /// Parameters of the cases.
    pub parameters: BTreeMap<String, Parameter>,
}

/// One plot: which cases it shows, and how.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Plot {
    /// The title in reports.
    pub title: String,
    /// The shape of the plot, for example curves.
    pub shape: Shape,
    /// The plot shows cases that ran in one of these places.
    pub places: Vec<Place>,
    /// The plot shows cases with these parameters.
    pub only: BTreeMap<String, Parameter>,
    /// The measure on the vertical axis.
    pub measure: String,
    /// The parameter on the horizontal axis.
    pub across: String,
    /// The parameter that distinguishes several series of one side.
    pub split: Option<String>,
    /// Whether the horizontal axis is logarithmic.
    pub log_across: bool,
    /// Whether the vertical axis is logarithmic.
    pub log_up: bool,
}

/// The shape of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// Medians with intervals, joined by lines. The parameter across is a number.
    Curves,
    /// A group of bars for each value of the parameter across.
    Bars,
    /// Every sample, and the quartiles.
    Distribution,
    /// A cell for each value across and each value of `split`. It shows how many times better or worse Quire is than
    /// the best other side.
    Matrix,
}

/// The reason why a file of results cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Unreadable {
    /// The file cannot be read.
    #[error("{file}: {error}")]
    File {
        /// The file's name.
        file: String,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// The file's text does not have the format of the results.
    #[error("{file} holds no results of the lab: {error}")]
    Shape {
        /// The file's name.
        file: String,
        /// The error, with its position in the text.
        error: serde_json::Error,
    },
    /// The file has another version.
    #[error("{file} has version {version}; this command reads version {VERSION}")]
    Version {
        /// The file's name.
        file: String,
        /// The version in the file.
        version: u32,
    },
    /// The file holds an impossible value.
    #[error("{file}: {experiment}: {what}")]
    Value {
        /// The file's name.
        file: String,
        /// The experiment that has the value.
        experiment: String,
        /// A description of the error.
        what: String,
    },
}

impl Reading {
    /// Case, measure and place in words: `zero-fill fault, as processes: instructions, guest-counted`.
    pub fn told(&self) -> String {
        // The operation comes first, without the name `what` of its parameter.
        let what = self.parameters.get("what").map(Parameter::to_string);
        let others = self.parameters.iter().filter(|(k, _)| *k != "what").map(|(k, v)| format!("{k} {v}"));
        let of: Vec<String> = what.into_iter().chain(others).collect();
        let separator = if of.is_empty() { "" } else { ": " };
        format!("{}{separator}{}, {}", of.join(", "), self.measure, self.place.name())
    }
}

/// Returns the text of a file, and the file's name for error messages.
fn text_of(file: &Path) -> Result<(String, String), Unreadable> {
    let name = file.display().to_string();
    match std::fs::read_to_string(file) {
        Ok(text) => Ok((text, name)),
        Err(error) => Err(Unreadable::File { file: name, error }),
    }
}

/// Reads a file of the current version.
fn read<T: serde::de::DeserializeOwned>(file: &Path) -> Result<T, Unreadable> {
    let (text, name) = text_of(file)?;
    parse(&text, &name)
}

/// Parses a text of the current version. Errors name `file`.
fn parse<T: serde::de::DeserializeOwned>(text: &str, file: &str) -> Result<T, Unreadable> {
    let shape = |error| Unreadable::Shape { file: file.to_owned(), error };
    // The version is read first, because the shape of the rest depends on it.
    #[derive(Deserialize)]
    struct Head {
        schema: u32,
    }
    let version = serde_json::from_str::<Head>(text).map_err(shape)?.schema;
    if version != VERSION {
        return Err(Unreadable::Version { file: file.to_owned(), version });
    }
    serde_json::from_str(text).map_err(shape)
}

impl Results {
    /// Reads a file of results and checks its values.
    pub fn read(file: &Path) -> Result<Results, Unreadable> {
        let (text, name) = text_of(file)?;
        Results::parse(&text, &name)
    }

    /// Parses a text of results and checks its values. Errors name `file`.
    pub fn parse(text: &str, file: &str) -> Result<Results, Unreadable> {
        let results: Results = parse(text, file)?;
        for experiment in results.runs.iter().flat_map(|r| &r.experiments) {
            let wrong = |what| Unreadable::Value { file: file.to_owned(), experiment: experiment.name.clone(), what };
            for (name, measure) in experiment.cases.iter().flat_map(|c| &c.measures) {
                if measure.samples.is_empty() || measure.samples.iter().any(|s| !s.is_finite()) {
                    return Err(wrong(format!("{name} has no samples, or a sample that is not a number")));
                }
            }
        }
        Ok(results)
    }

    /// Joins the runs of several files.
    pub fn merge(files: impl IntoIterator<Item = Results>) -> Results {
        Results { schema: VERSION, runs: files.into_iter().flat_map(|f| f.runs).collect() }
    }

    /// The text of the results file, as JSON.
    pub fn to_json(&self) -> String {
        // This cannot fail, because all maps have strings as keys and all numbers are finite.
        serde_json::to_string_pretty(self).expect("results are JSON") + "\n"
    }
}

impl Case {
    /// The case's identity within its experiment: `ours hosted cpus=2 what=threads`.
    pub fn id(&self) -> String {
        let mut id = format!("{} {}", self.side.name(), self.place.name());
        for (name, value) in &self.parameters {
            id += &format!(" {name}={value}");
        }
        id
    }
}

impl Side {
    /// The side's name in the results file.
    pub fn name(self) -> &'static str {
        match self {
            Side::Before => "before",
            Side::After => "after",
            Side::Ours => "ours",
            Side::Linux => "linux",
            Side::LinuxLarge => "linux-large",
            Side::Plain => "plain",
            Side::Limit => "limit",
        }
    }

    /// The side's name in reports.
    pub fn title(self) -> &'static str {
        match self {
            Side::Before => "before",
            Side::After => "after",
            Side::Ours => "Quire",
            Side::Linux => "Linux",
            Side::LinuxLarge => "Linux, large pages",
            Side::Plain => "plain tree",
            Side::Limit => "limit",
        }
    }
}

impl Place {
    /// The place's name in the results file.
    pub fn name(self) -> &'static str {
        match self {
            Place::Hosted => "hosted",
            Place::Recording => "recording",
            Place::Cachegrind => "cachegrind",
            Place::Guest => "guest",
            Place::GuestCounted => "guest-counted",
        }
    }
}

impl std::fmt::Display for Parameter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Parameter::Number(n) => write!(f, "{n}"),
            Parameter::Text(t) => f.write_str(t),
        }
    }
}

impl From<f64> for Parameter {
    fn from(value: f64) -> Self {
        Parameter::Number(value)
    }
}

impl From<u32> for Parameter {
    fn from(value: u32) -> Self {
        Parameter::Number(value.into())
    }
}

impl From<&str> for Parameter {
    fn from(value: &str) -> Self {
        Parameter::Text(value.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The documented schemas.
    fn schemas() -> [(&'static str, schemars::Schema); 3] {
        [
            ("results", schemars::schema_for!(Results)),
            ("conflicts", schemars::schema_for!(conflicts::Conflicts)),
            ("profile", schemars::schema_for!(profile::Profile)),
        ]
    }

    /// A run with one experiment of two cases.
    pub(crate) fn example() -> Results {
        let case = |side, samples: &[f64]| Case {
            side,
            place: Place::Hosted,
            parameters: BTreeMap::from([("cpus".to_owned(), 2u32.into()), ("what".to_owned(), "threads".into())]),
            command: "quire-lab case".to_owned(),
            measures: BTreeMap::from([(
                "rate".to_owned(),
                Measure {
                    unit: "faults/s".to_owned(),
                    kind: Kind::Time,
                    better: Better::More,
                    samples: samples.to_vec(),
                },
            )]),
            trouble: None,
        };
        let experiment = Experiment {
            name: "zero-fill".to_owned(),
            source: Source::S0,
            title: "Zero-fill faults".to_owned(),
            about: "First touches.".to_owned(),
            caveats: vec!["Small.".to_owned()],
            command: "./quire lab zero-fill".to_owned(),
            seconds: 1.0,
            claims: Vec::new(),
            plots: Vec::new(),
            cases: vec![case(Side::Ours, &[10.0, 11.0, 12.0]), case(Side::Before, &[1.0, 1.1, 1.2])],
        };
        let machine = Machine {
            processor: "any".to_owned(),
            cpus: 2,
            memory_mib: 1024,
            system: "Linux".to_owned(),
            emulator: "none".to_owned(),
            versions: BTreeMap::new(),
        };
        let run = Run {
            machine,
            began: "2026-01-01T00:00:00Z".to_owned(),
            seconds: 1.0,
            mode: Mode::Quick,
            seed: 1,
            complete: true,
            remark: None,
            experiments: vec![experiment],
        };
        Results { schema: VERSION, runs: vec![run] }
    }

    #[test]
    fn written_results_are_read_back() {
        let results = example();
        assert_eq!(Results::parse(&results.to_json(), "x").unwrap(), results);
        assert_eq!(Results::merge([results.clone(), results]).runs.len(), 2);
    }

    #[test]
    fn a_run_may_have_a_remark_and_one_without_has_none() {
        let mut results = example();
        let text = results.to_json();
        assert!(!text.contains("remark"));
        assert_eq!(Results::parse(&text, "x").unwrap().runs[0].remark, None);
        results.runs[0].remark = Some("The host was busy.".to_owned());
        assert_eq!(Results::parse(&results.to_json(), "x").unwrap(), results);
    }

    #[test]
    fn a_torn_foreign_or_empty_result_file_is_refused_by_name() {
        let text = example().to_json();
        let error = |text: &str| Results::parse(text, "some.json").unwrap_err().to_string();
        assert!(error(&text[..text.len() / 2]).starts_with("some.json holds no results"));
        assert!(error(&text.replace("\"schema\": 1", "\"schema\": 2")).contains("version 2"));
        let mut empty = example();
        empty.runs[0].experiments[0].cases[0].measures.get_mut("rate").unwrap().samples.clear();
        assert!(error(&empty.to_json()).contains("zero-fill: rate has no samples"));
    }

    #[test]
    fn a_case_is_told_apart_by_its_side_place_and_parameters() {
        assert_eq!(example().runs[0].experiments[0].cases[0].id(), "ours hosted cpus=2 what=threads");
    }

    #[test]
    fn a_reading_names_its_operation_measure_and_place() {
        let mut reading = Reading {
            measure: "instructions".to_owned(),
            place: Place::GuestCounted,
            parameters: BTreeMap::from([("as".to_owned(), "processes".into()), ("what".to_owned(), "fault".into())]),
        };
        assert_eq!(reading.told(), "fault, as processes: instructions, guest-counted");
        reading.parameters.clear();
        assert_eq!(reading.told(), "instructions, guest-counted");
    }

    #[test]
    fn the_documented_schemas_are_those_of_the_types() {
        for (name, schema) in schemas() {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../docs/{name}.schema.json"));
            let schema = serde_json::to_string_pretty(&schema).unwrap() + "\n";
            if std::env::var_os("QUIRE_WRITE").is_some() {
                std::fs::write(&file, &schema).unwrap();
            }
            let kept = std::fs::read_to_string(&file).unwrap();
            assert_eq!(kept, schema, "QUIRE_WRITE=1 cargo test -p quire-results writes it anew");
        }
    }
}
