//! The experiment about a bulk build of packages. It runs only in guests.

use super::Study;
use quire_results::Source;

/// The experiment.
pub const STUDY: Study = Study {
    name: "bulk-build",
    source: Source::S0,
    title: "A bulk build",
    about: "Ten source packages of Debian are unpacked, configured and built by make and gcc at the same time, each with \
        two jobs. Wall is the time until all are done, and system is the time in the kernel.",
    caveats: &["S0 built thousands of packages on 32 to 64 CPUs."],
    claims: Vec::new,
    plots: Vec::new,
    cases: |_| Vec::new(),
};
