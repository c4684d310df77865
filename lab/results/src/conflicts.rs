//! The conflict matrix as a file: `./quire conflicts --json FILE` writes it, and the page of the lab shows it. Its JSON
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
    /// The machine and the commit. The counts depend on the commit alone.
    pub machine: Option<Machine>,
    /// When the run ended, as RFC 3339 writes it, in UTC.
    pub ended: String,
    /// The command that repeats it.
    pub command: String,
    /// Counted rounds of each pair. In a round each CPU performs its operation once.
    pub rounds: u32,
    /// Rows and columns, in the order in which they are shown.
    pub operations: Vec<Named>,
    /// Relations between the processes of the two CPUs.
    pub states: Vec<Named>,
    /// Pairs that commute in a state. All other pairs are absent.
    pub cases: Vec<Pair>,
}

/// A name and its meaning.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Named {
    /// As the command takes it.
    pub name: String,
    /// In a few words.
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
    /// Shared lines in the round that shared most.
    pub lines: u32,
    /// The lines by their names.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub shared: Vec<Line>,
}

/// The verdict on a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum Sharing {
    /// No line was shared in any round.
    Free,
    /// Lines were shared at listed rates only.
    Amortised,
    /// Lines are shared for a listed reason.
    Listed,
    /// The sharing differs from the list.
    Wrong,
}

/// Shared lines of one name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Line {
    /// The owner of the memory. It is empty for memory without an owner.
    pub label: String,
    /// Source files that wrote it.
    pub by: String,
    /// Rounds in which such a line was shared.
    pub rounds: u32,
    /// Such lines in the round that shared most of them.
    pub lines: u32,
    /// The listed bound: once in so many operations. Without it the line may be shared in each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub every: Option<u32>,
    /// The listed reason. It is absent for a line that is not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Conflicts {
    /// Reads a file.
    pub fn read(file: &Path) -> Result<Conflicts, Unreadable> {
        crate::read(file)
    }
}
