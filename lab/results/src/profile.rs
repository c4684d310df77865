//! The call stacks of one operation, with the number of instructions of each. `./quire profile --json FILE` writes the
//! file, and the page of the lab draws it as a flame graph. Its JSON Schema is `docs/profile.schema.json`.

use crate::{Machine, Place, Unreadable};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path};

/// The counted stacks of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Profile {
    /// [`crate::VERSION`].
    pub schema: u32,
    /// The machine and the commit.
    pub machine: Machine,
    /// The time when the run ended, in UTC, in the format of RFC 3339.
    pub ended: String,
    /// The command that repeats the run.
    pub command: String,
    /// The operation, or the program that was run.
    pub operation: String,
    /// The place where the operation ran.
    pub place: Place,
    /// The number of operations, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The names of the functions.
    pub functions: Vec<String>,
    /// The call stacks.
    pub stacks: Vec<Stack>,
}

/// A call stack.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Stack {
    /// The functions as indices into [`Profile::functions`], the outermost first.
    pub calls: Vec<u32>,
    /// The number of instructions that the innermost function executed with this stack.
    pub instructions: u64,
}

impl Profile {
    /// Reads a file of a profile.
    pub fn read(file: &Path) -> Result<Profile, Unreadable> {
        crate::read(file)
    }

    /// Replaces the names of functions in these stacks by indices. Returns the names and the stacks.
    pub fn number(stacks: &BTreeMap<Vec<&str>, u64>) -> (Vec<String>, Vec<Stack>) {
        let mut numbers: BTreeMap<&str, u32> = BTreeMap::new();
        let mut functions = Vec::new();
        let mut number = |name: &str| functions.push(name.to_owned());
        let mut all = Vec::new();
        for (stack, instructions) in stacks {
            let mut calls = Vec::new();
            for name in stack {
                let next = numbers.len() as u32;
                calls.push(*numbers.entry(*name).or_insert_with(|| {
                    number(name);
                    next
                }));
            }
            all.push(Stack { calls, instructions: *instructions });
        }
        (functions, all)
    }

    /// The number of instructions by stack, with the names of the functions. An invalid index gets the name `?`.
    pub fn named(&self) -> BTreeMap<Vec<&str>, u64> {
        let name = |n: &u32| self.functions.get(*n as usize).map_or("?", String::as_str);
        let mut named: BTreeMap<Vec<&str>, u64> = BTreeMap::new();
        for stack in &self.stacks {
            let sum = named.entry(stack.calls.iter().map(name).collect()).or_default();
            *sum = sum.saturating_add(stack.instructions);
        }
        named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_keep_their_functions_through_the_file() {
        let stacks = BTreeMap::from([(vec!["a"], 1), (vec!["a", "[u8; 4]::b"], 2), (vec!["b", "a"], 3)]);
        let (functions, numbered) = Profile::number(&stacks);
        let text = serde_json::json!({
            "schema": 1, "machine": crate::tests::example().runs[0].machine, "ended": "", "command": "", "operation": "x",
            "place": "cachegrind", "functions": functions, "stacks": numbered,
        });
        let read: Profile = serde_json::from_value(text).unwrap();
        assert_eq!(read.named(), stacks);
    }
}
