//! The history of the headline: kept runs by date and commit.

use quire_results::{
    Kind, Mode, Results, Run, Side,
    operation::{Operation, Tally},
};
use serde::Serialize;

use crate::number;

/// A run.
#[derive(Debug, Serialize)]
pub struct Entry {
    /// When it began.
    pub date: String,
    /// Quire's version.
    pub commit: String,
    /// `quick` or `full`.
    pub mode: &'static str,
    /// The processor and the number of CPUs.
    pub machine: String,
    /// Against Linux, against Linux with large pages, and against the sources' designs.
    pub tallies: Vec<Option<String>>,
    /// How many times fewer instructions an operation takes than on Linux: the median of all operations.
    pub middle: Option<String>,
}

/// The kept runs and those of the page, the newest first, each once.
pub fn of(kept: &Results, shown: &Results) -> Vec<Entry> {
    let mut runs: Vec<&Run> = Vec::new();
    for run in kept.runs.iter().chain(&shown.runs) {
        if !runs.iter().any(|r| (&r.began, r.mode, r.seed) == (&run.began, run.mode, run.seed)) {
            runs.push(run);
        }
    }
    runs.sort_by(|a, b| b.began.cmp(&a.began));
    runs.into_iter().map(entry).collect()
}

fn entry(run: &Run) -> Entry {
    let tally = |all: &[Operation<'_>]| (!all.is_empty()).then(|| Tally::of(all).to_string());
    let linux = run.operations(Side::Linux);
    let mut counted: Vec<f64> =
        linux.iter().filter(|o| !o.memory).filter_map(|o| o.range(Kind::Count)).map(|(least, _)| least).collect();
    counted.sort_by(f64::total_cmp);
    Entry {
        date: run.began.get(..10).unwrap_or(&run.began).to_owned(),
        commit: run.machine.versions.get("Quire").cloned().unwrap_or_default(),
        mode: match run.mode {
            Mode::Quick => "quick",
            Mode::Full => "full",
        },
        machine: format!("{}, {} CPUs", run.machine.processor, run.machine.cpus),
        middle: counted.get(counted.len() / 2).map(|t| number::times(*t)),
        tallies: vec![tally(&linux), tally(&run.operations(Side::LinuxLarge)), tally(&run.baselines())],
    }
}
