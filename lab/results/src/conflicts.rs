//! The conflict matrix as a file. `./quire conflicts --json FILE` writes it, and the page of the lab shows it. Its JSON
//! Schema is `docs/conflicts.schema.json`.

use crate::{Machine, Unreadable};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The measured pairs of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Conflicts {
    /// [`crate::VERSION`].
    pub schema: u32,
    /// The machine and the commit. The counts depend only on the commit.
    pub machine: Option<Machine>,
    /// The time when the run ended, in UTC, in the format of RFC 3339.
    pub ended: String,
    /// The command that repeats the run.
    pub command: String,
    /// The number of counted rounds of each pair. In a round, each CPU does its operation once.
    pub rounds: u32,
    /// The operations, which are the rows and the columns, in the order in which they are shown.
    pub operations: Vec<Named>,
    /// The relations between the processes of the two CPUs.
    pub states: Vec<Named>,
    /// The pairs that commute in a state. All other pairs are absent.
    pub cases: Vec<Pair>,
}

/// A name and its meaning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Named {
    /// The name on the command line.
    pub name: String,
    /// The meaning in a few words.
    pub about: String,
}

/// Two operations that commute in a state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Pair {
    /// The operation of CPU 0.
    pub a: String,
    /// The operation of CPU 1.
    pub b: String,
    /// The state's name.
    pub state: String,
    /// The verdict.
    pub verdict: Sharing,
    /// The number of shared lines in the round that shared the most.
    pub lines: u32,
    /// The shared lines, grouped by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<Line>,
}

/// The verdict on a pair of operations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// No line was shared in any round.
    Free,
    /// Lines were shared, but only at listed rates.
    Amortised,
    /// Lines are shared for a listed reason.
    Listed,
    /// The sharing differs from the list.
    Wrong,
}

/// The shared lines of one name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Line {
    /// The owner of the memory. It is empty for memory without an owner.
    pub label: String,
    /// The source files that wrote the lines.
    pub by: String,
    /// The number of rounds in which such a line was shared.
    pub rounds: u32,
    /// The number of such lines in the round that shared the most of them.
    pub lines: u32,
    /// The listed rate: shared at most once in this many operations. Without it, the line may be shared in each
    /// operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u32>,
    /// The listed reason. It is absent for a line that is not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Conflicts {
    /// Reads a file of a conflict matrix.
    pub fn read(file: &Path) -> Result<Conflicts, Unreadable> {
        crate::read(file)
    }

    /// The text of the file. It has one line for each pair, so that two kept runs differ only in the lines of changed
    /// pairs.
    pub fn text(&self) -> Result<String, serde_json::Error> {
        let head = serde_json::to_string(&Conflicts { cases: Vec::new(), ..self.clone() })?;
        let cases: Result<Vec<String>, _> = self.cases.iter().map(serde_json::to_string).collect();
        // The pairs are appended by hand, because `cases` is the last field.
        Ok(format!("{}\n{}\n]}}\n", head.trim_end_matches("]}"), cases?.join(",\n")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_has_a_line_for_each_pair_and_is_the_file() {
        let line = |every| Line {
            label: "vm]}".to_owned(),
            by: String::new(),
            rounds: 1,
            lines: 1,
            every,
            reason: Some("a\nb".to_owned()),
        };
        let pair = |shared| Pair {
            a: "fork".to_owned(),
            b: "exit".to_owned(),
            state: "threads".to_owned(),
            verdict: Sharing::Listed,
            lines: 1,
            shared,
        };
        let all = Conflicts {
            schema: crate::VERSION,
            machine: None,
            ended: String::new(),
            command: "]}".to_owned(),
            rounds: 64,
            operations: vec![Named { name: "fork".to_owned(), about: String::new() }],
            states: Vec::new(),
            cases: vec![pair(vec![line(None), line(Some(3))]), pair(Vec::new())],
        };
        for all in [Conflicts { cases: Vec::new(), ..all.clone() }, all] {
            let text = all.text().unwrap();
            assert_eq!(crate::parse::<Conflicts>(&text, "text").unwrap(), all);
            assert_eq!(text.lines().count(), all.cases.len().max(1) + 2);
        }
    }
}
