//! The stacks of calls of one operation, with their instructions: `./quire profile --json FILE` writes the file, and
//! the page of the lab draws it as a flame graph. Its JSON Schema is `docs/profile.schema.json`.

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
    /// When the run ended, as RFC 3339 writes it, in UTC.
    pub ended: String,
    /// The command that repeats it.
    pub command: String,
    /// The operation, or the program that was run.
    pub operation: String,
    /// Where it ran.
    pub place: Place,
    /// The number of operations, where it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// Names of functions.
    pub functions: Vec<String>,
    /// Stacks of calls.
    pub stacks: Vec<Stack>,
}

/// A stack of calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub struct Stack {
    /// Indices of the functions, the outermost first.
    pub calls: Vec<u32>,
    /// Instructions that the innermost function executed there.
    pub instructions: u64,
}

impl Profile {
    /// Reads a file.
    pub fn read(file: &Path) -> Result<Profile, Unreadable> {
        crate::read(file)
    }

    /// Numbers the functions of these stacks.
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

    /// The stacks by the names of their functions. A number without a function has the name `?`.
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
