//! Cache misses, by cachegrind: the same figures on every machine, since the caches are simulated with fixed sizes.
//!
//! The lab's own program is run again under valgrind, as `quire-lab workload NAME COUNT`. Cachegrind counts the whole
//! process. So a workload is run twice, in full and with COUNT 0, and the difference is the cost of its operations.

use crate::Failure;
use crate::bench::Size;
use std::process::{Command, Stdio};

/// 32 KiB, 8 ways, lines of 64 bytes; 8 MiB, 16 ways.
const CACHES: [&str; 2] = ["--D1=32768,8,64", "--LL=8388608,16,64"];

/// Instructions, data references and misses (loads and stores) of a workload.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Misses {
    /// Instructions.
    pub instructions: u64,
    /// Loads and stores.
    pub references: u64,
    /// Those that missed the first level.
    pub first: u64,
    /// Those that missed the last level too.
    pub last: u64,
}

/// A piece of work for cachegrind; 0 does all but the operations themselves.
pub struct Workload {
    /// As `quire-lab workload` takes it.
    pub name: &'static str,
    /// Does the work for so many operations.
    pub run: fn(count: usize, size: Size),
}

/// Misses of `workload` with `count` operations, less those with none.
pub fn misses(workload: &Workload, count: usize, size: Size) -> Result<Misses, Failure> {
    misses_of(workload.name, count, size)
}

/// The same of the workload that `quire-lab workload` knows by this name.
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

/// From the file's lines `events: Ir I1mr ...` and `summary: N N ...`.
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
