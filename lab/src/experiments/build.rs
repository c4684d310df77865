//! The experiment about a build of a C project. It runs only in guests.

use super::Study;
use quire_results::Source;

/// The experiment.
pub const STUDY: Study = Study {
    name: "build",
    source: Source::All,
    title: "A build",
    about: "make and gcc build Lua in the guest's memory several times in one boot. The first build finds no resident \
        page. A quick run makes four small objects (objects=4) twice in a boot, with one job for each CPU. A full run \
        makes all of Lua three times, with one job and with two jobs for each CPU. The figures are those of the first \
        build of a round, and the means of the later builds. They are wall, user and system time, and the share of \
        system time in user and system time. There is one round for instructions, and there are two rounds for times.",
    caveats: &[
        "An emulator makes flushes of translations slower in real time, on either kernel.",
        "The time of the first build includes the emulator's translation of new code. Its number of instructions \
         equals that of the later builds.",
        "Linux estimates user and system time by ticks, and Quire measures them exactly. Their sums can be compared, \
         but the shares of short builds hardly can.",
        "S0, S1 and S4 measured builds on 32 to 64 CPUs.",
    ],
    claims: Vec::new,
    // `./quire lab` adds the plots of the guests' figures.
    plots: Vec::new,
    cases: |_| Vec::new(),
};
