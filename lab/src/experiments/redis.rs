//! The experiment with redis. It runs only in guests.

use super::Study;
use quire_results::Source;

/// The experiment.
pub const STUDY: Study = Study {
    name: "redis",
    source: Source::S0,
    title: "redis saves while it serves",
    about: "redis-server of Debian serves redis-benchmark on the loopback. Requests is the rate with 20 clients. It then \
        saves 20,000 keys of 500 bytes by a fork, while clients store. Fork is the time of the fork in the server, and \
        copied is the memory that was copied until the child ended.",
    caveats: &["Copied depends on how much is stored while the child writes, thus on the machine's speed."],
    claims: Vec::new,
    plots: Vec::new,
    cases: |_| Vec::new(),
};
