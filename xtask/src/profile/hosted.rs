//! The call stacks of a workload of the lab, in a process on the host. Callgrind counts instructions, and keeps the
//! chain of callers for each function. It counts the whole process. So the workload runs twice, with its operations and
//! without them. The difference is the number of instructions of the operations.

use std::{
    collections::BTreeMap,
    path::Path,
    process::{Command, Stdio},
};

use crate::{
    bench,
    failure::{Doing, Failure, Result},
    places::Places,
    progress::Step,
};

/// These settings make glibc fill and copy pages with vector instructions. Valgrind would count each byte of a string
/// instruction as an instruction.
const BY_VECTORS: &str = "glibc.cpu.x86_rep_stosb_threshold=1000000000:glibc.cpu.x86_rep_movsb_threshold=1000000000";
/// The most callers of a function that callgrind keeps.
const CALLERS: u32 = 40;
/// The prefix of the outermost functions that count. Callers further out only prepare the process.
const OUTERMOST: &str = "quire_lab::";

/// The number of instructions by stack. A stack begins with the outermost function.
pub type Stacks = BTreeMap<Vec<String>, u64>;

/// Counts the stacks of `count` operations of `workload`.
pub fn measure(places: &Places, workload: &str, count: u64) -> Result<Stacks> {
    let lab = bench::build_native(places)?;
    let step = Step::new("counting under valgrind");
    let (mut all, none) = (run(&lab, workload, count)?, run(&lab, workload, 0)?);
    drop(step);
    for (stack, instructions) in none {
        if let Some(left) = all.get_mut(&stack) {
            *left = left.saturating_sub(instructions);
        }
    }
    let mut stacks = Stacks::new();
    for (stack, instructions) in all.into_iter().filter(|(_, n)| *n > 0) {
        if let Some(first) = stack.iter().position(|name| name.starts_with(OUTERMOST)) {
            *stacks.entry(stack[first..].to_vec()).or_default() += instructions;
        }
    }
    Ok(stacks)
}

fn run(lab: &Path, workload: &str, count: u64) -> Result<Stacks> {
    let about = || "cannot keep the counts".to_string();
    let kept = tempfile::NamedTempFile::new().doing(about)?;
    let out = Command::new("valgrind")
        .args(["--tool=callgrind", "--quiet", "--compress-strings=no", "--compress-pos=no", "--demangle=no"])
        .arg(format!("--separate-callers={CALLERS}"))
        .arg(format!("--callgrind-out-file={}", kept.path().display()))
        .arg(lab)
        .env("GLIBC_TUNABLES", BY_VECTORS)
        .args(["workload", workload, &count.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .output()
        .doing(|| "cannot run valgrind (Debian: apt-get install valgrind)".to_string())?;
    if !out.status.success() {
        return Err(Failure::usage(String::from_utf8_lossy(&out.stderr).trim()));
    }
    let text = std::fs::read_to_string(kept.path()).doing(about)?;
    parse(&text).ok_or_else(|| Failure::machine("callgrind wrote a file of another shape"))
}

/// Parses callgrind's file. A line `fn=inner'caller'outermost` begins the costs of a chain. A cost line is `LINE COST`.
/// The cost line after `calls=` is skipped, because it belongs to the callee, which has a chain of its own.
fn parse(text: &str) -> Option<Stacks> {
    let mut stacks = Stacks::new();
    let mut stack: Option<Vec<String>> = None;
    let mut of_callee = false;
    for line in text.lines() {
        if let Some(chain) = line.strip_prefix("fn=") {
            let mut names: Vec<String> = chain.split('\'').filter(|n| !is_level(n)).map(name).collect();
            names.reverse();
            stack = Some(names);
        } else if line.starts_with("calls=") {
            of_callee = true;
        } else if line.starts_with(|c: char| c.is_ascii_digit()) && stack.is_some() {
            let cost: u64 = line.split(' ').nth(1)?.parse().ok()?;
            if !std::mem::take(&mut of_callee) {
                *stacks.entry(stack.clone()?).or_default() += cost;
            }
        }
    }
    (!stacks.is_empty()).then_some(stacks)
}

/// Whether a part of a chain is a number. Valgrind numbers recursive calls: in `f'2`, the 2 is the second level of `f`.
fn is_level(part: &str) -> bool {
    part.bytes().all(|b| b.is_ascii_digit())
}

/// The function's name without the compiler's hash.
fn name(symbol: &str) -> String {
    super::plain(&format!("{:#}", rustc_demangle::demangle(symbol)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_belong_to_the_chain_of_callers_and_calls_to_their_callees() {
        let text = "events: Ir\nsummary: 9\n\nfl=a.rs\nfn=inner'2'outer'main\n1 2\n2 3\nfn=outer'main\n5 4\n\
                    cfn=inner'outer'main\ncalls=1 1\n5 5\n6 1\n\ntotals: 9\n";
        let stack = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let expected = Stacks::from([(stack(&["main", "outer"]), 5), (stack(&["main", "outer", "inner"]), 5)]);
        assert_eq!(parse(text), Some(expected));
        assert_eq!(parse("nothing"), None);
    }
}
