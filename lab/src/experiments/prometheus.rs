//! The experiment with prometheus. It runs only in guests.

use super::Study;
use quire_results::Source;

/// The experiment.
pub const STUDY: Study = Study {
    name: "prometheus",
    source: Source::S4,
    title: "prometheus writes",
    about: "promtool of Debian writes 300 samples of each of 2,000 series into a new database, whose files it maps. \
        Samples is its rate, and system is the time in the kernel.",
    caveats: &["The database lies in memory. S4 measured prometheus on a disk, with many more series."],
    claims: Vec::new,
    plots: Vec::new,
    cases: |_| Vec::new(),
};
