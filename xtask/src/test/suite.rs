//! In-guest tests as data: `tests/guest/*.toml`, one file for each subject.
//!
//! ```toml
//! [[test]]
//! name = "sort"                     # guest/<cpus>cpu/<file>/sort
//! script = "sort -n"                # for busybox sh; or: run = ["PROGRAM", "ARG"...]
//! stdin = "3\n1\n2\n"               # or: stdin_bytes = 33554432, that many random-looking bytes
//! ```
//! By default a test passes if it gives the same bytes and the same status as the same binary on the host's Linux. If
//! the host's Linux cannot run the test, the test states its expectation: `status`, `signal`, `stdout`, `stdout_file`,
//! `contains = ["..."]`, `lines` (names that must each appear as `name value unit`).

use std::{fs, path::Path};

use serde::Deserialize;

use crate::failure::{Doing, Result};

/// One test of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Case {
    /// The test's name within the file.
    pub name: String,
    /// A script for `busybox sh -c`.
    pub script: Option<String>,
    /// A program and its arguments. The program is a path in the guest, or the name of one of `programs/`.
    pub run: Vec<String>,
    /// Standard input.
    pub stdin: String,
    /// If set, standard input is this many reproducible bytes.
    pub stdin_bytes: Option<usize>,
    /// The limit in guest seconds. It is generous, because it only stops a hanging guest.
    pub seconds: Option<u64>,
    /// If not empty, the test runs only on machines with these numbers of CPUs.
    pub cpus: Vec<u32>,
    /// Whether the test also runs in the stage `races`, where CPUs run at once. Then its program reads no clock.
    pub races: bool,
    /// The expected exit status, if it is not compared with the host's.
    pub status: Option<u8>,
    /// The signal that must end the program.
    pub signal: Option<u8>,
    /// The exact standard output.
    pub stdout: Option<String>,
    /// The file in this directory that has the exact standard output.
    pub stdout_file: Option<String>,
    /// Texts that standard output must contain.
    pub contains: Vec<String>,
    /// Names of `name value unit` lines that must appear, each with a value above zero.
    pub lines: Vec<String>,
    /// The least values of lines `name value unit`, as `name=number`.
    pub at_least: Vec<String>,
    /// If set, standard error is not compared, because it differs from run to run.
    pub any_stderr: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SuiteFile {
    test: Vec<Case>,
}

impl Case {
    /// Whether the test states its own expectation.
    pub fn expects(&self) -> bool {
        self.status.is_some()
            || self.signal.is_some()
            || self.stdout.is_some()
            || !self.contains.is_empty()
            || !self.lines.is_empty()
            || !self.at_least.is_empty()
    }

    /// Returns the bytes for standard input.
    pub fn input(&self) -> Vec<u8> {
        match self.stdin_bytes {
            Some(n) => noise(n),
            None => self.stdin.clone().into_bytes(),
        }
    }
}

/// Returns `count` bytes of lowercase words and line ends. They look random and are always the same.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let mut out = Vec::with_capacity(count);
    while out.len() < count {
        // xorshift64 (Marsaglia 2003).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let length = 4 + (state >> 60) as usize;
        for i in 0..length.min(count - out.len()) {
            out.push(b'a' + ((state >> (i * 3 % 56)) % 26) as u8);
        }
        if out.len() < count {
            out.push(b'\n');
        }
    }
    out
}

/// Returns all tests of a directory as (stem of the file, test), sorted by name.
pub fn load(directory: &Path) -> Result<Vec<(String, Case)>> {
    let about = || format!("cannot read {}", directory.display());
    let mut files: Vec<_> = fs::read_dir(directory).doing(about)?.filter_map(|e| Some(e.ok()?.path())).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "toml"));
    files.sort();
    let mut cases = Vec::new();
    for file in files {
        let text = fs::read_to_string(&file).doing(|| format!("cannot read {}", file.display()))?;
        let stem = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let suite = parse(&text).doing(|| format!("{}", file.display()))?;
        for mut case in suite {
            if let Some(name) = &case.stdout_file {
                let beside = directory.join(name);
                let text = fs::read_to_string(&beside).doing(|| format!("cannot read {}", beside.display()))?;
                case.stdout = Some(text);
            }
            cases.push((stem.clone(), case));
        }
    }
    Ok(cases)
}

fn parse(text: &str) -> Result<Vec<Case>, String> {
    let suite: SuiteFile = toml::from_str(text).map_err(|e| e.to_string())?;
    let mut seen = std::collections::BTreeSet::new();
    for case in &suite.test {
        if case.name.is_empty() || !seen.insert(case.name.clone()) {
            return Err(format!("the name {:?} is empty or used twice", case.name));
        }
        if case.script.is_some() != case.run.is_empty() {
            return Err(format!("{}: give either `script` or `run`", case.name));
        }
        if case.stdout.is_some() && case.stdout_file.is_some() {
            return Err(format!("{}: give either `stdout` or `stdout_file`", case.name));
        }
    }
    Ok(suite.test)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_is_read_and_mistakes_in_it_are_refused() {
        let good = "[[test]]\nname='a'\nscript='true'\n[[test]]\nname='b'\nrun=['x','y']\nsignal=11\n";
        let cases = parse(good).unwrap();
        assert_eq!(cases[1].run, ["x", "y"]);
        assert!(!cases[0].expects() && cases[1].expects());
        for bad in [
            "[[test]]\nname='a'\n",
            "[[test]]\nname='a'\nscript='x'\nrun=['y']\n",
            "[[test]]\nname=''\nscript='x'\n",
            "[[test]]\nname='a'\nscript='x'\nstdout='y'\nstdout_file='z'\n",
            "[[test]]\nname='a'\nscript='x'\n[[test]]\nname='a'\nscript='x'\n",
            "[[test]]\nname='a'\nscript='x'\nsript='y'\n",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn noise_is_always_the_same_and_has_lines() {
        let bytes = noise(10_000);
        assert_eq!(bytes.len(), 10_000);
        assert_eq!(bytes, noise(10_000));
        assert!(bytes.iter().filter(|b| **b == b'\n').count() > 500);
        assert!(bytes.iter().all(|b| b.is_ascii_lowercase() || *b == b'\n'));
    }
}
