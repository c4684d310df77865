//! The matrix of the whole kernel in the file format of the memory core's matrix, for files and for the page.

use quire_results::{
    VERSION,
    conflicts::{Conflicts, Line, Named, Pair, Sharing},
};

use super::verdict::{Expected, Judged, Verdict, reason};

/// The states: the program's name for each, and the relation of the two actors.
const STATES: [(&str, &str); 5] = [
    ("threads", "threads of one process"),
    ("apart", "processes that share nothing"),
    ("file", "processes that share a file"),
    ("region", "a process and its child, on one shared region"),
    ("family", "a process and its child"),
];

/// The matrix of these cases, without the machine and the time.
pub fn of(all: &[Judged<'_>], expected: &[Expected]) -> Conflicts {
    // The order is that of the first operations of the pairs. Operations that occur only as second operations follow.
    let mut operations: Vec<Named> = Vec::new();
    for name in (0..2).flat_map(|which| all.iter().map(move |judged| &judged.case.operations[which])) {
        if !operations.iter().any(|known| known.name == *name) {
            operations.push(Named { name: name.clone(), about: String::new() });
        }
    }
    let here = |state: &str| all.iter().any(|judged| judged.case.state == state);
    let named = |(name, about): (&str, &str)| Named { name: name.to_owned(), about: about.to_owned() };
    Conflicts {
        schema: VERSION,
        machine: None,
        ended: String::new(),
        command: "./quire conflicts --guest".to_owned(),
        rounds: all.iter().map(|judged| small(judged.case.rounds.len())).max().unwrap_or(0),
        operations,
        states: STATES.into_iter().filter(|(name, _)| here(name)).map(named).collect(),
        cases: all.iter().map(|judged| pair(judged, expected)).collect(),
    }
}

fn pair(judged: &Judged<'_>, expected: &[Expected]) -> Pair {
    let [a, b] = judged.case.operations.clone();
    let line = |(label, rounds): (&String, &usize)| {
        let known = reason(expected, label);
        Line {
            label: label.clone(),
            by: String::new(),
            rounds: small(*rounds),
            lines: 1,
            every: known.and_then(|known| known.every).map(small),
            reason: known.map(|known| known.reason.clone()),
        }
    };
    Pair {
        a,
        b,
        state: judged.case.state.clone(),
        verdict: match judged.verdict {
            Verdict::Free => Sharing::Free,
            Verdict::Amortised => Sharing::Amortised,
            Verdict::Listed => Sharing::Listed,
            Verdict::Wrong => Sharing::Wrong,
        },
        lines: small(judged.shared.len()),
        shared: judged.shared.iter().map(line).collect(),
    }
}

fn small(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conflicts::guest::{records::Case, verdict};

    #[test]
    fn the_page_names_the_shared_lines_and_the_reason() {
        let case = |a: &str, b: &str| Case {
            state: "apart".into(),
            operations: [a.into(), b.into()],
            rounds: vec![vec![]; 3],
        };
        let cases = [case("open", "open"), case("open", "<stat>")];
        let expected = verdict::list("heap, a::* | a count\n").unwrap();
        let judged = |case, shared: &[(&str, usize)], verdict| Judged {
            case,
            shared: shared.iter().map(|(l, n)| ((*l).to_owned(), *n)).collect(),
            verdict,
        };
        let all = [
            judged(&cases[0], &[("heap, a::b", 3), ("space, c", 1)], Verdict::Listed),
            judged(&cases[1], &[], Verdict::Free),
        ];
        let matrix = of(&all, &expected);
        let names: Vec<_> = matrix.operations.iter().map(|o| o.name.as_str()).collect();
        assert_eq!((names, matrix.rounds, matrix.states.len()), (vec!["open", "<stat>"], 3, 1));
        let page = quire_report::matrix_page("the kernel's", &matrix).unwrap();
        for wanted in [
            "<b>1 of 2</b> pairs share no line",
            "Processes that share nothing",
            "&lt;stat&gt;",
            "apart: 2 (heap, a::b, space, c)",
            "A count",
        ] {
            assert!(page.contains(wanted), "{wanted} in {page}");
        }
        assert!(!page.contains("Threads of one process"));
    }
}
