//! Building a C project: guests alone.

use super::Study;
use quire_results::Source;

/// The experiment.
pub const STUDY: Study = Study {
    name: "build",
    source: Source::All,
    title: "A build",
    about: "Lua is built by make and gcc in the guest's memory, again and again in one boot: the first build finds nothing resident. A quick run \
            makes four small objects (objects=4), twice in a boot, with a job for each CPU; a full one makes all of Lua, three times, with one \
            and with two jobs for each. Told are a round's first build and the mean of its later ones: wall, user and system time, and the \
            system's share of the two. Rounds: one of instructions, two of times.",
    caveats: &[
        "Real time under an emulator exaggerates what flushes translations, on either kernel.",
        "The first build's time includes the emulator's translation of code that it has not executed before: its instructions are those of \
         the later builds.",
        "User and system time are estimated by ticks on Linux, and exact on Quire: their sums can be compared, the shares of short builds \
         hardly.",
        "What S0, S1 and S4 say of builds was measured on 32 to 64 CPUs.",
    ],
    claims: Vec::new,
    // `./quire lab` draws the guests' plots.
    plots: Vec::new,
    cases: |_| Vec::new(),
};
