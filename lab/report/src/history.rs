//! The history in the page: kept runs by date and commit, with the numbers of operations that Quire wins and loses.

use quire_results::{
    Kind, Mode, Results, Run, Side,
    operation::{Operation, Tally},
};
use serde::Serialize;

use crate::number;

/// A run of the history.
#[derive(Debug, Serialize)]
pub struct Entry {
    /// The date when the run began.
    pub date: String,
    /// The version of Quire.
    pub commit: String,
    /// The mode: `quick` or `full`.
    pub mode: &'static str,
    /// The processor and the number of CPUs.
    pub machine: String,
    /// The numbers of operations won and lost: against Linux, Linux with large pages, and the sources' designs.
    pub tallies: Vec<Option<String>>,
    /// The median, over all operations, of the factor by which Quire takes fewer instructions than Linux.
    pub middle: Option<String>,
}

/// The kept runs and the runs of the page, the newest first. Each run appears once.
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
