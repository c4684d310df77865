//! The conflict matrix as a file, which the lab's page shows. `./quire conflicts` adds the machine and the commit.

use super::measure::ROUNDS;
use super::model::State;
use super::operation::ALL;
use super::verdict::{Judged, Shared, Verdict};
use quire_results::VERSION;
use quire_results::conflicts::{Conflicts, Line, Named, Pair, Sharing};

fn line(shared: &Shared) -> Line {
    Line {
        label: shared.line.label.clone(),
        by: shared.line.by.clone(),
        rounds: shared.seen.rounds,
        lines: shared.seen.lines,
        every: shared.expected.and_then(|e| e.every),
        reason: shared.expected.map(|e| e.reason.to_owned()),
    }
}

fn pair(judged: &Judged) -> Pair {
    Pair {
        a: judged.case.a.name.to_owned(),
        b: judged.case.b.name.to_owned(),
        state: judged.case.state.name().to_owned(),
        verdict: match judged.verdict {
            Verdict::Free => Sharing::Free,
            Verdict::Amortised => Sharing::Amortised,
            Verdict::Listed => Sharing::Listed,
            Verdict::Wrong => Sharing::Wrong,
        },
        lines: judged.most,
        shared: judged.shared.iter().map(line).collect(),
    }
}

/// The matrix of these cases in the file's format.
pub fn of(all: &[Judged]) -> Conflicts {
    let named = |name: &str, about: &str| Named { name: name.to_owned(), about: about.to_owned() };
    Conflicts {
        schema: VERSION,
        machine: None,
        ended: String::new(),
        command: "./quire conflicts".to_owned(),
        rounds: ROUNDS,
        operations: ALL.iter().map(|o| named(o.name, o.about)).collect(),
        states: State::ALL.iter().map(|s| named(s.name(), s.about())).collect(),
        cases: all.iter().map(pair).collect(),
    }
}
