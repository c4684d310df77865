//! Parses the output of the program and of the plugin: the cases in order, and the conflicting lines of each round.

use crate::failure::{Failure, Result};

/// An access as the plugin writes it: the address of the instruction (`pc`) and the virtual address (`at`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Access {
    pub pc: u64,
    pub at: u64,
}

/// A cache line that one CPU wrote and another accessed in the same round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Line {
    pub physical: u64,
    pub writer: Access,
    pub toucher: Access,
    /// The number of the CPU that wrote.
    pub by: usize,
}

/// A pair of operations in a state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Case {
    pub state: String,
    pub operations: [String; 2],
    /// The conflicting lines of each round.
    pub rounds: Vec<Vec<Line>>,
}

/// The cases of a run, and the number of pairs that are not cases.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Records {
    pub cases: Vec<Case>,
    /// The number of pairs whose results depend on the order.
    pub ordered: usize,
}

fn torn(what: &str, line: &str) -> Failure {
    Failure::machine(format_args!("{what}: unknown line {line:?}"))
}

/// Parses the program's lines `case STATE A B` and `order STATE A B ...`, and the plugin's lines `case`, `round
/// ACCESSES` and `line ...`.
pub fn read(program: &str, plugin: &str) -> Result<Records> {
    let mut rounds: Vec<Vec<Vec<Line>>> = Vec::new();
    for text in plugin.lines() {
        let words: Vec<&str> = text.split(' ').collect();
        let bad = || torn("the plugin", text);
        match words[..] {
            ["case"] => rounds.push(Vec::new()),
            ["round", accesses] => {
                // A round without any access was not recorded, so it is an error.
                accesses.parse::<u64>().ok().filter(|n| *n > 0).ok_or_else(bad)?;
                rounds.last_mut().ok_or_else(bad)?.push(Vec::new());
            }
            ["line", physical, by, pc, at, _, other_pc, other_at, _] => {
                let hex = |word: &str| u64::from_str_radix(word, 16).map_err(|_| bad());
                let line = Line {
                    physical: hex(physical)?,
                    writer: Access { pc: hex(pc)?, at: hex(at)? },
                    toucher: Access { pc: hex(other_pc)?, at: hex(other_at)? },
                    by: by.parse().map_err(|_| bad())?,
                };
                rounds.last_mut().and_then(|r| r.last_mut()).ok_or_else(bad)?.push(line);
            }
            _ => return Err(bad()),
        }
    }
    let mut records = Records::default();
    let mut rounds = rounds.into_iter();
    for text in program.lines() {
        let words: Vec<&str> = text.split(' ').collect();
        match words[..] {
            ["case", state, a, b] => records.cases.push(Case {
                state: state.to_owned(),
                operations: [a.to_owned(), b.to_owned()],
                rounds: rounds.next().unwrap_or_default(),
            }),
            ["order", ..] => records.ordered += 1,
            _ => {}
        }
    }
    if rounds.next().is_some() || records.cases.iter().any(|case| case.rounds.len() < 2) {
        return Err(Failure::machine("the emulator's plugin recorded other cases than the program ran"));
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_get_their_rounds_in_order() {
        let plugin = "case\nround 9\nround 7\nline 40 1 a b 0 c d 1\ncase\nround 1\nround 1\n";
        let records = read("case apart x y\norder apart x z 1 2\ncase apart z z\n", plugin).unwrap();
        assert_eq!((records.cases.len(), records.ordered), (2, 1));
        let line =
            Line { physical: 0x40, writer: Access { pc: 10, at: 11 }, toucher: Access { pc: 12, at: 13 }, by: 1 };
        assert_eq!(records.cases[0].rounds, [vec![], vec![line]]);
        assert_eq!(records.cases[1].operations, ["z", "z"]);
    }

    #[test]
    fn a_case_that_the_plugin_missed_is_not_clean() {
        for plugin in ["", "case\nround 5\n", "case\nround 0\nround 3\n", "case\nround 1\nround 1\ncase\n", "noise\n"] {
            assert!(read("case apart x y\n", plugin).is_err(), "{plugin:?}");
        }
    }
}
