//! Checks that the programs of the stage `races` judge nothing by a clock. In that stage CPUs really run at once, and
//! the host may pause each of them for any time. So the source of such a program must read no clock, set no timer, and
//! count no sleeps.
//!
//! The headers of all programs are exempt, because `report.h` reads the clock to end a measurement and to print a rate.

use std::{collections::BTreeSet, fs, path::Path};

use super::suite::{self, Case};
use crate::failure::{Doing, Result};

/// Calls that read a clock or set a timer, as whole words.
const CLOCKS: &[&str] = &[
    "clock_gettime",
    "clock_nanosleep",
    "clock",
    "gettimeofday",
    "time",
    "times",
    "getrusage",
    "now_ns",
    "__rdtsc",
    "alarm",
    "setitimer",
    "timer_create",
    "timer_settime",
    "timerfd_create",
    "timerfd_settime",
    "sigtimedwait",
    "pthread_cond_timedwait",
    "sem_timedwait",
    "pthread_mutex_timedlock",
];
/// Calls that sleep. They are refused in loops, because a loop that counts sleeps has a deadline.
const SLEEPS: &[&str] = &["usleep", "nanosleep", "sleep", "short_sleep"];

/// Returns the uses of a clock by programs of the tests that race, one line for each.
pub fn find_clocks(root: &Path) -> Result<Vec<String>> {
    let cases = suite::load(&root.join("tests/guest"))?;
    let names: BTreeSet<&str> = cases.iter().filter(|(_, case)| case.races).flat_map(|(_, c)| programs_of(c)).collect();
    let mut found = Vec::new();
    for name in names {
        let path = format!("programs/{name}.c");
        // Other names are programs of the root, whose source is not in `programs/`.
        if !root.join(&path).exists() {
            continue;
        }
        let text = fs::read_to_string(root.join(&path)).doing(|| format!("cannot read {path}"))?;
        found.extend(clocks_in(&text).into_iter().map(|(line, why)| format!("{path}:{line}: {why}")));
    }
    Ok(found)
}

/// Returns the programs of `programs/` that a test names by its `run`, or by their paths in its script.
fn programs_of(case: &Case) -> Vec<&str> {
    let mut names: Vec<&str> = case.run.first().map(String::as_str).into_iter().collect();
    let script = case.script.as_deref().unwrap_or_default();
    let ends = |c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-');
    names.extend(script.split("/programs/").skip(1).map(|rest| rest.split(ends).next().unwrap_or_default()));
    names
}

/// Returns the uses of a clock, each with its line.
fn clocks_in(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        for called in calls(code) {
            if CLOCKS.contains(&called) {
                found.push((at + 1, format!("{called} reads a clock or sets a timer")));
            }
            let counts = code.contains("for (") && code.contains("++");
            if SLEEPS.contains(&called) && counts {
                found.push((at + 1, format!("a loop counts calls of {called}, which is a deadline")));
            }
        }
    }
    found
}

/// Returns the words before an opening parenthesis.
fn calls(code: &str) -> impl Iterator<Item = &str> {
    code.match_indices('(').filter_map(|(at, _)| {
        let before = &code[..at];
        let from = before.rfind(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).map_or(0, |at| at + 1);
        (from < at).then(|| &before[from..])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_timers_and_counted_sleeps_are_found() {
        for line in [
            "uint64_t start = now_ns();",
            "clock_gettime(CLOCK_MONOTONIC, &t);",
            "t = time(NULL);",
            "    while (syscall(SYS_getpid), alarm(1)) {}",
            "for (int i = 0; i < 100 && !ready; i++) usleep(1000);",
        ] {
            assert_eq!(clocks_in(line).len(), 1, "{line}");
        }
        for line in
            ["// now_ns() is not called", "the_time(3);", "int time = 3;", "while (!ready) usleep(1000);", "runtime()"]
        {
            assert_eq!(clocks_in(line), [], "{line}");
        }
        assert_eq!(clocks_in("a\nb = times(&t);")[0].0, 2);
    }

    #[test]
    fn the_programs_of_a_test_are_those_it_runs() {
        let run = Case { run: vec!["twin".into(), "--seed".into()], ..Case::default() };
        assert_eq!(programs_of(&run), ["twin"]);
        let script = "echo; /programs/twin --seed 1 && /programs/forkexec >x";
        let case = Case { script: Some(script.into()), ..Case::default() };
        assert_eq!(programs_of(&case), ["twin", "forkexec"]);
    }
}
