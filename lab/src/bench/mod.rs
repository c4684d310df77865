//! All benchmarks. A bench is a function that measures the figures of one or more lines of output. Each bench has a
//! file with its description, and an entry in [`ALL`].

pub mod chain;
pub mod fault;
pub mod find_space;
pub mod flush;
pub mod fork;
pub mod kernel_map;
pub mod mapper;
pub mod operations;
pub mod queues;
pub mod range;
pub mod rmap;
pub mod transfers;
pub mod zero_fill;

use crate::Failure;
use crate::cachegrind::Workload;
use quire_sync::hooks::threads::{self, NO_CPU};
use std::fs::File;
use std::io::Write as _;

/// All benches, in the order in which they run and print.
#[rustfmt::skip] // One entry a line, even if several entries would fit into one line.
pub const ALL: &[&Bench] = &[
    &fault::COSTS,
    &fork::TOUCHED,
    &fork::MAPPED,
    &mapper::MISSES_BEFORE,
    &mapper::MISSES_AFTER,
    &mapper::MISSES_OURS,
    &mapper::MISSES_ORDERED,
    &mapper::TIME,
    &mapper::ASKED,
    &mapper::TOUCHED,
    &operations::INSTRUCTIONS,
    &zero_fill::SHARE,
    &queues::BASELINES,
    &transfers::LINES,
    &chain::LINES,
    &chain::FAMILY,
    &range::VISITS,
    &flush::QUEUES,
    &rmap::BYTES,
    &rmap::LOCKS,
    &kernel_map::FIND,
    &find_space::HINTS,
    &kernel_map::TABLES,
];

/// All workloads that cachegrind can run.
#[rustfmt::skip] // One entry a line, even if several entries would fit into one line.
pub const WORKLOADS: &[&Workload] = &[
    &mapper::BEFORE,
    &mapper::AFTER,
    &mapper::OURS,
    &mapper::ORDERED,
    &zero_fill::FAULTS,
    &operations::MAP_UNMAP,
    &operations::PROTECT,
    &operations::CREATE,
    &operations::REMOVE,
];

/// The amount of work in a bench.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// The least work that shows that the bench runs. Tests run every bench in this size. The figures have no meaning.
    Short,
    /// The amount of work that the method of each line describes.
    Whole,
}

impl Size {
    /// Returns the value for this size.
    pub fn of<T>(self, short: T, whole: T) -> T {
        match self {
            Size::Short => short,
            Size::Whole => whole,
        }
    }
}

/// The build of the lab in which a bench runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Build {
    /// The build like production: for times, and for the counters of the structures themselves.
    Native,
    /// The build with `--cfg recording`: each shared access is recorded, and times have no meaning.
    Recording,
}

/// One line of output: `name value unit`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Line {
    /// The name, in lower case with words joined by `_`.
    pub name: &'static str,
    /// The unit, for instance `ms` or `misses/op`. A pure number has `ratio` or the name of the counted things.
    pub unit: &'static str,
    /// The method of the measurement, in one or two sentences.
    pub how: &'static str,
}

/// A benchmark.
pub struct Bench {
    /// The build that it needs.
    pub build: Build,
    /// The lines of output that the bench measures.
    pub lines: &'static [Line],
    /// The function that measures, and reports each line.
    pub run: fn(&mut Report) -> Result<(), Failure>,
}

impl Bench {
    /// Whether the filters select any line of the bench.
    pub fn selected(&self, filters: &[String]) -> bool {
        self.lines.iter().any(|l| selects(filters, l.name))
    }
}

/// Whether `name` contains one of the filters. True if there are no filters.
pub fn selects(filters: &[String], name: &str) -> bool {
    filters.is_empty() || filters.iter().any(|f| name.contains(f.as_str()))
}

/// Collects the figures of the benches and prints them.
pub struct Report {
    /// The amount of work in each bench.
    pub size: Size,
    lines: &'static [Line],
    filters: Vec<String>,
    out: File,
    given: Vec<(&'static str, f64)>,
}

impl Report {
    /// Reserves standard output for the figures. From now on, output that benchmark harnesses print to standard output
    /// goes to standard error.
    pub fn to_stdout(size: Size, filters: Vec<String>) -> Result<Report, Failure> {
        let tool = |e: rustix::io::Errno| Failure::Tool(format!("standard output cannot be redirected: {e}"));
        let out = rustix::io::dup(std::io::stdout()).map_err(tool)?;
        rustix::stdio::dup2_stdout(std::io::stderr()).map_err(tool)?;
        Ok(Report { size, lines: &[], filters, out: out.into(), given: Vec::new() })
    }

    /// Runs a bench. The bench must report a number for each of its lines.
    pub fn run(&mut self, bench: &'static Bench) -> Result<(), Failure> {
        self.lines = bench.lines;
        self.given.clear();
        // The bench attaches to its own machine. Otherwise it would run as a CPU of the previous bench's machine.
        threads::set_cpu(NO_CPU);
        (bench.run)(self)?;
        if let Some((name, value)) = self.given.iter().find(|(_, value)| !value.is_finite()) {
            return Err(Failure::Wrong(format!("{name} is {value}")));
        }
        match bench.lines.iter().find(|l| !self.given.iter().any(|(n, _)| *n == l.name)) {
            Some(missing) => Err(Failure::Wrong(format!("the bench gave no {}", missing.name))),
            None => Ok(()),
        }
    }

    /// Records `value` for the line `name` of the running bench, and prints it if the filters select the line.
    ///
    /// # Panics
    /// If the bench declares no line `name`, which is an error in the bench.
    pub fn put(&mut self, name: &str, value: f64) {
        let line = self.lines.iter().find(|l| l.name == name);
        let line = line.unwrap_or_else(|| panic!("{name} is not a figure of this bench"));
        self.given.push((line.name, value));
        if selects(&self.filters, name) {
            // The reader may have closed the pipe. Then an error is ignored, because no reader misses the rest.
            let _ = writeln!(self.out, "{name} {} {}", figure(value), line.unit);
        }
    }
}

/// The text of a number: whole numbers are exact, others have four significant digits.
fn figure(value: f64) -> String {
    if value.fract() == 0.0 && value.abs() < 1e15 {
        return format!("{value:.0}");
    }
    let before = value.abs().log10().floor().max(-9.0) as i32 + 1;
    format!("{value:.*}", (4 - before).max(0) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_whole_or_have_four_digits() {
        assert_eq!(
            [12345.0, 0.0, 12345.6, 12.3456, 0.00123456].map(figure),
            ["12345", "0", "12346", "12.35", "0.001235"]
        );
    }

    #[test]
    fn no_two_lines_have_one_name_and_each_says_how_it_is_measured() {
        let mut names: Vec<&str> = ALL.iter().flat_map(|b| b.lines).map(|l| l.name).collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all, "two lines have one name");
        for line in ALL.iter().flat_map(|b| b.lines) {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            assert!(line.name.chars().all(plain), "{}", line.name);
            assert!(line.how.len() > 10 && line.how.ends_with('.'), "{} says how", line.name);
            assert!(!line.unit.is_empty() && !line.unit.contains(char::is_whitespace), "{} has a unit", line.name);
        }
    }

    #[test]
    fn the_documentation_has_every_line() {
        let page = include_str!("../../../docs/bench.md");
        for line in ALL.iter().flat_map(|b| b.lines) {
            assert!(
                page.contains(&format!("| `{}` | {} |", line.name, line.unit)),
                "docs/bench.md lacks {}",
                line.name
            );
        }
    }
}
