//! Building a C project: guests alone.

use super::Study;
use quire_results::Source;

/// The experiment.
pub const STUDY: Study = Study {
    name: "build",
    source: Source::All,
    title: "A build",
    about: "A C project is built by make and a compiler in memory, with one and two jobs for each CPU, three times in one boot: the first one \
            finds nothing resident. Wall, user and system time, and the system's share of them.",
    caveats: &[
        "Real time under an emulator exaggerates what flushes translations, on either kernel.",
        "What S0, S1 and S4 say of builds was measured on 32 to 64 CPUs.",
    ],
    claims: Vec::new,
    // Guests are whoever has guests' to draw.
    plots: Vec::new,
    cases: |_| Vec::new(),
};
