//! Cache misses, counted by cachegrind. The figures are equal on every machine, because the simulated caches have fixed
//! sizes.
//!
//! The lab runs its own program again under valgrind, as `quire-lab workload NAME COUNT`. Cachegrind counts the whole
//! process. So a workload runs twice, with its operations and with COUNT 0. The difference is the cost of the
//! operations.

use crate::Failure;
use crate::bench::Size;
use std::process::{Command, Stdio};

/// The simulated caches: 32 KiB, 8 ways, lines of 64 bytes; and 8 MiB, 16 ways.
const CACHES: [&str; 2] = ["--D1=32768,8,64", "--LL=8388608,16,64"];

/// The counts of a workload: instructions, memory references and cache misses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Misses {
    /// The number of instructions.
    pub instructions: u64,
    /// The number of loads and stores.
    pub references: u64,
    /// The number of loads and stores that missed the first level.
    pub first: u64,
    /// The number of loads and stores that also missed the last level.
    pub last: u64,
}

/// A workload for cachegrind. With a count of 0, it prepares everything but does no operation.
pub struct Workload {
    /// The name in `quire-lab workload NAME`.
    pub name: &'static str,
    /// Does `count` operations.
    pub run: fn(count: usize, size: Size),
}

/// The counts of `workload` with `count` operations, minus the counts without operations.
pub fn misses(workload: &Workload, count: usize, size: Size) -> Result<Misses, Failure> {
    misses_of(workload.name, count, size)
}

/// As [`misses`], but `workload` is a name that `quire-lab workload NAME` accepts.
pub fn misses_of(workload: &str, count: usize, size: Size) -> Result<Misses, Failure> {
    let (full, none) = (measure(workload, count, size)?, measure(workload, 0, size)?);
    Ok(Misses {
        instructions: full.instructions.saturating_sub(none.instructions),
        references: full.references.saturating_sub(none.references),
        first: full.first.saturating_sub(none.first),
        last: full.last.saturating_sub(none.last),
    })
}

fn measure(workload: &str, count: usize, size: Size) -> Result<Misses, Failure> {
    let tool = |what: &str| Failure::Tool(format!("cachegrind on {workload}: {what}"));
    let own = std::env::current_exe().map_err(|e| tool(&e.to_string()))?;
    let kept = tempfile::NamedTempFile::new().map_err(|e| tool(&e.to_string()))?;
    let out = Command::new("valgrind")
        .args(["--tool=cachegrind", "--cache-sim=yes", "--quiet"])
        .args(CACHES)
        .arg(format!("--cachegrind-out-file={}", kept.path().display()))
        .arg(own)
        .args(["workload", workload, &count.to_string()])
        .args(size.of(&["--short"][..], &[]))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .map_err(|e| tool(&format!("valgrind cannot be run (Debian: apt-get install valgrind): {e}")))?;
    if !out.status.success() {
        return Err(tool(String::from_utf8_lossy(&out.stderr).trim()));
    }
    let text = std::fs::read_to_string(kept.path()).map_err(|e| tool(&e.to_string()))?;
    parse(&text).ok_or_else(|| tool("its file holds no summary of data misses"))
}

/// Parses the lines `events: Ir I1mr ...` and `summary: N N ...` of cachegrind's file.
fn parse(text: &str) -> Option<Misses> {
    let line = |key: &str| text.lines().rev().find_map(|l| l.strip_prefix(key));
    let (events, summary) = (line("events:")?, line("summary:")?);
    let value = |name: &str| {
        events.split_whitespace().zip(summary.split_whitespace()).find(|(e, _)| *e == name)?.1.parse::<u64>().ok()
    };
    Some(Misses {
        instructions: value("Ir")?,
        references: value("Dr")? + value("Dw")?,
        first: value("D1mr")? + value("D1mw")?,
        last: value("DLmr")? + value("DLmw")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_and_stores_of_the_summary_are_added() {
        let text = "desc: D1 cache\nevents: Ir I1mr ILmr Dr D1mr DLmr Dw D1mw DLmw\nfn=x\n1 2\nsummary: 900 1 1 100 10 3 50 5 2\n";
        assert_eq!(parse(text), Some(Misses { instructions: 900, references: 150, first: 15, last: 5 }));
        assert_eq!(parse("events: Ir\nsummary: 900\n"), None);
    }
}
