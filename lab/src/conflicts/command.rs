//! The command `quire-lab conflicts`.

use super::operation::{ALL, named};
use super::report::{Counts, last_line, text};
use super::sim::Tasks;
use super::verdict::{Judged, Verdict, judge, unmet};
use super::world::CPUS;
use super::{Case, cases, json, scale};
use crate::Failure;
use std::io::{IsTerminal as _, Write as _};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The options of `quire-lab conflicts`.
#[derive(Default)]
pub struct Options {
    /// The operations whose cases are measured. With `scale`, parts of the names of the measured workloads. Empty: all
    /// are measured.
    pub operations: Vec<String>,
    /// The file to which the matrix is written as JSON.
    pub json: Option<PathBuf>,
    /// Whether to print, in place of the matrix, how many cache lines move between CPUs with each number of CPUs.
    pub scale: bool,
    /// Whether `scale` also prints the source lines that accessed the lines.
    pub verbose: bool,
}

/// Measures and judges `cases`, and calls `done` after each case. The cases of one operation and state form a row,
/// which runs on the CPUs of one scheduler. As many rows run at once as the host has CPUs. This does not change the
/// results, because each row has its own machines.
pub fn run(cases: &[Case], done: &(dyn Fn() + Sync)) -> Result<Vec<Judged>, Failure> {
    let rows: Vec<&[Case]> = cases.chunk_by(|a, b| a.a.name == b.a.name && a.state == b.state).collect();
    let next = AtomicUsize::new(0);
    let work = || {
        let mut mine = Vec::new();
        while let Some((n, row)) = rows.get(next.fetch_add(1, Ordering::Relaxed)).map(|r| (r.as_ptr().addr(), r)) {
            let tasks = Tasks::boot(CPUS);
            for case in *row {
                mine.push((n, judge(*case, &case.run(tasks)?)));
                done();
            }
        }
        Ok::<_, Failure>(mine)
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    let mut all = std::thread::scope(|s| {
        let threads: Vec<_> = (0..workers).map(|_| s.spawn(work)).collect();
        let mut all = Vec::with_capacity(cases.len());
        for thread in threads {
            all.extend(thread.join().unwrap_or_else(|why| std::panic::resume_unwind(why))?);
        }
        Ok::<_, Failure>(all)
    })?;
    // The threads finished the rows in any order. All rows are parts of the slice `cases`, so the sort by a row's
    // address restores the order of `cases`.
    all.sort_by_key(|(row, _)| *row);
    Ok(all.into_iter().map(|(_, judged)| judged).collect())
}

/// Prints the matrix. Returns whether the matrix agrees with the list of known shared lines.
pub fn command(options: &Options) -> Result<bool, Failure> {
    if options.scale {
        return scale::command(&options.operations, options.verbose);
    }
    if let Some(name) = options.operations.iter().find(|n| named(n).is_none()) {
        let names: Vec<&str> = ALL.iter().map(|o| o.name).collect();
        return Err(Failure::Tool(format!(
            "no operation has the name {name}; the operations are {}",
            names.join(", ")
        )));
    }
    let asked = |name: &str| options.operations.is_empty() || options.operations.iter().any(|o| o == name);
    let (pairs, cases) = cases();
    let cases: Vec<Case> = cases.into_iter().filter(|c| asked(c.a.name) || asked(c.b.name)).collect();
    let (n, shows) = (AtomicUsize::new(0), std::io::stderr().is_terminal());
    let all = run(&cases, &|| {
        let n = n.fetch_add(1, Ordering::Relaxed) + 1;
        if shows {
            eprint!("\r{n} of {} cases", cases.len());
        }
    })?;
    if shows {
        eprint!("\r\x1b[K");
    }
    let counts = Counts::of(&all);
    let mut out = std::io::stdout().lock();
    let mut right = all.iter().all(|j| j.verdict != Verdict::Wrong);
    let mut say = |text: &str| {
        // The reader may have closed the pipe. Then an error is ignored, because no reader misses the rest.
        let _ = writeln!(out, "{text}");
    };
    say(&text(&all));
    if options.operations.is_empty() {
        for rate in unmet(&all) {
            right = false;
            say(&format!(
                "GONE {}: listed once in {} operations, and no pair met it",
                rate.labels[0],
                rate.every.unwrap_or(0)
            ));
        }
        say(&format!("{pairs} pairs of operations in a state; {} commute", cases.len()));
    }
    if let Some(path) = &options.json {
        let wrong = |e: &dyn std::fmt::Display| Failure::Tool(format!("{}: {e}", path.display()));
        let text = serde_json::to_string(&json::of(&all)).map_err(|e| wrong(&e))?;
        std::fs::write(path, text).map_err(|e| wrong(&e))?;
    }
    say(&format!(
        "{} share no line, {} share lines only at stated rates, {} are as listed, {} differ from the list",
        counts.free, counts.amortised, counts.listed, counts.wrong
    ));
    say(&last_line(counts));
    Ok(right)
}
